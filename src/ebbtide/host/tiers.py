"""Checks that this machine has the requested tiers, before anything runs that would need them."""

from pathlib import Path

from ebbtide.errors import SettingError
from ebbtide.host.native import require_native


def check_tier(name: str, kind: str, capacity_bytes: int, node: int) -> None:
    """Check that a tier can be had. Raises SettingError, which says why and what to do, and PlatformError."""
    require_native()
    import ebbtide._torch as _torch

    try:
        _torch.check_tier(kind, capacity_bytes, node)
    except (RuntimeError, ValueError) as error:
        raise SettingError(f"the tier {name} cannot be had: {error}") from error


def same_memory(node: int, nodes: Path = Path("/sys/devices/system/node")) -> str:
    """Return a warning for a tier on the only NUMA node of a machine, or ""."""
    if [path.name for path in nodes.glob("node[0-9]*")] != [f"node{node}"]:
        return ""
    return (
        f"node {node} is the only one of this machine, so what goes to numa{node} takes the same memory as what stays. "
        "The run is bounded as if there were two, and the machine needs no less: name a node of other memory, or leave "
        "this tier out"
    )
