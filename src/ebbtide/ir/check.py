"""The independent checker: does a plan keep its promises for a trace and a machine? The rules are [Note: stays].

It shares no code with planners, and it asks the accountant for bytes. A plan with remakes is checked as one for the
split step (``remakes``): what a storage is made from is then an access like others. Left out: time. A copy whose window
is too short is late, not wrong.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ebbtide.errors import OTHER_STORAGES, PlanError
from ebbtide.ir.base import Flags
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import PageSize, exact, occupancy
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.remakes import split_plan
from ebbtide.ir.trace import Access, Storage, Trace
from ebbtide.units import format_bytes


class Rule(StrEnum):
    """The promise that is broken."""

    TRACE = "the plan is for this trace"
    BOUNDS = "a stay lies within its storage and its life, on a tier of the machine"
    ROOM = "a storage has room on a tier only once at a time"
    WHOLE = "a live storage has a valid replica at every tick, or can be made anew before its next use"
    SOURCE = "contents come from birth, the same tier, or a valid replica over a link"
    ACCESS = "an access finds a valid replica where it may be used in place"
    WRITE = "a write finds no other replica and no copy in flight"
    PACKED = "a tier that packs holds only what shrinks"
    CAPACITY = "no tier holds more than its capacity"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise; ``storage`` and ``tick`` say where, if it has such a place."""

    rule: Rule
    text: str
    storage: int | None = None
    tick: int | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class _Placed:
    """A storage with its stays. ``repeated`` also has those of the neighbouring steps. ``name`` is the number that a
    storage had before its step was split."""

    number: int
    name: int
    storage: Storage
    stays: list[Stay]
    repeated: list[tuple[int, int, int, str]]  # start, valid_from, stop, tier

    def broken(self, rule: Rule, tick: int, what: str) -> Violation:
        return Violation(rule, f"storage {self.name}, tick {tick}: {what}", self.name, tick)

    def valid(self) -> dict[str, list[tuple[int, int]]]:
        """Return the ticks during which each tier has a valid replica. Intervals that touch are joined."""
        joined: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for _, valid_from, stop, tier in sorted(self.repeated, key=lambda stay: stay[1]):
            known = joined[tier]
            if known and valid_from <= known[-1][1]:
                known[-1] = (known[-1][0], max(known[-1][1], stop))
            else:
                known.append((valid_from, stop))
        return joined


def check_plan(plan: Plan, trace: Trace, machine: Machine, page_bytes: PageSize = exact) -> tuple[Violation, ...]:
    """Find all broken promises: none for a plan that can be carried out. ``machine.with_budget`` sets the budget."""
    if plan.signature != trace.signature():
        return (Violation(Rule.TRACE, OTHER_STORAGES),)
    tiers = {tier.name for tier in machine.tiers}
    still = _lie_still(plan, trace, machine)
    others = [stay for stay in plan.stays if stay.storage >= len(still) or not still[stay.storage]]
    found = [violation for stay in others for violation in _bounds(stay, trace, tiers)]
    if found:
        return tuple(found)
    whole = plan
    plan, trace, was = split_plan(plan, trace)
    if plan is not whole:
        still = _lie_still(plan, trace, machine)
    found += _unpacked(plan, trace, machine)
    by_storage: dict[int, list[Stay]] = {number: [] for number in np.flatnonzero(~still).tolist()}
    for stay in plan.stays:
        if not still[stay.storage]:
            by_storage[stay.storage].append(stay)
    for storage, stays in by_storage.items():
        placed = _placed(storage, stays, trace, int(was[storage]))
        found += _room(placed)
        found += _whole(placed)
        found += _sources(placed, machine)
        found += _uses(placed, trace, machine)
    found += _capacity(plan, trace, machine, page_bytes)
    return tuple(found)


def _lie_still(plan: Plan, trace: Trace, machine: Machine) -> Flags:
    """Say of each storage whether it lies from birth to death where operations may use it. Then it keeps every
    promise."""
    usable = {tier.name for tier in machine.tiers if tier.in_place.reads and tier.in_place.writes}
    times = [(stay.storage, stay.start, stay.valid_from, stay.stop, stay.tier in usable) for stay in plan.stays]
    rows, columns = trace.storages, np.array(times, dtype=np.int64).reshape(-1, 5)
    storage, start, valid_from, stop, is_usable = columns[columns[:, 0] < len(rows)].T
    birth, death = rows.birth[storage], rows.death[storage]
    still = (start == birth) & (valid_from == birth) & (stop == death) & (is_usable == 1)
    counts = (np.bincount(of, minlength=len(rows)) for of in (storage, storage[still]))
    found: Flags = np.logical_and(*(count == 1 for count in counts))
    return found


def require_valid(plan: Plan, trace: Trace, machine: Machine, page_bytes: PageSize = exact) -> None:
    """Raise PlanError for a plan that breaks a promise."""
    require_tiers(plan, machine)
    if found := check_plan(plan, trace, machine, page_bytes):
        raise PlanError(tuple(violation.text for violation in found))


def require_tiers(plan: Plan, machine: Machine) -> None:
    """Raise PlanError for a plan that uses tiers which this machine does not have."""
    there = [tier.name for tier in machine.tiers]
    if missing := sorted({stay.tier for stay in plan.stays} - set(there)):
        raise PlanError(
            (
                f"it was made for a machine with {', '.join(missing)}, and {machine.name} has {', '.join(there)}. Name "
                "the --tier that it was made with, or the --machine (`ebbtide probe --tier ... -o machine.toml` writes "
                "one of this computer)",
            )
        )


def _bounds(stay: Stay, trace: Trace, tiers: Container[str]) -> Iterator[Violation]:
    """Check one stay."""
    rows, n_ticks = trace.storages, len(trace.ticks)
    if stay.storage >= len(rows):
        yield Violation(Rule.BOUNDS, f"a stay of storage {stay.storage}, which the trace does not have", stay.storage)
        return
    birth, death, persistent = (column[stay.storage] for column in (rows.birth, rows.death, rows.persistent))
    earliest, latest = (0, stay.start + n_ticks) if persistent else (birth, death)
    in_step = not persistent or stay.start < n_ticks
    if stay.tier in tiers and earliest <= stay.start and stay.stop <= latest and in_step:
        return
    problems = {
        f"is on {stay.tier}, which the machine does not have": stay.tier not in tiers,
        f"starts before its life, at {stay.start}": stay.start < earliest,
        f"is persistent and starts in another step, at {stay.start}": persistent and stay.start >= n_ticks,
        f"goes on to tick {stay.stop} though it may last to {latest}": stay.stop > latest,
    }
    for what, is_broken in problems.items():
        if is_broken:
            yield Violation(Rule.BOUNDS, f"a stay of storage {stay.storage} {what}", stay.storage, stay.start)


def _placed(number: int, stays: list[Stay], trace: Trace, name: int) -> _Placed:
    storage, n_ticks = trace.storage(number), len(trace.ticks)
    shifts = (-n_ticks, 0, n_ticks) if storage.persistent else (0,)
    repeated = [
        (stay.start + shift, stay.valid_from + shift, stay.stop + shift, stay.tier)
        for shift in shifts
        for stay in stays
    ]
    return _Placed(number, name, storage, stays, repeated)


def _room(placed: _Placed) -> Iterator[Violation]:
    last: dict[str, int] = {}
    reported: set[str] = set()
    for start, _, stop, tier in sorted(placed.repeated):
        if start < last.get(tier, start) and tier not in reported:
            reported.add(tier)
            yield placed.broken(Rule.ROOM, start, f"has room on {tier} twice")
        last[tier] = max(stop, last.get(tier, stop))


def _whole(placed: _Placed) -> Iterator[Violation]:
    storage = placed.storage
    reached = storage.birth
    for low, high in sorted(interval for intervals in placed.valid().values() for interval in intervals):
        if low > reached:
            break
        reached = max(reached, high)
    if reached < storage.death:
        yield placed.broken(Rule.WHOLE, reached, "there is no valid replica")


def _sources(placed: _Placed, machine: Machine) -> Iterator[Violation]:
    storage, valid = placed.storage, placed.valid()
    born = False
    for stay in placed.stays:
        between_ticks = stay.valid_from == stay.start
        if between_ticks and stay.start == storage.birth and not storage.persistent:
            if born:
                yield placed.broken(Rule.SOURCE, stay.start, "is born in two places")
            if not machine.tier(stay.tier).in_place.writes:
                yield placed.broken(Rule.SOURCE, stay.start, f"is born on {stay.tier}, where nothing can be written")
            born = True
            continue
        first = stay.start - 1 if between_ticks else stay.start
        reachable = [tier for tier in valid if machine.link(tier, stay.tier) or (between_ticks and tier == stay.tier)]
        if not any(low <= first and stay.valid_from <= high for tier in reachable for low, high in valid[tier]):
            yield placed.broken(
                Rule.SOURCE,
                stay.start,
                f"no tier with a link to {stay.tier} has valid contents until {stay.valid_from}",
            )


def _uses(placed: _Placed, trace: Trace, machine: Machine) -> Iterator[Violation]:
    in_place_of = {tier.name: tier.in_place for tier in machine.tiers}
    for tick, mode in _accesses(placed, trace):
        here = [stay for stay in placed.repeated if stay[0] <= tick < stay[2]]
        usable = [in_place_of[tier] for _, valid_from, _, tier in here if valid_from <= tick]
        writes = bool(mode & Access.WRITE)
        if not any(in_place.writes if writes else in_place.reads for in_place in usable):
            verb = "written" if writes else "read"
            yield placed.broken(Rule.ACCESS, tick, f"it is {verb} where no valid replica may be {verb} in place")
        if writes and len(here) > 1:
            others = ", ".join(sorted(tier for *_, tier in here))
            yield placed.broken(Rule.WRITE, tick, f"it is written while there is room for it on {others}")


def _accesses(placed: _Placed, trace: Trace) -> Iterable[tuple[int, int]]:
    """Return pairs of tick and access. Scratch is always in use, so ticks count at which one of its stays changes."""
    storage = placed.storage
    if storage.scratch:
        changes = {tick for start, valid_from, stop, _ in placed.repeated for tick in (start, valid_from, stop)}
        ticks = {storage.birth} | {tick for tick in changes if storage.birth <= tick < storage.death}
        return [(tick, Access.READ | Access.WRITE) for tick in sorted(ticks)]
    rows = trace.accesses.of(placed.number)
    return zip(trace.accesses.tick[rows].tolist(), trace.accesses.mode[rows].tolist(), strict=True)


def _unpacked(plan: Plan, trace: Trace, machine: Machine) -> Iterator[Violation]:
    packing = machine.packing
    for stay in plan.stays:
        if stay.tier in packing and trace.storages.packed_bytes[stay.storage] < 0:
            text = f"storage {stay.storage} lies on {stay.tier} from tick {stay.start} on, though it does not shrink"
            yield Violation(Rule.PACKED, text, stay.storage, stay.start)


def _capacity(plan: Plan, trace: Trace, machine: Machine, page_bytes: PageSize) -> Iterator[Violation]:
    held = occupancy(trace, plan.stays, [tier.name for tier in machine.tiers], page_bytes, machine.packing)
    for tier in machine.tiers:
        level = held[tier.name]
        if tier.capacity_bytes is not None and int(level.max()) > tier.capacity_bytes:
            tick = int(level.argmax())
            text = (
                f"{tier.name} holds {format_bytes(int(level[tick]))} at tick {tick} ({trace.tick(tick).operator}), "
                f"{int(level[tick]) - tier.capacity_bytes} bytes more than its {format_bytes(tier.capacity_bytes)}"
            )
            yield Violation(Rule.CAPACITY, text, tick=tick)
