"""A storage of a device moves only where nobody else has its memory, and nobody reaches it unseen."""

import pytest

from tests.helpers import child


@pytest.mark.parametrize("who", ["sliced", "exported", "imported"])
def test_who_has_the_memory_finds_it_where_it_was(who: str) -> None:
    child.run(f"cases_device_doors:{who}", env={"OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("what", ["kept", "kept_while_all_else_leaves"])
def test_what_is_to_be_kept_stays_until_the_session_ends(what: str) -> None:
    child.run(f"cases_device_doors:{what}", env={"OMP_NUM_THREADS": "1"})
