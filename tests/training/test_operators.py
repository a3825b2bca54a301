"""A share of PyTorch's own operator database under Ebbtide: ``operators.py`` says how; ``make operators`` takes all.

Every operator once in fp32, in two processes, and a sample of the rest that is always the same.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.helpers import command

SCRIPT = Path(__file__).with_name("operators.py")


def compared(*options: str) -> dict[str, int]:
    """The counts of a comparison in which nothing differed."""
    run = command.run(sys.executable, str(SCRIPT), *options)
    assert run.returncode == 0, "\n".join((run.stdout + run.stderr).splitlines()[-20:])
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("options", "cases"),
    [
        (("--only=float32 strided", "--samples=1"), 600),
        (("--share=0.08", "--seed=16", "--samples=3"), 150),
        (("--share=0.08", "--seed=17", "--samples=3", "--remake"), 150),
        (("--only=sparse", "--share=0.3", "--seed=16", "--samples=2"), 30),
    ],
    ids=["each in fp32", "a sample", "a sample that is made anew", "a sample of sparse layouts"],
)
def test_operators_give_the_same_bits_when_all_their_operands_are_away(options: tuple[str, ...], cases: int) -> None:
    found = compared(*options)
    assert found["cases"] >= cases
    assert found["same"] > 0.99 * found["calls"]
    assert found["fetched_bytes"] > 4096 * found["calls"]
    assert (found["made_anew_bytes"] > 4096 * found["calls"]) == ("--remake" in options)
