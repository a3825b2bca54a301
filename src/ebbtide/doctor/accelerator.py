"""Examines an accelerator, for runs that bound its memory (`--device`)."""

from ebbtide.doctor.finding import Finding, Level
from ebbtide.doctor.memory import available
from ebbtide.doctor.view import DeviceFacts, View
from ebbtide.host.process import memory_limit
from ebbtide.units import format_bytes

_TELLS_OF_WRITES = (2, 13)
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_NO_CACHE = "PYTORCH_NO_CUDA_MEMORY_CACHING"


def accelerator(view: View, device: DeviceFacts, torch_version: str, is_named: bool) -> list[Finding]:
    """Return what was found of it. Without what copies need, nothing else counts; and one that nobody named is no
    problem."""
    memory = device_memory(device, is_named)
    if device.error:
        return [memory]
    return [memory, pinned_memory(view, device), allocator(view), unseen_accesses(torch_version)]


def device_memory(device: DeviceFacts, is_named: bool = True) -> Finding:
    means = "--device bounds its memory; without --fast, a run takes what is free when it begins"
    if device.error:
        cure = f"train without --device, or use a PyTorch whose part for {device.name} has events and pinned memory"
        level = Level.PROBLEM if is_named else Level.HINT
        return Finding("device", level, f"{device.name}: {device.error}", means, cure)
    free, total = format_bytes(device.free_bytes), format_bytes(device.total_bytes)
    found = f"{device.name}, {device.model}; {free} of {total} are free"
    if "MIG" in device.model:
        found += "; it is a slice of a GPU (MIG), and the other slices copy over the same link"
    if 2 * device.free_bytes < device.total_bytes:
        cure = "end what else runs there (nvidia-smi lists it), or name a budget within what is free"
        return Finding("device", Level.HINT, found, means, cure)
    return Finding("device", Level.OK, found, means)


def pinned_memory(view: View, device: DeviceFacts) -> Finding:
    """Examine where tensors go that leave the device."""
    means = "tensors that leave the device go to pinned host memory, by default to at most half of the free memory"
    limit, free = memory_limit(view.proc).nbytes, available(view)
    most = (limit if free is None else min(limit, free)) // 2
    found = f"a run pins at most about {format_bytes(most)}"
    if "microsoft" in view.read("proc/version").lower():
        cure = "train on Linux itself, or name a --host that can be pinned"
        return Finding("pinned memory", Level.HINT, f"{found}, of which Windows lets WSL pin a part", means, cure)
    if most < device.total_bytes:
        cure = "name a larger --host, if the rest of memory is not needed, or train where there is more"
        return Finding("pinned memory", Level.HINT, f"{found}, less than {device.name} has", means, cure)
    return Finding("pinned memory", Level.OK, found, means)


def allocator(view: View) -> Finding:
    means = "tensors that come back get memory of PyTorch's allocator, and fragments into which none fits are lost"
    if view.environment.get(_NO_CACHE, "0") not in ("", "0"):
        cure = f"unset {_NO_CACHE}"
        found = f"{_NO_CACHE} is set: each tensor that leaves or comes back makes the device wait"
        return Finding("allocator", Level.HINT, found, means, cure)
    named = [f"{name}={view.environment[name]}" for name in _ALLOCATOR if view.environment.get(name)]
    found = ", ".join(named) or "as PyTorch sets it; expandable_segments:True in PYTORCH_ALLOC_CONF lets fragments grow"
    return Finding("allocator", Level.OK, found, means)


def unseen_accesses(torch_version: str) -> Finding:
    means = "C++ code may take a tensor without an operator, and PyTorch reports that since 2.13"
    if tuple(int(part) for part in torch_version.split(".")[:2]) >= _TELLS_OF_WRITES:
        return Finding("unseen accesses", Level.OK, f"torch {torch_version} reports them", means)
    found = f"torch {torch_version} reports none, so tensors that leave are copied each time, even unchanged ones"
    return Finding("unseen accesses", Level.HINT, found, means, "use torch 2.13 or newer")
