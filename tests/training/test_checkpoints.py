"""Checkpoints of a model that is larger than fast memory: what is away goes to files of every kind, and comes back."""

from pathlib import Path

import pytest

from tests.helpers import child
from tests.helpers.command import EBBTIDE, run
from tests.training import cases_checkpoints

PAGES = {"EBBTIDE_MIN_STORAGE": "4096"}


@pytest.mark.alike
@pytest.mark.parametrize("kind", cases_checkpoints.KINDS)
def test_a_model_larger_than_the_arena_goes_to_a_file(kind: str, tmp_path: Path) -> None:
    child.run("cases_checkpoints:to_a_file", kind, str(tmp_path), env=PAGES)


def test_tied_weights_are_saved_and_loaded_while_they_are_away(tmp_path: Path) -> None:
    child.run("cases_checkpoints:load_model", str(tmp_path), env=PAGES)


def test_a_safetensors_file_has_the_bytes_that_safetensors_writes(tmp_path: Path) -> None:
    child.run("cases_checkpoints:same_bytes", str(tmp_path), env=PAGES)


def test_what_safetensors_refuses_is_refused_in_its_words(tmp_path: Path) -> None:
    child.run("cases_checkpoints:same_refusals", str(tmp_path), env=PAGES)


def test_a_safetensors_file_that_cannot_be_closed_leaves_what_was_there(tmp_path: Path) -> None:
    child.run("cases_checkpoints:closing_fails", str(tmp_path))


def test_each_tensor_comes_back_once_for_safetensors(tmp_path: Path) -> None:
    assert child.run("cases_checkpoints:addresses_are_not_fetched", str(tmp_path), env=PAGES) == 100


def test_a_storage_whose_address_was_asked_for_is_the_last_to_leave() -> None:
    child.run("cases_checkpoints:asked_for_stays", env=PAGES)


def test_a_raw_address_works_in_a_system_call_at_once(tmp_path: Path) -> None:
    child.run("cases_checkpoints:raw_address", str(tmp_path), env=PAGES)


def test_compiled_functions_go_through_the_wrappers() -> None:
    child.run("cases_checkpoints:compiled", env=PAGES)


SCRIPT = """
import sys, torch
from safetensors.torch import save_file
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(24)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(4, 256)).square().mean().backward()
    optimizer.step()
    save_file(model.state_dict(), sys.argv[1])
"""


def test_a_script_whose_model_is_larger_than_the_arena_saves_every_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    for command in (["train.py", "plain"], [EBBTIDE, "run", "--fast", "20%", "train.py", "ours"]):
        run(*command, cwd=tmp_path, env=PAGES, status=0)
    assert cases_checkpoints.digest(str(tmp_path / "ours")) == cases_checkpoints.digest(str(tmp_path / "plain"))
