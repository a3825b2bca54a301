"""What is made anew has the same bits, whatever happens to it or to what it is made of meanwhile."""

from pathlib import Path

import pytest

from tests.helpers import child
from tests.helpers.make_steps import disk
from tests.training.making_anew import IN_PIECES, LOOKS, MORE

SLOW = disk(5 * 10**7, 5 * 10**7).to_toml()
"""To run an operator again costs less than any copy."""
PIECES = {"EBBTIDE_REMAKE": "check", "EBBTIDE_POLICY": "demand", "EBBTIDE_PIECE": "2MiB"}


@pytest.fixture
def planned(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "machine.toml"
    file.write_text(SLOW)
    return {"EBBTIDE_REMAKE": "check", "EBBTIDE_MACHINE": str(file)}


@pytest.mark.parametrize(
    ("more", "least_bytes"),
    [
        ({}, 0),
        ({"EBBTIDE_POLICY": "capuchin"}, 0),
        ({"EBBTIDE_POLICY": "checkmate"}, 0),
        ({"EBBTIDE_POLICY": "chen"}, 0),
        # Each hidden layer has two pieces; all that is smaller, and could be made anew, has 4 MiB together.
        ({"EBBTIDE_PIECE": "2MiB"}, 4 << 20),
    ],
    ids=["ours", "capuchin", "checkmate", "chen", "in pieces"],
)
def test_a_planned_training_makes_storages_anew_with_the_same_bits(
    more: dict[str, str], least_bytes: int, planned: dict[str, str]
) -> None:
    found = child.run("making_anew:trained", "30%", 6, env=planned | more)
    assert found.same
    assert min(found.remade[3:]) > least_bytes, found.remade
    assert "made anew a step" in found.summary


def test_what_an_operator_makes_after_those_that_run_in_it_is_made_anew(planned: dict[str, str]) -> None:
    """Of the others, what matrices make and the layers' last products, there are 16 MiB in all."""
    found = child.run("making_anew:trained_by_numbers", "30%", 6, env=planned)
    assert found.same
    assert max(found.remade) > 16 << 20, found.remade


def test_where_it_is_turned_off_nothing_is_made_anew(planned: dict[str, str]) -> None:
    found = child.run("making_anew:trained", "30%", 6, env=planned | {"EBBTIDE_REMAKE": "0"})
    assert found.same
    assert not any(found.remade)
    assert min(found.evicted[3:]) > 0
    assert "made anew" not in found.summary


def test_autograd_adds_gradients_in_place_where_it_does_plainly() -> None:
    """It does so where nobody else has a gradient's storage. A sum elsewhere may have other strides."""
    child.run("cases_kept_memory:gradients_are_added_as_plainly", env={"EBBTIDE_REMAKE": "check"})


def test_what_is_read_to_make_a_storage_anew_has_ended_for_the_script() -> None:
    child.run("cases_kept_memory:what_recipes_read_ends_for_the_script")


def test_an_operator_runs_again_with_the_number_of_threads_that_it_had(planned: dict[str, str]) -> None:
    found = child.run("making_anew:with_other_threads", "30%", 6, env=planned)
    assert found.same
    assert min(found.remade[3:]) > 0, found.remade


@pytest.mark.parametrize("name", LOOKS)
def test_a_storage_that_is_away_is_made_before_somebody_sees_it_or_changes_what_it_is_made_of(name: str) -> None:
    found = child.run("making_anew:look", name, env={"EBBTIDE_REMAKE": "check", "EBBTIDE_POLICY": "demand"})
    assert found.same
    assert found.remade_bytes > 0


@pytest.mark.alike
@pytest.mark.parametrize("rows", [None, IN_PIECES // 2], ids=["all", "half"])
@pytest.mark.parametrize("name", LOOKS)
def test_so_is_a_storage_in_pieces_or_a_part_of_it(name: str, rows: int | None) -> None:
    found = child.run("making_anew:look", name, IN_PIECES, rows, env=PIECES)
    assert found.same
    assert found.remade_bytes >= 4 << 20


def test_only_the_pieces_that_are_away_are_made_and_only_where_one_is_needed() -> None:
    """Rows 341 and 683 are the first that lie in the second and third of four pieces."""
    found = child.run("making_anew:piece_by_piece", env=PIECES)
    assert [nbytes >> 20 for nbytes in found] == [0, 0, 4, 0, 6, 6, 0]


def test_what_does_not_fit_beside_its_operands_is_made_in_order() -> None:
    assert child.run("making_anew:by_faults", env=PIECES) > 12 << 20


def test_a_profile_tells_what_is_made_anew_from_what_the_script_runs() -> None:
    found = child.run("making_anew:in_a_profile")
    assert (found["ebbtide: making anew"], found["aten::clone"]) == (1, 1)


def test_a_training_in_pieces_that_leave_at_random_has_the_same_bits() -> None:
    found = child.run("making_anew:trained", "75%", 5, env=PIECES | {"EBBTIDE_CHAOS_RATE": "0.4"})
    assert found.same
    assert min(found.remade[2:]) > 4 << 20, found.remade


@pytest.mark.parametrize("how", ["python", "property"])
def test_before_a_setting_of_pytorch_changes_all_is_made(how: str) -> None:
    before, after = child.run("making_anew:precision_changes", how, env={"EBBTIDE_POLICY": "demand"})
    assert before > after == 0


def test_other_settings_of_pytorch_are_an_error_and_not_another_number() -> None:
    with pytest.raises(child.ChildError, match=r"settings .* were changed within a step.*EBBTIDE_REMAKE=0"):
        child.run("making_anew:precision_changes", "C++", env={"EBBTIDE_POLICY": "demand"})


def test_what_was_called_before_a_setting_changed_is_not_made_anew_after_it() -> None:
    count, same = child.run("cases_recipes:called_before_a_change", env={"EBBTIDE_POLICY": "demand"})
    assert count > 0
    assert same


def test_memory_that_another_thread_gets_while_an_operator_reads_it_stays_writable(tmp_path: Path) -> None:
    count, whole = child.run("cases_recipes:given_away_meanwhile", tmp_path / "data", env={"EBBTIDE_POLICY": "demand"})
    assert count > 0
    assert whole


def test_what_an_operator_warned_of_is_not_said_again_where_it_makes_contents_anew() -> None:
    assert child.run("cases_recipes:warned_of_once", env={"EBBTIDE_POLICY": "demand"}) == (True, 3)


def test_a_child_that_changes_a_setting_is_refused_training_state_still() -> None:
    assert child.run("cases_recipes:a_setting_changes_in_a_child", env={"EBBTIDE_POLICY": "demand"})


def test_a_fork_makes_what_is_away_though_another_library_has_taken_the_handler_of_faults() -> None:
    assert child.run("cases_recipes:fork_after_another_handler", env={"EBBTIDE_POLICY": "demand"}) == 0


def test_an_operator_that_is_left_out_makes_nothing_anew() -> None:
    assert child.run("making_anew:made_by_mul", env={"EBBTIDE_POLICY": "demand"}) == 1
    assert child.run("making_anew:made_by_mul", env={"EBBTIDE_POLICY": "demand", "EBBTIDE_REMAKE": "-aten::mul"}) == 0


def test_an_operator_that_is_added_makes_contents_anew_unless_it_is_python_or_changes_something() -> None:
    added = "+mkldnn::_linear_pointwise,+mine::in_python,+mine::typed,+aten::index_add_"
    case, demand = "cases_recipes:made_by_added_operators", {"EBBTIDE_POLICY": "demand"}
    as_it_is = child.run(case, env=demand)
    assert as_it_is == {"C++": False, "Python": False, "typed": False, "in place": False, "same": True}
    found = child.run(
        "cases_recipes:made_by_added_operators", env={"EBBTIDE_POLICY": "demand", "EBBTIDE_REMAKE": added}
    )
    assert found == {"C++": True, "Python": False, "typed": False, "in place": False, "same": True}


@pytest.mark.parametrize("what", ["copied", "rounded"])
def test_what_hooks_do_within_an_operator_is_not_made_by_it(what: str) -> None:
    assert child.run("cases_recipes:saved_by_hooks", what, env={"EBBTIDE_POLICY": "demand"}) == (True, True)


def test_a_fork_does_not_wait_for_pythons_lock() -> None:
    assert child.run("cases_recipes:forks_with_the_last_owner", env={"EBBTIDE_POLICY": "demand"}) is True


def test_operators_of_a_parallel_region_are_no_others_outside_of_it() -> None:
    assert child.run("cases_recipes:within_a_parallel_region", env={"EBBTIDE_POLICY": "demand"}) == (True, 0)


def test_an_operator_with_a_kernel_of_the_scripts_makes_nothing_anew() -> None:
    found = child.run("making_anew:kernels_change", env={"EBBTIDE_POLICY": "demand"})
    assert found == [True, False, True, True, False]


def test_a_kernel_that_comes_with_a_library_is_an_error_for_what_is_away() -> None:
    with pytest.raises(child.ChildError, match=r"aten::silu: a library that was loaded since gave it another kernel"):
        child.run("making_anew:a_kernel_comes_with_a_library", env={"EBBTIDE_POLICY": "demand"})


def test_no_kernel_passes_for_pytorchs_by_the_name_of_its_directory() -> None:
    assert child.run("making_anew:passes_by_its_path") is False


def test_threads_that_share_a_threads_work_and_round_otherwise_keep_their_bits() -> None:
    assert child.run("making_anew:threads_that_flush", env={"EBBTIDE_POLICY": "demand"})


def test_new_threads_have_the_number_that_the_script_set() -> None:
    assert child.run("making_anew:threads_that_begin", env={"EBBTIDE_POLICY": "demand"}) == {1}


def test_what_an_operator_frees_and_another_thread_gets_is_that_threads() -> None:
    assert child.run("making_anew:another_threads_storages", env={"EBBTIDE_POLICY": "demand"}) == 0


@pytest.mark.parametrize("read", ["operator", "numpy"])
def test_what_is_made_of_a_weight_knows_nothing_of_an_update_that_waits(read: str) -> None:
    assert child.run("making_anew:update_waits", read, env={"EBBTIDE_REMAKE": "check", "EBBTIDE_POLICY": "demand"})


@pytest.mark.parametrize("name", MORE)
def test_what_a_mode_a_hook_or_a_setting_adds_to_an_operator_is_not_lost(name: str) -> None:
    assert child.run("making_anew:more", name, env={"EBBTIDE_REMAKE": "1", "EBBTIDE_POLICY": "demand"})
