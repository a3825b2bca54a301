"""Reads files of /proc and /sys. Names there may have any bytes: those of mount points, and of processes, which the
kernel cuts within a letter."""

import os
from pathlib import Path


def text_of(path: Path) -> str:
    """Return the file's text, in which bytes that are no UTF-8 stand for themselves (``surrogateescape``)."""
    return os.fsdecode(path.read_bytes())
