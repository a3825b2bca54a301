"""Forked children: they read whatever is not training state, whenever it was born, and else end with a sentence."""

from pathlib import Path

import pytest

from tests.helpers import child
from tests.helpers.command import EBBTIDE, run
from tests.training import cases_forks

PAGES = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_POLICY": "demand", "EBBTIDE_PROGRESS": "off"}


@pytest.mark.parametrize("way", cases_forks.WAYS)
def test_children_read_data_whenever_it_was_born(way: str) -> None:
    assert child.run("cases_forks:children_read_data", way, env=PAGES) >= 1


@pytest.mark.parametrize("what", ["parameter", "gradient", "optimizer state"])
def test_a_worker_that_reads_training_state_ends_with_the_sentence(what: str) -> None:
    """Though the worker has a handler of its own for the signal."""
    with pytest.raises(child.ChildError) as ended:
        child.run("cases_forks:a_worker_reads_training_state", what, env=PAGES)
    said = str(ended.value)
    assert "ebbtide: a forked child touched training state" in said
    assert "start it with the spawn method" in said
    assert "DataLoader worker" in said
    assert "came out" not in said


def test_a_child_that_asks_for_an_array_of_training_state_is_refused() -> None:
    child.run("cases_forks:a_child_asks_for_an_array_of_training_state", env=PAGES)


@pytest.mark.parametrize("moment", ["in its step", "between its steps", "after it"])
def test_a_child_of_a_process_with_a_session_is_refused_one_of_its_own(moment: str) -> None:
    said, moved = child.run("cases_forks:a_child_begins_a_session", moment, env=PAGES)
    assert "start it with the spawn method" in said
    assert moved > 0


VALIDATES_EVERY_EPOCH = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(500, 500) for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(5):
    model(torch.randn(8, 500)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    rows = TensorDataset(torch.randn(200, 500))  # made between two optimizer steps
    with torch.no_grad():
        total = sum(model(x).double().sum().item() for (x,) in DataLoader(rows, 50, num_workers=1))
    print("epoch", epoch, total)
"""


def test_a_script_may_make_a_validation_set_in_every_epoch(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(VALIDATES_EVERY_EPOCH)
    env = {"EBBTIDE_MIN_STORAGE": "4096"}
    plain = run(EBBTIDE, "run", "--fast", "60%", str(script), env=env | {"EBBTIDE_DISABLE": "1"})
    ours = run(EBBTIDE, "run", "--fast", "60%", "--policy", "demand", str(script), env=env, status=0)
    assert "within budget" in ours.stderr
    assert plain.stdout.count("epoch") == 5
    assert ours.stdout == plain.stdout


def test_a_child_may_leave_the_step_that_it_was_forked_in() -> None:
    child.run("cases_forks:a_child_leaves_the_step_that_it_was_forked_in", env=PAGES)
