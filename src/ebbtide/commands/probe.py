"""``ebbtide probe``: this machine as a file."""

from pathlib import Path

import click


@click.command()
@click.option("--spill", metavar="DIR", multiple=True, help="A directory to measure, as for `ebbtide run`.")
@click.option(
    "--seconds", type=click.FloatRange(1, 3600), default=12.0, show_default=True, help="About how long to measure."
)
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write the machine as TOML, for planners."
)
def probe(spill: tuple[str, ...], seconds: float, output: Path | None) -> None:
    """Measure this machine: memory, the spill directory, and what moving costs the operations beside it.

    Shows each figure's median and quartiles. Up to 1 GiB is written to unnamed files, which leave nothing behind.
    """
    from ebbtide.probe.command import probe_and_write

    probe_and_write(spill, seconds, output, click.echo)
