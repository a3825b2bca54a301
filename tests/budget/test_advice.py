"""What a refused budget says: which one works, and what else helps where no budget does by itself."""

import re
from dataclasses import replace

import pytest

from ebbtide.budget.bounds import Need, arena_too_small, process_too_small, usable_bytes
from ebbtide.budget.too_large import StepTooLargeError
from ebbtide.errors import BudgetError
from ebbtide.host.process import MemoryLimit
from ebbtide.units import GIB, MIB, Budget, parse_budget, parse_size

NEED = Need("aten::mm", 600 * MIB, 600 * MIB, 200 * MIB, 600 * MIB)
CONTAINER = MemoryLimit(2 * GIB, "this container")


def advised(error: BudgetError) -> Budget:
    """The budget that the text names: one that is accepted."""
    assert f'use fast="{error.minimum_fast}"' in str(error)
    return parse_budget(error.minimum_fast)


def test_an_operation_outside_the_steps_that_needs_more_than_a_steps_peak_is_told_a_size() -> None:
    """An evaluation on larger batches, say: the whole process needs what the operation does and what lies outside."""
    error = arena_too_small(250 * MIB, 500 * MIB, NEED, rest_bytes=300 * MIB, limit=CONTAINER)
    assert (advised(error).nbytes or 0) >= 900 * MIB
    assert "A step's tensors peak at 500 MiB, so no percentage is enough." in str(error)
    assert "100%" not in str(error)


def test_all_of_a_peak_is_the_most_that_a_percentage_names() -> None:
    error = arena_too_small(250 * MIB, NEED.nbytes, NEED)
    assert advised(error).fraction == 1.0
    assert "or more" not in str(error)
    assert 'use fast="60%" or more' in str(arena_too_small(250 * MIB, 1000 * MIB, NEED))
    small = arena_too_small(381 << 10, 952 << 10, replace(NEED, nbytes=400 << 10))
    assert advised(small).fraction == 0.43  # of a peak below 1 MiB


def test_a_size_that_the_container_does_not_allow_is_told_with_its_limit() -> None:
    large = replace(NEED, nbytes=2 * GIB)
    for error in (
        process_too_small(GIB, 300 * MIB, large, limit=CONTAINER),
        arena_too_small(GIB, GIB, large, 300 * MIB, limit=CONTAINER),
        process_too_small(GIB, 3 * GIB, replace(large, operator=""), limit=CONTAINER),
        process_too_small(GIB, 3 * GIB, None, limit=CONTAINER),
    ):
        assert "this container allows 2.00 GiB in all, with headroom for what the kernel charges: " in str(error)
        (raised,) = re.findall(r"raise that limit to (\S+ \w+) first", str(error))
        enough = usable_bytes(MemoryLimit(parse_size(raised.replace(" ", "")), "this container"))
        assert error.minimum_bytes * 0.99 < enough < error.minimum_bytes * 1.01  # to the digits shown
    assert "container" not in str(process_too_small(GIB, 300 * MIB, NEED, limit=CONTAINER))


@pytest.mark.parametrize(("held", "named"), [(500 * MIB, True), (50 * MIB, False)])
def test_what_is_held_is_named_where_it_takes_the_room(held: int, named: bool) -> None:
    for error in (
        process_too_small(GIB, 300 * MIB, replace(NEED, held_bytes=held)),
        arena_too_small(GIB, 2 * GIB, replace(NEED, held_bytes=held)),
    ):
        assert ("500 MiB are held in memory, by NumPy or DLPack arrays" in str(error)) == named


def test_where_a_script_takes_less_without_ebbtide_the_error_says_so() -> None:
    small = replace(NEED, nbytes=2 * MIB, peak_bytes=24 * MIB)
    error = process_too_small(200 * MIB, 300 * MIB, small, planning_bytes=24 * MIB)
    said = (
        "a budget of 200 MiB is too small. What has run so far takes about 324 MiB without Ebbtide: run the script as "
        "it is, unless later steps take more. A budget that works for what has run so far is 347 MiB: use "
        'fast="347MiB" or more.'
    )
    assert str(error) == str(StepTooLargeError(*error.args)).partition(" (PyTorch")[0] == said
    narrow = process_too_small(200 * MIB, 300 * MIB, small, 24 * MIB, MemoryLimit(250 * MIB, "this container"))
    assert "raise that limit to" in str(narrow)
    assert "without Ebbtide" not in str(narrow)
    for need in (replace(small, peak_bytes=200 * MIB), replace(small, peak_bytes=0)):
        assert "without Ebbtide" not in str(process_too_small(200 * MIB, 300 * MIB, need, planning_bytes=24 * MIB))


def test_a_fused_update_of_one_large_tensor_is_told_of_smaller_pieces() -> None:
    need = Need("aten::_fused_adamw_", 168 * MIB, 168 * MIB, 26 * MIB, 168 * MIB)
    assert "of 26.0 MiB at most: EBBTIDE_PIECE=4MiB makes these smaller" in str(
        arena_too_small(84 * MIB, 168 * MIB, need)
    )
    for other in (replace(need, operator="aten::addmm"), replace(need, largest_bytes=4 * MIB)):
        assert "EBBTIDE_PIECE" not in str(arena_too_small(84 * MIB, 168 * MIB, other))
