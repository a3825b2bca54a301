"""What a recorded step holds: every access, life, FLOP and byte of models in which they can be counted by reading."""

from pathlib import Path

import pytest

from ebbtide.ir.files import load
from ebbtide.ir.trace import Phase, Trace
from tests.helpers import child
from tests.helpers.command import EBBTIDE, TRAIN_MLP, run

READ, WRITE, BOTH = 1, 2, 3


def test_reads_and_writes_through_views_are_those_of_the_storage() -> None:
    base, changed, ended = child.run("cases_recording:views_and_in_place")
    read = [("aten::sum", READ), ("aten::mul_", READ), ("aten::sum", READ)]
    assert base == [("", WRITE), ("aten::fill_", BOTH), ("aten::copy_", BOTH), *read]
    assert changed == [("aten::zeros", WRITE), ("aten::add_", BOTH), ("aten::mul_", BOTH)]
    assert ended


def test_custom_functions_and_checkpoints_are_seen_in_their_phases() -> None:
    saved, in_layer, in_optimizer = child.run("cases_recording:custom_function_and_checkpoint")
    assert saved == [("aten::addmm", WRITE), ("aten::exp", READ), ("aten::mul", READ)]
    again = [("aten::addmm", "backward"), ("aten::mm", "backward"), ("aten::sum", "backward")]
    assert in_layer == [("aten::addmm", "forward"), *again]
    assert in_optimizer == ["aten::add_", "aten::add_"]


def test_two_storages_at_one_address_are_two() -> None:
    whole = {"EBBTIDE_PIECE": "64MiB"}
    lives, stories, at_one_address = child.run("cases_recording:freed_and_reused", env=whole)
    assert at_one_address
    assert lives[0] == (0, 2)
    assert lives[1][0] == 1
    assert stories == [[("", WRITE), ("aten::fill_", BOTH)], [("aten::fill_", WRITE), ("aten::zero_", BOTH)]]


def test_storages_from_before_the_session_are_there_with_their_ends() -> None:
    (kept, freed, unused, array), untouched = child.run("cases_recording:met_late")
    once, twice = [("aten::neg_", BOTH)], [("aten::neg_", BOTH)] * 2
    assert (kept, freed, unused, array) == ((True, 5, twice), (False, 3, once), (True, 5, []), (True, 5, once))
    assert untouched


def test_recording_changes_no_allocation() -> None:
    plain, recorded = child.run("cases_recording:allocations", "vit-adamw-loop")
    assert len(plain) > 500
    assert recorded == plain


def test_recording_changes_no_bit() -> None:
    differences, recorded = child.run("cases_recording:same_bits", "gpt2-adamw-fused")
    assert differences == ()
    assert recorded


@pytest.mark.parametrize("name", ["gpt2-adamw-fused", "resnet-sgd-momentum"])
def test_with_an_arena_and_without_the_same_is_recorded(name: str) -> None:
    plain, managed = child.run("cases_recording:with_and_without_arena", name, 65_536)
    assert plain[0] == managed[0]
    assert plain[1] == managed[1]


@pytest.mark.parametrize("name", ["resnet-sgd-momentum", "gradients-zeroed-in-place"])
def test_flops_are_those_that_pytorch_counts(name: str) -> None:
    ours, theirs = child.run("cases_recording:flops", name)
    assert ours == theirs > 10**8


def test_flops_that_pytorch_does_not_count() -> None:
    counted = child.run("cases_recording:flops_of_layers")
    attention = 2 * 3 * 32 * 32 * 16  # samples, heads, queries, keys, width: one product each, of two FLOPs
    assert counted["attention"] == (2 * 2 * attention, 5 * 2 * attention)  # QK and PV; QK again, dP, dV, dQ, dK
    depthwise = 2 * (2 * 10 * 10) * (8 * 3 * 3)
    assert counted["depthwise"] == (depthwise, 2 * depthwise)
    transposed = 2 * (2 * 10 * 10) * (8 * 4 * 2 * 2)
    assert counted["transposed"] == (transposed, 2 * transposed)
    lstm = 2 * (5 * 3) * (4 * 7 * 6 + 4 * 7 * 7)
    assert counted["lstm"] == (lstm, 2 * lstm)


def test_bytes_are_those_of_the_operands_once() -> None:
    moved = child.run("cases_recording:bytes_of_ticks")
    assert moved == {
        "": 0,
        "aten::ones": 0,  # fill_ in it writes
        "aten::fill_": 4000 + 4,  # of ones and of sum
        "aten::clone": 0,  # copy_ in it reads and writes
        "aten::copy_": 4000 + 4000,
        "aten::sum": 400,
        "aten::add_": 2 * 4000 + 4,
        "aten::add": 3 * 4000,
        "aten::neg_": 2 * 40,
    }


def test_a_module_is_exported_while_its_step_is_recorded() -> None:
    """PyTorch's strict export takes none while there are global hooks, so modules are named without any."""
    assert child.run("cases_recording:exports_while_recorded") == [True] * 3


def test_any_module_is_named() -> None:
    names = child.run("cases_recording:modules_of_ticks")
    assert names["aten::tanh"] == ["Odd.within.0"]  # of an unhashable module whose own named_modules raises
    assert names["aten::sigmoid"] == ["Odd.added"]  # since the module's first call
    assert names["aten::relu"] == ["Odd"]  # the module's own
    assert names["aten::atan"] == ["Elsewhere"]  # called in it, and none of its parts
    assert names["aten::sin"] == [""]  # called in none
    assert names["aten::tanh_backward"] == names["aten::tanh"]
    assert {*names["aten::sigmoid_"]} == {"Odd.cell"}  # operators that another one calls
    assert names["aten::erf"] == ["Odd.again", "Again"]  # a checkpoint runs it a second time


def test_a_class_of_the_scripts_is_asked_no_more_than_by_pytorch() -> None:
    plain, ours = child.run("cases_recording:asked_by_a_class_of_the_scripts")
    assert plain
    assert ours == plain


def test_a_step_that_raises_is_not_counted() -> None:
    recorded, sizes = child.run("cases_recording:a_step_that_raises")
    assert recorded
    assert sizes == "[4012]"


def test_a_session_with_a_budget_may_follow() -> None:
    differences, recorded, adopted, moved = child.run("cases_recording:recorded_then_bounded", "gpt2-adamw-fused")
    assert differences == ()
    assert recorded
    assert adopted > 0
    assert moved > 0


def test_after_a_budget_only_a_session_with_one_can_record() -> None:
    (said,) = child.run("cases_recording:refused")
    assert "a session with a budget has run in this process" in said


SMALL = [TRAIN_MLP, "--width", "64", "--rows", "8"]


def test_the_command_ends_the_script_when_the_step_is_recorded(tmp_path: Path) -> None:
    out = tmp_path / "step.trace"
    finished = run(EBBTIDE, "trace", "-o", str(out), *SMALL, "--steps", "9", "--workers", "2", status=0)
    assert finished.stdout.count("loss") == 2
    assert "train_mlp.py, step 3: " in finished.stderr
    assert "times as long as the step before, which was not recorded" in finished.stderr
    assert "the script was ended after it (--keep-running lets it go on)" in finished.stderr
    quiet = run(EBBTIDE, "trace", "-q", "-o", str(tmp_path / "quiet.trace"), *SMALL, "--steps", "9")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    too_short = run(EBBTIDE, "trace", "-q", "-o", str(tmp_path / "none.trace"), *SMALL, "--steps", "1", status=1)
    assert too_short.stderr.startswith("ebbtide: ")
    trace = load(out, Trace)
    assert trace.unrecorded_ns is not None
    assert {tick.phase for tick in trace.ticks} >= {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    assert min(storage.nbytes for storage in trace.storages) == 4
    assert any(tick.module == "Sequential.0.1" and tick.operator == "aten::gelu" for tick in trace.ticks)
    phases = [phase for phase in (tick.phase for tick in trace.ticks) if phase is not Phase.OTHER]
    assert [phase for number, phase in enumerate(phases) if phases[number - 1 : number] != [phase]] == [
        *(Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    ]


def test_several_steps_are_several_files_and_the_script_may_go_on(tmp_path: Path) -> None:
    out = tmp_path / "step.trace"
    command = [EBBTIDE, "trace", "-o", str(out), "--step", "2", "--steps", "2", "--keep-running"]
    finished = run(*command, *SMALL, "--steps", "4", "--exit-code", "7", status=7)
    assert finished.stdout.count("loss") == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2.trace", "step-3.trace"]
    traces = [load(tmp_path / f"step-{step}.trace", Trace) for step in (2, 3)]
    assert traces[0].signature() == traces[1].signature()


def test_a_script_that_ends_too_early_is_told(tmp_path: Path) -> None:
    out = tmp_path / "step.trace"
    finished = run(EBBTIDE, "trace", "-o", str(out), *SMALL, "--steps", "2", status=1)
    assert "the program made 2 steps, and step 3 was asked for (a step ends" in finished.stderr
    assert not out.exists()


def test_a_trace_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    finished = run(EBBTIDE, "trace", "-o", str(tmp_path / "absent" / "step.trace"), *SMALL, status=2)
    assert "loss" not in finished.stdout
    assert "cannot be written" in finished.stderr
