"""A callback for Hugging Face's ``Trainer`` and those made of it, such as TRL's.

from ebbtide.integrations.transformers import EbbtideCallback

trainer = Trainer(..., callbacks=[EbbtideCallback(fast="25%")])
"""

import sys
from typing import Any, Unpack

from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler

import ebbtide._objects as _objects
from ebbtide.integrations.trainer_session import TrainerSession
from ebbtide.session.session import Session
from ebbtide.settings import Named
from ebbtide.units import Budget


class _Metrics(TrainerCallback):  # type: ignore[misc]
    """Adds ``ebbtide/...`` to what is logged. It stands before those who report and the user's callbacks, and again
    after them: there it takes its entries out, since what is logged may be what ``evaluate`` returns."""

    def __init__(self, training: TrainerSession) -> None:
        self._training = training
        self._logs: dict[str, Any] | None = None  # that have its entries
        self._added: dict[str, Any] = {}

    def on_log(self, *_: Any, logs: dict[str, Any] | None = None, **__: Any) -> None:
        if logs is None:
            return
        if logs is self._logs:
            self._logs = None
            for name in self._added:
                logs.pop(name, None)
        else:
            self._logs, self._added = logs, self._training.metrics()
            logs.update(self._added)


def _handler_of(callback: TrainerCallback) -> Any:
    """Return the list's owner that calls this callback at the moment; the Trainer gives no other way to it."""
    frame = sys._getframe(1)
    while (up := frame.f_back) is not None:
        frame = up
        for found in _objects.variables_of(frame, False):
            if isinstance(found, CallbackHandler) and callback in found.callbacks:
                return found
    return None


class EbbtideCallback(TrainerCallback):  # type: ignore[misc]
    """Trains within ``fast``. All arguments are those of ``ebbtide.Session``.

    A step is an optimizer step with all that it accumulates. Evaluation and checkpoints lie between steps. Under
    ``ebbtide run``, the command's session and budget are used. Training raises what a session raises. What the Trainer
    logs has the last step's ``ebbtide/...`` metrics.
    """

    def __init__(self, fast: str | int | Budget | None = None, **named: Unpack[Named]) -> None:
        self._training = TrainerSession(fast, named)

    @property
    def session(self) -> Session | None:
        """The session of the present or the last training. None before the first, and under ``ebbtide run``."""
        return self._training.session

    def on_train_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        self._training.begin()
        self._training.expects(state.max_steps - state.global_step)
        if (handler := _handler_of(self)) is not None:
            others = [each for each in handler.callbacks if not isinstance(each, _Metrics)]
            metrics = _Metrics(self._training)
            handler.callbacks = [metrics, *others, metrics]  # a new list: this one is being gone through

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._training.begin_step()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._training.end_step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._training.end()
