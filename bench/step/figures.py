"""From results to one row of figures a cell: paired ratios with their intervals, traffic, and the bound.

A ratio is a cell's step time over that of the tuned run beside it, so the machine's drift cancels. Over stock it is
that ratio over the stock cell's of the same round. Intervals are percentile bootstraps of the median over pairs
(Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3); a median's bias correction is not
smooth, so there is none. Step time is the median of a run's steady steps; traffic and stalls are their mean.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import numpy as np

from bench.step.cells import STEADY_STEPS, Cell, Door
from bench.step.results import Results

CONFIDENCE = 0.95
LEAST_PAIRS = 5  # of fewer pairs the interval is just their range, and is called so
_RESAMPLES = 20_000

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Paired:
    """The median of ratios with its interval; the range where there are fewer pairs than LEAST_PAIRS."""

    median: float
    low: float
    high: float
    pairs: int

    @staticmethod
    def of(ratios: Sequence[float]) -> "Paired | None":
        if not ratios:
            return None
        values = np.asarray(ratios, dtype=float)
        if len(values) < LEAST_PAIRS:
            return Paired(float(np.median(values)), values.min(), values.max(), len(values))
        draws = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values)))
        tail = 100 * (1 - CONFIDENCE) / 2
        low, high = np.percentile(np.median(draws, axis=1), [tail, 100 - tail])
        return Paired(float(np.median(values)), float(low), float(high), len(values))


@dataclass(frozen=True, slots=True)
class Row:
    """One cell. Sizes in bytes, times in seconds, traffic for each step; None where there is nothing to say.

    ``peak_bytes`` is the highest VmHWM of any run (for Ebbtide in percent: its report's, since the budget took effect).
    ``in_bytes`` and ``written_bytes`` are the kernel's counts; ``out_bytes`` is what Ebbtide evicted, also unwritten.
    ``predicted`` is the plan's step over the time of the operations that it was made from. ``bound_s`` is max(the tuned
    run's step, bytes moved over the bandwidth probed in that round), and ``over_bound`` the paired ratio to it; None
    where runs beat it (the ratio's interval begins below 1), so that it is no bound. ``same_bits`` compares losses
    with the tuned run's, and the hashes of weights and moments where both ran as many steps; what DeepSpeed computes
    within Ebbtide is compared with what it computes alone.
    """

    name: str
    step_s: float
    over_tuned: Paired | None
    over_stock: Paired | None
    cpu_s: float
    peak_bytes: int
    mean_bytes: float | None
    out_bytes: float | None
    in_bytes: float
    written_bytes: float
    stall_s: float | None
    predicted: float | None
    bound_s: float | None
    over_bound: Paired | None
    same_bits: str


def row(results: Results, cell: Cell) -> Row | None:
    """None for a cell without runs."""
    runs = results.of(cell.name)
    if not runs:
        return None
    paired = [(run, results.runs[run["baseline"]]) for run in runs if run["baseline"] is not None]
    ours = [run for run in runs if run["report"]]
    sampled = [run for run in runs if run["mean_resident_bytes"] is not None]  # else the steps that count went unseen
    plans = [run["report"]["plan"] for run in ours if run["report"]["plan"]]
    bounds = [(run, bound_s(run, tuned)) for run, tuned in paired if run["report"]]
    over_bound = Paired.of([step_s(run) / bound for run, bound in bounds])
    if over_bound is not None and over_bound.low < 1:
        bounds, over_bound = [], None
    return Row(
        name=cell.name,
        step_s=median(map(step_s, runs)),
        over_tuned=Paired.of([step_s(run) / step_s(tuned) for run, tuned in paired]),
        over_stock=Paired.of(_over_stock(results, cell)),
        cpu_s=_typical(runs, lambda run: mean(_steady(run, "cpu"))),
        peak_bytes=max(run["peak_bytes"] for run in runs),
        mean_bytes=_typical(sampled, lambda run: run["mean_resident_bytes"]) if sampled else None,
        out_bytes=_typical(ours, lambda run: _reported(run, "evicted_bytes")) if ours else None,
        in_bytes=_typical(runs, lambda run: mean(_steady(run, "read_bytes")) + mean(_steady(run, "swapped_in_bytes"))),
        written_bytes=_typical(
            runs, lambda run: mean(_steady(run, "written_bytes")) + mean(_steady(run, "swapped_out_bytes"))
        ),
        stall_s=_typical(ours, lambda run: _reported(run, "stall_s")) if ours else None,
        predicted=median(plan["predicted_s"] / plan["step_s"] for plan in plans) if plans else None,
        bound_s=median(bound for _, bound in bounds) if bounds else None,
        over_bound=over_bound,
        same_bits=_same_bits([(run, alone) for run in runs for alone in _alone(results, cell)] or paired),
    )


def step_s(run: Run) -> float:
    return median(_steady(run, "wall"))


def bound_s(run: Run, tuned: Run) -> float:
    """What no schedule of the same bytes can beat: computing, or moving them at the probed bandwidths."""
    fetched, written = _reported(run, "fetched_bytes"), _reported(run, "written_bytes")
    speed = run["bandwidth"]
    moving = max(fetched / speed["read"], written / speed["write"], (fetched + written) / speed["both"])
    return max(step_s(tuned), moving)


def _over_stock(results: Results, cell: Cell) -> list[float]:
    def ratios(name: str) -> dict[int, float]:
        runs = [run for run in results.of(name) if run["baseline"] is not None]
        return {run["pair"]: step_s(run) / step_s(results.runs[run["baseline"]]) for run in runs}

    ours, stock = ratios(cell.name), ratios(f"{cell.net.name}/stock")
    return [ours[pair] / stock[pair] for pair in sorted(ours.keys() & stock.keys())]


def _alone(results: Results, cell: Cell) -> list[Run]:
    """Runs without Ebbtide of a cell whose arithmetic is not plain PyTorch's."""
    way = cell.way.removesuffix(f"-{cell.fast}")
    return results.of(f"{cell.net.name}/{way}") if cell.door is Door.DEEPSPEED and cell.fast else []


def _same_bits(pairs: Sequence[tuple[Run, Run]]) -> str:
    if not pairs:
        return ""
    hashed = False
    for run, tuned in pairs:
        common = min(len(run["losses"]), len(tuned["losses"]))
        keys = ["weights_sha256", "optimizer_sha256"] if len(run["losses"]) == len(tuned["losses"]) else []
        hashed = hashed or bool(keys)
        if run["losses"][:common] != tuned["losses"][:common] or any(run[key] != tuned[key] for key in keys):
            return "NO"
    return "yes" if hashed else "losses"


def _steady(run: Run, column: str) -> list[float]:
    values: list[float] = run["steps"][column][-STEADY_STEPS:]
    return values


def _reported(run: Run, column: str) -> float:
    return mean(step[column] for step in run["report"]["steps"][-STEADY_STEPS:])


def _typical(runs: Sequence[Run], figure: Callable[[Run], float]) -> float:
    return median(figure(run) for run in runs)


def steady(run: Run) -> list[dict[str, Any]]:
    """The steps of an Ebbtide run that count."""
    steps: list[dict[str, Any]] = run["report"]["steps"][-STEADY_STEPS:]
    return steps


def steady_step_s(run: Run) -> float:
    return median(step["wall_s"] for step in steady(run))
