"""A callback for Hugging Face's ``Trainer`` and those made of it, such as TRL's.

from ebbtide.integrations.transformers import EbbtideCallback

trainer = Trainer(..., callbacks=[EbbtideCallback(fast="25%")])
"""

from typing import Any, Unpack

from transformers import TrainerCallback

from ebbtide.integrations.trainer_session import TrainerSession
from ebbtide.session.session import Session
from ebbtide.settings import Named
from ebbtide.units import Budget


class EbbtideCallback(TrainerCallback):  # type: ignore[misc]
    """Trains within ``fast``. All arguments are those of ``ebbtide.Session``.

    A step is an optimizer step with all that it accumulates. Evaluation and checkpoints lie between steps. Under
    ``ebbtide run``, the command's session and budget are used. Training raises what a session raises.
    """

    def __init__(self, fast: str | int | Budget | None = None, **named: Unpack[Named]) -> None:
        self._training = TrainerSession(fast, named)

    @property
    def session(self) -> Session | None:
        """The session of the present or the last training. None before the first, and under ``ebbtide run``."""
        return self._training.session

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._training.begin()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._training.begin_step()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._training.end_step()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._training.end()
