"""Runs an unmodified script or module as ``__main__`` in this process, inside a session.

It behaves as under ``python``: ``sys.argv``, ``sys.path[0]``, ``__file__``, ``__spec__``, exit statuses, tracebacks
without our frames, and a ``__main__`` that multiprocessing's spawn can find again.
"""

import atexit
import io
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import FrozenImporter, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, module_from_spec
from itertools import dropwhile
from types import CodeType, ModuleType, TracebackType
from typing import Any

from ebbtide.errors import INTERRUPTED, BudgetError, SettingError
from ebbtide.ir.run_report import RunReport
from ebbtide.session.ending import end_together
from ebbtide.session.leaving import seen
from ebbtide.session.library_threads import LIBRARIES, taken_as_the_script_says
from ebbtide.session.recorder import Recorder
from ebbtide.session.session import Session
from ebbtide.terminal import tell

_NOT_BOUNDED = "the run was not bounded as asked"


@dataclass(frozen=True, slots=True)
class Program:
    """The program to run: its code, and the module that becomes ``__main__``."""

    code: CodeType
    module: ModuleType
    arguments: tuple[str, ...]

    @property
    def file(self) -> str | None:
        """The script, or the module's file."""
        return self.module.__dict__.get("__file__")


def find_program(command: Sequence[str]) -> Program:
    """Find the program of ``script.py ARGS`` (also of a directory or a zip file) or ``-m module ARGS``, and set
    ``sys.path[0]``. Raises SettingError."""
    if command[0].startswith("-m"):
        rest = [command[0][2:], *command[1:]] if command[0] != "-m" else list(command[1:])
        if not rest:
            raise SettingError("-m needs the name of a module")
        return _find_module(rest[0], rest[1:])
    if (packed := _packed(command[0])) is not None:
        sys.path[0] = _full(command[0])  # also where the user forbids others, as ``python`` does
        return _program_of(packed, command)
    return _find_script(command[0], command[1:])


def run_program(
    program: Program, session: Session, quiet: bool, *, command: Sequence[str] = (), goes_on: bool = False
) -> int:
    """Run it and return the exit status: the script's own; or 3 when it succeeded, but was not bounded or planned as
    asked, or its report was not saved. What only evaluated and was not bounded is told, and has not failed.

    ``command`` came before the program. ``goes_on``: so does this process. Raises the BudgetError that ended the
    script, or another rank's, once the report is written and the summary shown.
    """
    process, refusal, before = os.getpid(), None, threading.enumerate()
    session._reads.append(program.file)

    def conclude(status: int) -> int:
        session._write_report()
        try:
            return _conclude(session, status, None, quiet)
        except BudgetError as error:
            tell(f"ebbtide: error: {error}")
            return error.exit_code

    with session:
        session._begin_program()
        try:
            with seen(conclude, command):
                status = _execute(program, session._ranks.ask)
                if goes_on:
                    _tell_of_threads(before)
                else:
                    _end_as_python_does(status)
            if status is INTERRUPTED:
                session._hurry()
            if status == 0 or not quiet:
                session._leave_trouble()
        except BudgetError as error:
            status, refusal = error.exit_code, error
        except KeyboardInterrupt:  # a second one, while the first was told
            status = INTERRUPTED
            session._hurry()
    if os.getpid() != process:
        return status  # a child that the script forked; the session is its parent's
    return _conclude(session, status, refusal, quiet)


def _conclude(session: Session, status: int, refusal: BudgetError | None, quiet: bool) -> int:
    """Show what became of the run, and return its exit status, or raise."""
    report = session.report()
    failed = _failed(report) if status == 0 else ""
    evaluated = failed == _NOT_BOUNDED and not session._trained
    failed = "" if evaluated else failed
    told = end_together(session, report, status, refusal, failed, quiet)
    if session._unwritten and (status == 0 or not quiet):
        tell(f"ebbtide: {'warning' if status else 'error'}: {session._unwritten}")
    if told is not None:
        raise told
    why = "see `trouble` above" if report.trouble and not quiet else report.trouble or "see the report"
    if evaluated:
        tell(f"ebbtide: warning: {_NOT_BOUNDED}: {why}")
    if failed:
        tell(f"ebbtide: error: {failed}: {why}")
        return BudgetError.exit_code
    return BudgetError.exit_code if status == 0 and session._unwritten else status


def _end_as_python_does(status: int) -> None:
    """Wait for the program's threads and call its exit functions, which wait for its processes. All may train."""
    if status is INTERRUPTED:
        on_interrupt(signal.default_int_handler)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if status is INTERRUPTED:
        on_interrupt(signal.SIG_IGN)


def _tell_of_threads(before: Sequence[threading.Thread]) -> None:
    """Warn of threads that outlive the program, in a process that goes on."""
    if names := [thread.name for thread in threading.enumerate() if thread not in before and not thread.daemon]:
        tell(f"ebbtide: warning: {', '.join(names)}: threads of the program go on, and nothing bounds them from here")


def record_program(
    program: Program, recorder: Recorder, stop: bool, quiet: bool = False, *, command: Sequence[str] = ()
) -> int:
    """Run it and return the exit status: the script's own; or 1 when it succeeded and not every step was recorded.
    ``stop`` ends the script once they are. ``command`` came before the program."""
    process = os.getpid()
    recorder._reads.append(program.file)

    def conclude(status: int) -> int:
        if not quiet or not (status or recorder.done):
            ended = "; the script was ended after it (--keep-running lets it go on)" if stop and recorder.done else ""
            tell(f"ebbtide: {recorder.summary()}{ended}")
        return status or int(not recorder.done)

    with recorder:
        if stop:
            recorder.stop_when_done()
        with seen(conclude, command):
            status = _execute(program)
            _end_as_python_does(status)
    return conclude(status) if os.getpid() == process else status


def _failed(report: RunReport) -> str:
    """Say what was asked for and did not come about, or ""."""
    if report.budget_violated:
        return "the budget was exceeded"
    if not report.bounded_as_asked:
        return _NOT_BOUNDED
    return "" if report.planned_as_asked else "the run was not planned as asked"


def _execute(program: Program, why: Callable[[], BudgetError | None] = lambda: None) -> int:
    """Run the code. If it fails, ``why`` finds the error with which another rank ended, and that is raised."""
    sys.modules["__main__"] = program.module
    program.module.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.argv = list(program.arguments)
    _leave_names_to_the_script()
    try:
        with taken_as_the_script_says():
            exec(program.code, program.module.__dict__)
    except SystemExit as error:
        if error.code and (told := why()) is not None:
            raise told from None
        return _exit_status(error.code)
    except BudgetError:  # whoever runs the program tells it
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            on_interrupt(signal.SIG_IGN)  # until the session has ended
        elif (told := why()) is not None:
            raise told from None
        error.with_traceback(_below_launcher(error.__traceback__, program.code))
        status = _tell_as_python_does(error)
        return INTERRUPTED if status == 1 and type(error) is KeyboardInterrupt else status  # not of a class of its own
    return 0


def _tell_as_python_does(error: BaseException) -> int:
    """Show the error that ended the program and return the exit status. The script's own hook may be gone, or fail."""
    sys.last_type = type(error)
    sys.last_value = error
    sys.last_traceback = error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    if not hasattr(sys, "excepthook"):
        _write("sys.excepthook is missing")
        sys.__excepthook__(type(error), error, error.__traceback__)
        return 1
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as ended:
        return _exit_status(ended.code)
    except BaseException as failed:
        _write("Error in sys.excepthook:")
        failed.__context__ = None if failed.__context__ is error else failed.__context__
        below = failed.__traceback__.tb_next if failed.__traceback__ is not None else None  # this function
        sys.__excepthook__(type(failed), failed.with_traceback(below), below)
        _write("\nOriginal exception was:")
        sys.__excepthook__(type(error), error, error.__traceback__)
    return 1


def _leave_names_to_the_script() -> None:
    """Have it find its own modules where Ebbtide has loaded others of the same names (``html``, ``click``)."""
    loaded = {name.partition(".")[0] for name in sys.modules} - {"__main__", "ebbtide", *LIBRARIES}
    for name in loaded - set(sys.builtin_module_names):
        own = PathFinder.find_spec(name, sys.path[:1])
        here = getattr(sys.modules.get(name), "__spec__", None)
        if own is None or own.loader is None or here is None or own.origin == here.origin:
            continue
        if FrozenImporter.find_spec(name) is None:  # else Python has loaded it before any script
            for taken in [one for one in sys.modules if one.partition(".")[0] == name]:
                del sys.modules[taken]


def on_interrupt(action: Any) -> None:
    """Set what another Ctrl-C does, once one has ended the script: no traceback. A handler of the script's stays."""
    ours = (signal.default_int_handler, signal.SIG_IGN)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) in ours:
        signal.signal(signal.SIGINT, action)


def _exit_status(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    _write(code)
    return 1


def _write(text: object) -> None:
    stream = sys.stderr or sys.__stderr__
    if stream is not None:
        with suppress(Exception):  # as in Python: a text that cannot be written changes nothing
            print(text, file=stream)


def _below_launcher(trace: TracebackType | None, code: CodeType) -> TracebackType | None:
    below = trace
    while below is not None and below.tb_frame.f_code is not code:
        below = below.tb_next
    return below or trace


def require_script(command: Sequence[str]) -> None:
    """Raise the SettingError of ``find_program`` where a script cannot be read. A module is not looked for."""
    if not command[0].startswith("-m") and _packed(command[0]) is None:
        _read_script(command[0], command[1:])


def _read_script(path: str, arguments: Sequence[str]) -> bytes:
    """Read it. Raises SettingError where it cannot be read, or is no script of Python's."""
    try:
        with io.open_code(_full(path)) as file:
            source = file.read()
    except OSError as error:
        raise SettingError(f"cannot open {path}: {error.strerror}{_without_python(path, arguments)}") from error
    if b"\0" in source:  # a program, or compiled code
        raise SettingError(f"{path} is no Python script{_without_python(path, arguments)}")
    if path.endswith(".sh"):
        raise SettingError(f"{path} is a shell script: name the Python script that it starts")
    return source


def _packed(path: str) -> ModuleSpec | None:
    """Find the ``__main__`` of a directory or a zip file; None if the path is neither, or has none."""
    spec = PathFinder.find_spec("__main__", [_full(path)])
    return None if spec is None or spec.loader is None else spec


def _full(path: str) -> str:
    """Return the path as ``python`` gives it: it ends as before."""
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


def _without_python(path: str, arguments: Sequence[str]) -> str:
    """Say how the command goes on where Python's own name stands before the script; else return ""."""
    if not re.fullmatch(r"python[0-9.]*", os.path.basename(path)):
        return ""
    own = dropwhile(lambda option: option.startswith("-") and not option.startswith("-m"), arguments)
    return f": leave out `{path}`, as in `{shlex.join(['ebbtide', 'run', *own])}`"


def _find_script(path: str, arguments: Sequence[str]) -> Program:
    full = _full(path)
    source = _read_script(path, arguments)
    _lead_path(os.path.dirname(os.path.realpath(full)))
    module = ModuleType("__main__")
    module.__dict__.update(__file__=full, __cached__=None, __loader__=SourceFileLoader("__main__", full))
    return Program(_compiled(source, full), module, (path, *arguments))


def _find_module(name: str, arguments: Sequence[str]) -> Program:
    _lead_path(os.getcwd())
    before, sys.argv = sys.argv, ["-m", *arguments]  # what packages around it see, as under Python
    try:
        spec = _spec_to_run(name)
    finally:
        sys.argv = before
    return _program_of(spec, (spec.origin or name, *arguments))


def _program_of(spec: ModuleSpec, arguments: Sequence[str]) -> Program:
    code = spec.loader.get_code(spec.name) if spec.loader is not None and hasattr(spec.loader, "get_code") else None
    if code is None:
        raise SettingError(f"{spec.name} has no code that can run as a script")
    module = module_from_spec(spec)
    module.__name__ = "__main__"
    return Program(code, module, tuple(arguments))


def _spec_to_run(name: str) -> ModuleSpec:
    try:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        raise SettingError(f"no module named {error.name}") from error
    except (ImportError, ValueError) as error:
        raise SettingError(f"-m {name}: {error}") from error
    if spec is None:
        raise SettingError(f"no module named {name}, or a package without __main__")
    return spec


def _lead_path(directory: str) -> None:
    """Put first what ``python`` puts first; nothing where the user forbids it (``-P``, PYTHONSAFEPATH)."""
    if not sys.flags.safe_path:
        sys.path[0] = directory


def _compiled(source: bytes, path: str) -> CodeType:
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        sys.excepthook(SyntaxError, error.with_traceback(None), None)
        raise SystemExit(1) from None
