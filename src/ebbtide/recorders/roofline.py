"""Models an operator's time: the longer of its FLOPs and its bytes at a machine's rates (Williams et al., CACM 2009).

Kernels reach less than that. Left out: data types, launches and caches.
"""

from dataclasses import dataclass

from ebbtide.errors import SettingError
from ebbtide.ir.machine import Machine


@dataclass(frozen=True, slots=True)
class Roofline:
    """The rates of a device. The default is the data sheet of an NVIDIA A100 80GB SXM: 312 TFLOP/s in bfloat16, 2,039
    GB/s."""

    flops_per_s: int = 312_000_000_000_000
    bytes_per_s: int = 2_039_000_000_000

    def time_ns(self, flops: int, nbytes: int) -> int:
        return max(flops * 10**9 // self.flops_per_s, nbytes * 10**9 // self.bytes_per_s)


def roofline_of(machine: Machine | None) -> Roofline:
    """Return the rates of a machine's compute and its fastest tier. Raises SettingError where it does not give them."""
    if machine is None:
        return Roofline()
    flops_per_s = machine.compute.flops_per_s
    bytes_per_s = machine.tiers[0].bytes_per_s
    if flops_per_s is None or bytes_per_s is None:
        raise SettingError(
            f"the machine {machine.name!r} does not say how fast it computes: flops_per_s of [compute] and bytes_per_s "
            "of its first tier are needed"
        )
    return Roofline(flops_per_s, bytes_per_s)
