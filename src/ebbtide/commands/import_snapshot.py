"""``ebbtide import``: what other programs recorded, as a trace."""

from pathlib import Path

import click


@click.command("import")
@click.argument("snapshot", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), required=True, help="The trace.")
@click.option("--device", type=click.IntRange(0), help="Which device's history, if the snapshot has more than one.")
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
