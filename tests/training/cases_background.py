"""What the tests of planning beside the steps run in child processes. The planner is held up until a file is there."""

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
from ebbtide.ir.run_report import RunReport
from ebbtide.planning import followed_steps, plan_child
from ebbtide.planning.planning import Planning
from ebbtide.units import MIB
from tests.helpers.own_threads import own_threads
from tests.training.same_bits import CASES, Run, Verdict, begin, step, train, train_plainly, verdict

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


def planned_beside_steps(gate: Path) -> Beside:
    def within(ours: Run, session: ebbtide.Session) -> None:
        planning = planning_of(session)
        assert os.getpriority(os.PRIO_PROCESS, pid_of(session)) == 19
        assert not planning.wants_recordings
        train(ours, 3, session)
        activity = planning.activity()
        assert activity is not None
        assert activity.beside
        gate.touch()
        assert planner_of(session).wait(200)
        train(ours, 1, session)
        assert planning.activity() is None
        train(ours, 3, session)

    return _trained(gate, 9, within)


def killed_beside_steps(gate: Path) -> Beside:
    """As the kernel does where memory is short. The next one is waited for."""

    def within(ours: Run, session: ebbtide.Session) -> None:
        train(ours, 1, session)
        os.kill(pid_of(session), signal.SIGKILL)
        assert planner_of(session).wait(200)
        gate.touch()
        train(ours, 4, session)

    return _trained(gate, 7, within)


def a_step_without_room_beside_the_planner(gate: Path) -> tuple[Verdict, bool, bool, tuple[str, ...]]:
    """A size binds. A storage that has no room while something is set aside: whether that planner was killed by it, and
    whether the limit then was as before."""
    found: list[bool] = []

    def within(ours: Run, session: ebbtide.Session) -> None:
        pid = pid_of(session)
        aside = _torch.counters()["arena_limit_bytes"]
        with session.step():
            step(ours)
            needed = aside + 16 * MIB
            large = torch.ones(needed // 4)
            found.append(planner_of(session).wait(200))
            del large
        found.append(_torch.counters()["arena_limit_bytes"] > needed)
        assert not Path(f"/proc/{pid}").exists()
        gate.touch()
        train(ours, 4, session)

    beside = _trained(gate, 7, within, above_bytes=160 * MIB)
    return beside.verdict, found[0], found[1], beside.said


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


def the_end_meanwhile(gate: Path) -> Beside:
    return _trained(gate, 4, lambda ours, session: train(ours, 2, session))


def the_end_meanwhile_with_a_plan_to_save(gate: Path) -> Beside:
    """The gate opens when it is said that the end waits."""

    def within(ours: Run, session: ebbtide.Session) -> None:
        train(ours, 1, session)
        planning_of(session)._say = lambda text: gate.touch()

    return _trained(gate, 3, within)


def ctrl_c_meanwhile(gate: Path) -> tuple[str, ...]:
    """Also where a plan is to be saved: the warnings."""
    hold_up(gate)
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
    return tuple(str(warning.message) for warning in caught if issubclass(warning.category, EbbtideWarning))


def a_signal_while_training_waits(gate: Path, raises: type[BaseException]) -> tuple[Verdict, tuple[str, ...]]:
    """The script catches what its handler raises, goes on, and is planned later."""
    hold_up(gate)

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
        gate.touch()
        train(ours, 4, session)
    return verdict(plain, ours, session), tuple(str(found.mode) for found in session.report().steps)


def descriptors_closed_meanwhile(gate: Path) -> tuple[Beside, list[int]]:
    """Those of the planner; what the script opens then has their numbers. The sizes of its files at the end."""
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
            own = os.open(gate.with_name(f"own{number}"), os.O_CREAT | os.O_RDWR)
            if own != number:
                os.dup2(own, number)
                os.close(own)
        gate.touch()
        assert planner.wait(200)
        train(ours, 4, session)

    return _trained(gate, 7, within), [os.fstat(number).st_size for number in closed]


def planned_anew_at_every_look(steps: int) -> tuple[Verdict, RunReport, int]:
    """Whatever they take is news, and each plan is waited for. How many plans were made."""
    followed_steps._NEWS = -1.0
    plain = train_plainly(CASE, steps)
    with ebbtide.Session(fast="50%") as session:
        ours = begin(CASE)
        train(ours, steps, session)
        made = max(planned.steps.made for planned in planning_of(session)._plans.values())
        session.report()
    return verdict(plain, ours, session), session.report(), made
