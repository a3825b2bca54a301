"""The bounds that native code keeps at this moment: the user's budget, as far as the machine allows it.

Two threads change them: the one that trains, and the one that follows what the machine and its containers have. A lock
covers each change together with the call that tells native code. So the last bounds that it hears are the last ones
made. Nothing else calls ``set_limits``. Left out: the first bounds (``bounds``), and who looks at the machine
(``free_memory``).
"""

import threading
from collections.abc import Callable
from math import inf
from time import monotonic

import ebbtide._torch as _torch
from ebbtide.budget.bounds import TOLERANCE_PERCENT, Bounds, Need, process_too_small
from ebbtide.errors import BudgetError
from ebbtide.units import format_bytes

_WORTH_TELLING = 4  # a bound that changes by less than this part is followed without a word
_TELLS_EVERY_S = 30.0  # at most this often


class Limits:
    """``process_bytes`` is the process's bound now (0 for none), ``most_process_bytes`` the most that it ever was.

    ``arena_bytes`` is the arena's own (0 for none). ``exploring``: the user's size cannot work and is not in force. One
    step runs within what there is, and only shows which size works. ``refused``: an error has told the user so.
    """

    def __init__(self, bounds: Bounds, say: Callable[[str], None]) -> None:
        self._bounds = bounds
        self._say = say
        self._lock = threading.Lock()
        self._told_process_bytes, self._told_at_s = bounds.process_bytes, -inf
        self.process_bytes = self.most_process_bytes = bounds.process_bytes
        self.arena_bytes = bounds.arena_bytes
        self.exploring = False
        self.refused = False

    def explore(self, rest_bytes: int) -> None:
        """Explore if the process holds more without any tensor (``rest_bytes``) than the size that bounds it.

        Raises BudgetError with a lower bound where there is no more memory than that.
        """
        bounds = self._bounds
        if not bounds.process_asked or rest_bytes < bounds.process_bytes:
            return
        if bounds.there_bytes <= rest_bytes:
            raise self.refusal(process_too_small(bounds.process_bytes, rest_bytes, None, 0, bounds.limit))
        with self._lock:
            self.exploring = True
            self.process_bytes = bounds.there_bytes
            self._tell_native()
        self._say(
            f"the budget of {format_bytes(bounds.process_bytes)} is less than the process holds without its tensors: "
            f"one step runs within {format_bytes(bounds.there_bytes)} to find the smallest that works"
        )

    def take_share(self, arena_bytes: int) -> None:
        """Set the arena's own bound, once a percentage is known in bytes."""
        with self._lock:
            self.arena_bytes = arena_bytes
            self._tell_native()

    def follow(self, there_bytes: int) -> None:
        """Follow what the process can have in all from now on. It takes no more of it than was asked for."""
        with self._lock:
            if self.exploring or not self._bounds.process_bytes:
                return
            allowed = min(self._bounds.size or there_bytes, there_bytes)
            if allowed != self.process_bytes:
                self.process_bytes = allowed
                self.most_process_bytes = max(self.most_process_bytes, allowed)
                self._tell_native()
            much = abs(allowed - self._told_process_bytes) > self._told_process_bytes // _WORTH_TELLING
            worth = much and monotonic() - self._told_at_s > _TELLS_EVERY_S
            if worth:
                self._told_process_bytes, self._told_at_s = allowed, monotonic()
        if worth:
            self._say(f"free memory changed: the limit is now {format_bytes(allowed)}")

    def end(self) -> None:
        """The session has ended: what it managed may take all that the process could have when it began."""
        if self._bounds.there_bytes:
            with self._lock:
                self.arena_bytes, self.process_bytes = 0, max(self.process_bytes, self._bounds.there_bytes)
                self._tell_native()

    def tolerated_bytes(self) -> int:
        """Return the highest peak with which the process counts as within its bound."""
        return self.most_process_bytes + self.most_process_bytes * TOLERANCE_PERCENT // 100

    @property
    def fast_bytes(self) -> int | None:
        """The highest bound of the process; None where the process was not to be bounded, or the size did not work."""
        return self.most_process_bytes if self._bounds.process_asked and not self.exploring else None

    def exceeded_by(self, peak_bytes: int) -> int:
        """Return how far the process peaked above its bound; 0 where that is tolerated or there is no such bound."""
        over = self.fast_bytes is not None and peak_bytes > self.tolerated_bytes()
        return peak_bytes - self.most_process_bytes if over else 0

    def are_the_machines(self, rest_bytes: int, need: Need) -> bool:
        """Tell whether an operation lacks room because of the machine, and not because of the user's size."""
        if self.arena_bytes and need.nbytes > self.arena_bytes:
            return False
        if self.arena_bytes and not self._bounds.process_asked:
            return True
        return self.process_bytes < self.most_process_bytes and rest_bytes + need.nbytes <= self.most_process_bytes

    def too_small_error(self, rest_bytes: int, need: Need, planning_bytes: int) -> BudgetError:
        """Make the error for the user's size, or for what was taken in its place. It names a size that works."""
        tried = self._bounds.process_bytes if self.exploring else self.process_bytes
        return process_too_small(tried, rest_bytes, need, planning_bytes, self._bounds.limit)

    def refusal(self, error: BudgetError) -> BudgetError:
        """Return the error, which callers raise: it tells all there is to tell."""
        self.refused = True
        return error

    def _tell_native(self) -> None:
        _torch.set_limits(arena_bytes=self.arena_bytes, process_bytes=self.process_bytes)
