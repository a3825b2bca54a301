"""Shows an estimate as text, and as figures for programs."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ebbtide.estimate.budgets import SHARES, Row
from ebbtide.estimate.command import Estimated
from ebbtide.units import MIB, format_bytes, format_time, seconds

COLUMNS = ("--fast", "process", "tensors", "step", "times", "written a step", "a day", "SSD lasts")
ON_DEVICE = ("--fast", "tensors", "step", "times", "copied out a step")
LEAST_WANTED_FIRST = ("written a step", "tensors", "step", "SSD lasts")
_TB = 10**12
_YEAR_DAYS = 365
_WAITED_LITTLE = 0.1  # on 2 CPUs it was 0.01 beside little, and 0.67 beside a program that took one of them
_PLAINLY = 1.6
"""Times what a process is estimated to take, plain PyTorch took at most in four nets: 1.2 to 1.56 times."""


def heading(found: Estimated) -> str:
    """Return what a step needs and takes, and where the figures come from."""
    made = found.estimate
    if made.device is not None:
        return (
            f"Tensors on {made.device} peak at about {format_bytes(made.tensors_bytes)}. A step takes about "
            f"{format_time(seconds(made.step_ns))} (times are the machine's roofline).\n"
            f"The smallest budget that works: --fast {made.least_fast}."
        )
    how = (
        "times are the machine's roofline"
        if found.share is None
        else f"times of {100 * found.share:.0f} % of it from calling its operators here"
    )
    least = ""
    if made.least_process_bytes < made.process_bytes:  # a small net's plan takes more memory than the net
        least = f", or --fast {format_size(made.least_process_bytes)} for the process"
    return (
        f"The process peaks at about {format_bytes(made.process_bytes)}, of which tensors are "
        f"{format_bytes(made.tensors_bytes)}. Plain PyTorch takes up to 1.6 times that: its C library "
        f"leaves holes between tensors. A step takes about {format_time(seconds(made.step_ns))} ({how}).\n"
        f"The smallest budget that works: --fast {made.least_fast} for tensors{least}." + _disturbed(found)
    )


def _disturbed(found: Estimated) -> str:
    if found.waited_share < _WAITED_LITTLE:
        return ""
    return (
        f"\nOther programs were busy: threads waited for a CPU {100 * found.waited_share:.0f} % of the time, so times "
        "are too long. Estimate again once they have ended."
    )


def lines(found: Estimated) -> list[list[str]]:
    """Return the ``COLUMNS`` of each budget; of a device's, those ``ON_DEVICE``."""
    if found.estimate.device is not None:
        return [_cells_on_device(row, found.estimate.step_ns) for row in found.estimate.rows]
    return [_cells(row, found.estimate.step_ns) for row in found.estimate.rows]


def ending(found: Estimated, program: Sequence[str]) -> str:
    """Return what the disk's column means, and the command to copy."""
    made, row = found.estimate, found.estimate.proposed
    if (device := made.device) is not None:
        said = f"\nSimulated on {found.machine.name}."
        fast = "" if row is None or row.fast == SHARES[0] else f" --fast {row.fast}"
        run = f"ebbtide run --device {device}{fast} {shlex.join(program)}"
        return f"{said}\nNo budget fits that machine." if row is None else f"{said}\n\n{run}"
    wears = made.rows[0].wears_bytes / _TB if made.rows else 0
    said = (
        f"\nSimulated on {found.machine.name}, training day and night on an SSD that bears {wears:,.0f} TB of writes."
    )
    if row is None:
        return f"{said}\nNo budget fits this machine."
    if row.step_ns is None:
        return said
    within = f"ebbtide run --fast {row.fast} {shlex.join(program)}"
    if found.free_bytes is None or _PLAINLY * made.process_bytes > found.free_bytes:
        return f"{said}\n{_which(found, row)}:\n\n{within}"
    free = f"It fits in the {format_bytes(found.free_bytes)} that are free here, so it needs no budget"
    return f"{said}\n{_which(found, row)}: {within}\n{free}:\n\npython {shlex.join(program)}"


def _which(found: Estimated, row: Row) -> str:
    made = found.estimate
    within = f"{100 * (made.small_cost - 1):.0f} % of full speed"
    cheap = (row.step_ns or 0) <= made.small_cost * made.step_ns
    return f"The smallest budget within {within}" if cheap else f"None that fits is within {within}; the fastest"


def to_figures(found: Estimated, program: Sequence[str]) -> dict[str, Any]:
    """Return the figures for programs."""
    made = found.estimate
    rows = [
        asdict(row) | {"written_a_day_bytes": row.written_a_day, "wears_out_days": row.wears_out_days}
        for row in made.rows
    ]
    return {
        "format": "ebbtide-estimate",
        "version": 1,
        "program": list(program),
        "machine": found.machine.name,
        "device": made.device,
        "called_share": found.share,
        "waited_share": found.waited_share,
        "tensors_bytes": made.tensors_bytes,
        "process_bytes": made.process_bytes,
        "free_bytes": found.free_bytes,
        "step_ns": made.step_ns,
        "least_fast": made.least_fast,
        "least_process_bytes": made.least_process_bytes,
        "proposed_fast": None if made.proposed is None else made.proposed.fast,
        "budgets": rows,
    }


def format_size(nbytes: int) -> str:
    """Write a size as ``--fast`` takes it."""
    return f"{-(-nbytes // MIB)}MiB"


def _cells(row: Row, resident_ns: int) -> list[str]:
    start = [row.fast, format_bytes(row.process_bytes), format_bytes(row.tensors_bytes)]
    if row.step_ns is None or row.written_bytes is None or row.written_a_day is None:
        return [*start, row.why_not, "", "", "", ""]
    times = f"{row.step_ns / max(resident_ns, 1):.2f}"
    if not row.fits:
        times += " (not here)"
    days = row.wears_out_days
    return [
        *start,
        format_time(seconds(row.step_ns)),
        times,
        format_bytes(row.written_bytes),
        f"{row.written_a_day / 1e9:,.0f} GB" if row.written_bytes else "-",
        "-" if days is None else _lasts(days),
    ]


def _cells_on_device(row: Row, resident_ns: int) -> list[str]:
    if row.step_ns is None or row.written_bytes is None:
        return [row.fast, format_bytes(row.tensors_bytes), row.why_not, "", ""]
    times = f"{row.step_ns / max(resident_ns, 1):.2f}" + ("" if row.fits else " (not there)")
    took = format_time(seconds(row.step_ns))
    return [row.fast, format_bytes(row.tensors_bytes), took, times, format_bytes(row.written_bytes)]


def _lasts(days: float) -> str:
    if days >= _YEAR_DAYS:
        return f"{days / _YEAR_DAYS:,.1f} years"
    return f"{days:.0f} days" if days >= 10 else f"{days:.1f} days"
