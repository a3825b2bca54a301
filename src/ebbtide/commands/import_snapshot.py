"""``ebbtide import``: turns other programs' recordings into traces."""

from pathlib import Path

import click

from ebbtide.commands.examples import examples


def _number(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return the number in ``cuda:1``, as other commands write it, or in ``1``.

    Returns None for ``cuda``, which means the only device.
    """
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
    help="The device, if the snapshot has more than one: cuda:1, or its number alone.",
)
def import_snapshot(snapshot: Path, output: Path, device: int | None) -> None:
    """Read a CUDA memory snapshot as a trace.

    torch.cuda.memory._dump_snapshot wrote SNAPSHOT. It is read as plain data: nothing in it can run. It holds only
    allocations, so the trace does not show what needs accesses.
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
