"""A step made by hand, and stupid oracles, for the tests of ``ebbtide.analysis``."""

import numpy as np

from ebbtide.analysis.swapping import Route
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import Link
from ebbtide.ir.trace import Access, Accesses, Storage, StorageKind, Storages, Tick, Ticks, Trace

R, W, RW = Access.READ, Access.WRITE, Access.READ | Access.WRITE
WEIGHT_A, WEIGHT_B, MOMENTUM, OUT_A, OUT_B, GRADIENT, SCRATCH = range(7)


def by_hand() -> Trace:
    """Two layers. The step takes 1050 ns; its ticks begin at 0, 100, 300, 700, 900 and 1000 ns."""
    ticks = (
        Tick(100, "embed", "net.a"),
        Tick(200, "mm", "net.b"),
        Tick(400, "loss"),
        Tick(200, "mm_backward", "net.b"),
        Tick(100, "embed_backward", "net.a"),
        Tick(50, "sgd"),
    )
    parameter, state = StorageKind.PARAMETER, StorageKind.OPTIMIZER_STATE
    storages = (
        Storage(64, parameter, 0, 6, persistent=True),
        Storage(128, parameter, 0, 6, persistent=True),
        Storage(128, state, 0, 6, persistent=True),
        Storage(256, StorageKind.ACTIVATION, 0, 4, "net.a", allocation=0),
        Storage(512, StorageKind.ACTIVATION, 1, 4, "net.b", allocation=0),
        Storage(128, StorageKind.GRADIENT, 3, 8, "net.b", allocation=0),
        Storage(1024, StorageKind.OTHER, 2, 3, scratch=True, allocation=0),
    )
    uses = {
        WEIGHT_A: {0: R, 5: RW},
        WEIGHT_B: {1: R, 3: R, 5: RW},
        MOMENTUM: {5: RW},
        OUT_A: {0: W, 1: R, 3: R},
        OUT_B: {1: W, 2: R},
        GRADIENT: {3: W, 5: R},
    }
    rows = [(storage, tick, mode) for storage, ticks_of in uses.items() for tick, mode in ticks_of.items()]
    accesses = Accesses(*np.array(sorted(rows)).T)
    return Trace("by hand", Origin.ASSUMED, Ticks.from_rows(ticks), Storages.from_rows(storages), accesses)


def large(n_ticks: int = 20_000, n_storages: int = 20_000, n_uses: int = 10) -> Trace:
    """Every fourth storage is persistent; each is used at the same ``n_uses`` places of its life."""
    ticks = tuple(Tick(50 + at % 100, f"op{at % 7}", f"net.layer{at % 50}") for at in range(n_ticks))
    storages, rows = [], []
    for number in range(n_storages):
        if number % 4 == 0:
            storages.append(Storage(1 + number, StorageKind.PARAMETER, 0, n_ticks, persistent=True))
        else:
            birth = number * 7919 % n_ticks
            life = n_uses + number * 104_729 % (n_ticks - n_uses)
            kind = StorageKind.ACTIVATION
            storages.append(
                Storage(1 + number, kind, birth, birth + life, f"net.layer{number % 50}", allocation=number)
            )
        row = storages[-1]
        rows += [(number, row.birth + use * (row.death - row.birth) // n_uses, 1) for use in range(n_uses)]
    accesses = Accesses(*np.array(rows).T)
    return Trace("large", Origin.ASSUMED, Ticks.from_rows(ticks), Storages.from_rows(storages), accesses)


def instances(trace: Trace) -> list[tuple[int, int, int]]:
    """(storage, birth, death) of every generation that is there in ticks [0, T) of a steady step, in their ticks."""
    n_ticks = len(trace.ticks)
    found = []
    for number, storage in enumerate(trace.storages):
        steps = 0 if storage.persistent else -(-storage.death // n_ticks)
        found += [(number, storage.birth - back * n_ticks, storage.death - back * n_ticks) for back in range(steps + 1)]
    return found


def used_at(trace: Trace, number: int, at: int) -> bool:
    """``at`` is a tick counted from the step of the storage's birth."""
    storage, rows = trace.storages[number], trace.accesses.of(number)
    born = not storage.persistent and at == storage.birth
    return storage.scratch or born or at in trace.accesses.tick[rows].tolist()


class Slots:
    """The queue's oracle: two rows of 1 ns slots around the circle, each free or taken."""

    def __init__(self, trace: Trace, shared: bool) -> None:
        self.trace = trace
        self.out = [False] * trace.step_ns
        self.back = self.out if shared else [False] * trace.step_ns

    def book(self, low: int, high: int, out_ns: int, back_ns: int) -> tuple[int, int] | None:
        high = min(high, low + len(self.trace.ticks))
        begins, ends = self.trace.start_ns(np.array([low, high])).tolist()
        free_out = [at for at in range(begins, ends) if not self.out[at % self.trace.step_ns]][:out_ns]
        free_back = [at for at in range(begins, ends) if not self.back[at % self.trace.step_ns]][-back_ns:]
        if len(free_out) < out_ns or len(free_back) < back_ns or free_out[-1] >= free_back[0]:
            return None
        for row, taken in ((self.out, free_out), (self.back, free_back)):
            for at in taken:
                row[at % self.trace.step_ns] = True
        gone = self._tick(free_out[-1], low, high) + 1
        return gone, max(gone, self._tick(free_back[0], low, high))

    def _tick(self, at: int, low: int, high: int) -> int:
        starts = self.trace.start_ns(np.arange(low, high + 1)).tolist()
        return next(tick for tick, stop in zip(range(low, high), starts[1:], strict=True) if at < stop)


def route(out: int, back: int, shared: bool) -> Route:
    """``out`` and ``back`` are bytes per us; copies wait 2 and 1 ns first."""
    return Route("slow", Link("fast", "slow", out * 10**6, 2), Link("slow", "fast", back * 10**6, 1), shared)
