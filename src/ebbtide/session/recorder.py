"""Records a step of a program. Nothing moves and nothing is bounded.

with ebbtide.record("step.trace"):
    trainer.train()
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ebbtide.errors import SettingError
from ebbtide.host.native import require_native
from ebbtide.host.spill import choose_spill_directories
from ebbtide.machines import find_machine
from ebbtide.session.driven import Driven, check_writable, tell_disabled
from ebbtide.settings import ProgressMode, Settings
from ebbtide.terminal import tell
from ebbtide.units import option

if TYPE_CHECKING:
    from ebbtide.recorders.step_recorder import StepRecorder


class Recorder(Driven):
    """Writes steps ``first`` to ``first + count - 1`` of its ``with`` block to ``path``, counted from 1.

    Steps end where the optimizers do, or where ``step()`` says. With several, ``step.trace`` becomes ``step-3.trace``,
    ``step-4.trace``, ... The default is the third step, the first with a steady one before it to compare with.

    ``fake`` computes and holds nothing: tensors have shapes only, and numbers read out of them are 1. Times are
    modelled by the FLOPs and bytes a second of ``machine``, a name or a file. Its default is this computer, which is
    measured for some seconds once a week. Then the default is the second step. ``lines``: the trace says which line of
    the program made each storage. ``device``: the storages of an accelerator, such as "cuda", and its times. All else
    comes from ``settings``, by default the ``EBBTIDE_...`` variables. Entering raises PlatformError, RecordingError,
    SpillError where this computer cannot be measured, and SettingError for a file that cannot be written, or for a
    device that is not there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        first: int | None = None,
        count: int = 1,
        fake: bool = False,
        machine: str | os.PathLike[str] | None = None,
        lines: bool | None = None,
        device: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        super().__init__()
        chosen = settings or Settings.from_environment()
        self._path = Path(path).absolute()
        self._disabled = chosen.disable
        self._fake = fake
        self._machine = chosen.machine if machine is None else os.fspath(machine)
        self._piece_bytes = chosen.piece_bytes
        self._lines = chosen.lines if lines is None else lines
        self._device = chosen.device if device is None else device
        if device is not None and self._fake:
            says = f"{option('fake')} needs no device: leave {option('device')} out"
            raise SettingError(f"{says}, and name its machine with {option('machine')}")
        self._settings = chosen
        self._first = (2 if fake else 3) if first is None else first
        self._count = count
        for name, number, most in (("first", self._first, 2**31), ("count", count, 1000)):
            if not isinstance(number, int) or not 1 <= number <= most:
                raise SettingError(f"{name}={number!r:.80}: accepted: a whole number from 1 to {most}")
        self._recorder: StepRecorder | None = None

    @property
    def done(self) -> bool:
        """True once every step that was asked for is recorded."""
        return self._recorder is not None and self._recorder.done

    def stop_when_done(self) -> None:
        """End the program (SystemExit) after the last recorded step. Called within the block."""
        if self._recorder is not None:
            self._recorder.stop_when_done()

    def summary(self) -> str:
        """Say what was recorded and what that cost, or why nothing was."""
        return "nothing was recorded yet" if self._recorder is None else self._recorder.summary()

    def _check(self) -> None:
        check_writable({"trace": self._path}, self._reads)

    def _start(self) -> None:
        if self._disabled:
            tell_disabled()
            return
        require_native()
        if self._fake:
            recorder = self._fake_recorder()
        else:
            recorder = self._plain_recorder() if self._device is None else self._device_recorder(self._device)
        recorder.start()
        self._driver = self._recorder = recorder

    def _fake_recorder(self) -> "StepRecorder":
        from ebbtide.probe.quick import probe_quick
        from ebbtide.recorders.fake import fake_recorder

        if self._machine is not None:
            machine = find_machine(self._machine)
        else:
            spill = choose_spill_directories(self._settings.spill)
            machine = probe_quick(spill, self._settings.io_threads, say=self._say, computes=True)
        return fake_recorder(machine, self._path, self._first, self._count, self._lines)

    def _device_recorder(self, name: str) -> "StepRecorder":
        from ebbtide.host.accelerator import device_named, require_device_events
        from ebbtide.recorders.step_recorder import device_recorder

        device = device_named(name)
        require_device_events(device)
        return device_recorder(device, self._path, self._first, self._count, self._lines)

    def _say(self, text: str) -> None:
        if self._settings.progress is not ProgressMode.OFF:
            tell(f"ebbtide: {text}")

    def _plain_recorder(self) -> "StepRecorder":
        from ebbtide.recorders.step_recorder import plain_recorder

        return plain_recorder(self._path, self._first, self._count, self._piece_bytes, self._lines)
