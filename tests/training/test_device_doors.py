"""A storage of a device moves only where nobody else has its memory, and nobody reaches it unseen."""

import pytest

from tests.helpers import child


@pytest.mark.parametrize(
    "who", ["alone", "sliced", "exported", "imported", "lazily_cloned", "asked_for_its_address", "in_a_graph"]
)
def test_who_has_the_memory_finds_it_where_it_was(who: str) -> None:
    child.run(f"cases_device_doors:{who}", env={"OMP_NUM_THREADS": "1"})
