"""The report's JSON: exactly the documented fields, the same after a round trip, and refused when it is not one."""

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ReportError
from ebbtide.ir.run_report import (
    FORMAT,
    KINDS,
    VERSION,
    LinkReport,
    Moment,
    OutsideStorage,
    PlanReport,
    RunReport,
    Stall,
    StepMode,
    StepReport,
    TierReport,
    Traffic,
)
from ebbtide.report.summary import render_headline, render_summary
from ebbtide.terminal import folded
from tests.helpers.paths import ROOT

STEP = StepReport(
    wall_s=2.0,
    cpu_s=3.5,
    stall_s=Stall(room=0.1, late_prefetch=0.0, demand_fetch=0.3),
    evicted_bytes=Traffic.of((10 << 20, 20 << 20, 30 << 20, 40 << 20, 0)),
    fetched_bytes=Traffic.of((1 << 20, 0, 0, 0, 0)),
    written_bytes=Traffic.of((0, 20 << 20, 0, 0, 0)),
    minor_faults=17,
    mode=StepMode.DEMAND,
)
REPORT = RunReport(
    format=FORMAT,
    version=VERSION,
    policy="demand",
    fast_bytes=1 << 30,
    arena_budget_bytes=700 << 20,
    process_peak_bytes=1000 << 20,
    unbounded_peak_bytes=4 << 30,
    arena_peak_bytes=690 << 20,
    arena_mean_bytes=600 << 20,
    budget_violated=False,
    trouble="",
    adopted_bytes=300 << 20,
    outside_bytes=5 << 20,
    outside=(OutsideStorage("a NumPy array shares its memory", 2, 5 << 20),),
    plan=None,
    steps=(replace(STEP, mode=StepMode.RECORDED), STEP),
    written_bytes=40 << 20,
    trained_parameters=34_100_000,
)


PLAN = PlanReport("ebbtide", "feasible", 690 << 20, 1.6, 1.8, 1.7, 2.5, 1)


def test_a_plan_comes_back_whole_and_its_forecasts_are_called_forecasts() -> None:
    plan = replace(PLAN, plans=2)
    planned = replace(REPORT, policy="ebbtide", plan=plan, steps=(STEP, replace(STEP, mode=StepMode.PLANNED)))
    assert RunReport.from_json(planned.to_json()) == planned
    text = render_summary(planned)
    assert "1.80 s a step expected, 1.60 s without waiting, at best 1.70 s; made in 2.50 s, the last of 2" in text
    assert "1 planned, 1 demand; median 2.00 s" in text
    assert "policy" not in text


def test_steps_far_off_their_forecast_are_remarked_on() -> None:
    for predicted_s, times in ((1.0, "2.0"), (1.3, "1.5"), (1.4, ""), (3.9, ""), (4.0, "0.5")):  # a step takes 2 s
        plan = replace(PLAN, predicted_s=predicted_s)
        text = render_summary(replace(REPORT, plan=plan, steps=(STEP, replace(STEP, mode=StepMode.PLANNED))))
        assert ("off the forecast" in text) is bool(times)
        assert f"planned steps took 2.00 s (median), {times} times the forecast" in text or not times
    assert "off the forecast" not in render_summary(replace(REPORT, plan=replace(PLAN, predicted_s=1.0)))
    other = replace(PLAN, predicted_s=0.1, plans=2)  # of another shape, such as an epoch's last batch
    text = render_summary(replace(REPORT, plan=other, steps=(STEP, replace(STEP, mode=StepMode.PLANNED))))
    assert "off the forecast" not in text


def test_steps_that_took_twice_their_forecast_are_not_called_as_fast_as_plain_pytorch() -> None:
    planned = replace(STEP, mode=StepMode.PLANNED, stall_s=Stall(0.0, 0.0, 0.0))  # it takes 2 s
    for predicted_s, as_fast in ((1.0, True), (0.9, False)):
        run = replace(REPORT, plan=replace(PLAN, predicted_s=predicted_s), steps=(planned,))
        assert ("about as fast as plain PyTorch" in render_headline(run)) is as_fast
        slower = replace(run, steps=(replace(planned, stall_s=STEP.stall_s),))
        assert "a step takes about 1.2 times as long" in render_headline(slower)


def test_nothing_is_said_of_the_time_of_short_steps() -> None:
    """A few ms of compute, of which Ebbtide's own work may be a large part."""
    for wall_s, said in ((0.02, True), (0.019, False)):
        for stalled_s in (0.0, 0.004):
            step = replace(STEP, wall_s=wall_s, stall_s=Stall(stalled_s, 0.0, 0.0), made_anew_s=0.0)
            head = render_headline(replace(REPORT, steps=(step,)))
            assert bool(re.search("as fast as plain PyTorch|times as long", head)) is said


def test_what_ebbtide_does_at_an_operator_counts_as_its_time() -> None:
    for operators, said in (
        (0, "about as fast as plain"),
        (20_000, "about as fast as plain"),
        (100_000, "about 1.1 times"),
        (10_000_000, "about 1.5 times"),
    ):
        step = replace(STEP, stall_s=Stall(0.0, 0.0, 0.0), operators=operators)  # it takes 2 s
        assert said in render_headline(replace(REPORT, steps=(step,)))


def test_a_device_s_run_says_whose_memory_it_was() -> None:
    text = render_summary(replace(REPORT, fast_bytes=None, device="cuda:1"))
    assert "on cuda:1          690 MiB of 700 MiB" in text
    assert "0.98 GiB on the host" in text
    assert "  tensors" not in text
    assert "trained for 2 steps in 690 MiB of cuda:1, within budget; plain PyTorch takes at least 4.00 GiB" in text
    assert "a day" not in text  # nothing goes to a disk
    host = TierReport("host", 1 << 30, 40 << 20, 0)
    below = replace(REPORT, device="cuda:0", tiers=(host, TierReport("spill file", None, 10 << 20, 0)))
    assert "5.00 MiB written a step, 226 GB a day" in render_headline(below)  # all went to the host, a quarter on


def test_a_bound_that_a_step_has_beaten_is_null_and_not_shown() -> None:
    planned = replace(REPORT, plan=replace(PLAN, lower_bound_s=None))
    assert RunReport.from_json(planned.to_json()) == planned
    assert "1.80 s a step expected, 1.60 s without waiting; made" in render_summary(planned)


def test_the_json_has_the_fields_of_the_records() -> None:
    value = json.loads(REPORT.to_json())
    step = value["steps"][1]
    assert [*value] == [field.name for field in fields(RunReport)]
    assert [*step] == [field.name for field in fields(StepReport)]
    assert list(step["stall_s"]) == ["room", "late_prefetch", "demand_fetch"]
    assert list(step["evicted_bytes"]) == ["total", *KINDS]
    assert step["evicted_bytes"]["total"] == 100 << 20
    assert step["mode"] == "demand"


def test_a_report_is_the_same_after_a_round_trip() -> None:
    assert RunReport.from_json(REPORT.to_json()) == REPORT
    unbounded = replace(REPORT, fast_bytes=None, arena_budget_bytes=None, steps=(), outside=(), outside_bytes=0)
    assert RunReport.from_json(unbounded.to_json()) == unbounded


def _set(path: str, new: object) -> Callable[[dict[str, Any]], object]:
    def change(value: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        holder: Any = value
        for parent in parents:
            holder = holder[int(parent) if parent.isdigit() else parent]
        holder[last] = new

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_set("version", 1), "version 1"),
        (_set("format", "other"), "'other'"),
        (_set("extra", 1), "does not know: 'extra'"),
        (lambda value: value.pop("policy"), "lacks policy"),
        (_set("steps.0.mode", "guessed"), r"report.steps\[0\].mode must be one of"),
        (_set("steps.0.minor_faults", 1.5), "minor_faults must be a int"),
        (_set("steps.0.wall_s", 1e301), "wall_s is out of range"),
        (_set("steps", [3]), r"report.steps\[0\] must be a table of fields, not int"),
        (_set("steps.0.wall_s", "2"), "wall_s must be a float"),
        (_set("steps.0.wall_s", -1), "wall_s must be a finite number"),
        (_set("steps.0.evicted_bytes.total", 1), "the kinds add up to"),
        (_set("steps", {}), "steps must be a list"),
        (_set("budget_violated", 0), "budget_violated must be a bool"),
        (_set("arena_peak_bytes", None), "arena_peak_bytes must be a int"),
        (_set("outside_bytes", 1), "outside_bytes is not the sum"),
    ],
)
def test_what_is_not_a_report_is_refused(change: Callable[[dict[str, Any]], object], complaint: str) -> None:
    value = json.loads(REPORT.to_json())
    change(value)
    with pytest.raises(ReportError, match=complaint):
        RunReport.from_json(json.dumps(value))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "{}", "[" * 100_000, "1" * 5000])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ReportError):
        RunReport.from_json(text)


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    REPORT.write(path)
    assert RunReport.from_json(path.read_text()) == REPORT
    assert list(tmp_path.iterdir()) == [path]


def test_the_summary_says_what_a_person_wants_to_know() -> None:
    text = render_summary(REPORT)
    # Plain PyTorch: 4 GiB of tensors, and the 310 MiB that the process holds besides. One step of two was not recorded:
    # it stalled for 0.4 s of its 2 s, and wrote 20 MiB. A day has 43,200 such steps.
    assert text.splitlines()[0] == (
        "Ebbtide: 34.1 M parameters trained for 2 steps in 0.98 GiB, within budget; "
        "plain PyTorch takes at least 4.26 GiB; a step takes about 1.2 times as long; "
        "20.0 MiB written a step, 906 GB a day"
    )
    slower = replace(REPORT, steps=(STEP, replace(STEP, between_s=2.0), replace(STEP, between_s=2.0)))
    assert "20.0 MiB written a step, 453 GB a day" in render_headline(slower)  # batches take as long as steps
    assert "1 recorded, 1 demand; median 2.00 s (of 1 demand step); policy demand" in text
    assert "0.98 GiB of 1.00 GiB" in text
    assert "690 MiB, mean 600 MiB; last budget 700 MiB; without a budget 4.00 GiB" in text
    assert "out  100 MiB (written 20.0 MiB)   in 1.00 MiB" in text
    assert "400 ms (20.0 %): 100 ms for memory to be freed, 300 ms for reads that nobody had started" in text
    assert "40.0 MiB to the spill file" in text
    assert "2 of 5.00 MiB: a NumPy array shares its memory" in text


def test_a_budget_that_was_kept_and_shows_little_says_so() -> None:
    nothing = Traffic.of((0, 0, 0, 0, 0))
    idle = replace(STEP, evicted_bytes=nothing, fetched_bytes=nothing, written_bytes=nothing)
    first = replace(idle, mode=StepMode.RECORDED)
    unmoved = replace(REPORT, steps=(first, idle), written_bytes=0)
    head = "Ebbtide: 34.1 M parameters trained for 2 steps in 0.98 GiB, within budget"
    assert render_headline(unmoved).startswith(f"{head}, and nothing had to move; ")
    assert render_headline(unmoved).endswith("; nothing written to the disk")
    for line in ("moved a step", "written in all"):
        assert line not in render_summary(unmoved)
    still = replace(unmoved, steps=(replace(idle, stall_s=Stall(0.0, 0.0, 0.0)),))
    assert "waited" not in render_summary(still)
    assert "about as fast as plain PyTorch" in render_summary(replace(still, unbounded_peak_bytes=690 << 20))
    for moved in (replace(unmoved, written_bytes=1), replace(unmoved, left_out_steps=3), REPORT):
        assert "within budget" in render_headline(moved)
        assert "had to move" not in render_headline(moved)
    before = replace(unmoved, fast_bytes=None, steps=(first, first), written_bytes=120 << 20, bounded_as_asked=False)
    trained = "34.1 M parameters trained for 2 steps in 0.98 GiB"
    assert render_headline(before).startswith(f"Ebbtide: NOT BOUNDED as asked, {trained}; ")
    for none in ("as long", "as fast", "within budget"):
        assert none not in render_headline(before)
    text = render_summary(replace(before, process_peak_before_bytes=2 << 30))
    assert "trained for 2 steps in 2.00 GiB; " in text
    assert "process peak       2.00 GiB; only" in text
    over = replace(before, budget_violated=True)
    assert render_headline(over).startswith(f"Ebbtide: OVER BUDGET before a step ended under it, {trained}; ")
    assert "had to move" not in render_headline(replace(unmoved, budget_violated=True))


def test_no_limit_stands_beside_a_figure_that_it_does_not_bound() -> None:
    text = render_summary(replace(REPORT, fast_bytes=None))
    assert "process peak       0.98 GiB; only the tensors are bounded" in text
    assert "690 MiB of 700 MiB, mean 600 MiB; without" in text
    fell = replace(REPORT, fast_bytes=None, arena_budget_bytes=500 << 20)
    assert "690 MiB, mean 600 MiB; last budget 500 MiB" in render_summary(fell)
    assert "690 MiB of 500 MiB, mean" in render_summary(replace(fell, budget_violated=True))
    above = replace(REPORT, process_peak_bytes=(1 << 30) + (10 << 20))
    assert "1.01 GiB of 1.00 GiB, within the 2 % tolerated" in render_summary(above)
    assert "tolerated" not in render_summary(replace(above, budget_violated=True))


def test_a_process_that_peaked_higher_before_its_budget_says_so() -> None:
    share = replace(REPORT, fast_bytes=None, process_peak_before_bytes=2 << 30)
    assert "trained for 2 steps in 0.98 GiB (2.00 GiB before the budget was in force), within" in render_headline(share)
    assert "peak       0.98 GiB, 2.00 GiB before the budget was in force; only the tensors" in render_summary(share)
    assert "of 1.00 GiB, 2.00 GiB before" in render_summary(replace(share, fast_bytes=1 << 30))
    for lower in (0, 900 << 20):
        assert (
            "before" not in render_summary(replace(share, process_peak_before_bytes=lower)).split("existed before")[0]
        )


def test_a_notebook_shows_a_line_and_every_figure_when_it_is_opened() -> None:
    shown = replace(REPORT, trouble="<b>trouble</b>")._repr_html_()
    assert "2 steps, policy demand" in shown.split("</summary>")[0]
    assert "<b>" not in shown
    inside = unescape(shown.split("<pre>")[1].removesuffix("</pre></details>"))
    assert RunReport.from_json(inside).trouble == "<b>trouble</b>"


def test_kinds_that_moved_nothing_are_left_out() -> None:
    text = render_summary(REPORT)
    assert "  activation" in text  # which only left
    assert "other " not in text


def test_a_summary_is_folded_to_a_terminal_below_its_text() -> None:
    planned = replace(REPORT, plan=replace(PLAN, links=LINKS, measured_s=1.9, taken_up_after=14), trouble="word " * 60)
    text = render_summary(planned)
    for columns in (80, 110):
        lines = folded(text, columns).splitlines()
        assert max(map(len, lines)) <= columns
        assert " ".join(" ".join(lines).split()) == " ".join(text.split())
        trouble = next(at for at, line in enumerate(lines) if line.startswith("  trouble            word"))
        assert lines[trouble + 1].startswith(" " * 21 + "word")
    assert folded(text, 1000) == "\n".join(line.rstrip() for line in text.splitlines())


def test_what_plain_pytorch_takes_is_left_out_where_it_is_not_known() -> None:
    packed = replace(
        REPORT, tiers=(TierReport("compressed", 1 << 30, 30 << 20, 0), TierReport("file", None, 10 << 20, 0))
    )
    text = render_headline(packed)  # compressed memory is in the process's peak, and three quarters went there
    assert "within budget; a step takes about 1.2 times as long as plain PyTorch's; 5.00 MiB written a step, " in text
    unknown = replace(REPORT, trained_parameters=0)
    assert render_headline(unknown).startswith("Ebbtide: trained for 2 steps in 0.98 GiB, within budget; ")


def test_below_an_error_of_the_scripts_there_is_one_line_or_two() -> None:
    unbounded = replace(REPORT, bounded_as_asked=False, trouble="too few steps")
    assert render_headline(unbounded).splitlines() == render_summary(unbounded).splitlines()[:1]
    over = replace(REPORT, budget_violated=True, trouble="the watchdog went over budget")
    assert render_headline(over).splitlines() == render_summary(over).splitlines()[:2]
    assert render_headline(replace(unbounded, steps=())) == ""


def test_the_summary_puts_trouble_first() -> None:
    text = render_summary(replace(REPORT, budget_violated=True, trouble="the watchdog went over budget"))
    assert "OVER BUDGET" in text.splitlines()[0]
    assert "the watchdog went over budget" in text.splitlines()[1]
    none = replace(REPORT, fast_bytes=None, arena_budget_bytes=None)
    assert "NO BUDGET" in render_summary(none)
    assert "NOT BOUNDED as asked" in render_summary(replace(none, bounded_as_asked=False))


def test_where_no_step_was_seen_a_budget_is_said_to_be_kept_only_where_it_was() -> None:
    kept = replace(REPORT, steps=())
    assert "those that it starts are not bounded" in render_summary(kept)
    for other in (replace(kept, budget_violated=True), replace(kept, bounded_as_asked=False)):
        assert "none was seen, so nothing was planned\n" in render_summary(other) + "\n"


def test_what_lay_under_live_storages_is_shown_where_it_is_known() -> None:
    assert "; live 3.00 MiB, mean 2.00 MiB; " in render_summary(
        replace(REPORT, resident_peak_bytes=3 << 20, resident_mean_bytes=2 << 20)
    )
    assert "; live" not in render_summary(REPORT)


@pytest.mark.parametrize("mode", [StepMode.PLANNED, StepMode.DEMAND])
def test_a_plan_is_said_to_be_followed_only_where_a_step_did(mode: StepMode) -> None:
    """Where lengths vary, say, each step allocates otherwise than the one that was planned."""
    report = replace(REPORT, plan=replace(PLAN, taken_up_after=1), steps=(STEP, replace(STEP, mode=mode)))
    text = render_summary(report)
    assert ("followed from step 2" in text) == (mode is StepMode.PLANNED) != ("no step followed it" in text)


LINKS = (
    LinkReport("dram->numa0", 18 << 20, 0.001, 11 << 20, 0.0005),
    LinkReport("compressed->numa0", 1023 << 20, 99.94, 1023 << 20, 99.94),
)


def test_the_summary_has_forecast_and_measured_of_each_link_in_one_table() -> None:
    planned = replace(REPORT, plan=replace(PLAN, links=LINKS, measured_s=1.9))
    assert RunReport.from_json(planned.to_json()) == planned
    lines = render_summary(planned).splitlines()
    first = next(at for at, line in enumerate(lines) if "forecast" in line and "measured" in line and at > 0)
    table = [line.split() for line in lines[first : first + 4]]
    assert table[0] == ["a", "step", "forecast", "measured"]
    assert table[1] == ["in", "all", "1.80", "s", "1.90", "s"]
    assert table[2] == ["dram->numa0", "18.0", "MiB", "in", "1.00", "ms", "11.0", "MiB", "in", "500", "us"]
    assert table[3][0] == "compressed->numa0"
    assert max(len(line) for line in lines[first : first + 4]) <= 80


def test_what_no_step_has_shown_is_unknown() -> None:
    unknown = replace(LINKS[0], measured_bytes=None, measured_busy_s=None)
    text = render_summary(replace(REPORT, plan=replace(PLAN, links=(unknown,))))
    assert len([line for line in text.splitlines() if line.endswith(" unknown")]) == 2


def test_every_field_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "format.md").read_text()
    section = text[text.index(f"## Reports of runs, version {VERSION}") :]
    documented = [set(re.findall("`([a-z_]+)`", row)) for row in section.splitlines() if row.startswith("| ")]
    of_run, of_step, of_tier, of_plan, of_now, of_link = documented[1:]
    assert of_now - {"moment"} == {field.name for field in fields(Moment)}
    assert of_run == {field.name for field in fields(RunReport)}
    assert of_plan == {field.name for field in fields(PlanReport)}
    assert of_step - {"steps"} == {field.name for field in fields(StepReport)}
    assert of_tier - {"tiers"} == {field.name for field in fields(TierReport)}
    assert of_link - {"links"} == {field.name for field in fields(LinkReport)}


def test_the_guide_explains_every_label_that_needs_it() -> None:
    guide = (ROOT / "docs/guide.md").read_text().split("## Reading the summary")[1].split("\n## ")[0]
    explained = set(re.findall(r"^\| ([a-z ]+) \|", guide, re.MULTILINE)) - {"label"}
    labels = set(re.findall(r'_line\("([^"]+)"', (ROOT / "src/ebbtide/report/summary.py").read_text()))
    assert explained <= {label.strip() for label in labels} | {"moved a step"}  # with its kinds in a loop
    plain = {"unfinished", "trouble", "updates", "in all", "off the forecast", "written in all"}
    assert {label.strip() for label in labels} - plain <= explained
