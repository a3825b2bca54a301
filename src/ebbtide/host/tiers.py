"""Whether this machine has a tier that was asked for, before anything runs that would need it."""

from ebbtide.errors import SettingError
from ebbtide.host.native import require_native


def check_tier(name: str, kind: str, capacity_bytes: int, node: int) -> None:
    """Raises SettingError, which says why and what to do, and PlatformError."""
    require_native()
    from ebbtide import _torch

    try:
        _torch.check_tier(kind, capacity_bytes, node)
    except (RuntimeError, ValueError) as error:
        raise SettingError(f"the tier {name} cannot be had: {error}") from error
