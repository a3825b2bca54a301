"""Which order of updates steps end with, by what they took and waited for."""

import pytest

from ebbtide.ir.run_report import LEFT, Stall, StepMode, StepReport, Traffic
from ebbtide.update_order.automatic import AutomaticOrder

NOTHING = Traffic(0, 0, 0, 0, 0, 0)


class FakeDeferred:
    def __init__(self) -> None:
        self.defers = True
        self.orders_planned = 1
        self.told = ["each parameter is updated before its next use"]


def step(wall_s: float, stall_s: float = 0.0) -> StepReport:
    return StepReport(wall_s, wall_s, Stall(stall_s, 0, 0), NOTHING, NOTHING, NOTHING, 0, StepMode.PLANNED)


@pytest.fixture
def deferred() -> FakeDeferred:
    return FakeDeferred()


@pytest.fixture
def order(deferred: FakeDeferred) -> AutomaticOrder:
    def start_over() -> None:
        deferred.orders_planned += 1

    return AutomaticOrder(deferred, lambda text: None, start_over)  # type: ignore[arg-type]


def test_steps_that_do_not_wait_keep_the_scripts_order(order: AutomaticOrder, deferred: FakeDeferred) -> None:
    for _ in range(100):
        order.ended(step(1.0, stall_s=0.04), 1)
        assert not deferred.defers


@pytest.mark.parametrize(("then_s", "stays"), [(0.9, True), (0.98, False), (1.5, False)])
def test_updates_stay_deferred_only_where_steps_are_faster(
    then_s: float, stays: bool, order: AutomaticOrder, deferred: FakeDeferred
) -> None:
    for number in range(6):
        assert not deferred.defers
        order.ended(step(5.0 if number < 3 else 1.0, stall_s=0.3), 1)
    assert deferred.defers
    order.ended(step(9.0), None)
    for _ in range(6):
        assert deferred.defers
        order.ended(step(then_s), 2)
    for _ in range(100):
        assert deferred.defers == bool(order.told) == stays
        order.ended(step(9.0, stall_s=5.0), 2)
    assert deferred.orders_planned == (2 if stays else 3)


def test_steps_of_different_plans_are_not_compared(order: AutomaticOrder, deferred: FakeDeferred) -> None:
    for number in range(39):
        order.ended(step(1.0, stall_s=0.5), number // 5)
    for _ in range(100):
        assert not deferred.defers
        order.ended(step(1.0, stall_s=0.5), 50)


def test_what_cannot_be_deferred_is_as_the_script_has_it(order: AutomaticOrder, deferred: FakeDeferred) -> None:
    for _ in range(6):
        order.ended(step(1.0, stall_s=0.5), 1)
    deferred.told.append(f"LBFGS {LEFT}: step is called with a closure")
    assert deferred.defers
    order.ended(step(1.0), 1)
    assert not deferred.defers
    assert order.told == ()
