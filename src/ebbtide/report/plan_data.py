"""What the page shows of a plan: budgets, and when each storage is away, as plain values and columns."""

from typing import Any

import numpy as np

from ebbtide.analysis.explain_plan import PlanView
from ebbtide.ir.base import Origin
from ebbtide.ir.timeline import Timeline
from ebbtide.report.answers import TriedBudget, leaving
from ebbtide.report.subject import Subject


def budgets_data(subject: Subject) -> list[tuple[str, int]]:
    """What resident bytes stay below: the run's budget, and the plan's, which leaves a part of that to what no trace
    shows."""
    run, plan = subject.run, subject.plan
    budgets = [] if run is None or run.arena_budget_bytes is None else [("budget", run.arena_budget_bytes)]
    if plan is not None:
        budgets.append(("plan's budget" if budgets else "budget", plan.budget_bytes))
    return budgets


def own_budget(subject: Subject) -> TriedBudget | None:
    """That of the plan, with its time and its bytes as its simulated timeline has them, or with the time that it
    foresees; without a plan that of the run, as its measured timeline has it."""
    run, plan, trace = subject.run, subject.plan, subject.trace
    if plan is not None and trace is not None:
        leaves = leaving(trace, plan, subject.route.out.source if subject.route is not None else "")
        played = _timeline_of(subject, Origin.SIMULATED, plan.planner)
        if played is None:
            return TriedBudget("this plan, as predicted", plan.budget_bytes, plan.predicted_ns, None, leaves=leaves)
        return TriedBudget("this plan, simulated", plan.budget_bytes, played.step_ns, _moved(played), leaves=leaves)
    measured = _timeline_of(subject, Origin.MEASURED)
    if run is None or run.arena_budget_bytes is None or measured is None:
        return None
    return TriedBudget("this run, measured", run.arena_budget_bytes, measured.step_ns, _moved(measured))


def _timeline_of(subject: Subject, origin: Origin, policy: str | None = None) -> Timeline | None:
    found = (row for row in subject.timelines if row.origin is origin and policy in (None, row.policy))
    return next(found, None)


def _moved(timeline: Timeline) -> int:
    return sum(timeline.moved_bytes().values())


def away_data(subject: Subject) -> dict[str, Any] | None:
    """When the plan has no room for storages on the fast tier: from tick ``gone`` on up to ``back``, -1 if they do not
    come back; ``tier`` has them meanwhile. None without a plan."""
    if subject.trace is None or subject.plan is None:
        return None
    view = PlanView(subject.trace, subject.plan, subject.route.out.source if subject.route is not None else "")
    moved = sorted({stay.storage for stay in subject.plan.stays if stay.tier != view.fast})
    gaps = [(number, gap) for number in moved for gap in view.gaps(number)]
    return {
        "storage": np.array([number for number, _ in gaps], dtype=np.int64),
        "gone": np.array([gap.gone for _, gap in gaps], dtype=np.int64),
        "back": np.array([-1 if gap.back is None else gap.back for _, gap in gaps], dtype=np.int64),
        "tier": [gap.tier for _, gap in gaps],
    }
