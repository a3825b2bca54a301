"""``ebbtide compare``: all policies on one machine at several budgets, and how they stand over several steps."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ebbtide.commands.completion import policies
from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import Number, json_option, machines_options, traces_argument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbtide.ir.machine import Machine
    from ebbtide.ir.trace import Trace
    from ebbtide.pipeline.trials import Trial

DRAWS = 3
"""How often ``--noise`` changes the times of a step. The seeds are always the same."""


@click.command(
    epilog=examples(
        "ebbtide compare step.trace --fast 25%,50%",
        "ebbtide compare step.trace --machine g10 --policy ebbtide,g10,lru",
        "ebbtide compare *.trace --machine dram-cxl --fast 25%,8GiB --noise 25",
    ),
)
@traces_argument
@machines_options
@click.option(
    "--fast", metavar="LIST", default="15%,25%,50%,75%", show_default=True, help="Budgets: sizes, shares of the peak."
)
@click.option(
    *("--policy", "names"),
    metavar="LIST",
    shell_complete=policies,
    multiple=True,
    help="Planners and online policies, such as ebbtide,lru. Default: all. May be repeated.",
)
@click.option(
    "--noise",
    metavar="PERCENT",
    type=Number(0, 100, min_open=True, max_open=True),
    help=f"Simulate each plan {DRAWS} times more, with each operation's time changed by up to so much.",
)
@json_option
def compare(
    traces: tuple[Path, ...],
    machines: tuple[Path, ...],
    changes: tuple[str, ...],
    fast: str,
    names: tuple[str, ...],
    noise: float | None,
    as_json: bool,
) -> None:
    """Compare all policies on recorded steps, in one simulator.

    The gap is the distance to a time that no plan can beat. A hit, as in 10Cache, is a storage that is usable at once
    when its operation is reached, however long others waited for it. Exposed is the share of the step in which compute
    waits.

    Of several steps or machines, and with --noise, one table shows how the policies stand: the mean place, and for each
    budget the median of step over bound. Every step on every machine in every budget counts once. Budgets that hold
    everything, or in which nobody has a plan, do not count. --json has the figures of each.
    """
    from ebbtide.analysis.standings import Cell, places, standings
    from ebbtide.commands.inputs import budgets_of, read_step
    from ebbtide.commands.tables import show_standings
    from ebbtide.commands.trial_json import as_json as as_figures
    from ebbtide.commands.trial_json import print_json
    from ebbtide.commands.working import working
    from ebbtide.ir.occupancy import live_bytes, peak
    from ebbtide.pipeline.trials import again, named, noisy, try_policy
    from ebbtide.planners.base import page_size_of
    from ebbtide.units import format_bytes

    chosen = named(",".join(names) or None)
    steps = [(path, on, *read_step(path, on, changes)) for path in traces for on in machines or (None,)]
    budgets = [budgets_of(fast, step, machine) for _, _, step, machine in steps]
    stand = len(steps) > 1 or noise is not None
    cells: list[Cell] = []
    figures = []
    with working(sum(map(len, budgets)) * len(chosen)) as begin, begin.leaving_nothing():
        for (path, on, step, machine), its_budgets in zip(steps, budgets, strict=True):
            draws = [] if noise is None else [noisy(step, noise / 100, seed) for seed in range(DRAWS)]
            most = peak(live_bytes(step, page_size_of(machine)))
            for text, budget in its_budgets.items():
                rows, drawn = [], {}
                for policy in chosen:
                    begin(f"{policy} at {format_bytes(budget)}{f' of {path.stem}' if stand else ''}")
                    rows.append(try_policy(policy, step, machine, budget))
                    drawn[policy] = [again(rows[-1], draw, machine) for draw in draws]
                over_bound = {row.policy: row.over_bound for row in rows}
                counts = budget < most and any(over is not None for over in over_bound.values())
                if counts:
                    each = ({policy: overs[draw] for policy, overs in drawn.items()} for draw in range(len(draws)))
                    cells.append(Cell(text, over_bound, tuple(each)))
                rows.sort(key=lambda row: (row.outcome is None, row.outcome.step_ns if row.outcome else 0))
                place = places(over_bound)
                for row in rows:
                    more = {"trace": str(path), "fast": text, "place": place[row.policy], "counts": counts}
                    more |= {"noisy_over_bound": drawn[row.policy]}
                    figures.append(as_figures(row, step, machine) | more)
                if not as_json and not stand:
                    with begin.aside():
                        _show(rows, step, machine, on)
    found = standings(cells, [*budgets[0]])
    if as_json:
        print_json({"standings": [asdict(one) for one in found], "cells": figures} if stand else figures)
    elif stand:
        left_out = sum(map(len, budgets)) - len(cells)
        show_standings(found, len(cells), left_out)


def _show(rows: "Sequence[Trial]", step: "Trace", machine: "Machine", named: Path | None) -> None:
    """Show the policies in one budget."""
    from ebbtide.commands.tables import show, show_remaking, show_trials, whose_times
    from ebbtide.units import format_bytes

    fast_tier = machine.tiers[0].name
    simulated = f"simulated{whose_times(machine, named, step)}"
    title = f"{machine.name}: {format_bytes(rows[0].budget_bytes)} of {fast_tier}; {simulated}"
    show_trials(title, rows, step.step_ns, fast_tier)
    show_remaking(rows, step)
    show("")
