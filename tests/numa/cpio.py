"""An initramfs: the archive that the kernel unpacks as its first filesystem (cpio, newc).

Written here, so that no program for it has to be installed. Left out: everything but folders and
programs of root's, and one device.
"""

from __future__ import annotations

import stat
from typing import BinaryIO

CONSOLE = (5, 1)  # /dev/console


def write(out: BinaryIO, entries: dict[str, bytes | None]) -> None:
    """Paths to their contents, each executable; None is a folder. Folders come before what lies in them."""
    for number, (path, data) in enumerate(entries.items(), 1):
        kind = stat.S_IFDIR if data is None else stat.S_IFREG
        _entry(out, number, path, kind | 0o755, data or b"")
    _entry(out, len(entries) + 1, "dev/console", stat.S_IFCHR | 0o600, b"", CONSOLE)
    _entry(out, 0, "TRAILER!!!", 0, b"")


def _entry(out: BinaryIO, number: int, path: str, mode: int, data: bytes, device: tuple[int, int] = (0, 0)) -> None:
    name = path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(mode) else 1
    fields = (number, mode, 0, 0, links, 0, len(data), 0, 0, *device, len(name), 0)
    out.write(_padded(b"070701" + b"".join(b"%08x" % field for field in fields) + name))
    out.write(_padded(data))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
