"""Shows as text what repeating a step's operators has measured."""

import json
from typing import Any

from ebbtide.ir.base import Origin
from ebbtide.ir.kernels import Kernel
from ebbtide.ir.trace import Trace
from ebbtide.probe.figures import Figure
from ebbtide.probe.placements import RUNS, Profile, Unique
from ebbtide.units import format_bytes, format_time, seconds

_ROWS = 12
_CALL, _LEAST_CALL = 44, 16
_LABEL = 52
_FIGURES = f" {'calls':>6} {'of step':>8} {'in memory':>18} {'all in slow':>18}"
_PLACEMENTS = "  placements"
_WHOLE = _CALL + len(_PLACEMENTS)

FILE = "in a mapped file that is not loaded"


def render_kernels(
    profile: Profile, trace: Trace, reading: Figure, writing: Figure, where: str = FILE, columns: int | None = None
) -> str:
    """Return the operators that take most of the step, the table's share of it, and what was left out.

    To fit ``columns``, operators are cut. If columns are few, the placements are left out.
    """
    room = _WHOLE if columns is None else columns - 2 - len(_FIGURES)
    with_placements = room >= _CALL
    width = max(min(_CALL, room - with_placements * len(_PLACEMENTS)), _LEAST_CALL)
    lines = [
        f"Operators of {trace.name!r:.80}, called again with operands in memory or {where}",
        f"(reading {_rate(reading)}, writing {_rate(writing)}): medians of {RUNS} runs, +- the farthest run",
        "",
        f"  {'operator':<{width}}{_FIGURES}{_PLACEMENTS if with_placements else ''}",
    ]
    for unique, kernel in profile.kernels[:_ROWS]:
        placements = f"  {len(kernel.slow)}" if with_placements else ""
        lines.append(f"  {_called(unique, width):<{width}}{_figures(unique, kernel, trace.step_ns)}{placements}")
    if (more := len(profile.kernels) - _ROWS) > 0:
        lines.append(f"  ... and {more} more, which the file has")
    lines.append("")
    for origin, words in ((Origin.MEASURED, "all placements measured"), (Origin.MODELLED, "modelled, additive")):
        rows = [row for row in profile.kernels if row[1].origin is origin]
        covered = sum(unique.step_ns for unique, _ in rows)
        calls = sum(unique.calls for unique, _ in rows)
        covers = f"{words}, {len(rows)} operators, {calls} calls"
        lines.append(f"  {covers:<{_LABEL}} {_share(covered, trace):>8}")
    alone = sum(unique.calls * kernel.times_ns[0] for unique, kernel in profile.kernels)
    within = sum(unique.step_ns for unique, _ in profile.kernels)
    spent = f"{format_time(seconds(within))} within the step, and {format_time(seconds(alone))} alone"
    lines.append(f"  These took {spent}.")
    lines += [
        f"  {f'left out: {reason:.38}':<{_LABEL}} {_share(spent, trace):>8}"
        for reason, spent in sorted(profile.left_out_ns.items(), key=lambda row: -row[1])
    ]
    return "\n".join(lines)


def _figures(unique: Unique, kernel: Kernel, step_ns: int) -> str:
    all_slow = max(kernel.slow) if kernel.origin is Origin.MEASURED else None
    shares = dict.fromkeys(kernel.free, 1.0)
    slow_ns = kernel.times_ns[0] + kernel.extra_ns(shares)
    spread = "modelled" if all_slow is None else _spread(kernel, kernel.slow.index(all_slow))
    return (
        f" {unique.calls:>6} {100 * unique.step_ns / max(step_ns, 1):>6.1f} % "
        f"{format_time(seconds(kernel.times_ns[0])) + ' ' + _spread(kernel, 0):>18} "
        f"{format_time(seconds(slow_ns)) + ' ' + spread:>18}"
    )


def _spread(kernel: Kernel, at: int) -> str:
    return f"+- {format_time(seconds(kernel.spread_ns[at]))}"


def _called(unique: Unique, width: int) -> str:
    """Return the operator with its tensors' shapes, cut to fit."""
    shapes: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict) and isinstance(value.get("shape"), list):
            shapes.append("x".join(map(str, value["shape"])) or "1")
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(json.loads(unique.arguments)["args"])
    text = f"{unique.operator.removeprefix('aten::')} {' '.join(shapes)}"
    return text if len(text) <= width else text[: width - 3] + "..."


def _share(spent: int, trace: Trace) -> str:
    return f"{100 * spent / max(trace.step_ns, 1):.1f} %"


def _rate(figure: Figure) -> str:
    return f"{format_bytes(figure.median)}/s"
