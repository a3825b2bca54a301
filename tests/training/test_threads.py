"""Bits depend on how many threads share a thread's work, which no session may change."""

import pytest

from tests.helpers import child

pytestmark = pytest.mark.starts


@pytest.mark.parametrize("order", ["as-written", "deferred"])
def test_a_new_thread_that_begins_with_a_product_has_the_threads_of_a_plain_run(order: str) -> None:
    differ, same_numbers, same_bits, left = child.run("cases_threads:of_new_threads", order)
    assert differ
    assert same_numbers
    assert same_bits
    assert left > 0


def test_mkls_own_number_of_threads_is_kept_for_what_is_made_anew() -> None:
    assert child.run("cases_threads:of_mkl_alone", env={"EBBTIDE_POLICY": "demand"}) == (True, 256 * 256 * 4)
