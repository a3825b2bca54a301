"""Turns recorded steps into schedules that native code follows. It knows no planner: ``ask`` has jobs carried out.

Every step is recorded as long as another may be planned. A step that follows no schedule shows its shape (the first
steps, another sequence length, another branch). When a shape comes a second time, it is planned. The first step after
the warm-up is taken to be steady and planned at once, unless it ends much of the step before and leaves nothing like
it. Steps that follow a schedule are measured now and then (``followed_steps``): their typical times, and the real
cost of their moves where a probe measured the machine. If that is news, the step is planned anew. It is also planned
anew when storages of its plan were freed: what replaced them (a state that a script loaded) is in no plan. So it is
where the budget has become another one. A step that allocates alike follows the schedule, too; where it does more, that
is another shape.

Plans are made one at a time, while steps go on as they did, unrecorded (``pending_plan``). A plan is taken up at the
end of the step in which it came. Dead plans give back what they took: those that were replaced, and those of which more
storages are gone than are left (another model). If there are as many as there may be, a shape that comes twice in a row
takes the place of the one that no step has followed for longest.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter_ns

import ebbtide._torch as _torch
from ebbtide.capture.flops import count_flops
from ebbtide.capture.lines import note_lines
from ebbtide.capture.recording import ends_unlike_it_begins, flop_table, likeness, repeating, step_name
from ebbtide.capture.timeline import traffic
from ebbtide.errors import EbbtideError
from ebbtide.host.process import give_back_freed_memory
from ebbtide.host.signal_handlers import came_from_a_handler
from ebbtide.ir.machine import Machine
from ebbtide.ir.recording import Recording
from ebbtide.ir.run_report import PlanReport
from ebbtide.planning.followed_steps import FollowedSteps, Planned
from ebbtide.planning.pending_plan import PendingPlan, answer_to
from ebbtide.planning.plan_job import Answer, Ask, Followed, Job, PlanningKilledError, planning_bytes
from ebbtide.screen.progress import Activity
from ebbtide.units import format_bytes, format_time, seconds

_WARM_UP_STEPS = 1  # optimizer state is born in the first step
_MOST_PLANS = 16  # that steps may follow; and for one shape, while its storages stay
_MOST_REFUSALS = 3  # a planner may refuse this often before there is a plan: each attempt costs time
_MOST_KILLS = 3  # after so many killed planning processes, a step whose planning was killed is not planned again
_TO_GAIN = 0.005  # a plan within this share of its bound is good: no faster one is wanted
_MOST_SHAPES = 64  # so many are known again, the last ones
_UNLIKE = 3  # so many steps in a row that are unlike their plan, but like each other, are another shape
_OTHER_BUDGET = 8  # a budget that differs by this part is worth another plan
_AT_REST = 40  # steps in which nothing moved: no plan would help the next one, and a recording takes time


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The wishes of a session for its plans.

    ``measures``: the machine is a probe's, so what the steps themselves show replaces it. ``remakes``: storages may be
    made anew. ``fixed``: the plan was named, and no other is made. ``waits``: training stands still while a plan is
    made. ``improves``: the planner may use spare time to find a faster plan. ``save`` gets the files of the first
    plan: the trace's and its own. ``saved`` names what it writes ("plan"), "" for nothing. ``save_timeline`` gets the
    last step that followed the first plan, once, at the end. ``device`` is the accelerator that is bounded.
    """

    measures: bool = False
    remakes: bool = False
    fixed: bool = False
    waits: bool = False
    improves: bool = False
    save: Callable[[bytes, bytes], None] = lambda trace, plan: None
    saved: str = ""
    save_timeline: Callable[[bytes], None] | None = None
    device: str | None = None


class Planning:
    """One session's plans. Callers MUST call ``ended`` after every step that ran to its end.

    ``warn`` tells of trouble, ``say`` of everything else.
    """

    def __init__(
        self,
        ask: Ask,
        machine: Machine,
        wanted: Wanted,
        *,
        warn: Callable[[str], None],
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._ask = ask
        self._machine = machine  # that of the last plan, with what moves have shown
        self._wanted = wanted
        self._warn = warn
        self._say = say
        self._is_too_long = False
        self._shared_bytes = 0  # the current job's
        # A timeline needs a step that followed a plan. Later, a planning process that was killed has the same effect.
        self._waits = wanted.waits or wanted.save_timeline is not None
        self._pending: PendingPlan | None = None  # one at a time; the progress thread reads it
        self._waits_since_ns: int | None = None  # while training stands still for a plan or for planning here
        self._kills = self._refusals = self._places_taken = 0
        self._last: tuple[Recording, str] | None = None  # a step and the planner's name, for the timeline
        self._shapes: dict[str, bool] = {}  # shapes of steps, and whether a plan was asked for
        self._plans: dict[int, Planned] = {}  # plans that steps may follow, by schedule; the first one stays the first
        self._first: int | None = None  # the schedule of the first plan; -1 once it is no more
        self._like = ""  # the shape of the last step that followed no schedule, or did other things than its plan
        self._replaced: PlanReport | None = None  # the plan that was replaced or forgotten last
        self._has_ended = False
        self._steps = 0
        self._at_rest = 0  # the last steps in which nothing moved
        self.followed: int | None = None  # the number of the schedule that the last step followed
        self.ever_followed = False
        self.refusal = ""  # the last reason for which a plan was not made, or not used
        self.unsaved = ""  # files that were not saved as asked, and why; known at the end

    def finish(self, hurries: bool = False) -> None:
        """Save what is asked for, at the end. ``unsaved`` says what cannot be saved. It waits for a plan that is to be
        saved, unless it ``hurries`` (the script was interrupted, say)."""
        self._has_ended = True
        try:
            if self._pending is not None and self._wanted.saved and self._first is None and not hurries:
                self._say(f"the run has ended; it waits for the {self._wanted.saved} that is to be saved")
                self._waits = True
                self.learn(0)
        finally:
            self._end_pending()
        if self._wanted.saved and self._first is None:
            few = f"{self._steps} steps were made, and {_WARM_UP_STEPS + 1} are needed"
            why = few if self._steps <= _WARM_UP_STEPS else "no step under a budget could be recorded"
            self._miss(f"no step was planned, so there is no {self._wanted.saved} to save: {self.refusal or why}")
        if self._wanted.save_timeline is None:
            return
        if self._last is None:
            self._miss("no step followed a plan to its end, so there is no timeline to save")
            return
        recording, planner = self._last
        try:
            self._wanted.save_timeline(answer_to(self._ask(replace(self._job(recording, 0), shown=planner))).timeline)
        except (OSError, ValueError, EbbtideError) as error:
            if came_from_a_handler(error):
                raise
            self._miss(f"the timeline could not be saved: {error}")

    def _miss(self, what: str) -> None:
        self.unsaved = f"{self.unsaved}; {what}" if self.unsaved else what

    def _end_pending(self) -> None:
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        self.refusal = pending.stop()
        if not self._plans and not self._wanted.saved:
            self._say(self.refusal)

    def report(self) -> PlanReport | None:
        """Return the report of the plan that was followed last, or of the one before it if no step was left to follow
        it."""
        if not self._plans:
            return self._replaced
        told = max(reversed(self._plans.values()), key=lambda planned: planned.steps.last).told()
        if told.taken_up_after == self._steps and self._replaced is not None:
            told = self._replaced
        return replace(told, plans=len(self._plans))

    def ended(self, wall_s: float, *, moved: bool) -> bool:
        """Note that a step ended after ``wall_s``, and whether bytes moved. Return whether it followed a schedule."""
        self._steps += 1
        self._at_rest = 0 if moved else self._at_rest + 1
        self.followed = _torch.followed()
        self.ever_followed |= self.followed is not None
        if (planned := self._planned()) is not None:
            planned.steps.ended(wall_s)
            planned.steps.last = self._steps
            if (missed := planned.steps.missed(planned.report)) is not None:
                times, typical_s = missed
                self._say(
                    f"planned steps take {times:.1f} times as long as their forecast: {format_time(typical_s)} each"
                )
        return self.followed is not None

    @property
    def wants_recordings(self) -> bool:
        """True while another step may be planned or is to be shown."""
        if self._wanted.save_timeline is not None or (self._wanted.saved and self._first is None):
            return self._pending is None
        return self._pending is None and not self._gave_up and self._at_rest < _AT_REST

    @property
    def wants_modules(self) -> bool:
        """True where a recording is to name modules: of a step like the last one, which followed no schedule."""
        return self.wants_recordings and self._steps >= _WARM_UP_STEPS and self.followed is None

    @property
    def _gave_up(self) -> bool:
        return not self._plans and (self._kills >= _MOST_KILLS or self._refusals >= _MOST_REFUSALS)

    @property
    def plans(self) -> int:
        """The number of plans that steps may follow."""
        return len(self._plans)

    def activity(self) -> Activity | None:
        """Say what goes on, for the progress thread."""
        pending, since_ns = self._pending, self._waits_since_ns
        if since_ns is not None:
            return Activity(seconds(perf_counter_ns() - since_ns), beside=False)
        if pending is None:
            return None
        so_far_s = seconds(perf_counter_ns() - pending.since_ns)
        return Activity(so_far_s, beside=True, anew=pending.replaces is not None)

    def takes_bytes(self) -> int:
        """Estimate the bytes outside the arena that planning the last step takes or would take."""
        if self._pending is not None:
            return self._pending.needed_bytes
        recording = _torch.take_recording()
        return planning_bytes(recording) if recording.n_ticks else 0

    def learn(self, budget_bytes: int, shared_bytes: int = 0) -> None:
        """Take up the plan that was being made, if it is there. Else it has the last step planned, if that is worth
        it.

        ``budget_bytes`` is the arena's, 0 for none; ``Job`` explains ``shared_bytes``. Whatever goes wrong in planning
        is a warning: the run goes on as it would without a plan. What a signal's handler raises is the script's.
        """
        self._shared_bytes = shared_bytes
        waits = self._waits
        anew = self._pending.replaces is not None if self._pending is not None else self.followed is not None
        try:
            if self._pending is None and self._is_worth_it(budget_bytes):
                waits = True
                with self._warned(anew):
                    self._begin(budget_bytes)
            if self._is_there(waits):
                with self._warned(anew):
                    if self._take_up():
                        give_back_freed_memory()
                        _torch.remeasure_unmanaged()  # planning took memory, and is over
        finally:
            self._waits_since_ns = None

    @contextmanager
    def _warned(self, anew: bool) -> Iterator[None]:
        """Turn whatever goes wrong in the block into a warning."""
        try:
            yield
        except Exception as error:
            if came_from_a_handler(error):
                raise
            again = self._tries_again(error)
            self._refusals += not again
            self.refusal = str(error)
            found = "no plan was found for a step, so steps like it run in demand mode"
            kept = "a step could not be planned anew from what its moves showed, so its plan stays"
            if again:
                found = "a step was not planned; the next one like it will be"
            self._warn(f"{kept if anew else found}: {error}")

    def _is_worth_it(self, budget_bytes: int) -> bool:
        if not self.wants_recordings or self._steps <= _WARM_UP_STEPS or not budget_bytes:
            return False
        planned = self._planned()
        if planned is None:
            return self.followed is None or self._wanted.save_timeline is not None
        unknown = bool(planned.report.links) and planned.steps.traffic is None
        looked_at = unknown or planned.steps.looked_at or _torch.gone() > planned.steps.gone
        return looked_at or self._is_another(budget_bytes, planned) or self._wanted.save_timeline is not None

    def _is_another(self, budget_bytes: int, planned: Planned) -> bool:
        """Tell whether there is another budget than the plan was made for, and another plan may be made for it."""
        was, may = planned.steps.budget_bytes, planned.steps.made < _MOST_PLANS and not self._wanted.fixed
        return may and abs(budget_bytes - was) * _OTHER_BUDGET > was

    def _planned(self) -> Planned | None:
        """Return the plan that the last step followed."""
        return None if self.followed is None else self._plans.get(self.followed)

    def _begin(self, budget_bytes: int) -> None:
        """Have the last step planned, if it was recorded, and if a plan of it is wanted."""
        recording = _torch.take_recording()
        if not recording.n_ticks:
            if not self._is_too_long:
                self._is_too_long = True
                self._say("a step has too many operators for a plan; tensors move where memory is needed")
            return
        if self.followed is None:
            self._learn(recording, budget_bytes)
        elif (planned := self._planned()) is not None:
            self._learn_from(recording, planned, budget_bytes)

    def _is_there(self, waits: bool) -> bool:
        """Tell whether there is a plan to take up. ``waits``: training stands still for it, as long as it may."""
        pending = self._pending
        if pending is None:
            return False
        try:
            return pending.wait(self._waits, self._say) if waits else pending.is_there()
        except BaseException:  # Ctrl-C
            self._pending = None
            self._shapes[pending.like] = False
            pending.asked.stop()
            raise

    def _take_up(self) -> bool:
        """Take up the plan for steps like the recorded one. Return whether steps can follow it."""
        pending = self._pending
        assert pending is not None
        try:
            return self._follow(pending.asked.answer(), pending)
        except PlanningKilledError as error:
            self._kills += 1
            self._waits = True  # there is more room between steps
            if self._tries_again(error):
                self._shapes[pending.like] = False
            raise
        finally:
            self._pending = None  # the progress thread sees a plan before it sees that planning has ended

    def _tries_again(self, error: BaseException) -> bool:
        return isinstance(error, PlanningKilledError) and self._kills < _MOST_KILLS

    def _learn(self, recording: Recording, budget_bytes: int) -> None:
        like = likeness(recording)
        recurs = like in self._shapes or not (self._plans or self._refusals or ends_unlike_it_begins(recording))
        in_a_row, self._like = like == self._like, like
        asked = self._shapes[like] = self._shapes.pop(like, False)
        if len(self._shapes) > _MOST_SHAPES:
            del self._shapes[next(iter(self._shapes))]
        if not recurs or asked or not (len(self._plans) < _MOST_PLANS or in_a_row):
            return
        if len(self._plans) >= _MOST_PLANS:
            self._drop(min(self._plans, key=lambda number: self._plans[number].steps.last))
        self._shapes[like] = True
        steps = FollowedSteps(recording, looks=not self._wanted.fixed)
        steps.budget_bytes = budget_bytes
        self._waits_since_ns = perf_counter_ns()
        answer = self._ask(self._job(recording, budget_bytes))
        self._pending = PendingPlan.of(recording, answer, like, steps, self._steps, keep=self._first is None)

    def _drop(self, number: int) -> None:
        """Forget a plan, so that another can take its place. Its shape may be planned again."""
        dropped = self._plans.pop(number)
        self._replaced = dropped.told()
        _torch.unload_schedule(number)
        self._shapes.pop(dropped.like, None)
        if self._first == number:
            self._first = -1

    def start_over(self) -> None:
        """Forget all plans: later steps are unlike those before, though they may allocate as those did."""
        if self._pending is not None:
            self._pending.asked.stop()
            self._pending = None
        for number in list(self._plans):
            self._drop(number)
        self._shapes.clear()
        self.followed = None

    def _learn_from(self, recording: Recording, planned: Planned, budget_bytes: int) -> None:
        """Learn from a step that followed a schedule: times of its operations and the cost of its moves."""
        steps, like = planned.steps, likeness(recording)
        is_of_saved = self._last is None or self.followed == self._first
        if self._wanted.save_timeline is not None and like == planned.like and is_of_saved:
            self._last = (recording, planned.report.planner)
        if planned.report.links:
            steps.traffic = traffic(recording, self._machine)
        gone = _torch.gone()
        is_unknown = gone > steps.gone or self._is_another(budget_bytes, planned)
        if not (steps.looked_at or is_unknown):
            return
        if like != planned.like:
            self._learn_other(recording, like, steps, budget_bytes)
            return
        if is_unknown:
            steps.gone, steps.budget_bytes = gone, budget_bytes
            if gone > _torch.standing():
                steps.made = 0
            if steps.made < _MOST_PLANS:
                known = Followed(steps.trace, steps.times(), measures=False, anew=True)
                self._plan_anew(recording, planned, budget_bytes, known)
            return
        if not steps.note(recording) or steps.made >= _MOST_PLANS:
            return  # too few are known yet
        anew, measures = steps.are_news(planned.report, self._machine), self._wanted.measures
        plan, steps.plan = steps.plan, b""  # a faster plan is wanted once
        if not anew and not measures and not plan:
            return
        self._plan_anew(recording, planned, budget_bytes, Followed(steps.trace, steps.times(), measures, anew, plan))

    def _learn_other(self, recording: Recording, like: str, steps: FollowedSteps, budget_bytes: int) -> None:
        """Learn from a step that did more than was planned, or less. The next may not, but a few in a row are another
        shape, and take the plan's place."""
        steps.unlike = steps.unlike + 1 if like == self._like else 1
        self._like = like
        may = self._places_taken < _MOST_PLANS and not self._wanted.fixed  # two shapes that take turns do so for ever
        if steps.unlike >= _UNLIKE and may and self.followed is not None:
            self._places_taken += 1
            self._drop(self.followed)
            self.followed = None
            self._shapes.setdefault(like, False)
            self._learn(recording, budget_bytes)

    def _plan_anew(self, recording: Recording, planned: Planned, budget_bytes: int, known: Followed) -> None:
        followed = self.followed
        self._waits_since_ns = perf_counter_ns()
        asked = self._ask(self._job(recording, budget_bytes, known))
        self._pending = PendingPlan.of(
            recording, asked, planned.like, planned.steps, self._steps, followed == self._first, followed
        )

    def _job(self, recording: Recording, budget_bytes: int, followed: Followed | None = None) -> Job:
        flops = flop_table(recording, count_flops)
        known = repeating(recording, _torch.repeats) if self._wanted.remakes else frozenset()
        name, shared_bytes, device = step_name(self._steps), self._shared_bytes, self._wanted.device
        return Job(recording, flops, self._machine, budget_bytes, followed, None, shared_bytes, name, known, device)

    def _follow(self, answer: Answer, pending: PendingPlan) -> bool:
        """Load a new plan, which steps like the recorded one then follow. Return whether there is one."""
        self._machine = answer.machine
        if answer.schedule is None or answer.report is None:
            return False
        report = replace(answer.report, taken_up_after=self._steps)
        number = _torch.load_schedule(answer.schedule)
        pending.steps.made += 1
        was: PlanReport | None = None
        if pending.replaces is not None:
            was = self._replaced = self._plans.pop(pending.replaces).told()
            _torch.unload_schedule(pending.replaces)
        pending.steps.follow(answer.trace, answer.plan if self._may_improve(report, pending) else b"")
        self._plans[number] = Planned(report, pending.like, pending.steps)
        if pending.keep:
            self._first = number
            self._keep(answer)
        self._tell(report, was)
        return True

    def _tell(self, report: PlanReport, was: PlanReport | None) -> None:
        """Tell of the plan, and of what the disk will have to take, before it does. ``was`` is the one it replaces."""
        out = f"{self._machine.tiers[0].name}->"
        written = sum(link.forecast_bytes for link in report.links if link.name.startswith(out))
        forecast = f"{format_time(report.predicted_s)} a step, and {format_bytes(written)} written"
        what, why = "a plan" if was is None else "a new plan", ""
        if was is not None and report.predicted_s > was.predicted_s:
            why = f"; the old plan's forecast of {format_time(was.predicted_s)} was too low"
        follows = "there is" if self._has_ended else f"from step {self._steps + 1} on steps follow"
        self._say(f"{follows} {what}; its forecast: {forecast}{why}")

    def _may_improve(self, report: PlanReport, pending: PendingPlan) -> bool:
        """Tell whether a faster plan is wanted: only after a shape's first, and where enough is left to gain."""
        is_first = pending.replaces is None
        bound_s = report.lower_bound_s or 0.0
        return self._wanted.improves and is_first and report.predicted_s > bound_s * (1 + _TO_GAIN)

    def _keep(self, answer: Answer) -> None:
        try:
            self._wanted.save(answer.trace, answer.plan)
        except OSError as error:
            if came_from_a_handler(error):
                raise
            self._warn(missed := f"the trace or the plan could not be saved: {error}")
            self._miss(missed)
        note_lines(False)  # only the first plan is saved
