"""The session: a stretch of a program in which training stays within a budget.

    with ebbtide.Session(fast="8GiB") as session:
        for batch in loader:
            with session.step():
                ...
        print(session.summary())

Without a budget, a session can record a step and do nothing else: ``Session(trace="step.trace")``. Nothing moves then.

The model and the optimizer may exist before. One session at a time, each used once; what it managed stays valid after.
"""

import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ebbtide.errors import EbbtideWarning, SessionError, SettingError
from ebbtide.machines import find_machine
from ebbtide.policies import Files, decider_policy, is_planned, machine_for, planner_from, planner_named
from ebbtide.report.run_report import FORMAT, VERSION, RunReport
from ebbtide.report.summary import render_summary
from ebbtide.runtime import process
from ebbtide.runtime.bounds import choose_bounds
from ebbtide.runtime.native import require_native
from ebbtide.runtime.progress import Progress
from ebbtide.runtime.spill import choose_spill_directories
from ebbtide.settings import ProgressMode, Settings
from ebbtide.units import Budget, parse_budget

if TYPE_CHECKING:
    from ebbtide.recorders.steps import StepRecorder
    from ebbtide.runtime.engine import Engine
    from ebbtide.runtime.planning import Planning

_lock = threading.Lock()
_active: "Session | None" = None
_told_disabled = False


class Session:
    """Trains within ``fast``: bytes for the whole process ("8GiB"), or a share of the step's live tensors ("25%").

    ``spill`` is the directory that moved storages go to, or several that share them (on disks of their own),
    ``report`` a JSON file written at the end, ``progress`` "auto", "plain" or "off". ``policy`` is how to decide what
    moves when: a planner's name, by default "ebbtide", or for no plan an online policy's, such as "demand" or "lru".
    ``trace`` is the file that a recorded step is written to: the one that is planned or, without ``fast``, the third,
    while plain PyTorch allocates. What is not given comes from ``settings``, by default the ``EBBTIDE_...`` variables.
    Raises SettingError for what cannot be understood; entering raises SpillError, PlatformError, or BudgetError.
    """

    def __init__(
        self,
        fast: str | int | Budget | None = None,
        spill: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        report: str | os.PathLike[str] | None = None,
        progress: str | None = None,
        policy: str | None = None,
        settings: Settings | None = None,
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        chosen = settings or Settings.from_environment()
        try:
            if fast is not None:
                chosen = replace(chosen, fast=parse_budget(fast))
            if progress is not None:
                chosen = replace(chosen, progress=ProgressMode(progress))
        except ValueError as error:
            raise SettingError(str(error)) from error
        if spill is not None:
            chosen = replace(chosen, spill=_names(spill))
        if report is not None:
            chosen = replace(chosen, report=os.fspath(report))
        if policy is not None:
            chosen = replace(chosen, policy=policy)
        if trace is not None:
            chosen = replace(chosen, save_trace=os.fspath(trace))
        self._settings = chosen
        self._report_path = _own_path(Path(chosen.report).absolute()) if chosen.report else None
        self._engine: Engine | None = None
        self._recorder: StepRecorder | None = None  # in the engine's place
        self._progress: Progress | None = None
        self._used = False
        self._stepping = False

    def __enter__(self) -> "Session":
        global _active
        if self._used:
            raise SessionError("a session is used once; make a new one")
        _check_writable("report", self._report_path)
        _check_writable("trace", Path(self._settings.save_trace) if self._settings.save_trace else None)
        with _lock:
            if _active is not None:
                raise SessionError(
                    "a session is already active, started by an enclosing `with ebbtide.Session(...)` or by "
                    "`ebbtide run`; sessions do not nest, so leave that one first or use it"
                )
            self._used = True
            _active = self
        try:
            if self._settings.disable:
                _tell_disabled()
            else:
                self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_ours():
            self._close()
            if self._report_path is not None:
                self.report().write(self._report_path)

    @property
    def recorded(self) -> bool:
        """Whether a session without a budget has recorded all it was to record."""
        return self._recorder is not None and self._recorder.done

    @contextmanager
    def step(self) -> Iterator[None]:
        """One training step: forward, backward, ``optimizer.step()``. A body that raises ends the step cleanly.

        Raises BudgetError at the end of a step that the budget cannot hold.
        """
        if not self._is_ours() or self._stepping:
            raise SessionError("a step belongs inside its session's `with` block, and not inside another step")
        driver = self._engine or self._recorder
        if driver is None:
            yield
            return
        self._stepping = True
        completed = False
        try:
            driver.begin_step()
            yield
            completed = True
        finally:
            self._stepping = False
            driver.end_step(completed=completed)

    def step_with_optimizer(self, *, stop_when_recorded: bool = False) -> None:
        """For a script that knows of no session: steps end where an outermost ``optimizer.step`` ends.

        ``stop_when_recorded`` ends the program (SystemExit) when a session without a budget has recorded its steps.
        """
        if self._recorder is not None:
            self._recorder.follow_optimizer(stop_when_done=stop_when_recorded)
        elif self._engine is not None:
            self._engine.follow_optimizer()

    def report(self) -> RunReport:
        """What is known now, or at the end what there was."""
        if not self._used:
            raise SessionError("a session has nothing to report before it is entered")
        if self._engine is None:
            return _empty_report("disabled" if self._recorder is None else "record")
        return self._engine.report()

    def summary(self) -> str:
        """The report as text a person reads; of a session without a budget, what it recorded."""
        if self._recorder is not None:
            return self._recorder.summary()
        return render_summary(self.report())

    def _start(self) -> None:
        if self._settings.save_trace is not None and self._settings.fast is None and self._settings.arena_bytes is None:
            self._start_recorder(Path(self._settings.save_trace).absolute())
            return
        bounds = choose_bounds(self._settings.fast, self._settings.arena_bytes, process.memory_limit())
        if bounds.warning:
            _warn(bounds.warning)
        spill = choose_spill_directories(self._settings.spill)
        require_native()
        from ebbtide.runtime.engine import Engine

        planning = self._planning(spill)

        decider = decider_policy(self._settings.policy)
        engine = Engine(bounds, self._settings, spill, planning, decider, self._say, _warn)
        self._progress = Progress(engine.observe, self._settings.progress)
        try:
            engine.start()
        except BaseException:
            engine.stop()
            raise
        self._engine = engine
        if bounds.fraction is not None:
            self._say("two steps run unbounded: the first creates optimizer state, the second shows the peak")
        self._progress.start()

    def _start_recorder(self, path: Path) -> None:
        require_native()
        steps = (self._settings.trace_step, self._settings.trace_steps)
        if self._settings.fake:
            from ebbtide.recorders.fake import fake_recorder

            machine = find_machine(self._settings.machine) if self._settings.machine else None
            self._recorder = fake_recorder(machine, path, *steps)
        else:
            from ebbtide.recorders.plain import plain_recorder

            self._recorder = plain_recorder(path, *steps)
        self._recorder.start()

    def _planning(self, spill: Sequence[Path]) -> "Planning | None":
        """None for an online policy. Raises SettingError for a policy, a plan or a machine that is not there."""
        from ebbtide.runtime.planning import Planning

        policy, files = self._settings.policy, Files.of(self._settings)
        if not is_planned(policy):
            files.check_unused()
            return None
        planner = planner_named(policy) if files.plan is None else planner_from(files.plan)
        measures = self._settings.machine is None and files.plan is None
        machine = machine_for(self._settings, spill)
        return Planning(planner, machine, files.save, _warn, measures, files.timeline_saver())

    def _close(self) -> None:
        global _active
        try:
            if self._progress is not None:
                self._progress.close()
            driver = self._engine or self._recorder
            if driver is not None:
                driver.stop()
        finally:
            with _lock:
                _active = None

    def _is_ours(self) -> bool:
        """False in a forked child, where nothing of the session runs, and after the end."""
        return _active is self

    def _say(self, text: str) -> None:
        if self._progress is not None:
            self._progress.say(text)


def _names(spill: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    return (os.fspath(spill),) if isinstance(spill, str | os.PathLike) else tuple(os.fspath(name) for name in spill)


def _forget_in_child() -> None:
    global _active, _lock
    _active = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


def _own_path(path: Path) -> Path:
    """Of several ranks, as torchrun starts them, each writes its own: out.json becomes out.0.json, out.1.json, ..."""
    if os.environ.get("WORLD_SIZE", "1") == "1" or "RANK" not in os.environ:
        return path
    return path.with_name(f"{path.stem}.{os.environ['RANK']}{path.suffix}")


def _check_writable(what: str, path: Path | None) -> None:
    """Before the run, not after hours of it."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK)):
        raise SettingError(f"the {what} cannot be written to {path}: name a file in a writable directory")


def _warn(text: str) -> None:
    warnings.warn(text, EbbtideWarning, stacklevel=2)


def _tell_disabled() -> None:
    global _told_disabled
    if not _told_disabled:
        _told_disabled = True
        _warn("EBBTIDE_DISABLE is set: nothing is managed and nothing is bounded")


def _empty_report(policy: str) -> RunReport:
    return RunReport(
        format=FORMAT,
        version=VERSION,
        policy=policy,
        fast_bytes=None,
        arena_budget_bytes=None,
        process_peak_bytes=process.peak_resident_bytes(),
        unbounded_peak_bytes=0,
        arena_peak_bytes=0,
        arena_mean_bytes=0,
        budget_violated=False,
        trouble="",
        adopted_bytes=0,
        outside_bytes=0,
        outside=(),
        plan=None,
        steps=(),
    )
