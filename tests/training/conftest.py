"""Whatever lies here starts processes. On a fake GPU, what is of the CPU's memory alone is left out."""

from pathlib import Path

import pytest

from tests.helpers import fake_gpu

HERE = Path(__file__).parent
OF_THE_CPU = {
    "test_as_asked", "test_bounds", "test_budgets", "test_command", "test_fake", "test_faults",
    "test_faulty_disk", "test_forks", "test_gathers", "test_packing_running", "test_pieces", "test_piecework",
    "test_run_in_place", "test_scale", "test_tiers", "test_tiers_that_fail", "test_verify",
}  # fmt: skip
"""Faults, forks, pieces, tiers and the size of the process; or they start processes with variables of their own."""
CASES_OF_THE_CPU = ("a_data_set_for_workers_of_every_epoch", "steps_compiled")
"""Workers that are forked; compiled code, whose kernels nobody announces."""
_LEFT_OUT = pytest.mark.skip("of the CPU's memory alone")
_ONEDNN = pytest.mark.skip("oneDNN's LSTM touches an address that it keeps, and names it to nobody")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        item.add_marker(pytest.mark.starts)
        is_of_the_cpu = item.get_closest_marker("cpu_memory") or item.path.stem in OF_THE_CPU
        if fake_gpu.EVERYWHERE and (is_of_the_cpu or any(case in item.name for case in CASES_OF_THE_CPU)):
            item.add_marker(_LEFT_OUT)
        elif fake_gpu.EVERYWHERE and "lstm" in item.name:
            item.add_marker(_ONEDNN)
