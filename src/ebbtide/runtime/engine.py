"""What a session does around its steps, whatever memory it bounds: it begins and ends them, and plans are made of them.

``arena_engine`` bounds the memory of this process, ``device_engine`` that of an accelerator.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter_ns

import torch

import ebbtide._torch as _torch
from ebbtide.budget import shortfalls
from ebbtide.capture.following import Following
from ebbtide.capture.optimizer_events import unsubscribe
from ebbtide.capture.optimizer_hooks import OptimizerHooks
from ebbtide.doors import tensors
from ebbtide.ir.run_report import RunReport, StepMode, StepReport, Traffic
from ebbtide.planning.planning import Planning
from ebbtide.runtime.memory_stats import memory_stats
from ebbtide.runtime.step_counters import Reading, read_now, step_between
from ebbtide.runtime.step_log import StepLog
from ebbtide.screen.progress import Observation
from ebbtide.settings import Settings
from ebbtide.units import seconds


class Engine(ABC):
    """Drives native code for one session. One thread uses it, and the progress thread reads it.

    ``hurries``: its end waits for no plan. ``is_told_on``: whoever ends it says why the run was not as asked.
    """

    def __init__(
        self,
        settings: Settings,
        planning: Planning | None,
        *,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._settings, self._planning = settings, planning
        self._say, self._warn = say, warn
        self._hooks = OptimizerHooks(self._optimizer_built, self._optimizer_begins, self._optimizer_ended)
        self._process = os.getpid()
        self._started = False
        self.following = Following(self)
        self._open: Reading | None = None  # set while a step is open
        self._ended: Reading | None = None  # of the last step that is reported
        self._before: _torch.Counters | None = None  # the counters as the session found them
        self._steps = StepLog()
        self._final: RunReport | None = None
        self.hurries = self.is_told_on = False

    @abstractmethod
    def start(self) -> None:
        """Start native code, call ``_has_started``, and subscribe to optimizers."""

    def _has_started(self) -> "_torch.Counters":
        """Ask native code for what every session wants. Return the counters of now."""
        self._started = True
        remake = self._settings.remake
        _torch.check_what_is_made(remake.checks)
        for name in (*remake.without, *remake.added):
            if name.startswith("aten::") and not torch._C._jit_get_schemas_for_operator(name.split(".")[0]):
                self._warn(f"EBBTIDE_REMAKE names {name}, and PyTorch has no such operator")
        _torch.change_repeatable(without=set(remake.without), added=set(remake.added))
        _torch.want_all_recipes(remake.checks and self._settings.chaos_rate > 0)
        tensors.guard_settings()
        self._before = _torch.counters()
        return self._before

    def begin_program(self) -> None:
        """Note that the process has run nothing but Ebbtide so far: no thread rounds otherwise."""
        _torch.all_have_rounded_as_usual()

    # ---- steps ----------------------------------------------------------------------------------------------------

    @property
    def step_is_open(self) -> bool:
        return self._open is not None

    def begin_step(self) -> None:
        self.following.trained = False
        self._prepare_step()
        record = self._planning is not None and self._planning.wants_recordings
        modules = self._planning is not None and self._planning.wants_modules
        self._open = read_now(_torch.begin_step(record=record, modules=modules))

    def end_step(self, *, completed: bool) -> None:
        """End a step; one that raised is not reported. Raises what ``_step_ended`` raises."""
        before, self._open = self._open, None
        if before is None:
            return
        after = read_now(_torch.end_step(completed=completed))
        if not completed:
            return
        moved = before.counters["evicted_bytes"] != after.counters["evicted_bytes"]
        wall_s = seconds(after.wall_ns - before.wall_ns)
        followed = self._planning is not None and self._planning.ended(wall_s, moved=moved)
        mode = StepMode.PLANNED if followed else StepMode.DEMAND
        between_ns = before.wall_ns - self._ended.wall_ns if self._ended is not None else 0
        self._ended = after
        mode = mode if self._is_bounded else StepMode.RECORDED
        self._steps.add(step := step_between(before, after, mode, between_ns))
        self._step_ended(step, after.counters)

    @property
    @abstractmethod
    def _is_bounded(self) -> bool:
        """False while steps show what the budget is."""

    @abstractmethod
    def _prepare_step(self) -> None:
        """Do what is due before a step begins."""

    @abstractmethod
    def _step_ended(self, step: StepReport, counters: "_torch.Counters") -> None:
        """Look at a step that ended: at its budget, and whether it is planned."""

    # ---- the end --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End an open step and take the final report. Managed tensors stay valid."""
        if self._final is not None or not self._started:
            return
        unsubscribe(self._hooks)
        try:
            self._leave_training()
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
            self._stop_native()
        self._tell(self._final)

    @abstractmethod
    def _leave_training(self) -> None:
        """Put back what training goes through."""

    @abstractmethod
    def _stop_native(self) -> None:
        """End native code's part of the session."""

    @abstractmethod
    def _tell(self, report: RunReport) -> None:
        """Warn of what was not as asked."""

    # ---- what is known --------------------------------------------------------------------------------------------

    def report(self) -> RunReport:
        """Return the report of now; after ``stop``, that of then."""
        if self._final is not None:
            return self._final
        counters = _torch.counters()
        return self._report(counters, self._before if self._before is not None else counters)

    @abstractmethod
    def _report(self, counters: "_torch.Counters", before: "_torch.Counters") -> RunReport:
        """Return the report of these counters, and those of before the session."""

    def _unplanned(self) -> str:
        """Say that a named plan was not followed, and what was not saved as asked."""
        plan, planning = self._settings.plan, self._planning
        if planning is None:
            return ""
        if plan is None or planning.ever_followed:
            return planning.unsaved
        unused = shortfalls.no_plan(plan, planning.refusal, len(self._steps))
        return f"{unused}; {planning.unsaved}" if planning.unsaved else unused

    @property
    def trained(self) -> bool:
        """Tell whether the script may have trained."""
        return bool(len(self._steps)) or self._hooks.backward_ran

    def memory_stats(self) -> dict[str, int]:
        return memory_stats(_torch.counters())

    def observe(self) -> Observation:
        """Observe for the progress thread: levels of this moment and the last finished step."""
        counters, running, planning = _torch.counters(), self._open, self._planning
        what, held, budget = self._held(counters)
        running_s = seconds(perf_counter_ns() - running.wall_ns) if running is not None else 0.0
        activity = planning.activity() if planning is not None else None
        plans = planning.plans if planning is not None else 0
        kinds = Traffic.of(counters["resident_bytes_by_kind"])
        return Observation(
            len(self._steps), self._steps.latest(), running_s, what, held, budget, activity, plans, kinds
        )

    @abstractmethod
    def _held(self, counters: "_torch.Counters") -> tuple[str, int, int]:
        """Return what is bounded, in words, and its bytes and budget; 0 for a budget that is not in force."""

    @abstractmethod
    def keep(self, what: object) -> None:
        """Keep tensors where operators use them. Raises SettingError for a value without tensors."""

    # ---- optimizer hooks ------------------------------------------------------------------------------------------

    @abstractmethod
    def _optimizer_built(self) -> None:
        """Hear of a new optimizer."""

    def _optimizer_begins(self) -> None:
        if self.following.active and self._open is None:
            self.begin_step()

    def _optimizer_ended(self) -> None:
        self.following.trained = True
        if not self.following.active:
            return
        try:
            self.end_step(completed=True)
        finally:
            self.begin_step()
