"""Answers what people ask first: the contents of the peak, the cost of a smaller budget, and possible changes."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ebbtide.analysis.columns import common_root, modules_of
from ebbtide.analysis.explain_plan import PlanView
from ebbtide.analysis.intervals import module_patterns
from ebbtide.analysis.memory import Peak, Resident
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import StorageKind, Trace
from ebbtide.report.names import by_number
from ebbtide.units import format_bytes

_DEPTH = 4
"""The levels of modules in the tree of the peak. Deeper modules count for the last level."""
_LEVEL = re.compile(r"[^.]+(?:\.\*)*")
"""A level of a module's pattern; ``blocks.*`` is one."""
_SMALLEST = 0.002
"""Boxes below this share of the peak are joined."""
_MOST_LEAVING = 3
SMALL_COST = 1.05
"""A budget is recommended if its steps take at most this many times the unlimited one. Otherwise, the effect of a
faster disk is shown."""
_WIDE_STATE = 0.25
"""Parameters, gradients and optimizer state are wide from this share of the peak on: a narrower type would save
much."""

_KIND_OF = {f"/{kind}": str(kind) for kind in StorageKind}
_STATE = (StorageKind.PARAMETER, StorageKind.GRADIENT, StorageKind.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True)
class TriedBudget:
    """A budget for this step on the page's machine. ``name`` is written as ``--fast`` takes it.

    ``step_ns`` is the time of a step with the links as they are, and ``faster_ns`` with links twice as fast. Both are
    None where there is no plan (``why_not``) or none was tried (``untried``). ``least_bytes`` is the smallest budget
    that can work, or None where it is unknown. ``moved_bytes`` counts a step's moved bytes both ways, or is None where
    that is unknown. ``leaves`` names most of what leaves memory, with its bytes.
    """

    name: str
    nbytes: int
    step_ns: int | None
    moved_bytes: int | None = 0
    faster_ns: int | None = None
    why_not: str = ""
    least_bytes: int | None = None
    untried: bool = False
    leaves: tuple[tuple[str, int], ...] = ()


_Path = tuple[str, ...]


def peak_tree(peak: Peak) -> list[dict[str, Any]]:
    """Return nested boxes: modules by their path, like layers as one, with the kinds of storages in each."""
    modules = [row.module for row in peak.residents if row.module]
    root = common_root(modules)
    patterns = module_patterns(module.removeprefix(root).strip(".") for module in modules)

    def path_of(row: Resident) -> _Path:
        if not row.module:
            return ("no module",)
        pattern = patterns[row.module.removeprefix(root).strip(".")]
        return tuple(_LEVEL.findall(pattern)[:_DEPTH])

    return _boxes(peak, path_of, root.removesuffix(".") or "the step")


def line_tree(peak: Peak) -> list[dict[str, Any]]:
    """Return nested boxes: the program's files, the lines in them, and the kinds of storages in each."""

    def path_of(row: Resident) -> _Path:
        file, colon, place = row.line.rpartition(":")
        none = "no line known" if row.operator else "made before the step"
        return (file, f"line {place}") if colon else (row.line or none,)

    return _boxes(peak, path_of, "the program")


def _boxes(peak: Peak, path_of: Callable[[Resident], _Path], whole: str) -> list[dict[str, Any]]:
    """Return the boxes, each after the one that it lies in.

    A box has its ``id``, its ``parent``'s id (None for the whole), and a ``label``. Its ``kind`` is "" if it has boxes
    in it. Its ``nbytes`` are the sum of its boxes.
    """
    leaves: dict[_Path, int] = defaultdict(int)
    for row in peak.residents:
        leaves[(*path_of(row), f"/{row.kind}")] += row.nbytes
    small = _SMALLEST * peak.nbytes
    merged: dict[_Path, int] = defaultdict(int)
    for path, nbytes in leaves.items():
        merged[path if nbytes >= small else ("smaller ones", path[-1])] += nbytes
    sums: dict[_Path, int] = defaultdict(int)
    for path, nbytes in merged.items():
        for depth in range(len(path) + 1):
            sums[path[:depth]] += nbytes
    return [
        {
            "id": "\n".join(("", *path)),
            "parent": "\n".join(("", *path[:-1])) if path else None,
            "label": whole if not path else _label(path[-1]),
            "kind": _KIND_OF.get(path[-1], "") if path else "",
            "nbytes": nbytes,
        }
        for path, nbytes in sorted(sums.items(), key=lambda row: [by_number(part) for part in row[0]])
    ]


def _label(part: str) -> str:
    return _KIND_OF[part].replace("_", " ") if part in _KIND_OF else part


def leaving(trace: Trace, plan: Plan, fast: str) -> tuple[tuple[str, int], ...]:
    """Return most of what a plan has out of tier ``fast`` at some time of the step.

    Each row is a kind of storages in a module, with their bytes. Like layers count as one.
    """
    view, modules = PlanView(trace, plan, fast), modules_of(trace)
    root = common_root(modules)
    names = [module.removeprefix(root).strip(".") for module in modules]
    patterns = module_patterns(names)
    sums: dict[str, int] = defaultdict(int)
    for number in view.movers():
        where, kind = _alike(patterns[names[number]]), _label(f"/{trace.storages.kind[number]}")
        sums[f"{kind} of {where}" if where else kind] += view.away_bytes(number)
    most = sorted(sums.items(), key=lambda row: (-row[1], by_number(row[0])))
    return tuple(row for row in most[:_MOST_LEAVING] if row[1])


def _alike(pattern: str) -> str:
    """Cut a module's pattern after its like layers: ``transformer.h.*.mlp.c_fc`` becomes ``transformer.h.*``."""
    levels = _LEVEL.findall(pattern)[:_DEPTH]
    end = next((place for place, level in enumerate(levels) if level.endswith("*")), _DEPTH)
    return ".".join(levels[: end + 1])


def advice(trace: Trace, peak: Peak, budgets: tuple[TriedBudget, ...]) -> Iterator[str]:
    """Suggest changes, a sentence each, with figures from the peak and from simulations."""
    kinds = {row.label: row.nbytes for row in peak.by_kind()}
    planned = [row for row in budgets if row.step_ns is not None]
    cheap = [row for row in planned if _ratio(row.step_ns, trace) <= SMALL_COST]
    if cheap:
        least = min(cheap, key=lambda row: row.nbytes)
        yield (
            f"Train with --fast {least.name}: {format_bytes(least.nbytes)} in place of {format_bytes(peak.nbytes)} for "
            f"tensors, at {_ratio(least.step_ns, trace):.2f} times the time of a step."
        )
        activations = kinds.get(StorageKind.ACTIVATION, 0)
        times = (peak.nbytes**2 / least.nbytes - (peak.nbytes - activations)) / activations if activations else 0
        if times >= 1.25:
            yield (
                f"Or, in the {format_bytes(peak.nbytes)} that it takes today, a batch about {_two_digits(times)} times "
                f"as large, with the same --fast {least.name}: activations, {format_bytes(activations)} of the peak, "
                "grow with it."
            )
    slow = [row for row in planned if row.faster_ns is not None and _ratio(row.step_ns, trace) > SMALL_COST]
    if slow:
        tight = min(slow, key=lambda row: row.nbytes)
        yield (
            f"A disk twice as fast: --fast {tight.name} would take {_ratio(tight.faster_ns, trace):.2f} in place of "
            f"{_ratio(tight.step_ns, trace):.2f} times the time."
        )
    state = sum(kinds.get(kind, 0) for kind in _STATE)
    if state >= _WIDE_STATE * peak.nbytes:
        yield (
            f"Parameters, gradients and optimizer state are {format_bytes(state)} of the peak: in a type half as wide "
            f"they would be {format_bytes(state // 2)} (which changes results, as a budget does not)."
        )


def _two_digits(value: float) -> str:
    """Return at most two digits that are not 0: ``1.3``, ``52``, ``150``."""
    return f"{float(f'{value:.2g}'):,.12g}"


def in_short(trace: Trace, peak: Peak, budgets: tuple[TriedBudget, ...], machine: str, times: str = "") -> str:
    """Return a sentence about the cost of smaller budgets. ``times`` says whose times the operations have."""
    costs = (f"{row.name} {_cost(row, trace)}" for row in budgets)
    return (
        f"In short: tensors peak at {format_bytes(peak.nbytes)}. Limited to a share of that, a step takes so many "
        f"times as long: {', '.join(costs)} (simulated on {machine}{times})."
    )


def _cost(row: TriedBudget, trace: Trace) -> str:
    if row.step_ns is not None:
        return f"{_ratio(row.step_ns, trace):.2f}"
    if row.untried:
        return "not tried: took too long"
    return "no plan" + ("" if row.least_bytes is None else f" (it needs {format_bytes(row.least_bytes)})")


def _ratio(ns: int | None, trace: Trace) -> float:
    assert ns is not None
    return ns / max(trace.step_ns, 1)
