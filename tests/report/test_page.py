"""The page without a browser: what is packed comes out again, what stalls waited for, and what the command refuses."""

import base64
import html
import json
import re
import struct
import zlib
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.cli import cli
from ebbtide.errors import EbbtideError, ReportError
from ebbtide.ir.base import Origin
from ebbtide.ir.files import save
from ebbtide.ir.run_report import LinkReport, PlanReport, RunReport, StepMode
from ebbtide.ir.timeline import Level, SpanKind, Timeline
from ebbtide.report.packing import pack
from ebbtide.report.page import render_page
from ebbtide.report.page_data import page_data
from ebbtide.report.ranks import ROWS, column
from ebbtide.report.stalls import STALLS, Awaited, stalls_of
from ebbtide.report.subject import Subject
from ebbtide.report.summary import render_summary
from ebbtide.units import MIB, format_time
from tests.helpers.make_ir import MACHINE, timelines
from tests.helpers.make_page import IMAGE, LINK, MS, SCRIPT, plan, step, subject, timeline
from tests.ir.test_report_format import REPORT


def unpack(text: str) -> Any:
    """What ``page/shared/data.js`` does."""
    data = zlib.decompress(base64.b64decode(text))
    n_directory, n_text = struct.unpack_from("<II", data)
    at = 8 + n_directory + -n_directory % 8
    document, at = data[at : at + n_text], at + n_text + -n_text % 8
    columns = []
    for kind, length in json.loads(data[8 : 8 + n_directory]):
        column = np.frombuffer(data, dtype=f"<{kind}", count=length, offset=at)
        at += column.nbytes + -column.nbytes % 8
        columns.append(column.tolist())
    assert at == len(data)

    def revive(value: dict[str, Any]) -> Any:
        return columns[value["$column"]] if "$column" in value else value

    return json.loads(document, object_hook=revive)


@given(
    st.lists(st.lists(st.integers(-(2**53), 2**53))),
    st.lists(st.lists(st.booleans())),
    st.lists(st.floats(allow_nan=False, allow_infinity=False)),
    st.text(),
)
def test_what_is_packed_comes_out_again(
    ints: list[list[int]], flags: list[list[bool]], floats: list[float], text: str
) -> None:
    columns = [np.array(row, dtype=np.int64) for row in ints] + [np.array(row, dtype=bool) for row in flags]
    value = {"text": text, "columns": columns, "floats": np.array(floats, dtype=np.float64)}
    packed = pack(value)
    assert unpack(packed) == {"text": text, "columns": [*ints, *flags], "floats": floats}
    assert re.fullmatch(r"[A-Za-z0-9+/=]*", packed)


def test_the_page_names_nothing_that_it_would_have_to_load() -> None:
    page = render_page(subject())
    assert len(page) < 2_500_000
    outside_scripts = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)
    assert re.findall(r"(?:src|href)\s*=\s*(\S*)", outside_scripts) == ['"data:,">']
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|https?://", page)
    assert page.count("<script") == 3
    for name in (SCRIPT, IMAGE, LINK):
        assert name not in page


def test_the_page_carries_the_licence_of_the_library_that_it_carries() -> None:
    page = render_page(subject())
    (shown,) = re.findall(r'<pre id="licence">(.*?)</pre>', page, re.DOTALL)
    packed = re.findall(r'<script type="text/plain" id="library">(.*?)</script>', page)[0]
    library = zlib.decompress(base64.b64decode(packed)).decode()
    (copyright_line,) = re.findall(r"Copyright .*?, Plotly, Inc\.", library[:1000])
    assert copyright_line in html.unescape(shown)
    licences = [file for file in distribution("plotly").files or () if file.name == "LICENSE.txt"]
    granted = re.findall(r"Permission is hereby.*", licences[0].read_text().strip(), re.DOTALL)[0]  # years may go on
    assert html.unescape(shown).strip().endswith(granted)


def test_the_page_has_the_step_as_it_is() -> None:
    data = unpack(pack(page_data(subject())))
    assert data["trace"]["storages"]["nbytes"] == [4 * MIB, 8 * MIB, 2 * MIB, 16 * MIB]
    assert [data["trace"]["strings"][name] for name in data["trace"]["storages"]["module"]][:2] == [SCRIPT, IMAGE]
    assert data["memory"]["live"] == [mib * MIB for mib in (6, 12, 12, 28, 12, 12, 12, 12, 6, 6)]
    assert (data["peak"]["nbytes"], data["peak"]["time_ns"]) == (28 * MIB, 3 * MS)
    assert data["peak"]["residents"]["storage"] == [3, 1, 0]
    # The activation waits from the end of tick 2 to tick 7: 4 ms of 8 MiB. The parameter's longest wait is as long.
    rows = zip(*(data["intervals"][name] for name in ("storage", "after", "until", "idle_ns")), strict=True)
    assert sorted(rows) == [
        (0, 1, 6, 4 * MS),
        (0, 6, 9, 2 * MS),
        (0, 9, 11, MS),
        (1, 1, 2, 0),
        (1, 2, 7, 4 * MS),
        (2, 8, 9, 0),
    ]
    assert data["intervals"]["storage"][0] == 1
    assert data["budgets"] == [["plan's budget", 29 * MIB]]
    assert data["away"] == {"storage": [1], "gone": [4], "back": [5], "tier": ["file"]}
    assert data["trace"]["lines_known"] is False
    assert dict(data["facts"])["storages"] == "4"
    assert dict(data["facts"])["step, the plan's forecast"] == "12.0 ms"


def test_the_plans_budget_stands_beside_the_runs() -> None:
    run = replace(REPORT, arena_budget_bytes=30 * MIB)
    data = page_data(Subject(step(), plan(), (timeline(),), run))
    assert data["budgets"] == [("budget", 30 * MIB), ("plan's budget", 29 * MIB)]
    assert page_data(Subject(step()))["budgets"] == []
    assert dict(data["facts"])["run's budget"] == "30.0 MiB"


def test_the_words_of_a_page_are_those_that_it_uses() -> None:
    planned, recorded = ({word for word, _ in page_data(what)["words"]} for what in (subject(), Subject(step())))
    assert planned - recorded == {"plan", "stall", "no plan is faster than"}
    assert "tier" in recorded
    assert "line" not in planned


def test_stalls_wait_for_the_copies_that_their_operation_needs() -> None:
    late, room = stalls_of(timeline(), step())
    assert (late.kind, late.start_ns, late.stop_ns, late.tick) == (SpanKind.STALL_LATE, 7 * MS, 8 * MS, 7)
    assert late.awaited == (Awaited(1, "file->dram", 8 * MIB),)  # the parameter comes too, but tick 7 does not use it
    assert room.awaited == (Awaited(0, "dram->file", 4 * MIB),)
    without_trace, _ = stalls_of(timeline())
    assert {row.storage for row in without_trace.awaited} == {0, 1}
    spans = tuple(replace(span, storage=0) if span.kind in STALLS else span for span in timeline().spans)
    named = replace(timeline(), spans=spans)
    assert [row.storage for stall in stalls_of(named, step()) for row in stall.awaited] == [0, 0]
    assert [row.nbytes for stall in stalls_of(named, step()) for row in stall.awaited] == [4 * MIB, 4 * MIB]


@given(timelines())
def test_stalls_of_any_timeline_are_as_long_as_its_stalls(found: Timeline) -> None:
    stalls = stalls_of(found)
    assert sum(stall.stop_ns - stall.start_ns for stall in stalls) == found.time_ns(*STALLS)
    for stall in stalls:
        kind = SpanKind.EVICT if stall.kind is SpanKind.STALL_ROOM else SpanKind.FETCH
        copies = [span for span in found.spans if span.kind is kind]
        meanwhile = [span for span in copies if span.start_ns < stall.stop_ns and span.stop_ns > stall.start_ns]
        assert len(stall.awaited) == len(meanwhile)


def test_parts_of_different_steps_are_refused() -> None:
    with pytest.raises(ReportError, match="nothing to draw"):
        Subject()
    with pytest.raises(ReportError, match="a step with other storages"):
        Subject(step(), replace(plan(), signature="x"))
    spans = tuple(replace(span, storage=7) if span.storage else span for span in timeline().spans)
    far = replace(timeline(), spans=spans)
    with pytest.raises(ReportError, match="another step"):
        Subject(step(), None, (far,))


# ---- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(step(), tmp_path / "step.trace")
    save(plan(), tmp_path / "step.plan")
    save(timeline(), tmp_path / "step.timeline")
    REPORT.write(tmp_path / "run.json")
    (tmp_path / "machine.toml").write_text(MACHINE.to_toml())
    return tmp_path


def report(folder: Path, *arguments: str) -> Result:
    named = ["report", *(str(folder / name) if "." in name else name for name in arguments)]
    return CliRunner(env={"EBBTIDE_MACHINE": str(folder / "machine.toml")}).invoke(cli, named)


def test_a_run_alone_is_printed_as_text(folder: Path) -> None:
    done = report(folder, "run.json")
    assert done.exit_code == 0
    assert "process peak" in done.output


def test_a_page_is_written_of_all_files_together(folder: Path) -> None:
    names = ("run.json", "step.timeline", "step.plan", "step.trace")
    done = report(folder, *names, "-o", "page.html", "--perfetto", "out.json")
    assert done.exit_code == 0, done.output
    page = (folder / "page.html").read_text()
    data = unpack(re.findall(r'id="data">([^<]*)<', page)[0])
    assert [row["origin"] for row in data["timelines"]] == ["simulated", "measured"]
    assert data["route"]["tier"] == "cxl"
    assert dict(data["facts"])["run"].startswith("1 steps" if len(REPORT.steps) == 1 else f"{len(REPORT.steps)} steps")
    assert json.loads((folder / "out.json").read_text())["traceEvents"]


def bound_shown(measured: Timeline | None = None, run: RunReport | None = None, bound_ns: int = 10 * MS) -> str:
    timelines = () if measured is None else (measured,)
    shown = Subject(step(), replace(plan(), lower_bound_ns=bound_ns), timelines, run)
    return dict(page_data(shown)["facts"])["no plan is faster than"]


def test_a_bound_that_a_measured_step_has_beaten_is_not_shown_as_one() -> None:
    found = timeline()
    beaten = {"bound_ns": found.step_ns + 1}
    assert bound_shown(found, bound_ns=found.step_ns) == format_time(found.step_ns / 1e9)
    assert bound_shown(found, **beaten).startswith("unknown: a measured step was faster")
    assert bound_shown(timeline(Origin.SIMULATED), **beaten) == format_time(beaten["bound_ns"] / 1e9)
    with_more_memory = replace(found, levels=(Level("dram", 0, plan().budget_bytes + 1),))
    assert bound_shown(with_more_memory, **beaten) == format_time(beaten["bound_ns"] / 1e9)


def test_nor_one_that_a_step_of_the_run_has_beaten() -> None:
    made = PlanReport("ebbtide", "feasible", plan().budget_bytes, 0.01, 0.012, None, 0.0, 1)
    fast = replace(REPORT.steps[-1], mode=StepMode.PLANNED, wall_s=0.009)
    run = replace(REPORT, plan=made, steps=(fast,))
    assert bound_shown(run=run).startswith("unknown")
    for other in (
        replace(run, steps=(replace(fast, mode=StepMode.DEMAND),)),  # followed no plan
        replace(run, plan=replace(made, plans=2)),  # perhaps of another shape
        replace(run, plan=replace(made, budget_bytes=plan().budget_bytes + 1)),
        replace(run, plan=None),
    ):
        assert bound_shown(run=other) == format_time(0.01)


def test_each_links_forecast_stands_with_what_was_measured() -> None:
    links = (LinkReport("dram->numa0", 18 << 20, 0.001, 11 << 20, 0.0005), LinkReport("numa0->dram", 1 << 20, 0.001))
    made = PlanReport("ebbtide", "feasible", plan().budget_bytes, 0.01, 0.012, None, 0.0, 1, links=links)
    facts = dict(page_data(Subject(None, None, (timeline(),), replace(REPORT, plan=made)))["facts"])
    assert facts["dram->numa0, forecast"] == "18.0 MiB in 1.00 ms"
    assert facts["dram->numa0, measured"] == "11.0 MiB in 500 us"
    assert facts["numa0->dram, measured"] == "unknown"


def test_a_run_has_one_median_and_says_of_which_steps_it_is() -> None:
    first = REPORT.steps[-1]
    modes = (StepMode.RECORDED, StepMode.RECORDED, StepMode.PLANNED, StepMode.PLANNED)
    times_s = zip(modes, (9.0, 8.0, 1.0, 2.0), strict=True)
    run = replace(REPORT, steps=tuple(replace(first, mode=mode, wall_s=wall_s) for mode, wall_s in times_s))

    def shown(run: RunReport) -> dict[str, str]:
        return dict(page_data(Subject(None, None, (timeline(),), run))["facts"])

    assert shown(run)["median of 2 planned steps, measured"] == "1.50 s"
    assert "2 recorded, 2 planned; median 1.50 s (of 2 planned steps)" in render_summary(run)
    assert column(run)[ROWS.index("time a step")] == "1.50 s"
    mixed = replace(run, steps=(*run.steps, replace(first, mode=StepMode.DEMAND, wall_s=3.0)))
    assert shown(mixed)["median of 3 steps not recorded, measured"] == "2.00 s"
    recorded = replace(run, steps=run.steps[:2])
    assert shown(recorded)["median of 2 recorded steps, measured"] == "8.50 s"
    assert "2 recorded; median 8.50 s; policy" in render_summary(recorded)
    assert not [name for name in shown(replace(run, steps=())) if "median" in name]


def test_a_timeline_alone_has_a_page(folder: Path) -> None:
    assert report(folder, "step.timeline", "-o", "page.html").exit_code == 0
    assert (folder / "page.html").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("step.trace",), "say with -o"),
        (("step.plan", "-o", "page.html"), "name the trace's file too"),
        (("step.trace", "step.trace", "-o", "page.html"), "a page for each"),
        (("run.json", "-o", "page.html"), "nothing to draw"),
        (("step.trace", "-o", "no.where/page.html"), "No such file"),
        (("missing.trace", "-o", "page.html"), "does not exist"),
        (("garbage.bin", "-o", "page.html"), "garbage.bin"),
        (("cut.trace", "-o", "page.html"), "cut.trace"),
        (("empty.trace", "-o", "page.html"), "empty.trace"),
        (("step.trace", "-o", "page.html", "--slow-tier", "tape"), "tape"),
        (("step.trace", "-o", "page.html", "--bandwidth", "1GB", "--machine", "machine.toml"), "not both"),
    ],
)
def test_what_cannot_be_shown_is_refused_and_leaves_nothing(
    folder: Path, arguments: tuple[str, ...], says: str
) -> None:
    (folder / "garbage.bin").write_bytes(bytes(range(256)))
    (folder / "cut.trace").write_bytes((folder / "step.trace").read_bytes()[:-5])
    (folder / "empty.trace").write_bytes(b"")
    done = report(folder, *arguments)
    assert done.exit_code != 0
    text = str(done.exception) if isinstance(done.exception, EbbtideError) else done.output
    assert isinstance(done.exception, EbbtideError | SystemExit)
    assert says in text
    assert not list(folder.glob("*page.html*"))
