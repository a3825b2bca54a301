"""Threads that are ready and have no CPU."""

from pathlib import Path

from ebbtide.host.run_queue import waited_s


def test_what_all_threads_waited_is_added_up(tmp_path: Path) -> None:
    for task, counted in (("1", "5000 2000000000 7\n"), ("2", "1 500000000 2\n"), ("3", ""), ("4", None)):
        (tmp_path / task).mkdir()
        if counted is not None:
            (tmp_path / task / "schedstat").write_text(counted)
    assert waited_s(tmp_path) == 2.5


def test_this_kernel_counts_it() -> None:
    assert waited_s() >= 0
