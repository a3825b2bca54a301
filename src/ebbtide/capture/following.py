"""Decides who ends steps: the optimizers, until the program does; nobody in evaluation or in a child."""

import os
from typing import Protocol


class Steps(Protocol):
    """The steps of the engine, or those that are recorded."""

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
        """True where a step begins when the pause ends: the pause dropped one that had trained nothing."""

    @property
    def active(self) -> bool:
        """True while the optimizers say where steps end."""
        return self._follows and not self._paused and os.getpid() == self._process

    def stop(self) -> None:
        """Leave the ends of steps to the program from now on. An open step of the optimizers is dropped."""
        if self._follows:
            self._follows = False
            self._steps.end_step(completed=False)

    def pause(self) -> None:
        """Count nothing as a step until ``resume``. An open step ends if it has trained; else it is dropped."""
        self._paused = True
        self.resumes = self._steps.step_is_open and not self.trained
        self._steps.end_step(completed=self.trained)

    def resume(self) -> None:
        self._paused = False
        if self.resumes:
            self._steps.begin_step()
