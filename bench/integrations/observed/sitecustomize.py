"""Notes when steps end, in every process that Python starts while this directory is in PYTHONPATH.

A step ends as Ebbtide has it, with Ebbtide and without. ``STEP_TIMES`` is the directory; each rank writes its own file.
"""

import atexit
import json
import os
import sys
import time
from pathlib import Path

from ebbtide.after_import import AfterImport
from ebbtide.capture.optimizer_events import Place, Subscriber, subscribe


def observe() -> None:
    from torch.optim import Optimizer

    from ebbtide.capture.iterations import Iterations

    ended: list[float] = []
    iterations = Iterations()

    class Observer(Subscriber):
        place = Place.WATCH

        def built(self, optimizer: Optimizer) -> None:
            iterations.built(optimizer)

        def after_step(self, optimizer: Optimizer) -> None:
            if iterations.stepped(optimizer):
                ended.append(time.perf_counter())

    subscribe(Observer())
    process = os.getpid()

    def write() -> None:
        if ended and os.getpid() == process:
            rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))  # the latter by Lightning
            path = Path(os.environ["STEP_TIMES"]) / f"times.{rank}.json"
            path.write_text(json.dumps(ended))

    atexit.register(write)


if "torch" in sys.modules:
    observe()
else:
    sys.meta_path.insert(0, AfterImport("torch", observe))
