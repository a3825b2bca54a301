"""What a script does to leave its process without the end that Python knows: ``os._exit``, and ``os.exec...``.

``os._exit`` ends it at once: before that, the report is written and the summary shown. A script that starts itself anew
in the same process, for another hash seed or a variable of OpenMP's, goes on under the command that started it. Left
out: what leaves from C (``_exit``, ``abort``), and signals.
"""

import os
import re
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ebbtide.in_front import InFrontOf
from ebbtide.session.ending import GATHER_S
from ebbtide.terminal import tell

_MOST_S = 2 * GATHER_S  # whoever calls os._exit may hold what the report waits for
_OPTIONS = re.compile(r"-[bBdEiIOPqRsuv]+|-[WX].+")  # Python's, under which the command runs as well as a script
_VALUED = ("-W", "-X")  # take the next argument


@contextmanager
def seen(conclude: Callable[[int], int], command: Sequence[str]) -> Iterator[None]:
    """See to it in the block that ``conclude`` is called before ``os._exit``, with the status. It returns another one.

    ``command`` is what follows Python's own options, and comes before the program; nothing where no command ran it.
    """
    process = os.getpid()

    def leave(original: Callable[..., None], *given: Any, **named: Any) -> None:
        status = _status_of(*given, **named) if os.getpid() == process else None
        if status is None:
            original(*given, **named)
        else:
            original(_in_time(conclude, status))

    def start_anew(
        original: Callable[..., None], path: Any, argv: Sequence[Any], env: Mapping[Any, Any] | None = None
    ) -> None:
        rest: tuple[Any, ...] = () if env is None else (env,)
        if os.getpid() == process:
            is_file = isinstance(path, int)  # a descriptor
            same = None if is_file else under(command, os.fsdecode(path), [os.fsdecode(each) for each in argv])
            if same is None and (is_file or os.access(path, os.X_OK)):
                what = argv[0] if is_file else path
                tell(f"ebbtide: warning: the script gives its process to {what}, and nothing bounds it from here")
            elif same is not None:
                argv = same
                rest = rest and ({**_ours(), **rest[0]},)
        original(path, argv, *rest)

    wrappers = [*InFrontOf.EXIT.install(leave), *InFrontOf.EXEC.install(start_anew)]
    try:
        yield
    finally:
        for wrapper in wrappers:
            wrapper.remove()


def under(command: Sequence[str], path: str, arguments: Sequence[str]) -> list[str] | None:
    """Put ``command`` between Python's options and the program. Return None for what is no program of this Python's."""
    if not command or not sys.executable or _interpreter(path) != _interpreter(sys.executable):
        return None
    at = 1
    while at < len(arguments) and (arguments[at] in _VALUED or _OPTIONS.fullmatch(arguments[at])):
        at += 2 if arguments[at] in _VALUED else 1
    program = list(arguments[at:])
    if not program or (program[0].startswith("-") and not program[0].startswith("-m")):
        return None
    begins_so = [os.path.abspath(program[0]), *program[1:]][: len(command)]
    is_command = begins_so == [os.path.abspath(command[0]), *command[1:]]
    return [*arguments[:at], *([] if is_command else command), *program]


def _interpreter(path: str) -> tuple[str, str]:
    """Tell interpreters apart: environments (venv) have links of their own to the same file."""
    return os.path.dirname(os.path.abspath(path)), os.path.realpath(path)


def command_before(program: Sequence[str]) -> list[str]:
    """Return the words of this process's command that come before the program, without Python and its options."""
    name, *words = sys.argv
    entry = ["-m", "ebbtide"] if os.path.basename(name) == "__main__.py" else [os.path.abspath(name)]
    return [*entry, *words[: len(words) - len(program)]]


def _status_of(*given: Any, **named: Any) -> int | None:
    """Return the status of a call of ``os._exit``, or None where that refuses it."""
    values = (*given, *named.values())
    if len(values) != 1 or named.keys() - {"status"}:
        return None
    try:
        (found,) = struct.unpack("i", struct.pack("i", values[0]))
    except struct.error:
        return None
    return int(found)


def _ours() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("EBBTIDE_")}


def _in_time(conclude: Callable[[int], int], status: int) -> int:
    """Return what ``conclude`` does, or the status itself where that takes too long."""
    found = [status]

    def run() -> None:
        found[0] = conclude(status)

    thread = threading.Thread(target=run, name="ebbtide-leaving", daemon=True)
    try:
        thread.start()
        thread.join(_MOST_S)
    except BaseException:  # Ctrl-C; or no thread can begin
        return status
    return found[0]
