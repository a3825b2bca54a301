"""Gathers all that is known of a step from its trace, also as JSON. ``docs/guide.md`` explains each figure."""

from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from ebbtide.analysis.curves import BandwidthPoint, MovesPoint, bandwidth_curve, mean_freed_bytes, moves_curve
from ebbtide.analysis.intervals import QUANTILES, Distributions, Histogram, distributions_of, histogram_of
from ebbtide.analysis.memory import Memory, Peak, memory_of, peak_of
from ebbtide.analysis.swapping import Candidates, Route, candidates_of
from ebbtide.ir.base import Origin
from ebbtide.ir.trace import Trace

FORMAT = "ebbtide-analysis"
VERSION = 2


@dataclass(frozen=True, slots=True, eq=False)
class Swapping:
    """The gain from moving idle storages over ``route``. ``*_bytes`` are means over the step of bytes that are away."""

    machine: str
    origin: Origin
    route: Route
    candidates: Candidates
    alone_bytes: int
    queued_bytes: int
    curve: tuple[MovesPoint, ...]

    @property
    def outlier_share(self) -> float:
        """The outliers' part of all bytes x ATI."""
        weight = self.candidates.byte_seconds
        total = float(weight.sum())
        return float(weight[self.candidates.outlier].sum()) / total if total else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """Idle intervals, and how many fit at other bandwidths. Only accesses show these."""

    distributions: Distributions
    histogram: Histogram
    bandwidths: tuple[BandwidthPoint, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """The analysis of one step. Without a route, ``swapping`` is None."""

    name: str
    origin: Origin
    step_ns: int
    ticks: int
    storages: int
    accesses: int
    memory: Memory
    peak: Peak
    waiting: Waiting
    swapping: Swapping | None


def analyze(trace: Trace, route: Route | None = None, machine: str = "", origin: Origin = Origin.ASSUMED) -> Analysis:
    """Analyze a step. ``machine`` names the machine of ``route``, and ``origin`` says how its figures were obtained."""
    return Analysis(
        trace.name,
        trace.origin,
        trace.step_ns,
        len(trace.ticks),
        len(trace.storages),
        len(trace.accesses),
        memory_of(trace),
        peak_of(trace),
        waiting_of(trace),
        swapping_of(trace, route, machine, origin) if route is not None else None,
    )


def waiting_of(trace: Trace) -> Waiting:
    return Waiting(distributions_of(trace), histogram_of(trace), bandwidth_curve(trace))


def swapping_of(trace: Trace, route: Route, machine: str, origin: Origin) -> Swapping:
    candidates = candidates_of(trace, route)
    return Swapping(
        machine,
        origin,
        route,
        candidates,
        mean_freed_bytes(trace, candidates, candidates.alone),
        mean_freed_bytes(trace, candidates, candidates.queued),
        moves_curve(trace, candidates),
    )


def to_json(analysis: Analysis) -> dict[str, Any]:
    """Return plain values under the names of the fields; columns become lists."""
    plain: dict[str, Any] = _plain(analysis)
    peak, memory = analysis.peak, analysis.memory
    plain["peak"] |= _plain(
        {"by_kind": peak.by_kind(), "by_module": peak.by_module(), "by_operator": peak.by_operator()}
    )
    plain["peak"]["by_line"] = _plain(peak.by_line())
    plain["memory"] |= {
        "mean_live_bytes": memory.mean(memory.live),
        "mean_idle_bytes": {str(reason): memory.mean(level) for reason, level in memory.idle.items()},
    }
    return {"format": FORMAT, "version": VERSION, "quantiles": list(QUANTILES), **plain}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, Enum) else value
