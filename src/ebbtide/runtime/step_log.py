"""The reports of a run's steps, a bounded number: a run of millions of steps must not hold a kilobyte for each."""

from collections import deque

from ebbtide.ir.run_report import StepReport

FIRST = 1_000
LAST = 9_000


class StepLog:
    """Keeps the first and the latest steps. Of those between, it keeps their number."""

    def __init__(self, first: int = FIRST, last: int = LAST) -> None:
        self._room_for_first = first
        self._room_for_last = last
        self._first: list[StepReport] = []
        self._last: deque[StepReport] = deque()
        self.left_out = 0

    def __len__(self) -> int:
        """Count all steps, with those left out."""
        return len(self._first) + self.left_out + len(self._last)

    def add(self, step: StepReport) -> None:
        if len(self._first) < self._room_for_first:
            self._first.append(step)
            return
        self._last.append(step)
        if len(self._last) > self._room_for_last:
            self.left_out += 1
            self._last.popleft()

    def latest(self) -> StepReport | None:
        """Return the latest step's report. The progress thread reads it too."""
        return self._last[-1] if self._last else self._first[-1] if self._first else None

    def kept(self) -> tuple[StepReport, ...]:
        return (*self._first, *self._last)
