"""Records steps of a program in which nothing moves and nothing is bounded. It chooses the steps and writes the traces.

A tape sees the steps. One is native code that sees the allocations of plain PyTorch: every storage of a device, however
small, and scratch inside operators. The other sees fake tensors. Outside recorded steps only allocations are noted. So
a comparison with the step before shows the cost of recording.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Protocol

import torch

import ebbtide._torch as _torch
from ebbtide.capture.flops import count_flops
from ebbtide.capture.following import Following
from ebbtide.capture.lines import note_lines
from ebbtide.capture.objects import instances
from ebbtide.capture.optimizer_events import subscribe, unsubscribe
from ebbtide.capture.optimizer_hooks import OptimizerHooks
from ebbtide.capture.recording import capture, step_name
from ebbtide.capture.storage_parts import layout_of
from ebbtide.errors import RecordingError
from ebbtide.ir.base import Origin
from ebbtide.ir.files import save
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.recording import Recording
from ebbtide.ir.trace import Trace
from ebbtide.units import format_bytes, format_time, seconds


class Tape(Protocol):
    """Sees a step. The native module is one, and ``_torch.pyi`` explains each function."""

    def unwatch(self) -> None: ...
    def notice(self, tensors: Sequence[torch.Tensor]) -> None: ...
    def begin_step(self, *, record: bool = False, modules: bool = False) -> object: ...
    def end_step(self, *, completed: bool = True) -> object: ...
    def take_recording(self) -> Recording: ...
    def enter_optimizer(self, enters: bool) -> None: ...
    def classify(self, tensors: Sequence[torch.Tensor], kind: int) -> None: ...


class StepRecorder:
    """Records steps ``first`` to ``first + count - 1`` (counted from 1) into ``path``. Only one thread may use it.

    Users most often want the third step. The first usually creates optimizer state. The second is the first steady one,
    so the third has a steady one before it to be compared with. ``lines``: each storage is noted with the line of the
    program that made it. ``watch`` begins what the tape's ``unwatch`` ends. ``device`` is whose storages are recorded,
    None for the CPU's.
    """

    def __init__(
        self,
        tape: Tape,
        origin: Origin,
        path: Path,
        first: int,
        count: int,
        watch: Callable[[], None],
        lines: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self._tape = tape
        self._origin = origin
        self._path = path
        self._steps = range(first, first + count)
        self._notes_lines = lines
        self._device = device
        self._watch = watch
        self._hooks = OptimizerHooks(lambda: None, self._optimizer_begins, self._optimizer_ended, tape)
        self.following = Following(self)
        self._stop_when_done = False
        self._step = 1  # the open step, or else the next one
        self._began_ns: int | None = None  # set while a step is open
        self._unrecorded_ns: int | None = None
        self._lines: list[str] = []

    def start(self) -> None:
        try:
            self._watch()
        except RuntimeError as error:
            raise RecordingError(str(error)) from error
        note_lines(self._notes_lines)
        subscribe(self._hooks)

    def stop_when_done(self) -> None:
        """End the program (SystemExit) after the last recorded step."""
        self._stop_when_done = True

    @property
    def done(self) -> bool:
        return self._step >= self._steps.stop

    @property
    def step_is_open(self) -> bool:
        return self._began_ns is not None

    def begin_step(self) -> None:
        self.following.trained = False
        records = self._step in self._steps
        if records:
            self._tape.notice(_tensors())
        self._began_ns = self._now_ns()
        self._tape.begin_step(record=records, modules=records)

    def end_step(self, *, completed: bool) -> None:
        """End the step. A step that raised is not counted. Raises RecordingError, and OSError where the file cannot be
        written."""
        if self._began_ns is None:
            return
        self._tape.end_step(completed=completed)
        took_ns, self._began_ns = self._now_ns() - self._began_ns, None
        if not completed:
            return
        if self._step in self._steps:
            self._write()
        else:
            self._unrecorded_ns = took_ns
        self._step += 1

    def _now_ns(self) -> int:
        """Return the time at which all that was asked of the device is done."""
        if self._device is not None:
            torch.accelerator.synchronize(self._device)
        return perf_counter_ns()

    def stop(self) -> None:
        unsubscribe(self._hooks)
        self.end_step(completed=False)
        note_lines(False)
        self._tape.unwatch()

    def summary(self) -> str:
        """Say what was recorded and what that cost, or why nothing was."""
        if not self._lines:
            return (
                f"nothing was recorded: the program made {self._step - 1} steps, and step {self._steps.start} was "
                "asked for (a step ends when every optimizer in use has stepped)"
            )
        return "\n".join(self._lines)

    def _write(self) -> None:
        recording = self._tape.take_recording()
        if not recording.n_ticks:
            raise RecordingError(
                f"step {self._step} has more operators than a trace holds: a step ends when every optimizer in use has "
                "stepped, so the program may do more than train in between; record a later step"
            )
        name = step_name(self._step)
        measured = self._origin is Origin.MEASURED
        unrecorded_ns = self._unrecorded_ns if measured else None
        device = str(self._device) if self._device is not None else None
        trace = capture(recording, name, count_flops, self._origin, unrecorded_ns, _torch.repeats, device).trace
        path = self._path
        if len(self._steps) > 1:
            path = path.with_name(f"{path.stem}-{self._step}{path.suffix}")
        save(trace, path)
        self._lines.append(f"{path}: {_described(trace)}")

    def _optimizer_begins(self) -> None:
        if self.following.active and not self.done and self._began_ns is None:
            self.begin_step()

    def _optimizer_ended(self) -> None:
        self.following.trained = True
        if self.following.active and not self.done:
            self.end_step(completed=True)
            self._go_on()

    def _go_on(self) -> None:
        if not self.done:
            self.begin_step()
        elif self._stop_when_done:
            raise SystemExit(0)  # no class of ours: a thread shows no other's traceback


def plain_recorder(path: Path, first: int, count: int, piece_bytes: int, lines: bool) -> StepRecorder:
    """Make the recorder of the CPU. Storages of at least twice ``piece_bytes`` are recorded in pieces."""
    watch = partial(_torch.watch, piece_bytes=piece_bytes)
    return StepRecorder(_torch, Origin.MEASURED, path, first, count, watch, lines)


def device_recorder(device: torch.device, path: Path, first: int, count: int, lines: bool) -> StepRecorder:
    """Make the recorder of an accelerator, with its own times: a session's memory of it without a bound, so nothing
    moves. Left out: scratch inside operators, and storages that another library made."""
    asked = _torch.DeviceSettings()
    asked.device, asked.min_bytes = str(device), 1
    start = partial(_torch.start_device, asked)
    return StepRecorder(_torch, Origin.MEASURED, path, first, count, start, lines, device)


def _tensors() -> list[torch.Tensor]:
    """Return the tensors that exist before the step, whether it uses them or not."""
    with torch._C.DisableTorchFunction():  # classes and modes of the script's hear nothing of it
        return [tensor for tensor in instances(torch.Tensor) if layout_of(tensor) is torch.strided]


def _described(trace: Trace) -> str:
    flops = int(trace.ticks.flops.sum())
    modelled = " (modelled)" if trace.origin is Origin.MODELLED else ""
    there = f" of {trace.device}" if trace.device is not None else ""
    text = (
        f"{trace.name}: {len(trace.ticks):,} operations, {len(trace.storages):,} storages{there}, peak "
        f"{format_bytes(peak(live_bytes(trace)))}, {flops / 1e9:,.1f} GFLOP, "
        f"{format_time(seconds(trace.step_ns))}{modelled}"
    )
    if not trace.unrecorded_ns:
        return text
    times, before = trace.step_ns / trace.unrecorded_ns, format_time(seconds(trace.unrecorded_ns))
    return f"{text}, {times:.2f} times as long as the step before, which was not recorded ({before})"
