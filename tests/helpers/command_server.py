"""A Python that has imported PyTorch and forks a process for each command that it reads, as ``command.run`` asks.

An import of PyTorch takes longer than most commands that tests run. Each line of the standard input is one command, as
JSON. The answers are two lines: the number of its process, and the exit status in the end. What a fork cannot show is
tested in fresh processes: how large a process is, and what is read from the environment when it starts.
"""

import json
import os
import runpy
import sys
from pathlib import Path
from typing import TypedDict

import tests.helpers.preloaded  # noqa: F401
from ebbtide.cli import main


class Command(TypedDict):
    """``words`` begin with ``ebbtide`` or a script; the streams go to files."""

    words: list[str]
    env: dict[str, str]
    cwd: str
    streams: list[str]


def become(command: Command) -> None:
    """In the forked process: everything that the command can see."""
    for number, path in enumerate([os.devnull, *command["streams"]]):
        stream = os.open(path, os.O_RDWR)
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(command["cwd"])
    os.environ.clear()
    os.environ.update(command["env"])
    sys.argv = command["words"]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    asked = command["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in asked if folder and folder not in sys.path]


def serve() -> Command | None:
    """In a forked process, the command that it shall be; None in this one, at the end."""
    for line in sys.stdin:
        command: Command = json.loads(line)
        if (pid := os.fork()) == 0:
            become(command)
            return command
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return None


if __name__ == "__main__" and (asked := serve()) is not None:
    if Path(asked["words"][0]).name == "ebbtide":
        sys.exit(main())
    runpy.run_path(asked["words"][0], run_name="__main__")
