"""Checkpoints of a model that is larger than fast memory: what is away goes to files of every kind, and comes back."""

import filecmp
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


@pytest.mark.parametrize("case", ["load_model", "same_bytes", "same_refusals", "closing_fails"])
def test_safetensors_writes_and_refuses_what_it_does_without_a_session(case: str, tmp_path: Path) -> None:
    child.run(f"cases_checkpoints:{case}", str(tmp_path), env=PAGES)


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
    assert filecmp.cmp(tmp_path / "ours", tmp_path / "plain", shallow=False)
