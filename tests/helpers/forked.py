"""Processes that a server has forked (``fork_server``), for whoever starts Pythons by ``subprocess``."""

import atexit
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.helpers.paths import ROOT

EBBTIDE = str(Path(sys.executable).with_name("ebbtide"))
STARTS_PYTHONS = {"verify", "estimate", "torch.distributed.run"}
"""Commands that start Pythons with PyTorch, and so does ``--fast auto``."""
STARTS_PLANNERS = "TESTS_START_PLANNERS"
"""A variable of the tests under ``--all``."""
PYTHONS, PLANNERS = "TESTS_PYTHONS", "TESTS_PLANNERS"
"""Variables of pytest's workers, who ask the same servers."""


class Server:
    """Of this process, as long as it runs. ``address`` is where it is asked."""

    def __init__(self, imports: str, **environment: str) -> None:
        self.address = f"ebbtide-tests-{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind("\0" + self.address)
            listener.listen(64)
            command = [sys.executable, "-m", "tests.helpers.fork_server", str(listener.fileno()), imports]
            env = {name: value for name, value in os.environ.items() if not name.startswith("EBBTIDE_")} | environment
            fds, pipe, null = (listener.fileno(),), subprocess.PIPE, subprocess.DEVNULL
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=pipe, stdout=null, pass_fds=fds)
        atexit.register(process.communicate)


@cache
def pythons() -> str:
    """Where Pythons are asked for that have imported PyTorch, Ebbtide and Transformers."""
    return os.environ.get(PYTHONS) or Server("tests.helpers.preloaded").address


@cache
def pythons_with(library: str) -> str:
    """The same with the library preloaded."""
    return Server("tests.helpers.preloaded", LD_PRELOAD=library).address


@cache
def planners() -> str:
    """Where planning processes are asked for. With ``--all``, "": each is started as in a user's run."""
    if STARTS_PLANNERS in os.environ:
        return ""
    own = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    return os.environ.get(PLANNERS) or Server("tests.helpers.planners", **own).address


def share() -> None:
    """Processes that this one starts ask its servers from here on."""
    os.environ[PYTHONS], os.environ[PLANNERS] = pythons(), planners()


def words_of(command: Sequence[str]) -> list[str] | None:
    """Those that a server understands: of ``ebbtide``, a script or ``-m``. None for another command."""
    words = [str(word) for word in (command[1:] if command[0] == sys.executable else command)]
    is_ours = bool(words) and (words[0] == EBBTIDE or words[0].endswith(".py") or words[0] == "-m")
    return words if is_ours else None


READ_AT_START = {"GLIBC_TUNABLES", "LD_PRELOAD"}
"""Variables that a fork is too late for."""


class Popen(subprocess.Popen):
    """A process that the server at ``_address`` forks where it understands the command; else one as ever."""

    _address = ""
    _servers: Sequence[str] = ()
    _connection: socket.socket | None = None

    def _words(self, command: Sequence[str]) -> list[str] | None:
        return words_of(command)

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any, *rest: Any
    ) -> None:
        words = None if isinstance(args, str | bytes) else self._words(args)
        if words is None or READ_AT_START & (env or {}).keys():
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
            return
        pipes, (new_session, group) = rest[3:9], rest[-2:]
        files = [fd if fd != -1 else number for number, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
        question = {
            "words": words,
            "env": dict(os.environ if env is None else env),
            "cwd": os.fspath(cwd or os.getcwd()),
            "alone": "session" if new_session else "group" if group == 0 else "",
            "servers": list(self._servers),
        }
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect("\0" + self._address)
        socket.send_fds(self._connection, [json.dumps(question).encode()], files)
        self.pid = int(self._connection.recv(32))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _wait(self, timeout: float | None) -> int:
        if self._connection is None:
            return super()._wait(timeout)
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._connection.recv(32) or -signal.SIGKILL)
            self._connection.close()
        return self.returncode

    def _internal_poll(self, *arguments: Any, **named: Any) -> int | None:
        if self._connection is None:
            return super()._internal_poll(*arguments, **named)
        try:
            return self._wait(0)
        except subprocess.TimeoutExpired:
            return None


def popen(address: str, *servers: str) -> type[Popen]:
    """For the ``Popen`` of processes that the server there forks. They may themselves ask ``servers``."""
    return type("Popen", (Popen,), {"_address": address, "_servers": servers})


def fork_planners(address: str) -> None:
    """From here on, planning processes of this one are forked by the server there. They run the same code on the same
    files, but are no children of this process. So they are started as ever where steps go on beside them, since the
    arena may have to kill them, and where a test has changed how they start."""
    if not address:
        return
    from ebbtide.planning import plan_child

    start = plan_child._START

    class Planner(Popen):
        _address = address

        def _words(self, command: Sequence[str]) -> list[str] | None:
            is_beside = os.environ.get("EBBTIDE_WAIT_FOR_PLAN") == "0"
            return None if is_beside or start != plan_child._START else list(command[-2:])

    plan_child.subprocess = SimpleNamespace(Popen=Planner)


def ask_as(words: Sequence[str], python_address: str, planner_address: str) -> None:
    """In a forked command: let servers fork what it starts."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    fork_planners(planner_address)
    if STARTS_PYTHONS & set(words[1:3]) or any(word.startswith("auto") for word in words[2:5]):
        subprocess.Popen = popen(python_address, python_address, planner_address)
        subprocess_handler.Popen = subprocess.Popen  # torchrun's, who took it by name


def run(
    command: Sequence[str], env: Mapping[str, str], cwd: Path, out: Any, err: Any, timeout_s: float, library: str
) -> int:
    """The exit status of a command that a server understands. Raises subprocess.TimeoutExpired, when it was killed."""
    start = popen(pythons_with(library) if library else pythons(), pythons(), planners())
    with start(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err) as process:
        try:
            return process.wait(timeout_s)
        except BaseException:
            process.kill()
            raise
