"""Compares the records that runs left. Pure functions of records and reports."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ebbtide.ir.run_report import KINDS, LEFT, RunReport, StepMode
from ebbtide.verify.record import GONE, Loss, Record

MOVING_KINDS = KINDS[:-1]
"""The kinds that must be seen to move. Storages of no known kind need not exist."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing in which two runs differ. ``step`` counts from 1."""

    step: int
    what: str
    one: str
    other: str


@dataclass(frozen=True, slots=True)
class Moved:
    """The bytes of a kind that left and came back in the steps under the budget. ``exists``: there were such bytes."""

    exists: bool
    evicted_bytes: int
    fetched_bytes: int

    @property
    def proven(self) -> bool:
        return not self.exists or (self.evicted_bytes > 0 and self.fetched_bytes > 0)


def first_difference(one: Record, other: Record) -> Difference | None:
    """Find the first difference in the order of the run: a step's losses, then the state after it if both have one.

    Callers MUST have two records of runs that came to their end.
    """
    steps = [record.ending.steps for record in (one, other) if record.ending is not None]
    for step in range(1, max(steps) + 2):  # the last one follows the last optimizer step
        found = _losses(step, one, other) or next(_states(step, one, other), None)
        if found is not None:
            return found
    if steps[0] != steps[1]:
        return Difference(min(steps) + 1, "number of steps", str(steps[0]), str(steps[1]))
    return None


def _losses(step: int, one: Record, other: Record) -> Difference | None:
    """Compare a step's losses. A loss is recorded with the number of steps that ended before it."""
    left, right = ([loss for loss in record.losses if loss.step == step - 1] for record in (one, other))
    for number, (a, b) in enumerate(zip(left, right, strict=False), start=1):
        if a.digest != b.digest:
            return Difference(step, "loss" if len(left) == 1 else f"loss {number}", _shown(a), _shown(b))
    if len(left) != len(right):
        return Difference(step, "number of backward calls", str(len(left)), str(len(right)))
    return None


def differences(step: int, one: Record, other: Record) -> tuple[str, ...]:
    """Name all that differ of a step's loss and of the state after it. Gradients come first: the others follow them."""
    found = [each for each in (_losses(step, one, other), *_states(step, one, other)) if each is not None]
    return tuple(sorted((each.what for each in found), key=lambda what: not what.startswith(("loss", "gradient"))))


def _states(step: int, one: Record, other: Record) -> Iterator[Difference]:
    if step not in one.states or step not in other.states:
        return
    left, right = one.states[step].digests, other.states[step].digests
    for name in [*left, *(name for name in right if name not in left)]:
        a, b = left.get(name, "absent"), right.get(name, "absent")
        if a != b and GONE not in (a, b):
            yield Difference(step, name, a, b)


def _shown(loss: Loss) -> str:
    return loss.value or loss.digest


def moved(report: RunReport, largest_bytes: Mapping[str, int], min_storage_bytes: int) -> dict[str, Moved]:
    """Return the moved bytes of each kind. Activations count as existing; a plain run shows whether other kinds do.

    Gradients that were freed in the backward pass had no reason to move. Those that wait for deferred updates may have
    had none.
    """
    bounded = [step for step in report.steps if step.mode is not StepMode.RECORDED]
    reordered = any(LEFT not in told for told in report.updates)
    kinds = [kind for kind in MOVING_KINDS if kind != "gradient" or not reordered]
    return {
        kind: Moved(
            kind == "activation" or largest_bytes.get(kind, 0) >= min_storage_bytes,
            sum(getattr(step.evicted_bytes, kind) for step in bounded),
            sum(getattr(step.fetched_bytes, kind) for step in bounded),
        )
        for kind in kinds
    }


def budget_held(report: RunReport) -> bool:
    """Say whether the budget was kept. One that was never in force, or did not bound the training, was not."""
    return report.bounded_as_asked and not report.budget_violated and report.arena_budget_bytes is not None
