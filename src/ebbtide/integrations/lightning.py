"""A callback for the ``Trainer`` of ``lightning`` or ``pytorch_lightning``, whichever the program has imported.

from ebbtide.integrations.lightning import EbbtideCallback

trainer = Trainer(..., callbacks=[EbbtideCallback(fast="25%")])
"""

import sys
from contextlib import suppress
from typing import Any, Unpack

from ebbtide.integrations.trainer_session import TrainerSession
from ebbtide.session.session import Session
from ebbtide.settings import Named
from ebbtide.units import Budget

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


class EbbtideCallback(Callback):  # type: ignore[misc]
    """Trains within ``fast``. All arguments are those of ``ebbtide.Session``.

    A step is an optimizer step with all batches that it accumulates. Validation and checkpoints lie between steps.
    Under ``ebbtide run``, the command's session and budget are used. Training raises what a session raises. The logger
    gets the last step's ``ebbtide/...`` metrics.
    """

    def __init__(self, fast: str | int | Budget | None = None, **named: Unpack[Named]) -> None:
        self._training = TrainerSession(fast, named)
        self._steps_before: int | None = None  # the optimizers' steps when the present step began

    @property
    def session(self) -> Session | None:
        """The session of the present or the last training. None before the first, and under ``ebbtide run``."""
        return self._training.session

    def on_train_start(self, trainer: Any, _: Any) -> None:
        self._training.begin()
        self._steps_before = None
        with suppress(Exception):  # infinite, or unknown
            self._training.expects(int(trainer.estimated_stepping_batches) - trainer.global_step)

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if self._steps_before is None:
            self._training.begin_step()
            self._steps_before = trainer.global_step

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        if trainer.global_step != self._steps_before:
            self._steps_before = None
            self._training.end_step()
            every = trainer.log_every_n_steps  # 0: never
            if trainer.loggers and every and trainer.global_step % every == 0:
                module.log_dict(self._training.metrics(), on_step=True, on_epoch=False)

    def on_train_end(self, *_: Any) -> None:
        self._training.end()

    def on_exception(self, *_: Any) -> None:
        self._training.end()
