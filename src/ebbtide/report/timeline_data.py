"""The page's timelines as plain values and columns: lanes of spans, levels, and the copies that stalls waited for."""

from typing import Any

import numpy as np

from ebbtide.ir.timeline import COMPUTE_LANE, SpanKind, Timeline
from ebbtide.ir.trace import Trace
from ebbtide.report.stalls import STALLS, stalls_of
from ebbtide.report.subject import Subject


def timelines_data(subject: Subject) -> list[dict[str, Any]]:
    """Return the fields of each timeline that ``page/report/timelines.js`` reads."""
    found: list[dict[str, Any]] = []
    for timeline in subject.timelines:
        name = f"{timeline.policy}, {timeline.origin}"
        same = sum(row["name"].startswith(name) for row in found)
        found.append(_timeline(timeline, subject.trace, f"{name} {same + 1}" if same else name))
    return found


def _timeline(timeline: Timeline, trace: Trace | None, name: str) -> dict[str, Any]:
    """Return compute and stalls as one lane each, and every link as another."""
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
    here = trace.tick(tick)
    return f"{here.operator or f'tick {tick}'}{f' in {here.module}' if here.module else ''}"
