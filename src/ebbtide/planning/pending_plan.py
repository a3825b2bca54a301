"""A plan that is being made, and how long training stands still for it.

Steps without a plan wait for one about as long as the recorded step took. A plan that is there by then serves the very
next step, and the wait has cost no more than a step without a plan may cost. Then steps go on. Where there is no room
for both, or where that is asked for, training stands still until the plan is there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns

from ebbtide.ir.recording import Recording
from ebbtide.planning.followed_steps import FollowedSteps
from ebbtide.planning.plan_job import Answer, Asked, planning_bytes
from ebbtide.units import MIB, flag, format_time, seconds


@dataclass(frozen=True, slots=True)
class PendingPlan:
    """A plan for steps that are ``like`` the recorded one, the run's ``step``-th.

    ``steps`` will follow it. ``keep``: it is the first plan, which is the one to save. ``replaces`` is the schedule
    that steps follow meanwhile.
    """

    asked: Asked
    like: str
    steps: FollowedSteps
    step: int
    step_s: float
    needed_bytes: int
    keep: bool
    replaces: int | None
    since_ns: int = field(default_factory=perf_counter_ns)

    @staticmethod
    def of(
        recording: Recording,
        asked: Asked,
        like: str,
        steps: FollowedSteps,
        step: int,
        keep: bool,
        replaces: int | None = None,
    ) -> "PendingPlan":
        step_s, needed = seconds(recording.time_ns), planning_bytes(recording)
        return PendingPlan(asked, like, steps, step, step_s, needed, keep, replaces)

    def is_there(self) -> bool:
        """Tell at once whether the plan is there."""
        return self.asked.wait(0)

    def wait(self, for_good: bool, say: Callable[[str], None]) -> bool:
        """Wait for the plan between two steps. Return whether it is there; if not, steps go on."""
        follows_one = self.replaces is not None
        if self.asked.wait(None if for_good else 0.0 if follows_one else self.step_s):
            return True
        if self.asked.steps_go_on():
            return False
        say(
            f"training waits while step {self.step} is planned: a step and the {self.needed_bytes // MIB} MiB that "
            "planning takes do not fit side by side"
        )
        return self.asked.wait(None)

    def stop(self) -> str:
        """Stop it and say in words what became of it."""
        self.asked.stop()
        so_far = format_time(seconds(perf_counter_ns() - self.since_ns))
        return (
            f"the run ended while its plan was being made ({so_far} so far); "
            f"{flag('wait-for-plan')} (or EBBTIDE_WAIT_FOR_PLAN=1) waits for it"
        )


def answer_to(asked: Asked) -> Answer:
    """Wait for a job and return its answer. Stop the job if the wait is interrupted."""
    try:
        asked.wait(None)
    except BaseException:
        asked.stop()
        raise
    return asked.answer()
