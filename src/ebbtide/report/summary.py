"""Shows a run's report as text for people: the answers (``headline``), then faults, then figures. All are measured
but for a plan's, which are expected."""

from collections.abc import Callable, Iterable
from datetime import datetime
from statistics import mean

from ebbtide.ir.run_report import KINDS, PlanReport, RunReport, StepMode, StepReport, TierReport, Traffic
from ebbtide.report.headline import headline, higher_before, process_peak_bytes
from ebbtide.report.typical_steps import median_step_s, planned_step_s, typical_steps, typical_steps_named
from ebbtide.terminal import SUMMARY_TEXT
from ebbtide.units import format_bytes, format_time

_LABEL = SUMMARY_TEXT - 2


def render_headline(report: RunReport) -> str:
    """Say in one or two lines whether the budget was kept, and why it was exceeded. Returns "" before the first
    step."""
    lines = render_summary(report).splitlines()[: 2 if report.budget_violated and report.trouble else 1]
    return "\n".join(lines) if report.steps or report.budget_violated else ""


def render_summary(report: RunReport) -> str:
    """Return several lines, without a newline at the end."""
    if report.policy == "disabled":
        return "Ebbtide was disabled: nothing was managed, nothing was bounded."
    if _is_idle(report):
        return "Ebbtide: nothing was trained here: no step was seen, and no tensor large enough to be managed."
    steps = typical_steps(report)
    lines = [headline(report)]
    if report.moment is not None:
        at = datetime.fromtimestamp(report.moment.at_s).strftime("%Y-%m-%d %H:%M:%S")
        lines.append(_line("unfinished", f"these are the figures of {at}: the run goes on, or was killed"))
    if report.trouble and (report.moment is None or report.budget_violated):  # what lacks may come yet
        lines.append(_line("trouble", report.trouble))
    if steps:
        lines.append(_line("steps", _steps(report)))
    lines.append(_line("process peak", _process(report)))
    lines.append(_line("tensors" if report.device is None else f"on {report.device}", _tensors(report)))
    if not steps and report.arena_budget_bytes is not None:
        kept = not report.budget_violated and report.bounded_as_asked
        own = "; this process stayed within its budget, and those that it starts are not bounded" if kept else ""
        lines.append(_line("steps", f"none was seen, so nothing was planned{own}"))
    if report.plan is not None:
        lines.append(_line("plan", _plan(report.plan, _is_followed(report, report.plan))))
        lines += _forecast(report.plan)
        lines += _off_forecast(report.plan, planned_step_s(report))
    if steps:
        lines += _moved(steps)
        if made_anew := mean(step.made_anew_bytes for step in steps):
            took_s = mean(step.made_anew_s for step in steps)
            lines.append(_line("made anew a step", f"{format_bytes(round(made_anew))} in {format_time(took_s)}"))
        lines += _waited(steps)
        if written := report.written_bytes:
            where = "slower tiers" if report.tiers else "the spill file"
            lines.append(_line("written in all", f"{format_bytes(written)} to {where}"))
    lines += [_line(tier.name, _tier(tier)) for tier in report.tiers]
    lines += [_line("updates", text) for text in report.updates]
    if report.adopted_bytes:
        lines.append(_line("existed before", f"{format_bytes(report.adopted_bytes)} of tensors; now managed"))
    lines += [
        _line("left alone", f"{entry.count} of {format_bytes(entry.nbytes)}: {entry.reason}")
        for entry in report.outside
    ]
    return "\n".join(lines)


def _is_idle(report: RunReport) -> bool:
    """Say whether nothing happened that a budget or a plan is for, and nothing is amiss."""
    amiss = report.trouble or report.budget_violated or not report.bounded_as_asked or not report.planned_as_asked
    return not (amiss or report.steps or report.left_out_steps or report.unbounded_peak_bytes or report.outside)


def _steps(report: RunReport) -> str:
    modes = [(sum(step.mode is mode for step in report.steps), f"{mode}") for mode in StepMode]
    known = ", ".join(f"{number} {mode}" for number, mode in [*modes, (report.left_out_steps, "not listed")] if number)
    over = "" if len(typical_steps(report)) == report.step_count() else f" (of {typical_steps_named(report)})"
    policy = "" if report.policy == "ebbtide" else f"; policy {report.policy}"
    return f"{known}; median {format_time(median_step_s(report) or 0.0)}{over}{policy}"


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}"


def _against(used: int, allowed: int | None) -> str:
    return format_bytes(used) + (f" of {format_bytes(allowed)}" if allowed is not None else ", no bound")


def _process(report: RunReport) -> str:
    """Return the process's peak, with a limit beside it only where that limit bounds it."""
    peak = format_bytes(process_peak_bytes(report))
    if report.device is not None:
        return f"{peak} on the host"
    before = f", {peak_before} before the budget was in force" if (peak_before := higher_before(report)) else ""
    if report.fast_bytes is None:
        return f"{peak}{before}; only the tensors are bounded" if report.arena_budget_bytes else f"{peak}{before}"
    within = report.fast_bytes < report.process_peak_bytes and not report.budget_violated
    tolerated = ", within the 2 % tolerated" if within else ""
    return f"{_against(report.process_peak_bytes, report.fast_bytes)}{tolerated}{before}"


def _tensors(report: RunReport) -> str:
    """Return the arena's peak and mean with its bound, the part under live storages, and a step's peak without a bound.

    The bound moves with a process budget or a followed limit. Then the last one is shown.
    """
    peak, bound = report.arena_peak_bytes, report.arena_budget_bytes
    moved = bound is not None and (report.fast_bytes is not None or (peak > bound and not report.budget_violated))
    texts = [f"{format_bytes(peak) if moved else _against(peak, bound)}, mean {format_bytes(report.arena_mean_bytes)}"]
    if moved and bound is not None:
        texts.append(f"last budget {format_bytes(bound)}")
    if report.resident_peak_bytes is not None and report.resident_mean_bytes is not None:
        live, mean_bytes = format_bytes(report.resident_peak_bytes), format_bytes(report.resident_mean_bytes)
        texts.append(f"live {live}, mean {mean_bytes}")
    if report.unbounded_peak_bytes:
        texts.append(f"without a budget {format_bytes(report.unbounded_peak_bytes)}")
    return "; ".join(texts)


def _is_followed(report: RunReport, plan: PlanReport) -> bool:
    """Say whether a step may have followed the plan. None does if it came last, or if no other step allocates alike."""
    is_any = report.left_out_steps > 0 or any(step.mode is StepMode.PLANNED for step in report.steps)
    return is_any and plan.taken_up_after < report.step_count()


def _plan(plan: PlanReport, is_followed: bool) -> str:
    whose = "" if plan.planner == "ebbtide" else f"{plan.planner}: "
    bound = "" if plan.lower_bound_s is None else f", at best {format_time(plan.lower_bound_s)}"
    count = f", the last of {plan.plans}" if plan.plans > 1 else ""
    used = f"followed from step {plan.taken_up_after + 1}" if is_followed else "and no step followed it"
    return (
        f"{whose}{format_time(plan.predicted_s)} a step expected, {format_time(plan.step_s)} without waiting{bound}; "
        f"made in {format_time(plan.plan_s)}{count}, {used}"
    )


def _forecast(plan: PlanReport) -> Iterable[str]:
    """Return each link's copies in a step and the step's time, as forecast and as measured."""
    if not plan.links:
        return
    step = "unknown" if plan.measured_s is None else format_time(plan.measured_s)
    yield _line("  a step", f"{'forecast':>23}{'measured':>24}")
    yield _line("  in all", f"{format_time(plan.predicted_s):>23}{step:>24}")
    for link in plan.links:
        foreseen = copied(link.forecast_bytes, link.forecast_busy_s)
        yield _line(f"  {link.name}", f"{foreseen:>23}{copied(link.measured_bytes, link.measured_busy_s):>24}")


def _off_forecast(plan: PlanReport, planned_s: float | None) -> Iterable[str]:
    """Say that the forecast was missed by half, whichever way."""
    if planned_s is None or (ratio := plan.missed_by(planned_s)) is None:
        return
    slower = (
        "the machine does other work, or memory and disk are slower than they were when they were measured; `ebbtide "
        "doctor` looks at both"
    )
    faster = "the recorded step or the measured machine was slower, so another plan may be better"
    yield _line(
        "off the forecast",
        f"planned steps took {format_time(planned_s)} (median), {ratio:.1f} times the forecast: "
        f"{slower if ratio > 1 else faster}",
    )


def copied(nbytes: int | None, busy_s: float | None) -> str:
    """Return text such as ``1.00 MiB in 2.00 ms``, with the time in which a copy was under way."""
    if nbytes is None or busy_s is None:
        return "unknown"
    return f"{format_bytes(nbytes)} in {format_time(busy_s)}"


def _tier(tier: TierReport) -> str:
    room = "" if tier.capacity_bytes is None else f"; it has room for {format_bytes(tier.capacity_bytes)}"
    return f"{format_bytes(tier.written_bytes)} written, {format_bytes(tier.read_bytes)} read{room}"


def _moved(steps: list[StepReport]) -> Iterable[str]:
    """Return the moved bytes in all, and of each kind that moved."""

    def average(pick: Callable[[StepReport], Traffic], kind: str) -> float:
        return float(mean(getattr(pick(step), kind) for step in steps))

    for kind in ("total", *KINDS):
        evicted = average(lambda step: step.evicted_bytes, kind)
        written = average(lambda step: step.written_bytes, kind)
        fetched = average(lambda step: step.fetched_bytes, kind)
        out, to_tiers, back = (f"{format_bytes(nbytes):>8}" for nbytes in (evicted, written, fetched))
        if evicted or written or fetched:
            label = "moved a step" if kind == "total" else f"  {kind.replace('_', ' ')}"
            yield _line(label, f"out {out} (written {to_tiers})   in {back}")


def _waited(steps: list[StepReport]) -> Iterable[str]:
    wall = sum(step.wall_s for step in steps)
    stall = sum(step.stall_s.total for step in steps)
    if not stall:
        return
    causes = {
        "memory to be freed": mean(step.stall_s.room for step in steps),
        "reads that were late": mean(step.stall_s.late_prefetch for step in steps),
        "reads that nobody had started": mean(step.stall_s.demand_fetch for step in steps),
    }
    waits = ", ".join(f"{format_time(each)} for {cause}" for cause, each in causes.items() if each)
    share = f" ({100 * stall / wall:.1f} %)" if wall else ""
    yield _line("waited a step", f"{format_time(stall / len(steps))}{share}: {waits}")
