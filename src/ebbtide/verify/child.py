"""The process in which ``ebbtide verify`` runs the script as ``ebbtide run`` would, and watches it.

    python -m ebbtide.verify.child RECORD STEP (SCRIPT | -m MODULE) [ARGS]...

STEP is the step after which the state is recorded, or "every". With ``EBBTIDE_DISABLE=1`` nothing of Ebbtide's native
code is loaded, and the script runs on stock PyTorch. The ending is recorded only if the script ran to its end. A
refused budget that left the script is no end.
"""

import os
import sys
import warnings
from pathlib import Path
from time import monotonic

from ebbtide.errors import EbbtideError, EbbtideWarning
from ebbtide.host.process import end_with_parent, peak_resident_bytes
from ebbtide.session.launch import find_program, run_program
from ebbtide.session.leaving import seen
from ebbtide.session.session import Session
from ebbtide.units import name_options_as_the_command
from ebbtide.verify.record import Ending, Recorder
from ebbtide.verify.watch import Watch

EVERY = "every"


def main() -> int:
    end_with_parent()
    record, step, *command = sys.argv[1:]
    name_options_as_the_command()  # the command that started this one
    process = os.getpid()
    warnings.filterwarnings("ignore", message="EBBTIDE_DISABLE is set", category=EbbtideWarning)
    recorder = Recorder(Path(record))
    watch = Watch(recorder, None if step == EVERY else int(step))
    watch.install_with_torch()
    began = monotonic()

    def note(status: int) -> int:
        took_s = monotonic() - began
        recorder.write(
            Ending(status, watch.steps, peak_resident_bytes(), took_s, watch.largest_bytes, watch.device_peak_bytes())
        )
        return status

    itself = ["-m", "ebbtide.verify.child", record, step]
    try:
        with seen(note, itself):
            status = run_program(find_program(command), Session(), quiet=True, command=itself)
    except EbbtideError as error:
        print(f"ebbtide: error: {error}", file=sys.stderr)
        return error.exit_code
    return note(status) if os.getpid() == process else status  # not in a child that the script forked


if __name__ == "__main__":
    sys.exit(main())
