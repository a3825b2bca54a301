"""Files, forks and kills: what the kernel and other processes see of storages whose pages are away."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from tests.helpers import child

PAGES = {"EBBTIDE_MIN_STORAGE": "4096"}


@pytest.mark.parametrize("case", ["torch_save_and_load", "kernel_writes_into"])
def test_an_evicted_model_goes_to_a_file_and_comes_back(case: str, tmp_path: Path) -> None:
    child.run(f"cases_files:{case}", str(tmp_path), env=PAGES)


@pytest.mark.parametrize("how", ["_to_dlpack", "_to_dlpack_versioned", "to_dlpack", "old to_dlpack", "C table"])
def test_memory_that_dlpack_exports_stays(how: str) -> None:
    child.run("cases_files:exported_memory_stays", how)


def test_data_loader_workers_give_the_same_bits_and_do_not_double_memory() -> None:
    worker_bytes, arena_bytes = child.run("cases_files:data_loader_workers")
    assert arena_bytes > 100 * 2**20
    assert worker_bytes < arena_bytes / 2


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "exit code -9"), (signal.SIGTERM, "exit code -15"), (signal.SIGINT, "KeyboardInterrupt")],
)
def test_nothing_is_left_behind_by_a_run_that_is_stopped(number: signal.Signals, said: str, tmp_path: Path) -> None:
    """The spill file never has a name, so the kernel frees it with its last descriptor."""
    moving = tmp_path / "moving"
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as spill,
        child.Child("cases_files:train_for_ever", (spill, str(moving)), PAGES) as trainer,
    ):
        trainer.wait_for(moving.exists)
        links = [os.readlink(link) for link in Path(f"/proc/{trainer.pid}/fd").iterdir()]
        assert any(link.startswith(spill) for link in links)
        assert os.listdir(spill) == []
        os.kill(trainer.pid, number)
        with pytest.raises(child.ChildError, match=said):
            trainer.result()
        assert os.listdir(spill) == []


def test_a_checkpoint_is_read_into_what_leaves_meanwhile(tmp_path: Path) -> None:
    assert child.run("cases_files:loads_while_memory_leaves", str(tmp_path))


def test_records_of_odd_sizes_are_read() -> None:
    assert child.run("cases_files:records_of_odd_sizes")


def test_a_tensor_larger_than_the_arena_is_saved(tmp_path: Path) -> None:
    env = {"EBBTIDE_ARENA": "12MiB", "EBBTIDE_PIECE": "2MiB", "EBBTIDE_POLICY": "demand"}
    child.run("cases_files:saves_what_is_larger_than_the_arena", str(tmp_path / "saved.pt"), env=env)


def test_numbers_in_an_archive_are_read_into_what_leaves_meanwhile() -> None:
    env = {"EBBTIDE_ARENA": "32MiB", "EBBTIDE_PIECE": "2MiB", "EBBTIDE_POLICY": "demand"}
    assert child.run("cases_files:typed_record_larger_than_the_arena", env=env) == (True, True)
