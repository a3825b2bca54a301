"""Run a function of a module in ``tests/training`` in a fresh process, and say how it died if it did.

A session changes its process for good (the arena outlives it), and a fault in native code would take pytest along, so
each case has a process of its own. They are forked from a server that has imported all that they need but computed
no more than that takes (``preloaded``), so a case starts in a tenth of a second. Planning processes are forked, too.
"""

import faulthandler
import importlib
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from tests.helpers import forked

HUNG_AFTER_S = 600  # far above any case's time on a busy machine: only a hang gets here
PRELOADED = [
    *(f"transformers.models.{m}.modeling_{m}" for m in ("gpt2", "llama", "vit", "resnet", "convnext")),
    "tests.helpers.preloaded",
]

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(PRELOADED)


class ChildError(Exception):
    """The child raised, crashed or hung; the text holds its traceback and its last output."""


def _main(
    sender: Connection, log: str, env: Mapping[str, str], planners: str, function: str, args: tuple[Any, ...]
) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    env = {"EBBTIDE_WAIT_FOR_PLAN": "1", "EBBTIDE_CHECKSUM": "1"} | dict(env)
    for variable in [name for name in os.environ if name.startswith("EBBTIDE_")]:
        del os.environ[variable]
    os.environ.update(env)
    forked.fork_planners(planners)
    module, name = function.split(":")
    try:
        sender.send((getattr(importlib.import_module(f"tests.training.{module}"), name)(*args), None))
    except BaseException:
        sender.send((None, traceback.format_exc()))


class Child:
    """A process calling ``function`` ("module:name"). ``env`` holds the only ``EBBTIDE_...`` variables it sees, but for
    two: so that steps can be counted, training waits for plans; so that a disk's wrong byte is told from one of ours,
    checksums are on."""

    def __init__(self, function: str, args: tuple[Any, ...], env: Mapping[str, str] | None) -> None:
        self.call = f"{function}{args}"
        self._log = tempfile.NamedTemporaryFile(mode="r", errors="replace")  # noqa: SIM115 (closed in __exit__)
        self._receiver, sender = _server.Pipe(duplex=False)
        self._process = _server.Process(
            target=_main, args=(sender, self._log.name, dict(env or {}), forked.planners(), function, args)
        )
        self._process.start()
        sender.close()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._receiver.close()
        self._log.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds. Raises ChildError if the child ends first, or if it takes for ever."""
        patience = time.monotonic() + HUNG_AFTER_S
        while not condition():
            if self._process.exitcode is not None or time.monotonic() > patience:
                self.result()
                raise self._error("ended too early")
            time.sleep(0.01)

    def result(self) -> Any:
        """What the function returned (plain data). Raises ChildError if it raised, or the process crashed or hung."""
        try:
            if not self._receiver.poll(HUNG_AFTER_S):
                os.kill(self.pid, signal.SIGUSR1)  # faulthandler writes every thread's stack to the log
                self._process.join(2)
                raise self._error(f"hung for {HUNG_AFTER_S} s")
            result, failure = self._receiver.recv()
        except EOFError:
            raise self._error("died") from None
        self._process.join(HUNG_AFTER_S)
        if failure is not None:
            raise self._error(failure)
        if self._process.exitcode != 0:
            raise self._error("died after its work was done")
        return result

    def _error(self, what: str) -> ChildError:
        self._process.join(2)
        return ChildError(f"{self.call}: {what} (exit code {self._process.exitcode})\n{self._log.read()[-6000:]}")


def run(function: str, *args: Any, env: Mapping[str, str] | None = None) -> Any:
    """Call ``function`` in a fresh process and return its result."""
    with Child(function, args, env) as child:
        return child.result()
