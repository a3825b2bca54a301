"""The pipeline, read aloud: record a step, load it, plan it, simulate the plan, run by it. The commands call these.

with ebbtide.record("step.trace"):
    train()
step = ebbtide.load("step.trace")
plan = ebbtide.plan(step, "25%")
print(ebbtide.simulate(step, plan).step_ns, plan.lower_bound_ns)
ebbtide.save(plan, "step.plan")
ebbtide.run(["train.py"], fast="25%", plan="step.plan")
"""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ebbtide.errors import SettingError
from ebbtide.settings import Named, Settings

if TYPE_CHECKING:
    from ebbtide.ir.machine import Machine
    from ebbtide.ir.plan import Plan
    from ebbtide.ir.run_report import RunReport
    from ebbtide.ir.timeline import Timeline
    from ebbtide.ir.trace import Trace
    from ebbtide.session.recorder import Recorder
    from ebbtide.simulator import Outcome
    from ebbtide.units import Budget

_Path = str | os.PathLike[str]


def record(
    path: _Path,
    *,
    first: int | None = None,
    count: int = 1,
    fake: bool = False,
    machine: _Path | None = None,
    lines: bool | None = None,
    device: str | None = None,
) -> "Recorder":
    """Return a context manager that writes a step of its block to ``path``, run as plain PyTorch runs it. See
    Recorder."""
    from ebbtide.session.recorder import Recorder

    return Recorder(path, first=first, count=count, fake=fake, machine=machine, lines=lines, device=device)


def load(path: _Path) -> "Trace | Plan | Timeline | Machine | RunReport":
    """Load a file that Ebbtide wrote, a trace in the format tiertrace/1, or a machine.

    Raises FileFormatError for other files, and SettingError for one that cannot be read.
    """
    from ebbtide.pipeline.reading import read

    return read(Path(path))


def save(value: "Trace | Plan | Timeline", path: _Path) -> None:
    """Write what ``load`` reads, whole or not at all. Raises OSError."""
    from ebbtide.ir.files import save

    save(value, Path(path))


def plan(
    trace: "Trace | _Path",
    fast: "str | int | Budget | None" = None,
    *,
    machine: "Machine | _Path | None" = None,
    policy: str = "ebbtide",
) -> "Plan":
    """Plan on which tier each storage lies when. ``fast`` is bytes of the machine's fastest tier, or a share of the
    peak.

    Without ``fast``, the budget is the whole tier. Without ``machine``, it is the trace's own, or else this computer,
    probed once a week. ``policy`` is a planner's name. Raises SettingError, InfeasibleBudgetError, or PlanError.
    """
    from ebbtide.pipeline.reading import step_on
    from ebbtide.planners import plan
    from ebbtide.planners.base import budget_of

    step, on = step_on(trace, machine)
    return plan(policy, step, on, budget_of(fast, step, on))


def simulate(
    trace: "Trace | _Path",
    plan: "Plan | _Path | None" = None,
    fast: "str | int | Budget | None" = None,
    *,
    machine: "Machine | _Path | None" = None,
    policy: str = "ebbtide",
    record: bool = False,
) -> "Outcome":
    """Simulate the steady step on the virtual clock, under ``plan`` (or its file) or under ``policy``.

    The budget of a plan is its own unless ``fast`` names another. ``policy`` is an online policy or a planner's name.
    ``record`` keeps what happens when, for ``outcome.timeline(name)``. Raises as ``plan`` does, and ValueError where a
    tick's storages do not fit the budget together.
    """
    from ebbtide.ir.plan import Plan
    from ebbtide.pipeline.reading import read_plan, step_on
    from ebbtide.pipeline.trials import simulate_named, simulate_plan
    from ebbtide.planners.base import budget_of

    step, on = step_on(trace, machine)
    if plan is not None:
        made = plan if isinstance(plan, Plan) else read_plan(Path(plan), step)
        return simulate_plan(made, step, on, made.budget_bytes if fast is None else budget_of(fast, step, on), record)
    return simulate_named(policy, step, on, budget_of(fast, step, on), record)[0]


def run(
    program: Sequence[_Path],
    *,
    fast: "str | int | Budget | None" = None,
    quiet: bool = False,
    settings: "Settings | None" = None,
    **named: Unpack[Named],
) -> int:
    """Run ``["train.py", "--epochs", "3"]`` or ``["-m", "package"]`` as ``__main__`` of this process, in a Session.

    Returns the exit status of ``ebbtide run``: the script's own, or 3 when it was not bounded or planned as asked.
    ``__main__``, ``sys.argv`` and ``sys.path[0]`` are the program's from then on. Raises what Session raises, and the
    BudgetError that ended the script.
    """
    if isinstance(program, str) or not program:
        raise SettingError('a program is a list: ["train.py", "--epochs", "3"] or ["-m", "package"]')
    from ebbtide.session.launch import find_program, on_interrupt, run_program
    from ebbtide.session.session import Session

    if quiet:
        named["progress"] = "off"
    session = Session(fast, settings=settings, **named)  # mistakes in settings are told before the program's
    before = signal.getsignal(signal.SIGINT)
    try:
        return run_program(find_program([os.fspath(part) for part in program]), session, quiet, goes_on=True)
    finally:
        on_interrupt(before)  # ignored since one ended the program
