"""Chooses the typical steps of a run, whose figures the page and the terminal show."""

from statistics import median

from ebbtide.ir.run_report import RunReport, StepMode, StepReport


def typical_steps(report: RunReport) -> list[StepReport]:
    """Return the steps that ran as usual, not to be recorded. If there are none, return all steps."""
    return [step for step in report.steps if step.mode is not StepMode.RECORDED] or list(report.steps)


def typical_steps_named(report: RunReport) -> str:
    """Return text such as ``6 planned steps`` or ``7 steps not recorded``, or "" if there are none."""
    steps = typical_steps(report)
    modes = {step.mode for step in steps}
    noun = f"step{'' if len(steps) == 1 else 's'}"
    if not steps:
        return ""
    return f"{len(steps)} {modes.pop()} {noun}" if len(modes) == 1 else f"{len(steps)} {noun} not recorded"


def median_step_s(report: RunReport) -> float | None:
    """Return the median time of a typical step, or None without steps."""
    steps = typical_steps(report)
    return median(step.wall_s for step in steps) if steps else None


def median_turn_s(report: RunReport) -> float | None:
    """Return the median time from the end of a step to the end of the typical step after it, or None without steps."""
    steps = typical_steps(report)
    return median(step.between_s + step.wall_s for step in steps) if steps else None


def planned_step_s(report: RunReport) -> float | None:
    """Return the median time of the steps that followed the plan. None without any, and where steps of several shapes
    follow plans of their own."""
    if report.plan is not None and report.plan.plans > 1:
        return None
    taken_up = report.plan.taken_up_after if report.plan is not None else 0
    since = report.steps[-since_then:] if (since_then := max(report.step_count() - taken_up, 0)) else ()
    planned_s = [step.wall_s for step in since if step.mode is StepMode.PLANNED]
    return median(planned_s) if planned_s else None
