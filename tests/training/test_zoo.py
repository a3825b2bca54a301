"""The zoo itself: its cases repeat exactly without Ebbtide, and the comparison sees one flipped bit."""

import pytest
import torch

from tests.helpers import child, machine
from tests.helpers.zoo import FAMILIES
from tests.training import same_bits
from tests.training.same_bits import CASES, begin, train, train_plainly


@pytest.mark.alike
@pytest.mark.parametrize("name", CASES)
def test_two_plain_runs_of_a_case_end_with_the_same_bits(name: str) -> None:
    assert child.run(same_bits.compare_plain, name, 2) == ()


def test_the_comparison_sees_one_flipped_bit_anywhere() -> None:
    case = CASES["tied-weights"]
    expected = train_plainly(case, 1)
    for kind in ("loss", "weight", "gradient", "state"):
        actual = begin(case)
        train(actual, 1)
        assert expected.differences(actual) == ()
        name = next(name for name in expected.tensors if name.startswith(kind))
        flat = dict(actual.tensors())[name].reshape(-1).view(torch.uint8)
        flat[0] ^= 1
        difference, where = expected.differences(actual)
        assert difference.startswith(f"{name}: 1 of ")
        assert where == machine.describe()


def test_families_cover_every_optimizer_that_the_readme_names() -> None:
    endings = {case.name.split("-", 1)[1] for case in FAMILIES}
    assert endings == {"sgd-momentum", "adamw-loop", "adamw-foreach", "adamw-fused", "adafactor"}
