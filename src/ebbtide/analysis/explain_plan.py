"""Explains in sentences what a plan does with a storage, and why."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ebbtide.analysis.texts import Names, place, time_text
from ebbtide.ir.base import Ints
from ebbtide.ir.occupancy import arena_pages, live_bytes, occupancy, paged_sizes
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.remakes import made_anew, remade, remakes_of, split_plan
from ebbtide.ir.trace import Trace, idle_intervals
from ebbtide.units import format_bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """A storage has no room on the fast tier during ticks [gone, back). From ``there`` on, its contents are valid
    there.

    ``back`` is None if it does not come back. ``tier`` has the contents meanwhile, or is "" if the plan does not say.
    ``written`` holds the ticks of the copy to that tier, or None if the contents were there before. ``remake`` is the
    row of ``remakes_of`` by which it is made anew at ``back``, or None.
    """

    gone: int
    back: int | None
    there: int | None
    tier: str
    written: tuple[int, int] | None
    remake: int | None = None


def remaking_text(plan: Plan, trace: Trace) -> str:
    """Say how many bytes a plan makes anew in a step, and what that takes; "" if it moves everything."""
    nbytes, spent_ns = made_anew(plan, trace)
    if not nbytes:
        return ""
    share = 100 * spent_ns / max(trace.step_ns, 1)
    return f"{format_bytes(nbytes)} are made anew in a step, in {time_text(spent_ns)}: {share:.1f} % of its compute"


class PlanView:
    """A plan for ``trace``. ``fast`` is the tier that its budget bounds, by default the one with the most stays."""

    def __init__(self, trace: Trace, plan: Plan, fast: str = "") -> None:
        self._trace, self._plan, self._names = trace, plan, Names(trace)
        self._stays: dict[int, list[Stay]] = defaultdict(list)
        for stay in plan.stays:
            self._stays[stay.storage].append(stay)
        tiers = Counter(stay.tier for stay in plan.stays)
        self.fast = fast if fast in tiers or not tiers else tiers.most_common(1)[0][0]
        storage = remakes_of(trace).storage
        self._remade = {(int(storage[row]), until): row for row, until in remade(plan.stays, trace)}
        split, step, _ = split_plan(plan, trace)
        self._level = occupancy(step, split.stays, [self.fast], arena_pages)[self.fast]
        self._live = live_bytes(trace, arena_pages)

    @property
    def title(self) -> str:
        plan = self._plan
        return f"plan ({plan.planner}, {plan.status}, budget {format_bytes(plan.budget_bytes)})"

    def at(self, tick: int) -> str:
        """Say how full the fast tier is at a tick."""
        held = format_bytes(int(self._level[tick]))
        anew = remaking_text(self._plan, self._trace)
        return f"{self.title}: holds {held} on {self.fast} at that tick{anew and f'; {anew}'}"

    def short(self, number: int) -> str:
        """Say when the storage is away, or "" if it never is."""
        gaps = [
            f"from {self._names.moment(gap.gone)} on" if gap.back is None else self._names.range_of(gap.gone, gap.back)
            for gap in self._gaps_in_step(number)
        ]
        return f"planned away {', '.join(gaps)}" if gaps else ""

    def lines(self, number: int) -> Iterator[str]:
        gaps = list(self.gaps(number))
        if not gaps:
            tiers = ", ".join(sorted({stay.tier for stay in self._stays[number]})) or "no tier"
            yield f"{self.title}: on {tiers} throughout"
            yield from self._why_it_stays(number)
            return
        for gap in self._gaps_in_step(number):
            yield f"{self.title}: {self._gap_text(gap, number)}"
        fullest = max(_most(self._level, gap.gone, self._until(gap, number)) for gap in gaps)
        needed = fullest + self._room(number)
        more = needed - self._plan.budget_bytes
        if more > 0:
            yield (
                f"to stay, with all else as planned, it would need {format_bytes(more)} more fast memory: a budget of "
                f"{format_bytes(needed)}"
            )
        else:
            yield "it could stay within the budget, with all else as planned"

    def _gaps_in_step(self, number: int) -> Iterator[Gap]:
        """Return the ``gaps`` in this step. Those of a persistent storage recur; they are shifted to begin in this
        step."""
        for gap in self.gaps(number):
            first = gap.gone if gap.written is None else gap.written[0]
            if not self._trace.storages.persistent[number] or first < len(self._level):
                yield gap
                continue
            shift = len(self._level)
            yield replace(
                gap,
                gone=gap.gone - shift,
                back=None if gap.back is None else gap.back - shift,
                there=None if gap.there is None else gap.there - shift,
                written=None if gap.written is None else (gap.written[0] - shift, gap.written[1] - shift),
            )

    def _gap_text(self, gap: Gap, number: int) -> str:
        if gap.remake is not None:
            remakes = remakes_of(self._trace)
            made, took = self._trace.tick(int(remakes.operator[gap.remake])), int(remakes.time_ns[gap.remake])
            return (
                f"leaves at {self._names.moment(gap.gone)}, without a copy; made anew at "
                f"{self._names.moment(gap.back or 0)} by {place(made.operator, made.module)}: {time_text(took)}"
            )
        to = f" to {gap.tier}" if gap.tier else ""
        how = ", without a write: it is clean"
        if gap.written is not None:
            how = f", written{to} {self._names.range_of(*gap.written)}"
        comes = "does not come back"
        if gap.back is not None:
            there = self._names.moment(gap.there or 0)
            comes = f"starts back at {self._names.moment(gap.back)} and is there from {there} on"
        return f"leaves by {self._names.moment(gap.gone)}{how}; {comes}"

    def gaps(self, number: int) -> Iterator[Gap]:
        """Return the times without room on the fast tier, for a storage that is there at some time."""
        storage, n_ticks = self._trace.storage(number), len(self._trace.ticks)
        fast, slow = self._places(number)
        ends: list[tuple[int | None, int | None]] = [(row.start, row.valid_from) for row in fast[1:]]
        if fast and storage.persistent:
            ends.append((fast[0].start + n_ticks, fast[0].valid_from + n_ticks))
        elif fast:
            ends.append((None, None))
        for row, (back, there) in zip(fast, ends, strict=True):
            if row.stop < (storage.death if back is None else back):
                tier, written = self._held_by(row, slow, storage.persistent)
                remake = None if back is None else self._remade.get((number, back))
                yield Gap(row.stop, back, there, tier, written, remake)

    def away_bytes(self, number: int) -> int:
        """Return the storage's bytes if it is at some time without room on the fast tier, else 0."""
        fast, slow = self._places(number)
        is_away = any(True for _ in self.gaps(number)) or (slow and not fast)
        return int(self._trace.storages.nbytes[number]) if is_away else 0

    def movers(self) -> list[int]:
        """List the storages that are not on the fast tier at some time of their lives."""
        away = {stay.storage for stay in self._plan.stays if stay.tier != self.fast}
        return sorted(away | {number for number, _ in self._remade})

    def _places(self, number: int) -> tuple[list[Stay], list[Stay]]:
        """Return a storage's stays on the fast tier, and those on other tiers, in their order."""
        stays = sorted(self._stays[number], key=lambda row: row.start)
        return [row for row in stays if row.tier == self.fast], [row for row in stays if row.tier != self.fast]

    def _held_by(self, left: Stay, slow: list[Stay], repeats: bool) -> tuple[str, tuple[int, int] | None]:
        """Return the tier that has the contents when the stay ``left`` ends, and the ticks of the copy there."""
        for shift in (-len(self._level), 0, len(self._level)) if repeats else (0,):
            for stay in slow:
                start, valid_from = stay.start + shift, stay.valid_from + shift
                if start <= left.stop < stay.stop + shift:
                    copied = start >= left.start and valid_from > start
                    return stay.tier, (start, valid_from) if copied else None
        return "", None

    def _until(self, gap: Gap, number: int) -> int:
        return int(self._trace.storages.death[number]) if gap.back is None else gap.back

    def _room(self, number: int) -> int:
        return int(paged_sizes(self._trace, arena_pages)[number])

    def _why_it_stays(self, number: int) -> Iterator[str]:
        """Explain it by the live bytes during the storage's longest idle interval."""
        found = idle_intervals(self._trace)
        mine = np.flatnonzero((found.storage == number) & (found.until > found.after + 1))
        if not len(mine):
            return
        row = mine[int(found.idle_ns[mine].argmax())]
        most = _most(self._live, int(found.after[row]) + 1, int(found.until[row]))
        held = f"while it is idle, live tensors reach {format_bytes(most)} in whole pages"
        if most <= self._plan.budget_bytes:
            yield f"{held}, which the budget holds: nothing has to leave"
        else:
            yield f"{held}: the plan makes room by moving others"


def _most(level: Ints, first: int, stop: int) -> int:
    """Return the highest value of a step's level in ticks [first, stop). Steps repeat, so ticks form a circle."""
    ticks: Ints = np.arange(first, min(stop, first + len(level))) % len(level)
    return int(level[ticks].max())
