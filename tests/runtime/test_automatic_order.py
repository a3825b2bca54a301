"""Which order of updates steps end with, by what they took and waited for."""

import pytest

from ebbtide.ir.run_report import LEFT, Stall, StepMode, StepReport, Traffic
from ebbtide.update_order.automatic import AutomaticOrder

NOTHING = Traffic(0, 0, 0, 0, 0, 0)


class FakeDeferred:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.told: list[str] = []

    def install(self) -> None:
        self.calls.append("install")
        self.told.append("each parameter is updated before its next use")

    def remove(self) -> None:
        self.calls.append("remove")


def step(wall_s: float, stall_s: float = 0.0) -> StepReport:
    return StepReport(wall_s, wall_s, Stall(stall_s, 0, 0), NOTHING, NOTHING, NOTHING, 0, StepMode.PLANNED)


@pytest.fixture
def deferred() -> FakeDeferred:
    return FakeDeferred()


@pytest.fixture
def order(deferred: FakeDeferred) -> AutomaticOrder:
    return AutomaticOrder(deferred, lambda text: None)  # type: ignore[arg-type]


def test_steps_that_do_not_wait_keep_the_scripts_order(order: AutomaticOrder, deferred: FakeDeferred) -> None:
    for _ in range(100):
        order.ended(step(1.0, stall_s=0.04), 1)
    assert deferred.calls == []


@pytest.mark.parametrize(("then_s", "stays"), [(0.9, True), (0.98, False), (1.5, False)])
def test_updates_stay_deferred_only_where_steps_are_faster(
    then_s: float, stays: bool, order: AutomaticOrder, deferred: FakeDeferred
) -> None:
    for number in range(6):
        assert deferred.calls == []
        order.ended(step(5.0 if number < 3 else 1.0, stall_s=0.3), 1)
    assert deferred.calls == ["install"]
    order.ended(step(9.0), None)
    for _ in range(6):
        order.ended(step(then_s), 2)
    assert deferred.calls == (["install"] if stays else ["install", "remove"])
    assert bool(order.told) == stays
    for _ in range(100):
        order.ended(step(9.0, stall_s=5.0), 2)
    order.remove()
    assert deferred.calls == ["install", "remove"]


def test_steps_of_different_plans_are_not_compared(order: AutomaticOrder, deferred: FakeDeferred) -> None:
    for number in range(39):
        order.ended(step(1.0, stall_s=0.5), number // 5)
    assert deferred.calls == []
    for _ in range(100):
        order.ended(step(1.0, stall_s=0.5), 50)
    assert deferred.calls == []


def test_what_cannot_be_deferred_is_as_the_script_has_it(order: AutomaticOrder, deferred: FakeDeferred) -> None:
    for _ in range(6):
        order.ended(step(1.0, stall_s=0.5), 1)
    deferred.told.append(f"LBFGS {LEFT}: step is called with a closure")
    order.ended(step(1.0), 1)
    assert deferred.calls == ["install", "remove"]
    assert order.told == ()
