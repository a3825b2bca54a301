"""A line that nobody can read ends nothing."""

import io
import os
import re
import sys

import pytest
from tqdm import tqdm

from ebbtide.terminal import columns_of, has_bars, tell


class Refusing(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError("who read this went away")


class OnlyWrites:
    """What trainers put in the place of standard error: it has no ``isatty``."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


def test_a_line_goes_where_it_should_whatever_a_script_makes_of_print(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings over several ranks print by the first one alone."""
    monkeypatch.setattr("builtins.print", lambda *_, **__: pytest.fail("it is the script's"))
    stream = io.StringIO()
    tell("a line", stream)
    assert stream.getvalue() == "a line\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, closed(), Refusing(), OnlyWrites()], ids=["none", "closed", "pipe", "tee"])
def test_what_a_script_does_to_standard_error_raises_nothing(
    stream: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    tell("a line")
    assert columns_of(sys.stderr) is None
    if isinstance(stream, OnlyWrites):
        assert stream.text == "a line\n"
    assert capsys.readouterr().out == ""  # where print would write to without a stream


def test_a_terminal_that_has_no_size_is_as_wide_as_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.get_terminal_size", lambda number: os.terminal_size((0, 0)))
    assert columns_of(Terminal()) == 80


def test_a_line_has_a_line_of_its_own_where_a_bar_of_tqdm_has_not_ended() -> None:
    stream = io.StringIO()
    with tqdm(total=4, file=stream, ncols=60) as bar:
        bar.update(1)
        bar.refresh()
        assert has_bars()
        tell("ebbtide: error: too small", stream)
    assert "ebbtide: error: too small" in re.split(r"[\r\n]", stream.getvalue())
    assert not has_bars()
