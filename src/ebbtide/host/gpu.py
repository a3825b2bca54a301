"""The GPU whose memory a run's tensors have, if it is a GPU's: which one, and what it has.

Left out: PyTorch's side of it (``runtime.cuda_front``). Several GPUs in one process: of torchrun's ranks each has its
own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ebbtide.errors import PlatformError, SettingError
from ebbtide.host.cuda import require_cuda
from ebbtide.host.native import require_native
from ebbtide.host.place import place
from ebbtide.host.process import MemoryLimit
from ebbtide.units import option

DRIVER = "libcuda.so.1"
CPU = "cpu"
NEVER_TRIED = "the part for GPUs has run over a fake driver alone, and on no GPU yet"


@dataclass(frozen=True, slots=True)
class Gpu:
    """``free_bytes`` and ``total_bytes`` are of its memory when it was looked at, ``page_bytes`` is what memory is
    given in. One that ``is_fake`` is memory of this machine, and CPU tensors lie there (docs/gpu.md)."""

    ordinal: int
    name: str
    free_bytes: int
    total_bytes: int
    page_bytes: int
    is_fake: bool = False

    def there(self) -> MemoryLimit:
        """What this process can have."""
        return MemoryLimit(self.free_bytes, f"{self.name} (GPU {self.ordinal})")

    def limit(self) -> MemoryLimit:
        return MemoryLimit(self.total_bytes, f"{self.name} (GPU {self.ordinal})")


def find_gpu(
    device: str | None, host_bytes: int | None, fake_cuda: str | None, tiers: Sequence[str] = ()
) -> Gpu | None:
    """None where tensors are to lie in the CPU's memory, which is so unless a GPU, or what lies below one, was named.

    ``device``, ``host_bytes`` and ``fake_cuda`` are those of the settings, ``tiers`` the names of theirs. Raises
    PlatformError for a GPU that cannot be used, SettingError where what else was named does not go with it.
    """
    if fake_cuda is None and device == CPU and host_bytes:
        raise SettingError(f"{option('host')} is memory below a GPU, and this run is on the CPU: leave one of them out")
    gpu = _find(device, host_bytes, fake_cuda)
    if gpu is not None and tiers:
        raise SettingError(
            f"below a GPU lie {option('host')} and the spill directory, and no {', '.join(tiers)}: leave that out"
        )
    return gpu


def _find(device: str | None, host_bytes: int | None, fake_cuda: str | None) -> Gpu | None:
    if fake_cuda is not None:
        return _open(str(Path(fake_cuda).absolute()), 0, is_fake=True)
    if device == CPU or (device is None and not host_bytes):
        return None
    _, _, number = (device or "").partition(":")
    ordinal = int(number) if number else place().local_rank
    require_cuda(ordinal)
    return _open(DRIVER, ordinal)


def _open(driver: str, ordinal: int, is_fake: bool = False) -> Gpu:
    require_native()
    import ebbtide._torch as _torch

    try:
        found = _torch.look_at_device(driver=driver, ordinal=ordinal)
    except RuntimeError as error:
        raise PlatformError(f"{error}; {option('device', CPU)} trains on the CPU") from error
    return Gpu(ordinal, found["name"], found["free_bytes"], found["total_bytes"], found["page_bytes"], is_fake)
