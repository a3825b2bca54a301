"""The virtual clock: it shows how a schedule or a policy would run on a machine. Planners predict time with it; no
torch here.

``engine`` runs the step natively, ``lowering`` makes the schedule of a plan, ``result`` holds the outcome.
``docs/simulator.md`` is the model.
"""

from dataclasses import replace

from ebbtide.errors import PlatformError, SettingError
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import PageSize, exact
from ebbtide.ir.plan import Plan
from ebbtide.ir.remakes import split_plan
from ebbtide.ir.schedule import Schedule, no_commands
from ebbtide.ir.trace import Trace

try:
    from ebbtide._planning import POLICIES
except ImportError as error:
    raise PlatformError(
        f"Ebbtide's native decider cannot be loaded ({error}): install Ebbtide again (in a clone: make install)"
    ) from error

from ebbtide.simulator.engine import Simulator
from ebbtide.simulator.lowering import lower
from ebbtide.simulator.modelled_times import is_modelled, recost
from ebbtide.simulator.result import Outcome, Use
from ebbtide.simulator.scores import SCORES, Candidates

__all__ = [
    "POLICIES",
    "SCORES",
    "Candidates",
    "Outcome",
    "Simulator",
    "Use",
    "is_modelled",
    "recost",
    "simulate",
    "simulate_plan",
    "simulate_policy",
]


def simulate(
    schedule: Schedule,
    trace: Trace,
    machine: Machine,
    page_bytes: PageSize = exact,
    n_steps: int = 3,
    record: bool = False,
) -> Outcome:
    """Simulate the steady step under one schedule: see ``Simulator``."""
    return Simulator(trace, machine, page_bytes).run(schedule, n_steps, record)


def simulate_plan(
    plan: Plan, trace: Trace, machine: Machine, page_bytes: PageSize = exact, record: bool = False
) -> Outcome:
    """Simulate the steady step under a plan, which MUST have been checked. What it remakes takes time at its tick."""
    if not record:
        return Simulator(trace, machine, page_bytes).run_plan(plan)
    plan, trace, storages = split_plan(plan, trace)
    found = simulate(lower(plan, trace, machine), trace, machine, page_bytes, record=True)
    spans = (
        span if span.storage is None else replace(span, storage=int(storages[span.storage])) for span in found.spans
    )
    return replace(found, spans=tuple(spans))


def simulate_policy(
    name: str,
    trace: Trace,
    machine: Machine,
    page_bytes: PageSize = exact,
    n_steps: int = 6,
    record: bool = False,
) -> Outcome:
    """Simulate a step under the online policy ``name``: the mean of all after the second. Raises SettingError unless
    ``POLICIES`` or another package has it."""
    if name not in POLICIES and name in SCORES:
        return Simulator(trace, machine, page_bytes).run_scored(name, SCORES[name], n_steps, record)
    if name not in POLICIES:
        raise SettingError(f"there is no online policy {name!r:.80}; there are {', '.join([*POLICIES, *SCORES])}")
    return Simulator(trace, machine, page_bytes).run(no_commands(), n_steps, record, POLICIES[name])
