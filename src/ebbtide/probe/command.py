"""Carries out ``ebbtide probe``: measures the machine, shows the figures, and writes the machine's file."""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from ebbtide.host.spill import choose_spill_directories
from ebbtide.host.tiers import check_tier
from ebbtide.ir.machine import Machine
from ebbtide.probe.compute import render_compute, with_compute
from ebbtide.probe.figures import Findings
from ebbtide.probe.measure import THOROUGH, measure, parts_of
from ebbtide.probe.model import machine_of
from ebbtide.probe.table import render_table
from ebbtide.probe.tiers_between import render_between, with_tiers
from ebbtide.settings import Settings
from ebbtide.whole_file import write_whole

Working: TypeAlias = Callable[[int], AbstractContextManager[Callable[[str], None]]]
"""Opens a block for work in so many parts. Its value is called with each part's name as the part begins."""


def probe_and_write(
    spill: Sequence[str],
    seconds: float,
    output: Path | None,
    show: Callable[[str], None] = print,
    tiers: str | None = None,
    working: Working = lambda parts: nullcontext(lambda what: None),
) -> None:
    """Probe the machine and write its file.

    ``tiers`` are the tiers between memory and the spill file. ``working`` shows the progress of measuring.

    Raises SpillError when a directory cannot serve, and SettingError for a tier that cannot be had.
    """
    settings = Settings.from_environment().but(tiers=tiers)
    for tier in settings.tiers:
        check_tier(tier.name, tier.kind, tier.capacity_bytes, tier.node)
    directories = choose_spill_directories(spill or settings.spill)
    print(
        f"ebbtide: measuring {', '.join(map(str, directories))} for about {seconds:g} s, besides making files",
        file=sys.stderr,
    )
    effort = replace(THOROUGH, seconds=seconds)
    with working(parts_of(effort)) as begin:
        findings = measure(directories, effort, settings.io_threads, begin)
    table, machine = render_table(findings), machine_of(findings)
    machine = with_compute(machine)
    table += "\n" + render_compute(machine.compute)
    show(table)
    if settings.tiers:
        machine = with_tiers(machine, settings.tiers)
        between = render_between(machine)
        show("\n" + between)
        table += "\n\n" + between
    if output is not None:
        write_whole(output, machine_file(findings, table, machine).encode())
        show(f"\nwrote {output}: the medians, and the mean slow-downs")


def machine_file(findings: Findings, table: str, machine: Machine) -> str:
    """Return the machine's file. The table stands above the machine as comments, so the file says how it was
    measured."""
    comments = "".join(f"# {line}".rstrip() + "\n" for line in table.splitlines())
    return f"# Measured by ebbtide probe in {findings.took_s:.0f} s.\n{comments}\n{machine.to_toml()}"
