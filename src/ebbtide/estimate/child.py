"""The process in which ``ebbtide estimate`` runs the script on fake tensors.

    python -m ebbtide.estimate.child TRACE MACHINE (SCRIPT | -m MODULE) [ARGS]...

It writes the second step to TRACE, and beside it what it holds besides tensors (``held_file``). Where the script
raises, it writes instead whether fake tensors did (``raised_file``).
"""

import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

from ebbtide.capture.objects import instances
from ebbtide.capture.optimizer_events import Place, Subscriber, subscribe
from ebbtide.errors import EbbtideError
from ebbtide.host.process import end_with_parent, resident_bytes
from ebbtide.session.launch import find_program, record_program
from ebbtide.session.leaving import seen
from ebbtide.session.recorder import Recorder
from ebbtide.settings import Settings
from ebbtide.units import name_options_as_the_command
from ebbtide.whole_file import write_whole

if TYPE_CHECKING:
    from torch.optim import Optimizer

ITSELF = ("-m", "ebbtide.estimate.child")
"""What follows Python's name in this process's command."""


class _AtStepsEnd(Subscriber):
    """Sees what the process holds when an optimizer has stepped, before a recorder ends the script there."""

    place: ClassVar[Place] = Place.BUDGET

    def __init__(self) -> None:
        self.rest_bytes = 0

    def after_step(self, optimizer: "Optimizer") -> None:
        self.rest_bytes = max(resident_bytes() - _real_bytes(), 0)


def _real_bytes() -> int:
    """Return the bytes of real tensors that the trace has, too."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    from ebbtide.recorders.fake import is_managed

    with torch._C.DisableTorchFunction():  # classes and modes of the script's hear nothing of it
        real = (each for each in instances(torch.Tensor) if each.layout is torch.strided)
        storages = [each.untyped_storage() for each in real if not isinstance(each, FakeTensor) and is_managed(each)]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def main() -> int:
    end_with_parent()
    trace, machine, *command = sys.argv[1:]
    shown = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
        write_whole(raised_file(Path(trace)), (OF_FAKES if _is_of_fakes(error) else "the script").encode())
        shown(kind, error, frames)

    def note_held(status: int) -> int:
        write_whole(held_file(Path(trace)), str(ends.rest_bytes).encode())
        return status

    sys.excepthook = note
    name_options_as_the_command()  # the command that started this one
    recorder, ends = Recorder(trace, fake=True, machine=machine, settings=Settings()), _AtStepsEnd()
    try:
        program = find_program(command)
        subscribe(ends)
        itself = [*ITSELF, trace, machine]
        with seen(note_held, itself):
            status = record_program(program, recorder, stop=True, quiet=True, command=itself)
    except EbbtideError as error:
        print(f"ebbtide: error: {error}", file=sys.stderr)
        return error.exit_code
    return note_held(status)


def _is_of_fakes(error: BaseException) -> bool:
    """Tell whether fake tensors, or what records them, raised the error."""
    from torch._subclasses import fake_tensor

    from ebbtide.recorders import fake

    inside = {str(Path(fake_tensor.__file__).parent), fake.__file__}
    return any(
        {frame.filename, str(Path(frame.filename).parent)} & inside
        for frame in traceback.extract_tb(error.__traceback__)
    )


def raised_file(trace: Path) -> Path:
    """Return the file beside the trace that says who raised the error that ended the script, if one did."""
    return trace.with_suffix(".raised")


OF_FAKES = "fake tensors"


def held_file(trace: Path) -> Path:
    """Return the file beside the trace that has what the process held at a step's end, less its tensors."""
    return trace.with_suffix(".held")


if __name__ == "__main__":
    sys.exit(main())
