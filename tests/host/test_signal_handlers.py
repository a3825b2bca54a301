"""What a signal's handler raises is told from our own errors."""

import signal
from collections.abc import Callable
from functools import partial
from types import FrameType

import pytest

from ebbtide.host.signal_handlers import came_from_a_handler, note_gone

Handler = Callable[[int, FrameType | None], None]


def raised_by(handler: Handler) -> BaseException:
    """What comes of a signal that the handler hears."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signal.raise_signal(signal.SIGUSR1)
    except TimeoutError as error:
        return error
    finally:
        note_gone(signal.signal(signal.SIGUSR1, before))  # as the wrapper of a session does
    raise AssertionError


def late(*_: object) -> None:
    raise TimeoutError


def once(number: int, _frame: FrameType | None) -> None:
    """The next signal is to end the process."""
    note_gone(signal.signal(number, signal.SIG_DFL))
    raise TimeoutError


class Late:
    def __call__(self, *_: object) -> None:
        raise TimeoutError


@pytest.mark.parametrize("handler", [late, once, partial(partial(late, 1), 2), Late()])
def test_handlers_of_any_kind_are_known_also_once_they_are_gone(handler: Handler) -> None:
    assert came_from_a_handler(raised_by(handler))


def test_other_errors_are_no_handlers() -> None:
    with pytest.raises(TimeoutError) as raised:
        raise TimeoutError
    assert not came_from_a_handler(raised.value)
