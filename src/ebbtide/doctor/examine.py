"""Every examination, in the order in which they are shown."""

from collections.abc import Sequence

from ebbtide.doctor import memory, processors, storage
from ebbtide.doctor.accelerator import accelerator
from ebbtide.doctor.finding import Finding, Level
from ebbtide.doctor.view import TorchFacts, View


def examine(view: View, spill: Sequence[str], device: str | None = None) -> list[Finding]:
    """Examine everything. ``spill`` are the directories asked for; without any, a run's default is examined. Without a
    ``device``, the one that PyTorch sees is. Raises SettingError for a device that is not there."""
    torch = view.load_torch()
    there = view.load_device(device) if not torch.error else None
    return [
        software(torch),
        memory.page_moves(view),
        memory.memory(view),
        memory.huge_pages(view),
        memory.memory_areas(view),
        memory.overcommit(view),
        memory.resource_limits(view),
        *storage.storage(view, spill),
        memory.heap(view),
        processors.threads(view, torch),
        processors.nodes(view),
        *(accelerator(view, there, torch.version, device is not None) if there is not None else []),
    ]


def software(torch: TorchFacts) -> Finding:
    means = "Ebbtide's native module is built for one version of torch"
    if torch.error:
        found = f"torch {torch.version or 'is missing'}, and the native module cannot be used"
        return Finding("torch", Level.PROBLEM, found, means, torch.error)
    if torch.outdated:
        found, cure = "the native modules are older than native/", "run `make install`, or `pip install -e .` again"
        return Finding("torch", Level.PROBLEM, found, "a command may end in an error, or do what it did before", cure)
    return Finding("torch", Level.OK, f"{torch.version}, and the native module is loaded", means)
