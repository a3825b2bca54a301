"""The virtual clock: what a schedule or a policy would do on a machine. Planners predict time with it; no torch here.

``links`` moves bytes, ``engine`` runs the step, ``policies`` decide online, ``result`` is what comes out.
"""

from ebbtide.errors import PlatformError, SettingError
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import PageSize, exact
from ebbtide.ir.schedule import Schedule
from ebbtide.ir.trace import Trace

try:
    import ebbtide._decider  # noqa: F401
except ImportError as error:
    raise PlatformError(
        f"Ebbtide's native decider cannot be loaded ({error}): install Ebbtide again (in a clone: make install)"
    ) from error

from ebbtide.simulate.engine import Run
from ebbtide.simulate.policies import POLICIES, Plan, Policy
from ebbtide.simulate.recost import is_modelled, recosted
from ebbtide.simulate.result import Outcome, Use

__all__ = ["POLICIES", "Outcome", "Use", "is_modelled", "recosted", "simulate", "simulate_policy"]


def simulate(
    schedule: Schedule,
    trace: Trace,
    machine: Machine,
    page_bytes: PageSize = exact,
    n_steps: int = 3,
    record: bool = False,
) -> Outcome:
    """The steady step under ``schedule``. The budget is the first tier's capacity (``machine.with_budget``).

    ``record`` asks for spans and levels. ValueError if a tick's storages do not fit the budget together.
    """
    return _run(Plan(), schedule, trace, machine, page_bytes, n_steps, record)


def simulate_policy(
    name: str,
    trace: Trace,
    machine: Machine,
    page_bytes: PageSize = exact,
    n_steps: int = 3,
    record: bool = False,
) -> Outcome:
    """The same under the online policy ``name``. SettingError for a name that is not in ``POLICIES``."""
    if name not in POLICIES:
        raise SettingError(f"there is no online policy {name!r:.80}; there are {', '.join(POLICIES)}")
    nothing = Schedule(trace.signature(), len(trace.ticks), ())
    return _run(POLICIES[name](), nothing, trace, machine, page_bytes, n_steps, record)


def _run(
    policy: Policy,
    schedule: Schedule,
    trace: Trace,
    machine: Machine,
    page_bytes: PageSize,
    n_steps: int,
    record: bool,
) -> Outcome:
    run = Run(schedule, trace, machine, page_bytes, policy)
    for step in range(n_steps):
        run.step(record and step == n_steps - 1)
    return run.record.outcome()
