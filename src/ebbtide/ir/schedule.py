"""Schedule: a plan lowered to commands at the runtime's clock, for whoever carries it out. Steps repeat.

A stay's beginning becomes a copy (``evict`` to a slower tier, ``fetch`` to a faster one) and its end a ``drop``, so a
move is a copy and a drop. What the program itself does needs no command: birth, death, and a stay that goes on on the
same tier. Left out: times. A command is issued when its clock comes; the copy is valid when it is done.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from ebbtide.ir.base import check_range
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.trace import Trace


class Verb(StrEnum):
    """DROP gives up the room on a tier, at the earliest when the copies from there are done. The order of one clock."""

    DROP = "drop"
    EVICT = "evict"
    FETCH = "fetch"


@dataclass(frozen=True, slots=True, order=True)
class Clock:
    """The runtime's clock: before allocation ``allocation`` of tick ``tick``."""

    tick: int
    allocation: int = 0

    def __post_init__(self) -> None:
        check_range(self, "tick allocation")


@dataclass(frozen=True, slots=True)
class Command:
    """At clock ``at``, copy bytes [low, high) of a storage from ``source`` to ``target``, or drop them on ``source``.

    ``due`` is when the plan counts on a copy; at == due is a copy for which compute waits. ``due`` may be in the next
    step: it is then the smaller of the two. A drop is due at once and has no target.
    """

    verb: Verb
    storage: int
    low: int
    high: int
    source: str
    target: str | None
    at: Clock
    due: Clock

    def __post_init__(self) -> None:
        check_range(self, "storage low")
        check_range(self, "high", low=self.low + 1)
        if (self.target is None) != (self.verb is Verb.DROP):
            raise ValueError("a copy has a target and a drop has none")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Commands in the order of their clocks, for a step with this signature of ``n_ticks`` ticks."""

    signature: str
    n_ticks: int
    commands: tuple[Command, ...]

    def __post_init__(self) -> None:
        clocks = [command.at for command in self.commands]
        if clocks != sorted(clocks):
            raise ValueError("commands must be sorted by their clocks")
        if any(max(command.at.tick, command.due.tick) >= self.n_ticks for command in self.commands):
            raise ValueError("a command lies beyond the last tick")


def lower(plan: Plan, trace: Trace, machine: Machine) -> Schedule:
    """The commands of a plan. Callers MUST have checked the plan: a stay without a source is passed over."""
    speed = {tier.name: rank for rank, tier in enumerate(machine.tiers)}
    by_storage: dict[int, list[Stay]] = defaultdict(list)
    for stay in plan.stays:
        by_storage[stay.storage].append(stay)
    commands = [
        command
        for storage, stays in sorted(by_storage.items())
        for stay in stays
        for command in _commands(stay, stays, trace, machine, speed)
    ]
    order = list(Verb)
    commands.sort(key=lambda command: (command.at, order.index(command.verb), command.storage, command.low))
    return Schedule(plan.signature, len(trace.ticks), tuple(commands))


def _commands(
    stay: Stay, stays: list[Stay], trace: Trace, machine: Machine, speed: dict[str, int]
) -> Iterator[Command]:
    storage, n_ticks = trace.storages[stay.storage], len(trace.ticks)
    period = n_ticks if storage.persistent else 0
    at, due, end = (Clock(tick % n_ticks) for tick in (stay.start, stay.valid_from, stay.stop))
    cuts = sorted({stay.low, stay.high} | {cut for other in stays for cut in (other.low, other.high)})
    pieces = [piece for piece in pairwise(cuts) if stay.low <= piece[0] and piece[1] <= stay.high]
    copied: list[tuple[int, int, str]] = []
    dropped: list[tuple[int, int, str]] = []
    for low, high in pieces:
        others = [other for other in stays if other.low <= low and high <= other.high]
        if storage.persistent or stay.start > storage.birth:
            source = _source(stay, others, machine, speed, period)
            if source not in (None, stay.tier):
                copied.append((low, high, str(source)))
        ends_with_life = not storage.persistent and stay.stop == storage.death
        goes_on = any(other.tier == stay.tier and _same(stay.stop, other.start, period) for other in others)
        if not ends_with_life and not goes_on:
            dropped.append((low, high, stay.tier))
    for low, high, source in _joined(copied):
        verb = Verb.EVICT if speed[stay.tier] > speed[source] else Verb.FETCH
        yield Command(verb, stay.storage, low, high, source, stay.tier, at, due)
    for low, high, source in _joined(dropped):
        yield Command(Verb.DROP, stay.storage, low, high, source, None, end, end)


def _source(stay: Stay, others: list[Stay], machine: Machine, speed: dict[str, int], period: int) -> str | None:
    """Where contents come from: the same tier if the stay goes on there, else the fastest tier valid throughout."""
    if any(
        other.tier == stay.tier and _same(other.stop, stay.start, period) and stay.valid_from == stay.start
        for other in others
    ):
        return stay.tier
    first = stay.start - (stay.valid_from == stay.start)
    fitting = {
        tier
        for tier, valid_from, stop in _joined_in_time(others, period)
        if valid_from <= first and stop >= stay.valid_from and machine.link(tier, stay.tier)
    }
    return min(fitting, key=speed.__getitem__, default=None)


def _joined_in_time(stays: list[Stay], period: int) -> Iterator[tuple[str, int, int]]:
    """(tier, valid_from, stop) of this step and its neighbours; stays that follow each other on a tier are one."""
    shifts = (-period, 0, period) if period else (0,)
    rows = sorted((stay.tier, stay.valid_from + shift, stay.stop + shift) for stay in stays for shift in shifts)
    while rows:
        tier, valid_from, stop = rows.pop(0)
        while rows and rows[0][0] == tier and rows[0][1] <= stop:
            stop = max(stop, rows.pop(0)[2])
        yield tier, valid_from, stop


def _same(tick: int, other: int, period: int) -> bool:
    return (tick - other) % period == 0 if period else tick == other


def _joined(pieces: list[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """Adjacent byte ranges with one source are one command."""
    while pieces:
        low, high, source = pieces.pop(0)
        while pieces and pieces[0][0] == high and pieces[0][2] == source:
            high = pieces.pop(0)[1]
        yield low, high, source
