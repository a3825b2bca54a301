"""A step's report as the difference of two readings of the native counters."""

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ebbtide.report.run_report import Stall, StepMode, StepReport, Traffic

if TYPE_CHECKING:
    from ebbtide._torch import Counters


@dataclass(frozen=True, slots=True)
class Reading:
    """The clocks of the process and the counters, at one moment."""

    wall_ns: int
    cpu_ns: int
    minor_faults: int
    counters: "Counters"


def read_now(counters: Callable[[], "Counters"]) -> Reading:
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return Reading(time.perf_counter_ns(), time.process_time_ns(), faults, counters())


def step_between(before: Reading, after: Reading, mode: StepMode) -> StepReport:
    """What happened between two readings."""
    old, new = before.counters, after.counters
    return StepReport(
        wall_s=(after.wall_ns - before.wall_ns) / 1e9,
        cpu_s=(after.cpu_ns - before.cpu_ns) / 1e9,
        stall_s=Stall(
            room=(new["stall_room_ns"] - old["stall_room_ns"]) / 1e9,
            late_prefetch=(new["stall_late_ns"] - old["stall_late_ns"]) / 1e9,
            demand_fetch=(new["stall_fetch_ns"] - old["stall_fetch_ns"]) / 1e9,
        ),
        evicted_bytes=_moved(old["evicted_bytes"], new["evicted_bytes"]),
        fetched_bytes=_moved(old["fetched_bytes"], new["fetched_bytes"]),
        written_bytes=_moved(old["written_bytes"], new["written_bytes"]),
        minor_faults=after.minor_faults - before.minor_faults,
        mode=mode,
    )


def _moved(old: Sequence[int], new: Sequence[int]) -> Traffic:
    return Traffic.of([after - before for before, after in zip(old, new, strict=True)])
