"""Runs a session that bounds the memory of this process: its budget, who is told of its steps, and the report."""

import os
from collections.abc import Callable

import ebbtide._torch as _torch
from ebbtide.budget import shortfalls
from ebbtide.budget.budget_in_force import RECORDED_STEPS, BudgetInForce
from ebbtide.budget.limits import Limits
from ebbtide.capture.lines import note_lines
from ebbtide.capture.optimizer_events import subscribe, unsubscribe
from ebbtide.capture.optimizer_hooks import BeforeUpdates, largest_parameter_bytes
from ebbtide.doors import foreign_views
from ebbtide.errors import BudgetError
from ebbtide.host import process
from ebbtide.ir.run_report import FORMAT, VERSION, RunReport, StepReport, by_reason
from ebbtide.planning.planning import Planning
from ebbtide.runtime import faults
from ebbtide.runtime.adopt import adopt_all, bytes_on_gpus
from ebbtide.runtime.children import Children
from ebbtide.runtime.engine import Engine
from ebbtide.runtime.kept import Kept
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
from ebbtide.settings import PAGES, UpdateOrder
from ebbtide.units import format_bytes
from ebbtide.update_order.automatic import AutomaticOrder
from ebbtide.update_order.deferred import Deferred
from ebbtide.update_order.in_backward import InBackward

_UPDATED_AT_ONCE = 4  # tensors of the largest parameter's size: itself, its gradient and two states
_ADOPTING_STEPS = 2  # optimizer state loaded or built elsewhere appears during the first steps


class ArenaEngine(Engine):
    """The tensors of this process lie in an arena."""

    def __init__(
        self,
        run: Run,
        planning: Planning | None,
        ranks: Ranks,
        *,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(run.settings, planning, say=say, warn=warn)
        settings, bounds = run.settings, run.bounds
        self._ranks = ranks
        self._run, self._bounds = run, bounds
        self._before_updates = BeforeUpdates(self._look_whether_it_fits)
        self._updates: InBackward | Deferred | AutomaticOrder | None = None  # another order than the script's
        if settings.optimizer is UpdateOrder.IN_BACKWARD:
            self._updates = InBackward(say, warn)
        elif settings.optimizer is UpdateOrder.DEFERRED:
            self._updates = Deferred(say, warn, self._step_is_unlike)
        elif settings.optimizer is UpdateOrder.AUTO:
            self._updates = AutomaticOrder(Deferred(say, warn, self._step_is_unlike), say, self._start_over)
        self._unlike = False  # the open step is not like later ones, and is not planned
        self._optimizer_seen = False
        self._locked_told = False
        self._limits = Limits(bounds, say)
        self._children = Children()
        self._kept = Kept()
        self._budget = BudgetInForce(
            bounds,
            self._limits,
            watchdog_s=settings.watchdog_s,
            planning_bytes=self._planning_bytes,
            say=say,
            warn=warn,
            slower=lambda: rooms_of(settings.tiers, run.spill),
        )
        self._adopted_bytes = 0
        self._left_alone: list[tuple[int, str]] = []
        self._must_adopt = False  # another thread was in the way

    def start(self) -> None:
        """Start. Raises BudgetError when the process holds so much already that there is no room at all. Raises
        SessionError in a forked child of a process that had a session."""
        blocked = faults.are_blocked()
        start_arena(self._run)
        counters = self._has_started()
        faults.stay_on_top()
        if blocked:
            _torch.let_faults_into_pool()
        _torch.set_checksum(bool(self._settings.checksum), self._settings.checksum == PAGES)
        note_lines(self._settings.lines and self._settings.save_trace is not None)
        foreign_views.sizes(self._settings.min_storage_bytes, 2 * self._settings.piece_bytes, self._run.spill[0])
        foreign_views.guard()
        if self._updates is not None:
            self._updates.install()
        subscribe(self._hooks)
        if self._settings.optimizer is not UpdateOrder.IN_BACKWARD:  # which has changed parameters by then
            subscribe(self._before_updates)
        self._adopt()
        self._budget.start(counters, self._rest_bytes())

    def _rest_bytes(self) -> int:
        return process.resident_bytes() - _torch.counters()["reserved_bytes"]

    @property
    def _is_bounded(self) -> bool:
        return not self._budget.recording

    def _prepare_step(self) -> None:
        self._before_updates.begin()
        if self._budget.recording:
            _torch.reset_peaks()  # what ran since the last step belongs to no step
        puts_off = self._settings.optimizer is UpdateOrder.DEFERRED  # this step's updates come in the next one
        if self._budget.recording and len(self._steps) == RECORDED_STEPS - 1 and not puts_off:
            _torch.reset_needs()  # operators that ran once, at construction say, do not bind steps
        foreign_views.guard()

    def _step_ended(self, step: StepReport, counters: "_torch.Counters") -> None:
        """Raises BudgetError when the budget cannot work, RankError when that of another rank cannot."""
        if len(self._steps) <= _ADOPTING_STEPS or self._must_adopt:
            self._adopt()
        if len(self._steps) == 1 and (ranks := self._ranks.unlaunched()):
            self._warn(shortfalls.others_unlaunched(ranks))
        if len(self._steps) == 1 and (nbytes := bytes_on_gpus()):
            self._warn(shortfalls.on_gpus(nbytes))
        if counters["tables_filled"] and not self._locked_told:
            self._locked_told = True
            self._warn(shortfalls.LOCKED)
        self._note_step(counters)
        unlike, self._unlike = self._unlike, False
        if self._planning is not None and self._budget.is_set and not unlike:
            now = _torch.counters()
            shared = may_still_pack(self._settings.tiers, now) if self._bounds.process_asked else 0
            self._planning.learn(now["arena_limit_bytes"], shared)
        named = self._settings.plan is not None  # for the script's order
        if isinstance(self._updates, AutomaticOrder) and self._planning is not None and not named:
            self._updates.ended(step, self._planning.followed)

    def _leave_training(self) -> None:
        unsubscribe(self._before_updates)
        if self._updates is not None:
            self._updates.remove()

    def _stop_native(self) -> None:
        _torch.make_all()
        note_lines(False)
        self._kept.release()
        stop_arena()
        self._limits.end()

    def _tell(self, report: RunReport) -> None:
        told = self._limits.refused or self._budget.nothing_managed or self._ranks.heard() is not None
        unsaved = self._planning.unsaved if self._planning is not None else ""
        if unsaved not in report.trouble:  # where trouble is something else
            self._warn(unsaved)
        as_asked = report.bounded_as_asked and report.planned_as_asked
        if not told and (self._of_others() if as_asked else not self.is_told_on):
            self._warn(report.trouble)

    def _report(self, counters: "_torch.Counters", before: "_torch.Counters") -> RunReport:
        process_peak = self._budget.process_peak_bytes(counters)
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
        return super().trained or self._children.worked

    def keep(self, what: object) -> None:
        self._kept.keep(what)

    def _held(self, counters: "_torch.Counters") -> tuple[str, int, int]:
        if self._bounds.process_asked:
            held = process.resident_bytes() - counters["elsewhere_bytes"]
            return "process", held, self._limits.process_bytes
        return "tensors", counters["reserved_bytes"], counters["arena_limit_bytes"] if self._budget.is_set else 0

    def limit_changed(self, there_bytes: int) -> None:
        """Follow what the process can have in all from now on. The thread that watches the machine calls it."""
        if self._final is None:
            _torch.set_machine(most_bytes())
            self._limits.follow(there_bytes)

    # ---- optimizer hooks ------------------------------------------------------------------------------------------

    def _optimizer_built(self) -> None:
        """Adopt the model, which exists when its first optimizer takes its parameters: a moment between steps."""
        if os.getpid() != self._process or self._open is not None or self._optimizer_seen:
            return
        self._optimizer_seen = True
        self._adopt()

    def _look_whether_it_fits(self) -> None:
        """Look whether the step fits, before an optimizer changes anything. Raises StepTooLargeError, and the script's
        next step begins."""
        before = self._open
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
        if os.getpid() != self._process:
            self._children.note_training()
        super()._optimizer_ended()

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
        found = adopt_all()
        self._must_adopt = found is None
        if found is not None:
            self._adopted_bytes += found[0]
            self._left_alone = found[1]
