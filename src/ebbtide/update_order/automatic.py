"""``--optimizer auto``: the script's order of updates, or deferred ones where steps are faster with them.

The results are the same, so the training itself is the trial. Steps that hardly wait for data cannot gain, and nothing
is tried. Else updates are deferred once enough steps have followed one plan. Steps that follow one plan with deferred
updates are then compared with those before. The script's order comes back unless they are faster.
"""

from collections.abc import Callable, Sequence
from statistics import median

from ebbtide.ir.run_report import LEFT, StepReport
from ebbtide.units import format_time
from ebbtide.update_order.deferred import Deferred

_STEPS = 6  # that follow one plan in a row; the last half of them count
_MOST_STEPS = 40  # in one order
_LEAST_STALL = 0.05  # of a step's time
_LEAST_GAIN = 0.03


class AutomaticOrder:
    """The order of one session. Callers MUST call ``ended`` after each step, before the next begins."""

    def __init__(self, deferred: Deferred, say: Callable[[str], None], start_over: Callable[[], None]) -> None:
        """``start_over`` has the steps of another order planned anew: they allocate alike, and plans go by that."""
        self._deferred, self._say, self._start_over = deferred, say, start_over
        deferred.defers = False
        self._is_settled = False
        self._as_written_s = 0.0
        self._seen, self._followed = 0, -1
        self._in_a_row: list[StepReport] = []

    @property
    def told(self) -> Sequence[str]:
        return self._deferred.told if self._deferred.defers else ()

    def install(self) -> None:
        """Begin with the script's order. Functions that the script takes from here on are guarded, whatever comes."""
        self._deferred.install()

    def remove(self) -> None:
        """End it. Raises OrderError where an update cannot be carried out."""
        self._deferred.remove()

    def ended(self, step: StepReport, schedule: int | None) -> None:
        """Note a step, and the number of the schedule that it followed, or None."""
        if self._is_settled:
            return
        self._seen += 1
        if schedule is None or schedule != self._followed:
            self._in_a_row.clear()
        self._followed = -1 if schedule is None else schedule
        if schedule is not None:
            self._in_a_row.append(step)
        if self._deferred.defers and any(LEFT in text for text in self.told):
            self._settle(deferred=False, why="they cannot be deferred")
        elif len(self._in_a_row) == _STEPS:
            self._judge(self._in_a_row[_STEPS // 2 :])
        elif self._seen == _MOST_STEPS:
            self._settle(deferred=False, why="too few steps follow one plan")

    def _judge(self, steps: Sequence[StepReport]) -> None:
        step_s = median(step.wall_s for step in steps)
        if self._deferred.defers:
            times = f"{format_time(step_s)} a step for {format_time(self._as_written_s)}"
            self._settle(deferred=step_s < self._as_written_s * (1 - _LEAST_GAIN), why=times)
        elif median(step.stall_s.total for step in steps) < step_s * _LEAST_STALL:
            self._is_settled = True
        else:
            self._as_written_s = step_s
            self._deferred.defers, self._seen = True, 0
            self._start_over()
            self._in_a_row.clear()
            self._say("updates are deferred from here, to see whether steps are faster")

    def _settle(self, *, deferred: bool, why: str) -> None:
        self._is_settled = True
        if self._deferred.defers:
            stays = "stay deferred" if deferred else "are made in the script's order again"
            self._say(f"updates {stays}: {why}")
            if not deferred:
                self._start_over()
        self._deferred.defers = deferred
