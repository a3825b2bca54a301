"""The common part of a session and a recorder: a ``with`` block, one at a time, with a driver for its steps."""

import atexit
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar

from ebbtide.errors import SessionError, SettingError
from ebbtide.terminal import warn_user
from ebbtide.whole_file import is_special, try_writing

if TYPE_CHECKING:
    from ebbtide.capture.following import Following

_lock = threading.Lock()
_active: "Driven | None" = None
_told_disabled = False
_Self = TypeVar("_Self", bound="Driven")


class Driver(Protocol):
    """The engine, or what records: it runs from beginning to end, on one thread."""

    following: "Following"

    def begin_step(self) -> None: ...
    def end_step(self, *, completed: bool) -> None: ...
    def stop(self) -> None: ...


class Driven:
    """A ``with`` block whose steps end where the optimizers do, or where ``step`` says."""

    def __init__(self) -> None:
        self._driver: Driver | None = None
        """None before the beginning, and where there is nothing to do."""
        self._process: int | None = None  # that it began in
        self._in_block = False  # a step's
        self._between_calls = False  # the open step began with a call of ``step`` without a block
        self._paused = False
        self._reads: list[str | None] = []  # files that nothing may replace

    def __enter__(self: _Self) -> _Self:
        global _active
        if self._process is not None:
            raise SessionError("a session is used once; make a new one")
        self._check()
        with _lock:
            if _active is not None:
                raise SessionError(
                    "a session is already active, started by an enclosing `with ebbtide.Session(...)`, by `start()` or "
                    "by `ebbtide run`; sessions do not nest, so leave that one first (`ebbtide.active().close()`) or "
                    "use it"
                )
            self._process = os.getpid()
            _active = self
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_ours():
            self._close()

    def start(self: _Self) -> _Self:
        """Begin without a block, as a notebook needs it: ``session = Session("50%").start()``, then ``close()``."""
        self.__enter__()
        atexit.register(self.close)
        return self

    def close(self) -> None:
        """End what ``start`` or a ``with`` block began. Do nothing where it has ended."""
        atexit.unregister(self.close)
        self.__exit__(None, None, None)

    def step(self) -> "Step":
        """Mark one training step: forward, backward, ``optimizer.step()``. It is the body of a block, or ends at a
        call:

            with session.step():                 for batch in loader:
                train(batch)                         train(batch)
                                                     session.step()

        After the first call, the session no longer follows the optimizers, each of which steps once in a step. A block
        that raises ends its step cleanly. Raises BudgetError at the end of a step that the budget cannot hold.
        """
        self._require_now("step()")
        if self._driver is not None:
            self._driver.following.stop()
            if self._between_calls:
                self._between_calls = False
                self._driver.end_step(completed=True)
            self._driver.begin_step()
            self._between_calls = True
        return Step(self)

    def evaluating(self) -> "Evaluation":
        """Take what runs in this block out of training steps: validation, say, or writing a checkpoint.

        Memory stays bounded, and what the block uses is fetched when it is used. A step that has trained ends here.
        Where steps are blocks of ``step()``, code between them is no part of a step anyway. Raises SessionError inside
        a step's block.
        """
        self._require_now("evaluating()")
        return Evaluation(self)

    def _check(self) -> None:
        """Check what it can before anything begins. Raises SettingError."""

    def _start(self) -> None:
        """Set the driver, once it runs."""
        raise NotImplementedError

    def _close(self) -> None:
        global _active
        try:
            if self._driver is not None:
                self._driver.stop()
        finally:
            with _lock:
                _active = None

    def _require_now(self, call: str, *, within: bool = False) -> None:
        """Raise SessionError, with the reason, where this call may not come now. ``within`` a step's block, it may."""
        if self._process is None:
            why = "its session has not begun; enter it (`with session:`), or call its `start()`"
        elif self._process != os.getpid():
            why = "this process was forked from its session's, and has no session"
        elif not self._is_ours():
            why = "its session has ended; make a new one"
        elif self._in_block and not within:
            why = "it stands within the block of a step; end that first"
        elif self._paused and not within:
            why = "it stands within the block of `evaluating()`; end that first"
        else:
            return
        raise SessionError(f"{call} cannot be called here: {why}")

    def _is_ours(self) -> bool:
        """Tell whether it is active. False in a forked child, where nothing of the session runs, and after the end."""
        return _active is self


class Step:
    """The result of ``step()``. Used in ``with``, the step ends with the block."""

    def __init__(self, driven: Driven) -> None:
        self._driven = driven

    def __enter__(self) -> None:
        if not self._driven._between_calls and self._driven._driver is not None:
            raise SessionError("a step is one block: call step() for each")
        self._driven._in_block = True
        self._driven._between_calls = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        driven = self._driven
        driven._in_block = False
        if driven._is_ours() and driven._driver is not None:  # a child forked within the step leaves the block, too
            driven._driver.end_step(completed=error is None)


class Evaluation:
    """The result of ``evaluating()``, for ``with``."""

    def __init__(self, driven: Driven) -> None:
        self._driven = driven

    def __enter__(self) -> None:
        self._driven._paused = True
        if self._driven._driver is not None:
            following = self._driven._driver.following
            following.pause()
            self._driven._between_calls &= following.resumes

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driven._paused = False
        if self._driven._is_ours() and self._driven._driver is not None:
            self._driven._driver.following.resume()


def active() -> Driven | None:
    """Return the session or recorder that is active in this process, or None."""
    return _active


def check_writable(files: Mapping[str, Path | None], reads: Iterable[Path | str | None] = ()) -> None:
    """Check before the run that files can be written, not after hours of it, and that nothing else is lost by that.

    ``files`` are by what they are to hold, ``reads`` are the files that are read. Raises SettingError.
    """
    read = {os.path.realpath(path) for path in reads if path is not None}
    taken: dict[str, str] = {}
    for what, path in files.items():
        if path is None:
            continue
        there = os.path.realpath(path)
        with written(what, path):
            if not is_special(path):
                if there in read:
                    raise SettingError(f"the {what} would replace {path}, which is read: name another file")
                if there in taken:
                    raise SettingError(f"the {taken[there]} and the {what} would both be {path}: name two files")
            try_writing(path)
        taken[there] = what


@contextmanager
def written(what: str, path: Path) -> Iterator[None]:
    """Turn an OSError of the block, which writes the file, into a SettingError."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise SettingError(
            f"the {what} cannot be written to {path} ({why}): name a file in a writable directory"
        ) from error


def tell_disabled() -> None:
    """Warn once in a process."""
    global _told_disabled
    if not _told_disabled:
        _told_disabled = True
        warn_user("EBBTIDE_DISABLE is set: nothing is managed and nothing is bounded")


def _forget_in_child() -> None:
    global _active, _lock
    _active = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)
