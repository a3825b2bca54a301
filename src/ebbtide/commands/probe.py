"""``ebbtide probe``: this machine as a file."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ebbtide.commands.examples import examples
from ebbtide.commands.inputs import Number, spill_option
from ebbtide.commands.program import tier_option

if TYPE_CHECKING:
    from ebbtide.ir.machine import Machine


@click.command(epilog=examples("ebbtide probe -o machine.toml", "ebbtide probe --tier numa:1:32GiB -o machine.toml"))
@spill_option("A directory to measure, as for `ebbtide run`.")
@tier_option("A tier to measure, as for `ebbtide run`.")
@click.option(
    "--device",
    metavar="NAME",
    help="Measure copies between an accelerator and pinned host memory instead.",
)
@click.option(
    "--seconds",
    type=Number(1, 3600),
    default=12.0,
    show_default=True,
    help="About so many seconds of measuring, besides making the files.",
)
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write the machine as TOML, for planners."
)
def probe(
    spill: tuple[str, ...],
    tiers: str | None,
    device: str | None,
    seconds: float,
    output: Path | None,
) -> None:
    """Measure this machine, for plans and simulations.

    Measures how fast memory and the spill directory are, and how much moving slows the operations beside it. Shows each
    figure's median and quartiles. Up to 1 GiB is written to unnamed files, which leave nothing behind.
    """
    from ebbtide.commands.working import working
    from ebbtide.probe.command import probe_and_write
    from ebbtide.session.driven import check_writable, written
    from ebbtide.terminal import folded_for_terminal
    from ebbtide.units import format_time
    from ebbtide.units import seconds as seconds_of
    from ebbtide.whole_file import write_whole

    check_writable({"machine": output})

    def show(text: str) -> None:
        click.echo(folded_for_terminal(text, sys.stdout))

    if device is not None:
        if tiers:
            raise click.UsageError("--device goes with --spill and -o: --tier is the CPU's")
        machine = _of_device(device, spill, show)
        for link in machine.links:
            show(f"{link.name:<24}{link.bytes_per_s / 1e9:.2f} GB/s, after {format_time(seconds_of(link.latency_ns))}")
        if output is not None:
            with written("machine", output):
                write_whole(output, machine.to_toml().encode())
            show(f"\nwrote {output}")
        return
    probe_and_write(spill, seconds, output, show, tiers, working)


def _of_device(name: str, spill: tuple[str, ...], say: Callable[[str], None]) -> "Machine":
    """Measure the machine of a session on the device."""
    from ebbtide.budget.bounds import usable_bytes
    from ebbtide.host.accelerator import device_named, require_device_events
    from ebbtide.host.free_memory import free_memory
    from ebbtide.host.native import require_native
    from ebbtide.host.spill import choose_spill_directories
    from ebbtide.probe.device import machine_of_device
    from ebbtide.runtime.device_engine import free_bytes
    from ebbtide.settings import Settings

    require_native()
    require_device_events(device := device_named(name))
    directories = choose_spill_directories(spill) if spill else ()
    host_bytes, threads = usable_bytes(free_memory()) // 2, Settings.from_environment().io_threads
    return machine_of_device(device, free_bytes(device), host_bytes, directories, threads, say)
