"""Every case ends with the same bits under a session as without, and in getting there every kind of bytes moved.

In demand mode: under a tight budget the decider evicts what it must, and nothing else interferes; under chaos random
blocks leave at random moments, also from under the operators that use them.
The smallest managed storage is one page, so that small models have plenty of blocks.
"""

import re

import pytest

from tests.helpers import child
from tests.helpers.zoo import FAMILIES, Case
from tests.helpers.zoo_features import FEATURES
from tests.training.same_bits import CASES, MOVING_KINDS, Verdict

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


@pytest.mark.parametrize("case", FAMILIES + FEATURES, ids=lambda case: case.name)
def test_a_case_gives_the_same_bits_under_a_tight_budget(case: Case) -> None:
    check(child.run("same_bits:compare", case.name, case.tight, STEPS, env=PAGES))


@pytest.mark.parametrize("case", FAMILIES + FEATURES, ids=lambda case: case.name)
def test_a_case_gives_the_same_bits_as_planned_and_its_steps_follow_the_plan(case: Case) -> None:
    """The trace of each replays without a mismatch. A tick counts all scratch of its operator as there at once."""
    fast = "60%" if case.name == "in-place" else case.tight
    verdict = child.run("same_bits:compare", case.name, fast, STEPS, env=PAGES | {"EBBTIDE_POLICY": "ebbtide"})
    assert verdict.differences == ()
    assert verdict.modes == ("recorded",) * 2 + ("planned",) * (STEPS - 2)
    assert not verdict.budget_violated, verdict.trouble
    assert sum(verdict.evicted_bytes.values()) > 0
    assert sum(verdict.fetched_bytes.values()) > 0


@pytest.mark.parametrize("name", CASES)
def test_a_case_gives_the_same_bits_under_chaos(name: str) -> None:
    check(child.run("same_bits:compare", name, "75%", STEPS, env=chaos(0.2, name)))


@pytest.mark.parametrize("name", ["in-place", "convnext-adafactor", "lstm-sgd-momentum", "gpt2-adamw-fused"])
def test_the_smallest_budget_that_is_named_works(name: str) -> None:
    """Convolutions and recurrent layers take scratch, in operators that they call: it counts as theirs."""
    with pytest.raises(child.ChildError, match="The smallest budget that can work with what has run so far") as caught:
        child.run("same_bits:compare", name, "2%", STEPS, env=PAGES)
    smallest = re.findall(r'use fast="(\S+)" or more', str(caught.value))[-1]
    verdict = child.run("same_bits:compare", name, smallest, STEPS, env=PAGES)
    assert not verdict.budget_violated, verdict.trouble
    assert sum(verdict.fetched_bytes.values()) > 0
    assert verdict.differences == ()


@pytest.mark.parametrize("name", [case.name for case in FAMILIES])
def test_a_model_and_optimizer_from_before_the_session_are_adopted(name: str) -> None:
    verdict = child.run("same_bits:compare_adopted", name, "35%", STEPS, env=PAGES)
    assert verdict.differences == ()
    assert verdict.adopted_bytes > 0
    assert sum(verdict.evicted_bytes.values()) > 0
