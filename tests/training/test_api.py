"""The Python interface on real training: steps by calls, evaluation, what is kept, and the pipeline."""

from pathlib import Path

import pytest

from tests.helpers import child


@pytest.mark.alike
@pytest.mark.parametrize(("keeps", "evaluates"), [(True, True), (True, False), (False, True), (False, False)])
def test_steps_by_calls_are_planned_and_change_no_bit(keeps: bool, evaluates: bool) -> None:
    plain = child.run("cases_api:plainly", evaluates)
    ours = child.run("cases_api:by_calls", keeps, evaluates)
    assert (ours.weights, ours.losses) == (plain.weights, plain.losses)
    assert ours.modes[-3:] == ("planned",) * 3
    assert ours.evicted_bytes > 0
    assert ours.within_budget
    assert ours.stats["written_bytes"] <= ours.written_bytes  # of the whole run, the steps' and what lies between
    assert 0 < ours.written_in_steps <= ours.written_bytes
    assert ours.always_there == keeps
    assert ours.stats["reserved_bytes.all.peak"] <= ours.stats["reserved_bytes.limit"]
    assert 0 < ours.stats["active_bytes.all.current"] <= ours.stats["reserved_bytes.all.current"]


def test_what_is_kept_stays_also_where_everything_leaves() -> None:
    plain = child.run("cases_api:plainly", False)
    ours = child.run("cases_api:by_calls", True, False, "evict-all")
    assert (ours.weights, ours.losses) == (plain.weights, plain.losses)
    assert ours.always_there
    assert ours.evicted_bytes > 0


def test_the_pipeline_can_be_called(tmp_path: Path) -> None:
    resident, planned, reactive, bound, same = child.run("cases_api:pipeline", str(tmp_path))
    assert bound <= planned <= reactive
    assert resident <= planned
    assert same


def test_what_takes_the_place_of_what_was_kept_can_be_kept_and_others_pins_hold() -> None:
    assert child.run("cases_api:kept_and_gone") == (True, True)


def test_a_percentage_is_of_the_steps_alone() -> None:
    with_one, without = (child.run("cases_api:peak_with_an_evaluation", evaluates) for evaluates in (True, False))
    assert without <= with_one <= 1.05 * without
