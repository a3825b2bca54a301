"""What runs between a session's start and its end: native code's bounds, the steps, and the report.

A budget in percent is found as tiertrain's profiling step is, by running: step 0 creates the optimizers' state, step
1 shows the peak of live tensor bytes with it. The arena's budget is a share of the highest peak of the two.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import ebbtide._torch as _torch
from ebbtide.capture.following import Following
from ebbtide.capture.optimizer_hooks import OptimizerHooks
from ebbtide.errors import BudgetError, PlatformError, SpillError
from ebbtide.host import process
from ebbtide.ir import native
from ebbtide.ir.run_report import FORMAT, VERSION, RunReport, StepMode, by_reason
from ebbtide.runtime import foreign_views, shortfalls
from ebbtide.runtime.adopt import adopt_all
from ebbtide.runtime.bounds import Bounds, Need, arena_too_small, need_of
from ebbtide.runtime.children import Children
from ebbtide.runtime.faults import stay_on_top
from ebbtide.runtime.in_backward import InBackward
from ebbtide.runtime.kept import Kept
from ebbtide.runtime.limits import Limits
from ebbtide.runtime.memory_stats import memory_stats
from ebbtide.runtime.planning import Planning
from ebbtide.runtime.progress import Observation
from ebbtide.runtime.step_counters import Reading, read_now, step_between
from ebbtide.runtime.step_log import StepLog
from ebbtide.settings import Settings, UpdateOrder
from ebbtide.units import format_bytes, seconds

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
        early = settings.optimizer is UpdateOrder.IN_BACKWARD
        self._in_backward = InBackward(say, warn) if early else None
        self._process = os.getpid()
        self._started = False
        self.following = Following(self)
        self._step_before: Reading | None = None  # set while a step is open
        self._optimizer_seen = False
        self._recording = bounds.fraction is not None
        self._limits = Limits(bounds, say)
        self._has_budget = False
        self._nothing_managed = False
        self._over_at_start, self._written_before = False, 0
        self._over_budget_told = False
        self._limit_fell = ""  # below what an operation needs, in words
        self._peak_known = True
        self._children = Children()
        self._kept = Kept()
        self.keep = self._kept.keep
        self._unbounded_peak_bytes = 0
        self._live_peak = self._reserved_peak = 0  # of the recorded steps
        self._adopted_bytes = 0
        self._left_alone: list[tuple[int, str]] = []
        self._steps = StepLog()
        self._final: RunReport | None = None

    def start(self) -> None:
        """Raises BudgetError when what the process already holds leaves no room at all."""
        if trouble := native.disagreement(_torch):
            raise RuntimeError(trouble)
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
        _torch.set_checksum(self._settings.checksum)
        if self._settings.userfaultfd and not _torch.serves_system_calls():
            self._warn(_NO_USERFAULTFD)
        counters = _torch.counters()
        self._over_at_start, self._written_before = counters["over_budget"], sum(counters["written_bytes"])
        stay_on_top()
        foreign_views.guard()
        if self._in_backward is not None:
            self._in_backward.install()  # before the hooks, which see its steps as they are carried out
        self._hooks.install()
        self._adopt()
        self._limits.explore(process.resident_bytes() - _torch.counters()["reserved_bytes"])
        self._has_budget = self._bounds.fraction is None and not self._limits.exploring
        self._wait_for_budget()
        self._reset_peaks()

    @property
    def step_is_open(self) -> bool:
        return self._step_before is not None

    def begin_step(self) -> None:
        self.following.trained = False
        if self._recording:
            _torch.reset_peaks()  # what ran since the last step is no step's
        if self._recording and len(self._steps) == _RECORDED_STEPS - 1:
            _torch.reset_needs()  # what ran once, at construction say, does not bind steps
        stay_on_top()
        foreign_views.guard()
        if self._planning is not None:
            self._planning.begins()
        before = _torch.begin_step(record=self._planning is not None and self._planning.wants_recordings)
        self._step_before = read_now(before)

    def end_step(self, *, completed: bool) -> None:
        """A step that raised is ended and not reported. Raises BudgetError when the budget cannot work."""
        before, self._step_before = self._step_before, None
        if before is None:
            return
        after = read_now(_torch.end_step(completed=completed))
        if not completed:
            if self._planning is not None:
                self._planning.close()
            return
        followed = self._planning is not None and self._planning.ended()
        mode = StepMode.RECORDED if self._recording else StepMode.PLANNED if followed else StepMode.DEMAND
        self._steps.add(step_between(before, after, mode))
        if len(self._steps) <= _ADOPTING_STEPS:
            self._adopt()
        if self._recording:
            self._live_peak = max(self._live_peak, after.counters["live_peak_bytes"])
            self._reserved_peak = max(self._reserved_peak, after.counters["reserved_peak_bytes"])
        self._check_budget(after.counters)
        if self._recording and len(self._steps) == _RECORDED_STEPS:
            self._set_budget(after.counters)
        if self._planning is not None and self._has_budget:
            self._planning.learn(_torch.counters()["arena_limit_bytes"])

    def stop(self) -> None:
        """Ends an open step and takes the final report; managed tensors stay valid, under the same budget."""
        if self._final is not None or not self._started:
            return
        self._hooks.remove()
        if self._in_backward is not None:
            self._in_backward.remove()
        self.end_step(completed=False)
        if self._planning is not None:
            self._planning.finish()
        self._final = self.report()
        _torch.unload_schedules()
        self._kept.release()
        _torch.stop()
        told = self._limits.refused or self._nothing_managed
        as_asked = self._final.bounded_as_asked and self._final.planned_as_asked
        if not told and (not as_asked or self._peak_of_others()):
            self._warn(self._final.trouble)

    def report(self) -> RunReport:
        """What is known now; after ``stop``, what was known then."""
        if self._final is not None:
            return self._final
        counters = _torch.counters()
        process_peak = process.peak_resident_bytes()
        arena_budget = counters["arena_limit_bytes"] if self._has_budget else 0
        over, excess = self._over_budget(counters), self._limits.exceeded_by(process_peak)
        trouble = self._limit_fell or ("" if self._limits.exploring else counters["message"])
        if excess and not trouble:
            trouble = f"the process peaked {format_bytes(excess)} above its budget"
        unbounded, unplanned = self._unbounded(), self._unplanned()
        return RunReport(
            format=FORMAT,
            version=VERSION,
            policy=self._settings.policy,
            fast_bytes=self._limits.fast_bytes,
            arena_budget_bytes=arena_budget or None,
            process_peak_bytes=process_peak,
            unbounded_peak_bytes=self._unbounded_peak_bytes or max(self._live_peak, counters["live_peak_bytes"]),
            arena_peak_bytes=counters["reserved_peak_bytes"],
            arena_mean_bytes=round(counters["reserved_byte_ns"] / max(counters["measured_ns"], 1)),
            budget_violated=over or excess > 0,
            trouble=trouble or unbounded or unplanned or shortfalls.others_unbounded(self._peak_of_others()),
            adopted_bytes=self._adopted_bytes,
            outside_bytes=sum(nbytes for nbytes, _ in self._left_alone),
            outside=by_reason(self._left_alone),
            plan=self._planning.report() if self._planning is not None else None,
            steps=self._steps.kept(),
            left_out_steps=self._steps.left_out,
            left_out_written_bytes=self._steps.left_out_written_bytes,
            written_bytes=sum(counters["written_bytes"]) - self._written_before,
            bounded_as_asked=not unbounded,
            planned_as_asked=not unplanned,
            resident_peak_bytes=counters["resident_peak_bytes"],
            resident_mean_bytes=round(counters["resident_byte_ns"] / max(counters["measured_ns"], 1)),
            updates=tuple(self._in_backward.told) if self._in_backward is not None else (),
        )

    def memory_stats(self) -> dict[str, int]:
        return memory_stats(_torch.counters())

    def observe(self) -> Observation:
        """For the progress thread: levels of this moment and the last finished step."""
        counters = _torch.counters()
        steps = len(self._steps)
        what, held = "tensors", counters["reserved_bytes"]
        budget = counters["arena_limit_bytes"] if self._has_budget else 0
        if self._bounds.process_asked:
            what, held, budget = "process", process.resident_bytes(), self._limits.process_bytes
        running = self._step_before
        running_s = seconds(time.perf_counter_ns() - running.wall_ns) if running is not None else 0.0
        since = self._planning.busy_since_ns if self._planning is not None else None
        planning_s = None if since is None else seconds(time.perf_counter_ns() - since)
        return Observation(steps, self._steps.latest(), running_s, what, held, budget, planning_s)

    # ---- optimizer hooks ------------------------------------------------------------------------------------------

    def _optimizer_built(self) -> None:
        """The model exists when its first optimizer takes its parameters: a moment between steps."""
        if os.getpid() != self._process or self._step_before is not None or self._optimizer_seen:
            return
        self._optimizer_seen = True
        self._adopt()

    def _optimizer_begins(self) -> None:
        if self.following.active and self._step_before is None:
            self.begin_step()

    def _optimizer_ended(self) -> None:
        self.following.trained = True
        if not self.following.active:
            return
        try:
            self.end_step(completed=True)
        finally:
            self.begin_step()

    # ---- budget ---------------------------------------------------------------------------------------------------

    def _set_budget(self, counters: "_torch.Counters") -> None:
        """From unbounded to the asked share of the peak that the recorded step showed."""
        self._recording = False
        peak = self._unbounded_peak_bytes = self._live_peak
        fraction = self._bounds.fraction or 0
        arena = int(peak * fraction)
        if fraction >= 1:  # all of it: with what pages add, so that nothing has to move
            arena = max(arena, int(self._reserved_peak * fraction))
        if not arena:
            self._nothing_managed = True
            self._warn(shortfalls.NOTHING_MANAGED)
            return
        if (need := need_of(counters)).nbytes > arena:
            raise self._limits.refusal(arena_too_small(arena, peak, need))
        self._limits.take_share(arena)
        self._has_budget = True
        self._say(
            f"a step's tensors peak at {format_bytes(peak)}; from here they have {format_bytes(arena)} of memory, and "
            "peaks are measured anew"
        )
        self._wait_for_budget()
        self._reset_peaks()

    def _check_budget(self, counters: "_torch.Counters") -> None:
        """Over budget for want of room for one operation is an error; otherwise the watchdog's doing: a warning.

        So is a process that holds more outside the arena than its whole budget, whatever the arena does. Where the
        machine lowered what there is, and what the user named has room, it is a warning too.
        """
        need, rest = need_of(counters), counters["unmanaged_bytes"]
        process_asked = self._bounds.process_asked
        if self._limits.exploring or (process_asked and rest > self._limits.tolerated_bytes()):
            raise self._limits.refusal(self._process_too_small(rest, need))
        if self._over_budget_told or not self._over_budget(counters):
            return
        self._over_budget_told = True
        if need.nbytes <= counters["arena_limit_bytes"]:
            self._warn(f"the budget was exceeded rather than wait for ever: {counters['message']}")
        elif self._limits.are_the_machines(rest, need):
            self._limit_fell = shortfalls.limit_fell(self._limits.process_bytes, rest, need.operator, need.nbytes)
            self._warn(self._limit_fell)
        elif process_asked or self._recording:
            raise self._limits.refusal(self._process_too_small(rest, need))
        else:
            raise self._limits.refusal(arena_too_small(self._limits.arena_bytes, self._unbounded_peak_bytes, need))

    def _process_too_small(self, rest: int, need: Need) -> BudgetError:
        planning = self._planning.takes_bytes() if self._planning is not None else 0
        return self._limits.too_small_error(rest, need, planning)

    def limit_changed(self, there_bytes: int) -> None:
        """The process can have so much in all from now on; called by the thread that follows that."""
        if self._final is None:
            self._limits.follow(there_bytes)

    def _wait_for_budget(self) -> None:
        """Until what the arena holds fits its limit, or the watchdog's time is over (then the report will show it)."""
        deadline = time.monotonic() + self._settings.watchdog_s
        while time.monotonic() < deadline:
            counters = _torch.counters()
            if not counters["arena_limit_bytes"] or counters["reserved_bytes"] <= counters["arena_limit_bytes"]:
                return
            time.sleep(_POLL_S)

    def _reset_peaks(self) -> None:
        _torch.reset_peaks()
        if not process.reset_peak() and self._peak_known:
            self._peak_known = False
            self._warn("the kernel does not let VmHWM be reset, so the process's peak includes what came before")

    # ---- report ---------------------------------------------------------------------------------------------------

    def _over_budget(self, counters: "_torch.Counters") -> bool:
        return counters["over_budget"] and not self._over_at_start and not self._limits.exploring

    def _unbounded(self) -> str:
        """Why what was asked for is not in force, or ""."""
        if self._recording:
            return shortfalls.no_peak(self._bounds.fraction or 0, len(self._steps), _RECORDED_STEPS)
        if not self._has_budget:
            refused = shortfalls.REFUSED if self._limits.refused else shortfalls.BELOW_THE_REST
            return shortfalls.NOTHING_MANAGED if self._nothing_managed else refused
        peak = self._peak_of_others()
        too_large = self._bounds.process_asked and peak > self._limits.tolerated_bytes()
        return shortfalls.others_unbounded(peak) if too_large else ""

    def _peak_of_others(self) -> int:
        """Of processes that the script started in place of training; 0 where none is notable."""
        return 0 if len(self._steps) else self._children.peak_bytes()

    def _unplanned(self) -> str:
        plan, planning = self._settings.plan, self._planning
        if plan is None or planning is None or planning.ever_followed:
            return ""
        return shortfalls.no_plan(plan, planning.refusal, len(self._steps))

    def _adopt(self) -> None:
        adopted, self._left_alone = adopt_all()
        self._adopted_bytes += adopted
