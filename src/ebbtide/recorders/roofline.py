"""Models an operator's time: the longer of its FLOPs and its bytes at a machine's rates (Williams et al., CACM 2009).

FLOPs take as long as the type of the operator's first tensor says, and each call has a cost. Kernels reach less than
such rates. Left out: caches.
"""

from ebbtide.errors import SettingError
from ebbtide.ir.machine import Machine


def require_rates(machine: Machine) -> None:
    """Raise SettingError unless the machine says how fast it computes."""
    if machine.compute.flops_per_s is None or machine.tiers[0].bytes_per_s is None:
        raise SettingError(
            f"the machine {machine.name!r} does not say how fast it computes: flops_per_s of [compute] and bytes_per_s "
            "of its first tier are needed (`ebbtide probe` measures both)"
        )
