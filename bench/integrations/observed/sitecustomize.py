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


def observe() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from ebbtide.capture.iterations import Building, Iterations, uncompiled

    ended: list[float] = []
    iterations = Iterations()
    Building(iterations.built)

    def after(optimizer: object, args: object, kwargs: object) -> None:
        if iterations.stepped(optimizer):  # type: ignore[arg-type]
            ended.append(time.perf_counter())

    register_optimizer_step_post_hook(uncompiled(after))
    process = os.getpid()

    def write() -> None:
        if ended and os.getpid() == process:
            rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))  # the latter by Lightning
            path = Path(os.environ["STEP_TIMES"]) / f"times.{rank}.json"
            path.write_text(json.dumps(ended))

    atexit.register(write)


sys.meta_path.insert(0, AfterImport("torch", observe))
