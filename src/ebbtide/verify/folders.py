"""Gives each run a directory of its own, so that no run sees or overwrites another's files.

Where the command contains ``{out}``, this is replaced by the directory's name, and the script runs where it is.
Otherwise the script runs in a fresh copy of the current directory. So it finds the files that it reads there, and never
writes into the original. Virtual environments and ``.git`` are linked, not copied. What a link leads to outside of the
directory is copied, too, where it is small enough; else the link still leads there, and a warning says so.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ebbtide.errors import SettingError
from ebbtide.terminal import tell
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
    room = _room_beside(current, runs)
    working = runs / name / "copy"
    for directory, folders, files in _walk(current, runs):
        target = working / directory.relative_to(current)
        target.mkdir(parents=True)
        for path in (directory / part for part in (*folders, *files)):
            _copy(path, target / path.name, current, room)
    return Folder(tuple(_in_copy(word, current, working) for word in command), working, working)


def _in_copy(word: str, current: Path, working: Path) -> str:
    """Name the copy of a file in the current directory, and by its full name what lies outside: ``--data=../data``."""
    before, equals, name = word.partition("=") if word.startswith("-") else ("", "", word)
    path = os.path.normpath(current / name)
    if not os.path.lexists(path) or not (os.path.isabs(name) or name.startswith(os.pardir)):
        return word
    inside = Path(path).is_relative_to(current)
    return f"{before}{equals}{working / Path(path).relative_to(current) if inside else path}"


@dataclass(slots=True)
class _Room:
    """What may be copied yet."""

    files: int
    nbytes: int

    def take(self, files: int, nbytes: int) -> bool:
        """Take this much, and say whether it was there."""
        self.files, self.nbytes = self.files - files, self.nbytes - nbytes
        return self.files >= 0 and self.nbytes >= 0

    def copy_outside(self, path: Path, target: Path) -> bool:
        """Copy a file or a directory with all that is in it, if it can be copied and there is room."""
        if Path(os.path.realpath(target.parent)).is_relative_to(path):
            return False  # the copy would lie in what is copied
        left = replace(self)
        found = [path] if path.is_file() else (Path(name, file) for name, _, files in os.walk(path) for file in files)
        try:
            if not all(left.take(1, file.lstat().st_size) for file in found):
                return False
            shutil.copy2(path, target) if path.is_file() else shutil.copytree(path, target, symlinks=True)
        except OSError:  # it is gone, or forbidden, or has a pipe in it
            shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
            return False
        self.files, self.nbytes = left.files, left.nbytes
        return True


def _room_beside(current: Path, runs: Path) -> _Room:
    """Return the room that is left for what links lead to. Raises SettingError where there is none for the rest."""
    room = _Room(MOST_COPIED_FILES, MOST_COPIED_BYTES)
    for directory, _, files in _walk(current, runs):
        if not room.take(len(files), sum((directory / name).lstat().st_size for name in files)):
            raise SettingError(
                f"each run gets a copy of the current directory to write in, and {current} holds more than "
                f"{format_bytes(MOST_COPIED_BYTES)} or {MOST_COPIED_FILES} files. Name where the script writes with "
                f"{PLACE}, as in `ebbtide verify train.py --output {PLACE}` (it then runs where it is), or start it in "
                "a directory that holds only what it reads by relative paths."
            )
    return room


def _walk(current: Path, runs: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Walk like os.walk, but enter neither linked directories nor the runs' own."""
    for name, folders, files in os.walk(current):
        directory = Path(name)
        folders[:] = [name for name in folders if directory / name != runs]
        yield directory, list(folders), files
        folders[:] = [name for name in folders if not _is_linked(directory / name)]


def _copy(path: Path, target: Path, current: Path, room: _Room) -> None:
    """Copy a file or a link, or link a directory. ``_walk`` makes other directories. Sockets and pipes are left out."""
    if path.is_symlink():
        leads_to = Path(os.path.realpath(path))
        if leads_to.is_relative_to(current):
            where = os.readlink(path)  # an absolute one would lead out of the copy
            relative = os.path.relpath(leads_to, os.path.realpath(path.parent))
            target.symlink_to(relative if os.path.isabs(where) else where)
        elif _is_linked(leads_to) or not room.copy_outside(leads_to, target):
            target.symlink_to(leads_to)
            holds_files = leads_to.is_dir() or leads_to.is_file()
            if holds_files and os.access(leads_to, os.W_OK) and not _is_linked(leads_to):
                _tell_of_link(path.relative_to(current), leads_to)
    elif path.is_dir():
        if _is_linked(path):
            target.symlink_to(path)
    elif path.is_file():
        shutil.copy2(path, target)


@cache
def _tell_of_link(link: Path, leads_to: Path) -> None:
    tell(
        f"ebbtide: warning: {link} leads to {leads_to}, which cannot be copied or is too large: what the script writes "
        f"there replaces what is there. {PLACE} in its arguments names another place"
    )


def _is_linked(directory: Path) -> bool:
    return directory.name == ".git" or (directory / "pyvenv.cfg").exists()
