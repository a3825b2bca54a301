"""What ``ebbtide probe`` does: measure, show, and write the machine down."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ebbtide.errors import SettingError
from ebbtide.host.spill import choose_spill_directories
from ebbtide.host.tiers import check_tier
from ebbtide.ir.files import load
from ebbtide.ir.machine import Machine
from ebbtide.ir.trace import Trace
from ebbtide.probe.figures import Findings
from ebbtide.probe.measure import THOROUGH, measure
from ebbtide.probe.model import FILE, machine_of, with_kernels
from ebbtide.probe.table import render_table
from ebbtide.probe.tiers_between import render_links, with_tiers
from ebbtide.settings import Settings
from ebbtide.whole_file import write_whole

_OPERANDS_PART = 8
"""What an operator's operands may take of memory, for they lie there and in files' pages, too."""


def probe_and_write(
    spill: Sequence[str],
    seconds: float,
    output: Path | None,
    show: Callable[[str], None] = print,
    kernels: Path | None = None,
    kernel_seconds: float = 60.0,
    tiers: str | None = None,
) -> None:
    """``kernels`` is a trace whose operators are measured as well, ``tiers`` those between memory and the spill file.

    Raises SpillError when a directory cannot serve, SettingError when the file cannot be written or the trace does
    not have what is needed.
    """
    trace = None if kernels is None else _trace_of(kernels)
    if output is not None and (output.is_dir() or not os.access(output.parent, os.W_OK | os.X_OK)):
        raise SettingError(f"the machine cannot be written to {output}: name a file in a writable directory")
    settings = Settings.from_environment().but(tiers=tiers)
    for tier in settings.tiers:
        check_tier(tier.name, tier.kind, tier.capacity_bytes, tier.node)
    if settings.tiers and trace is not None:
        raise SettingError(
            "operators are measured with operands in memory and in the file: leave out --tier or --kernels"
        )
    directories = choose_spill_directories(spill or settings.spill)
    print(f"ebbtide: measuring {', '.join(map(str, directories))} for about {seconds:g} s", file=sys.stderr)
    findings = measure(directories, replace(THOROUGH, seconds=seconds), settings.io_threads)
    table, machine = render_table(findings), machine_of(findings)
    show(table)
    if trace is not None:
        from ebbtide.probe.kernel_table import render_kernels
        from ebbtide.probe.placements import file_rates, measure_kernels

        print(f"ebbtide: calling the step's operators again for at most about {kernel_seconds:g} s", file=sys.stderr)
        rates = file_rates(directories[0])
        most_bytes = findings.memory_capacity_bytes // _OPERANDS_PART
        profile = measure_kernels(trace, directories[0], FILE, kernel_seconds, most_bytes)
        kernel_table = render_kernels(profile, trace, *rates)
        show("\n" + kernel_table)
        table += "\n\n" + kernel_table
        machine = with_kernels(machine, profile, *rates)
    if settings.tiers:
        machine = with_tiers(machine, settings.tiers)
        show("\n" + render_links(machine))
    if output is not None:
        write_whole(output, machine_file(findings, table, machine).encode())
        written = "the figures marked *, the latencies and the mean slow-downs"
        show(f"\nwrote {output}: {written}{'' if trace is None else ', and the operators'}")


def machine_file(findings: Findings, table: str, machine: Machine) -> str:
    """The machine, below the table as comments: the file says how its figures were got."""
    comments = "".join(f"# {line}".rstrip() + "\n" for line in table.splitlines())
    return f"# Measured by ebbtide probe in {findings.took_s:.0f} s.\n{comments}\n{machine.to_toml()}"


def _trace_of(path: Path) -> Trace:
    try:
        trace = load(path, Trace)
    except OSError as error:
        raise SettingError(f"the trace {path} cannot be read: {error.strerror or error}") from error
    if not any(tick.arguments for tick in trace.ticks):
        raise SettingError(
            f"{path} does not say what its operators were called with, so they cannot be called again: record the step "
            "anew with `ebbtide trace`"
        )
    return trace
