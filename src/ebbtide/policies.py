"""What a session plans with: a planner by its name or a plan from a file, a machine from a file or from a probe."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ebbtide.errors import FileFormatError, PlanError, SettingError
from ebbtide.ir.check import require_valid
from ebbtide.ir.files import load, save
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import arena_pages
from ebbtide.ir.plan import Plan
from ebbtide.ir.timeline import Timeline
from ebbtide.ir.trace import Trace
from ebbtide.machines import find_machine
from ebbtide.planners import PLANNERS, plan
from ebbtide.planners.base import Planner
from ebbtide.settings import Settings

DEMAND = "demand"
"""The policy that plans nothing: every fetch is forced."""


@dataclass(frozen=True, slots=True)
class Files:
    """What is read in place of planning, and what is written of it."""

    plan: Path | None
    save_trace: Path | None
    save_plan: Path | None
    save_timeline: Path | None

    @staticmethod
    def of(settings: Settings) -> "Files":
        paths = (settings.plan, settings.save_trace, settings.save_plan, settings.save_timeline)
        return Files(*(Path(path).absolute() if path is not None else None for path in paths))

    def check_unused(self) -> None:
        """Raises SettingError where something was asked for that demand mode does not have."""
        if any((self.plan, self.save_trace, self.save_plan, self.save_timeline)):
            raise SettingError(
                "the policy demand makes no plan: choose another to read or save a plan, a trace or a timeline"
            )

    def save(self, trace: Trace, made: Plan) -> None:
        """The first trace and its plan, where they are asked for. Raises OSError."""
        if self.save_trace is not None:
            save(trace, self.save_trace)
        if self.save_plan is not None:
            save(made, self.save_plan)

    def timeline_saver(self) -> Callable[[Timeline], None] | None:
        """None where no timeline is asked for; it raises OSError."""
        path = self.save_timeline
        return None if path is None else lambda timeline: save(timeline, path)


def planner_named(policy: str) -> Planner:
    """Raises SettingError when there is none."""
    if policy not in PLANNERS:
        raise SettingError(f"there is no policy {policy!r:.80}; there are {', '.join((DEMAND, *PLANNERS))}")
    return lambda trace, machine, budget_bytes: plan(policy, trace, machine, budget_bytes)


def planner_from(path: Path) -> Planner:
    """Returns the plan in the file for the step it was made for. Raises SettingError when it cannot be read."""
    try:
        stored = load(path, Plan)
    except (OSError, FileFormatError) as error:
        raise SettingError(f"the plan {path} cannot be used: {error}") from error

    def planner(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
        if stored.signature != trace.signature():
            raise PlanError((f"the plan in {path} was made for a step with other storages",))
        require_valid(stored, trace, machine, arena_pages)
        return stored

    return planner


def machine_for(settings: Settings, spill: Sequence[Path]) -> Machine:
    """From its file, or measured (once for each set of spill directories, then remembered). Raises SettingError."""
    if settings.machine is None:
        from ebbtide.probe.quick import probe_quick

        return probe_quick(spill, settings.io_threads)
    return find_machine(settings.machine)
