"""Planners by name: each makes a Plan of a Trace, a Machine and a budget. ``plan`` returns only plans that keep their
promises.

A planner is a pure function in a file of its own; ``resident`` is the smallest. None imports torch. Another package
adds one by an entry point in the group ``ebbtide.planners``; ``docs/planners.md`` shows how.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING
from warnings import warn

from ebbtide.errors import EbbtideWarning, PlanError, SettingError, unknown_name
from ebbtide.ir.check import require_valid
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan, PlanStatus
from ebbtide.ir.trace import Trace
from ebbtide.planners.base import Planner, page_size_of, require_tiers
from ebbtide.planners.ebbtide import ebbtide
from ebbtide.planners.published.ati_outliers import ati_outliers
from ebbtide.planners.published.autotm import autotm_async, autotm_static, autotm_sync
from ebbtide.planners.published.capuchin import capuchin
from ebbtide.planners.published.chen import chen
from ebbtide.planners.published.g10 import g10
from ebbtide.planners.published.sentinel import sentinel
from ebbtide.planners.published.ten_cache import ten_cache
from ebbtide.planners.published.tiertrain import tiertrain
from ebbtide.planners.published.tm_training import tm_training
from ebbtide.planners.published.zero_infinity import zero_infinity
from ebbtide.planners.resident import resident
from ebbtide.planners.search.bound import lower_bound_ns
from ebbtide.planners.search.make_plan import held_bytes
from ebbtide.simulator import simulate_plan

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "ebbtide.planners"

DEFAULT = "ebbtide"
"""Our own planner. The gap of another planner is due first of all to its method."""

BUILT_IN: Mapping[str, Planner] = {
    "10cache": ten_cache,
    "ati-outliers": ati_outliers,
    "autotm-async": autotm_async,
    "autotm-static": autotm_static,
    "autotm-sync": autotm_sync,
    "capuchin": capuchin,
    "chen": chen,
    "ebbtide": ebbtide,
    "g10": g10,
    "resident": resident,
    "sentinel": sentinel,
    "tiertrain": tiertrain,
    "tm-training": tm_training,
    "zero-infinity": zero_infinity,
}


class Registry(Mapping[str, Planner]):
    """The planners of this package and of others, sorted by name.

    Another package's planner is loaded when it is asked for. One with the name of a planner of ours is ignored, with an
    EbbtideWarning. Two with the same name are an error when the name is asked for.
    """

    @cached_property
    def _others(self) -> "dict[str, list[EntryPoint]]":
        from importlib.metadata import entry_points  # a fifth of the time that starting a planning process takes

        found: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=GROUP):
            if entry.name in BUILT_IN:
                warn(
                    f"{_package(entry)} has a planner {entry.name!r} as well; ours is used",
                    EbbtideWarning,
                    stacklevel=4,
                )
            else:
                found.setdefault(entry.name, []).append(entry)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(BUILT_IN.keys() | self._others.keys()))

    def __len__(self) -> int:
        return len(BUILT_IN) + len(self._others)

    def __contains__(self, name: object) -> bool:
        return name in BUILT_IN or name in self._others

    def __getitem__(self, name: str) -> Planner:
        """Return a planner. Raises KeyError for an unknown name, and SettingError, which names the package, if loading
        fails."""
        if name in BUILT_IN:
            return BUILT_IN[name]
        entries = self._others[name]
        packages = ", ".join(sorted(_package(entry) for entry in entries))
        if len(entries) > 1:
            raise SettingError(f"several packages have a planner {name!r}: {packages}. Uninstall all but one of them.")
        try:
            planner = entries[0].load()
        except Exception as error:  # any error that another package raises when it is imported
            raise SettingError(
                f"the planner {name!r} of {packages} cannot be loaded: {type(error).__name__}: {error}. Mend or "
                "uninstall that package."
            ) from error
        if not callable(planner):
            raise SettingError(f"the planner {name!r} of {packages} is not a function: {entries[0].value}")
        found: Planner = planner
        return found


def _package(entry: "EntryPoint") -> str:
    return f"the package {entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown package"


PLANNERS: Mapping[str, Planner] = Registry()


def plan(name: str, trace: Trace, machine: Machine, budget_bytes: int, effort: int = 1) -> Plan:
    """Return the checked plan of the planner ``name``, with our bound if it has none (0). Our own planner tries
    ``effort`` times as much.

    Raises SettingError for an unknown name, and InfeasibleBudgetError for a budget that no plan can keep. Raises
    TiersTooSmallError where all tiers together have too little room. Raises PlanError for a plan that breaks a promise,
    which is a bug of the planner.
    """
    if name not in PLANNERS:
        raise unknown_name("planner", name, [*PLANNERS])
    try:
        planner = partial(ebbtide, effort=effort) if name == DEFAULT else PLANNERS[name]
        found = planner(trace, machine, budget_bytes)
    except PlanError:
        require_tiers(trace, machine, budget_bytes)
        raise
    if not isinstance(found, Plan):
        raise PlanError((f"the planner {name} returned {type(found).__name__} instead of a Plan",))
    kept = machine.with_budget(budget_bytes)
    if found.status is PlanStatus.OVER_BUDGET:
        kept = replace(machine, tiers=(replace(machine.tiers[0], capacity_bytes=None), *machine.tiers[1:]))
    require_valid(found, trace, kept, page_size_of(machine))
    return found if found.lower_bound_ns else _bounded(found, trace, machine)


def _bounded(found: Plan, trace: Trace, machine: Machine) -> Plan:
    """Give a plan without a bound ours, and one that predicts less than that its simulated time."""
    capacity_bytes = max(held_bytes(trace, machine, found.stays), found.budget_bytes)
    enough = replace(machine, tiers=(replace(machine.tiers[0], capacity_bytes=capacity_bytes), *machine.tiers[1:]))
    bound_ns, predicted_ns = lower_bound_ns(trace, machine, capacity_bytes), found.predicted_ns
    if predicted_ns < bound_ns:
        predicted_ns = max(simulate_plan(found, trace, enough, page_size_of(machine)).step_ns, bound_ns)
    return replace(found, predicted_ns=predicted_ns, lower_bound_ns=bound_ns)
