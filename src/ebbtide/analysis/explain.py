"""Explains in sentences why a storage is where it is, and what would change that. An analysis, a plan and a timeline
say it."""

import difflib
import fnmatch
from collections.abc import Iterator, Sequence

import numpy as np

from ebbtide.analysis.curves import break_even_bytes_per_s
from ebbtide.analysis.explain_plan import PlanView
from ebbtide.analysis.memory import peak_of
from ebbtide.analysis.swapping import Candidates, Route, candidates_of
from ebbtide.analysis.texts import Names, count_text, rate_text, time_text, words
from ebbtide.errors import SettingError
from ebbtide.ir.plan import Plan
from ebbtide.ir.timeline import COMPUTE_LANE, SpanKind, Timeline
from ebbtide.ir.trace import Trace, idle_intervals
from ebbtide.units import format_bytes

_MOST_INTERVALS = 3
_MOST_STORAGES = 10
_MOST_LINES = 5
_WAITED_FOR = {
    SpanKind.STALL_ROOM: "room",
    SpanKind.STALL_LATE: "a prefetch under way",
    SpanKind.STALL_DEMAND: "a fetch that nothing had started",
}


class Explainer:
    """Explains one step from its trace. A route to a slow tier, a plan and a timeline add to it where they are
    given. Raises SettingError for a timeline of another step."""

    def __init__(
        self,
        trace: Trace,
        route: Route | None = None,
        machine: str = "",
        plan: Plan | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        if timeline is not None and not timeline.fits(trace):
            raise SettingError(f"the timeline of {timeline.policy!r:.80} is of another step than the trace's")
        self._trace, self._route, self._machine, self._timeline = trace, route, machine, timeline
        self._names = Names(trace)
        self._candidates = candidates_of(trace, route) if route is not None else None
        self._plan = PlanView(trace, plan, route.out.source if route is not None else "") if plan is not None else None
        self._peak = peak_of(trace)

    def storage(self, number: int) -> list[str]:
        """Describe a storage. Raises SettingError if there is no such storage."""
        if not 0 <= number < len(self._trace.storages):
            raise SettingError(f"there is no storage {number}: the trace has {len(self._trace.storages)}, from 0 on")
        lines = [*self._life(number), *self._at_peak(number), *self._idle(number), *self._spent(number)]
        if self._plan is not None:
            lines += self._plan.lines(number)
        if self._timeline is not None:
            lines += self._in_timeline(number, self._timeline)
        return [self._names.storage(number), *(f"  {line}" for line in lines)]

    def module(self, name: str) -> list[str]:
        """Describe a module and those within it. ``name`` may have ``*``, or be a part of names, as in the page's
        filter. Raises SettingError if no storage is theirs."""
        names = list(zip(self._names.short, self._names.full, strict=True))
        patterns = (name, f"{name}.*")
        numbers = [
            number
            for number, both in enumerate(names)
            if any(fnmatch.fnmatchcase(module, pattern) for module in both if module for pattern in patterns)
        ]
        if not numbers and name:
            numbers = [number for number, (_, full) in enumerate(names) if name.lower() in full.lower()]
        if not numbers:
            known = sorted({module for module in self._names.short if module})
            near = ", ".join(difflib.get_close_matches(name, known, 3, 0.3) or known[:3]) or "none"
            raise SettingError(f"no storage belongs to a module {name!r:.80}; there are {near}, ...")
        nbytes = int(self._trace.storages.nbytes[numbers].sum())
        mine = set(numbers)
        at_peak = sum(row.nbytes for row in self._peak.residents if row.storage in mine)
        numbers.sort(key=lambda number: (-self._trace.storages.nbytes[number], number))
        return [
            f"{name}: {count_text(len(numbers), 'storage')}, {format_bytes(nbytes)} in all; of the step's peak "
            f"{format_bytes(at_peak)} of {format_bytes(self._peak.nbytes)}",
            *self._list(numbers),
        ]

    def at_peak(self) -> list[str]:
        peak = self._peak
        in_use = sum(row.nbytes for row in peak.residents if row.idle_ns == 0)
        lines = [
            f"the step's peak: {format_bytes(peak.nbytes)} of live tensors at tick {self._names.tick(peak.tick)}, "
            f"{time_text(peak.time_ns)} into the step",
            "  " + ", ".join(f"{words(share.label)} {format_bytes(share.nbytes)}" for share in peak.by_kind()),
        ]
        made = [share for share in peak.by_line() if share.label][:_MOST_LINES]
        if made:
            most = ", ".join(f"{share.label} {format_bytes(share.nbytes)}" for share in made)
            lines.append(f"  lines that made the most of it: {most}")
        lines.append(f"  in use at that tick: {format_bytes(in_use)}; idle: {format_bytes(peak.nbytes - in_use)}")
        if self._candidates is not None:
            away = format_bytes(_away_at(self._candidates, peak.tick, len(self._trace.ticks)))
            lines.append(
                f"  {away} could be away then without slowing compute, moved over the links of {self._machine}"
            )
        if self._plan is not None:
            lines.append(f"  {self._plan.at(peak.tick)}")
        return lines + self._list([row.storage for row in peak.residents])

    def _list(self, numbers: Sequence[int]) -> list[str]:
        lines = [f"  {self._names.storage(number)}; {self._short(number)}" for number in numbers[:_MOST_STORAGES]]
        if len(numbers) > _MOST_STORAGES:
            lines.append(f"  and {len(numbers) - _MOST_STORAGES:,} more")
        return [*lines, "--storage NUMBER tells more of one"]

    def _short(self, number: int) -> str:
        """Describe a storage in a list."""
        if self._plan is not None and (away := self._plan.short(number)):
            return away
        intervals = self._intervals(number)
        if not intervals:
            return next(self._spent(number), "never idle")
        after, until, idle_ns, row = intervals[0]
        text = f"idle {time_text(idle_ns)} {self._names.range_of(after + 1, until)}"
        if self._candidates is None:
            return text
        fits = "fits" if self._candidates.queued[row] else "fits alone" if self._candidates.alone[row] else "too short"
        return f"{text}: {fits}"

    # ---- one storage ------------------------------------------------------------------------------------------------

    def _life(self, number: int) -> Iterator[str]:
        trace, storage, names = self._trace, self._trace.storage(number), self._names
        rows = trace.accesses.of(number)
        uses = f"used at {count_text(rows.stop - rows.start, 'tick')}"
        if storage.persistent:
            yield f"outlives the step; {uses}"
        else:
            birth = f"allocated at tick {names.tick(storage.birth)}, {names.time_of(storage.birth)} into the step"
            yield f"{birth}; gone by tick {names.tick(storage.death)}; {uses}"
        if storage.scratch:
            yield "nobody saw who uses it, so it counts as in use as long as it lives, and cannot move"

    def _at_peak(self, number: int) -> Iterator[str]:
        when = f"the step's peak (tick {self._peak.tick:,})"
        row = next((row for row in self._peak.residents if row.storage == number), None)
        if row is None:
            yield f"not there at {when}: moving it would not lower that"
        else:
            yield f"in use at {when}" if row.idle_ns == 0 else f"idle at {when}"

    def _intervals(self, number: int) -> list[tuple[int, int, int, int]]:
        """Return rows of after, until, idle ns, and the row of the candidates if there are any.

        The longest interval comes first. Intervals that take no time are left out.
        """
        source = idle_intervals(self._trace) if self._candidates is None else self._candidates
        rows = np.flatnonzero((source.storage == number) & (source.idle_ns > 0))
        rows = rows[np.argsort(-source.idle_ns[rows], kind="stable")]
        return [
            (int(source.after[row]), int(source.until[row]), int(source.idle_ns[row]), row) for row in rows.tolist()
        ]

    def _idle(self, number: int) -> Iterator[str]:
        intervals = self._intervals(number)
        for after, until, idle_ns, row in intervals[:_MOST_INTERVALS]:
            verdict = "" if self._candidates is None else f"; {self._verdict(self._candidates, row)}"
            between = f"between tick {self._names.tick(after)} and tick {self._names.tick(until)}"
            yield f"idle {time_text(idle_ns)} {self._names.times_of(after + 1, until)}, {between}{verdict}"
        if not intervals:
            yield "never idle between two uses"

    def _spent(self, number: int) -> Iterator[str]:
        """Describe the time after the last use, which a prompt free would save."""
        storage, rows = self._trace.storage(number), self._trace.accesses.of(number)
        if storage.persistent or storage.scratch or rows.stop == rows.start:
            return
        last = int(self._trace.accesses.tick[rows.stop - 1])
        begins, ends = self._trace.start_ns(np.array([last + 1, storage.death])).tolist()
        if ends > begins:
            until = f"until it is freed by tick {self._names.tick(storage.death)}"
            yield f"idle {time_text(ends - begins)} after its last use, {until}: the program could free it sooner"

    def _verdict(self, candidates: Candidates, row: int) -> str:
        assert self._route is not None
        out, back = time_text(int(candidates.out_ns[row])), time_text(int(candidates.back_ns[row]))
        moving = f"moving takes {out} + {back} on {self._machine}"
        if candidates.queued[row]:
            return f"{moving}: fits, also when all that fit share the links"
        if candidates.alone[row]:
            return f"{moving}: fits alone, but the links are taken by storages with more bytes x idle time"
        need = break_even_bytes_per_s(int(candidates.nbytes[row]), int(candidates.idle_ns[row]), self._route)
        if need is None:
            return f"{moving}: too long, by the latency alone"
        return f"{moving}: too long; it would fit from {rate_text(need)} each way"

    def _in_timeline(self, number: int, timeline: Timeline) -> Iterator[str]:
        name = f"timeline ({timeline.policy}, {timeline.origin})"
        copies = [span for span in timeline.spans if span.storage == number and span.lane != COMPUTE_LANE]
        for span in copies:
            took, when = time_text(span.stop_ns - span.start_ns), time_text(span.start_ns)
            yield f"{name}: {format_bytes(span.nbytes)} over {span.lane} in {took}, from {when} into the step on"
        rows, n_ticks = self._trace.accesses.of(number), len(self._trace.ticks)
        ticks = set((self._trace.accesses.tick[rows] % n_ticks).tolist())
        for span in timeline.spans:
            if span.tick is None or span.tick not in ticks:
                continue
            if span.kind in _WAITED_FOR and span.storage in (None, number):
                waited = f"{time_text(span.stop_ns - span.start_ns)} for {_WAITED_FOR[span.kind]}"
                yield f"{name}: compute waits {waited} at {self._names.moment(span.tick)}, which uses it"
        if not copies:
            yield f"{name}: it does not move"


def _away_at(candidates: Candidates, tick: int, n_ticks: int) -> int:
    """Return the bytes that are away at a tick of the step when all that fit in the queue move."""
    steps = -((tick - candidates.gone) // n_ticks)  # to the first tick like it from ``gone`` on
    away = candidates.queued & (tick + steps * n_ticks < candidates.back)
    return int(candidates.nbytes[away].sum())
