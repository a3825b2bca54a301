"""Runs a session that bounds the memory of an accelerator: its steps, its budget, and the report.

The budget is for all tensors on the device, those that are not managed among them (small ones, what an operator needs
while it runs). What they take is known after a step, and the managed ones get less from then on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import ebbtide._torch as _torch
from ebbtide.budget import shortfalls
from ebbtide.budget.budget_in_force import RECORDED_STEPS
from ebbtide.capture.optimizer_events import subscribe
from ebbtide.doors import device_views
from ebbtide.errors import SessionError, SpillError
from ebbtide.host import process
from ebbtide.host.accelerator import HOST
from ebbtide.in_front import Wrapper
from ebbtide.ir import native
from ebbtide.ir.run_report import FORMAT, VERSION, RunReport, StepReport
from ebbtide.planning.planning import Planning
from ebbtide.runtime.engine import Engine
from ebbtide.runtime.in_groups import cut_lists
from ebbtide.runtime.kept import tensors_of
from ebbtide.runtime.start_arena import SPILL_FILE, reported
from ebbtide.settings import Settings
from ebbtide.units import Budget, format_bytes

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


class DeviceEngine(Engine):
    """The tensors of a device leave for host memory."""

    def __init__(
        self, run: DeviceRun, planning: Planning | None, *, say: Callable[[str], None], warn: Callable[[str], None]
    ) -> None:
        super().__init__(run.settings, planning, say=say, warn=warn)
        self._run = run
        self._cut: list[Wrapper] = []
        self._fraction = run.fast.fraction if run.fast is not None else None
        self._fast_bytes = run.free_bytes if run.fast is None or run.fast.nbytes is None else run.fast.nbytes
        self._live_peak = 0  # a step's, of managed tensors, here or not
        self._others = 0  # bytes that are left to tensors which are not managed
        self._is_set = self._fraction is None

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
        self._has_started()
        device_views.guard(self._run.device.type)
        self._cut = cut_lists(self._settings.piece_bytes)
        subscribe(self._hooks)

    @property
    def _is_bounded(self) -> bool:
        return self._is_set

    def _prepare_step(self) -> None:
        if not self._is_set:
            _torch.reset_peaks()
        _torch.allocator_bytes(str(self._run.device), reset_peak=True)

    def _step_ended(self, step: StepReport, counters: "_torch.Counters") -> None:
        self._bound(counters)
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

    def _leave_training(self) -> None:
        for wrapper in self._cut:
            wrapper.remove()

    def _stop_native(self) -> None:
        """What is away comes back, as far as it fits."""
        away, failure = _torch.stop_device()
        if failure:
            self._warn(f"{format_bytes(away)} of tensors did not come back: {failure}")
        elif away:
            self._warn(
                f"{format_bytes(away)} of tensors stay on the host: the device has no room for all at once. "
                "Operators still bring them back"
            )

    def _tell(self, report: RunReport) -> None:
        if report.trouble and not self.is_told_on:
            self._warn(report.trouble)

    def _report(self, counters: "_torch.Counters", before: "_torch.Counters") -> RunReport:
        unplanned = self._unplanned()
        unbounded = self._shortfall()
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
            written_bytes=sum(counters["written_bytes"]) - sum(before["written_bytes"]),
            bounded_as_asked=not (unbounded and len(self._steps)),
            planned_as_asked=not unplanned,
            tiers=reported([(HOST, self._run.host_bytes), *file], before, counters),
            device=str(self._run.device),
            trained_parameters=self._hooks.trained_parameters,
        )

    def _shortfall(self) -> str:
        """Say why the budget bounded no step, or ""."""
        if not self._is_set:
            return f"{len(self._steps)} steps were seen, and {RECORDED_STEPS} show the peak"
        if self._fraction is not None and len(self._steps) <= RECORDED_STEPS:
            return shortfalls.no_step_under(self._fraction, len(self._steps))
        return ""

    def _held(self, counters: "_torch.Counters") -> tuple[str, int, int]:
        budget = counters["arena_limit_bytes"] if self._is_set else 0
        return str(self._run.device), counters["reserved_bytes"], budget

    def _optimizer_built(self) -> None:
        pass  # what is on the device is managed from its birth on

    def keep(self, what: object) -> None:
        """Bring storages back and keep them on the device. Raises SettingError for a value without tensors."""
        for tensor in list(tensors_of(what, self._run.device.type)):
            _torch.keep_on_device(tensor)
