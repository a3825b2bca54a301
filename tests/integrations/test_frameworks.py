"""What people train with, without Ebbtide and with it: same bits, planned steps, bytes moved, a budget that held."""

from pathlib import Path

import pytest

from bench.integrations.cases import CASES, Case
from bench.integrations.runs import compare, missing
from ebbtide.ir.run_report import StepMode

pytestmark = [pytest.mark.starts, pytest.mark.slow]

STEPS = 10
EVALUATES = {"trainer", "trainer-callback", "lightning", "lightning-callback"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case, tmp_path: Path) -> None:
    if package := missing(case):
        pytest.skip(f"{package} is not installed: pip install 'ebbtide[frameworks]' has it")
    comparison = compare(case, tmp_path, STEPS, timeout_s=500)
    assert comparison.plain.status == 0, comparison.plain.printed
    assert comparison.within.status == 0, comparison.within.printed
    assert comparison.same_bits
    assert len(comparison.reports) == case.ranks
    assert comparison.worked, [report.trouble for report in comparison.reports]
    if case.name in EVALUATES:  # steps in which there is an evaluation or a checkpoint, too
        assert comparison.modes[StepMode.DEMAND] == 0
