"""A file is replaced whole or not at all."""

import errno
import os
import stat
from pathlib import Path

import pytest

from ebbtide.whole_file import try_writing, write_whole


def test_a_file_is_replaced_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_it_may_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "out", b"")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o640


def test_who_may_read_a_file_stays_as_it_was_and_a_link_stays_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "out", tmp_path / "link"
    write_whole(path, b"old")
    path.chmod(0o600)
    link.symlink_to("out")
    write_whole(link, b"new")
    assert link.readlink() == Path("out")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)


def test_the_umask_of_other_threads_is_never_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("another thread's new file would be open to all"))
    write_whole(tmp_path / "out", b"text")
    try_writing(tmp_path / "out")


def test_what_cannot_be_finished_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    write_whole(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_open_already_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as log:
        log.write("first\n")
        log.flush()
        there = Path(f"/dev/fd/{log.fileno()}")  # as /dev/stdout is, where output goes to a file
        try_writing(there)
        write_whole(there, b"report\n")
        log.seek(0, os.SEEK_END)
        log.write("last\n")
    assert path.read_text() == "first\nreport\nlast\n"


def test_trying_leaves_no_file_and_an_old_one_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out"
    try_writing(path)
    assert list(tmp_path.iterdir()) == []
    write_whole(path, b"old")
    before = path.stat()
    try_writing(path)
    assert (path.read_bytes(), path.stat()) == (b"old", before)
    assert list(tmp_path.iterdir()) == [path]


def test_trying_finds_what_writing_would_find(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "missing" / "out", tmp_path / "file" / "out", tmp_path / ("x" * 256)):
        for use in (try_writing, lambda path: write_whole(path, b"")):
            with pytest.raises(OSError):  # noqa: PT011 (each of another kind)
                use(path)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        try_writing(pipe)
        write_whole(pipe, b"text")
        assert os.read(reader, 10) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(OSError, match="No such device or address"):  # nobody reads it: no end of waiting
        write_whole(pipe, b"text")


def test_links_that_lead_to_each_other_are_refused_beforehand(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    for write in (try_writing, lambda path: write_whole(path, b"new")):
        with pytest.raises(OSError, match="Too many levels"):
            write(one)
    assert sorted(tmp_path.iterdir()) == [one, other]


def test_a_name_may_be_as_long_as_any_file_s(tmp_path: Path) -> None:
    path = tmp_path / ("\u00e9" * 127 + "x")  # 255 bytes
    try_writing(path)
    write_whole(path, b"new")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"new", [path])


def test_an_error_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(beside: Path, place: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/out'"):
        write_whole(tmp_path / "out", b"new")
