"""Which steps of a run its figures of a step are of: those of a typical step, as the page and the terminal have it."""

from statistics import median

from ebbtide.ir.run_report import RunReport, StepMode, StepReport


def typical_steps(report: RunReport) -> list[StepReport]:
    """The steps that were not run to be recorded; all, if there are no others."""
    return [step for step in report.steps if step.mode is not StepMode.RECORDED] or list(report.steps)


def typical_steps_named(report: RunReport) -> str:
    """``6 planned steps``, ``7 steps not recorded``; "" if there are none."""
    steps = typical_steps(report)
    modes = {step.mode for step in steps}
    noun = f"step{'' if len(steps) == 1 else 's'}"
    if not steps:
        return ""
    return f"{len(steps)} {modes.pop()} {noun}" if len(modes) == 1 else f"{len(steps)} {noun} not recorded"


def median_step_s(report: RunReport) -> float | None:
    """None without steps."""
    steps = typical_steps(report)
    return median(step.wall_s for step in steps) if steps else None
