"""Where moved storages may go: a directory that exists, is writable and does not lie in RAM."""

import errno
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from ebbtide.errors import SpillError
from ebbtide.host.spill import (
    checked_spill_directory,
    choose_spill_directories,
    free_bytes_of,
    open_unnamed,
    usable_bytes,
)


def proc_with(root: Path, *mounts: tuple[str, str, str]) -> Path:
    """A /proc whose mounts are (mount point, type, source); the file system at / is an ordinary disk."""
    proc = root / "proc"
    (proc / "self").mkdir(parents=True)
    lines = ["20 1 8:1 / / rw - ext4 /dev/sda1 rw"]
    lines += [
        f"{21 + row} 20 0:{row} / {point} rw - {kind} {source} rw" for row, (point, kind, source) in enumerate(mounts)
    ]
    (proc / "self/mountinfo").write_text("\n".join(lines) + "\n")
    return proc


def test_a_directory_on_a_disk_is_taken_without_its_links(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    proc = proc_with(tmp_path)
    assert choose_spill_directories([str(tmp_path / "link")], proc) == ((tmp_path / "disk").resolve(),)
    assert list((tmp_path / "disk").iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "source"),
    [("tmpfs", "tmpfs"), ("ramfs", "none"), ("hugetlbfs", "none"), ("ext4", "/dev/zram0"), ("ext2", "/dev/ram1")],
)
def test_a_directory_in_ram_is_refused(tmp_path: Path, kind: str, source: str) -> None:
    (tmp_path / "fast lane").mkdir()
    point = str(tmp_path.resolve() / "fast lane").replace(" ", "\\040")
    with pytest.raises(SpillError, match=r"lies in RAM.*spill= or EBBTIDE_SPILL"):
        choose_spill_directories([str(tmp_path / "fast lane")], proc_with(tmp_path, (point, kind, source)))


def test_the_mount_that_is_seen_counts(tmp_path: Path) -> None:
    point = str(tmp_path.resolve())
    over = proc_with(tmp_path, (point, "tmpfs", "tmpfs"), (point, "xfs", "/dev/sdb1"))
    assert checked_spill_directory(tmp_path, over) == tmp_path.resolve()


def test_what_is_missing_no_directory_or_not_writable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpillError, match="does not exist"):
        choose_spill_directories([str(tmp_path / "missing")])
    (tmp_path / "file").write_text("")
    with pytest.raises(SpillError, match="not a directory"):
        choose_spill_directories([str(tmp_path / "file")])
    with pytest.raises(SpillError, match="no file can be created"):
        choose_spill_directories(["/proc"])


def test_where_the_file_system_has_no_unnamed_files_a_file_loses_its_name_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an overlay before Linux 6.1, and NFS."""
    opens = os.open

    def refusing(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return opens(path, flags, mode)

    monkeypatch.setattr("os.open", refusing)
    file, _ = open_unnamed(tmp_path)
    with os.fdopen(file, "wb") as unnamed:
        assert os.fstat(unnamed.fileno()).st_nlink == 0
    assert list(tmp_path.iterdir()) == []


def test_the_default_is_the_first_that_can_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, ram = tmp_path / "disk", tmp_path / "ram"
    disk.mkdir()
    ram.mkdir()
    proc = proc_with(tmp_path, (str(ram.resolve()), "tmpfs", "tmpfs"), ("/var/tmp", "tmpfs", "tmpfs"))
    monkeypatch.chdir(disk)
    monkeypatch.setenv("TMPDIR", str(ram))
    assert choose_spill_directories([], proc) == (disk.resolve(),)
    monkeypatch.chdir(ram)
    with pytest.raises(SpillError, match="default directories") as caught:
        choose_spill_directories([], proc)
    assert str(ram) in str(caught.value)


def test_a_default_that_is_nearly_full_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, here = tmp_path.resolve() / "first", tmp_path.resolve() / "here"
    first.mkdir()
    here.mkdir()
    proc = proc_with(tmp_path)
    monkeypatch.setenv("TMPDIR", str(first))
    monkeypatch.chdir(here)
    free = {first: 40 << 20, Path("/var/tmp").resolve(): 10 << 20, here: 2 << 30}
    monkeypatch.setattr("shutil.disk_usage", lambda directory: SimpleNamespace(free=free[directory]))
    assert choose_spill_directories([], proc) == (here,)
    free[here] = 20 << 20
    assert choose_spill_directories([], proc) == (first,)


def test_of_several_each_is_checked_and_named(tmp_path: Path) -> None:
    disks = [tmp_path / name for name in ("one", "two", "ram")]
    for disk in disks:
        disk.mkdir()
    proc = proc_with(tmp_path, (str(disks[2].resolve()), "tmpfs", "tmpfs"))
    names = [str(disk) for disk in disks]
    assert choose_spill_directories(names[:2], proc) == tuple(disk.resolve() for disk in disks[:2])
    with pytest.raises(SpillError, match="lies in RAM") as caught:
        choose_spill_directories(names, proc)
    assert caught.value.directory == names[2]
    with pytest.raises(SpillError, match="named twice"):
        choose_spill_directories([names[0], names[1], f"{names[0]}/."], proc)


def test_directories_on_one_file_system_share_its_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 9000

    monkeypatch.setattr("shutil.disk_usage", lambda directory: Usage)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    assert free_bytes_of([tmp_path]) == (9000,)
    assert free_bytes_of([tmp_path / "one", tmp_path / "two", Path("/proc")]) == (4500, 4500, 9000)
    assert usable_bytes([tmp_path / "one", Path("/proc")]) == 18_000
    assert usable_bytes([tmp_path / "one", tmp_path / "two", Path("/proc")]) == 13_500  # the fullest bounds them


def test_the_error_keeps_its_data_through_a_pickle() -> None:
    error = pickle.loads(pickle.dumps(SpillError("/x", "it is full")))
    assert (error.directory, error.reason, error.exit_code) == ("/x", "it is full", 4)
    assert "it is full" in str(error)


def test_a_current_directory_that_was_deleted_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.delenv("TMPDIR", raising=False)
    gone.rmdir()
    assert choose_spill_directories([], proc_with(tmp_path)) == (Path("/var/tmp").resolve(),)
    in_ram = proc_with(tmp_path / "ram", ("/var/tmp", "tmpfs", "tmpfs"))
    with pytest.raises(SpillError, match=r"the current directory: it was deleted.*spill="):
        choose_spill_directories([], in_ram)


def test_after_chroot_no_mount_holds_the_root_directory_and_it_serves(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mountinfo").write_text("30 20 0:5 / /proc rw - proc proc rw\n")
    assert checked_spill_directory(tmp_path, proc) == tmp_path.resolve()
