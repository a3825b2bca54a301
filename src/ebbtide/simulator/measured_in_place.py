"""The measured kernels of a machine (``ir.kernels``) at the ticks of a trace, for the simulator and for planners."""

from ebbtide._planning import Kernels
from ebbtide.ir.base import Origin
from ebbtide.ir.kernels import Kernel, whole_operators
from ebbtide.ir.machine import Machine
from ebbtide.ir.trace import Trace


class MeasuredInPlace:
    """The kernels of a machine at the ticks of a trace: nothing, and no work, for a machine without.

    A kernel is a whole operator, with all that runs in it. Its operands' cost is charged at the last of its ticks,
    where it still holds all of them. At its other ticks they cost nothing.
    """

    def __init__(self, trace: Trace, machine: Machine) -> None:
        self._kernels: dict[tuple[int, int], Kernel] = {}
        self._operands: dict[tuple[int, int, int], int] = {}
        if not machine.kernels:
            return
        known: dict[tuple[str, str], list[tuple[int, Kernel]]] = {}
        for kernel in machine.kernels:
            rank = machine.rank(kernel.tier)
            known.setdefault((kernel.operator, kernel.arguments), []).append((rank, kernel))
        accessed = _by_tick(trace)
        for ticks in whole_operators(trace):
            row = trace.tick(ticks[0])
            for rank, kernel in known.get((row.operator, row.arguments), ()):
                self._kernels[ticks[-1], rank] = kernel
                for storage, at in _matched(kernel, accessed[ticks[-1]], trace).items():
                    self._operands.update(((tick, rank, storage), at) for tick in ticks)

    def operand(self, tick: int, rank: int, storage: int) -> int | None:
        """Find which operand of the tick's kernel a storage on tier ``rank`` is; None where nothing was measured."""
        return self._operands.get((tick, rank, storage))

    def native(self) -> Kernels:
        """Make the engine's form of the kernels."""
        found = Kernels()
        for (tick, rank), kernel in self._kernels.items():
            extra_ns = {placement: float(extra) for placement, extra in kernel.extra_by_placement.items()}
            found.add(tick=tick, rank=rank, adds_up=kernel.origin is Origin.MODELLED, extra_ns=extra_ns)
        for (tick, rank, storage), operand in self._operands.items():
            found.add_operand(tick=tick, rank=rank, storage=storage, operand=operand)
        return found

    def joint(self, tick: int, rank: int) -> dict[int, int]:
        """Return the extra time of each placement of the operation's operands in that tier, in ns, where all were
        measured; else nothing."""
        kernel = self._kernels.get((tick, rank))
        return kernel.extra_by_placement if kernel is not None and kernel.origin is Origin.MEASURED else {}

    def extra_ns(self, tick: int, rank: int, shares: dict[int, float]) -> float:
        """Return how much longer a tick takes with these shares of its operands on tier ``rank``."""
        kernel = self._kernels.get((tick, rank))
        return 0.0 if kernel is None else kernel.extra_ns(shares)


def _by_tick(trace: Trace) -> list[list[tuple[int, int]]]:
    """List the (storage, mode) that each tick accesses, without scratch."""
    rows = trace.accesses
    keep = ~trace.storages.scratch[rows.storage]
    found: list[list[tuple[int, int]]] = [[] for _ in range(len(trace.ticks))]
    columns = (rows.storage[keep], rows.tick[keep] % len(trace.ticks), rows.mode[keep])
    for storage, tick, mode in zip(*(column.tolist() for column in columns), strict=True):
        found[tick].append((storage, mode))
    return found


def _matched(kernel: Kernel, accessed: list[tuple[int, int]], trace: Trace) -> dict[int, int]:
    """Match storages to operands that were placed: by bytes and access, then by bytes alone."""
    found: dict[int, int] = {}
    for same_access in (True, False):
        for at, (nbytes, access) in enumerate(zip(kernel.operand_bytes, kernel.operand_access, strict=True)):
            if at in found.values():
                continue
            for storage, mode in accessed:
                alike = trace.storages.nbytes[storage] == nbytes and (mode == access or not same_access)
                if alike and storage not in found:
                    found[storage] = at
                    break
    return {storage: at for storage, at in found.items() if at in kernel.free}
