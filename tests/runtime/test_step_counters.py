"""A step's report is made of any two readings: what does not add up is marked, and nothing is raised."""

import json
from dataclasses import asdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ebbtide.ir.records import read_record
from ebbtide.ir.run_report import KINDS, StepMode, StepReport
from ebbtide.runtime.step_counters import Reading, step_between

NUMBER = st.integers(0, 2**64 - 1)
TRAFFIC = ("evicted_bytes", "fetched_bytes", "written_bytes")
COUNTS = ("stall_room_ns", "stall_late_ns", "stall_fetch_ns", "made_anew_bytes", "made_anew_ns", "operators")


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    counters: dict[str, Any] = {name: draw(NUMBER) for name in COUNTS}
    counters |= {name: draw(st.tuples(*[NUMBER] * len(KINDS))) for name in TRAFFIC}
    return Reading(draw(NUMBER), draw(NUMBER), draw(NUMBER), counters)  # type: ignore[arg-type]


def figures(reading: Reading) -> list[int]:
    counters: Any = reading.counters
    clocks = [reading.wall_ns, reading.cpu_ns, reading.minor_faults]
    return clocks + [counters[name] for name in COUNTS] + [n for name in TRAFFIC for n in counters[name]]


@given(readings(), readings())
def test_any_two_readings_make_a_report_that_names_what_ran_backwards(one: Reading, two: Reading) -> None:
    step = step_between(one, two, StepMode.DEMAND)
    backwards = sum(now < was for was, now in zip(figures(one), figures(two), strict=True))
    assert len(step.inconsistent.split("; ")) == max(backwards, 1)
    assert bool(step.inconsistent) == (backwards > 0)
    for name in TRAFFIC:
        before, after = one.counters[name], two.counters[name]  # type: ignore[literal-required]
        assert getattr(step, name).by_kind() == tuple(max(b - a, 0) for a, b in zip(before, after, strict=True))
    assert read_record(StepReport, json.loads(json.dumps(asdict(step))), "step") == step


def test_what_is_marked_says_which_counter_and_from_where_to_where() -> None:
    nothing: Any = dict.fromkeys(COUNTS, 0) | {name: (0,) * len(KINDS) for name in TRAFFIC}
    before = nothing | {"evicted_bytes": (0, 0, 0, 0, 528384)}
    step = step_between(Reading(0, 0, 0, before), Reading(5, 0, 0, nothing), StepMode.PLANNED)
    assert step.inconsistent == "evicted_bytes of kind other went from 528384 to 0"
    assert step.evicted_bytes.total == 0
