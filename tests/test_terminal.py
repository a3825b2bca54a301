"""A line that nobody can read ends nothing."""

import io
import sys

import pytest

from ebbtide.terminal import columns_of, tell


class Refusing(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError("who read this went away")


class OnlyWrites:
    """What trainers put in the place of standard error: it has no ``isatty``."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


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
