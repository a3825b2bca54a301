"""A real file system of a few MiB: ext4 in a file, on a loop device. Whoever may not mount one skips the test."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """Where it is mounted, below ``folder``."""
    image, place = folder / "disk.image", folder / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(mib << 20)
    make = shutil.which("mkfs.ext4") or shutil.which("mkfs.ext4", path="/sbin:/usr/sbin")
    if make is None:
        pytest.skip("there is no mkfs.ext4")
    _call(make, "-q", "-F", "-m", "0", str(image))
    _call("mount", "-o", "loop", str(image), str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def _call(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"{command[0]}: {error.strerror}")
    if done.returncode:
        pytest.skip(f"{command[0]}: {done.stderr.strip()}")
