"""The GPU whose memory a run's tensors have, if it is a GPU's: which one, and what it has.

Left out: PyTorch's side of it (``runtime.cuda``). Several GPUs in one process: of torchrun's ranks each has its own.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from ebbtide.errors import PlatformError, SettingError
from ebbtide.host.cuda import require_cuda
from ebbtide.host.free_memory import free_memory
from ebbtide.host.native import require_native
from ebbtide.host.place import Place
from ebbtide.host.process import MemoryLimit
from ebbtide.settings import CPU, Settings, SlowerTier, TierKind
from ebbtide.units import option

DRIVER = "libcuda.so.1"
_LEAST_PAGES = 2
"""The smallest storage managed has so many pages: less would waste memory, and cost more to map than to copy."""
_HOST_PERCENT = 50
"""Of the host's memory that is free, what a run takes where none was named: it is pinned, and nobody else's then."""


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


def on_device(settings: Settings, gpu: Gpu | None, here: Place) -> Settings:
    """With what a GPU makes of them: host memory is a tier, storages are whole, and the kernel serves no faults there.

    Of the host's memory it is a share of what is free, where none was named.
    """
    if gpu is None:
        return settings
    free = free_memory(ranks=here.local_size).nbytes * _HOST_PERCENT // 100
    nbytes = free if settings.host is None else settings.host
    return replace(
        settings,
        tiers=(SlowerTier(TierKind.HOST, nbytes),) if nbytes else (),
        min_storage_bytes=max(settings.min_storage_bytes, _LEAST_PAGES * gpu.page_bytes),
        piece_bytes=0,
        userfaultfd=False,
    )


def find_gpu(settings: Settings, here: Place) -> Gpu | None:
    """None where tensors are to lie in the CPU's memory. Raises PlatformError for a GPU that was named and cannot be
    used, SettingError where what else was named does not go with it."""
    gpu = _find(settings, here)
    if gpu is None and settings.host:
        raise SettingError(
            f"{option('host')} is memory below a GPU, and this run is on the CPU: leave it out"
            + ("" if settings.device == CPU else f", or name the GPU ({option('device', 'cuda')})")
        )
    if gpu is not None and settings.tiers:
        names = ", ".join(tier.name for tier in settings.tiers)
        raise SettingError(f"below a GPU lie {option('host')} and the spill directory, and no {names}: leave that out")
    return gpu


def _find(settings: Settings, here: Place) -> Gpu | None:
    if settings.fake_cuda is not None:
        return _open(str(Path(settings.fake_cuda).absolute()), 0, is_fake=True)
    if settings.device == CPU:
        return None
    require_native()
    import torch

    if settings.device is None and (torch.version.cuda is None or not torch.cuda.is_available()):
        return None
    _, _, number = (settings.device or "").partition(":")
    ordinal = int(number) if number else here.local_rank
    require_cuda(ordinal)
    return _open(DRIVER, ordinal)


def _open(driver: str, ordinal: int, is_fake: bool = False) -> Gpu:
    require_native()
    from ebbtide import _torch

    try:
        found = _torch.look_at_device(driver=driver, ordinal=ordinal)
    except RuntimeError as error:
        raise PlatformError(f"{error}; {option('device', CPU)} trains on the CPU") from error
    return Gpu(ordinal, found["name"], found["free_bytes"], found["total_bytes"], found["page_bytes"], is_fake)
