"""Runs a session that bounds the memory of an accelerator: its steps, its budget, and the report.

The budget is for all tensors on the device, those that are not managed among them (small ones, what an operator needs
while it runs). What they take is known after a step, and the managed ones get less from then on.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import ebbtide._torch as _torch
from ebbtide.budget.budget_in_force import RECORDED_STEPS
from ebbtide.capture.following import Following
from ebbtide.capture.optimizer_events import subscribe, unsubscribe
from ebbtide.capture.optimizer_hooks import OptimizerHooks
from ebbtide.doors import device_views, tensors
from ebbtide.errors import SessionError, SpillError
from ebbtide.host import process
from ebbtide.host.accelerator import HOST
from ebbtide.in_front import Wrapper
from ebbtide.ir import native
from ebbtide.ir.run_report import FORMAT, VERSION, RunReport, StepMode, Traffic
from ebbtide.planning.planning import Planning
from ebbtide.runtime.in_groups import cut_lists
from ebbtide.runtime.kept import tensors_of
from ebbtide.runtime.memory_stats import memory_stats
from ebbtide.runtime.start_arena import SPILL_FILE, reported
from ebbtide.runtime.step_counters import Reading, read_now, step_between
from ebbtide.runtime.step_log import StepLog
from ebbtide.screen.progress import Observation
from ebbtide.settings import Settings
from ebbtide.units import Budget, format_bytes, seconds

_OWN_PART = 32  # of a device's free memory, so much is left for what no allocator of PyTorch's takes
_WORTH_FOLLOWING = 50  # a peak that is higher by this part raises what a share is of


@dataclass(frozen=True, slots=True)
class DeviceRun:
    """A session's wishes for a device. ``fast`` bounds all tensors there; None: what was free when it began. What finds
    no host memory goes to files in ``spill``; without one, it stays."""

    settings: Settings
    device: torch.device
    fast: Budget | None
    free_bytes: int
    host_bytes: int
    spill: Sequence[Path]
    decider: str


def free_bytes(device: torch.device) -> int:
    """Return what the device has free, and what this process holds there already."""
    free, _ = _torch.device_memory(str(device))
    _, reserved, _ = _torch.allocator_bytes(str(device))
    return (free + reserved) * (_OWN_PART - 1) // _OWN_PART


class DeviceEngine:
    """Drives native code for one session. One thread uses it, and the progress thread reads it."""

    def __init__(
        self, run: DeviceRun, planning: Planning | None, *, say: Callable[[str], None], warn: Callable[[str], None]
    ) -> None:
        self._run, self._settings = run, run.settings
        self._planning = planning
        self._say, self._warn = say, warn
        self._hooks = OptimizerHooks(lambda: None, self._optimizer_begins, self._optimizer_ended)
        self._process = os.getpid()
        self._started = False
        self._cut: list[Wrapper] = []
        self.following = Following(self)
        self._before: Reading | None = None  # set while a step is open
        self._at_start: _torch.Counters | None = None
        self._fraction = run.fast.fraction if run.fast is not None else None
        self._fast_bytes = run.free_bytes if run.fast is None or run.fast.nbytes is None else run.fast.nbytes
        self._live_peak = 0  # a step's, of managed tensors, here or not
        self._others = 0  # bytes that are left to tensors which are not managed
        self._is_set = self._fraction is None
        self._steps = StepLog()
        self._final: RunReport | None = None
        self.hurries = False  # its end waits for no plan
        self.is_told_on = False  # whoever ends it says why the run was not as asked

    def start(self) -> None:
        """Start. Raises SessionError where this process had a session of another kind or for another device."""
        if trouble := native.disagreement(_torch):
            raise RuntimeError(trouble)
        asked = _torch.DeviceSettings()
        asked.device = str(self._run.device)
        asked.fast_bytes = self._fast_bytes
        asked.host_bytes = self._run.host_bytes
        asked.spill_dirs = [str(directory) for directory in self._run.spill]
        asked.io_threads = self._settings.io_threads
        asked.min_bytes = self._settings.min_storage_bytes
        asked.policy = self._run.decider
        asked.chaos_rate, asked.chaos_seed = self._settings.chaos_rate, self._settings.chaos_seed
        try:
            _torch.start_device(asked)
        except RuntimeError as error:
            if "spill file" in str(error):
                raise SpillError(", ".join(asked.spill_dirs), str(error)) from error
            raise SessionError(str(error)) from error
        self._started = True
        remake = self._settings.remake
        _torch.check_what_is_made(remake.checks)
        _torch.strike_repeatable(set(remake.without))
        _torch.want_all_recipes(remake.checks and self._settings.chaos_rate > 0)
        self._at_start = _torch.counters()
        device_views.guard(self._run.device.type)
        tensors.guard_settings()
        self._cut = cut_lists(self._settings.piece_bytes)
        subscribe(self._hooks)

    @property
    def step_is_open(self) -> bool:
        return self._before is not None

    def begin_step(self) -> None:
        self.following.trained = False
        if self._planning is not None:
            self._planning.begins()
        if not self._is_set:
            _torch.reset_peaks()
        _torch.allocator_bytes(str(self._run.device), reset_peak=True)
        record = self._planning is not None and self._planning.wants_recordings
        self._before = read_now(_torch.begin_step(record=record))

    def end_step(self, *, completed: bool) -> None:
        """End a step; one that raised is not reported."""
        before, self._before = self._before, None
        if before is None:
            return
        after = read_now(_torch.end_step(completed=completed))
        if not completed:
            if self._planning is not None:
                self._planning.close()
            return
        followed = self._planning is not None and self._planning.ended(seconds(after.wall_ns - before.wall_ns))
        mode = StepMode.PLANNED if followed else StepMode.DEMAND if self._is_set else StepMode.RECORDED
        self._steps.add(step_between(before, after, mode))
        self._bound(after.counters)
        if self._planning is not None and self._is_set:
            self._planning.learn(_torch.counters()["arena_limit_bytes"])

    def _bound(self, counters: "_torch.Counters") -> None:
        """Set the budget that the last step showed to be right."""
        before = self._live_peak
        self._live_peak = max(before, counters["step_live_peak_bytes"])
        if self._fraction is not None:
            outgrown = self._is_set and self._live_peak > before + before // _WORTH_FOLLOWING
            if outgrown or (not self._is_set and len(self._steps) >= RECORDED_STEPS):
                limit = int(self._live_peak * self._fraction)
                self._is_set = True
                self._say(
                    f"a step's tensors on {self._run.device} peak at {format_bytes(self._live_peak)}; their limit "
                    f"there is {format_bytes(limit)} from here on"
                )
                _torch.set_device_limit(limit)
                _torch.reset_peaks()
            return
        _, _, peak = _torch.allocator_bytes(str(self._run.device))
        if (excess := peak - self._fast_bytes) > 0:
            self._others += excess
            _torch.set_device_limit(max(self._fast_bytes - self._others, 1))

    def stop(self) -> None:
        """End an open step and take the final report. What is away comes back, as far as it fits."""
        if self._final is not None or not self._started:
            return
        unsubscribe(self._hooks)
        for wrapper in self._cut:
            wrapper.remove()
        self.end_step(completed=False)
        try:
            if self._planning is not None:
                self._planning.finish(self.hurries)
        finally:
            self._final = self.report()
            _torch.unload_schedules()
            _torch.want_all_recipes(False)
            away, failure = _torch.stop_device()
            if failure:
                self._warn(f"{format_bytes(away)} of tensors did not come back: {failure}")
            elif away:
                self._warn(
                    f"{format_bytes(away)} of tensors stay on the host: the device has no room for all at once. "
                    "Operators still bring them back"
                )
        if self._final.trouble and not self.is_told_on:
            self._warn(self._final.trouble)

    def report(self) -> RunReport:
        """Return the report of now; after ``stop``, that of then."""
        if self._final is not None:
            return self._final
        counters = _torch.counters()
        before = self._at_start if self._at_start is not None else counters
        unplanned = self._planning.unsaved if self._planning is not None else ""
        unbounded = "" if self._is_set else f"{len(self._steps)} steps were seen, and {RECORDED_STEPS} show the peak"
        file = [(SPILL_FILE, None)] if self._run.spill else []
        return RunReport(
            format=FORMAT,
            version=VERSION,
            policy=self._settings.policy,
            fast_bytes=None,
            arena_budget_bytes=counters["arena_limit_bytes"] if self._is_set else None,
            process_peak_bytes=process.peak_resident_bytes(),
            unbounded_peak_bytes=max(self._live_peak, counters["step_live_peak_bytes"]),
            arena_peak_bytes=counters["reserved_peak_bytes"],
            arena_mean_bytes=counters["reserved_peak_bytes"],
            budget_violated=counters["over_budget"],
            trouble=counters["message"] or unbounded or unplanned,
            adopted_bytes=0,
            outside_bytes=0,
            outside=(),
            plan=self._planning.report() if self._planning is not None else None,
            steps=self._steps.kept(),
            left_out_steps=self._steps.left_out,
            left_out_written_bytes=self._steps.left_out_written_bytes,
            written_bytes=sum(counters["written_bytes"]) - sum(before["written_bytes"]),
            bounded_as_asked=self._is_set or not len(self._steps),
            planned_as_asked=not unplanned,
            tiers=reported([(HOST, self._run.host_bytes), *file], before, counters),
            device=str(self._run.device),
            trained_parameters=self._hooks.trained_parameters,
        )

    @property
    def trained(self) -> bool:
        """Tell whether the script may have trained."""
        return bool(len(self._steps)) or self._hooks.backward_ran

    def memory_stats(self) -> dict[str, int]:
        return memory_stats(_torch.counters())

    def observe(self) -> Observation:
        """Observe for the progress thread: levels of this moment and the last finished step."""
        counters = _torch.counters()
        running_s = seconds(time.perf_counter_ns() - self._before.wall_ns) if self._before is not None else 0.0
        planning = self._planning.activity() if self._planning is not None else None
        plans = self._planning.plans if self._planning is not None else 0
        budget = counters["arena_limit_bytes"] if self._is_set else 0
        what, held = str(self._run.device), counters["reserved_bytes"]
        kinds = Traffic.of(counters["resident_bytes_by_kind"])
        return Observation(
            len(self._steps), self._steps.latest(), running_s, what, held, budget, planning, plans, kinds
        )

    def keep(self, what: object) -> None:
        """Bring storages back and keep them on the device. Raises SettingError for a value without tensors."""
        for tensor in list(tensors_of(what, self._run.device.type)):
            _torch.keep_on_device(tensor)

    def _optimizer_begins(self) -> None:
        if self.following.active and self._before is None:
            self.begin_step()

    def _optimizer_ended(self) -> None:
        self.following.trained = True
        if not self.following.active:
            return
        try:
            self.end_step(completed=True)
        finally:
            self.begin_step()
