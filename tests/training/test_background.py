"""A plan is made beside the steps: they go on without it, the same bits, and follow it when it is there. Whatever comes
between leaves no process behind."""

import json
import os
from pathlib import Path

import pytest

from ebbtide.ir.files import load
from ebbtide.ir.plan import Plan
from ebbtide.units import MIB
from tests.helpers import child
from tests.helpers.command import EBBTIDE, run
from tests.helpers.memory_cgroup import NotPermitted, memory_cgroup

BESIDE = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_PROGRESS": "off", "EBBTIDE_WAIT_FOR_PLAN": "0"}
WAITS = BESIDE | {"EBBTIDE_WAIT_FOR_PLAN": "1"}


def test_steps_go_on_while_a_plan_is_made_and_follow_it_then(tmp_path: Path) -> None:
    beside = child.run("cases_background:planned_beside_steps", tmp_path / "gate", env=BESIDE)
    assert (beside.verdict.differences, beside.said) == ((), ())
    assert beside.verdict.modes == ("recorded",) * 2 + ("demand",) * 4 + ("planned",) * 3
    assert all(moved > 0 for moved in beside.moved[2:])
    assert not beside.report.budget_violated
    assert beside.report.plan.taken_up_after == 6


def test_a_planner_that_is_killed_meanwhile_is_followed_by_one_that_is_waited_for(tmp_path: Path) -> None:
    beside = child.run("cases_background:killed_beside_steps", tmp_path / "gate", env=BESIDE)
    assert beside.verdict.differences == ()
    assert len(beside.said) == 1
    assert "the next one like it will be" in beside.said[0]
    assert beside.verdict.modes == ("recorded",) * 2 + ("demand",) * 3 + ("planned",) * 2
    assert all(moved > 0 for moved in beside.moved[2:])


def test_a_step_that_is_planned_anew_at_every_look_has_the_same_bits() -> None:
    verdict, report, made = child.run("cases_background:planned_anew_at_every_look", 12, env=WAITS)
    assert verdict.differences == ()
    assert (made, report.plan.plans) == (3, 1)
    assert verdict.modes == ("recorded",) * 2 + ("planned",) * 10
    assert all(step.fetched_bytes.total > 0 for step in report.steps[2:])


def test_a_script_that_closes_the_planner_s_files_loses_a_plan_and_not_its_own_files(tmp_path: Path) -> None:
    beside, sizes = child.run("cases_background:descriptors_closed_meanwhile", tmp_path / "gate", env=BESIDE)
    assert beside.verdict.differences == ()
    assert (len(beside.said), sizes) == (1, [0, 0])
    assert "the next one like it will be: the answer of the planning process is lost" in beside.said[0]
    assert beside.verdict.modes == ("recorded",) * 2 + ("demand",) * 3 + ("planned",) * 2
    assert all(moved > 0 for moved in beside.moved[2:])


def test_where_a_step_needs_the_planner_s_room_the_planner_goes_and_the_budget_stays(tmp_path: Path) -> None:
    whole = {**BESIDE, "EBBTIDE_PIECE": "1GiB"}  # a storage in pieces would need no more room than some of them take
    found = child.run("cases_background:a_step_without_room_beside_the_planner", tmp_path / "gate", env=whole)
    verdict, killed, given_back, said = found
    assert (verdict.differences, verdict.budget_violated, killed, given_back) == ((), False, True, True)
    assert len(said) == 1
    assert "exit status -9" in said[0]
    assert sum(verdict.evicted_bytes.values()) > 0
    assert verdict.modes[-1] == "planned"


@pytest.mark.parametrize(("case", "planned"), [("a_step_that_raises_meanwhile", 1), ("a_fork_meanwhile", 2)])
def test_what_a_script_does_meanwhile_harms_neither_the_steps_nor_the_plan(
    case: str, planned: int, tmp_path: Path
) -> None:
    beside = child.run(f"cases_background:{case}", tmp_path / "gate", env=BESIDE)
    assert (beside.verdict.differences, beside.said) == ((), ())
    assert beside.verdict.modes[-planned - 1 :] == ("demand", *("planned",) * planned)
    assert all(moved > 0 for moved in beside.moved[2:])


def test_the_end_waits_for_no_plan(tmp_path: Path) -> None:
    beside = child.run("cases_background:the_end_meanwhile", tmp_path / "gate", env=BESIDE)
    assert (beside.verdict.differences, beside.said, beside.report.plan) == ((), (), None)
    assert beside.verdict.modes == ("recorded", "recorded", "demand", "demand")


def test_the_end_waits_for_a_plan_that_is_to_be_saved(tmp_path: Path) -> None:
    env = BESIDE | {"EBBTIDE_SAVE_PLAN": str(tmp_path / "step.plan")}
    beside = child.run("cases_background:the_end_meanwhile_with_a_plan_to_save", tmp_path / "gate", env=env)
    assert (beside.verdict.differences, beside.said) == ((), ())
    assert load(tmp_path / "step.plan", Plan).planner == "ebbtide"
    assert beside.report.plan.taken_up_after == 3


def test_ctrl_c_meanwhile_leaves_no_process(tmp_path: Path) -> None:
    env = BESIDE | {"EBBTIDE_SAVE_PLAN": str(tmp_path / "step.plan")}
    said = child.run("cases_background:ctrl_c_meanwhile", tmp_path / "gate", env=env)
    assert len(said) == 1
    assert "no plan to save: the run ended while its plan was being made" in said[0]


@pytest.mark.parametrize("raises", [KeyboardInterrupt, TimeoutError])
def test_what_a_handler_raises_while_training_waits_for_a_plan_ends_that_alone(
    raises: type[BaseException], tmp_path: Path
) -> None:
    verdict, modes = child.run("cases_background:a_signal_while_training_waits", tmp_path / "gate", raises, env=WAITS)
    assert verdict.differences == ()
    assert modes == ("recorded", "recorded", "demand", "planned", "planned", "planned")


IN_CGROUP = r"""
import os, sys, torch
from ebbtide.session import driven
from ebbtide.planning import plan_child

gate = sys.argv[1]
held = f"import ctypes, os, time\nctypes.CDLL(None).prctl(1, 9)\nwhile not os.path.exists({gate!r}): time.sleep(0.01)\n"
plan_child._START = held + plan_child._START
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(16)])
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(400):
    optimizer.zero_grad()
    model(torch.ones(256, 1024)).square().mean().backward()
    optimizer.step()
    planning = driven._active._engine._planning
    if step == 4:
        assert planning._pending is not None  # it is held up, and steps go on
        open(gate, "w").close()
    if planning.ever_followed:
        break
"""


def test_a_named_size_holds_while_a_plan_is_made_beside_steps(tmp_path: Path) -> None:
    """In a memory cgroup of that size, with the planning process in it."""
    script, out, size = tmp_path / "script.py", tmp_path / "out.json", 512 * MIB
    script.write_text(IN_CGROUP)
    command = [EBBTIDE, "run", "--fast", str(size), "--report", str(out), str(script), str(tmp_path / "gate")]
    try:
        with memory_cgroup(size) as cgroup:
            done = run(*cgroup.wrap(command), env=BESIDE)
            assert cgroup.oom_kills() == 0
    except NotPermitted as why:
        pytest.skip(str(why))
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    modes = [step["mode"] for step in report["steps"]]
    assert modes[:5] == ["demand"] * 5
    assert modes[-1] == "planned"
    assert all(step["evicted_bytes"]["total"] > 0 for step in report["steps"][2:])
    assert (report["budget_violated"], report["plan"]["taken_up_after"] > 5) == (False, True)


SCRIPT = """
import signal, torch
from ebbtide.planning import plan_child
plan_child._START = "import ctypes, time; ctypes.CDLL(None).prctl(1, 9); time.sleep(1000)"
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn(1024, 512)).square().mean()
    if step == 4:
        import ebbtide.session.driven
        print("planner", ebbtide.session.driven._active._engine._planning._pending.asked._child.pid, flush=True)
        {what}
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("what", "status"), [("signal.raise_signal(signal.SIGINT)", -2), ("raise ValueError", 1), ("pass", 0)]
)
def test_a_command_that_ends_meanwhile_leaves_no_process(what: str, status: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("{what}", what))
    saves = ("--save-plan", str(tmp_path / "step.plan")) if status == -2 else ()
    done = run(EBBTIDE, "run", "--fast", "40%", *saves, str(script), env={"EBBTIDE_WAIT_FOR_PLAN": "0"}, status=status)
    assert not Path(f"/proc/{done.stdout.split()[1]}").exists()
    assert "the run ended while its plan was being made" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_script_that_gives_up_its_rights_meanwhile_ends_as_ever(tmp_path: Path) -> None:
    """It may not end the planning process any more, which is waited for."""
    script = tmp_path / "script.py"
    begins_late = 'plan_child._START = "import time; time.sleep(3); " + plan_child._START'
    kept = [line for line in SCRIPT.splitlines() if not line.startswith("plan_child")]
    text = "\n".join([*kept[:3], begins_late, *kept[3:]])
    script.write_text(text.replace("{what}", "import os; os.setuid(65534)"))
    done = run(EBBTIDE, "run", "--fast", "40%", str(script), env={"EBBTIDE_WAIT_FOR_PLAN": "0"}, status=0)
    assert "trained for 6 steps" in done.stderr
    assert not Path(f"/proc/{done.stdout.split()[1]}").exists()
