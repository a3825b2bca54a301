"""The session: a stretch of a program in which training stays within a budget.

    with ebbtide.Session(fast="8GiB") as session:
        for batch in loader:
            with session.step():
                ...
        print(session.summary())

Without a size it stays within what the machine and its containers have free. Without ``session.step()`` the session
follows the optimizers: ``with ebbtide.Session(fast="8GiB"): trainer.train()``.

The model and the optimizer may exist before. There is one session at a time, and each is used once. Storages that it
managed stay valid afterwards.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from html import escape
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from ebbtide.budget.bounds import Bounds, choose_bounds, usable_bytes
from ebbtide.errors import BudgetError, SessionError, SettingError
from ebbtide.host import process
from ebbtide.host.free_memory import Follower, free_memory
from ebbtide.host.native import require_native
from ebbtide.host.place import Place, place
from ebbtide.host.spill import choose_spill_directories
from ebbtide.host.tiers import same_memory
from ebbtide.ir.run_report import FORMAT, VERSION, RunReport
from ebbtide.machines import find_machine
from ebbtide.planning.policies import Files, asks_child, decider_policy, is_planned, machine_for, takes_effort
from ebbtide.report.summary import render_summary
from ebbtide.runtime.ranks import Ranks
from ebbtide.screen.notebook import warnings_go_to
from ebbtide.screen.progress import Observation, Progress
from ebbtide.session.driven import Driven, check_writable, tell_disabled
from ebbtide.session.kept_report import KeptReport, at_this_moment
from ebbtide.settings import Named, ProgressMode, Settings, UpdateOrder
from ebbtide.terminal import warn_user
from ebbtide.units import Budget, format_bytes, option
from ebbtide.whole_file import is_special

if TYPE_CHECKING:
    import torch

    from ebbtide.ir.machine import Machine
    from ebbtide.planning.planning import Planning
    from ebbtide.runtime.engine import Engine


class Session(Driven):
    """Trains within ``fast``: bytes for the whole process ("8GiB"), or a share of the step's live bytes ("25%").
    Without it, the session takes what the machine and its containers have free.

    Every setting of docs/api.md can be named. ``spill`` is the directory that evicted storages go to, or several that
    share them (on disks of their own). ``report`` is a JSON file written at the end. ``progress`` is "auto", "plain",
    "verbose" (a line for every step) or "off". ``policy`` decides what moves when: a planner's name, by default
    "ebbtide", or without a plan an online policy's, such as "demand" or "lru". All else comes from ``settings``, by
    default the ``EBBTIDE_...`` variables. Raises SettingError for what cannot be understood. Entering raises
    SpillError, PlatformError, or BudgetError.
    """

    def __init__(
        self,
        fast: str | int | Budget | None = None,
        *,
        settings: Settings | None = None,
        **named: Unpack[Named],
    ) -> None:
        super().__init__()
        if not isinstance(settings, Settings | None):
            raise SettingError(f"settings={settings!r:.80} is not understood; accepted: an ebbtide.settings.Settings")
        chosen = (settings or Settings.from_environment()).but(fast, **named)
        self._place = place()
        self._ranks = Ranks(self._place)
        self._settings = _with_own_files(chosen, self._place)
        self._report_path = _own_path(Path(chosen.report).absolute(), self._place) if chosen.report else None
        self._unwritten = ""  # that the report could not be written, and why
        self._engine: Engine | None = None
        self._progress: Progress | None = None
        self._follower: Follower | None = None
        self._kept: KeptReport | None = None
        self._total_steps: int | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_ours():
            return
        told = None
        if error is not None:
            self._hurry()
            if isinstance(error, Exception) and not isinstance(error, BudgetError):
                told = self._ranks.ask()  # a collective fails where another rank ended
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._write_report()
        if told is not None:
            raise told from error

    @property
    def total_steps(self) -> int | None:
        """The steps that the script is to make, if it says so. ``ebbtide top`` shows how much is left. Setting it to
        what is no number raises SettingError."""
        return self._total_steps

    @total_steps.setter
    def total_steps(self, steps: float | None) -> None:
        try:
            self._total_steps = None if steps is None else int(steps + 0)
        except (TypeError, ValueError, OverflowError) as error:
            complaint = f"total_steps={steps!r:.80} is not understood; accepted: a number of steps, or None"
            raise SettingError(complaint) from error

    def _write_report(self) -> None:
        if self._kept is not None:
            self._kept.close()
        if self._report_path is None:
            return
        try:
            self.report().write(self._report_path)
        except OSError as error:  # what was trained is worth more
            self._unwritten = f"the report could not be saved in {self._report_path}: {error.strerror or error}"
            if self._engine is None or not self._engine.is_told_on:
                self._warn(self._unwritten)

    def keep(self, what: "torch.nn.Module | torch.Tensor | Iterable[torch.nn.Module | torch.Tensor]") -> None:
        """Keep parameters and buffers of a module, or tensors, in memory until the session ends.

        Call it in the session's block, once they exist, and before the first step. Plans that are made from then on
        count them as in use all the time. What replaces them later is not kept. Raises SessionError, and SettingError
        for anything else.
        """
        self._require_now("keep()", within=True)
        if self._engine is not None:
            self._engine.keep(what)

    def memory_stats(self) -> dict[str, int]:
        """Return bytes and counts of this moment, by the names of ``torch.cuda.memory_stats`` where it has one.

        ``allocated`` is what tensors asked for, wherever it is. ``reserved`` is the memory held for them, and
        ``active`` the part of it under live tensors. ``evicted``, ``fetched`` and ``written`` are totals since the
        process began. Before the session starts there are none; after it they go on, as the budget does.
        """
        return {} if self._engine is None else self._engine.memory_stats()

    def report(self) -> RunReport:
        """Return what is known now; at the end, the whole run's report."""
        if self._process is None:
            raise SessionError("a session has nothing to report before it is entered")
        return _empty_report() if self._engine is None else self._engine.report()

    def summary(self) -> str:
        """Return the report as text that a person reads."""
        return render_summary(self.report())

    def __repr__(self) -> str:
        state = "running" if self._is_ours() else "not begun" if self._process is None else "ended"
        return f"<ebbtide.Session, {state}>"

    def _repr_html_(self) -> str:
        """Show the session in a notebook's cell."""
        if self._process is None:
            return escape(repr(self))
        report = self.report()
        if self._is_ours() and not report.bounded_as_asked and not report.budget_violated:
            return escape(f"<ebbtide.Session, running, its budget not in force yet; {len(report.steps)} steps so far>")
        return f"<pre>{escape(render_summary(report))}</pre>"

    def _begin_program(self) -> None:
        """Note that the process has run nothing but Ebbtide so far."""
        if self._engine is not None:
            self._engine.begin_program()

    def _hurry(self) -> None:
        """Make the end wait for no plan that is being made, even one that was to be saved."""
        if self._engine is not None:
            self._engine.hurries = True

    def _leave_trouble(self) -> None:
        """Leave it to the caller to say why the run was not as asked: no warning at the end."""
        if self._engine is not None:
            self._engine.is_told_on = True

    @property
    def _trained(self) -> bool:
        return self._engine is not None and self._engine.trained

    def _check(self) -> None:
        files = Files.of(self._settings)
        written = {"trace": files.save_trace, "plan": files.save_plan, "timeline": files.save_timeline}
        check_writable(
            {"report": self._report_path, **written}, [*self._reads, self._settings.plan, self._settings.machine]
        )

    def _start(self) -> None:
        if self._settings.disable:
            tell_disabled()
        elif self._settings.device is not None:
            self._start_on_device(self._settings.device)
        else:
            self._start_here()

    def _start_here(self) -> None:
        """Bound the memory of this process. Raises SettingError for a wish that is a device's."""
        if self._settings.host_bytes is not None:
            raise SettingError(f"{option('host')} is for {option('device')}: leave it out")
        bounds = self._bounds()
        self._progress = Progress(self._observe, self._shown(), name=self._place.name())
        warnings_go_to(self._progress.area)
        if bounds.warning:
            self._warn(bounds.warning)
        spill = choose_spill_directories(self._settings.spill)
        require_native()
        from ebbtide.runtime.arena_engine import ArenaEngine
        from ebbtide.runtime.start_arena import Run, spill_of_this_process

        chosen, spill = spill, spill_of_this_process(spill, bool(self._settings.spill))
        measured = spill if all(directory.is_dir() for directory in spill) else chosen  # an open file outlives its own
        planning = self._planning(lambda: machine_for(self._settings, measured, self._say))
        run = Run(self._settings, bounds, spill, decider_policy(self._settings.policy))
        engine = ArenaEngine(run, planning, self._ranks, say=self._say, warn=self._warn)
        self._begin_with(engine)
        for tier in self._settings.tiers:
            if said := same_memory(tier.node):
                self._warn(said)
        if bounds.said:
            self._say(bounds.said)
        self._say(f"tensors that leave memory are written to {', '.join(map(str, spill))}")
        self._progress.start()
        if bounds.process_bytes:
            named = bounds.size is not None
            self._follower = Follower(lambda: self._usable_bytes(named), engine.limit_changed, self._say)
            self._follower.start()
        self._keep_report()

    def _start_on_device(self, name: str) -> None:
        """Bound an accelerator's memory in place of the process's. Raises SettingError for what does not go with it."""
        chosen = self._settings
        refuse_unfit_for_a_device(chosen)
        require_native()
        from ebbtide.host.accelerator import device_named, require_device_events
        from ebbtide.probe.device import machine_of_device
        from ebbtide.runtime import device_engine

        device = device_named(name)
        require_device_events(device)
        host_bytes = chosen.host_bytes or usable_bytes(free_memory(ranks=self._place.local_size)) // 2
        free = device_engine.free_bytes(device)
        decider = decider_policy(chosen.policy)
        spill = choose_spill_directories(chosen.spill) if chosen.spill else ()
        run = device_engine.DeviceRun(chosen, device, chosen.fast, free, host_bytes, spill, decider)
        self._progress = Progress(self._observe, self._shown(), name=self._place.name())
        warnings_go_to(self._progress.area)

        def machine() -> "Machine":
            if chosen.machine:
                return find_machine(chosen.machine)
            return machine_of_device(device, free, host_bytes, spill, chosen.io_threads, self._say)

        planning = self._planning(machine, str(device))
        self._begin_with(device_engine.DeviceEngine(run, planning, say=self._say, warn=self._warn))
        below = f", and then to {', '.join(map(str, spill))}" if spill else ""
        self._say(f"tensors that leave {device} go to at most {format_bytes(host_bytes)} of pinned host memory{below}")
        self._progress.start()
        self._keep_report()

    def _begin_with(self, engine: "Engine") -> None:
        try:
            engine.start()
        except BaseException:
            engine.stop()
            raise
        self._driver = self._engine = engine

    def _budget(self) -> Budget | None:
        """Return this rank's budget."""
        if self._settings.fast_node is None:
            return self._settings.fast
        if (share := self._settings.fast_node // self._place.local_size) == 0:
            raise SettingError(f"{self._place.local_size} ranks have no share of {self._settings.fast_node} bytes")
        return Budget(nbytes=share)

    def _bounds(self) -> Bounds:
        asked, arena = self._budget(), self._settings.arena_bytes
        ranks = self._place.local_size
        return choose_bounds(asked, arena, process.memory_limit(), free_memory(ranks=ranks), ranks)

    def _usable_bytes(self, size_is_named: bool) -> int:
        """Return this rank's share of what there is at this moment."""
        ranks = self._place.local_size
        if not size_is_named:
            return usable_bytes(free_memory(ranks=ranks))
        limit = process.memory_limit()
        return usable_bytes(process.MemoryLimit(limit.nbytes // ranks, limit.source))

    def _planning(self, machine: "Callable[[], Machine]", device: str | None = None) -> "Planning | None":
        """Make the planning for that machine; None for an online policy. Raises SettingError for a policy, plan or
        machine that is not there."""
        from ebbtide.planning.planning import Planning, Wanted

        chosen, files = self._settings, Files.of(self._settings)
        if not is_planned(chosen.policy):
            files.check_unused(chosen.machine)
            return None
        is_named = files.plan is not None
        wanted = Wanted(
            measures=chosen.machine is None and not is_named,
            remakes=chosen.remake.on,
            fixed=is_named,
            waits=chosen.wait_for_plan or is_named,
            improves=takes_effort(chosen.policy),
            save=files.save,
            saved=files.saved_with_a_plan(),
            save_timeline=files.timeline_saver(),
            device=device,
        )
        return Planning(asks_child(chosen.policy, files.plan), machine(), wanted, warn=self._warn, say=self._say)

    def _close(self) -> None:
        try:
            self._ranks.close()
            if self._follower is not None:
                self._follower.close()
            if self._progress is not None:
                self._progress.close()
        finally:
            try:
                super()._close()
            finally:
                warnings_go_to(None)

    def _observe(self) -> Observation:
        """Observe the engine, which exists before progress starts."""
        assert self._engine is not None
        return self._engine.observe()

    def _keep_report(self) -> None:
        self._kept = KeptReport(
            self.report, lambda: at_this_moment(self._observe(), self.total_steps), self._report_path
        )
        self._kept.start()

    def _shown(self) -> ProgressMode:
        """Show progress of a node's first rank only, unless each is asked to show its own."""
        mode = self._settings.progress
        others = self._place.local_rank > 0 and mode is ProgressMode.AUTO
        return ProgressMode.OFF if others else mode

    def _warn(self, text: str) -> None:
        name = self._place.name()
        warn_user(f"{name}: {text}" if name else text)

    def _say(self, text: str) -> None:
        if self._progress is not None:
            self._progress.say(text)


def refuse_unfit_for_a_device(chosen: Settings) -> None:
    """Raise SettingError for a wish that does not go with a device's."""
    order = chosen.optimizer is not UpdateOrder.AS_WRITTEN
    names = {"fast-node": chosen.fast_node, "tier": chosen.tiers, "optimizer": order}
    if unfit := [option(name) for name, value in names.items() if value]:
        raise SettingError(f"{', '.join(unfit)} does not go with {option('device')} yet: leave it out")


def _with_own_files(chosen: Settings, here: Place) -> Settings:
    """Give each of several ranks files of its own for what it saves, as with reports."""
    if here.size == 1:
        return chosen
    saved = {name: getattr(chosen, name) for name in ("save_trace", "save_plan", "save_timeline")}
    own = {name: str(_own_path(Path(path), here)) for name, path in saved.items() if path}
    return replace(chosen, **own)  # type: ignore[arg-type]


def _own_path(path: Path, here: Place) -> Path:
    """Name a rank's own file: out.json becomes out.0.json, out.1.json, ... One such as /dev/null serves all."""
    return path if here.size == 1 or is_special(path) else path.with_name(f"{path.stem}.{here.rank}{path.suffix}")


def _empty_report() -> RunReport:
    return RunReport(
        format=FORMAT,
        version=VERSION,
        policy="disabled",
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
