"""Arranges the page's data as plain values and columns. Figures come from ``analysis``.

``_PARTS`` has a row for each part of the data. Its key is the name by which a section of the page asks for it. Its
function makes the part from the subject, or returns None where the subject lacks what the part needs.
"""

import shlex
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from ebbtide.analysis.columns import has_lines, modules_of
from ebbtide.analysis.intervals import QUANTILES, byte_seconds, distributions_of, histogram_of
from ebbtide.analysis.memory import Share, memory_of, peak_of
from ebbtide.analysis.swapping import candidates_of
from ebbtide.ir.base import Ints, Origin
from ebbtide.ir.plan import PlanStatus
from ebbtide.ir.trace import StorageKind, Trace, idle_intervals
from ebbtide.report.answers import advice, line_tree, peak_tree
from ebbtide.report.headline import higher_before
from ebbtide.report.names import by_number
from ebbtide.report.plan_data import away_data, budgets_data, own_budget
from ebbtide.report.subject import Subject
from ebbtide.report.summary import copied
from ebbtide.report.timeline_data import timelines_data
from ebbtide.report.typical_steps import median_step_s, typical_steps_named
from ebbtide.report.words import words_data
from ebbtide.units import format_bytes, format_time, seconds

_POINTS = 200
_MODULES = 12


def page_data(subject: Subject) -> dict[str, Any]:
    """Return the fields that the scripts in ``page/report`` read."""
    return {name: part(subject) for name, part in _PARTS.items()}


def title_of(subject: Subject) -> str:
    name = subject.trace.name if subject.trace is not None else subject.timelines[0].policy
    return f"{name}: memory of a training step" if name else "Memory of a training step"


def _source(subject: Subject) -> str:
    trace = subject.trace
    if trace is None:
        return "Timelines alone; a trace of the same step would show its storages too."
    times = "measured" if trace.origin is Origin.MEASURED else f"{trace.origin}, not measured"
    machine = f" Machine: {subject.machine} ({subject.origin}){subject.times}." if subject.machine else ""
    return f"Trace {trace.name!r}, one step; its times are {times}.{machine}"


def _facts(subject: Subject) -> list[tuple[str, str]]:
    """Return names and values. The page explains the names (``words_data``)."""
    facts: list[tuple[str, str]] = []
    trace, plan, run = subject.trace, subject.plan, subject.run
    if trace is not None:
        facts += [
            ("a step that never waits", format_time(seconds(trace.step_ns))),
            ("operations", f"{len(trace.ticks):,}"),
            ("storages", f"{len(trace.storages):,}"),
            ("peak of tensors", format_bytes(peak_of(trace).nbytes)),
        ]
    if plan is not None:
        beaten, bound = subject.bound_is_beaten, format_time(seconds(plan.lower_bound_ns))
        refuted = beaten and plan.status is PlanStatus.OPTIMAL
        facts += [
            ("plan", f"{plan.planner} ({PlanStatus.FEASIBLE if refuted else plan.status})"),
            ("plan's budget", format_bytes(plan.budget_bytes)),
            ("step, the plan's forecast", format_time(seconds(plan.predicted_ns))),
            ("no plan is faster than", "unknown: a measured step was faster" if beaten else bound),
        ]
    if run is not None:
        facts += [("run", f"{len(run.steps)} steps, policy {run.policy}")]
        if (typical_s := median_step_s(run)) is not None:
            facts += [(f"median of {typical_steps_named(run)}, measured", format_time(typical_s))]
        facts += [("process peak, measured", format_bytes(run.process_peak_bytes))]
        if before := higher_before(run):
            facts += [("before the budget was in force", before)]
        if plan is not None and run.arena_budget_bytes is not None:
            facts += [("run's budget", format_bytes(run.arena_budget_bytes))]
        for link in run.plan.links if run.plan is not None else ():
            foreseen, measured = link.forecast_bytes, link.measured_bytes
            facts += [(f"{link.name}, forecast", copied(foreseen, link.forecast_busy_s))]
            facts += [(f"{link.name}, measured", copied(measured, link.measured_busy_s))]
    return facts


def _of_trace(part: Callable[[Trace], Any]) -> Callable[[Subject], Any]:
    """Make a part from the trace alone, or None where there is no trace."""
    return lambda subject: None if subject.trace is None else part(subject.trace)


def _memory(trace: Trace) -> dict[str, Any]:
    memory = memory_of(trace)
    return {
        "live": memory.live,
        "used": memory.used,
        "by_kind": {str(kind): level for kind, level in memory.by_kind.items()},
    }


def _trace(trace: Trace) -> dict[str, Any]:
    kinds = {kind: number for number, kind in enumerate(StorageKind)}
    strings: dict[str, int] = {}

    def numbers(texts: list[str]) -> Ints:
        return np.array([strings.setdefault(text, len(strings)) for text in texts], dtype=np.int64)

    rows, accesses = trace.storages, trace.accesses
    return {
        "origin": str(trace.origin),
        "step_ns": trace.step_ns,
        "lines_known": has_lines(trace),
        "start_ns": trace.start_ns(np.arange(len(trace.ticks) + 1)),
        "kinds": [str(kind) for kind in kinds],
        "storages": {
            "nbytes": rows.nbytes,
            "kind": np.array([kinds[kind] for kind in rows.kind.tolist()], dtype=np.int64),
            "birth": rows.birth,
            "death": rows.death,
            "module": numbers(modules_of(trace)),
            "line": numbers(rows.line.tolist()),
            "persistent": rows.persistent,
            "scratch": rows.scratch,
            "roomless": rows.room_of != -1,
        },
        "ticks": {
            "operator": numbers(trace.ticks.operator.tolist()),
            "module": numbers(trace.ticks.module.tolist()),
        },
        "accesses": {"storage": accesses.storage, "tick": accesses.tick, "mode": accesses.mode},
        "strings": list(strings),
    }


def _named_trace(subject: Subject) -> dict[str, Any] | None:
    """Return the trace's data, with its file as a shell takes it."""
    if subject.trace is None:
        return None
    return {"file": shlex.quote(subject.file or "FILE"), **_trace(subject.trace)}


def _peak(trace: Trace) -> dict[str, Any]:
    peak = peak_of(trace)

    def column(values: list[int | None]) -> Ints:
        return np.array([-1 if value is None else value for value in values], dtype=np.int64)

    return {
        "tick": peak.tick,
        "time_ns": peak.time_ns,
        "nbytes": peak.nbytes,
        "operator": peak.operator,
        "module": peak.module,
        "kinds": _largest_first(peak.by_kind()),
        "modules": _largest_first(peak.by_module()),
        "lines": _largest_first(peak.by_line()),
        "operators": [row.operator for row in peak.residents],
        "residents": {
            "storage": column([row.storage for row in peak.residents]),
            "nbytes": column([row.nbytes for row in peak.residents]),
            "age_ns": column([row.age_ns for row in peak.residents]),
            "idle_ns": column([row.idle_ns for row in peak.residents]),
        },
    }


def _largest_first(shares: Iterable[Share]) -> list[tuple[str, int, int]]:
    """Sort by bytes, the most first, and equal ones by name."""
    rows = [(share.label, share.nbytes, share.count) for share in shares]
    return sorted(rows, key=lambda row: (-row[1], by_number(row[0])))


def _intervals(subject: Subject) -> dict[str, Any] | None:
    """Return the idle intervals, or None if there are none. With a route, it says whether each is long enough to
    move."""
    trace = subject.trace
    if trace is None or not len(idle_intervals(trace).storage):
        return None
    if subject.route is not None:
        names = ("storage", "after", "until", "idle_ns", "byte_seconds", "alone", "queued", "outlier")
        candidates = candidates_of(trace, subject.route)
        return {name: getattr(candidates, name) for name in names}
    found = idle_intervals(trace)
    nbytes = trace.storages.nbytes[found.storage]
    return {
        "storage": found.storage,
        "after": found.after,
        "until": found.until,
        "idle_ns": found.idle_ns,
        "byte_seconds": byte_seconds(found.idle_ns, nbytes),
    }


def _route(subject: Subject) -> dict[str, Any] | None:
    route, trace = subject.route, subject.trace
    if route is None or trace is None:
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


def _histogram(trace: Trace) -> dict[str, Any]:
    histogram = histogram_of(trace)
    return {"edges_ns": histogram.edges_ns, "count": histogram.count, "nbytes": histogram.nbytes}


def _distributions(trace: Trace) -> dict[str, Any]:
    found = distributions_of(trace)
    return {
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
            for row in (found.overall, *found.by_kind, *found.by_module[:_MODULES])
        ],
    }


def _answers(subject: Subject) -> dict[str, Any] | None:
    trace = subject.trace
    if trace is None:
        return None
    peak, own = peak_of(trace), own_budget(subject)
    return {
        "tree": peak_tree(peak),
        "line_tree": line_tree(peak) if has_lines(trace) else None,
        "has_modules": any(row.module for row in peak.residents),
        "own": None if own is None else asdict(own),
        "budgets": [asdict(row) for row in subject.budgets],
        "advice": list(advice(trace, peak, subject.budgets)),
        "machine": subject.machine,
        "times": subject.times,
    }


_PARTS: dict[str, Callable[[Subject], Any]] = {
    "title": title_of,
    "source": _source,
    "facts": _facts,
    "budgets": budgets_data,
    "answers": _answers,
    "trace": _named_trace,
    "memory": _of_trace(_memory),
    "peak": _of_trace(_peak),
    "histogram": _of_trace(_histogram),
    "distributions": _of_trace(_distributions),
    "intervals": _intervals,
    "route": _route,
    "timelines": timelines_data,
    "away": away_data,
    "words": words_data,
}
