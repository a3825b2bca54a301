"""What an estimate says of a machine that is given, and of a script that trains."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ebbtide.estimate.budgets import COMMON_DISK_BYTES, SHARES, Estimate, Rest, Row, budgets_of, estimate
from ebbtide.estimate.command import Estimated
from ebbtide.estimate.text import COLUMNS, ending, heading, lines, to_figures
from ebbtide.ir.base import Origin
from ebbtide.ir.files import load
from ebbtide.ir.machine import Compute, InPlace, Link, Machine, Tier
from ebbtide.ir.occupancy import arena_pages, live_bytes, peak
from ebbtide.ir.trace import Storage, StorageKind, Trace
from ebbtide.probe.call_times import with_called_times
from ebbtide.units import GIB, MIB
from tests.helpers.command import EBBTIDE, TRAIN_MLP, run
from tests.helpers.make_ir import R, W
from tests.helpers.make_steps import parameter, step

MB, MS, RATE = 10**6, 10**6, 10**9
MACHINE = Machine(
    "made up",
    Origin.ASSUMED,
    (Tier("dram", InPlace.ALL, 100 * GIB, 10**10), Tier("file", InPlace.NOTHING)),
    (Link("dram", "file", RATE), Link("file", "dram", RATE)),
    compute=Compute(flops_per_s=10**11, operator_ns=1000),
)
TINY = ("--width", "256", "--depth", "2", "--rows", "64")
TOML = MACHINE.to_toml()


def a_step(mb: int = 2048) -> Trace:
    """Ten parameters, each used once forward and once backward; an operation takes as long as two copies of one."""
    one_ns = 2 * mb * MS
    uses = [(number, tick, R) for number in range(10) for tick in (number, 19 - number)]
    return step([one_ns] * 20, [parameter(mb * MB, 20) for _ in range(10)], uses)


REST = Rest(300 * MIB, 20 * MIB)


def test_rows_are_shares_of_the_tensors_and_sizes_of_the_process() -> None:
    trace = a_step()
    paged = peak(live_bytes(trace, arena_pages))
    rows = {fast: (arena, process) for fast, arena, process in budgets_of(trace, MACHINE, REST)}
    assert set(SHARES) <= set(rows)
    assert rows["100%"] == (paged, paged + REST.nbytes)
    assert rows["50%"] == (10 * 2048 * MB // 2, 10 * 2048 * MB // 2 + REST.nbytes)
    sizes = [fast for fast in rows if fast.endswith("GiB")]
    assert sizes == ["16GiB", "12GiB", "8GiB", "6GiB", "4GiB"]  # from what one operation needs to what all takes
    for fast in sizes:
        arena, process = rows[fast]
        assert process == int(fast.removesuffix("GiB")) * GIB
        assert process - arena > REST.nbytes
    assert [process for _, process in rows.values()] == sorted((row[1] for row in rows.values()), reverse=True)


def test_what_a_kernel_works_in_counts_at_its_own_tick() -> None:
    """The tick with most tensors is another one, so that the two do not add up; a full budget and a kernel may."""
    trace = step(
        [MS] * 3,
        [parameter(100 * MB, 3), Storage(400 * MB, StorageKind.ACTIVATION, 1, 2)],
        [(0, 0, R), (0, 2, R), (1, 1, W)],
    )
    tensors = live_bytes(trace, arena_pages)
    works = np.array([0, 0, 150 * MB])
    rest = Rest(300 * MIB, works)
    assert rest.process_peak(trace, MACHINE) == 300 * MIB + peak(tensors)
    assert Rest(300 * MIB, works * 4).process_peak(trace, MACHINE) == 300 * MIB + tensors[2] + 600 * MB
    assert rest.nbytes == 300 * MIB + 150 * MB
    rows = {fast: process for fast, _, process in budgets_of(trace, MACHINE, rest)}
    assert rows["100%"] == 300 * MIB + peak(tensors)
    assert rows["25%"] == 300 * MIB + 150 * MB + peak(live_bytes(trace)) // 4


def test_what_is_written_in_a_day_wears_a_disk_out() -> None:
    found = estimate(a_step(), MACHINE, REST)
    rows = {row.fast: row for row in found.rows}
    assert (found.tensors_bytes, found.step_ns) == (20480 * MB, 20 * 4096 * MS)
    assert rows["100%"].written_a_day == 0
    assert rows["100%"].wears_out_days is None
    half = rows["50%"]
    assert half.step_ns is not None
    assert half.written_bytes is not None
    # Parameters are only read, so they are written once and then dropped.
    dirty = estimate(_written(a_step()), MACHINE, REST)
    tight = {row.fast: row for row in dirty.rows}["25%"]
    assert tight.step_ns is not None
    assert tight.written_bytes is not None
    assert tight.written_bytes > 0
    day_bytes = tight.written_bytes * 86400 / (tight.step_ns / 1e9)
    assert tight.written_a_day == pytest.approx(day_bytes, rel=1e-6)
    assert tight.wears_out_days == pytest.approx(COMMON_DISK_BYTES / day_bytes, rel=1e-6)
    worn = replace(MACHINE, tiers=(MACHINE.tiers[0], replace(MACHINE.tiers[1], endurance_bytes=10**15)))
    assert estimate(_written(a_step()), worn, REST).rows[0].wears_bytes == 10**15


def _written(trace: Trace) -> Trace:
    return replace(trace, accesses=replace(trace.accesses, mode=np.full(len(trace.accesses.mode), int(R | W))))


def test_the_smallest_budget_is_that_of_the_largest_operation() -> None:
    found = estimate(a_step(), MACHINE, REST)
    assert found.least_fast == "11%"  # one of ten equal storages, and what pages add
    rows = {row.fast: row for row in found.rows}
    assert (rows["10%"].step_ns, rows["10%"].why_not) == (None, "too small")
    assert all(rows[fast].step_ns is not None for fast in ("25%", "50%", "4GiB"))
    assert 2048 * MB + REST.nbytes < found.least_process_bytes < 4 * GIB


def a_row(fast: str, process_gib: float, step_ns: int | None, fits: bool = True) -> Row:
    nbytes = int(process_gib * GIB)
    return Row(fast, nbytes, nbytes, step_ns, 0 if step_ns is None else 10**9, COMMON_DISK_BYTES, fits)


def an_estimate(*rows: Row) -> Estimate:
    return Estimate(4 * GIB, 5 * GIB, 100 * MS, "11%", GIB, rows)


def test_the_proposed_budget_is_the_smallest_that_costs_little_and_fits() -> None:
    most, half, less = a_row("100%", 5, 100 * MS), a_row("50%", 3, 109 * MS), a_row("25%", 2, 130 * MS)
    none = a_row("10%", 1, None)
    assert an_estimate(most, half, less, none).proposed == half
    crowded = an_estimate(replace(most, fits=False), replace(half, fits=False), less, none)
    assert crowded.proposed == less
    assert an_estimate(replace(most, fits=False), none).proposed is None


def test_the_text_has_the_peaks_the_table_and_a_line_to_copy() -> None:
    rows = a_row("100%", 5, 100 * MS), a_row("50%", 3, 109 * MS, fits=True), a_row("25%", 2, 10**8 * 2, fits=False)
    found = Estimated(an_estimate(*rows, replace(a_row("10%", 1, None), why_not="too small")), MACHINE, 0.97)
    said = heading(found)
    assert "peaks at about 5.00 GiB, of which tensors are 4.00 GiB. Plain PyTorch takes up to 1.6 times" in said
    assert "A step takes about 100 ms" in said
    assert "97 % of it from calling" in said
    assert "--fast 11% for tensors, or --fast 1024MiB for the process" in said
    table = [dict(zip(COLUMNS, line, strict=True)) for line in lines(found)]
    assert [line["times"] for line in table] == ["1.00", "1.09", "2.00 (not here)", ""]
    assert table[3]["step"] == "too small"
    assert table[0]["a day"] == "864,000 GB"  # a GB in each tenth of a second
    assert table[0]["SSD lasts"] == "0.7 days"
    assert ending(found, ["train.py", "--name", "a b"]).endswith("\n\nebbtide run --fast 50% train.py --name 'a b'")
    assert "The smallest budget within 10 % of full speed:" in ending(found, ["train.py"])
    assert "Other programs" not in said
    disturbed = heading(replace(found, waited_share=0.42))
    assert "Other programs were busy: threads waited for a CPU 42 % of the time" in disturbed
    roomy, tight = (ending(replace(found, free_bytes=size * GIB), ["train.py"]) for size in (8, 7))
    assert "The smallest budget within 10 % of full speed: ebbtide run --fast 50% train.py" in roomy
    assert roomy.endswith("fits in the 8.00 GiB that are free here, so it needs no budget:\n\npython train.py")
    assert "needs no budget" not in tight
    dear = replace(found, estimate=an_estimate(replace(rows[0], fits=False), a_row("25%", 2, 10**9)))
    assert "None that fits is within 10 % of full speed; the fastest:" in ending(dear, ["train.py"])
    figures = to_figures(found, ["train.py"])
    assert (figures["proposed_fast"], figures["budgets"][0]["written_a_day_bytes"]) == ("50%", 864 * 10**12)
    json.dumps(figures, allow_nan=False)


@pytest.mark.starts
def test_called_operators_have_times_of_their_own(tmp_path: Path) -> None:
    """Also what they work in. What cannot be called keeps its time."""
    out, machine = tmp_path / "step.trace", tmp_path / "machine.toml"
    machine.write_text(TOML)
    command = (EBBTIDE, "trace", "--fake", "--machine", str(machine), "-o", str(out), TRAIN_MLP, *TINY)
    run(*command, status=0)
    modelled = load(out, Trace)
    called = with_called_times(modelled, 777_777_777, 5.0, GIB)
    products = np.isin(modelled.ticks.operator.astype(str), ["aten::addmm", "aten::mm"])
    assert products.sum() >= 8
    assert set(called.trace.ticks.time_ns[products].tolist()) == {777_777_777}  # no call is shorter than was said
    fused = modelled.ticks.operator.astype(str) == "aten::_fused_adamw_"  # over lists, which a trace does not tell
    assert fused.any()
    assert (called.trace.ticks.time_ns[fused] == modelled.ticks.time_ns[fused]).all()
    assert 0.9 < called.share < 1
    assert 0 <= called.kernel_bytes.min() <= called.kernel_bytes.max() < GIB
    assert called.trace.signature() == modelled.signature()
    too_large = with_called_times(modelled, 1, 5.0, 1)
    assert (too_large.share, too_large.kernel_bytes.max()) == (0, 0)
    assert (too_large.trace.ticks.time_ns == modelled.ticks.time_ns).all()


@pytest.mark.starts
def test_a_script_is_estimated_without_training_and_the_least_budget_works(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    machine, result = tmp_path / "machine.toml", tmp_path / "result.json"
    machine.write_text(TOML)
    program = (TRAIN_MLP, "--width", "1024", "--depth", "4", "--steps", "8", "--result", str(result))
    command = (EBBTIDE, "estimate", "--machine", str(machine), "--json", *program)
    done = run(*command, status=0, fresh=pytestconfig.getoption("--all"))
    assert not result.exists()  # it ended after its second step
    found = json.loads(done.stdout)
    weights = 4 * (4 * 1024 * 1024 + 4 * 1024 + 16 * 1024 + 16)
    data = 8 * 256 * 1024 * 4
    assert 4 * weights + data < found["tensors_bytes"] < 4 * weights + data + 30 * MIB
    assert found["process_bytes"] > found["tensors_bytes"] + 150 * MIB  # Python and PyTorch
    assert found["budgets"][0]["fast"] == "100%"
    assert found["called_share"] is None
    run(EBBTIDE, "run", "--fast", found["least_fast"], *program, status=0)
    assert result.exists()


@pytest.mark.starts
def test_the_table_and_the_command_are_shown(tmp_path: Path) -> None:
    done = run(EBBTIDE, "estimate", "--seconds", "1", TRAIN_MLP, *TINY, status=0)
    assert "loss" not in done.stdout  # the script's own output is not shown
    assert "The process peaks at about " in done.stdout
    assert "ebbtide run --fast " in done.stdout
    assert done.stdout.splitlines()[-1].startswith("python ")
    assert done.stdout.splitlines()[-1].endswith(" ".join(TINY))


@pytest.mark.starts
def test_what_cannot_run_on_fake_tensors_is_told_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "machine.toml").write_text(TOML)
    (tmp_path / "train.py").write_text("import torch\nx = torch.randn(9)\nprint(x[x > 0])\n")
    (tmp_path / "idle.py").write_text("print('nothing to do')\n")
    how = ("--machine", str(tmp_path / "machine.toml"))
    done = run(EBBTIDE, "estimate", *how, "train.py", cwd=tmp_path, status=1)
    assert "ended with exit status 1 on fake tensors" in done.stderr
    assert "a result whose shape depends on data" in done.stderr
    done = run(EBBTIDE, "estimate", *how, "idle.py", cwd=tmp_path, status=1)
    assert "the program made 0 steps" in done.stderr
    assert "the script ended before it had made two steps, so nothing can be estimated. It" in done.stderr
    (tmp_path / "raises.py").write_text("raise ValueError('no data set')\n")
    done = run(EBBTIDE, "estimate", *how, "raises.py", cwd=tmp_path, status=1)
    assert "the script ended with exit status 1 before its second step had, so" in done.stderr
    assert "ValueError: no data set" in done.stderr
    slow = replace(MACHINE, compute=Compute())
    (tmp_path / "machine.toml").write_text(slow.to_toml())
    done = run(EBBTIDE, "estimate", *how, "train.py", cwd=tmp_path, status=2)
    assert "does not say how fast it computes" in done.stderr


@pytest.mark.starts
def test_a_script_that_the_kernel_kills_is_likely_to_have_run_out_of_memory(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    done = run(EBBTIDE, "estimate", "train.py", cwd=tmp_path)
    assert done.returncode != 0
    assert "was killed by signal 9, likely by the kernel because memory ran out" in done.stderr
