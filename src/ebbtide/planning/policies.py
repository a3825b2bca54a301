"""The planner and the machine of a session: a planner by name or a plan's file, a machine's file or a probe."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ebbtide.errors import OTHER_STORAGES, FileFormatError, PlanError, SettingError, unknown_name
from ebbtide.ir.check import require_valid
from ebbtide.ir.files import load
from ebbtide.ir.machine import InPlace, Machine
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.plan import Plan, PlanStatus
from ebbtide.ir.trace import Trace
from ebbtide.machines import find_machine
from ebbtide.planners import DEFAULT, PLANNERS, plan
from ebbtide.planners.base import Planner, page_size_of
from ebbtide.planners.resident import resident
from ebbtide.settings import Settings, TierKind
from ebbtide.simulator import POLICIES, SCORES, simulate_plan, simulate_policy
from ebbtide.terminal import warn_user
from ebbtide.whole_file import write_whole

if TYPE_CHECKING:
    from ebbtide.planning.plan_job import Ask

DEMAND = "demand"
"""The policy that plans nothing: every fetch is forced."""

NEXT_USE = "lru-next-use"
"""The online policy that has to know the step. The step is recorded, then followed without a command."""


@dataclass(frozen=True, slots=True)
class Files:
    """Files that are read in place of planning, and files that are written."""

    plan: Path | None
    save_trace: Path | None
    save_plan: Path | None
    save_timeline: Path | None

    @staticmethod
    def of(settings: Settings) -> "Files":
        paths = (settings.plan, settings.save_trace, settings.save_plan, settings.save_timeline)
        return Files(*(Path(path).absolute() if path is not None else None for path in paths))

    def check_unused(self, machine: str | None) -> None:
        """Raise SettingError for a wish that demand mode cannot meet."""
        if any((self.plan, self.save_trace, self.save_plan, self.save_timeline, machine)):
            raise SettingError(
                "an online policy makes no plan: choose a planner to read or save a plan, a trace or a timeline, or to "
                "plan for a machine that is named"
            )

    def save(self, trace: bytes, made: bytes) -> None:
        """Write the first trace and its plan (files' bytes) where they are asked for. Raises OSError."""
        if self.save_trace is not None:
            write_whole(self.save_trace, trace)
        if self.save_plan is not None:
            write_whole(self.save_plan, made)

    def saved_with_a_plan(self) -> str:
        """Name in words what ``save`` writes; "" for nothing."""
        asked = (("trace", self.save_trace), ("plan", self.save_plan))
        return " and no ".join(what for what, path in asked if path is not None)

    def timeline_saver(self) -> Callable[[bytes], None] | None:
        """Return a function that writes a timeline's bytes and raises OSError; None where no timeline is asked for."""
        path = self.save_timeline
        return None if path is None else lambda timeline: write_whole(path, timeline)


def is_planned(policy: str) -> bool:
    """Tell whether steps are recorded for a policy. Raises SettingError for an unknown name."""
    if policy in POLICIES:
        return policy == NEXT_USE
    if policy in PLANNERS:
        return True
    if policy in SCORES:
        raise SettingError(f"the policy {policy!r} of another package can be simulated only: a run asks native code")
    raise unknown_name("policy", policy, (*POLICIES, *PLANNERS))


def decider_policy(policy: str) -> str:
    """Return the native decider's name of the policy that evicts where no schedule says so."""
    return policy if policy in POLICIES else DEMAND


def takes_effort(policy: str) -> bool:
    """Tell whether the policy's planner finds better plans if it may try more."""
    return policy == DEFAULT


def planner_named(policy: str, effort: int = 1, wear: float = 0.0) -> Planner:
    """Find a planner. Raises SettingError for an unknown name."""
    if policy == NEXT_USE:
        return without_commands
    is_planned(policy)
    return lambda trace, machine, budget_bytes: plan(policy, trace, machine, budget_bytes, effort, wear)


def without_commands(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
    """Make a plan in which all storages stay, so no command moves one. The decider knows each storage's next use by
    it.

    The predicted time is that of Belady's rule in the simulator. The plan keeps no budget; the decider does.
    """
    found = simulate_policy(NEXT_USE, trace, machine.with_budget(budget_bytes), page_size_of(machine))
    return replace(
        resident(trace, machine, peak(live_bytes(trace, page_size_of(machine)))),
        planner=NEXT_USE,
        status=PlanStatus.FEASIBLE,
        budget_bytes=budget_bytes,
        predicted_ns=max(found.step_ns, trace.step_ns),
        lower_bound_ns=trace.step_ns,
    )


def planner_from(path: Path) -> Planner:
    """Make a planner that returns a file's plan for its own step, with the times of the step and machine at hand.
    Raises SettingError if the plan cannot be read."""
    try:
        stored = load(path, Plan)
    except FileFormatError as error:  # the error names the file
        raise SettingError(f"no plan that can be used: {error}") from error

    def planner(trace: Trace, machine: Machine, budget_bytes: int) -> Plan:
        if stored.signature != trace.signature():
            raise PlanError((OTHER_STORAGES,))
        require_valid(stored, trace, machine, page_size_of(machine))
        here = machine.with_budget(stored.budget_bytes)
        found = simulate_plan(stored, trace, here, page_size_of(machine))
        return replace(
            stored,
            status=PlanStatus.FEASIBLE,
            predicted_ns=max(found.step_ns, trace.step_ns),
            lower_bound_ns=trace.step_ns,
        )

    return planner


def asks_child(policy: str, plan: Path | None) -> "Ask":
    """Have jobs carried out by processes of their own. Raises SettingError for a plan that cannot be read."""
    from ebbtide.planning.plan_child import PlanningProcess

    if plan is not None:
        planner_from(plan)
    return lambda job: PlanningProcess(job, policy, plan)


def machine_for(settings: Settings, spill: Sequence[Path], say: Callable[[str], None] = lambda text: None) -> Machine:
    """Return the machine: its file's, or a measured one. A probe says so with ``say``. It measures each set of spill
    directories once, and then remembers it.

    Raises SettingError for a file that cannot be read, and for a machine with tiers that a run does not have. Only
    memory of NUMA nodes is used in place. Where the file has another such tier, an EbbtideWarning says so.
    """
    if settings.machine is None:
        from ebbtide.host.process import on_all_cpus
        from ebbtide.probe.quick import probe_quick
        from ebbtide.probe.tiers_between import with_tiers

        with on_all_cpus():
            machine = probe_quick(spill, settings.io_threads, say=say)
            return with_tiers(machine, settings.tiers) if settings.tiers else machine
    machine = find_machine(settings.machine)
    between = [tier.name for tier in settings.tiers]
    if [tier.name for tier in machine.tiers[1:-1]] != between or len(machine.tiers) < 2:
        raise SettingError(
            f"the machine {settings.machine} has {len(machine.tiers)} tiers "
            f"({', '.join(tier.name for tier in machine.tiers)}), and this run has {len(between) + 2}: "
            f"{', '.join(['memory', *between])} and the spill file. Name a machine that has those of `--tier` between "
            "its first and its last (`ebbtide probe` with the same `--tier` writes one), or no machine; `ebbtide "
            "plan`, `simulate` and `compare` plan for all tiers"
        )
    nodes = {tier.name for tier in settings.tiers if tier.kind is TierKind.NUMA}
    if in_place := [tier.name for tier in machine.tiers[1:] if tier.in_place.reads and tier.name not in nodes]:
        warn_user(
            f"the machine {settings.machine} lets operations use {', '.join(in_place)} in place. A run moves "
            f"whatever an operation uses into {machine.tiers[0].name}, so it is planned without that; `ebbtide plan`, "
            "`simulate` and `compare` have it"
        )
    packing = {tier.name for tier in settings.tiers if tier.kind is TierKind.COMPRESSED}
    slower = tuple(
        tier if tier.name in nodes else replace(tier, in_place=InPlace.NOTHING, packs=tier.name in packing)
        for tier in machine.tiers[1:]
    )
    return replace(machine, tiers=(machine.tiers[0], *slower))
