"""The benchmark's order of runs and its arithmetic, without training: what the table says follows from the records."""

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.step import calibrate, children, figures, measure
from bench.step.cells import CELLS, TECHNIQUES, Cell, Door, cell
from bench.step.children import CellFailed, Place
from bench.step.nets import NETS, Gpt
from bench.step.results import Results
from tests.helpers.paths import ROOT

NAMES = ["gpt2-bf16/25%", "gpt2-bf16/50%", "gpt2-bf16/stock", "resnet50/25%"]


def outcome(wall_s: float, steps: int, report: dict[str, Any] | None = None, weights: str = "w") -> dict[str, Any]:
    """What a child would have written whose every step took as long."""
    columns = ("cpu", "minor_faults", "read_bytes", "written_bytes", "swapped_in_bytes", "swapped_out_bytes")
    return {
        "took_s": wall_s * steps,
        "mean_resident_bytes": 10**9,
        "peak_bytes": 2 * 10**9,
        "losses": [float(n).hex() for n in range(steps)],
        "weights_sha256": weights,
        "optimizer_sha256": "m",
        "steps": {"wall": [wall_s] * steps} | {name: [0] * steps for name in columns},
        "report": report,
    }


class Fake:
    """Stands for children: a drift that grows from run to run, and a speed for each cell."""

    def __init__(self, failing: str = "") -> None:
        self.order: list[str] = []
        self._failing = failing

    def run(self, found: Cell, steps: int, place: Place, peak_at_budget: int | None) -> dict[str, Any]:
        self.order.append(found.name)
        if found.name == self._failing:
            raise CellFailed("no room\nand more")
        slower = {"25%": 1.2, "50%": 1.1, "stock": 1.5}.get(found.way, 1.0)
        return outcome(slower * 1.01 ** len(self.order), steps)


def benchmark(fake: Fake, path: Path, pairs: int, monkeypatch: pytest.MonkeyPatch) -> measure.Benchmark:
    monkeypatch.setattr(measure, "run_child", fake.run)
    monkeypatch.setattr(measure.Benchmark, "probe", lambda self: None)
    place = Place(path, path, None, 0, 60)
    return measure.Benchmark(Results.open(path / "results.jsonl.gz", {}), place, pairs)


def rounds(fake: Fake, folder: Path, pairs: int, monkeypatch: pytest.MonkeyPatch) -> Results:
    chosen = [cell(name) for name in NAMES]
    benchmark(fake, folder, pairs, monkeypatch).run(chosen, math.inf, 1)
    return Results.read(folder / "results.jsonl.gz")


def test_the_two_runs_of_a_pair_are_neighbours_and_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = rounds(Fake(), tmp_path, 3, monkeypatch)
    for name in NAMES:
        paired = [(number, run["baseline"]) for number, run in enumerate(results.runs) if run["cell"] == name]
        assert all(abs(number - tuned) == 1 for number, tuned in paired)
        assert all(results.runs[tuned]["cell"] == f"{name.split('/')[0]}/tuned" for _, tuned in paired)
        before = [number < tuned for number, tuned in paired]
        assert before in ([True, False, True], [False, True, False])


def test_what_is_measured_is_skipped_and_the_rest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds(Fake(), tmp_path, 1, monkeypatch)
    again = Fake()
    rounds(again, tmp_path, 1, monkeypatch)
    assert again.order == []
    results = rounds(again, tmp_path, 2, monkeypatch)
    assert {name: len(results.of(name)) for name in NAMES} == dict.fromkeys(NAMES, 2)


def test_a_cell_that_fails_is_recorded_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = rounds(Fake(failing="gpt2-bf16/50%"), tmp_path, 2, monkeypatch)
    assert results.failures == {"gpt2-bf16/50%": "no room\nand more"}
    assert [len(results.of(name)) for name in NAMES] == [2, 0, 2, 2]


def test_without_a_tuned_run_there_are_runs_and_no_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = rounds(Fake(failing="gpt2-bf16/tuned"), tmp_path, 2, monkeypatch)
    row = figures.row(results, cell("gpt2-bf16/25%"))
    assert row is not None
    assert row.step_s > 0
    assert row.over_tuned is None
    assert row.same_bits == ""


def test_minutes_bound_the_cells_so_that_each_gets_its_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def slow(found: Cell, steps: int, place: Place, peak_at_budget: int | None) -> dict[str, Any]:
        clock[0] += 60
        return outcome(1.0, steps)

    running = benchmark(Fake(), tmp_path, 12, monkeypatch)
    monkeypatch.setattr(measure, "run_child", slow)
    monkeypatch.setattr(measure.time, "monotonic", lambda: clock[0])
    running.run(list(CELLS), 30 * 60, 3)
    results = Results.read(tmp_path / "results.jsonl.gz")
    pairs = {run["cell"]: len(results.of(run["cell"])) for run in results.runs if not run["cell"].endswith("/tuned")}
    assert clock[0] <= 30 * 60
    assert set(pairs.values()) == {3}
    assert list(pairs) == [found.name for found in CELLS[: len(pairs)]]
    assert len(pairs) >= 5


def test_drift_cancels_in_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = rounds(Fake(), tmp_path, 6, monkeypatch)
    row = figures.row(results, cell("gpt2-bf16/50%"))
    assert row is not None
    assert row.over_tuned is not None
    assert row.over_tuned.median == pytest.approx(1.1, rel=0.011)  # neighbours are one drift apart
    assert row.over_tuned.low >= 1.1 / 1.0101
    assert row.over_tuned.high <= 1.1 * 1.0101
    assert row.over_stock is not None
    assert row.over_stock.median == pytest.approx(1.1 / 1.5, rel=0.021)


@pytest.mark.parametrize("number", [5, 7, 13])
def test_the_interval_is_the_exact_bootstrap_of_the_median(number: int) -> None:
    """Of n sorted values, a resample's median is at most the k-th with the chance that most of n draws are (n odd)."""
    values = [1 + 0.01 * k * k for k in range(1, number + 1)]

    def chance(k: int) -> float:
        p = k / number
        return sum(math.comb(number, j) * p**j * (1 - p) ** (number - j) for j in range((number + 1) // 2, number + 1))

    found = figures.Paired.of(list(reversed(values)))
    assert found is not None
    for quantile, bound in ((0.025, found.low), (0.975, found.high)):
        exact = next(k for k in range(1, number + 1) if chance(k) >= quantile)
        assert bound == values[exact - 1]
    assert found.median == values[number // 2]


def test_few_pairs_give_their_range() -> None:
    found = figures.Paired.of([1.2, 1.0])
    assert found == figures.Paired(1.1, 1.0, 1.2, 2)
    assert figures.Paired.of([]) is None


def test_the_bound_is_computing_or_moving(tmp_path: Path) -> None:
    steps = [{"stall_s": 0.1, "fetched_bytes": 4 * 10**9, "written_bytes": 2 * 10**9}] * 4
    ours = outcome(3.0, 4, {"steps": steps}) | {"bandwidth": {"read": 4e9, "write": 1e9, "both": 5e9}}
    assert figures.bound_s(ours, outcome(1.5, 4)) == 2.0  # 2 GB written at 1 GB/s
    assert figures.bound_s(ours, outcome(2.5, 4)) == 2.5
    ours["bandwidth"] = {"read": 4e9, "write": 4e9, "both": 2e9}
    assert figures.bound_s(ours, outcome(1.5, 4)) == 3.0  # 6 GB on one shared link


@pytest.mark.parametrize(("step_s", "shown"), [(2.1, 2.0), (1.9, None)])
def test_a_bound_that_a_run_has_beaten_is_not_shown(step_s: float, shown: float | None, tmp_path: Path) -> None:
    still = {"steps": [{"stall_s": 0.0, "fetched_bytes": 0, "written_bytes": 0, "evicted_bytes": 0}] * 4, "plan": None}
    bandwidth = {"bandwidth": {"read": 1e9, "write": 1e9, "both": 1e9}}
    results = Results(tmp_path / "results.jsonl.gz", {})
    for pair, ours_s in enumerate((2.2, step_s)):
        tuned = results.add(outcome(2.0, 4) | {"cell": "resnet50/tuned", "baseline": None, "pair": pair})
        results.add(outcome(ours_s, 4, still) | bandwidth | {"cell": "resnet50/25%", "baseline": tuned, "pair": pair})
    row = figures.row(results, cell("resnet50/25%"))
    assert row is not None
    assert row.bound_s == shown
    assert (row.over_bound is None) == (shown is None)


def test_bits_are_compared_as_far_as_both_ran(tmp_path: Path) -> None:
    def bits(run: dict[str, Any], tuned: dict[str, Any]) -> str:
        records = [run | {"cell": "resnet50/25%", "pair": 0, "baseline": 1}, tuned | {"cell": "resnet50/tuned"}]
        row = figures.row(
            Results(tmp_path, {}, [{"baseline": None, **record} for record in records]), cell("resnet50/25%")
        )
        assert row is not None
        return row.same_bits

    assert bits(outcome(1, 8), outcome(1, 8)) == "yes"
    assert bits(outcome(1, 8, weights="other"), outcome(1, 8)) == "NO"
    assert bits(outcome(1, 8), outcome(1, 5, weights="after 5")) == "losses"
    assert bits(outcome(1, 8) | {"losses": ["0x1p+0"] * 8}, outcome(1, 5)) == "NO"


def test_runs_whose_memory_nobody_sampled_have_the_others_mean(tmp_path: Path) -> None:
    def mean_bytes(*samples: int | None) -> float | None:
        runs = [outcome(1, 5) | {"cell": "resnet50/stock", "mean_resident_bytes": sample} for sample in samples]
        row = figures.row(Results(tmp_path, {}, [{"baseline": None, **run} for run in runs]), cell("resnet50/stock"))
        assert row is not None
        return row.mean_bytes

    assert mean_bytes(10**9, None, 3 * 10**9) == 2 * 10**9
    assert mean_bytes(None) is None


@pytest.mark.starts
def test_the_table_shows_rows_and_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = rounds(Fake(failing="gpt2-bf16/50%"), tmp_path, 2, monkeypatch)
    results.machine = {"cpu": "a CPU", "cores": 2, "memory_bytes": 24 * 10**9, "kernel": "6.1", "torch": "2.13"}
    results.write()
    command = [sys.executable, "-m", "bench.step.table", str(results.path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = {line.split("|")[1].strip(): line for line in done.stdout.splitlines() if line.startswith("| ")}
    assert "yes" in lines["Ebbtide 25%"]
    assert "Ebbtide 50% [1]" in lines
    assert "- `gpt2-bf16/50%`: no room" in done.stdout


@pytest.mark.starts
def test_a_published_page_names_its_build_and_disk_and_keeps_the_raw_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = rounds(Fake(), tmp_path, 2, monkeypatch)
    results.machine = {"cpu": "a CPU", "cores": 2, "memory_bytes": 24 * 10**9, "kernel": "6.1", "torch": "2.13"}
    results.machine["commit"] = "abc1234"
    for run in results.runs:
        run["bandwidth"] = {"read": 2e9, "write": 3e9, "both": 2.5e9}
    results.write()
    command = [sys.executable, "-m", "bench.step.table", str(results.path), "--publish", str(tmp_path / "out")]
    page = Path(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip())
    assert page.name == f"{results.runs[0]['began'][:10]}_abc1234.md"
    assert "read 2.0 to 2.0 GB/s" in page.read_text()
    assert "| Ebbtide 25%" in page.read_text()
    assert Results.read(page.with_suffix(".jsonl.gz")).runs == results.runs


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (["step 1", "ebbtide: error: too small", "Ebbtide: 2 steps", "  stall 0 s"], "ebbtide: error: too small"),
        (["Traceback:", "KeyError: 'x'", ""], "KeyError: 'x'"),
        ([], "it printed nothing"),
    ],
)
def test_a_failed_runs_reason_is_its_error(tmp_path: Path, printed: list[str], reason: str) -> None:
    (tmp_path / "log").write_text("\n".join(printed))
    assert children._reason(tmp_path / "log") == reason


@pytest.mark.parametrize(
    "content",
    [b"", b'{"format": "something"}', gzip.compress(b'{"format": "something"}'), gzip.compress(b"{}\n")[:-9]],
    ids=["empty", "not compressed", "of another format", "cut short"],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(ValueError, match="no results of this benchmark"):
        Results.read(tmp_path / "other")


def test_a_run_paired_with_another_net_is_refused(tmp_path: Path) -> None:
    results = Results.open(tmp_path / "results.jsonl.gz", {})
    results.add({"cell": "gpt-210M/tuned", "baseline": None})
    results.add({"cell": "gpt-210M/25%", "baseline": 0})
    assert len(Results.read(results.path).runs) == 2
    results.add({"cell": "gpt-400M/25%", "baseline": 0})
    with pytest.raises(ValueError, match="pairs a run of gpt-400M/25% with one of gpt-210M/tuned"):
        Results.read(results.path)


def test_a_file_of_calibrations_is_gone_on_with_and_makes_no_table_over_tuned(tmp_path: Path) -> None:
    results = Results.open(tmp_path / "results.jsonl.gz", {})
    results.add({"cell": "gpt-small/100%", "baseline": None})
    results.add({"cell": "gpt-small/25%", "baseline": 0})
    assert len(Results.open(results.path, {}, beside=("tuned", calibrate.RESIDENT)).runs) == 2
    with pytest.raises(ValueError, match="pairs a run of gpt-small/25% with one of gpt-small/100%"):
        Results.read(results.path)


def test_cells_and_networks_are_what_their_names_say() -> None:
    from bench.step import techniques
    from bench.step.train import gpt_model

    assert set(TECHNIQUES) | {"plain"} == set(techniques.TECHNIQUES)
    assert len({found.name for found in CELLS}) == len(CELLS)
    assert all(cell(found.name) == found for found in CELLS)
    assert cell("gpt-1B/state/3").fast_argument == str(NETS["gpt-1B"].shape.state_bytes // 3)
    assert cell("gpt-210M/swap-state/3").door is Door.SWAP
    within = cell("gpt-210M/zero-offload-state/3")
    assert (within.door, within.technique, within.fast) == (Door.DEEPSPEED, "cpu", "state/3")
    orders = [cell(f"gpt-210M/{order}state/3") for order in ("", "in-backward-", "deferred-")]
    assert len({found.fast_argument for found in orders}) == 1
    assert [found.order for found in orders] == ["as-written", "in-backward", "deferred"]
    with pytest.raises(ValueError, match="names no cell"):
        cell("gpt2-bf16/2O%")
    small = NETS["gpt-small"].shape
    assert isinstance(small, Gpt)
    assert sum(parameter.numel() for parameter in gpt_model(small).parameters()) == small.parameters


def reported(
    step_s: float, moved: int, predicted_s: float, recorded_s: float, status: str = "feasible", mode: str = "planned"
) -> dict[str, Any]:
    """A run of Ebbtide whose report is as given."""
    step = {"wall_s": step_s, "stall_s": 0.1 * step_s, "mode": mode, "evicted_bytes": moved, "fetched_bytes": moved}
    warm_up = {**step, "wall_s": 9.0, "mode": "recorded"}
    plan = {"predicted_s": predicted_s, "step_s": recorded_s, "status": status}
    return outcome(step_s, 5, {"steps": [warm_up, *[step] * 4], "plan": plan})


def calibrated(
    *runs: tuple[str, dict[str, Any], dict[str, Any]], folder: Path
) -> tuple[Results, list[calibrate.Row | None], list[str]]:
    results = Results(folder / "calibration.jsonl.gz", {"cpu": "a CPU"})
    for name, ours, resident in runs:
        baseline = results.add(resident | {"cell": f"{name.partition('/')[0]}/100%", "baseline": None})
        results.add(ours | {"cell": name, "baseline": baseline})
    found = [calibrate.row(results, cell(name)) for name in dict.fromkeys(name for name, _, _ in runs)]
    return results, [row for row, _ in found], [why for _, why in found]


def test_calibration_compares_ratios_so_that_the_recorded_steps_warm_up_cancels(tmp_path: Path) -> None:
    resident = reported(1.0, 0, 1.0, 1.1)
    _, (row, over), _ = calibrated(
        ("resnet50/25%", reported(1.25, 7, 1.32, 1.1), resident),  # predicted 1.2 of a step 10 % too long
        ("resnet50/25%", reported(1.2, 7, 1.32, 1.1), resident),
        ("resnet50/tiertrain-50%", reported(2.0, 7, 1.1, 1.1, status="over_budget"), resident),
        folder=tmp_path,
    )
    assert row is not None
    assert over is not None
    assert (row.pairs, row.resident_s, row.measured_s) == (2, 1.0, 1.225)
    assert row.predicted == pytest.approx(1.2)
    assert row.error == pytest.approx((1.2 / 1.25 - 1) / 2)  # the median of that and of none
    assert row.own == pytest.approx(0.1)
    assert row.stall == pytest.approx(0.1)
    assert over.error == pytest.approx(-0.5)
    total = calibrate.summary([row, over])
    assert total is not None
    assert (total.cells, total.worst) == (1, "resnet50/25%")
    assert total.worst_error == pytest.approx(0.02)
    assert total.worst_by_seconds == "resnet50/25%"
    assert total.worst_in_seconds == pytest.approx((1.32 / 1.25 + 1.1) / 2 - 1)


def test_calibration_leaves_out_what_is_no_planned_or_no_resident_step(tmp_path: Path, capsys: Any) -> None:
    good = reported(1.0, 0, 1.0, 1.0)
    results, rows, whys = calibrated(
        ("resnet50/25%", reported(1.2, 7, 1.2, 1.0, mode="demand"), good),
        ("resnet50/35%", reported(1.2, 7, 1.2, 1.0), reported(1.0, 5, 1.0, 1.0)),
        ("resnet50/50%", reported(1.2, 7, 1.2, 1.0), good),
        folder=tmp_path,
    )
    assert rows[:2] == [None, None]
    assert "followed no plan" in whys[0]
    assert "something moved" in whys[1]
    cells = [cell(f"resnet50/{fast}") for fast in ("25%", "35%", "50%")]
    calibrate.show(results, cells, tmp_path / "rows.json")
    said = capsys.readouterr().out
    assert "error over 1 cells: median 0.0%, worst 0.0% (resnet50/50%); in seconds: median 0.0%" in said
    assert "- resnet50/25%: a steady step followed no plan" in said
    written = json.loads((tmp_path / "rows.json").read_text())
    assert [row["name"] for row in written["rows"]] == ["resnet50/50%"]
    assert set(written["left_out"]) == {"resnet50/25%", "resnet50/35%"}


def test_calibration_of_the_benchmarks_own_runs_takes_the_rounds_resident_run_and_its_drift(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl.gz", {})
    runs: list[tuple[str, float, dict[str, Any]]] = [  # the machine is twice as slow when the cell has its turn
        ("100%", 1.0, reported(1.0, 0, 1.0, 1.0)),
        ("25%", 2.0, reported(2.5, 7, 1.2, 1.0)),
    ]
    for way, tuned_s, ours in runs:
        tuned = results.add(outcome(tuned_s, 5) | {"cell": "resnet50/tuned", "baseline": None, "pair": 0})
        results.add(ours | {"cell": f"resnet50/{way}", "baseline": tuned, "pair": 0})
    row, _ = calibrate.row(results, cell("resnet50/25%"))
    assert row is not None
    assert (row.resident_s, row.measured) == (2.0, 1.25)
    assert row.error == pytest.approx(1.2 / 1.25 - 1)
    assert calibrate.row(results, cell("resnet50/50%")) == (None, "no pair was measured")


def test_estimates_stand_beside_what_was_measured(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    resident, ours = reported(1.0, 0, 1.0, 1.0), reported(1.25, 7, 1.2, 1.0)
    resident["report"]["process_peak_bytes"] = 1000 * 2**20
    results, _, _ = calibrated(("resnet50/25%", ours, resident), folder=tmp_path)
    budgets = [
        {"fast": "100%", "step_ns": 8 * 10**8},
        {"fast": "25%", "step_ns": 10**9},
        {"fast": "10%", "step_ns": None},
    ]
    said = {"process_bytes": 970 * 2**20, "step_ns": 8 * 10**8, "budgets": budgets}
    monkeypatch.setattr(calibrate, "estimate", lambda net: said)
    cells = [cell("resnet50/25%"), cell("gpt-small/25%")]  # nothing was measured of the other
    found = calibrate.estimates_of(results, cells)
    assert found == {"resnet50": said}
    calibrate.show(results, cells, tmp_path / "rows.json", found)
    printed = capsys.readouterr().out
    assert "process: median error 3.0%, worst 3.0%" in printed
    assert "step: median error 20.0%, worst 20.0%" in printed
    rows = json.loads((tmp_path / "rows.json").read_text())["estimates"]
    assert [(row["figure"], row["estimated"], row["measured"]) for row in rows] == [
        ("process, MiB", 970, 1000),
        ("step, ms", 800, 1000),
        ("times at 25%", 1.25, 1.25),
    ]


def test_a_network_that_cannot_be_estimated_ends_nothing(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, _, _ = calibrated(
        ("resnet50/25%", reported(1.0, 7, 1.0, 1.0), reported(1.0, 0, 1.0, 1.0)), folder=tmp_path
    )

    def fails(net: str) -> None:
        raise ValueError("no number in a fake tensor")

    monkeypatch.setattr(calibrate, "estimate", fails)
    assert calibrate.estimates_of(results, [cell("resnet50/25%")]) == {}
    assert "resnet50 was not estimated: no number" in capsys.readouterr().out


def test_calibration_has_small_and_state_heavy_networks_among_at_least_twelve_cells() -> None:
    assert len(calibrate.CELLS) >= 12
    heavy = NETS["resnet50-96px"]
    assert (heavy.shape.batch, f"{heavy.name}/25%") == (12, calibrate.CELLS[0].name)
    assert 0.6 < heavy.shape.state_bytes / (440 << 20) < 0.7
    assert {"gpt-small", "resnet-small"} < {found.net.name for found in calibrate.CELLS}


def test_calibrations_baseline_is_a_run_at_all_of_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    monkeypatch.setattr(measure, "run_child", fake.run)
    monkeypatch.setattr(measure.Benchmark, "probe", lambda self: None)
    results = Results.open(tmp_path / "results.jsonl.gz", {})
    place = Place(tmp_path, tmp_path, None, 0, 60)
    measure.Benchmark(results, place, 1, calibrate.RESIDENT).run(calibrate.chosen(["resnet50/*"]), math.inf, 1)
    ours = [run for run in results.runs if run["cell"] != "resnet50/100%"]
    assert {run["cell"] for run in ours} == {f"resnet50/{way}" for way in calibrate.WAYS}
    assert all(results.runs[run["baseline"]]["cell"] == "resnet50/100%" for run in ours)
