"""A step's report as the difference of two readings of the native counters.

Native code reads them at the step's edge, so they add up whatever moves meanwhile. Figures that do not add up would be
a fault of ours, and never end a training. Such a figure is reported as 0, and the step says so.
"""

import resource
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING

from ebbtide.ir.run_report import KINDS, Stall, StepMode, StepReport, Traffic
from ebbtide.units import seconds

if TYPE_CHECKING:
    from ebbtide._torch import Counters


@dataclass(frozen=True, slots=True)
class Reading:
    """The clocks of the process and the counters, at one moment."""

    wall_ns: int
    cpu_ns: int
    minor_faults: int
    counters: "Counters"


def read_now(counters: "Counters") -> Reading:
    """Read the clocks beside counters that were just read."""
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return Reading(perf_counter_ns(), process_time_ns(), faults, counters)


def step_between(before: Reading, after: Reading, mode: StepMode, since_last_ns: int = 0) -> StepReport:
    """Report the step between two readings, which began so long after the end of the one before."""
    old, new = before.counters, after.counters
    odd: list[str] = []

    def since(name: str, was: int, now: int) -> int:
        if now >= was:
            return now - was
        odd.append(f"{name} went from {was} to {now}")
        return 0

    def moved(name: str, was: Sequence[int], now: Sequence[int]) -> Traffic:
        rows = zip(KINDS, was, now, strict=True)
        return Traffic.of([since(f"{name} of kind {kind}", one, other) for kind, one, other in rows])

    made_anew = since("made_anew_bytes", old["made_anew_bytes"], new["made_anew_bytes"])
    operators = since("operators", old["operators"], new["operators"])
    made_anew_s = seconds(since("made_anew_ns", old["made_anew_ns"], new["made_anew_ns"]))
    return StepReport(
        wall_s=seconds(since("wall_s in ns", before.wall_ns, after.wall_ns)),
        cpu_s=seconds(since("cpu_s in ns", before.cpu_ns, after.cpu_ns)),
        stall_s=Stall(
            room=seconds(since("stall_room_ns", old["stall_room_ns"], new["stall_room_ns"])),
            late_prefetch=seconds(since("stall_late_ns", old["stall_late_ns"], new["stall_late_ns"])),
            demand_fetch=seconds(since("stall_fetch_ns", old["stall_fetch_ns"], new["stall_fetch_ns"])),
        ),
        evicted_bytes=moved("evicted_bytes", old["evicted_bytes"], new["evicted_bytes"]),
        fetched_bytes=moved("fetched_bytes", old["fetched_bytes"], new["fetched_bytes"]),
        written_bytes=moved("written_bytes", old["written_bytes"], new["written_bytes"]),
        minor_faults=since("minor_faults", before.minor_faults, after.minor_faults),
        mode=mode,
        inconsistent="; ".join(odd),
        made_anew_bytes=made_anew,
        made_anew_s=made_anew_s,
        operators=operators,
        between_s=seconds(since_last_ns),
    )
