"""Writes a plan as ``tierplan/1``, which the judge of ``tiertrace/1`` carries out: operations queued at kernels.

An ``evict`` is queued at the tick at which the copy may begin. It waits for the last kernel that uses the tensor in the
fastest tier, since the judge keeps contents in one place. A ``prefetch`` is queued at the tick at which the stay in the
fastest tier begins. At one tick, evictions come before prefetches. Of those, the one needed first comes first.
``initial`` is where globals lie when the step begins, so the first iteration is like the others.

What the format cannot say raises PlanError: births outside the fastest tier, use in place of a slower one, moves
between slower tiers, storages that live across the step's end, and those that are made anew.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.errors import PlanError
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.remakes import remade, remakes_of
from ebbtide.ir.trace import Trace

FORMAT = "tierplan/1"


@dataclass(frozen=True, slots=True, order=True)
class _Operation:
    """One operation, queued at ``tick``. It has to be done ``due`` ticks later. ``to`` is None for a prefetch."""

    tick: int
    is_prefetch: bool
    due: int
    storage: int
    to: str | None

    def as_json(self, ids: Sequence[int]) -> dict[str, Any]:
        if self.to is None:
            return {"at_kernel": self.tick, "op": "prefetch", "tensor": ids[self.storage]}
        return {"at_kernel": self.tick, "op": "evict", "tensor": ids[self.storage], "to": self.to}


def to_tierplan(plan: Plan, trace: Trace, machine: Machine, ids: Sequence[int]) -> str:
    """Write the file's text. ``ids[n]`` is the id of the tensor that is storage n (``tiertrace.read_tensor_ids``). A
    storage without one is scratch, which the judge knows by itself. Callers MUST have checked the plan."""
    fast = machine.tiers[0].name
    of_storage: dict[int, list[Stay]] = {}
    for stay in plan.stays:
        of_storage.setdefault(stay.storage, []).append(stay)
    operations: list[_Operation] = []
    initial: dict[str, str] = {}
    anew = set(remakes_of(trace).chosen(remade(plan.stays, trace)).storage.tolist())
    for number, stays in of_storage.items():
        if number in anew:
            raise PlanError((f"storage {number} is made anew in the step, which {FORMAT} cannot say",))
        storage = trace.storage(number)
        _require_expressible(number, stays, trace, fast)
        if storage.persistent:
            initial[str(ids[number])] = _place_at_start(stays, len(trace.ticks), fast)
        if number < len(ids):
            operations += _operations(number, stays, trace, fast)
    queued = [operation.as_json(ids) for operation in sorted(operations)]
    return json.dumps({"format": FORMAT, "initial": initial, "ops": queued}, separators=(",", ":")) + "\n"


def _require_expressible(number: int, stays: list[Stay], trace: Trace, fast: str) -> None:
    storage = trace.storage(number)
    slow = {stay.tier for stay in stays if stay.tier != fast}
    rows = trace.accesses.of(number)
    here = [(stay.valid_from, stay.stop) for stay in stays if stay.tier == fast]
    by_step = (0, len(trace.ticks)) if storage.persistent else (0,)
    used = trace.accesses.tick[rows].tolist() + ([] if storage.persistent else [storage.birth])
    problems = {
        "moves though it is scratch": storage.scratch and bool(slow),
        "lives across the step's end": not storage.persistent and storage.death > len(trace.ticks),
        "is used elsewhere than in the fastest tier": not all(
            any(low <= tick + shift < high for low, high in here for shift in by_step) for tick in used
        ),
    }
    for problem, is_so in problems.items():
        if is_so:
            raise PlanError((f"storage {number} {problem}, which {FORMAT} cannot say",))


def _operations(number: int, stays: list[Stay], trace: Trace, fast: str) -> Iterator[_Operation]:
    """Make an operation for each end of a stay in the fastest tier, except at the storage's own birth and death."""
    storage, n_ticks = trace.storage(number), len(trace.ticks)
    here = _joined([stay for stay in stays if stay.tier == fast], n_ticks if storage.persistent else 0)
    away = [stay for stay in stays if stay.tier != fast]
    if not away or not here:
        return
    uses = trace.accesses.tick[trace.accesses.of(number)].tolist()
    uses = [tick + shift for shift in ((0, n_ticks) if storage.persistent else (0,)) for tick in uses]
    for start, valid_from, stop in here:
        if storage.persistent or start != storage.birth:
            yield _Operation(start % n_ticks, True, valid_from - start, number, None)
        if storage.persistent or stop != storage.death:
            to = _stay_at(away, stop, n_ticks if storage.persistent else 0)
            begins = to.start + (stop - to.start) // n_ticks * n_ticks if storage.persistent else to.start
            last = max((tick for tick in uses if start <= tick < stop), default=start)
            begins = min(max(begins, last + 1), stop)
            yield _Operation(begins % n_ticks, False, stop - begins, number, to.tier)


def _joined(stays: list[Stay], period: int) -> list[tuple[int, int, int]]:
    """Join stays that continue one another, as (start, valid_from, stop). A persistent storage's join past the end."""
    joined: list[tuple[int, int, int]] = []
    for stay in sorted(stays, key=lambda stay: stay.start):
        if joined and joined[-1][2] == stay.start == stay.valid_from:
            joined[-1] = (*joined[-1][:2], stay.stop)
        else:
            joined.append((stay.start, stay.valid_from, stay.stop))
    if period and len(joined) > 1 and joined[-1][2] == joined[0][0] + period and joined[0][0] == joined[0][1]:
        last = joined.pop()
        joined[0] = (last[0], last[1], joined[0][2] + period)
    return joined


def _stay_at(stays: list[Stay], tick: int, period: int) -> Stay:
    """Find the stay that is valid at ``tick``: the contents lie there once they have left."""
    shifts = (-period, 0, period) if period else (0,)
    for stay in stays:
        if any(stay.valid_from <= tick + shift < stay.stop for shift in shifts):
            return stay
    raise PlanError((f"storage {stays[0].storage} is nowhere at tick {tick}",))


def _place_at_start(stays: list[Stay], n_ticks: int, fast: str) -> str:
    """Return the fastest tier if it has a stay at tick 0, valid or still to be; else the tier of the contents."""
    for stay in stays:
        if stay.tier == fast and any(stay.start <= tick < stay.stop for tick in (0, n_ticks)):
            return fast
    return next(stay.tier for stay in stays if any(stay.valid_from <= tick < stay.stop for tick in (0, n_ticks)))
