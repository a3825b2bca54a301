"""The page's data about a plan, as plain values and columns: budgets, and the times when each storage is away."""

from typing import Any

import numpy as np

from ebbtide.analysis.explain_plan import PlanView
from ebbtide.ir.base import Origin
from ebbtide.ir.timeline import Timeline
from ebbtide.report.answers import TriedBudget, leaving
from ebbtide.report.subject import Subject


def budgets_data(subject: Subject) -> list[tuple[str, int]]:
    """Return the bounds of resident bytes: the run's budget and the plan's.

    The plan's is smaller, since it leaves a part of the run's to bytes that no trace shows.
    """
    run, plan = subject.run, subject.plan
    budgets = [] if run is None or run.arena_budget_bytes is None else [("budget", run.arena_budget_bytes)]
    if plan is not None:
        budgets.append(("plan's budget", plan.budget_bytes))
    return budgets


def own_budget(subject: Subject) -> TriedBudget | None:
    """Return the plan's own budget, with the time and bytes of its simulated timeline, or else its predicted time.

    Without a plan, this is the run's budget, with the figures of its measured timeline.
    """
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
    """Return the times when the plan has no room for storages on the fast tier, or None without a plan.

    A storage is away from tick ``gone`` up to ``back``, which is -1 if it does not come back. ``tier`` has it
    meanwhile.
    """
    if subject.trace is None or subject.plan is None:
        return None
    view = PlanView(subject.trace, subject.plan, subject.route.out.source if subject.route is not None else "")
    gaps = [(number, gap) for number in view.movers() for gap in view.gaps(number)]
    return {
        "storage": np.array([number for number, _ in gaps], dtype=np.int64),
        "gone": np.array([gap.gone for _, gap in gaps], dtype=np.int64),
        "back": np.array([-1 if gap.back is None else gap.back for _, gap in gaps], dtype=np.int64),
        "tier": [gap.tier for _, gap in gaps],
    }
