"""A Python that has imported what its processes need, and forks one for each command that it is asked for.

An import of PyTorch takes longer than most commands that tests run, and the imports of a planning process longer than
most plans of tests. ``forked`` asks: with one message for each command, as JSON, and with its three standard files. The
answers are the process's number, and its exit status in the end. What a fork cannot show is tested in fresh processes:
how large a process is, what is read from the environment when it starts, and whose child it is.
"""

import atexit
import ctypes
import json
import os
import runpy
import select
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TypedDict

LARGEST_QUESTION = 1 << 18


class Command(TypedDict):
    """``words`` begin with ``ebbtide``, a script, ``-m`` or ``-c``. ``alone`` is "group" or "session" for a process
    that has one of its own. ``servers`` are those that the process may ask itself: of Pythons, and of planners."""

    words: list[str]
    env: dict[str, str]
    cwd: str
    alone: str
    servers: list[str]


def become(command: Command, files: list[int]) -> None:
    """In the forked process: everything that the command can see."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if command["alone"] == "session":
        os.setsid()
    elif command["alone"] == "group":
        os.setpgid(0, 0)
    os.chdir(command["cwd"])
    os.environ.clear()
    os.environ.update(command["env"])
    words = command["words"]
    sys.argv = words[1:] if words[0] == "-m" else words[:1] + words[2:] if words[0] == "-c" else words
    sys.path[0] = command["cwd"] if words[0] in ("-m", "-c") else str(Path(words[0]).resolve().parent)
    asked = [folder for folder in command["env"].get("PYTHONPATH", "").split(os.pathsep) if folder]
    new = [folder for folder in asked if folder not in sys.path]
    sys.path[1:1] = new
    if any(Path(folder, "sitecustomize.py").exists() for folder in new):
        sys.modules.pop("sitecustomize", None)
        import_module("sitecustomize")
    if "torch" in sys.modules:
        _as_torch_begins(new)
    if command["servers"]:
        import_module("tests.helpers.forked").ask_as(words, *command["servers"])


def _as_torch_begins(new: list[str]) -> None:
    """What an import of PyTorch does by the environment: it counts threads, and loads the devices of packages."""
    import torch

    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    if read := sys.modules.get("ebbtide.session.library_threads"):
        read._AS_LOADED = read._what_they_read()
    if any(next(Path(folder).glob("*.dist-info"), None) for folder in new):
        torch._import_device_backends()


def serve(listener: socket.socket) -> Command | None:
    """In a forked process, the command that it is; None in this one, once the process that started it has ended."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by what tells of the end: the process, and who waits for it
    while 0 not in (ready := select.select([0, listener.fileno(), *running], [], [])[0]):
        for ended in running.keys() & ready:
            pid, asked = running.pop(ended)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.close(ended)
            with asked, suppress(OSError):  # nobody waits
                asked.send(str(status).encode())
        if listener.fileno() in ready:
            asked, _ = listener.accept()
            question, files, *_ = socket.recv_fds(asked, LARGEST_QUESTION, 3)
            command: Command = json.loads(question)
            if (pid := os.fork()) == 0:
                for connection in (listener, asked, *(waits for _, waits in running.values())):
                    connection.close()
                for ended in running:
                    os.close(ended)
                become(command, files)
                return command
            for file in files:
                os.close(file)
            if command["alone"] == "group":
                with suppress(OSError):  # it has done so itself
                    os.setpgid(pid, pid)
            running[os.pidfd_open(pid)] = pid, asked
            with suppress(OSError):
                asked.send(str(pid).encode())
    return None


def run(words: list[str]) -> None:
    status: object = None
    try:
        if Path(words[0]).name == "ebbtide":
            status = import_module("ebbtide.cli").main()
        elif words[0] == "-c":
            exec(words[1], vars(sys.modules["__main__"]))
        elif words[0] == "-m":
            if not hasattr(sys.modules.get(words[1]), "__path__"):
                sys.modules.pop(words[1], None)
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        status = ended.code
    if status is not None and not isinstance(status, int):
        sys.exit(status)  # Python shows it
    end(status or 0)


def end(status: int) -> None:
    """End as Python does, but for its objects: to take apart all that was imported takes longer than most commands."""
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush(), sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(status)  # Python tells what became of its streams
    ctypes.PyDLL(None).exit(status)


if __name__ == "__main__":
    import_module(sys.argv[2])
    if (asked_for := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        run(asked_for["words"])
