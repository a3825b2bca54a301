"""The mounted file systems, as ``/proc/self/mountinfo`` lists them (proc(5))."""

import re
from dataclasses import dataclass
from pathlib import Path

from ebbtide.host.kernel_files import text_of

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """The part ``root`` of a file system is visible at ``point``. ``options`` are the file system's own."""

    root: str
    point: Path
    kind: str
    source: str
    options: str


def read_mounts(proc: Path) -> list[Mount]:
    """Return the mounts in their order. Of two at one point, the later one is visible."""
    return [_parse(line) for line in text_of(proc / "self/mountinfo").split("\n") if line]


UNSEEN = Mount("/", Path("/"), "unknown", "unknown", "")
"""The mount of the root directory after chroot(2), where the kernel lists no mount that begins above it."""


def find_mount(mounts: list[Mount], directory: Path) -> Mount:
    """Find the mount of an absolute path without symbolic links. Returns ``UNSEEN`` where none is listed."""
    holding = [mount for mount in mounts if directory.is_relative_to(mount.point)]
    if not holding:
        return UNSEEN
    deepest = max(len(mount.point.parts) for mount in holding)
    return [mount for mount in holding if len(mount.point.parts) == deepest][-1]


def _parse(line: str) -> Mount:
    left, right = line.split(" - ", 1)
    root, point = (_unescape(text) for text in left.split(" ")[3:5])
    kind, source, options = right.split(" ", 2)
    return Mount(root, Path(point), kind, _unescape(source), options)


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
