"""The session of a trainer's callback: begun with the training, told of its steps, ended with it.

What lies between steps (validation, writing a checkpoint) is then no part of one, so that all steps are alike.

Not every trainer says that an error ended its training. The session is open then, and is ended where another training
begins. A training within another one (in its evaluation, say) uses that one's session. What tells them apart is whether
the function that calls the hooks is still running.
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
        self._callers: list[FrameType] = []  # of ``begin``, until the first step
        self._loop: FrameType | None = None  # the innermost of them that calls for steps, too
        self.session: Session | None = None
        """The last one that was begun here."""

    def begin(self) -> None:
        """Raises what entering a session raises."""
        self.end()  # of a training that an error ended
        self._end_other()
        self._driven = active()
        if self._driven is None:
            self._driven = self.session = Session(self._fast, **self._named).start()
            self._begun[self.session] = weakref.ref(self)
            self._callers = list(_frames(sys._getframe(1)))

    def begin_step(self) -> None:
        """One that an error left open is dropped."""
        self._drop_step()
        if self._callers:
            now = set(_frames(sys._getframe(1)))
            self._loop = next((frame for frame in self._callers if frame in now), None)
            self._callers = []
        if self._driven is not None and active() is self._driven:  # not in a forked child
            self._step = self._driven.step()
            self._step.__enter__()

    def end_step(self) -> None:
        """Raises BudgetError, when the session has ended, for a budget that cannot hold the step."""
        step, self._step = self._step, None
        if step is None:
            return
        try:
            step.__exit__(None, None, None)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """A session that was active before goes on."""
        self._drop_step()
        self._callers, self._loop = [], None
        driven, self._driven = self._driven, None
        if driven is not None and driven is self.session:
            self.session.close()

    def _end_other(self) -> None:
        """The session of another training, which an error has ended."""
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
    """From the innermost outwards."""
    while top is not None:
        yield top
        top = top.f_back
