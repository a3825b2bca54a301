"""``ebbtide compare``: all policies on one machine, at several budgets."""

from pathlib import Path

import click

from ebbtide.commands.inputs import machine_options, trace_argument


@click.command()
@trace_argument
@machine_options
@click.option(
    "--fast", metavar="LIST", default="15%,25%,50%,75%", show_default=True, help="Budgets: sizes, shares of the peak."
)
@click.option("--policies", "names", metavar="LIST", help="Planners and online policies. Default: all of them.")
@click.option("--json", "json_file", metavar="FILE", type=click.Path(path_type=Path), help="Write all figures.")
def compare(
    trace: Path,
    machine: Path | None,
    changes: tuple[str, ...],
    fast: str,
    names: str | None,
    json_file: Path | None,
) -> None:
    """Compare all policies on a recorded step, in one simulator.

    The gap is to a time that no plan can beat. Hits are counted as 10Cache does: what can be used at once when its
    operation is reached, however long others waited for it; exposed is the share of the step in which compute waits.
    Where our own plan's gap is above 2 %, a line says which constraint the bound relaxes so that it is loose.
    """
    from ebbtide.commands.inputs import budgets_of, read_step
    from ebbtide.commands.tables import COLUMNS, cells, show, table_of
    from ebbtide.commands.trial_json import as_json, write_json
    from ebbtide.simulator import is_modelled
    from ebbtide.trials import explain_looseness, named, try_policy
    from ebbtide.units import format_bytes

    chosen = named(names)
    step, its_machine = read_step(trace, machine, changes)
    written = []
    for budget in budgets_of(fast, step, its_machine):
        rows = [try_policy(policy, step, its_machine, budget) for policy in chosen]
        rows.sort(key=lambda row: (row.outcome is None, row.outcome.step_ns if row.outcome else 0))
        compute = ", operations' times modelled" if is_modelled(its_machine) else ""
        fast_tier = its_machine.tiers[0].name
        table = table_of(f"{its_machine.name}: {format_bytes(budget)} of {fast_tier}{compute}; simulated", COLUMNS)
        for row in rows:
            table.add_row(*cells(row, step.step_ns, fast_tier))
        show(table)
        for row in rows:
            loose = explain_looseness(row, step, its_machine)
            if loose is not None:
                show(f"{row.policy}, gap {loose.gap:.1%}: {loose.sentence()}")
            written.append(as_json(row, step, its_machine) | {"loose": None if loose is None else loose.as_json()})
        show("")
        if json_file is not None:
            write_json(written, json_file)
