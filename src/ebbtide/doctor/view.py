"""The doctor's whole view of a machine: files below a root, and trials that make system calls.

The examinations are pure functions of it, so a test can show them any machine.
"""

import os
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.host.kernel_files import text_of
from ebbtide.host.page_moves import try_page_move


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """The facts about torch. ``error`` is "" where torch and the native modules were loaded. ``outdated``: they were,
    but are older than their sources."""

    version: str
    threads: int
    error: str
    outdated: bool = False


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The facts about an accelerator. ``error`` says why its memory cannot be bounded, "" where it can."""

    name: str
    model: str = ""
    free_bytes: int = 0
    total_bytes: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A machine. ``soft_limits`` are resource limits in bytes by name. An absent limit limits nothing."""

    root: Path
    environment: Mapping[str, str]
    cpus: int
    soft_limits: Mapping[str, int] = field(default_factory=dict)
    try_page_move: Callable[[], str] = lambda: ""
    load_torch: Callable[[], TorchFacts] = lambda: TorchFacts("", 0, "")
    load_device: Callable[[str | None], DeviceFacts | None] = lambda name: None

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    def read(self, path: str) -> str:
        """Return a file's text without blanks at its ends, or "" where it cannot be read."""
        try:
            return text_of(self.root / path).strip()
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        text = self.read(path)
        return int(text) if text.lstrip("-").isdigit() else None


def this_machine() -> View:
    """Return the view of the real machine."""
    names = ("RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_FSIZE")
    limits = {name: resource.getrlimit(getattr(resource, name))[0] for name in names}
    return View(
        root=Path("/"),
        environment=dict(os.environ),
        cpus=len(os.sched_getaffinity(0)),
        soft_limits={name: limit for name, limit in limits.items() if limit != resource.RLIM_INFINITY},
        try_page_move=try_page_move,
        load_torch=load_torch,
        load_device=load_device,
    )


def load_torch() -> TorchFacts:
    """Import torch and the native module, which takes a second or two."""
    from importlib.metadata import PackageNotFoundError, version

    import ebbtide
    from ebbtide.errors import PlatformError
    from ebbtide.host.native import require_native

    try:
        installed = version("torch")
    except PackageNotFoundError:
        installed = ""
    try:
        require_native()
    except PlatformError as error:
        return TorchFacts(installed, 0, str(error))
    import torch

    return TorchFacts(installed, torch.get_num_threads(), "", outdated(Path(ebbtide.__file__).parent))


def outdated(package: Path) -> bool:
    """Say whether the package lies in a clone, in which a source of the native modules is newer than one of these."""
    native = package.parent.parent / "native"
    if package.parent.name != "src":
        return False
    sources = [path for path in native.glob("*/*.[ch]*") if path.parent.name != "tests"]
    built = [path.stat().st_mtime for path in package.glob("_*.so")]
    return bool(sources and built) and max(path.stat().st_mtime for path in sources) > min(built)


def load_device(name: str | None) -> DeviceFacts | None:
    """Ask PyTorch of an accelerator: the named one, else the one that it sees, if any. Raises SettingError."""
    import torch

    import ebbtide._torch as _torch
    from ebbtide.errors import PlatformError
    from ebbtide.host.accelerator import device_named, require_device_events

    if name is None and not torch.accelerator.is_available():
        return None
    device = device_named(name or "auto")
    try:
        require_device_events(device)
        free, total = _torch.device_memory(str(device))
    except (PlatformError, RuntimeError) as error:
        return DeviceFacts(str(device), error=str(error))
    module = torch.get_device_module(device)
    model = module.get_device_name(device) if hasattr(module, "get_device_name") else device.type
    return DeviceFacts(str(device), model, free, total)
