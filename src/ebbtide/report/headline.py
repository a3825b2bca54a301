"""The first line of a run's summary, which has what a person asks first: how much was trained in which memory, what
plain PyTorch takes, how much longer it took, and what the disk bears.

All of it is measured but for two figures. Plain PyTorch's memory is at least a step's peak of live bytes beside what
this process holds besides tensors and Ebbtide. Its C library leaves holes between tensors, which took up to a quarter
more. Its time is about that of the steps less what threads waited, what was made anew, and what Ebbtide does at each
operator. Left out: copies that slow operators down, and Ebbtide's other work, which is about a millisecond a step. So
nothing is said of short steps.
"""

from statistics import mean

from ebbtide.ir.run_report import RunReport, StepMode
from ebbtide.report.ranks import WITHIN_BUDGET, no_step_under_it, verdict
from ebbtide.report.typical_steps import median_turn_s, planned_step_s, typical_steps
from ebbtide.units import MIB, format_bytes, format_count

_WORTH_SAYING = 1.05
"""Plain PyTorch's memory is said if it is so many times what the run took."""
_SLOWER = 1.05
"""Steps that take fewer times as long are as fast, by an estimate."""
_FAR_SLOWER = 2
"""Of steps that take more than so many times their forecast, nobody knows whether they are as fast."""
_SHORT_S = 0.02
"""Of steps that take less, nobody knows how long plain PyTorch's take: Ebbtide's own work counts there."""
_OPERATOR_S, _OPERATORS_SHARE = 2.5e-6, 1 / 3
"""What Ebbtide does at an operator takes so long, as measured on one machine; there, at most such a share of steps of
the smallest operators."""
_OWN_BYTES = 40 * MIB
"""Left out for Ebbtide's own memory, which was 9 to 16 MiB in five small trainings."""
_DAY_S = 24 * 3600
_TB, _GB = 10**12, 10**9


def headline(report: RunReport) -> str:
    """Return the line, without a newline at the end."""
    said, steps = verdict(report), report.step_count()
    if not steps:
        return f"Ebbtide: {said}, 0 steps"
    what = f"{format_count(report.trained_parameters)} parameters " if report.trained_parameters else ""
    held = format_bytes(process_peak_bytes(report) if report.device is None else report.arena_peak_bytes)
    where = "" if report.device is None else f" of {report.device}"
    before = f" ({peak_before} before the budget was in force)" if (peak_before := higher_before(report)) else ""
    trained = f"{what}trained for {steps} step{'' if steps == 1 else 's'} in {held}{where}{before}"
    if report.budget_violated and no_step_under_it(report):
        said += " before a step ended under it"
    first = f"{trained}, {said}{_how_kept(report)}" if said == WITHIN_BUDGET else f"{said}, {trained}"
    return f"Ebbtide: {'; '.join(filter(None, [first, _plain(report), _written(report)]))}"


def plain_bytes(report: RunReport) -> int | None:
    """Return the least that plain PyTorch takes of the memory that is bounded. None where the report does not tell:
    memory of slower tiers belongs to the process, too."""
    if report.device is not None:
        return report.unbounded_peak_bytes
    if report.tiers:
        return None
    return report.unbounded_peak_bytes + max(report.process_peak_bytes - report.arena_peak_bytes - _OWN_BYTES, 0)


def process_peak_bytes(report: RunReport) -> int:
    """Return where the process peaked since the budget is in force; where no step ran under it, in all."""
    before = report.process_peak_before_bytes if no_step_under_it(report) else 0
    return max(report.process_peak_bytes, before)


def higher_before(report: RunReport) -> str:
    """Return where the process peaked before the budget was in force, if that was higher than since; else ""."""
    before = 0 if no_step_under_it(report) else report.process_peak_before_bytes
    return format_bytes(before) if report.device is None and before > report.process_peak_bytes else ""


def times_plain(report: RunReport) -> float | None:
    """Estimate how many times as long as plain PyTorch's the steps took that were not recorded; None without any, and
    where they are short."""
    steps = [step for step in report.steps if step.mode is not StepMode.RECORDED]
    wall_s = sum(step.wall_s for step in steps)
    plain_s = wall_s - sum(step.stall_s.total + step.made_anew_s for step in steps)
    plain_s -= min(_OPERATOR_S * sum(step.operators for step in steps), _OPERATORS_SHARE * plain_s)
    return wall_s / plain_s if plain_s > 0 and wall_s >= _SHORT_S * len(steps) else None


def _plain(report: RunReport) -> str:
    took = process_peak_bytes(report) if report.device is None else report.arena_peak_bytes
    plain, times = plain_bytes(report), times_plain(report)
    said = []
    if plain is not None and plain > _WORTH_SAYING * took:
        said.append(f"plain PyTorch takes at least {format_bytes(plain)}")
    if times is not None and times >= _SLOWER:
        than = "" if said else " as plain PyTorch's"
        said.append(f"a step takes about {times:.1f} times as long{than}")
    elif times is not None and not _slower_than_forecast(report):
        said.append("about as fast as plain PyTorch")
    return "; ".join(said)


def _slower_than_forecast(report: RunReport) -> bool:
    """Say whether planned steps took so long that copies may have slowed operators down."""
    planned_s = planned_step_s(report)
    return planned_s is not None and report.plan is not None and planned_s > _FAR_SLOWER * report.plan.predicted_s


def _written(report: RunReport) -> str:
    """Return what goes to the disk in a step, and in a day of such steps."""
    steps = typical_steps(report)
    if report.device is not None and len(report.tiers) < 2:
        return ""
    passed = report.tiers if report.device is None else report.tiers[:1]  # from a device all goes to the host first
    in_all = sum(tier.written_bytes for tier in passed)
    share = report.tiers[-1].written_bytes / in_all if in_all else 1.0  # the last tier is the spill file
    a_step = share * mean(step.written_bytes.total for step in steps)
    if not a_step:
        return "nothing written to the disk" if not report.written_bytes else ""
    a_day = a_step * _DAY_S / max(median_turn_s(report) or 0.0, 1e-9)
    day = f"{a_day / _TB:.1f} TB" if a_day >= _TB else f"{a_day / _GB:.0f} GB"
    return f"{format_bytes(a_step)} written a step, {day} a day"


def _how_kept(report: RunReport) -> str:
    """Say why a kept budget proves little, or ""."""
    if report.left_out_steps:
        return ""
    moved = report.written_bytes or any(step.evicted_bytes.total or step.fetched_bytes.total for step in report.steps)
    return "" if moved else ", and nothing had to move"
