"""Carries out ``ebbtide probe``: measures the machine, shows the figures, and writes the machine's file."""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ebbtide.errors import SettingError
from ebbtide.host.spill import choose_spill_directories
from ebbtide.host.tiers import check_tier
from ebbtide.ir.files import load
from ebbtide.ir.machine import Machine
from ebbtide.ir.trace import Trace
from ebbtide.probe.compute import render_compute, with_compute
from ebbtide.probe.figures import Figure, Findings
from ebbtide.probe.measure import THOROUGH, measure, parts_of
from ebbtide.probe.model import FILE, machine_of, with_kernels
from ebbtide.probe.table import render_table
from ebbtide.probe.tiers_between import render_links, with_tiers
from ebbtide.settings import Settings, SlowerTier, TierKind
from ebbtide.whole_file import write_whole

_OPERANDS_PART = 8
"""An operator's operands may take this part of memory, since they lie there and in files' pages, too."""

Working: TypeAlias = Callable[[int], AbstractContextManager[Callable[[str], None]]]
"""Opens a block for work in so many parts. Its value is called with each part's name as the part begins."""


def probe_and_write(
    spill: Sequence[str],
    seconds: float,
    output: Path | None,
    show: Callable[[str], None] = print,
    kernels: Path | None = None,
    kernel_seconds: float = 60.0,
    tiers: str | None = None,
    working: Working = lambda parts: nullcontext(lambda what: None),
    columns: int | None = None,
) -> None:
    """Probe the machine and write its file.

    ``kernels`` is a trace whose operators are measured, too. ``tiers`` are the tiers between memory and the spill file.
    ``working`` shows the progress of measuring. The shown table of operators fits ``columns`` if they are given; the
    file has all of it.

    Raises SpillError when a directory cannot serve. Raises SettingError when the trace lacks what is needed.
    """
    trace = None if kernels is None else _trace_of(kernels)
    settings = Settings.from_environment().but(tiers=tiers)
    for tier in settings.tiers:
        check_tier(tier.name, tier.kind, tier.capacity_bytes, tier.node)
    nodes = [tier for tier in settings.tiers if tier.kind is TierKind.NUMA]
    if settings.tiers and trace is not None and (not nodes or len(settings.tiers) > 1):
        raise SettingError(
            "operators are measured with operands in memory and in one place besides, the file or a NUMA node's "
            "memory: name one --tier numa:NODE:SIZE, or none, or leave out --kernels"
        )
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
        from ebbtide.probe.node_memory import render_nodes, with_nodes

        machine = with_nodes(with_tiers(machine, settings.tiers), settings.tiers)
        links = "\n\n".join([render_links(machine), *([render_nodes(machine)] if nodes else [])])
        show("\n" + links)
        table += "\n\n" + links
    if trace is not None:
        print(f"ebbtide: calling the step's operators again for at most about {kernel_seconds:g} s", file=sys.stderr)
        most_bytes = findings.memory_capacity_bytes // _OPERANDS_PART
        with working(1) as begin:
            begin("calling operators")
            if nodes:
                machine, kernel_table = _measured_on_node(machine, trace, nodes[0], kernel_seconds, most_bytes)
            else:
                machine, kernel_table = _measured_in_file(machine, trace, directories[0], kernel_seconds, most_bytes)
        show("\n" + kernel_table(columns=columns))
        table += "\n\n" + kernel_table()
    if output is not None:
        write_whole(output, machine_file(findings, table, machine).encode())
        written = "the figures marked *, the latencies and the mean slow-downs"
        show(f"\nwrote {output}: {written}{'' if trace is None else ', and the operators'}")


def _measured_in_file(
    machine: Machine, trace: Trace, directory: Path, seconds: float, most_bytes: int
) -> tuple[Machine, partial[str]]:
    """Return the machine with the step's operators, and the function that renders their figures
    (``render_kernels``)."""
    from ebbtide.probe.kernel_table import render_kernels
    from ebbtide.probe.mapped import MappedFile
    from ebbtide.probe.placements import file_rates, measure_kernels

    rates = file_rates(directory)
    profile = measure_kernels(trace, partial(MappedFile, directory), FILE, seconds, most_bytes)
    return with_kernels(machine, profile, *rates), partial(render_kernels, profile, trace, *rates)


def _measured_on_node(
    machine: Machine, trace: Trace, tier: SlowerTier, seconds: float, most_bytes: int
) -> tuple[Machine, partial[str]]:
    """Return the same for the node's memory in place of a file."""
    from ebbtide.probe.kernel_table import render_kernels
    from ebbtide.probe.node_memory import NodeMemory
    from ebbtide.probe.placements import measure_kernels

    profile = measure_kernels(
        trace, partial(NodeMemory, tier.node), tier.name, seconds, min(most_bytes, tier.capacity_bytes)
    )
    there = machine.tier(tier.name)
    reading, writing = (Figure.of([float(rate or 0)]) for rate in (there.bytes_per_s, there.write_bytes_per_s))
    kernels = tuple(kernel for _, kernel in profile.kernels)
    table = partial(render_kernels, profile, trace, reading, writing, f"on NUMA node {tier.node}")
    return replace(machine, name=f"{machine.name}, {tier.name} in place", kernels=kernels), table


def machine_file(findings: Findings, table: str, machine: Machine) -> str:
    """Return the machine's file. The table stands above the machine as comments, so the file says how it was
    measured."""
    comments = "".join(f"# {line}".rstrip() + "\n" for line in table.splitlines())
    return f"# Measured by ebbtide probe in {findings.took_s:.0f} s.\n{comments}\n{machine.to_toml()}"


def _trace_of(path: Path) -> Trace:
    trace = load(path, Trace)
    if not any(trace.ticks.arguments.tolist()):
        raise SettingError(
            f"{path} does not say what its operators were called with, so they cannot be called again: record the step "
            "anew with `ebbtide trace`"
        )
    return trace
