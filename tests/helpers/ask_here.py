"""Stands for the process that plans: the job is carried out at once, in this process."""

from collections.abc import Callable

from ebbtide.planning.plan_job import Answer, Ask, Job


class Done:
    """A job that has ended."""

    def __init__(self, work: Callable[[Job], Answer], job: Job) -> None:
        self._answer: Answer | Exception
        try:
            self._answer = work(job)
        except Exception as error:
            self._answer = error

    def wait(self, most_s: float | None) -> bool:
        return True

    def steps_go_on(self) -> bool:
        return True

    def answer(self) -> Answer:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def stop(self) -> None:
        pass


def ask_here(work: Callable[[Job], Answer]) -> Ask:
    return lambda job: Done(work, job)
