"""Gathers of rows from a table that comes by faults are those of PyTorch, to the last bit, warning and error."""

import pytest

from tests.helpers import child
from tests.training.cases_gathers import GATHERS


@pytest.mark.parametrize("part", range(4))
def test_gathers_from_a_table_larger_than_the_arena_are_pytorchs(part: int) -> None:
    env = {"EBBTIDE_PIECE": "2MiB", "EBBTIDE_PROGRESS": "off"}
    child.run("cases_gathers:gathers_are_pytorchs", list(GATHERS)[part::4], env=env)


def test_a_kernel_that_the_script_registered_before_stays() -> None:
    found = child.run("cases_gathers:kernels_of_the_script_stay", env={"EBBTIDE_PROGRESS": "off"})
    assert found == {"index_select": True, "index": True}
