"""A run of any length has a report of bounded size, and what it leaves out is still counted."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.ir.run_report import FORMAT, VERSION, RunReport, Stall, StepMode, StepReport, Traffic
from ebbtide.report.summary import render_summary
from ebbtide.runtime.step_log import StepLog


def step(written_bytes: int) -> StepReport:
    nothing = Traffic.of((0, 0, 0, 0, 0))
    written = Traffic.of((written_bytes, 0, 0, 0, 0))
    return StepReport(1.0, 1.0, Stall(0, 0, 0), nothing, nothing, written, 0, StepMode.PLANNED)


def log_of(written: Iterable[int], first: int, last: int) -> StepLog:
    log = StepLog(first, last)
    for nbytes in written:
        log.add(step(nbytes))
    return log


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 5), st.integers(1, 5))
def test_the_first_and_the_last_are_kept_and_the_rest_is_counted(written: list[int], first: int, last: int) -> None:
    log = log_of(written, first, last)
    kept = written if len(written) <= first + last else written[:first] + written[-last:]
    assert [report.written_bytes.total for report in log.kept()] == kept
    assert len(log) == len(written)
    assert log.left_out == len(written) - len(kept)
    latest = log.latest()
    assert (latest.written_bytes.total if latest else None) == (written[-1] if written else None)


def test_the_summary_and_the_file_say_what_is_not_listed() -> None:
    log = log_of([2**20] * 7, first=2, last=3)
    report = RunReport(
        *(FORMAT, VERSION, "ebbtide", 1, 1, 1, 1, 1, 1, False, "", 0, 0, (), None, log.kept()),
        left_out_steps=log.left_out,
        written_bytes=7 << 20,
    )
    assert RunReport.from_json(report.to_json()) == report
    text = render_summary(report)
    assert "5 planned, 2 not listed; median" in text
    assert "7.00 MiB to the spill file" in text
    with pytest.raises(ValueError, match="left_out_steps"):
        RunReport(*(FORMAT, VERSION, "ebbtide", 1, 1, 1, 1, 1, 1, False, "", 0, 0, (), None, ()), left_out_steps=-1)
