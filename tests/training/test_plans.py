"""Recording, planning and replay on real training: traces hold what happened, and a wrong plan changes no bit."""

from pathlib import Path

import pytest

from ebbtide.ir.files import load
from ebbtide.ir.occupancy import arena_pages
from ebbtide.ir.plan import Plan
from ebbtide.ir.timeline import SpanKind, Timeline
from ebbtide.ir.trace import Trace
from ebbtide.units import round_up
from tests.helpers import child

SMALLEST = {"EBBTIDE_MIN_STORAGE": "4096"}
NET = "tied-weights"
READ, WRITE, BOTH = 1, 2, 3


def test_a_trace_holds_the_accesses_that_the_model_makes() -> None:
    stories = child.run("cases_plans:known_accesses", env=SMALLEST)
    assert stories["filled"] == [("", WRITE), ("aten::fill_", BOTH), ("aten::add", READ)]  # born before any operator
    assert stories["parameter"] == [("aten::mul", READ), ("aten::add_", BOTH)]
    assert stories["gradient"] == [("aten::mul", WRITE), ("aten::add_", READ)]
    # mul_ turns its number into a tensor by two operators of its own, and uses its operand throughout
    scaled = [("aten::mul_", BOTH), ("aten::_to_copy", BOTH), ("aten::copy_", BOTH)]
    assert stories["optimizer_state"] == [*scaled, ("aten::add_", BOTH), ("aten::add_", READ)]


@pytest.mark.alike
@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD", "Adagrad"])
@pytest.mark.parametrize(("scaled", "layers"), [(False, 1), (False, 2), (True, 2)])
def test_fused_optimizers_write_to_gradients_only_to_unscale_them(optimizer: str, scaled: bool, layers: int) -> None:
    modes, written = child.run("cases_plans:gradients_under_a_fused", optimizer, scaled, layers, env=SMALLEST)
    assert modes == {BOTH if scaled else READ}
    assert (written > 0) == scaled  # as the pages' protection tells


@pytest.mark.alike
@pytest.mark.parametrize("how", ["shifted", "reversed", "inverted", "random"])
def test_a_wrong_plan_costs_time_and_changes_no_bit(how: str) -> None:
    verdict = child.run("cases_plans:compare_under_wrong_plan", NET, how, env=SMALLEST)
    assert verdict.differences == ()
    assert not verdict.budget_violated
    assert verdict.modes[2:] == ("planned",) * 4
    assert sum(verdict.evicted_bytes.values()) > 0
    assert sum(verdict.fetched_bytes.values()) > 0


def test_planners_count_the_pages_that_the_arena_takes() -> None:
    bounds = [2 / 3, 1, 16 / 9, 2, 3, 4, 4.5, 6, 33]  # MiB: where the size of the pages changes, and elsewhere
    sizes = [round(mib * 2**20) + more for mib in bounds for more in (-1, 0, 1)]
    assert child.run("cases_plans:bytes_under", sizes) == [round_up(nbytes, arena_pages(nbytes)) for nbytes in sizes]
    assert [arena_pages(mib << 20) for mib in (1, 2, 3, 4, 5)] == [4096, 2 << 20, 4096, 2 << 20, 2 << 20]


def test_a_saved_plan_is_followed_and_one_for_another_model_is_not(tmp_path: Path) -> None:
    plan, trace = tmp_path / "net.plan", tmp_path / "net.trace"
    child.run("cases_plans:save_plan", NET, str(plan), str(trace), env=SMALLEST)
    assert load(plan, Plan).signature == load(trace, Trace).signature()
    own, said = child.run("cases_plans:compare_under_plan_in", NET, str(plan), env=SMALLEST)
    assert (own.differences, said) == ((), 0)
    assert own.modes[2:] == ("planned",) * 4
    assert sum(own.fetched_bytes.values()) > 0
    other, said = child.run("cases_plans:compare_under_plan_in", "dropout", str(plan), env=SMALLEST)
    assert (other.differences, said) == ((), 2)  # when it was refused, and at the end
    assert other.modes[2:] == ("demand",) * 4
    assert sum(other.fetched_bytes.values()) > 0


def test_another_sequence_length_is_noticed_and_planned_when_it_recurs() -> None:
    modes, same, fetched = child.run("cases_plans:lengths_vary", [64, 64, 48, 64, 48, 64, 48, 48, 64], env=SMALLEST)
    assert same
    assert all(fetched)
    assert modes == ("recorded", "recorded", "demand", "planned", "demand", *("planned",) * 4)


def test_evaluation_between_steps_changes_nothing() -> None:
    differences, modes, fetched = child.run("cases_plans:evaluation_between_steps", env=SMALLEST)
    assert differences == ()
    assert all(fetched)
    assert modes[2:] == ("planned",) * 4


def test_a_state_that_is_loaded_is_planned_like_the_one_before() -> None:
    differences, modes, left = child.run("cases_plans:a_state_that_is_loaded", env=SMALLEST)
    assert differences == ()
    assert modes[-4:] == ("planned",) * 4
    assert left[5] > 0
    assert min(left[-2:]) > left[5] / 2


def test_a_module_compiled_as_one_graph_can_be_planned() -> None:
    modes = child.run("cases_plans:compiled_whole", env=SMALLEST)
    assert modes[:2] == ("recorded", "recorded")
    assert "planned" in modes


def test_arrays_in_a_function_compiled_as_one_graph_hold_what_was_away() -> None:
    found = child.run("cases_plans:arrays_in_compiled_code", env=SMALLEST)
    assert all(found.values()), found


def test_a_planner_that_fails_costs_the_plan_and_not_the_run() -> None:
    verdict, said = child.run("cases_plans:a_planner_that_fails", env=SMALLEST)
    assert (verdict.differences, said) == ((), 1)
    assert verdict.modes[2:] == ("demand",) * 4
    assert sum(verdict.fetched_bytes.values()) > 0


def test_what_a_step_shows_goes_before_a_probe_that_was_far_off() -> None:
    verdict, seen, plans = child.run("cases_plans:a_probe_that_was_far_off", env=SMALLEST)
    assert verdict.differences == ()
    assert verdict.modes[2:] == ("planned",) * 4
    assert sum(verdict.fetched_bytes.values()) > 0
    first, *later = seen
    assert first == (1_000_000, 1_000_000)
    assert len(later) == 1
    assert max(later[0]) > 10_000_000
    assert plans == 1  # of one shape, whatever became of the first


def test_a_better_plan_is_taken_up_at_a_border_while_steps_follow_the_first() -> None:
    found = child.run("cases_plans:a_better_plan_later", 9, True, env=SMALLEST)
    assert found.verdict.differences == ()
    assert found.verdict.modes[2:] == ("planned",) * 7
    assert found.efforts == (1, 8)  # once, and no more
    assert found.forecasts[1] < found.forecasts[0]
    first, later = found.loaded_after
    assert first == 2
    assert first < later < 9
    assert all(nbytes > 0 for nbytes in found.moved[first:])
    assert sum(found.moved[later + 1 :]) / len(found.moved[later + 1 :]) < found.moved[first]  # more room, fewer moves
    assert [text for text in found.said if "steps follow a new plan" in text] != []


def test_a_plan_that_is_not_predicted_to_be_faster_changes_nothing() -> None:
    found = child.run("cases_plans:a_better_plan_later", 8, False, env=SMALLEST)
    assert found.verdict.differences == ()
    assert found.efforts == (1, 8)
    assert len(found.loaded_after) == 1
    assert sum(found.verdict.fetched_bytes.values()) > 0


def test_a_timeline_shows_the_moves_and_stalls_that_the_report_counts(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("step.timeline", "step.trace")]
    report = child.run("cases_plans:save_timeline", *map(str, paths), env=SMALLEST)
    timeline, trace = load(paths[0], Timeline), load(paths[1], Trace)
    last = report.steps[-1]
    assert last.mode == "planned"
    assert timeline.policy == "ebbtide"
    moved = timeline.moved_bytes()
    exact = [span.nbytes == trace.storages[span.storage].nbytes for span in timeline.spans if span.nbytes]
    assert len(exact) > 10
    assert all(exact)
    fetched, written = last.fetched_bytes.total, last.written_bytes.total
    assert 0.9 * fetched - 2**20 <= moved["file->dram"] <= fetched  # what the report counts are whole pages
    assert 0.9 * written - 2**20 <= moved["dram->file"] <= 1.1 * written + 2**20  # and cancelled writes are spans
    stalls = (SpanKind.STALL_ROOM, SpanKind.STALL_LATE, SpanKind.STALL_DEMAND)
    assert abs(timeline.time_ns(*stalls) / 1e9 - last.stall_s.total) < 1e-3
    assert max(level.nbytes for level in timeline.levels) <= report.arena_peak_bytes


def test_the_last_of_many_models_is_planned_as_the_first() -> None:
    shown = child.run("cases_plans:models_one_after_another", env=SMALLEST | {"EBBTIDE_PROGRESS": "off"})
    assert all(modes[-1] == "planned" for modes, _ in shown)
    assert all(evicted > 0 for _, evicted in shown)
