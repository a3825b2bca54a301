"""The callbacks beyond what a training shows: errors in the middle, a second training, a session that is there."""

from pathlib import Path

import pytest
import torch

import ebbtide
from ebbtide.integrations.trainer_session import TrainerSession
from tests.helpers.command import run

pytestmark = pytest.mark.starts

NET = """
import sys, torch, ebbtide
from ebbtide.integrations.trainer_session import TrainerSession
def training(training, steps, fails_in=None, after=lambda step: None):
    torch.manual_seed(0)
    # Steps of fewer layers are planned by solvers, too, which takes seconds.
    net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(12)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    training.begin()
    for step in range(steps):
        training.begin_step()
        optimizer.zero_grad()
        net(torch.randn(64, 512)).square().mean().backward()
        if step == fails_in:
            raise ValueError("the script's own")
        optimizer.step()
        training.end_step()
        with torch.no_grad():
            net(torch.randn(32, 512))
        after(step)
    training.end()
"""


def ran(program: str, tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(NET + program)
    done = run(str(path), cwd=tmp_path, status=0)
    return done.stdout


def test_each_training_has_a_session_of_its_own(tmp_path: Path) -> None:
    said = ran(
        """
one = TrainerSession("50%", {"wait_for_plan": True})
training(one, 6)
first = one.session
print([step.mode.value for step in first.report().steps])
training(one, 3)
print(one.session is first, len(one.session.report().steps), ebbtide.active())
""",
        tmp_path,
    )
    assert said.splitlines() == [str(["recorded"] * 2 + ["planned"] * 4), "False 3 None"]


def test_after_an_error_in_a_step_the_next_training_begins_anew(tmp_path: Path) -> None:
    said = ran(
        """
one = TrainerSession("50%", {})
try:
    training(one, 6, fails_in=2)
except ValueError as error:
    print(error)
training(one, 4)
print(len(one.session.report().steps), one.session.report().bounded_as_asked)
""",
        tmp_path,
    )
    assert said.splitlines() == ["the script's own", "4 True"]


def test_a_budget_that_cannot_work_ends_the_training_and_the_session(tmp_path: Path) -> None:
    said = ran(
        """
one = TrainerSession("1%", {})
try:
    training(one, 6)
except ebbtide.BudgetError as error:
    print("too small" in str(error), ebbtide.active())
""",
        tmp_path,
    )
    assert said.splitlines() == ["True None"]


def test_a_session_that_is_there_is_used_and_goes_on(tmp_path: Path) -> None:
    said = ran(
        """
with ebbtide.Session("50%") as session:
    one = TrainerSession("20%", {})
    training(one, 4)
    print(one.session, ebbtide.active() is session, len(session.report().steps))
""",
        tmp_path,
    )
    assert said.splitlines() == ["None True 4"]


def test_steps_outside_a_training_are_nothing() -> None:
    training = TrainerSession("50%", {})
    training.begin_step()
    training.end_step()
    training.end()
    assert training.session is None
    assert ebbtide.active() is None
    assert torch.ones(2).sum() == 2


@pytest.mark.alike
@pytest.mark.parametrize("where", ["in a step", "between steps"])
@pytest.mark.parametrize("first", ["kept", "gone"])
def test_another_training_after_an_error_has_its_own_budget(where: str, first: str, tmp_path: Path) -> None:
    """A trainer that says nothing of errors leaves the session open; bytes move within the second one's budget."""
    fails = "fails_in=2" if where == "in a step" else "after=fail"
    said = ran(
        f"""
def fail(step):
    if step == 2:
        raise ValueError
one = TrainerSession("95%", {{}})
try:
    training(one, 6, {fails})
except ValueError:
    print(ebbtide.active() is one.session)
arena = one.session.report().arena_budget_bytes
if {first!r} == "gone":
    one = None
two = TrainerSession("50%", {{"wait_for_plan": True}})
training(two, 6)
report = two.session.report()
print(report.arena_budget_bytes < 0.7 * arena, report.bounded_as_asked, ebbtide.active())
print(sum(step.evicted_bytes.total for step in report.steps) > 0)
""",
        tmp_path,
    )
    assert said.splitlines() == ["True", "True True None", "True"]


def test_a_training_within_another_uses_its_session(tmp_path: Path) -> None:
    said = ran(
        """
def inner(step):
    if step == 3:
        two = TrainerSession("90%", {})
        training(two, 2)
        print(two.session, ebbtide.active() is one.session)
one = TrainerSession("50%", {})
training(one, 5, after=inner)
print(len(one.session.report().steps), ebbtide.active())
""",
        tmp_path,
    )
    assert said.splitlines() == ["None True", "7 None"]
