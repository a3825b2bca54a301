"""The safety net: accesses that no operator announced cost time and change nothing, and real crashes stay crashes."""

import pytest

from tests.helpers import child

PAGES = {"EBBTIDE_MIN_STORAGE": "4096"}
CASES = [
    "reads_past_torch",
    "writes_past_torch",
    "another_thread_touches",
    "faulthandler_first",
    "faulthandler_last",
    "faulthandler_many_times",
    "signals_blocked_in_a_session",
    "signals_blocked_before_the_session",
    "a_thread_of_another_language_blocks_signals",
    "another_library_takes_the_signal",
    "the_script_takes_the_signal",
    "a_forked_child_touches_training_memory",
    "a_step_that_raises",
    "the_profiler_sees_managed_storages",
    "the_profiler_shows_what_an_operator_waits_for",
    "a_lazy_clone_is_a_copy",
    "a_held_array_keeps_its_storage",
    "what_rpc_sends_stays",
]


@pytest.mark.parametrize("case", CASES)
def test_an_access_that_nobody_announced_finds_its_bytes(case: str) -> None:
    child.run(f"cases_faults:{case}", env=PAGES)


@pytest.mark.parametrize("order", ["faulthandler first", "faulthandler last", "faulthandler gone"])
def test_a_real_crash_reaches_faulthandler_if_it_is_on_and_ends_the_process(order: str) -> None:
    with pytest.raises(child.ChildError) as crash:
        child.run("cases_faults:a_real_crash", order, env=PAGES)
    assert "exit code -11" in str(crash.value)
    if order != "faulthandler gone":
        assert "Fatal Python error: Segmentation fault" in str(crash.value)
        assert "a_real_crash" in str(crash.value)
