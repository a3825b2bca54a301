"""A plan is made beside the steps: they go on without it, the same bits, and follow it when it is there. Whatever comes
between leaves no process behind."""

import json
import os
import signal
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import ebbtide
from ebbtide import _torch
from ebbtide.errors import EbbtideWarning
from ebbtide.host import process
from ebbtide.ir.files import load
from ebbtide.ir.plan import Plan
from ebbtide.ir.run_report import RunReport
from ebbtide.planning import followed_steps, plan_child
from ebbtide.planning.planning import Planning
from ebbtide.units import MIB
from tests.helpers.command import EBBTIDE, run
from tests.helpers.memory_cgroup import NotPermitted, memory_cgroup
from tests.helpers.own_threads import own_threads
from tests.training.same_bits import CASES, Run, Verdict, begin, step, train, train_plainly, verdict

BESIDE = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_PROGRESS": "off", "EBBTIDE_WAIT_FOR_PLAN": "0"}
pytestmark = pytest.mark.in_child(BESIDE)
WAITS = BESIDE | {"EBBTIDE_WAIT_FOR_PLAN": "1"}
CASE = CASES["tied-weights"]


def hold_up(gate: Path) -> None:
    """Planning processes that this one starts wait for the file before they read the step. They do not outlive it."""
    held = "import ctypes, os, time\nctypes.CDLL(None).prctl(1, 9)\n"
    held += f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
    plan_child._START = held + plan_child._START


def planning_of(session: ebbtide.Session) -> Planning:
    assert session._engine is not None
    assert session._engine._planning is not None
    return session._engine._planning


def planner_of(session: ebbtide.Session) -> plan_child.PlanningProcess:
    """The one that is at work."""
    pending = planning_of(session)._pending
    assert pending is not None
    assert isinstance(pending.asked, plan_child.PlanningProcess)
    return pending.asked


def pid_of(session: ebbtide.Session) -> int:
    child = planner_of(session)._child
    assert child is not None
    return child.pid


def check_nothing_is_left(pid: int) -> None:
    """The process has ended and was waited for, its thread too."""
    assert not Path(f"/proc/{pid}").exists()
    assert own_threads() == []


@dataclass(frozen=True, slots=True)
class Beside:
    """``moved`` are the fetched bytes of each step, ``said`` the warnings."""

    verdict: Verdict
    report: RunReport
    moved: tuple[int, ...]
    said: tuple[str, ...]


def _trained(gate: Path, steps: int, within: Callable[[Run, ebbtide.Session], None], above_bytes: int = 0) -> Beside:
    """So many steps in all, those of ``within`` among them, which begins where the first plan is being made.

    In half of the peak, or within so much above what the process holds.
    """
    hold_up(gate)
    plain = train_plainly(CASE, steps)
    fast: str | int = process.resident_bytes() + above_bytes if above_bytes else "50%"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ebbtide.Session(fast=fast) as session:
            ours = begin(CASE)
            train(ours, 2, session)
            pid = pid_of(session)
            within(ours, session)
            session.report()
        check_nothing_is_left(pid)
    report = session.report()
    said = [str(warning.message) for warning in caught if issubclass(warning.category, EbbtideWarning)]
    moved = [found.fetched_bytes.total for found in report.steps]
    return Beside(verdict(plain, ours, session), report, tuple(moved), tuple(said))


def test_steps_go_on_while_a_plan_is_made_and_follow_it_then(tmp_path: Path) -> None:
    def within(ours: Run, session: ebbtide.Session) -> None:
        planning = planning_of(session)
        assert os.getpriority(os.PRIO_PROCESS, pid_of(session)) == 19
        assert not planning.wants_recordings
        train(ours, 3, session)
        activity = planning.activity()
        assert activity is not None
        assert activity.beside
        (tmp_path / "gate").touch()
        assert planner_of(session).wait(200)
        train(ours, 1, session)
        assert planning.activity() is None
        train(ours, 3, session)

    beside = _trained(tmp_path / "gate", 9, within)
    assert (beside.verdict.differences, beside.said) == ((), ())
    assert beside.verdict.modes == ("recorded",) * 2 + ("demand",) * 4 + ("planned",) * 3
    assert all(moved > 0 for moved in beside.moved[2:])
    assert not beside.report.budget_violated
    assert beside.report.plan.taken_up_after == 6


def test_a_planner_that_is_killed_meanwhile_is_followed_by_one_that_is_waited_for(tmp_path: Path) -> None:
    """As the kernel does where memory is short. The next one is waited for."""

    def within(ours: Run, session: ebbtide.Session) -> None:
        train(ours, 1, session)
        os.kill(pid_of(session), signal.SIGKILL)
        assert planner_of(session).wait(200)
        (tmp_path / "gate").touch()
        train(ours, 4, session)

    beside = _trained(tmp_path / "gate", 7, within)
    assert beside.verdict.differences == ()
    assert len(beside.said) == 1
    assert "the next one like it will be" in beside.said[0]
    assert beside.verdict.modes == ("recorded",) * 2 + ("demand",) * 3 + ("planned",) * 2
    assert all(moved > 0 for moved in beside.moved[2:])


@pytest.mark.in_child(BESIDE | {"EBBTIDE_PIECE": "1GiB"})  # a storage in pieces would need no more room than some take
def test_where_a_step_needs_the_planner_s_room_the_planner_goes_and_the_budget_stays(tmp_path: Path) -> None:
    """A size binds: a storage has no room while something is set aside."""

    def within(ours: Run, session: ebbtide.Session) -> None:
        pid = pid_of(session)
        aside = _torch.counters()["arena_limit_bytes"]
        with session.step():
            step(ours)
            needed = aside + 16 * MIB
            large = torch.ones(needed // 4)
            assert planner_of(session).wait(200)
            del large
        assert _torch.counters()["arena_limit_bytes"] > needed
        assert not Path(f"/proc/{pid}").exists()
        (tmp_path / "gate").touch()
        train(ours, 4, session)

    beside = _trained(tmp_path / "gate", 7, within, above_bytes=160 * MIB)
    assert (beside.verdict.differences, beside.verdict.budget_violated) == ((), False)
    assert len(beside.said) == 1
    assert "exit status -9" in beside.said[0]
    assert sum(beside.verdict.evicted_bytes.values()) > 0
    assert beside.verdict.modes[-1] == "planned"


def a_step_that_raises_meanwhile(gate: Path) -> Beside:
    def within(ours: Run, session: ebbtide.Session) -> None:
        pid = pid_of(session)
        try:
            with session.step():
                torch.ones(1 << 20).mul_(2)
                raise ValueError("the script's own")
        except ValueError:
            assert pid_of(session) == pid
        train(ours, 1, session)
        gate.touch()
        assert planner_of(session).wait(200)
        train(ours, 2, session)

    return _trained(gate, 5, within)


def a_fork_meanwhile(gate: Path) -> Beside:
    """The forked child has the planner's pipes, and lives on until a plan is followed."""

    def within(ours: Run, session: ebbtide.Session) -> None:
        stays, lets_go = os.pipe()
        worker = os.fork()
        if worker == 0:
            os.close(lets_go)
            os.read(stays, 1)
            os._exit(0)
        train(ours, 1, session)
        gate.touch()
        assert planner_of(session).wait(200)
        train(ours, 3, session)
        os.close(lets_go)
        assert os.waitpid(worker, 0)[1] == 0

    return _trained(gate, 6, within)


def test_the_end_waits_for_no_plan(tmp_path: Path) -> None:
    beside = _trained(tmp_path / "gate", 4, lambda ours, session: train(ours, 2, session))
    assert (beside.verdict.differences, beside.said, beside.report.plan) == ((), (), None)
    assert beside.verdict.modes == ("recorded", "recorded", "demand", "demand")


def test_the_end_waits_for_a_plan_that_is_to_be_saved(tmp_path: Path) -> None:
    """The gate opens when it is said that the end waits."""
    os.environ["EBBTIDE_SAVE_PLAN"] = str(tmp_path / "step.plan")

    def within(ours: Run, session: ebbtide.Session) -> None:
        train(ours, 1, session)
        planning_of(session)._say = lambda text: (tmp_path / "gate").touch()

    beside = _trained(tmp_path / "gate", 3, within)
    assert (beside.verdict.differences, beside.said) == ((), ())
    assert load(tmp_path / "step.plan", Plan).planner == "ebbtide"
    assert beside.report.plan.taken_up_after == 3


def test_ctrl_c_meanwhile_leaves_no_process(tmp_path: Path) -> None:
    """Also where a plan is to be saved."""
    os.environ["EBBTIDE_SAVE_PLAN"] = str(tmp_path / "step.plan")
    hold_up(tmp_path / "gate")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pid = 0
        try:
            with ebbtide.Session(fast="50%") as session:
                ours = begin(CASE)
                train(ours, 3, session)
                pid = pid_of(session)
                with session.step():
                    step(ours)
                    signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            check_nothing_is_left(pid)
    assert pid
    (said,) = (str(warning.message) for warning in caught if issubclass(warning.category, EbbtideWarning))
    assert "no plan to save: the run ended while its plan was being made" in said


@pytest.mark.in_child(WAITS)
@pytest.mark.parametrize("raises", [KeyboardInterrupt, TimeoutError])
def test_what_a_handler_raises_while_training_waits_for_a_plan_ends_that_alone(
    raises: type[BaseException], tmp_path: Path
) -> None:
    """The script catches what its handler raises, goes on, and is planned later."""
    hold_up(tmp_path / "gate")

    def handler(number: int, frame: object) -> None:
        raise raises("the script's own")

    signal.signal(signal.SIGINT, handler)
    plain = train_plainly(CASE, 6)
    pids: list[int] = []
    real = plan_child.PlanningProcess.wait

    def interrupted(self: plan_child.PlanningProcess, most_s: float | None) -> bool:
        if not pids:
            assert self._child is not None
            pids.append(self._child.pid)
            main = threading.main_thread().ident
            assert main is not None
            threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT)).start()
        return real(self, most_s)

    plan_child.PlanningProcess.wait = interrupted  # type: ignore[method-assign]
    with ebbtide.Session(fast="50%") as session:
        ours = begin(CASE)
        with pytest.raises(raises, match="the script's own"):
            train(ours, 2, session)
        assert not Path(f"/proc/{pids[0]}").exists()
        (tmp_path / "gate").touch()
        train(ours, 4, session)
    assert verdict(plain, ours, session).differences == ()
    assert tuple(str(found.mode) for found in session.report().steps) == (
        "recorded",
        "recorded",
        "demand",
        "planned",
        "planned",
        "planned",
    )


def test_a_script_that_closes_the_planner_s_files_loses_a_plan_and_not_its_own_files(tmp_path: Path) -> None:
    """Those of the planner; what the script opens then has their numbers."""
    closed = list[int]()

    def within(ours: Run, session: ebbtide.Session) -> None:
        train(ours, 1, session)
        planner = planner_of(session)
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if "memfd:ebbtide" in os.readlink(f"/proc/self/fd/{name}"):
                    os.close(int(name))
                    closed.append(int(name))
        assert len(closed) == 2
        for number in closed:
            own = os.open(tmp_path / f"own{number}", os.O_CREAT | os.O_RDWR)
            if own != number:
                os.dup2(own, number)
                os.close(own)
        (tmp_path / "gate").touch()
        assert planner.wait(200)
        train(ours, 4, session)

    beside = _trained(tmp_path / "gate", 7, within)
    assert beside.verdict.differences == ()
    assert (len(beside.said), [os.fstat(number).st_size for number in closed]) == (1, [0, 0])
    assert "the next one like it will be: the answer of the planning process is lost" in beside.said[0]
    assert beside.verdict.modes == ("recorded",) * 2 + ("demand",) * 3 + ("planned",) * 2
    assert all(moved > 0 for moved in beside.moved[2:])


@pytest.mark.in_child(WAITS)
def test_a_step_that_is_planned_anew_at_every_look_has_the_same_bits() -> None:
    """Whatever they take is news, and each plan is waited for."""
    followed_steps._NEWS = -1.0
    plain = train_plainly(CASE, 12)
    with ebbtide.Session(fast="50%") as session:
        ours = begin(CASE)
        train(ours, 12, session)
        made = max(planned.steps.made for planned in planning_of(session)._plans.values())
        session.report()
    found = verdict(plain, ours, session)
    report = session.report()
    assert found.differences == ()
    assert (made, report.plan.plans) == (3, 1)
    assert found.modes == ("recorded",) * 2 + ("planned",) * 10
    assert all(step.fetched_bytes.total > 0 for step in report.steps[2:])


@pytest.mark.parametrize(("case", "planned"), [(a_step_that_raises_meanwhile, 1), (a_fork_meanwhile, 2)])
def test_what_a_script_does_meanwhile_harms_neither_the_steps_nor_the_plan(
    case: Callable[[Path], Beside], planned: int, tmp_path: Path
) -> None:
    beside = case(tmp_path / "gate")
    assert (beside.verdict.differences, beside.said) == ((), ())
    assert beside.verdict.modes[-planned - 1 :] == ("demand", *("planned",) * planned)
    assert all(moved > 0 for moved in beside.moved[2:])


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


@pytest.mark.here
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


@pytest.mark.here
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


@pytest.mark.here
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
