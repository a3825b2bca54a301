"""The cost of smaller budgets on a machine, for ``ebbtide analyze`` and the page of ``ebbtide report``."""

from time import perf_counter
from typing import Any

from ebbtide.commands.machine_changes import with_links
from ebbtide.commands.working import working
from ebbtide.ir.machine import Machine
from ebbtide.ir.trace import Trace
from ebbtide.pipeline.trials import try_policy
from ebbtide.planners.base import budget_of
from ebbtide.report.answers import SMALL_COST, TriedBudget, leaving

SHARES = ("75%", "50%", "25%", "10%")
PATIENCE_S = 30.0
"""After this long, no further budget is tried; the others are marked as untried."""


def try_budgets(trace: Trace, machine: Machine) -> tuple[TriedBudget, ...]:
    """Try ``SHARES`` of the step's peak with the default planner, the largest first."""
    began = perf_counter()
    found = []
    with working(len(SHARES)) as begin, begin.leaving_nothing():
        for share in SHARES:
            if perf_counter() - began > PATIENCE_S:
                found.append(TriedBudget(share, budget_of(share, trace, machine), None, untried=True))
                continue
            begin(f"planning for {share} of the peak")
            found.append(_try(share, trace, machine))
    return tuple(found)


def as_figures(row: TriedBudget, machine: Machine) -> dict[str, Any]:
    """Return figures for programs, named as in ``ebbtide compare --json``. Those of an untried budget are None."""
    return {
        "machine": machine.name,
        "origin": "simulated",
        "fast": row.name,
        "budget_bytes": row.nbytes,
        "feasible": None if row.untried else row.step_ns is not None,
        "step_ns": row.step_ns,
        "moved_bytes": row.moved_bytes if row.step_ns is not None else None,
        "faster_links_ns": row.faster_ns,
        "why_not": row.why_not,
        "least_bytes": row.least_bytes,
    }


def _try(share: str, trace: Trace, machine: Machine) -> TriedBudget:
    nbytes = budget_of(share, trace, machine)
    tried = try_policy("ebbtide", trace, machine, nbytes)
    if tried.outcome is None:
        return TriedBudget(share, nbytes, None, why_not=tried.why_not, least_bytes=tried.least_bytes)
    faster_ns = None
    if tried.outcome.step_ns > SMALL_COST * trace.step_ns:
        faster = try_policy("ebbtide", trace, with_links(machine, 2), nbytes)
        faster_ns = None if faster.outcome is None else faster.outcome.step_ns
    moved = sum(tried.outcome.moved_bytes.values())
    leaves = () if tried.planned is None else leaving(trace, tried.planned, machine.tiers[0].name)
    return TriedBudget(share, nbytes, tried.outcome.step_ns, moved, faster_ns, leaves=leaves)
