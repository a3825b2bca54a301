"""Schedules as rows, for people: written by hand, or lowered from a plan by the oracle of ``native/simulate/lowering``.

The oracle goes tick by tick where native code reasons with intervals. It derives what follows a command from the other
commands and from the uses, and native code from the stays.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.ir.base import LARGEST
from ebbtide.ir.machine import Machine
from ebbtide.ir.native import Verb
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.schedule import Schedule
from ebbtide.ir.trace import Storage, Trace


@dataclass(frozen=True, slots=True)
class Command:
    """``target`` of a drop from the first tier is where contents go that have changed since. ``leaves``: an eviction
    from the first tier that gives the pages up once they are written."""

    verb: Verb
    storage: int
    source: str
    target: str | None
    at: int
    due: int
    leaves: bool = False
    earliest: int = 0


@dataclass(frozen=True, slots=True)
class Begin:
    """The storage is valid on ``tier`` when it is born, or at tick 0 if it is persistent."""

    storage: int
    tier: str


def schedule_of(commands: Sequence[Command], machine: Machine, begins: Sequence[Begin] = ()) -> Schedule:
    """In columns; sorted by tick, and at one tick in the order that is given."""
    rank: dict[str | None, int] = {tier.name: at for at, tier in enumerate(machine.tiers)}
    rows = [
        (row.at, row.verb, row.storage, rank[row.source], rank.get(row.target, 0), row.leaves, row.earliest, row.due)
        for row in sorted(commands, key=lambda row: row.at)
    ]
    first = [(begin.storage, rank[begin.tier]) for begin in begins]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 8).T
    return Schedule(*columns, *np.array(first, dtype=np.int64).reshape(-1, 2).T)


def rows_of(schedule: Schedule, machine: Machine) -> tuple[tuple[Command, ...], tuple[Begin, ...]]:
    """The commands and the beginnings, with names."""
    name = [tier.name for tier in machine.tiers]
    commands = []
    for tick, verb, storage, source, target, then, earliest, due in zip(
        *(getattr(schedule, column).tolist() for column in Schedule.__slots__[:8]), strict=True
    ):
        has_target = verb != Verb.DROP or source == 0
        target_name = name[target] if has_target else None
        commands.append(Command(Verb(verb), storage, name[source], target_name, tick, due, bool(then), earliest))
    begins = zip(schedule.begin_storage.tolist(), schedule.begin_tier.tolist(), strict=True)
    return tuple(commands), tuple(Begin(storage, name[tier]) for storage, tier in begins)


# ---- the oracle ------------------------------------------------------------------------------------------------------


def lowered(plan: Plan, trace: Trace, machine: Machine) -> tuple[tuple[Command, ...], tuple[Begin, ...]]:
    """What ``ir.schedule.lower`` gives, as rows."""
    by_storage: dict[int, list[Stay]] = defaultdict(list)
    for stay in sorted(plan.stays, key=lambda stay: stay.storage):
        by_storage[stay.storage].append(stay)
    commands: list[Command] = []
    begins: list[Begin] = []
    for number, stays in by_storage.items():
        begins += _begins(number, stays, trace, machine)
        life = trace.storages[number].death - trace.storages[number].birth
        if len(stays) > 1 or stays[0].stop - stays[0].start != life:
            commands += _OneStorage(number, stays, trace, machine).commands()
    return tuple(_ordered(commands, len(trace.ticks))), tuple(begins)


def _begins(number: int, stays: list[Stay], trace: Trace, machine: Machine) -> list[Begin]:
    """None for a storage that begins on the first tier alone."""
    at, n_ticks = trace.storages[number].birth, len(trace.ticks)
    shifts = (0, n_ticks) if trace.storages[number].persistent else (0,)
    here = [stay for stay in stays if any(stay.valid_from <= at + by < stay.stop for by in shifts)]
    if all(stay.tier == machine.tiers[0].name for stay in here):
        return []
    return [Begin(number, stay.tier) for stay in here]


def _ordered(commands: list[Command], n_ticks: int) -> list[Command]:
    """At one tick: evictions, drops, which make room for fetches, and last the drops of what fetches read.

    Of several copies the one that is due first goes first, since a link carries them in this order.
    """
    fetched = {(row.at, row.storage, row.source) for row in commands if row.verb is Verb.FETCH}

    def key(row: Command) -> tuple[int, bool, int, int, int]:
        is_last = row.verb is Verb.DROP and (row.at, row.storage, row.source) in fetched
        return row.at, is_last, row.verb, (row.due - row.at) % n_ticks, row.storage

    return sorted(commands, key=key)


class _OneStorage:
    """Its ticks are those of the step of its birth, and of a persistent one's any step."""

    def __init__(self, number: int, stays: list[Stay], trace: Trace, machine: Machine) -> None:
        self._number, self._stays, self._machine = number, stays, machine
        self._storage: Storage = trace.storages[number]
        self._n_ticks = len(trace.ticks)
        self._period = self._n_ticks if self._storage.persistent else LARGEST
        self._uses = set((trace.accesses.tick[trace.accesses.of(number)] % self._period).tolist())

    def commands(self) -> Iterator[Command]:
        fast, rank = self._machine.tiers[0].name, self._machine.rank
        starts = {(stay.tier, stay.start % self._period) for stay in self._stays if stay.valid_from == stay.start}
        stops = {(stay.tier, stay.stop % self._period) for stay in self._stays}
        goes_on = starts & stops
        dies = set() if self._storage.persistent else {(stay.tier, self._storage.death) for stay in self._stays}
        dropped = {stop for tier, stop in stops - goes_on - dies if tier == fast}
        for stay in self._stays:
            between_ticks = stay.valid_from == stay.start
            born = between_ticks and stay.start == self._storage.birth and not self._storage.persistent
            source = self._source(stay)
            if not born and not (between_ticks and (stay.tier, stay.start % self._period) in goes_on) and source:
                verb = Verb.EVICT if rank(stay.tier) > rank(source) else Verb.FETCH
                copy = self._command(verb, source, stay.tier, stay.start, stay.valid_from)
                yield replace(
                    copy,
                    leaves=source == fast and self._leaves(stay.start, dropped),
                    earliest=self._earliest(stay.start, dropped) if stay.tier == fast else 0,
                )
            if (stay.tier, stay.stop % self._period) not in goes_on | dies:
                target = self._elsewhere(stay.stop) if stay.tier == fast else None
                yield self._command(Verb.DROP, stay.tier, target, stay.stop, stay.stop)

    def _command(self, verb: Verb, source: str, target: str | None, at: int, due: int) -> Command:
        return Command(verb, self._number, source, target, at % self._n_ticks, due % self._n_ticks)

    def _is_valid(self, tier: str, tick: int) -> bool:
        shifts = (-self._n_ticks, 0, self._n_ticks) if self._storage.persistent else (0,)
        return any(row.tier == tier and row.valid_from <= tick + by < row.stop for row in self._stays for by in shifts)

    def _source(self, stay: Stay) -> str | None:
        """The fastest tier with a link to the stay's that is valid throughout the copy, or before it between ticks."""
        ticks = range(stay.start, stay.valid_from) or [stay.start - 1]
        for tier in self._machine.tiers:
            has_link = self._machine.link(tier.name, stay.tier) is not None
            if has_link and all(self._is_valid(tier.name, tick) for tick in ticks):
                return tier.name
        return None

    def _leaves(self, start: int, dropped: set[int]) -> bool:
        """Whether it is dropped in the same step, and before it is used."""
        for tick in range(start, (start // self._n_ticks + 1) * self._n_ticks):
            if tick % self._period in dropped:
                return True
            if tick % self._period in self._uses:
                return False
        return False

    def _earliest(self, start: int, dropped: set[int]) -> int:
        """In the step of a fetch, when it had been dropped and its last use was over."""
        for tick in range(start, start // self._n_ticks * self._n_ticks, -1):
            if tick % self._period in dropped or (tick - 1) % self._period in self._uses:
                return tick % self._n_ticks
        return 0

    def _elsewhere(self, tick: int) -> str:
        slower = [tier.name for tier in self._machine.tiers[1:]]
        return next((tier for tier in slower if self._is_valid(tier, tick)), slower[0])
