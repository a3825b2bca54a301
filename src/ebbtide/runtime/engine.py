"""What runs between a session's start and its end: native code's bounds, the steps, and the report.

A budget in percent is found as tiertrain's profiling step is, by running: step 0 creates the optimizer's state, step
1 shows the peak of live tensor bytes, and then the arena's budget is set.
"""

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from ebbtide import _torch
from ebbtide.errors import PlatformError, SpillError
from ebbtide.report.run_report import FORMAT, KINDS, VERSION, OutsideStorage, RunReport, StepMode
from ebbtide.runtime import doors, process
from ebbtide.runtime.adopt import adopt_all
from ebbtide.runtime.bounds import TOLERANCE_PERCENT, Bounds, arena_too_small, process_too_small
from ebbtide.runtime.faults import stay_on_top
from ebbtide.runtime.meter import Reading, read_now, step_between
from ebbtide.runtime.planning import Planning
from ebbtide.runtime.progress import Observation
from ebbtide.runtime.step_log import StepLog
from ebbtide.runtime.steps import OptimizerHooks
from ebbtide.settings import Settings
from ebbtide.units import format_bytes

_RECORDED_STEPS = 2  # the warm-up, which creates optimizer state, and the one that is measured
_ADOPTING_STEPS = 2  # optimizer state loaded or built elsewhere appears during the first steps
_POLL_S = 0.005
_NO_USERFAULTFD = (
    "EBBTIDE_USERFAULTFD: userfaultfd is not permitted here (ebbtide doctor says why), or was not asked for when this "
    "process began its first session: a system call on the raw address of a tensor that is away fails"
)


class Engine:
    """Drives native code for one session; used by one thread, read by the progress thread."""

    def __init__(
        self,
        bounds: Bounds,
        settings: Settings,
        spill: Sequence[Path],
        planning: Planning | None,
        decider: str,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._bounds = bounds
        self._planning = planning
        self._settings = settings
        self._spill = spill
        self._decider = decider
        self._say = say
        self._warn = warn
        self._hooks = OptimizerHooks(self._optimizer_built, self._optimizer_begins, self._optimizer_ended)
        self._process = os.getpid()
        self._started = False
        self._follows_optimizer = False
        self._step_thread: int | None = None
        self._step_before: Reading | None = None  # set while a step is open
        self._optimizer_seen = False
        self._recording = bounds.fraction is not None
        self._has_budget = bounds.fraction is None
        self._over_at_start = False
        self._over_budget_told = False
        self._peak_known = True
        self._unbounded_peak_bytes = 0
        self._most_rest_bytes = 0
        self._adopted_bytes = 0
        self._left_alone: list[tuple[int, str]] = []
        self._steps = StepLog()
        self._final: RunReport | None = None

    def start(self) -> None:
        """Raises BudgetError when what the process already holds leaves no room at all."""
        if _torch.KINDS != KINDS:
            raise RuntimeError(f"the native module counts {_torch.KINDS}, the report {KINDS}")
        try:
            _torch.start(
                spill_dirs=[str(directory) for directory in self._spill],
                arena_bytes=self._bounds.arena_bytes,
                process_bytes=self._bounds.process_bytes,
                min_bytes=self._settings.min_storage_bytes,
                io_threads=self._settings.io_threads,
                watchdog_ns=round(self._settings.watchdog_s * 1e9),
                chaos_rate=self._settings.chaos_rate,
                chaos_seed=self._settings.chaos_seed,
                policy=self._decider,
                userfaultfd=self._settings.userfaultfd,
            )
        except RuntimeError as error:
            if "address space" in str(error):  # no fault of the directory's
                raise PlatformError(str(error)) from error
            raise SpillError(", ".join(map(str, self._spill)), str(error)) from error
        self._started = True
        if self._settings.userfaultfd and not _torch.serves_system_calls():
            self._warn(_NO_USERFAULTFD)
        self._over_at_start = _torch.counters()["over_budget"]
        stay_on_top()
        doors.guard()
        self._hooks.install()
        self._adopt()
        self._check_rest()
        self._wait_for_budget()
        self._reset_peaks()

    def follow_optimizer(self) -> None:
        """Steps end where an outermost ``optimizer.step`` ends, on the first thread that makes one."""
        self._follows_optimizer = True

    def begin_step(self) -> None:
        if len(self._steps) == _RECORDED_STEPS - 1 and self._recording:
            _torch.reset_peaks()
        stay_on_top()
        doors.guard()
        if self._planning is not None:
            self._planning.begins()
        _torch.begin_step(record=self._planning is not None and self._planning.wants_recordings)
        self._step_before = read_now(_torch.counters)

    def end_step(self, *, completed: bool) -> None:
        """A step that raised is ended and not reported. Raises BudgetError when the budget cannot work."""
        before, self._step_before = self._step_before, None
        if before is None:
            return
        _torch.end_step(completed=completed)
        after = read_now(_torch.counters)
        if not completed:
            if self._planning is not None:
                self._planning.close()
            return
        followed = self._planning is not None and self._planning.ended()
        mode = StepMode.RECORDED if self._recording else StepMode.PLANNED if followed else StepMode.DEMAND
        self._steps.add(step_between(before, after, mode))
        if len(self._steps) <= _ADOPTING_STEPS:
            self._adopt()
        self._check_budget(after.counters)
        if self._recording and len(self._steps) == _RECORDED_STEPS:
            self._set_budget(after.counters)
        if self._planning is not None and self._has_budget:
            self._planning.learn(_torch.counters()["arena_limit_bytes"])
        self._most_rest_bytes = max(self._most_rest_bytes, after.counters["rest_bytes"])

    def stop(self) -> None:
        """Ends an open step and takes the final report; managed tensors stay valid, under the same budget."""
        if self._final is not None or not self._started:
            return
        self._hooks.remove()
        self.end_step(completed=False)
        if self._planning is not None:
            self._planning.finish()
        self._final = self.report()
        _torch.unload_schedules()
        _torch.stop()
        if self._recording:
            self._warn(
                f"{len(self._steps)} steps were seen and {_RECORDED_STEPS} are needed to find the peak that the budget "
                "is a percentage of, so this run was unbounded"
            )

    def report(self) -> RunReport:
        """What is known now; after ``stop``, what was known then."""
        if self._final is not None:
            return self._final
        counters = _torch.counters()
        process_peak = process.peak_resident_bytes()
        arena_budget = counters["arena_limit_bytes"] if self._has_budget else 0
        fast = self._fast_bytes(arena_budget, counters["rest_bytes"])
        over_process = self._bounds.process_asked and process_peak > self._tolerated_bytes()
        return RunReport(
            format=FORMAT,
            version=VERSION,
            policy=self._settings.policy,
            fast_bytes=fast,
            arena_budget_bytes=arena_budget or None,
            process_peak_bytes=process_peak,
            unbounded_peak_bytes=self._unbounded_peak_bytes or counters["live_peak_bytes"],
            arena_peak_bytes=counters["held_peak_bytes"],
            arena_mean_bytes=round(counters["held_byte_ns"] / max(counters["held_ns"], 1)),
            budget_violated=self._over_budget(counters) or over_process,
            trouble=self._trouble(counters, process_peak),
            adopted_bytes=self._adopted_bytes,
            outside_bytes=sum(nbytes for nbytes, _ in self._left_alone),
            outside=_by_reason(self._left_alone),
            plan=self._planning.report() if self._planning is not None else None,
            steps=self._steps.kept(),
            left_out_steps=self._steps.left_out,
            left_out_written_bytes=self._steps.left_out_written_bytes,
        )

    def observe(self) -> Observation:
        """For the progress thread: levels of this moment and the last finished step."""
        counters = _torch.counters()
        steps = len(self._steps)
        resident, budget = counters["held_bytes"], counters["arena_limit_bytes"] if self._has_budget else 0
        if self._bounds.process_asked:
            resident, budget = process.resident_bytes(), self._bounds.process_bytes
        running = self._step_before
        running_s = (time.perf_counter_ns() - running.wall_ns) / 1e9 if running is not None else 0.0
        return Observation(steps, self._steps.latest(), running_s, resident, budget)

    # ---- optimizer hooks ------------------------------------------------------------------------------------------

    def _optimizer_built(self) -> None:
        """The model exists when its first optimizer takes its parameters: a moment between steps."""
        if os.getpid() != self._process or self._step_before is not None or self._optimizer_seen:
            return
        self._optimizer_seen = True
        self._adopt()

    def _optimizer_begins(self) -> None:
        if not self._follows_optimizer or os.getpid() != self._process:
            return
        if self._step_before is None:
            self._step_thread = self._step_thread or threading.get_ident()
            self.begin_step()

    def _optimizer_ended(self) -> None:
        if not self._follows_optimizer or os.getpid() != self._process:
            return
        if threading.get_ident() == self._step_thread:
            try:
                self.end_step(completed=True)
            finally:
                self.begin_step()

    # ---- budget ---------------------------------------------------------------------------------------------------

    def _set_budget(self, counters: "_torch.Counters") -> None:
        """From unbounded to the asked share of the peak that the recorded step showed."""
        self._recording = False
        peak = self._unbounded_peak_bytes = counters["live_peak_bytes"]
        fraction = self._bounds.fraction or 0
        arena = int(peak * fraction)
        if fraction >= 1:  # all of it: with what pages add, so that nothing has to move
            arena = max(arena, int(counters["held_peak_bytes"] * fraction))
        if not arena:
            self._warn(
                "no storage was large enough to be managed, so nothing is bounded; "
                "EBBTIDE_MIN_STORAGE names the smallest"
            )
            return
        largest = counters["largest_operator_bytes"]
        if largest > arena:
            raise arena_too_small(arena, peak, counters["largest_operator"], largest)
        _torch.set_limits(arena_bytes=arena, process_bytes=self._bounds.process_bytes)
        self._has_budget = True
        self._say(
            f"recorded an unbounded step: its tensors peak at {format_bytes(peak)}; from here the arena has "
            f"{format_bytes(arena)}, and the process's peak is measured anew"
        )
        self._wait_for_budget()
        self._reset_peaks()

    def _check_rest(self) -> None:
        """Before anything has run the operations' need is not known, so this error names a lower bound."""
        counters = _torch.counters()
        rest = process.resident_bytes() - counters["held_bytes"]
        if self._bounds.process_asked and rest >= self._bounds.process_bytes:
            raise process_too_small(self._bounds.process_bytes, rest, "", 0)

    def _check_budget(self, counters: "_torch.Counters") -> None:
        """Over budget for want of room for one operation is an error; otherwise the watchdog's doing: a warning.

        So is a process that holds more outside the arena than its whole budget, whatever the arena does.
        """
        arena, rest = counters["arena_limit_bytes"], counters["rest_bytes"]
        largest, operator = counters["largest_operator_bytes"], counters["largest_operator"]
        if self._bounds.process_asked and rest > self._tolerated_bytes():
            raise process_too_small(self._bounds.process_bytes, rest, operator, largest)
        if self._over_budget_told or not self._over_budget(counters):
            return
        self._over_budget_told = True
        if largest <= arena:
            self._warn(f"the budget was exceeded rather than wait for ever: {counters['message']}")
        elif self._bounds.process_asked:
            raise process_too_small(self._bounds.process_bytes, rest, operator, largest)
        else:
            raise arena_too_small(arena, self._unbounded_peak_bytes, operator, largest)

    def _wait_for_budget(self) -> None:
        """Until what the arena holds fits its limit, or the watchdog's time is over (then the report will show it)."""
        deadline = time.monotonic() + self._settings.watchdog_s
        while time.monotonic() < deadline:
            counters = _torch.counters()
            if not counters["arena_limit_bytes"] or counters["held_bytes"] <= counters["arena_limit_bytes"]:
                return
            time.sleep(_POLL_S)

    def _reset_peaks(self) -> None:
        _torch.reset_peaks()
        if not process.reset_peak() and self._peak_known:
            self._peak_known = False
            self._warn("the kernel does not let VmHWM be reset, so the process's peak includes what came before")

    # ---- report ---------------------------------------------------------------------------------------------------

    def _fast_bytes(self, arena_budget: int, rest_bytes: int) -> int | None:
        if self._bounds.process_asked:
            return self._bounds.process_bytes
        return arena_budget + max(self._most_rest_bytes, rest_bytes) if arena_budget else None

    def _tolerated_bytes(self) -> int:
        return self._bounds.process_bytes + self._bounds.process_bytes * TOLERANCE_PERCENT // 100

    def _over_budget(self, counters: "_torch.Counters") -> bool:
        return counters["over_budget"] and not self._over_at_start

    def _trouble(self, counters: "_torch.Counters", process_peak: int) -> str:
        if counters["message"]:
            return counters["message"]
        if self._bounds.process_asked and process_peak > self._tolerated_bytes():
            excess = format_bytes(process_peak - self._bounds.process_bytes)
            return f"the process peaked {excess} above its budget"
        return ""

    def _adopt(self) -> None:
        adopted, self._left_alone = adopt_all(self._settings.min_storage_bytes)
        self._adopted_bytes += adopted


def _by_reason(left_alone: list[tuple[int, str]]) -> tuple[OutsideStorage, ...]:
    count = Counter(reason for _, reason in left_alone)
    nbytes: defaultdict[str, int] = defaultdict(int)
    for size, reason in left_alone:
        nbytes[reason] += size
    return tuple(OutsideStorage(reason, count[reason], nbytes[reason]) for reason in sorted(count))
