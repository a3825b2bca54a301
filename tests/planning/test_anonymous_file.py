"""A file in memory that survives a script which closes what it did not open, and leaves that script's files alone."""

import os
from pathlib import Path

from ebbtide.planning.anonymous_file import AnonymousFile


def test_what_is_in_it_is_read_whole_wherever_another_process_stands_in_it() -> None:
    made = AnonymousFile(b"question")
    assert os.read(made.fd, 4) == b"ques"  # a child has the same position
    assert made.read() == b"question"
    os.write(made.fd, b"s and answers")
    assert made.read() == b"quess and answers"
    made.close()
    made.close()
    assert made.read() is None


def test_one_that_was_closed_is_missed_and_a_file_of_its_number_is_left_alone(tmp_path: Path) -> None:
    made, closed = AnonymousFile(b"question"), AnonymousFile()
    os.close(closed.fd)
    assert closed.read() is None
    closed.close()
    other = os.open(tmp_path / "other", os.O_CREAT | os.O_RDWR)
    os.dup2(other, made.fd)
    os.write(made.fd, b"the script's")
    assert made.read() is None
    made.close()
    assert os.pread(made.fd, 99, 0) == b"the script's"
    for number in (other, made.fd):
        os.close(number)
