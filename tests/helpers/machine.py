"""What a wrong bit may depend on besides the code: the kernel, the CPU, and where evicted bytes lie."""

import os
import platform
from pathlib import Path

from ebbtide.host.mounts import find_mount, read_mounts
from ebbtide.host.process import PROC
from ebbtide.host.spill import choose_spill_directories

_MODELS = ("device/model", "device/vendor", "serial")


def describe() -> str:
    """One line about this machine."""
    lines = (PROC / "cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    directory = choose_spill_directories([])[0].resolve()
    mount = find_mount(read_mounts(PROC), directory)
    spill = f"{mount.kind} ({mount.options}) of {_disk(directory, mount.source)}"
    return f"kernel {platform.release()}, {cpu}, spill files on {spill}"


def _disk(directory: Path, source: str) -> str:
    """The device, and its model where the kernel knows one."""
    device = os.stat(directory).st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    whole = block if (block / "queue").exists() else block.parent
    known = [text for name in _MODELS if (whole / name).is_file() and (text := (whole / name).read_text().strip())]
    return " ".join([source, *known])
