"""The options for the route to a slow tier, which several commands share."""

from pathlib import Path

import click

from ebbtide.analysis.swapping import Route, assumed_route, route_of
from ebbtide.errors import SettingError, SpillError
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import Machine
from ebbtide.ir.trace import Trace
from ebbtide.machines import find_machine
from ebbtide.pipeline.reading import step_on, this_machine, unlike_this_computer
from ebbtide.units import parse_size


def way_of(
    machine: Path | None, bandwidth: str | None, slow_tier: str | None, own: Machine | None
) -> tuple[Route | None, str, Origin]:
    """Return the route to a slow tier, its name, and the origin of its figures.

    They come from a machine file, from given bandwidths, or from the machine of the trace. Raises SettingError.
    """
    if bandwidth is not None:
        if machine is not None or slow_tier is not None:
            raise SettingError("give a machine (and its tier) or a bandwidth, not both")
        return assumed_route(*_bandwidths(bandwidth)), f"a link of {bandwidth} a second", Origin.ASSUMED
    chosen = machine_named(machine, own)
    if chosen is None:
        if slow_tier is not None:
            raise SettingError("--slow-tier names a tier of a machine: give one with --machine NAME|FILE")
        return None, "", Origin.ASSUMED
    route = route_of(chosen, slow_tier)
    if route is None:
        wanted = "a slow tier" if slow_tier is None else f"a slow tier {slow_tier!r:.80}"
        names = ", ".join(row.name for row in chosen.tiers)
        raise SettingError(f"{chosen.name} has no {wanted.removeprefix('a ')} with links both ways; its tiers: {names}")
    return route, f"{chosen.name}, tier {route.tier}", chosen.origin


def machine_named(named: Path | None, own: Machine | None) -> Machine | None:
    """Return the named machine, or else the trace's own."""
    return find_machine(named) if named is not None else own


def step_for(trace: Trace, machine: Machine | None) -> Trace:
    """Return the step with the machine's times, as `ebbtide plan` sees it, or unchanged without a machine."""
    return step_on(trace, machine)[0] if machine is not None else trace


def machine_for(named: Path | None, own: Machine | None, device: str | None) -> Machine | None:
    """Return the named machine, else the trace's own, else this computer.

    If this computer cannot be probed, or is not where a device's step ran, a warning says so, and the result is None.
    """
    if (machine := machine_named(named, own)) is not None:
        return machine
    if device is not None:
        click.echo(f"ebbtide: warning: {unlike_this_computer(device)}", err=True)
        return None
    try:
        return this_machine()
    except SpillError as error:
        click.echo(
            f"ebbtide: warning: this machine could not be probed, so nothing is simulated on it: {error}", err=True
        )
        return None


def _bandwidths(text: str) -> list[int]:
    try:
        found = [parse_size(part) for part in text.split(",")]
    except ValueError as error:
        raise SettingError(f"--bandwidth: {error}") from error
    if len(found) > 2 or not all(found):
        raise SettingError(f"--bandwidth takes one size a second, or one out and one back, above 0; not {text!r:.80}")
    return found
