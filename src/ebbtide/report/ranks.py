"""Shows runs side by side, a column for each, such as the reports of a job's ranks. Faults stand below."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from ebbtide.ir.run_report import RunReport, StepMode
from ebbtide.report.typical_steps import median_step_s, typical_steps
from ebbtide.units import format_bytes, format_time

ROWS = (
    *("budget", "bounded", "peak", "process peak", "steps recorded", "steps planned", "steps on demand"),
    *("time a step", "stall a step", "out a step", "in a step", "written in all"),
)
"""The rows of a column, from the top. A column also has the verdict and the faults."""
WITHIN_BUDGET = "within budget"
_LABEL = 17
_MOST_COLUMNS = 8


def column(report: RunReport) -> list[str]:
    """Return a run's figures in the order of ``ROWS``, its verdict, and its trouble or ""."""
    process = report.fast_bytes is not None
    budget = report.fast_bytes if process else report.arena_budget_bytes
    return [
        "none" if budget is None else format_bytes(budget),
        "" if budget is None else "process" if process else "tensors",
        format_bytes(report.process_peak_bytes if process else report.arena_peak_bytes),
        format_bytes(report.process_peak_bytes),
        *_modes(report),
        *_of_a_step(report),
        format_bytes(report.written_bytes),
        verdict(report),
        report.trouble,
    ]


def verdict(report: RunReport) -> str:
    """Say in words whether the budget was kept."""
    if report.budget_violated:
        return "OVER BUDGET"
    if not report.bounded_as_asked:
        return "NOT BOUNDED as asked" if report.moment is None else "NO BUDGET yet"
    if report.fast_bytes is None and report.arena_budget_bytes is None:
        return "NO BUDGET was set"
    return WITHIN_BUDGET


def no_step_under_it(report: RunReport) -> bool:
    """Say whether all steps ended before the budget was in force, as the two do that find a percentage's peak."""
    recorded = all(step.mode is StepMode.RECORDED for step in report.steps)
    return report.fast_bytes is None and bool(report.steps) and recorded and not report.left_out_steps


def render_ranks(columns: Mapping[str, Sequence[str]], width: int | None = None) -> str:
    """Return the table of runs by name, without a newline at the end.

    If ``width`` is given, the table's lines have at most so many characters, or one column of runs.
    """
    verdicts = {cells[len(ROWS)] for cells in columns.values()}
    worst = next(iter(verdicts)) if len(verdicts) == 1 else "NOT ALL within budget"
    lines = [f"Ebbtide: {worst}, {len(columns)} runs side by side (all figures measured)"]
    names = list(columns)
    fitting = _MOST_COLUMNS
    if width is not None:
        fitting = min(max((width - 2 - _LABEL) // _cell_width(columns), 1), _MOST_COLUMNS)
    for first in range(0, len(names), fitting):
        shown = {name: columns[name] for name in names[first : first + fitting]}
        cell_width = _cell_width(shown)
        lines.append(_line("", shown, cell_width))
        lines += [_line(label, (cells[row] for cells in shown.values()), cell_width) for row, label in enumerate(ROWS)]
    for name, cells in columns.items():
        told, trouble = cells[len(ROWS) :]
        if trouble or len(verdicts) > 1:
            lines.append(f"  {name}: {told}" + (f": {trouble}" if trouble else ""))
    return "\n".join(lines)


def _cell_width(columns: Mapping[str, Sequence[str]]) -> int:
    return max(10, *(len(cell) for name, cells in columns.items() for cell in (name, *cells[: len(ROWS)]))) + 2


def _line(label: str, cells: Iterable[str], width: int) -> str:
    return f"  {label:<{_LABEL}}" + "".join(f"{cell:>{width}}" for cell in cells)


def _modes(report: RunReport) -> list[str]:
    more = "+" if report.left_out_steps else ""  # the mode of these steps is unknown
    return [f"{sum(step.mode is mode for step in report.steps)}{more}" for mode in StepMode]


def _of_a_step(report: RunReport) -> list[str]:
    steps, typical_s = typical_steps(report), median_step_s(report)
    if typical_s is None:
        return [""] * 4
    return [
        format_time(typical_s),
        format_time(mean(step.stall_s.total for step in steps)),
        format_bytes(mean(step.evicted_bytes.total for step in steps)),
        format_bytes(mean(step.fetched_bytes.total for step in steps)),
    ]
