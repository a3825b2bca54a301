"""The budget from the session's start to its end. It is recorded where it is in percent, then set, and watched.

A budget in percent is found by running, like tiertrain's profiling step. Step 0 creates the optimizers' state. Step 1
shows the peak of live bytes with it. The arena's budget is a share of the higher peak of the two. It grows with a later
step that peaks higher: layers that are trained from then on, or longer sequences. Left out: what native code is told,
and by whom (``limits``); and the messages about trouble (``shortfalls``, ``bounds``).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic, sleep

import ebbtide._torch as _torch
from ebbtide.budget import shortfalls
from ebbtide.budget.bounds import Bounds, Need, arena_too_small, need_of, tiers_too_small
from ebbtide.budget.limits import Limits
from ebbtide.budget.too_large import StepTooLargeError
from ebbtide.errors import BudgetError
from ebbtide.host import process
from ebbtide.units import format_bytes

RECORDED_STEPS = 2  # the warm-up, which creates optimizer state, and the one that is measured
_POLL_S = 0.005
_VAGUE = 64  # the kernel's own peak may rise by this part without a cause: each processor counts pages for itself
_WORTH_FOLLOWING = 16  # a peak is followed if it is higher than that before by more than this part


class BudgetInForce:
    """A session's budget. ``recording``: a percentage's peak is still to be found. ``is_set``: the budget is in force.

    ``nothing_managed``: no storage was large enough to be bounded. ``limit_fell`` says in words that the machine has
    less than an operation needs, "" where it has enough. ``refused_batch`` says which share would have held a batch
    that exceeded it after steps that had fitted, and was left out.
    """

    def __init__(
        self,
        bounds: Bounds,
        limits: Limits,
        *,
        watchdog_s: float,
        planning_bytes: Callable[[], int],
        say: Callable[[str], None],
        warn: Callable[[str], None],
        slower: Callable[[], Sequence[tuple[str, int]] | None] = lambda: None,
    ) -> None:
        """``slower`` says where bytes can go and how many; None where that is not known."""
        self._bounds = bounds
        self._limits = limits
        self._watchdog_s = watchdog_s
        self._planning_bytes = planning_bytes
        self._say = say
        self._warn = warn
        self._slower = slower
        self.recording = bounds.fraction is not None
        self.is_set = False
        self.nothing_managed = False
        self.limit_fell = self.refused_batch = self._never_set = ""
        self._over_at_start = False
        self._has_fitted = False  # a step, since the budget is set
        self._over_budget_told = False
        self._refusals = 0  # of allocations, until the last step
        self._peak_known = True
        self._peak_before = 0
        self._unbounded_peak_bytes = 0
        self._live_peak = self._reserved_peak = 0  # of the recorded steps

    def start(self, counters: "_torch.Counters", rest_bytes: int) -> None:
        """Start. ``counters`` have an earlier session's trouble, ``rest_bytes`` is what the process has outside the
        arena. Raises BudgetError where there is no room at all.
        """
        self._over_at_start, self._refusals = counters["over_budget"], counters["refused"]
        self._limits.explore(rest_bytes)
        self.is_set = self._bounds.fraction is None and not self._limits.exploring
        self._wait()
        self._reset_peaks()

    def note_step(self, counters: "_torch.Counters", steps: int) -> None:
        """Note the step that ended as number ``steps``. Raises BudgetError when the budget cannot work."""
        self._live_peak = max(self._live_peak, counters["step_live_peak_bytes"])
        if self.recording:
            self._reserved_peak = max(self._reserved_peak, counters["reserved_peak_bytes"])
        elif self._is_outgrown(self._live_peak):
            counters = self._follow(counters)
        self._check(counters)
        if self.recording and steps >= RECORDED_STEPS:  # a later one, where Ctrl-C came as the second ended
            self._set(counters)
        self._has_fitted = self._has_fitted or self.is_set
        self._limits.refused = False  # if one was, the script has left out that step
        self._refusals = counters["refused"]

    def before_update(self, counters: "_torch.Counters", update_bytes: Callable[[], int]) -> None:
        """Look whether the step fits, before an optimizer changes anything. Raises StepTooLargeError if not.

        Then the step counts for nothing, and the script may go on with a smaller batch: its peak raises no percentage.
        Until a step has fitted, peaks are measured anew after it, as a budget in percent has them. ``update_bytes``
        says what the update needs at once, which no step may have shown.
        """
        if self._over_budget_told or not self.is_exceeded(counters) or self._was_refused(counters):
            return
        peak = max(self._live_peak, counters["step_live_peak_bytes"])
        arena, of_peak = self._limits.arena_bytes, self._unbounded_peak_bytes
        need, rest = need_of(counters, peak), counters["unmanaged_bytes"]
        if self._is_outgrown(peak):
            arena, of_peak = self._share(peak), peak
            if need.nbytes <= arena:
                return  # it has that share at the step's end
        if not self._is_too_small(counters, need):
            return  # it is told at the step's end
        error = self._refusal(rest, replace(need, nbytes=max(need.nbytes, update_bytes())), arena, of_peak)
        _torch.reset_trouble()
        if self.is_set and not self._has_fitted:
            self._wait()
            self._reset_peaks()
        elif self.is_set and not self._bounds.process_asked:  # what a size bounds is measured to the end
            self.refused_batch = str(error)
        raise self._limits.refusal(StepTooLargeError(*error.args))

    def _was_refused(self, counters: "_torch.Counters") -> bool:
        """Tell whether the machine had no memory for what exceeded the budget, so that an operator failed and the
        script went on without it. A percentage was exceeded until then."""
        if counters["refused"] == self._refusals:
            return False
        self._refusals = counters["refused"]
        _torch.reset_trouble()
        if self.is_set and not self._bounds.process_asked:
            self.refused_batch = counters["message"]
        return True

    def _is_too_small(self, counters: "_torch.Counters", need: Need) -> bool:
        """Tell whether an operation lacked room because of the user's budget, and not because something did not answer
        or the machine has less now."""
        of_the_machine = self._limits.are_the_machines(counters["unmanaged_bytes"], need)
        return need.nbytes > counters["arena_limit_bytes"] and not of_the_machine

    def is_exceeded(self, counters: "_torch.Counters") -> bool:
        return counters["over_budget"] and not self._over_at_start and not self._limits.exploring

    def too_small(self, counters: "_torch.Counters") -> str:
        """Name a budget that works if what ran after the last step (an evaluation, say) needed more than there was;
        else return ""."""
        need, rest = self._need(counters), counters["unmanaged_bytes"]
        told = self._over_budget_told or self._limits.refused
        if told or not self.is_set or not self.is_exceeded(counters) or not self._is_too_small(counters, need):
            return ""
        return str(self._refusal(rest, need, self._limits.arena_bytes, self._unbounded_peak_bytes))

    def unbounded_peak_bytes(self, counters: "_torch.Counters") -> int:
        """Return the peak of a step's live bytes without a budget, as far as it is known."""
        return self._unbounded_peak_bytes or max(self._live_peak, counters["live_peak_bytes"])

    def process_peak_bytes(self, counters: "_torch.Counters") -> int:
        """Return where the process peaked since the budget is in force, but for memory that is not fast. Below what it
        had peaked at before a percentage, the governor's looks show that: it looks every few milliseconds."""
        peak, seen = process.peak_resident_bytes(), counters["process_peak_bytes"]
        follows = self._bounds.fraction is None or self.recording
        rose = peak > self._peak_before + self._peak_before // _VAGUE
        return min(max(peak - counters["elsewhere_peak_bytes"], seen), peak) if follows or rose else seen

    @property
    def peak_before_bytes(self) -> int:
        """Where the process peaked before the budget was in force."""
        return self._peak_before

    def shortfall(self, steps: int, peak_of_others: int, interrupted: bool) -> str:
        """Say why the budget is not in force, or ""."""
        if self.nothing_managed:
            return shortfalls.NOTHING_MANAGED
        if self.recording and interrupted:
            return shortfalls.INTERRUPTED
        if self.recording:
            return shortfalls.no_peak(self._bounds.fraction or 0, steps, RECORDED_STEPS)
        if not self.is_set or (self._limits.refused and not self._has_fitted):
            return shortfalls.REFUSED if self._limits.refused else self._never_set or shortfalls.BELOW_THE_REST
        share = self._bounds.fraction
        if share is not None and steps <= RECORDED_STEPS:
            return shortfalls.no_step_under(share, steps)
        too_large = self.is_beyond_size(peak_of_others)
        return shortfalls.others_unbounded(peak_of_others, steps) if share is not None or too_large else ""

    def is_beyond_size(self, peak_bytes: int) -> bool:
        """Tell whether a process that peaked there took more than the size that was asked for."""
        return self._bounds.process_asked and peak_bytes > self._limits.tolerated_bytes()

    def _set(self, counters: "_torch.Counters") -> None:
        """Set the asked share of the peak that the recorded steps showed. Where a signal's handler raises amid it, the
        next step sets it."""
        self.recording = False
        try:
            self._set_share(counters)
        except BudgetError:
            raise
        except BaseException:
            self.recording = True
            raise

    def _set_share(self, counters: "_torch.Counters") -> None:
        self._unbounded_peak_bytes = self._live_peak
        arena = self._share(self._live_peak)
        if not arena:
            if not self.nothing_managed:
                self._warn(shortfalls.NOTHING_MANAGED)
            self.nothing_managed = self.recording = True  # a later step may have some
            return
        self.nothing_managed = False
        if (need := self._need(counters)).nbytes > arena:
            error = self._refusal(counters["unmanaged_bytes"], need, arena, self._live_peak)
            self._never_set = str(error)  # which a script may catch, and go on
            raise self._limits.refusal(error)
        self._take(arena)
        self._say(
            f"a step's tensors peak at {format_bytes(self._live_peak)}; from now on they are limited to "
            f"{format_bytes(arena)}"
        )
        self._wait()
        self._reset_peaks()
        self.is_set = True

    def _is_outgrown(self, peak: int) -> bool:
        """Tell whether a step peaked higher than the peak that a percentage is a share of."""
        before, is_a_share = self._unbounded_peak_bytes, self._bounds.fraction is not None
        return is_a_share and self.is_set and peak > before + before // _WORTH_FOLLOWING

    def _follow(self, counters: "_torch.Counters") -> "_torch.Counters":
        """Set the asked share of the higher peak, and return the counters from then on. The step that showed it had
        less. If an operation needed more than that, and has room from now on, the budget was not exceeded."""
        before = self._limits.arena_bytes
        self._unbounded_peak_bytes = self._live_peak
        arena = self._share(self._live_peak)
        self._take(arena)
        self._say(
            f"a step's tensors peak at {format_bytes(self._live_peak)} by now, so their limit is {format_bytes(arena)} "
            "from here on"
        )
        if counters["over_budget"] and not self._over_budget_told and before < self._need(counters).nbytes <= arena:
            _torch.reset_trouble()
        return _torch.counters()

    def _share(self, peak: int) -> int:
        """Return the asked share of a peak."""
        fraction = self._bounds.fraction or 0
        arena = int(peak * fraction)
        if fraction >= 1:  # all of it: add what pages take, so that nothing has to move
            arena = max(arena, int(self._reserved_peak * fraction))
        return arena

    def _take(self, arena: int) -> None:
        slower = self._slower()
        if slower is not None and (error := tiers_too_small(arena, self._live_peak, slower)) is not None:
            raise self._limits.refusal(error)
        self._limits.take_share(arena)

    def _check(self, counters: "_torch.Counters") -> None:
        """Look whether the budget holds. Raises BudgetError where one operation has no room.

        It also raises where the process holds more outside the arena than its whole budget. There are two warnings
        instead: where the watchdog exceeded the budget, and where the machine lowered what there is while the user's
        own size would do.
        """
        need, rest = self._need(counters), counters["unmanaged_bytes"]
        bound = self._limits.arena_bytes, self._unbounded_peak_bytes
        if self._limits.exploring or self.is_beyond_size(rest):
            raise self._limits.refusal(self._refusal(rest, need, *bound))
        if self._over_budget_told or not self.is_exceeded(counters) or self._was_refused(counters):
            return
        self._over_budget_told = True
        if need.nbytes <= counters["arena_limit_bytes"]:
            self._warn(f"the budget was exceeded rather than wait for ever: {counters['message']}")
        elif self._limits.are_the_machines(rest, need):
            self.limit_fell = shortfalls.limit_fell(self._limits.process_bytes, rest, need.operator, need.nbytes)
            self._warn(self.limit_fell)
        else:
            raise self._limits.refusal(self._refusal(rest, need, *bound))

    def _refusal(self, rest: int, need: Need, arena: int, peak: int) -> BudgetError:
        """Make the error. A percentage has ``arena`` bytes, as its share of ``peak``."""
        if self._bounds.process_asked or self.recording:
            return self._limits.too_small_error(rest, need, self._planning_bytes())
        return arena_too_small(arena, peak, need, rest, self._planning_bytes(), self._bounds.limit)

    def _need(self, counters: "_torch.Counters") -> Need:
        return need_of(counters, self._live_peak)

    def _wait(self) -> None:
        """Wait until the arena's pages fit its limit. The watchdog's time ends the wait; the report shows that."""
        deadline = monotonic() + self._watchdog_s
        while monotonic() < deadline:
            counters = _torch.counters()
            if not counters["arena_limit_bytes"] or counters["reserved_bytes"] <= counters["arena_limit_bytes"]:
                return
            sleep(_POLL_S)

    def _reset_peaks(self) -> None:
        """Measure peaks from here. A size is held to the process's own peak, which starts again. With a percentage that
        goes on, so that whoever started the process reads all of it there."""
        _torch.reset_peaks()
        self._peak_before = max(self._peak_before, process.peak_resident_bytes())
        if self._bounds.fraction is None and not process.reset_peak() and self._peak_known:
            self._peak_known = False
            self._warn("the kernel does not let VmHWM be reset, so the process's peak includes what came before")
