"""Shows trials as JSON, for programs."""

import json
from collections.abc import Sequence
from typing import Any

import click

from ebbtide.ir.machine import Machine
from ebbtide.ir.remakes import made_anew
from ebbtide.ir.trace import Trace
from ebbtide.pipeline.trials import Trial
from ebbtide.simulator import is_modelled


def as_json(row: Trial, trace: Trace, machine: Machine) -> dict[str, Any]:
    """Return all figures of a row as plain values.

    All are simulated. ``compute`` is the origin of the operations' times.
    """
    head = {
        "policy": row.policy,
        "machine": machine.name,
        "origin": "simulated",
        "compute": "modelled" if is_modelled(machine) else str(trace.origin),
        "budget_bytes": row.budget_bytes,
        "feasible": row.outcome is not None,
        "resident_ns": trace.step_ns,
        "lower_bound_ns": row.bound_ns,
        "took_s": round(row.took_s, 3),
    }
    if row.outcome is None or row.costs is None:
        return {**head, "why_not": row.why_not}
    outcome, costs = row.outcome, row.costs
    made_anew_bytes, made_anew_ns = (0, 0) if row.planned is None else made_anew(row.planned, trace)
    return {
        **head,
        "step_ns": outcome.step_ns,
        "gap": row.gap,
        "planned_ns": None if row.planned is None else row.planned.predicted_ns,
        "status": None if row.planned is None else str(row.planned.status),
        "stalls_ns": {str(kind): spent for kind, spent in outcome.stalls.items()},
        "exposed_share": outcome.exposed_ns / max(outcome.step_ns, 1),
        "in_place_ns": outcome.slower_ns,
        "hit_rate": outcome.hit_rate,
        "demand_fetches": outcome.demand_fetches,
        "demand_fetch_bytes": outcome.demand_bytes,
        "rescues": outcome.rescues,
        "made_anew_bytes": made_anew_bytes,
        "made_anew_ns": made_anew_ns,
        "tiers": {
            name: {
                "mean_bytes": use.mean_bytes,
                "peak_bytes": use.peak_bytes,
                "read_bytes": use.read_bytes,
                "written_bytes": use.written_bytes,
                "utilisation": costs.tier_utilisation.get(name),
                "wear_bytes": costs.written_bytes[name],
                "wears_out_years": costs.years.get(name),
            }
            for name, use in outcome.tiers.items()
        },
        "links": {
            name: {"moved_bytes": outcome.moved_bytes.get(name, 0), "utilisation": share}
            for name, share in costs.link_utilisation.items()
        },
        "energy_j": {
            "moves": costs.moves_j,
            "accesses": costs.accesses_j,
            "static": costs.static_j,
            "compute": costs.compute_j,
            "all": costs.energy_j,
        },
        "steps_per_j": costs.steps_per_j,
        "memory_usd": costs.memory_usd,
        "step_usd": costs.step_usd,
    }


def print_json(rows: Sequence[dict[str, Any]] | dict[str, Any]) -> None:
    click.echo(json.dumps(rows, indent=1, allow_nan=False))
