"""Schedule: a plan lowered to commands at the runtime's clock, for whoever carries it out. Steps repeat.

A stay's beginning becomes a copy (``evict`` to a slower tier, ``fetch`` to a faster one) and its end a ``drop``, so a
move is a copy and a drop. What the program itself does needs no command: birth, death, and a stay that goes on on the
same tier. Left out: times. A command is issued when its clock comes; the copy is valid when it is done.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from ebbtide.ir.base import LARGEST, check_range
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.trace import Trace


class Verb(StrEnum):
    """EVICT and FETCH copy to a slower or faster tier and wait for room there, but nobody waits for them.

    DROP gives up the room on a tier, once the copies from there are done.
    """

    EVICT = "evict"
    DROP = "drop"
    FETCH = "fetch"


_ORDER = {verb: place for place, verb in enumerate(Verb)}

_Ways = dict[str, tuple[str, ...]]
"""By target, the tiers with a link to it, the fastest first."""


@dataclass(frozen=True, slots=True, order=True)
class Clock:
    """The runtime's clock: before allocation ``allocation`` of tick ``tick``."""

    tick: int
    allocation: int = 0

    def __post_init__(self) -> None:
        check_range(self, "tick allocation")


_clock = lru_cache(maxsize=2**16)(Clock)
"""Between ticks. A schedule's commands share them."""


@dataclass(frozen=True, slots=True)
class Command:
    """At clock ``at``, copy a storage from ``source`` to ``target``, or drop it on ``source``.

    ``due`` is when the plan counts on a copy; at == due is a copy for which compute waits. ``due`` may be in the next
    step: it is then the smaller of the two. A drop is due at once and has no target.
    """

    verb: Verb
    storage: int
    source: str
    target: str | None
    at: Clock
    due: Clock

    def __post_init__(self) -> None:
        check_range(self, "storage")
        if (self.target is None) != (self.verb is Verb.DROP):
            raise ValueError("a copy has a target and a drop has none")


@dataclass(frozen=True, slots=True)
class Begin:
    """A storage is valid on ``tier`` when it is born, or at tick 0 if it is persistent."""

    storage: int
    tier: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """Commands in the order of their clocks, for a step with this signature of ``n_ticks`` ticks.

    ``begins`` has every storage that does not begin on the first tier alone, with all that is valid then.
    """

    signature: str
    n_ticks: int
    commands: tuple[Command, ...]
    begins: tuple[Begin, ...] = ()

    def __post_init__(self) -> None:
        clocks = [(command.at.tick, command.at.allocation) for command in self.commands]
        if clocks != sorted(clocks):
            raise ValueError("commands must be sorted by their clocks")
        if any(max(command.at.tick, command.due.tick) >= self.n_ticks for command in self.commands):
            raise ValueError("a command lies beyond the last tick")


def lower(plan: Plan, trace: Trace, machine: Machine) -> Schedule:
    """The commands of a plan. Callers MUST have checked the plan: a stay without a source is passed over."""
    by_storage: dict[int, list[Stay]] = defaultdict(list)
    for stay in plan.stays:
        by_storage[stay.storage].append(stay)
    rank, ways = {tier.name: at for at, tier in enumerate(machine.tiers)}, _ways(machine)
    commands: list[Command] = []
    begins: list[Begin] = []
    for number, stays in by_storage.items():
        begins += _begins(number, stays, trace, machine.tiers[0].name)
        life = trace.storages.death[number] - trace.storages.birth[number]
        if len(stays) == 1 and stays[0].stop - stays[0].start == life:
            continue  # it never moves
        commands += _commands(stays, trace, rank, ways)
    return Schedule(plan.signature, len(trace.ticks), tuple(_ordered(commands, len(trace.ticks))), tuple(begins))


def _begins(number: int, stays: list[Stay], trace: Trace, fast: str) -> list[Begin]:
    """None for a storage that begins on the first tier alone."""
    at, n_ticks = trace.storages.birth[number], len(trace.ticks)
    shifts = (0, n_ticks) if trace.storages.persistent[number] else (0,)
    here = [stay for stay in stays if any(stay.valid_from <= at + by < stay.stop for by in shifts)]
    if all(stay.tier == fast for stay in here):
        return []
    return [Begin(number, stay.tier) for stay in here]


def _ordered(commands: list[Command], n_ticks: int) -> list[Command]:
    """At one tick: evictions, drops, which make room for fetches, and last the drops of what fetches read.

    Of several copies the one that is due first goes first, since a link carries them in this order.
    """
    fetched = {(row.at.tick, row.storage, row.source) for row in commands if row.verb is Verb.FETCH}

    def key(row: Command) -> tuple[int, bool, int, int, int]:
        tick = row.at.tick
        is_last = row.verb is Verb.DROP and (tick, row.storage, row.source) in fetched
        return tick, is_last, _ORDER[row.verb], (row.due.tick - tick) % n_ticks, row.storage

    return sorted(commands, key=key)


def _ways(machine: Machine) -> _Ways:
    pairs = {(link.source, link.target) for link in machine.links}
    names = [tier.name for tier in machine.tiers]
    return {target: tuple(source for source in names if (source, target) in pairs) for target in names}


def _commands(stays: list[Stay], trace: Trace, rank: dict[str, int], ways: _Ways) -> Iterator[Command]:
    """Of one storage, which has these stays."""
    storage, n_ticks = trace.storage(stays[0].storage), len(trace.ticks)
    period = n_ticks if storage.persistent else LARGEST  # after which the stays come again
    starts = {(stay.tier, stay.start % period) for stay in stays if stay.valid_from == stay.start}
    stops = {(stay.tier, stay.stop % period) for stay in stays}
    valid = _valid(stays, period if storage.persistent else 0)
    for stay in stays:
        start, due, stop = (_clock(tick % n_ticks) for tick in (stay.start, stay.valid_from, stay.stop))
        between_ticks = stay.valid_from == stay.start
        born = between_ticks and stay.start == storage.birth and not storage.persistent
        goes_on = between_ticks and (stay.tier, stay.start % period) in stops
        source = None if born or goes_on else _source(stay, valid, ways)
        if source is not None:
            verb = Verb.EVICT if rank[stay.tier] > rank[source] else Verb.FETCH
            yield Command(verb, stay.storage, source, stay.tier, start, due)
        dies = not storage.persistent and stay.stop == storage.death
        if not dies and (stay.tier, stay.stop % period) not in starts:
            yield Command(Verb.DROP, stay.storage, stay.tier, None, stop, stop)


def _source(stay: Stay, valid: dict[str, list[tuple[int, int]]], ways: _Ways) -> str | None:
    """The fastest tier with a link to the stay's that is valid throughout the copy, or before it between two ticks."""
    first = stay.start - 1 if stay.valid_from == stay.start else stay.start
    for tier in ways.get(stay.tier, ()):
        for low, high in valid.get(tier, ()):
            if low <= first and stay.valid_from <= high:
                return tier
    return None


def _valid(stays: list[Stay], period: int) -> dict[str, list[tuple[int, int]]]:
    """Ticks in which each tier is valid, in this step and its neighbours; those that follow each other are one."""
    valid: dict[str, list[tuple[int, int]]] = defaultdict(list)
    shifts = (-period, 0, period) if period else (0,)
    for low, high, tier in sorted((row.valid_from + by, row.stop + by, row.tier) for row in stays for by in shifts):
        known = valid[tier]
        if known and low <= known[-1][1]:
            low, high = known[-1][0], max(high, known.pop()[1])
        known.append((low, high))
    return valid
