"""Every case ends with the same bits under a session as without, and in getting there every kind of bytes moved.

In demand mode: under a tight budget the decider evicts what it must, and nothing else interferes; under chaos random
blocks leave at random moments, also from under the operators that use them.
The smallest managed storage is one page, so that small models have plenty of blocks.
"""

import platform
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers import child
from tests.helpers.zoo import FAMILIES
from tests.training import same_bits
from tests.training.same_bits import CASES, MOVING_KINDS, Snapshot, Verdict

PAGES = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_POLICY": "demand"}
STEPS = 5  # two recorded, then three bounded


def check(verdict: Verdict) -> None:
    """The same bits, in budget, and bytes of every kind went out and came back."""
    assert verdict.differences == ()
    assert verdict.compared > 0
    assert verdict.modes == ("recorded",) * 2 + ("demand",) * (STEPS - 2)
    assert not verdict.budget_violated, verdict.trouble
    assert verdict.arena_budget_bytes < verdict.unbounded_peak_bytes
    for kind in MOVING_KINDS:
        assert verdict.evicted_bytes[kind] > 0, kind
        assert verdict.fetched_bytes[kind] > 0, kind


def chaos(rate: float, name: str) -> dict[str, str]:
    return PAGES | {"EBBTIDE_CHAOS_RATE": str(rate), "EBBTIDE_CHAOS_SEED": str(list(CASES).index(name))}


Verdicts = dict[str, Verdict | str]


@pytest.fixture(scope="module", params=CASES)
def verdicts(request: pytest.FixtureRequest) -> Verdicts:
    """Of a case in three ways, from one process."""
    name, tight = request.param, CASES[request.param].tight
    ways = {
        "tight": (tight, PAGES),
        "planned": ("60%" if name == "in-place" else tight, PAGES | {"EBBTIDE_POLICY": "ebbtide"}),
        "chaos": ("75%", chaos(0.2, name)),
        "remade": ("75%", chaos(1.0, name) | {"EBBTIDE_REMAKE": "check", "EBBTIDE_PIECE": "2MiB"}),
    }
    return child.run(same_bits.compare_ways, name, STEPS, ways)


def of(verdict: Verdict | str) -> Verdict:
    assert isinstance(verdict, Verdict), verdict
    return verdict


@pytest.mark.alike
def test_a_case_gives_the_same_bits_under_a_tight_budget(verdicts: Verdicts) -> None:
    check(of(verdicts["tight"]))


@pytest.mark.alike
def test_a_case_gives_the_same_bits_as_planned_and_its_steps_follow_the_plan(verdicts: Verdicts) -> None:
    """The trace of each replays without a mismatch. A tick counts all scratch of its operator as there at once."""
    verdict = of(verdicts["planned"])
    assert verdict.differences == ()
    assert verdict.modes == ("recorded",) * 2 + ("planned",) * (STEPS - 2)
    assert not verdict.budget_violated, verdict.trouble
    assert sum(verdict.evicted_bytes.values()) > 0
    assert sum(verdict.fetched_bytes.values()) > 0


@pytest.mark.alike
def test_a_case_gives_the_same_bits_under_chaos(verdicts: Verdicts) -> None:
    check(of(verdicts["chaos"]))


@pytest.mark.alike
def test_a_case_gives_the_same_bits_where_chaos_has_storages_made_anew(verdicts: Verdicts) -> None:
    """Whatever can be made anew leaves without a copy when chaos takes it. What comes out is compared each time."""
    verdict = of(verdicts["remade"])
    assert verdict.differences == ()
    assert not verdict.budget_violated, verdict.trouble
    assert verdict.made_anew_bytes > 0


@pytest.mark.alike
@pytest.mark.parametrize("name", ["in-place", "convnext-adafactor", "lstm-sgd-momentum", "gpt2-adamw-fused"])
def test_the_smallest_budget_that_is_named_works(name: str) -> None:
    """Convolutions and recurrent layers take scratch, in operators that they call: it counts as theirs."""
    with pytest.raises(child.ChildError, match="The smallest budget that can work with what has run so far") as caught:
        child.run(same_bits.bounded, name, "2%", STEPS, env=PAGES)
    smallest = re.findall(r'use fast="(\S+)" or more', str(caught.value))[-1]
    verdict = child.run(same_bits.compare, name, smallest, STEPS, env=PAGES)
    assert not verdict.budget_violated, verdict.trouble
    assert sum(verdict.fetched_bytes.values()) > 0
    assert verdict.differences == ()


@pytest.mark.alike
@pytest.mark.parametrize("name", [case.name for case in FAMILIES])
def test_a_model_and_optimizer_from_before_the_session_are_adopted(name: str) -> None:
    verdict = child.run(same_bits.compare_adopted, name, "35%", STEPS, env=PAGES)
    assert verdict.differences == ()
    assert verdict.adopted_bytes > 0
    assert sum(verdict.evicted_bytes.values()) > 0


def test_a_difference_says_where_it_is_and_on_what_machine() -> None:
    """A page of a weight that reads as zeros, and a loss off by its last bit; -0.0 is not 0.0."""
    weight, loss, zero = torch.linspace(1, 2, 4096), torch.tensor(1.0), torch.tensor([0.0])
    plain: Any = SimpleNamespace(tensors=lambda: [("loss 0", loss), ("weight", weight), ("zero", zero)])
    wrong = weight.clone()
    wrong[1024:2048] = 0
    ours: Any = SimpleNamespace(tensors=lambda: [("loss 0", loss + 2**-23), ("weight", wrong), ("zero", -zero)])
    of_loss, of_weight, of_zero, machine = Snapshot.of(plain).differences(ours)
    assert of_loss.startswith("loss 0: 1 of 1 elements of 4 bytes, from 0 (page 0) to 0 (page 0), 0 of them 0 here")
    assert of_weight.startswith(
        "weight: 1024 of 4096 elements of 4 bytes, from 1024 (page 1) to 2047 (page 1), 1024 of"
    )
    assert of_zero.startswith("zero: 1 of 1 elements")
    assert platform.release() in machine
    assert Snapshot.of(plain).differences(plain) == ()
