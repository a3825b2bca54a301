"""``ebbtide import``: what other programs recorded, as a trace."""

from pathlib import Path

import click

from ebbtide.commands.examples import examples


def _number(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Of ``cuda:1``, as other commands have it, or of ``1``; None, which is the only one there is, of ``cuda``."""
    if text is None or text == "cuda":
        return None
    number = text.removeprefix("cuda:")
    if not (number.isascii() and number.isdecimal() and len(number) < 4):
        raise click.BadParameter(f"{text!r:.80} is not understood; accepted: cuda, cuda:NUMBER or NUMBER")
    return int(number)


@click.command(
    "import",
    epilog=examples(
        "ebbtide import snapshot.pickle -o step.trace",
        "ebbtide import snapshot.pickle --device cuda:1 -o step.trace",
    ),
)
@click.argument("snapshot", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), required=True, help="The trace.")
@click.option(
    "--device",
    metavar="DEVICE",
    callback=_number,
    help="Whose history, if the snapshot has more than one: cuda:1, or its number alone.",
)
def import_snapshot(snapshot: Path, output: Path, device: int | None) -> None:
    """Read a CUDA memory snapshot as a trace.

    SNAPSHOT is what torch.cuda.memory._dump_snapshot wrote. It is read as plain data: nothing in it can run. It holds
    allocations only, so whatever needs accesses is not available from the trace.
    """
    from ebbtide.capture.snapshot import read_snapshot
    from ebbtide.ir.files import save
    from ebbtide.ir.occupancy import live_bytes, peak
    from ebbtide.units import format_bytes

    trace = read_snapshot(snapshot, device)
    save(trace, output)
    counts = f"{len(trace.ticks):,} allocations and releases, {len(trace.storages):,} storages"
    most = format_bytes(peak(live_bytes(trace)))
    click.echo(f"{output}: {trace.name}: {counts}, peak {most}; accesses are not known")
