"""The session of a trainer's callback. It begins with the training, hears of its steps, and ends with it.

Validation and writing a checkpoint lie between steps and are part of none, so all steps are alike.

Not every trainer tells that an error ended its training. The session then stays open until another training begins,
which ends it. A training within another one (in its evaluation, say) uses that one's session. The two cases differ in
one thing: whether the function that calls the hooks is still running.
"""

import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import ClassVar

from ebbtide.session.driven import Driven, Step, active
from ebbtide.session.session import Session
from ebbtide.settings import Named
from ebbtide.units import Budget


class TrainerSession:
    """A new ``Session`` for each training, or the one that is active when it begins, as under ``ebbtide run``."""

    _begun: ClassVar[weakref.WeakKeyDictionary[Session, "weakref.ref[TrainerSession]"]] = weakref.WeakKeyDictionary()

    def __init__(self, fast: str | int | Budget | None, named: Named) -> None:
        self._fast = fast
        self._named = named
        self._driven: Driven | None = None
        self._step: Step | None = None
        self._callers: list[FrameType] = []  # the callers of ``begin``, until the first step
        self._loop: FrameType | None = None  # the innermost of them that calls for steps, too
        self.session: Session | None = None
        """The last session that began here."""

    def begin(self) -> None:
        """Begin a training. Raises what entering a session raises."""
        self.end()  # a training that an error ended
        self._end_other()
        self._driven = active()
        if self._driven is None:
            self._driven = self.session = Session(self._fast, **self._named).start()
            self._begun[self.session] = weakref.ref(self)
            self._callers = list(_frames(sys._getframe(1)))

    def expects(self, steps: int) -> None:
        """Note that so many more steps are to come; trainers that do not know say -1."""
        if steps > 0 and isinstance(self._driven, Session) and self._driven._engine is not None:
            self._driven.total_steps = self._driven._observe().steps + steps

    def metrics(self) -> dict[str, float]:
        """Return what a log shows of the last step (``Observation.metrics``)."""
        driven = self._driven
        there = isinstance(driven, Session) and driven._engine is not None and active() is driven
        return driven._observe().metrics() if there and isinstance(driven, Session) else {}

    def begin_step(self) -> None:
        """Begin a step. One that an error left open is dropped."""
        self._drop_step()
        if self._callers:
            now = set(_frames(sys._getframe(1)))
            self._loop = next((frame for frame in self._callers if frame in now), None)
            self._callers = []
        if self._driven is not None and active() is self._driven:  # not in a forked child
            self._step = self._driven.step()
            self._step.__enter__()

    def end_step(self) -> None:
        """End the step. For a budget that cannot hold it, this ends the session and raises BudgetError."""
        step, self._step = self._step, None
        if step is None:
            return
        try:
            step.__exit__(None, None, None)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the training. A session that was active before goes on."""
        self._drop_step()
        self._callers, self._loop = [], None
        driven, self._driven = self._driven, None
        if driven is not None and driven is self.session:
            self.session.close()

    def _end_other(self) -> None:
        """End the session of another training, which an error has ended."""
        left = active()
        begun = self._begun.get(left) if isinstance(left, Session) else None
        if left is None or begun is None:
            return
        other = begun()
        if other is None:
            left.close()
        elif not other._goes_on():
            other.end()

    def _goes_on(self) -> bool:
        tops = sys._current_frames().values()  # of all threads
        return self._loop is not None and any(self._loop in _frames(top) for top in tops)

    def _drop_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            error = RuntimeError("the training ended in the middle of a step")
            step.__exit__(RuntimeError, error, None)


def _frames(top: FrameType | None) -> Iterator[FrameType]:
    """Return the frames from the innermost outwards."""
    while top is not None:
        yield top
        top = top.f_back
