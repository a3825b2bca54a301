"""This machine's accelerator, as PyTorch tells of it."""

import torch

from ebbtide.errors import PlatformError, SettingError, did_you_mean
from ebbtide.units import option

HOST = "host"
"""The tier of pinned memory, as machines and reports name it."""


def device_named(name: str) -> torch.device:
    """Find an accelerator. "auto" is the one of this machine. Raises SettingError where there is none of that name."""
    here = torch.accelerator.current_accelerator()
    if name == "auto":
        if here is None:
            raise SettingError(
                "EBBTIDE_DEVICE=auto: PyTorch sees no accelerator here; leave it out to train on the CPU"
            )
        name = here.type
    try:
        device = torch.device(name)
    except RuntimeError:
        meant = " (did you mean cuda?)" if name.lower().startswith("gpu") else did_you_mean(name, ("cuda", "auto"))
        raise SettingError(f"{name!r:.40} is no device of PyTorch's{meant}; accepted: cuda, cuda:1, or auto") from None
    if device.type == "cpu":
        raise SettingError("the CPU's memory is bounded without a device: leave --device out")
    if here is None:
        raise SettingError(
            f"PyTorch has no device {name} here (no accelerator): leave out {option('device')}, or try `ebbtide "
            "estimate --device cuda --machine h100`"
        )
    if device.type != here.type or (device.index or 0) >= torch.accelerator.device_count():
        raise SettingError(f"PyTorch has no device {name} here ({here.type})")
    return torch.device(device.type, device.index or 0)


def require_device_events(device: torch.device) -> None:
    """Raise PlatformError where PyTorch's part for the device lacks what copies need: events, pinned memory."""
    try:
        torch.empty(1, pin_memory=True)
        torch.Event(device.type).record()
    except (RuntimeError, NotImplementedError) as error:
        raise PlatformError(f"PyTorch's part for {device.type} lacks what moving tensors takes: {error}") from error
