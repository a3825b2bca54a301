"""``ebbtide analyze`` and ``ebbtide explain`` as they are typed, with good files and with all kinds of bad ones."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ebbtide.errors import OTHER_STORAGES, EbbtideError, FileFormatError
from ebbtide.ir.base import Origin
from ebbtide.ir.files import encode, save
from ebbtide.ir.plan import Plan, PlanStatus, Stay
from ebbtide.ir.timeline import Span, SpanKind, Timeline
from ebbtide.ir.trace import Accesses, Storage, StorageKind, Storages, Tick, Ticks, Trace
from ebbtide.units import format_bytes
from tests.helpers.cli import call, said
from tests.helpers.make_analysis import GRADIENT, MOMENTUM, OUT_A, OUT_B, SCRATCH, WEIGHT_A, WEIGHT_B, by_hand
from tests.helpers.make_steps import disk, network
from tests.ir.test_report_format import REPORT

MACHINE = """
format = "ebbtide-machine"
version = 1
name = "made up"
origin = "assumed"
tiers = [{name = "fast", in_place = "all"}, {name = "slow", in_place = "nothing"}]
links = [
    {source = "fast", target = "slow", bytes_per_s = 2_000_000_000, latency_ns = 10},
    {source = "slow", target = "fast", bytes_per_s = 4_000_000_000, latency_ns = 5},
]
"""


def refused(*arguments: object) -> EbbtideError:
    """The error, of which nothing was printed before it."""
    result = call(*arguments)
    assert isinstance(result.exception, EbbtideError), (result.exception, result.output)
    assert result.output == ""
    return result.exception


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is not probed here."""
    monkeypatch.setenv("EBBTIDE_MACHINE", "dram-cxl")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    save(by_hand(), tmp_path / "step.trace")
    (tmp_path / "machine.toml").write_text(MACHINE)
    return tmp_path


def test_the_page_says_what_was_computed_by_hand(files: Path) -> None:
    page = said("analyze", files / "step.trace", "--machine", files / "machine.toml")
    order = ["Peak: 2.06 KiB", "Idle: 35 % of the bytes", "What moving would buy on made up", "Best candidates"]
    places = [page.index(text) for text in order]
    assert places == sorted(places)
    assert "300 ns into the step (tick 2, loss)" in page
    assert "between uses 360 B, after last use 134 B" in page
    assert "Of 10 intervals 4 are long enough alone (242 B away on average), 4" in page
    assert "The 1 outliers hold 34 %" in page
    assert "the peak falls to 91 %" in page.replace("\n", " ")
    best = [line.split() for line in page[places[3] :].splitlines()[3:7]]
    assert [(row[0], row[-1]) for row in best] == [("b", "queued"), ("a", "queued"), ("a", "queued"), ("b", "queued")]


def test_json_is_one_object_with_every_figure(files: Path) -> None:
    found = json.loads(said("analyze", files / "step.trace", "--machine", files / "machine.toml", "--json"))
    assert (found["format"], found["version"], found["peak"]["nbytes"]) == ("ebbtide-analysis", 2, 2112)
    assert (found["swapping"]["machine"], found["swapping"]["origin"]) == ("made up, tier slow", "assumed")
    assert found["swapping"]["curve"][-1]["peak_bytes"] == 1920
    given = json.loads(said("analyze", files / "step.trace", "--bandwidth", "2GB,4GB", "--json"))["swapping"]
    assert (given["route"]["out"]["bytes_per_s"], given["route"]["back"]["bytes_per_s"]) == (2 * 10**9, 4 * 10**9)
    alone = json.loads(said("analyze", files / "step.trace", "--json"))
    assert alone["swapping"] is None
    assert len(alone["waiting"]["bandwidths"]) == 9


def test_json_has_what_budgets_cost_on_the_machine_that_the_page_names(tmp_path: Path) -> None:
    save(network(layers=3), tmp_path / "step.trace")
    (tmp_path / "disk.toml").write_text(disk().to_toml())
    where = ("analyze", tmp_path / "step.trace", "--machine", tmp_path / "disk.toml")
    found = json.loads(said(*where, "--json"))
    peak, step_ns = found["peak"]["nbytes"], found["step_ns"]
    rows = {row["fast"]: row for row in found["budgets"]}
    assert list(rows) == ["75%", "50%", "25%", "10%"]
    page = " ".join(said(*where).split())
    for share, row in rows.items():
        assert (row["machine"], row["budget_bytes"]) == (
            disk().name,
            pytest.approx(peak * int(share[:-1]) / 100, abs=1),
        )
        if row["feasible"]:
            assert f"{share} {row['step_ns'] / step_ns:.2f}" in page
            assert row["moved_bytes"] > 0
            assert row["why_not"] == ""
        else:
            assert f"{share} no plan (it needs {format_bytes(row['least_bytes'])})" in page
            assert (row["step_ns"], row["moved_bytes"]) == (None, None)
            assert row["why_not"]
    assert {row["feasible"] for row in rows.values()} == {True, False}
    assert json.loads(said("analyze", tmp_path / "step.trace", "--json"))["budgets"][0]["machine"] != disk().name
    assert json.loads(said("analyze", tmp_path / "step.trace", "--bandwidth", "1GB", "--json"))["budgets"] is None


def test_without_a_machine_the_bandwidths_are_shown(files: Path) -> None:
    page = said("analyze", files / "step.trace")
    assert "by the bandwidth each way" in page
    assert "100 MB/s" in page
    assert "1 TB/s" in page
    assert "Best candidates" not in page


def test_without_a_choice_the_peak_is_explained(files: Path) -> None:
    assert said("explain", files / "step.trace") == said("explain", files / "step.trace", "--at-peak")


def test_lines_are_told_where_they_were_recorded(files: Path) -> None:
    for command in (("analyze",), ("explain", "--at-peak"), ("explain", "--storage", OUT_A)):
        assert "made" not in said(command[0], files / "step.trace", *command[1:])
    lines = {OUT_A: "net.py:7 Net.forward", OUT_B: "net.py:8 Net.forward", SCRATCH: "net.py:8 Net.forward"}
    storages = tuple(replace(row, line=lines.get(number, "")) for number, row in enumerate(by_hand().storages))
    save(replace(by_hand(), storages=Storages.from_rows(storages)), files / "lines.trace")
    page = [" ".join(line.split()) for line in said("analyze", files / "lines.trace").splitlines()]
    assert "net.py:8 Net.forward 1.50 KiB 73 % 2" in page
    assert "net.py:7 Net.forward 256 B 12 % 1" in page
    found = json.loads(said("analyze", files / "lines.trace", "--json"))["peak"]["by_line"]
    assert [(row["label"], row["nbytes"]) for row in found] == [(lines[OUT_B], 1536), ("", 320), (lines[OUT_A], 256)]
    text = said("explain", files / "lines.trace", "--storage", OUT_A)
    assert text.startswith("storage 3: activation of a, 256 B, made at net.py:7 Net.forward\n")
    text = said("explain", files / "lines.trace", "--at-peak")
    assert "lines that made the most of it: net.py:8 Net.forward 1.50 KiB, net.py:7 Net.forward 256 B\n" in text
    assert "1.00 KiB, made at net.py:8 Net.forward" in text


def test_a_published_trace_brings_its_machine(tmp_path: Path) -> None:
    kernels = [
        {
            "index": at,
            "name": name,
            "layer": "a",
            "duration_ns": 1000,
            "reads": reads,
            "writes": [],
            "workspace_bytes": 0,
        }
        for at, (name, reads) in enumerate((("first", [0, 1]), ("second", []), ("third", [0, 1])))
    ]
    tensors = [{"id": 0, "nbytes": 100, "kind": "global"}, {"id": 1, "nbytes": 300, "kind": "local"}]
    links = [{"name": way, "src": way[0], "dst": way[1], "bytes_per_s": 10**9, "latency_ns": 0} for way in ("gs", "sg")]
    tiers = [{"name": "g", "capacity_bytes": 500}, {"name": "s", "capacity_bytes": None}]
    value = {"format": "tiertrace/1", "tensors": tensors, "kernels": kernels, "workload": "published"}
    path = tmp_path / "published.json"
    path.write_text(json.dumps(value | {"machine": {"tiers": tiers, "links": links}}))
    page = said("analyze", path)
    assert "published: 3 operations" in page
    assert "What moving would buy on tiertrace/1, published, tier s (assumed)" in page
    assert "moving takes 300 ns + 300 ns" in said("explain", path, "--storage", 1)


def test_explaining_a_storage(files: Path) -> None:
    text = said("explain", files / "step.trace", "--storage", OUT_A, "--machine", files / "machine.toml")
    assert text.splitlines() == [
        "storage 3: activation of a, 256 B",
        "  allocated at tick 0 (embed in a), 0 s into the step; gone by tick 4 (embed_backward in a); used at 3 ticks",
        "  idle at the step's peak (tick 2)",
        "  idle 400 ns from 300 ns to 700 ns, between tick 1 (mm in b) and tick 3 (mm_backward in b); moving takes "
        "138 ns + 69 ns on made up, tier slow: fits, also when all that fit share the links",
    ]
    gradient = said("explain", files / "step.trace", "--storage", GRADIENT, "--machine", files / "machine.toml")
    assert "not there at the step's peak" in gradient
    assert (
        "moving takes 74 ns + 37 ns on made up, tier slow: too long; it would fit from 3.01 GB/s each way" in gradient
    )
    assert "idle 300 ns after its last use, until it is freed by tick 2 (loss) of the next step" in gradient
    assert "cannot move" in said("explain", files / "step.trace", "--storage", SCRATCH)
    text = said("explain", files / "step.trace", "--storage", MOMENTUM, "--bandwidth", "1GB")
    between = "between tick 5 (sgd) and tick 5 (sgd) of the next step"
    assert f"idle 1.00 us from 0 s to 1.00 us of the next step, {between}" in text
    text = said("explain", files / "step.trace", "--storage", OUT_B)
    assert "idle 200 ns after its last use" in text
    assert "never idle between two uses" in text


def test_explain_takes_a_plan_and_a_timeline_in_any_order_as_report_does(files: Path) -> None:
    save(plan_for(by_hand(), 1), files / "mine.plan")
    named = said("explain", files / "step.trace", "--storage", WEIGHT_A, "--plan", files / "mine.plan")
    assert said("explain", files / "mine.plan", files / "step.trace", "--storage", WEIGHT_A) == named
    assert named != said("explain", files / "step.trace", "--storage", WEIGHT_A)


def test_a_part_of_a_modules_name_is_enough_as_in_the_pages_filter(files: Path) -> None:
    whole = said("explain", files / "step.trace", "--module", "net.*").splitlines()
    part = said("explain", files / "step.trace", "--module", "NET.").splitlines()
    assert part[0].split(": ")[1] == whole[0].split(": ")[1]
    assert part[1:] == whole[1:]


def test_a_pipe_is_as_wide_as_columns_says(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = said("analyze", files / "step.trace")
    monkeypatch.setenv("COLUMNS", "60")
    narrow = said("analyze", files / "step.trace")
    assert max(map(len, narrow.splitlines()[2:])) <= 60 < max(map(len, wide.splitlines()[2:]))


def test_a_timeline_of_another_step_is_refused(files: Path) -> None:
    span = Span("out", SpanKind.EVICT, 0, 5, OUT_A, 1, 64)
    for number, other in enumerate((replace(span, storage=10**6), replace(span, tick=10**6))):
        save(Timeline("demand", Origin.MEASURED, 10, (other,), ()), files / f"{number}.timeline")
        error = refused("explain", files / "step.trace", files / f"{number}.timeline", "--storage", OUT_A)
        assert "is of another step than the trace's" in str(error)
    save(Timeline("demand", Origin.MEASURED, 10, (span,), ()), files / "mine.timeline")
    assert said("explain", files / "step.trace", files / "mine.timeline", "--storage", OUT_A)


def test_explaining_a_module_and_the_peak(files: Path) -> None:
    machine = ("--machine", files / "machine.toml")
    lines = said("explain", files / "step.trace", "--module", "b", *machine).splitlines()
    assert lines[0] == "b: 4 storages, 896 B in all; of the step's peak 768 B of 2.06 KiB"
    assert [line.split(":")[0].strip() for line in lines[1:5]] == [f"storage {at}" for at in (4, 1, 2, 5)]
    assert "idle 1.00 us from 0 s to 1.00 us of the next step (ticks 0 to 5): fits" in lines[3]
    assert "idle 100 ns from 900 ns to 1.00 us (ticks 4 to 5): too short" in lines[4]
    assert said("explain", files / "step.trace", "--module", "net.*", *machine).startswith("net.*: 6 storages")
    lines = said("explain", files / "step.trace", "--at-peak", *machine).splitlines()
    assert lines[0] == "the step's peak: 2.06 KiB of live tensors at tick 2 (loss), 300 ns into the step"
    assert lines[2] == "  in use at that tick: 1.50 KiB; idle: 576 B"
    # Momentum and weight A are away in tick 2; A and weight B could only come and go within it.
    assert "192 B could be away then" in lines[3]


def plan_for(trace: Trace, budget_bytes: int) -> Plan:
    """Weight A leaves after tick 0, written in tick 1, and starts back in tick 3; the momentum stays."""
    stays = [Stay(at, "fast", row.birth, row.birth, row.death) for at, row in enumerate(trace.storages)]
    stays[WEIGHT_A : WEIGHT_A + 1] = [
        Stay(WEIGHT_A, "fast", 3, 5, 8),
        Stay(WEIGHT_A, "slow", 1, 2, 5),
    ]
    return Plan("by hand", PlanStatus.FEASIBLE, trace.signature(), budget_bytes, 1050, 1050, 0, tuple(stays))


def test_explaining_a_plan_and_a_timeline(files: Path) -> None:
    trace = by_hand()
    save(plan_for(trace, 24_576), files / "step.plan")
    spans = (
        Span("fast->slow", SpanKind.EVICT, 100, 142, 1, WEIGHT_A, 64),
        Span("compute", SpanKind.STALL_LATE, 1000, 1007, 5),
        Span("slow->fast", SpanKind.FETCH, 1005, 1026, 3, WEIGHT_A, 64),
    )
    save(Timeline("by hand", Origin.SIMULATED, 1100, spans, ()), files / "step.timeline")
    options = ("--plan", files / "step.plan", "--timeline", files / "step.timeline")
    lines = said("explain", files / "step.trace", "--storage", WEIGHT_A, *options).splitlines()
    plan = "plan (by hand, feasible, budget 24.0 KiB)"
    comes = "starts back at 700 ns (tick 3) and is there from 1.00 us (tick 5) on"
    assert lines[-5:] == [
        f"  {plan}: leaves by 300 ns (tick 2), written to slow from 100 ns to 300 ns (ticks 1 to 2); {comes}",
        # A page of 4 KiB each: in tick 2 weight B, the momentum, A, B and scratch, and weight A besides, are 24 KiB.
        "  it could stay within the budget, with all else as planned",
        "  timeline (by hand, simulated): 64 B over fast->slow in 42 ns, from 100 ns into the step on",
        "  timeline (by hand, simulated): 64 B over slow->fast in 21 ns, from 1.00 us into the step on",
        "  timeline (by hand, simulated): compute waits 7 ns for a prefetch under way at 1.00 us (tick 5), which uses "
        "it",
    ]
    momentum = said("explain", files / "step.trace", "--storage", MOMENTUM, *options)
    assert f"{plan}: on fast throughout" in momentum
    assert (
        "while it is idle, live tensors reach 24.0 KiB in whole pages, which the budget holds: nothing has to leave"
        in momentum
    )
    assert "it does not move" in momentum
    save(plan_for(trace, 20_480), files / "tight.plan")
    tight = said("explain", files / "step.trace", "--storage", WEIGHT_A, "--plan", files / "tight.plan")
    assert "it would need 4.00 KiB more fast memory: a budget of 24.0 KiB" in tight
    momentum = said("explain", files / "step.trace", "--storage", MOMENTUM, "--plan", files / "tight.plan")
    assert "live tensors reach 24.0 KiB in whole pages: the plan makes room by moving others" in momentum
    assert "planned away from 300 ns to 700 ns (ticks 2 to 3)" in said(
        "explain", files / "step.trace", "--module", "a", "--plan", files / "tight.plan"
    )


def test_what_goes_over_the_steps_end_says_so(files: Path) -> None:
    trace = by_hand()
    stays = [Stay(at, "fast", row.birth, row.birth, row.death) for at, row in enumerate(trace.storages)]
    stays[MOMENTUM : MOMENTUM + 1] = [Stay(MOMENTUM, "fast", 3, 4, 7), Stay(MOMENTUM, "slow", 5, 6, 10)]
    stays[-2] = Stay(GRADIENT, "fast", 3, 3, 7)
    stays[WEIGHT_B : WEIGHT_B + 1] = [Stay(WEIGHT_B, "fast", 4, 4, 9), Stay(WEIGHT_B, "slow", 1, 2, 5)]
    made = Plan("by hand", PlanStatus.FEASIBLE, trace.signature(), 24_576, 1050, 1050, 0, tuple(stays))
    save(made, files / "over.plan")

    def explained(storage: int) -> str:
        return said("explain", files / "step.trace", "--storage", storage, "--plan", files / "over.plan")

    assert (
        "leaves by 100 ns of the next step (tick 1), written to slow from 1.00 us to 0 s of the next step (ticks 5 to "
        "0); starts back at 700 ns of the next step (tick 3) and is there from 900 ns of the next step (tick 4) on"
    ) in explained(MOMENTUM)
    gone = "leaves by 100 ns of the next step (tick 1), without a write: it is clean; does not come back"
    assert gone in explained(GRADIENT)
    # What recurs is told of this step, although the plan has it in the next.
    assert "leaves by 700 ns (tick 3), written to slow from 100 ns to 300 ns (ticks 1 to 2)" in explained(WEIGHT_B)
    text = said("explain", files / "step.trace", "--module", "b", "--plan", files / "over.plan")
    assert "planned away from 100 ns to 700 ns of the next step (ticks 1 to 3)" in text
    assert "planned away from 100 ns of the next step (tick 1) on" in text


def bad_files() -> dict[str, bytes]:
    """One for each way in which a file is refused; ``test_ir_files.py`` has all that can be wrong in one of ours."""
    trace, good = by_hand(), encode(by_hand())
    *rest, last = trace.storages
    forever = (*rest, replace(last, death=2**60))
    hoard = (*rest, replace(last, nbytes=2**61))
    old, nothing = Storage(1, StorageKind.OTHER, 0, 2**20), Accesses(*np.zeros((3, 0), dtype=np.int64))
    late = Trace("late", Origin.ASSUMED, Ticks.from_rows([Tick(2**50)]), Storages.from_rows([old]), nothing)
    return {
        "empty": b"",
        "text": b"import torch\n",
        "truncated": good[:-7],
        "JSON of another kind": b'{"format": "something"}',
        "JSON that does not end": b'{"format": "tiertrace/1", "tensors": [',
        "nested": b'{"format":' + b"[" * 100_000,
        "a plan": encode(plan_for(trace, 1)),
        "lives for ever": encode(replace(trace, storages=Storages.from_rows(forever))),
        "more bytes than there are": encode(replace(trace, storages=Storages.from_rows(hoard))),
        "longer than time": encode(late),
    }


@pytest.mark.parametrize("name", list(bad_files()))
def test_bad_traces_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.trace"
    path.write_bytes(bad_files()[name])
    for command in (("analyze", path), ("analyze", path, "--json"), ("explain", path, "--at-peak")):
        error = refused(*command)
        assert isinstance(error, FileFormatError)
        assert error.exit_code == 2
        assert str(path) in str(error)
        assert len(str(error)) < 500


def test_what_cannot_be_meant_is_refused(files: Path) -> None:
    trace, other = files / "step.trace", files / "other.plan"
    save(replace(plan_for(by_hand(), 1), signature="another step"), other)
    (files / "broken.toml").write_text("tiers = [")
    (files / "run.json").write_text(REPORT.to_json())
    explain = ("explain", trace, "--storage", 0)
    for arguments, words in {
        ("analyze", trace, "--machine", files / "broken.toml"): "not TOML",
        ("analyze", trace, "--machine", files / "none.toml"): "none.toml",
        ("analyze", trace, "--machine", files / "machine.toml", "--slow-tier", "tape"): "its tiers: fast, slow",
        ("analyze", trace, "--slow-tier", "tape"): "--machine NAME|FILE",
        ("analyze", trace, "--bandwidth", "fast"): "not a size",
        ("analyze", trace, "--bandwidth", "0"): "above 0",
        ("analyze", trace, "--bandwidth", "1GB", "--slow-tier", "slow"): "not both",
        (*explain[:3], 7): "the trace has 7",
        (*explain[:3], -1): "no storage -1",
        ("explain", trace, "--module", "aa"): "there are a",
        ("explain", trace, "--module", ""): "no storage belongs",
        (*explain, "--plan", other): OTHER_STORAGES,
        (*explain, "--plan", trace): "not a plan: `ebbtide run --save-plan` writes one",
        (
            *explain,
            "--plan",
            files / "run.json",
        ): "the report of a run, not a plan: `ebbtide run --save-plan` writes one",
        (*explain, "--plan", files / "none.plan"): "none.plan",
        (*explain, "--timeline", files / "none.timeline"): "none.timeline",
    }.items():
        assert words in str(refused(*arguments)), arguments
    for arguments in (
        ("explain", trace, "--at-peak", "--storage", 0),
        ("analyze",),
        ("analyze", files),
        ("analyze", files / "none.trace"),
        ("analyze", trace, trace),
        ("explain", trace, trace),
        ("explain", trace, other, "--plan", other),
    ):
        assert call(*arguments).exit_code == 2


def test_hostile_names_are_shown_as_text(files: Path) -> None:
    hostile = "net.\x1b[31m[bold]\r\n<b>"
    trace = by_hand()
    ticks = Ticks.from_rows(replace(row, module=hostile, operator=hostile) for row in trace.ticks)
    storages = Storages.from_rows(replace(row, module=hostile, line=hostile) for row in trace.storages)
    save(replace(trace, name=hostile, ticks=ticks, storages=storages), files / "hostile.trace")
    shown = [
        said("analyze", files / "hostile.trace", "--machine", files / "machine.toml"),
        said("explain", files / "hostile.trace", "--at-peak"),
    ]
    for text in shown:
        assert "[bold]" in text
        assert "<b>" in text
        assert not {"\x1b", "\r"} & set(text)


def test_a_plan_that_places_what_the_trace_has_not_is_refused(files: Path) -> None:
    trace = by_hand()
    good = plan_for(trace, 24_576)
    for wrong in ({"storage": 99}, {"stop": 13}):
        save(replace(good, stays=(replace(good.stays[0], **wrong), *good.stays[1:])), files / "bad.plan")
        done = call("explain", files / "step.trace", "--storage", 0, "--plan", files / "bad.plan")
        assert "that the trace does not have" in str(done.exception)


@pytest.mark.starts
def test_help_loads_nothing_slow() -> None:
    program = (
        "import sys; from ebbtide.cli import cli\n"
        "for name in ('analyze', 'explain'):\n    cli([name, '--help'], standalone_mode=False)\n"
        "assert not {'torch', 'numpy', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)


@pytest.mark.starts
def test_the_commands_start_without_torch_and_exit_with_the_errors_status(files: Path) -> None:
    program = (
        "import sys; from ebbtide.cli import main\ntry:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    for arguments, status in ((("--at-peak",), 0), (("--storage", "99"), 2)):
        command = [sys.executable, "-c", program, "explain", str(files / "step.trace"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (status, False)
        assert done.stderr.startswith("ebbtide: error: there is no storage 99") == bool(status)
