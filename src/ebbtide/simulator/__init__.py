"""The virtual clock: what a schedule or a policy would do on a machine. Planners predict time with it; no torch here.

``links`` moves bytes, ``engine`` runs the step, ``policies`` decide online, ``result`` is what comes out. What planners
ask, schedules without spans, ``native_engine`` runs, to the same figures.
"""

from ebbtide.errors import PlatformError, SettingError
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import PageSize, exact
from ebbtide.ir.plan import Plan as TracePlan
from ebbtide.ir.schedule import Schedule, no_commands
from ebbtide.ir.stay_columns import StayColumns, columns_of
from ebbtide.ir.trace import Trace
from ebbtide.simulator.measured_in_place import MeasuredInPlace

try:
    import ebbtide._planning  # noqa: F401
except ImportError as error:
    raise PlatformError(
        f"Ebbtide's native decider cannot be loaded ({error}): install Ebbtide again (in a clone: make install)"
    ) from error

from ebbtide.simulator.engine import Run
from ebbtide.simulator.lowering import lower, lower_stays
from ebbtide.simulator.modelled_times import is_modelled, recost
from ebbtide.simulator.native_engine import NativeEngine, is_native
from ebbtide.simulator.policies import POLICIES, Plan, Policy
from ebbtide.simulator.result import Outcome, Use

__all__ = [
    "POLICIES",
    "Outcome",
    "Simulator",
    "Use",
    "is_modelled",
    "recost",
    "simulate",
    "simulate_plan",
    "simulate_policy",
]


class Simulator:
    """One step on one machine, for many schedules. The budget is the first tier's capacity (``with_budget``)."""

    def __init__(self, trace: Trace, machine: Machine, page_bytes: PageSize = exact) -> None:
        self._trace, self._machine, self._page_bytes = trace, machine, page_bytes
        self._measured = MeasuredInPlace(trace, machine)
        self._native = NativeEngine(trace, machine, page_bytes) if is_native(trace, machine) else None

    def run(self, schedule: Schedule, n_steps: int = 3, record: bool = False, policy: Policy | None = None) -> Outcome:
        """The steady step, the last of ``n_steps``; ``record`` asks for its spans and levels. ValueError if a tick's
        storages do not fit the budget together."""
        if self._native is not None and policy is None and not record:
            return self._native.figures(schedule, n_steps).outcome(self._machine)
        return self._in_python(schedule, n_steps, record, policy or Plan())

    def run_stays(self, stays: StayColumns, n_steps: int = 3) -> Outcome:
        """The same under the plan that has these stays, and all other storages in the first tier all their lives."""
        if self._native is not None:
            return self._native.figures_of_stays(stays, n_steps).outcome(self._machine)
        return self._in_python(lower_stays(stays, self._trace, self._machine), n_steps, False, Plan())

    def run_plan(self, plan: TracePlan, n_steps: int = 3) -> Outcome:
        """The same under a plan, which MUST have been checked."""
        if self._native is not None:
            names = [tier.name for tier in self._machine.tiers]
            elsewhere = {stay.storage for stay in plan.stays if stay.tier != names[0]}
            return self.run_stays(
                columns_of([stay for stay in plan.stays if stay.storage in elsewhere], names), n_steps
            )
        return self.run(lower(plan, self._trace, self._machine), n_steps)

    def _in_python(self, schedule: Schedule, n_steps: int, record: bool, policy: Policy) -> Outcome:
        run = Run(schedule, self._trace, self._machine, self._page_bytes, policy, self._measured)
        for step in range(n_steps):
            run.step(record and step == n_steps - 1)
        return run.record.outcome()


def simulate(
    schedule: Schedule,
    trace: Trace,
    machine: Machine,
    page_bytes: PageSize = exact,
    n_steps: int = 3,
    record: bool = False,
) -> Outcome:
    """The steady step under one schedule: see ``Simulator``."""
    return Simulator(trace, machine, page_bytes).run(schedule, n_steps, record)


def simulate_plan(plan: TracePlan, trace: Trace, machine: Machine, page_bytes: PageSize = exact) -> Outcome:
    """The steady step under a plan, which MUST have been checked."""
    return Simulator(trace, machine, page_bytes).run_plan(plan)


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
    return Simulator(trace, machine, page_bytes).run(no_commands(), n_steps, record, POLICIES[name]())
