"""Who says where steps end: the optimizers, until the program does; nobody while it evaluates or in a child."""

import os
from typing import Protocol


class Steps(Protocol):
    """Whose steps these are: the engine's, or those that are recorded."""

    @property
    def step_is_open(self) -> bool: ...
    def begin_step(self) -> None: ...
    def end_step(self, *, completed: bool) -> None: ...


class Following:
    """Callers MUST set ``trained`` when the optimizers have stepped, and unset it where a step begins."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._process = os.getpid()
        self._follows = True
        self._paused = False
        self.trained = False
        self.resumes = False
        """Whether a step begins where the pause ends: one that had trained nothing was dropped for it."""

    @property
    def active(self) -> bool:
        """Whether the optimizers are listened to."""
        return self._follows and not self._paused and os.getpid() == self._process

    def stop(self) -> None:
        """Steps are told from now on; one of the optimizers that is open is dropped."""
        if self._follows:
            self._follows = False
            self._steps.end_step(completed=False)

    def pause(self) -> None:
        """What runs until ``resume`` is no step's. One that is open ends, if it has trained, else it is dropped."""
        self._paused = True
        self.resumes = self._steps.step_is_open and not self.trained
        self._steps.end_step(completed=self.trained)

    def resume(self) -> None:
        self._paused = False
        if self.resumes:
            self._steps.begin_step()
