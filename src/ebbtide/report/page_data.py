"""What the page shows, as plain values and columns. Figures come from ``analysis``; here they are only put in order."""

from typing import Any

import numpy as np

from ebbtide.analysis.intervals import QUANTILES, byte_seconds, distributions_of, histogram_of
from ebbtide.analysis.memory import memory_of, peak_of
from ebbtide.analysis.swapping import candidates_of
from ebbtide.ir.base import Ints, Origin
from ebbtide.ir.trace import StorageKind, Trace, idle_intervals
from ebbtide.report.subject import Subject
from ebbtide.report.timeline_data import timelines_data
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
        "timelines": timelines_data(subject),
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
