"""Frameworks train on the tests' device with their own loops: a session finds the steps; the bits are the same."""

import pytest

from tests.helpers import child

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("name", ["trainer", "lightning"])
def test_a_framework_trains_on_a_device_with_the_same_bits(name: str) -> None:
    differs, modes, left, trouble = child.run("cases_device_frameworks:compare", name, env={"OMP_NUM_THREADS": "1"})
    assert differs == ()
    assert modes == ["recorded"] * 2 + ["planned"] * 8
    assert left > 0
    assert trouble == ""
