"""What test_device_commands.py runs in child processes: a step on the tests' device, recorded in two ways."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import ebbtide
from ebbtide.ir.files import load
from ebbtide.ir.trace import Trace
from tests.device import lagging
from tests.training.device_jobs import DEVICE, KEPT, STEPS, begin, bits, differences, plainly, train

lagging.load()

JOB = "gpt-adamw"
Seen = Counter[tuple[int, str, int, int]]


def recorded_twice() -> tuple[tuple[str, ...], Seen, Seen]:
    """What recording changes, and the storages of some size that the recorder and a session see, each with its life."""
    plain = plainly(JOB)
    with TemporaryDirectory() as folder:
        ours, sessions = Path(folder) / "ours.trace", Path(folder) / "sessions.trace"
        job = begin(JOB)
        with ebbtide.record(ours, device=DEVICE) as recorder:
            recorded = bits(job, [loss for number in range(STEPS) for loss in train(job, [number], recorder.step)])
        del job
        job = begin(JOB)
        with ebbtide.Session("100%", **KEPT, save_trace=sessions) as session:
            train(job, range(STEPS), session.step)
        return differences(recorded, plain), seen(ours), seen(sessions)


def seen(path: Path) -> Seen:
    rows = load(path, Trace).storages
    rows = rows.take(rows.nbytes >= KEPT["min_storage_bytes"])
    return Counter(zip(*(column.tolist() for column in (rows.nbytes, rows.kind, rows.birth, rows.death)), strict=True))
