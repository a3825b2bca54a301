"""Runs a session from its start to its end: the steps, who is told of them, and the report."""

import os
import time
from collections.abc import Callable

import ebbtide._torch as _torch
from ebbtide.budget import shortfalls
from ebbtide.budget.budget_in_force import RECORDED_STEPS, BudgetInForce
from ebbtide.budget.limits import Limits
from ebbtide.capture.following import Following
from ebbtide.capture.lines import note_lines
from ebbtide.capture.optimizer_events import subscribe, unsubscribe
from ebbtide.capture.optimizer_hooks import BeforeUpdates, OptimizerHooks, largest_parameter_bytes
from ebbtide.doors import foreign_views, tensors
from ebbtide.errors import BudgetError
from ebbtide.host import process
from ebbtide.ir.run_report import FORMAT, VERSION, RunReport, StepMode, Traffic, by_reason
from ebbtide.planning.planning import Planning
from ebbtide.runtime import faults
from ebbtide.runtime.adopt import adopt_all, bytes_on_gpus
from ebbtide.runtime.children import Children
from ebbtide.runtime.kept import Kept
from ebbtide.runtime.memory_stats import memory_stats
from ebbtide.runtime.ranks import Ranks
from ebbtide.runtime.start_arena import (
    Run,
    may_still_pack,
    most_bytes,
    rooms_of,
    start_arena,
    stop_arena,
    tier_reports,
)
from ebbtide.runtime.step_counters import Reading, read_now, step_between
from ebbtide.runtime.step_log import StepLog
from ebbtide.screen.progress import Observation
from ebbtide.settings import PAGES, TierKind, UpdateOrder
from ebbtide.units import format_bytes, seconds
from ebbtide.update_order.automatic import AutomaticOrder
from ebbtide.update_order.deferred import Deferred
from ebbtide.update_order.in_backward import InBackward

_UPDATED_AT_ONCE = 4  # tensors of the largest parameter's size: itself, its gradient and two states
_ADOPTING_STEPS = 2  # optimizer state loaded or built elsewhere appears during the first steps


class Engine:
    """Drives native code for one session. One thread uses it, and the progress thread reads it."""

    def __init__(
        self,
        run: Run,
        planning: Planning | None,
        ranks: Ranks,
        *,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        settings, bounds = run.settings, run.bounds
        self._ranks = ranks
        self._planning = planning
        self._run = run
        self._bounds, self._settings = bounds, settings
        self._say = say
        self._warn = warn
        self._hooks = OptimizerHooks(self._optimizer_built, self._optimizer_begins, self._optimizer_ended)
        self._before_updates = BeforeUpdates(self._look_whether_it_fits)
        self._updates: InBackward | Deferred | AutomaticOrder | None = None  # another order than the script's
        if settings.optimizer is UpdateOrder.IN_BACKWARD:
            self._updates = InBackward(say, warn)
        elif settings.optimizer is UpdateOrder.DEFERRED:
            self._updates = Deferred(say, warn, self._step_is_unlike)
        elif settings.optimizer is UpdateOrder.AUTO:
            self._updates = AutomaticOrder(Deferred(say, warn, self._step_is_unlike), say, self._start_over)
        self._unlike = False  # the open step is not like later ones, and is not planned
        self._process = os.getpid()
        self._started = False
        self.following = Following(self)
        self._step_before: Reading | None = None  # set while a step is open
        self._optimizer_seen = False
        self._locked_told = False
        self._limits = Limits(bounds, say)
        self._before: _torch.Counters | None = None  # the counters as the session found them
        self._children = Children()
        self._kept = Kept()
        self.keep = self._kept.keep
        self._budget = BudgetInForce(
            bounds,
            self._limits,
            watchdog_s=settings.watchdog_s,
            planning_bytes=self._planning_bytes,
            kept_bytes=self._kept.nbytes,
            say=say,
            warn=warn,
            slower=lambda: rooms_of(settings.tiers, run.spill),
        )
        self._adopted_bytes = 0
        self._left_alone: list[tuple[int, str]] = []
        self._steps = StepLog()
        self._final: RunReport | None = None
        self.hurries = False  # its end waits for no plan
        self.is_told_on = False  # whoever ends it says why the run was not as asked

    def start(self) -> None:
        """Start. Raises BudgetError when the process holds so much already that there is no room at all. Raises
        SessionError in a forked child of a process that had a session."""
        blocked = faults.are_blocked()
        start_arena(self._run)
        self._started = True
        faults.stay_on_top()
        if blocked:
            _torch.let_faults_into_pool()
        _torch.set_checksum(bool(self._settings.checksum), self._settings.checksum == PAGES)
        remake = self._settings.remake
        _torch.check_what_is_made(remake.checks)
        _torch.strike_repeatable(set(remake.without))
        _torch.want_all_recipes(remake.checks and self._settings.chaos_rate > 0)
        note_lines(self._settings.lines and self._settings.save_trace is not None)
        counters = _torch.counters()
        self._before = counters
        foreign_views.sizes(self._settings.min_storage_bytes, 2 * self._settings.piece_bytes)
        foreign_views.guard()
        tensors.guard_settings()
        if self._updates is not None:
            self._updates.install()
        subscribe(self._hooks)
        if self._settings.optimizer is not UpdateOrder.IN_BACKWARD:  # which has changed parameters by then
            subscribe(self._before_updates)
        self._adopt()
        self._budget.start(counters["over_budget"], self._rest_bytes())

    def _rest_bytes(self) -> int:
        return process.resident_bytes() - _torch.counters()["reserved_bytes"]

    @property
    def step_is_open(self) -> bool:
        return self._step_before is not None

    def begin_step(self) -> None:
        self.following.trained = False
        self._before_updates.begin()
        if self._budget.recording:
            _torch.reset_peaks()  # what ran since the last step belongs to no step
        puts_off = self._settings.optimizer is UpdateOrder.DEFERRED  # this step's updates come in the next one
        if self._budget.recording and len(self._steps) == RECORDED_STEPS - 1 and not puts_off:
            _torch.reset_needs()  # operators that ran once, at construction say, do not bind steps
        foreign_views.guard()
        if self._planning is not None:
            self._planning.begins()
        before = _torch.begin_step(record=self._planning is not None and self._planning.wants_recordings)
        self._step_before = read_now(before)

    def end_step(self, *, completed: bool) -> None:
        """End a step; one that raised is not reported. Raises BudgetError when the budget cannot work, RankError when
        that of another rank cannot."""
        before, self._step_before = self._step_before, None
        if before is None:
            return
        after = read_now(_torch.end_step(completed=completed))
        if not completed:
            if self._planning is not None:
                self._planning.close()
            return
        wall_s = seconds(after.wall_ns - before.wall_ns)
        followed = self._planning is not None and self._planning.ended(wall_s)
        mode = StepMode.RECORDED if self._budget.recording else StepMode.PLANNED if followed else StepMode.DEMAND
        self._steps.add(step := step_between(before, after, mode))
        if len(self._steps) <= _ADOPTING_STEPS:
            self._adopt()
        if len(self._steps) == 1 and (ranks := self._ranks.unlaunched()):
            self._warn(shortfalls.others_unlaunched(ranks))
        if len(self._steps) == 1 and (nbytes := bytes_on_gpus()):
            self._warn(shortfalls.on_gpus(nbytes))
        if after.counters["tables_filled"] and not self._locked_told:
            self._locked_told = True
            self._warn(shortfalls.LOCKED)
        self._note_step(after.counters)
        unlike, self._unlike = self._unlike, False
        if self._planning is not None and self._budget.is_set and not unlike:
            counters = _torch.counters()
            shared = may_still_pack(self._settings.tiers, counters) if self._bounds.process_asked else 0
            self._planning.learn(counters["arena_limit_bytes"], shared)
        named = self._settings.plan is not None  # for the script's order
        if isinstance(self._updates, AutomaticOrder) and self._planning is not None and not named:
            self._updates.ended(step, self._planning.followed)

    def stop(self) -> None:
        """End an open step and take the final report. Managed tensors stay valid, under the same budget."""
        if self._final is not None or not self._started:
            return
        unsubscribe(self._hooks)
        unsubscribe(self._before_updates)
        try:
            if self._updates is not None:
                self._updates.remove()
        finally:
            self._finish()

    def _finish(self) -> None:
        self.end_step(completed=False)
        try:
            if self._planning is not None:
                self._planning.finish(self.hurries)
        finally:  # Ctrl-C, while it waits for a plan
            self._final = self.report()
            _torch.unload_schedules()
            _torch.want_all_recipes(False)
            _torch.make_all()
            note_lines(False)
            self._kept.release()
            stop_arena()
        told = self._limits.refused or self._budget.nothing_managed or self._ranks.heard() is not None
        unsaved = self._planning.unsaved if self._planning is not None else ""
        if unsaved not in self._final.trouble:  # where trouble is something else
            self._warn(unsaved)
        as_asked = self._final.bounded_as_asked and self._final.planned_as_asked
        if not told and (self._of_others() if as_asked else not self.is_told_on):
            self._warn(self._final.trouble)

    def report(self) -> RunReport:
        """Return the report of now; after ``stop``, that of then."""
        if self._final is not None:
            return self._final
        counters = _torch.counters()
        before = self._before if self._before is not None else counters
        elsewhere = any(tier.kind is TierKind.NUMA for tier in self._settings.tiers)
        process_peak = counters["process_peak_bytes"] if elsewhere else self._budget.process_peak_bytes(counters)
        arena_budget = counters["arena_limit_bytes"] if self._budget.is_set else 0
        over = self._budget.is_exceeded(counters) or bool(self._budget.refused_batch)
        excess = self._limits.exceeded_by(process_peak)
        trouble = self._budget.limit_fell or self._budget.refused_batch or self._budget.too_small(counters)
        trouble = trouble or ("" if self._limits.exploring else counters["message"])
        if excess and not trouble:
            trouble = f"the process peaked {format_bytes(excess)} above its budget"
        unbounded = (
            ""
            if self._is_idle(counters)
            else self._budget.shortfall(len(self._steps), self._peak_of_others(), self.hurries)
        )
        unplanned = self._unplanned()
        return RunReport(
            format=FORMAT,
            version=VERSION,
            policy=self._settings.policy,
            fast_bytes=self._limits.fast_bytes,
            arena_budget_bytes=arena_budget or None,
            process_peak_bytes=process_peak,
            process_peak_before_bytes=self._budget.peak_before_bytes,
            unbounded_peak_bytes=self._budget.unbounded_peak_bytes(counters),
            arena_peak_bytes=counters["reserved_peak_bytes"],
            arena_mean_bytes=round(counters["reserved_byte_ns"] / max(counters["measured_ns"], 1)),
            budget_violated=over or excess > 0,
            trouble=trouble or unbounded or unplanned or self._of_others(),
            adopted_bytes=self._adopted_bytes,
            outside_bytes=sum(nbytes for nbytes, _ in self._left_alone),
            outside=by_reason(self._left_alone),
            plan=self._planning.report() if self._planning is not None else None,
            steps=self._steps.kept(),
            left_out_steps=self._steps.left_out,
            left_out_written_bytes=self._steps.left_out_written_bytes,
            written_bytes=sum(counters["written_bytes"]) - sum(before["written_bytes"]),
            bounded_as_asked=not unbounded,
            planned_as_asked=not unplanned,
            resident_peak_bytes=counters["resident_peak_bytes"],
            resident_mean_bytes=round(counters["resident_byte_ns"] / max(counters["measured_ns"], 1)),
            updates=tuple(self._updates.told) if self._updates is not None else (),
            tiers=tier_reports(self._settings.tiers, before, counters),
            trained_parameters=self._hooks.trained_parameters,
        )

    def _is_idle(self, counters: "_torch.Counters") -> bool:
        """Tell whether the script came to its end, and nothing happened that a budget is for."""
        cut_short = self.hurries or self._limits.exploring or self._limits.refused or self._budget.refused_batch
        trained = len(self._steps) or self._budget.unbounded_peak_bytes(counters) or self._children.worked
        return not (cut_short or trained)

    @property
    def trained(self) -> bool:
        """Tell whether the script may have trained, here or in a process that it started."""
        return bool(len(self._steps)) or self._hooks.backward_ran or self._children.worked

    def memory_stats(self) -> dict[str, int]:
        return memory_stats(_torch.counters())

    def observe(self) -> Observation:
        """Observe for the progress thread: levels of this moment and the last finished step."""
        counters = _torch.counters()
        steps = len(self._steps)
        what, held = "tensors", counters["reserved_bytes"]
        budget = counters["arena_limit_bytes"] if self._budget.is_set else 0
        if self._bounds.process_asked:
            what, budget = "process", self._limits.process_bytes
            held = process.resident_bytes() - counters["slower_memory_bytes"]
        running = self._step_before
        running_s = seconds(time.perf_counter_ns() - running.wall_ns) if running is not None else 0.0
        planning = self._planning.activity() if self._planning is not None else None
        plans = self._planning.plans if self._planning is not None else 0
        kinds = Traffic.of(counters["resident_bytes_by_kind"])
        return Observation(steps, self._steps.latest(), running_s, what, held, budget, planning, plans, kinds)

    def limit_changed(self, there_bytes: int) -> None:
        """Follow what the process can have in all from now on. The thread that watches the machine calls it."""
        if self._final is None:
            _torch.set_machine(most_bytes())
            self._limits.follow(there_bytes)

    # ---- optimizer hooks ------------------------------------------------------------------------------------------

    def _optimizer_built(self) -> None:
        """Adopt the model, which exists when its first optimizer takes its parameters: a moment between steps."""
        if os.getpid() != self._process or self._step_before is not None or self._optimizer_seen:
            return
        self._optimizer_seen = True
        self._adopt()

    def _optimizer_begins(self) -> None:
        if self.following.active and self._step_before is None:
            self.begin_step()

    def _look_whether_it_fits(self) -> None:
        """Look whether the step fits, before an optimizer changes anything. Raises StepTooLargeError, and the script's
        next step begins."""
        before = self._step_before
        if os.getpid() != self._process or (before is not None and before.counters["over_budget"]):
            return  # what came between steps, an evaluation, say, is told at this step's end
        try:
            self._budget.before_update(_torch.counters(), lambda: _UPDATED_AT_ONCE * largest_parameter_bytes())
        except BudgetError as error:
            self._ranks.tell(error)
            if self.following.active and before is not None:
                self.end_step(completed=False)
                self.begin_step()
            raise

    def _optimizer_ended(self) -> None:
        self.following.trained = True
        if os.getpid() != self._process:
            self._children.note_training()
        if not self.following.active:
            return
        try:
            self.end_step(completed=True)
        finally:
            self.begin_step()

    def _start_over(self) -> None:
        if self._planning is not None:
            self._planning.start_over()

    def _step_is_unlike(self) -> None:
        self._unlike = True

    # ---- report ---------------------------------------------------------------------------------------------------

    def _planning_bytes(self) -> int:
        return self._planning.takes_bytes() if self._planning is not None else 0

    def _peak_of_others(self) -> int:
        """Return the peak of processes that the script started and trained in, as far as is known; 0 where none is
        notable."""
        trained = self._children.trained or not len(self._steps)
        return self._children.peak_bytes() if trained else 0

    def _of_others(self) -> str:
        """Say what processes that the script started took."""
        if trained := self._peak_of_others():
            return shortfalls.others_unbounded(trained, len(self._steps))
        peak = self._children.peak_bytes()
        return shortfalls.others_large(peak) if self._budget.is_beyond_size(peak) else ""

    def _unplanned(self) -> str:
        """Say that a named plan was not followed, and what was not saved as asked."""
        plan, planning = self._settings.plan, self._planning
        if planning is None:
            return ""
        if plan is None or planning.ever_followed:
            return planning.unsaved
        unused = shortfalls.no_plan(plan, planning.refusal, len(self._steps))
        return f"{unused}; {planning.unsaved}" if planning.unsaved else unused

    def _note_step(self, counters: "_torch.Counters") -> None:
        self._ranks.look()
        try:
            self._budget.note_step(counters, len(self._steps))
        except BudgetError as error:
            self._ranks.tell(error)
            raise
        if (told := self._ranks.heard()) is not None:
            raise told

    def _adopt(self) -> None:
        adopted, self._left_alone = adopt_all()
        self._adopted_bytes += adopted
