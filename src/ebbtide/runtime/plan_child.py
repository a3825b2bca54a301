"""Planning in a process of its own, which ends: whatever memory the search took is given back with it.

The child is a fresh Python without torch, started as ``ebbtide.plan_process``; it gets the recorded step over a pipe
and answers over another. While it runs the training process stands still between two steps, where activations are
dead. What the child needs is kept free of the arena meanwhile, so that both together stay within the process's bound.

Left out: what the kernel charges a container for starting a process (a few hundred KiB of page tables).
"""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import ebbtide._torch as _torch
from ebbtide.errors import EbbtideError
from ebbtide.runtime.plan_job import MARK, Answer, Job, PlanningKilledError, planning_bytes
from ebbtide.units import MIB

_POLL_S = 0.005
_PATIENCE_S = 2.0  # for evictions that make room; they take a fraction of it where room can be made

_START = "import sys; sys.path[:] = {paths!r}; from ebbtide.plan_process import main; main()"


class NoRoomToPlan(EbbtideError):
    """The arena cannot give up what the planning process needs; says how much that is."""


def answer_of_child(job: Job, policy: str, plan: Path | None) -> Answer:
    """Raises what the planner raised, NoRoomToPlan, or OSError where no process can be started."""
    needed = planning_bytes(job.recording)
    question = pickle.dumps((job, policy, plan), protocol=5)
    try:
        _torch.set_aside(needed)
        _wait_for_room(needed)
        return _asked(question, needed)
    finally:
        _torch.set_aside(0)


def _wait_for_room(needed: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while (counters := _torch.counters())["arena_limit_bytes"] < counters["reserved_bytes"]:
        if time.monotonic() > deadline:
            raise NoRoomToPlan(f"planning takes about {needed // MIB} MiB, which the budget does not leave")
        time.sleep(_POLL_S)


def _asked(question: bytes, needed: int) -> Answer:
    if not sys.executable or getattr(sys, "frozen", False):
        raise EbbtideError(
            "there is no Python to plan with: sys.executable names none. Run the script with python, or choose a "
            "policy that plans nothing (--policy demand)"
        )
    command = [sys.executable, "-P", "-c", _START.format(paths=_import_path())]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, process_group=0) as child:
        try:
            _torch.set_aside(needed, child.pid)
            said, trouble = child.communicate(question)
        except BaseException:
            child.kill()
            raise
    answer = _read(said.partition(MARK)[2])
    if child.returncode or answer is None:
        last = trouble.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        kind = PlanningKilledError if child.returncode < 0 else EbbtideError
        raise kind(f"the planning process ended with exit status {child.returncode}: {last[0]}")
    if isinstance(answer, Exception):
        raise answer
    return answer


def _read(said: bytes) -> Answer | EbbtideError | None:
    """None for what is no answer, or only a part of one."""
    try:
        answer = pickle.loads(said)
    except Exception:
        return None
    return answer if isinstance(answer, Answer | EbbtideError) else None


def _import_path() -> list[str]:
    """Where this process imports from, in its order, so that the child finds the same Ebbtide and the same NumPy."""
    entries = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
    own = [str(Path(module.__file__ or "").parents[1]) for module in (sys.modules["ebbtide"], np)]
    return list(dict.fromkeys([*entries, *own]))
