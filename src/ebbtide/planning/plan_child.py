"""Plans in a process of its own. When it ends, all memory of the search is given back.

The child is a fresh Python without torch, started as ``ebbtide.planning.plan_process``. Its standard input is the
recorded step and its standard output the answer. Both are files in memory, since a script that closes descriptors could
break a pipe. A thread of the training process starts the child and waits for its end, so that steps can go on.
Meanwhile the arena leaves free what the child needs, so that both together stay within the process's bound. If a step
has no room beside the child after all, the arena kills it (``Arena::end_aside``).

Left out: what the kernel charges a container for starting a process (a few hundred KiB of page tables).
"""

import os
import pickle
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic, perf_counter_ns, sleep

import numpy as np

import ebbtide._torch as _torch
from ebbtide.budget.bounds import need_of
from ebbtide.errors import EbbtideError
from ebbtide.host.own_thread import OwnThread
from ebbtide.host.process import on_all_cpus
from ebbtide.planning.anonymous_file import AnonymousFile
from ebbtide.planning.plan_job import MARK, Answer, Job, PlanningKilledError, planning_bytes, with_seconds
from ebbtide.units import MIB, format_bytes, seconds

_POLL_S = 0.005
_PATIENCE_S = 2.0  # the longest wait for evictions; they take a fraction of it where room can be made
_NICE = 19  # beside steps: where one of their threads is pushed aside, all others wait for it

_CLOSED = (
    "the answer of the planning process is lost, since the script closed a file that it had not opened (os.closerange, "
    "say): let it close its own files alone"
)
_STANDARD = Path(os.__file__).parent
_START = "import sys; sys.path[:] = {paths!r}; from ebbtide.planning.plan_process import main; main()"


class PlanningProcess:
    """A job that is being carried out (``plan_job.Asked``). It is made between two steps, where room is easiest to get.

    Raises EbbtideError where the arena cannot give up what the process needs. Where no process can be started,
    ``answer`` raises the reason.
    """

    def __init__(self, job: Job, policy: str, plan: Path | None) -> None:
        needed = planning_bytes(job.recording)
        self._child: subprocess.Popen[bytes] | None = None
        self._started, self._ended = threading.Event(), threading.Event()
        self._stopped = False
        self._outcome: Answer | Exception | None = None
        question = AnonymousFile(pickle.dumps((job, policy, plan), protocol=5))
        self._thread = OwnThread(target=self._carry_out, args=(question, needed), name="ebbtide-planning", daemon=True)
        try:
            _torch.set_aside(needed)
            _wait_for_room(needed)
            self._thread.start()
        except BaseException:
            question.close()
            _torch.set_aside(0)
            raise
        try:
            # A fork by the script, or files that it closes, would go wrong in the middle of starting a process.
            self._started.wait()
        except BaseException:
            self.stop()
            raise

    def wait(self, most_s: float | None) -> bool:
        return self._ended.wait(most_s)

    def steps_go_on(self) -> bool:
        counters = _torch.counters()
        if counters["arena_limit_bytes"] < need_of(counters).nbytes:
            return False
        if self._child is not None:
            with suppress(OSError):  # it has ended, or nothing may be changed here
                os.setpriority(os.PRIO_PGRP, self._child.pid, _NICE)
        return True

    def answer(self) -> Answer:
        assert self._outcome is not None
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def stop(self) -> None:
        self._stopped = True
        if self._child is not None:
            with suppress(PermissionError):  # the script has given up its user's rights: then it ends by itself
                self._child.kill()
        self._thread.join()

    def _carry_out(self, question: AnonymousFile, needed: int) -> None:
        began = perf_counter_ns()
        try:
            answer = self._asked(question, needed)
            self._outcome = with_seconds(answer, seconds(perf_counter_ns() - began))
        except Exception as error:
            self._outcome = error
        finally:
            question.close()
            _torch.set_aside(0)
            self._started.set()
            self._ended.set()

    def _asked(self, question: AnonymousFile, needed: int) -> Answer:
        if not sys.executable or getattr(sys, "frozen", False):
            raise EbbtideError(
                "there is no Python to plan with: sys.executable names none. Run the script with python, or choose a "
                "policy that plans nothing (--policy demand)"
            )
        command = [sys.executable, "-P", "-c", _START.format(paths=_import_path())]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
        with closing(AnonymousFile()) as answers, closing(AnonymousFile()) as troubles:
            files = (question.fd, answers.fd, troubles.fd)
            with on_all_cpus():
                begun = subprocess.Popen(command, -1, None, *files, env=environment, process_group=0)
            with begun as child:
                try:
                    question.close()
                    _torch.set_aside(needed, child.pid)
                    self._child = child
                    self._started.set()
                    if self._stopped:
                        child.kill()
                    child.wait()
                except BaseException:
                    child.kill()
                    raise
            said, trouble = answers.read(), troubles.read()
        if said is None or trouble is None:
            raise PlanningKilledError(_CLOSED)
        answer = _read(said.partition(MARK)[2])
        if child.returncode or answer is None:
            last = trouble.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            # Its status may be somebody else's: a script that ignores SIGCHLD, or waits for any child.
            was_killed = child.returncode < 0 or (child.returncode == 0 and MARK not in said)
            kind = PlanningKilledError if was_killed else EbbtideError
            raise kind(f"the planning process ended with exit status {child.returncode}: {last[0]}")
        if isinstance(answer, Exception):
            raise answer
        return answer


def _wait_for_room(needed: int) -> None:
    deadline = monotonic() + _PATIENCE_S
    while (counters := _torch.counters())["arena_limit_bytes"] < counters["reserved_bytes"]:
        if monotonic() > deadline:
            held, left = (format_bytes(counters[name]) for name in ("reserved_bytes", "arena_limit_bytes"))
            raise EbbtideError(
                f"planning takes about {needed // MIB} MiB, and tensors hold {held} where that leaves them {left}"
            )
        sleep(_POLL_S)


def _read(said: bytes) -> Answer | EbbtideError | None:
    """Read the answer; None where there is none, or only a part of one."""
    try:
        answer = pickle.loads(said)
    except Exception:
        return None
    return answer if isinstance(answer, Answer | EbbtideError) else None


def _import_path() -> list[str]:
    """List the directories that this process imports from, so the child finds the same Ebbtide and NumPy. The script's
    own come last: a file of its that is named like one of Python's (``html.py``) is nothing to the child."""
    entries = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
    pythons = [entry for entry in entries if Path(entry) in (_STANDARD, _STANDARD / "lib-dynload")]
    own = [str(Path(module.__file__ or "").parents[1]) for module in (sys.modules["ebbtide"], np)]
    return list(dict.fromkeys([*pythons, *own, *entries]))
