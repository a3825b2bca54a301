"""Gives each run a directory of its own, so that no run sees or overwrites another's files.

Where the command contains ``{out}``, this is replaced by the directory's name, and the script runs where it is.
Otherwise the script runs in a fresh copy of the current directory. So it finds the files that it reads there, and never
writes into the original. Virtual environments and ``.git`` are linked, not copied. A link that leads out of the
directory still does.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ebbtide.errors import SettingError
from ebbtide.units import GIB, format_bytes

PLACE = "{out}"
MOST_COPIED_BYTES = GIB
MOST_COPIED_FILES = 20_000


@dataclass(frozen=True, slots=True)
class Folder:
    """One run's command with its placeholders filled, the directory in which it runs, and the one in which it
    writes."""

    command: tuple[str, ...]
    working: Path
    written: Path


def make_folder(command: Sequence[str], current: Path, runs: Path, name: str) -> Folder:
    """Make a fresh directory ``name`` in ``runs``. Raises SettingError where the current directory is too large to
    copy."""
    if any(PLACE in part for part in command):
        written = runs / name / "out"
        written.mkdir(parents=True)
        return Folder(tuple(part.replace(PLACE, str(written)) for part in command), current, written)
    _check_size(current, runs)
    working = runs / name / "copy"
    for directory, folders, files in _walk(current, runs):
        target = working / directory.relative_to(current)
        target.mkdir(parents=True)
        for path in (directory / part for part in (*folders, *files)):
            _copy(path, target / path.name, current)
    return Folder(tuple(command), working, working)


def _check_size(current: Path, runs: Path) -> None:
    count, nbytes = 0, 0
    for directory, _, files in _walk(current, runs):
        count += len(files)
        nbytes += sum((directory / name).lstat().st_size for name in files)
        if nbytes > MOST_COPIED_BYTES or count > MOST_COPIED_FILES:
            raise SettingError(
                f"each run gets a copy of the current directory to write in, and {current} holds more than "
                f"{format_bytes(MOST_COPIED_BYTES)} or {MOST_COPIED_FILES} files. Name where the script writes with "
                f"{PLACE}, as in `ebbtide verify train.py --output {PLACE}` (it then runs where it is), or start it in "
                "a directory that holds only what it reads by relative paths."
            )


def _walk(current: Path, runs: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Walk like os.walk, but enter neither linked directories nor the runs' own."""
    for name, folders, files in os.walk(current):
        directory = Path(name)
        folders[:] = [name for name in folders if directory / name != runs]
        yield directory, list(folders), files
        folders[:] = [name for name in folders if not _is_linked(directory / name)]


def _copy(path: Path, target: Path, current: Path) -> None:
    """Copy a file or a link, or link a directory. ``_walk`` makes other directories. Sockets and pipes are left out."""
    if path.is_symlink():
        leads_to = Path(os.path.realpath(path))
        target.symlink_to(os.readlink(path) if leads_to.is_relative_to(current) else leads_to)
    elif path.is_dir():
        if _is_linked(path):
            target.symlink_to(path)
    elif path.is_file():
        shutil.copy2(path, target)


def _is_linked(directory: Path) -> bool:
    return directory.name == ".git" or (directory / "pyvenv.cfg").exists()
