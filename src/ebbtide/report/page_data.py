"""What the page shows, as plain values and columns. Figures come from ``analysis``; here they are only put in order."""

from typing import Any

import numpy as np

from ebbtide.analysis.intervals import QUANTILES, byte_seconds, distributions_of, histogram_of
from ebbtide.analysis.memory import memory_of, peak_of
from ebbtide.analysis.swapping import candidates_of
from ebbtide.ir.base import Ints, Origin
from ebbtide.ir.timeline import COMPUTE_LANE, SpanKind, Timeline
from ebbtide.ir.trace import StorageKind, Trace, idle_intervals
from ebbtide.report.stalls import STALLS, stalls_of
from ebbtide.report.subject import Subject
from ebbtide.units import format_bytes, format_time

_POINTS = 200
_MODULES = 12


def page_data(subject: Subject) -> dict[str, Any]:
    """The fields are those that ``page/main.js`` and its neighbours read."""
    data: dict[str, Any] = {
        "title": title_of(subject),
        "source": _source(subject),
        "facts": _facts(subject),
        "trace": None,
        "budget_bytes": _budget(subject),
        "timelines": _timelines(subject),
    }
    return data | (_step(subject, subject.trace) if subject.trace is not None else {})


def title_of(subject: Subject) -> str:
    name = subject.trace.name if subject.trace is not None else subject.timelines[0].policy
    return f"{name}: memory of a training step" if name else "Memory of a training step"


def _source(subject: Subject) -> str:
    trace = subject.trace
    if trace is None:
        return "Timelines alone; a trace of the same step would show its storages too."
    times = "measured" if trace.origin is Origin.MEASURED else f"{trace.origin}, not measured"
    machine = f" Machine: {subject.machine} ({subject.origin})." if subject.machine else ""
    return f"Trace {trace.name!r}, one step; its times are {times}.{machine}"


def _facts(subject: Subject) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    trace, plan, run = subject.trace, subject.plan, subject.run
    if trace is not None:
        facts += [
            ("step without stalls", format_time(trace.step_ns / 1e9)),
            ("operations", f"{len(trace.ticks):,}"),
            ("storages", f"{len(trace.storages):,}"),
            ("accesses", f"{len(trace.accesses):,}"),
        ]
    if plan is not None:
        facts += [
            ("plan", f"{plan.planner} ({plan.status})"),
            ("plan's budget", format_bytes(plan.budget_bytes)),
            ("step predicted", format_time(plan.predicted_ns / 1e9)),
            ("no plan is below", format_time(plan.lower_bound_ns / 1e9)),
        ]
    if run is not None:
        steps = sorted(step.wall_s for step in run.steps)
        facts += [("run", f"{len(steps)} steps, policy {run.policy}")]
        facts += [("median step, measured", format_time(steps[len(steps) // 2]))] if steps else []
        facts += [("process peak, measured", format_bytes(run.process_peak_bytes))]
    return facts


def _budget(subject: Subject) -> int | None:
    if subject.plan is not None:
        return subject.plan.budget_bytes
    return subject.run.arena_budget_bytes if subject.run is not None else None


def _step(subject: Subject, trace: Trace) -> dict[str, Any]:
    memory = memory_of(trace)
    return {
        "trace": _trace(trace, memory.start_ns),
        "memory": {
            "start_ns": memory.start_ns,
            "live": memory.live,
            "used": memory.used,
            "by_kind": {str(kind): level for kind, level in memory.by_kind.items()},
        },
        "peak": _peak(trace),
        "intervals": _intervals(subject, trace),
        "route": _route(subject, trace),
        **_distribution(trace),
    }


def _trace(trace: Trace, start_ns: Ints) -> dict[str, Any]:
    kinds = {kind: number for number, kind in enumerate(StorageKind)}
    strings: dict[str, int] = {}

    def numbers(texts: list[str]) -> Ints:
        return np.array([strings.setdefault(text, len(strings)) for text in texts], dtype=np.int64)

    rows, accesses = trace.storages, trace.accesses
    return {
        "origin": str(trace.origin),
        "step_ns": trace.step_ns,
        "start_ns": start_ns,
        "kinds": [str(kind) for kind in kinds],
        "storages": {
            "nbytes": np.array([row.nbytes for row in rows], dtype=np.int64),
            "kind": np.array([kinds[row.kind] for row in rows], dtype=np.int64),
            "birth": np.array([row.birth for row in rows], dtype=np.int64),
            "death": np.array([row.death for row in rows], dtype=np.int64),
            "module": numbers([row.module for row in rows]),
            "persistent": np.array([row.persistent for row in rows], dtype=bool),
            "scratch": np.array([row.scratch for row in rows], dtype=bool),
        },
        "ticks": {
            "operator": numbers([tick.operator for tick in trace.ticks]),
        },
        "accesses": {"storage": accesses.storage, "tick": accesses.tick, "mode": accesses.mode},
        "strings": list(strings),
    }


def _peak(trace: Trace) -> dict[str, Any]:
    peak = peak_of(trace)

    def column(values: list[int | None]) -> Ints:
        return np.array([-1 if value is None else value for value in values], dtype=np.int64)

    return {
        "time_ns": peak.time_ns,
        "nbytes": peak.nbytes,
        "operator": peak.operator,
        "module": peak.module,
        "kinds": [(row.label, row.nbytes, row.count) for row in peak.by_kind()],
        "modules": [(row.label, row.nbytes, row.count) for row in peak.by_module()],
        "operators": [row.operator for row in peak.residents],
        "residents": {
            "storage": column([row.storage for row in peak.residents]),
            "nbytes": column([row.nbytes for row in peak.residents]),
            "age_ns": column([row.age_ns for row in peak.residents]),
            "idle_ns": column([row.idle_ns for row in peak.residents]),
        },
    }


def _intervals(subject: Subject, trace: Trace) -> dict[str, Any]:
    """Idle intervals, and whether they are long enough to move, if it is known over what."""
    if subject.route is not None:
        names = ("storage", "after", "until", "idle_ns", "byte_seconds", "alone", "queued", "outlier")
        candidates = candidates_of(trace, subject.route)
        return {name: getattr(candidates, name) for name in names}
    found = idle_intervals(trace)
    nbytes = np.array([row.nbytes for row in trace.storages], dtype=np.int64)[found.storage]
    return {
        "storage": found.storage,
        "after": found.after,
        "until": found.until,
        "idle_ns": found.idle_ns,
        "byte_seconds": byte_seconds(found.idle_ns, nbytes),
    }


def _route(subject: Subject, trace: Trace) -> dict[str, Any] | None:
    route = subject.route
    if route is None:
        return None
    longest = max(int(idle_intervals(trace).idle_ns.max(initial=0)), 10_000)
    line = [(ns, route.most_bytes(ns)) for ns in np.geomspace(1000, longest, _POINTS).round().tolist()]
    line = [(ns, most) for ns, most in line if most]
    return {
        "tier": route.tier,
        "machine": subject.machine,
        "origin": str(subject.origin),
        "out_bytes_per_s": route.out.bytes_per_s,
        "back_bytes_per_s": route.back.bytes_per_s,
        "idle_ns": np.array([ns for ns, _ in line], dtype=np.float64),
        "most_bytes": np.array([most for _, most in line], dtype=np.float64),
    }


def _distribution(trace: Trace) -> dict[str, Any]:
    histogram, found = histogram_of(trace), distributions_of(trace)
    rows = (found.overall, *found.by_kind, *found.by_module[:_MODULES])
    return {
        "histogram": {"edges_ns": histogram.edges_ns, "count": histogram.count, "nbytes": histogram.nbytes},
        "distributions": {
            "quantiles": list(QUANTILES),
            "rows": [
                {
                    "label": row.label or "(no module)",
                    "count": row.count,
                    "quantiles_ns": list(row.quantiles_ns),
                    "longest_ns": row.longest_ns,
                    "byte_seconds": row.byte_seconds,
                    "top_share": row.top_share,
                }
                for row in rows
            ],
        },
    }


def _timelines(subject: Subject) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for timeline in subject.timelines:
        name = f"{timeline.policy}, {timeline.origin}"
        same = sum(row["name"].startswith(name) for row in found)
        found.append(_timeline(timeline, subject.trace, f"{name} {same + 1}" if same else name))
    return found


def _timeline(timeline: Timeline, trace: Trace | None, name: str) -> dict[str, Any]:
    """Compute and stalls are one lane each, every link another."""
    spans = timeline.spans
    links = sorted({span.lane for span in spans} - {COMPUTE_LANE})
    lanes = [("compute", COMPUTE_LANE, (SpanKind.COMPUTE,)), ("stall", COMPUTE_LANE, STALLS)]
    lanes += [(link, link, (SpanKind.EVICT, SpanKind.FETCH)) for link in links]
    by_lane: dict[tuple[str, SpanKind], list[tuple[int, int]]] = {}
    for span in spans:
        by_lane.setdefault((span.lane, span.kind), []).append((span.start_ns, span.stop_ns))
    stalls = stalls_of(timeline, trace)
    tiers = list(dict.fromkeys(level.tier for level in timeline.levels))  # the fastest comes first
    return {
        "name": name,
        "origin": str(timeline.origin),
        "step_ns": timeline.step_ns,
        "end_ns": max([timeline.step_ns, *(span.stop_ns for span in spans)]),
        "stall_ns": {str(kind): timeline.time_ns(kind) for kind in STALLS},
        "moved": timeline.moved_bytes(),
        "lanes": [
            {
                "name": title,
                "groups": [_group(kind, by_lane[lane, kind]) for kind in kinds if (lane, kind) in by_lane],
            }
            for title, lane, kinds in lanes
        ],
        "levels": [_level(timeline, tier) for tier in tiers],
        "stalls": {
            "start": np.array([stall.start_ns for stall in stalls], dtype=np.int64),
            "stop": np.array([stall.stop_ns for stall in stalls], dtype=np.int64),
            "kind": [str(stall.kind) for stall in stalls],
            "where": [_where(stall.tick, stall.label, trace) for stall in stalls],
            "awaited": [
                [(-1 if row.storage is None else row.storage, row.lane, row.nbytes) for row in stall.awaited]
                for stall in stalls
            ],
        },
    }


def _group(kind: SpanKind, spans: list[tuple[int, int]]) -> dict[str, Any]:
    start, stop = np.array(spans, dtype=np.int64).T
    return {"kind": str(kind), "start": start, "stop": stop}


def _level(timeline: Timeline, tier: str) -> dict[str, Any]:
    rows = [level for level in timeline.levels if level.tier == tier]
    end = max(timeline.step_ns, rows[-1].time_ns)
    return {
        "tier": tier,
        "time": np.array([*(row.time_ns for row in rows), end], dtype=np.int64),
        "nbytes": np.array([*(row.nbytes for row in rows), rows[-1].nbytes], dtype=np.int64),
        "most_bytes": max(row.nbytes for row in rows),
    }


def _where(tick: int | None, label: str, trace: Trace | None) -> str:
    if trace is None or tick is None:
        return label or (f"tick {tick}" if tick is not None else "")
    here = trace.ticks[tick]
    return f"{here.operator or f'tick {tick}'}{f' in {here.module}' if here.module else ''}"
