"""``ebbtide export``: writes a step for programs that read ``tiertrace/1``."""

from pathlib import Path

import click

from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import fast_option, machine_options, read_inputs, trace_argument
from ebbtide.session.driven import check_writable, written


@click.command(
    epilog=examples("ebbtide export step.trace --machine g10 -o step.json"),
)
@trace_argument
@machine_options
@fast_option
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), required=True, help="The file.")
def export(trace: Path, machine: Path | None, changes: tuple[str, ...], fast: str | None, output: Path) -> None:
    """Write a step as tiertrace/1, for other simulators.

    A tensor's id is the storage's number in TRACE. The file has the machine, too. It can take TRACE's place in all
    commands, but knows less. `ebbtide plan FILE --export tierplan/1` makes a plan for those who read it.
    """
    from ebbtide.ir.tiertrace import FORMAT, to_tiertrace
    from ebbtide.units import format_bytes
    from ebbtide.whole_file import write_whole

    check_writable({"step": output}, [trace, machine])
    step, on, budget_bytes = read_inputs(trace, machine, changes, fast)
    text = to_tiertrace(step, on.with_budget(budget_bytes))
    with written("step", output):
        write_whole(output, text.encode())
    tier = f"{format_bytes(budget_bytes)} of {on.tiers[0].name}"
    click.echo(f"{output}: {len(step.ticks):,} operations, {len(step.storages):,} storages, {tier}, as {FORMAT}")
