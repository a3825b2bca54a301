"""What the page shows of a plan: budgets, and when each storage is away, as plain values and columns."""

from typing import Any

import numpy as np

from ebbtide.analysis.explain_plan import PlanView
from ebbtide.report.subject import Subject


def budgets_data(subject: Subject) -> list[tuple[str, int]]:
    """What resident bytes stay below: the run's budget, and the plan's, which leaves a part of that to what no trace
    shows."""
    run, plan = subject.run, subject.plan
    budgets = [] if run is None or run.arena_budget_bytes is None else [("budget", run.arena_budget_bytes)]
    if plan is not None:
        budgets.append(("plan's budget" if budgets else "budget", plan.budget_bytes))
    return budgets


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
