"""Every case ends with the same bits under a session as without, and in getting there every kind of bytes moved.

Under a tight budget the decider evicts what it must and a few random blocks go besides; under chaos many do.
The smallest managed storage is one page, so that small models have plenty of blocks.
"""

import child
import pytest
from same_bits import CASES, MOVING_KINDS, Verdict
from zoo import FAMILIES
from zoo_features import FEATURES

PAGES = {"EBBTIDE_MIN_STORAGE": "4096"}
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


# Whether gradients must leave under a tight budget is a matter of timing, so a little chaos sees to it.


@pytest.mark.parametrize("name", [case.name for case in FAMILIES])
def test_a_family_gives_the_same_bits_under_a_tight_budget(name: str) -> None:
    check(child.run("same_bits:compare", name, "35%", STEPS, env=chaos(0.05, name)))


@pytest.mark.parametrize("name", [case.name for case in FEATURES])
def test_a_feature_gives_the_same_bits_under_a_tight_budget(name: str) -> None:
    """These models are so small that one operation's operands are up to two fifths of all their bytes."""
    check(child.run("same_bits:compare", name, "45%", STEPS, env=chaos(0.05, name)))


@pytest.mark.parametrize("name", CASES)
def test_a_case_gives_the_same_bits_under_chaos(name: str) -> None:
    check(child.run("same_bits:compare", name, "75%", STEPS, env=chaos(0.2, name)))


@pytest.mark.parametrize("name", [case.name for case in FAMILIES])
def test_a_model_and_optimizer_from_before_the_session_are_adopted(name: str) -> None:
    verdict = child.run("same_bits:compare_adopted", name, "35%", STEPS, env=PAGES)
    assert verdict.differences == ()
    assert verdict.adopted_bytes > 0
    assert sum(verdict.evicted_bytes.values()) > 0
