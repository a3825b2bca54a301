"""What lives until its successor is there ([Note: elders] in ``search.idle_table``) leaves under a plan, too."""

from pathlib import Path

import pytest

from ebbtide.errors import InfeasibleBudgetError
from ebbtide.ir.native import Verb
from ebbtide.ir.occupancy import arena_pages, needed_bytes
from ebbtide.ir.trace import Storage, StorageKind
from ebbtide.planners import plan
from ebbtide.simulator import simulate
from ebbtide.simulator.lowering import lower
from tests.helpers import child
from tests.helpers.make_steps import PAGE, R, W, disk, step


@pytest.mark.alike
@pytest.mark.parametrize("budget", ["26%", "30%", "40%"])
def test_gradients_of_samples_that_live_into_the_next_step_are_planned(budget: str) -> None:
    trained = child.run("cases_elders:gradients_of_samples", budget)
    assert trained.same
    assert trained.modes[2:] == ("planned",) * 4
    assert trained.within_budget
    assert trained.evicted_bytes > 4 * 16 << 20  # both large ones leave in every step
    assert trained.fetched_bytes > 0


def test_a_state_that_is_carried_from_step_to_step_leaves_in_one_and_returns_in_the_next(tmp_path: Path) -> None:
    left, returned = child.run("cases_elders:carried_state", str(tmp_path))
    assert left > 0
    assert returned > 0


def test_what_lives_into_the_next_step_leaves_and_is_not_named_once_its_successor_is_born() -> None:
    """Ten ticks. Storage 0 is born at tick 2 and lives until tick 5 of the next step; storage 1 needs its room."""
    kept = Storage(64 * PAGE, StorageKind.ACTIVATION, 2, 15, allocation=0)
    other = Storage(64 * PAGE, StorageKind.ACTIVATION, 7, 9, allocation=0)
    trace = step([10**9] * 10, [kept, other], [(0, 2, W), (0, 4, R), (1, 7, W), (1, 8, R)])
    budget = int(needed_bytes(trace, arena_pages).max())
    found = plan("ebbtide", trace, disk(), budget)
    assert found.budget_bytes == budget == 64 * PAGE
    machine = disk().with_budget(budget)
    schedule = lower(found, trace, machine)
    assert set(schedule.storage.tolist()) == {0}
    assert all(4 < tick <= 7 for tick in schedule.tick[schedule.verb == Verb.DROP])
    assert simulate(schedule, trace, machine, arena_pages).rescues == 0


def test_a_use_by_an_elder_keeps_it_where_it_is() -> None:
    """Used again at tick 3 of the next step, when its successor is there: no command could bring it back."""
    kept = Storage(64 * PAGE, StorageKind.ACTIVATION, 2, 15, allocation=0)
    trace = step([10**9] * 10, [kept], [(0, 2, W), (0, 4, R), (0, 13, R)])
    with pytest.raises(InfeasibleBudgetError):
        plan("ebbtide", trace, disk(), 64 * PAGE)
    assert len(lower(plan("ebbtide", trace, disk(), 128 * PAGE), trace, disk())) == 0
