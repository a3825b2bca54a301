"""Tensors are swapped in the middle of training, in every order of updates: nothing of ours refers to them."""

import pytest

from tests.helpers import child
from tests.training import cases_swaps as cases

CASE = "cases_swaps:{}".format
QUIET = {"EBBTIDE_PROGRESS": "off"}
ORDERS = ("as-written", "deferred", "in-backward")


@pytest.mark.alike
@pytest.mark.parametrize("when", cases.WHEN)
@pytest.mark.parametrize("swap", cases.SWAPS)
@pytest.mark.parametrize("order", ORDERS)
def test_swapped_tensors_train_to_the_same_bits(order: str, swap: str, when: str) -> None:
    """In backward, what is swapped may have been updated already, or its gradient be gone: then there is an error."""
    refused = child.run(CASE("swapped"), order, swap, when, env=QUIET)
    if order != "in-backward" or (when == "before backward" and swap != "with_a_frozen_one"):
        assert refused == ""
    elif swap == "with_a_frozen_one":  # nobody zeroes the gradients of what the optimizer does not have
        assert "gradients" in refused or when == "before step"
    elif when == "before step":
        assert "uses a parameter or state before step" in refused


@pytest.mark.parametrize("order", ORDERS)
def test_parameters_of_two_optimizers_are_swapped(order: str) -> None:
    assert child.run(CASE("of_two_optimizers"), order, env=QUIET) == ""


@pytest.mark.parametrize("order", ORDERS)
def test_nobody_else_refers_to_what_is_trained(order: str) -> None:
    child.run(CASE("nobody_refers"), order, env=QUIET)
