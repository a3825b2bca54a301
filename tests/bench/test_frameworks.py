"""What people train with, without Ebbtide and with it: same bits, planned steps, bytes moved, a budget that held."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bench.integrations.cases import CASES, Case
from bench.integrations.runs import Side, beside, missing, run_side
from ebbtide.ir.run_report import StepMode
from tests.helpers import forked

pytestmark = [pytest.mark.starts, pytest.mark.slow]

STEPS = 8
LONGEST_S = 500
NARROW = ("--width", "512")
AT_EACH_CHANGE = {"trainer": (), "ddp-session": NARROW, "fsdp2": NARROW}
"""And with which arguments."""
EVALUATES = {"trainer", "trainer-callback", "lightning", "lightning-callback"}


@pytest.fixture(autouse=True)
def _forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each change, from a Python that has imported PyTorch: ranks, too. With ``--all``, as a person starts them."""
    if not request.config.getoption("--all"):
        monkeypatch.setattr(subprocess, "Popen", forked.popen(forked.pythons(), forked.pythons(), forked.planners()))


@pytest.fixture(scope="module")
def plain_sides() -> dict[object, Side]:
    """Those that have run: a script is trained plainly once for all cases that start it in the same way."""
    return {}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.nightly] * (case.name not in AT_EACH_CHANGE))
        for case in CASES
    ],
)
def test_case(case: Case, plain_sides: dict[object, Side], tmp_path: Path) -> None:
    if package := missing(case):
        pytest.skip(f"{package} is not installed: pip install 'ebbtide[frameworks,quantization]' has it")
    case = replace(case, arguments=(*case.arguments, *AT_EACH_CHANGE.get(case.name, ())))
    started = (*case.plain("python", ()), case.resumes)
    if started not in plain_sides:
        plain_sides[started] = run_side(case, tmp_path / "plain", STEPS, LONGEST_S, within=False)
    comparison = beside(plain_sides[started], case, tmp_path, STEPS, LONGEST_S)
    assert comparison.plain.status == 0, comparison.plain.printed
    assert comparison.within.status == 0, comparison.within.printed
    assert comparison.same_bits
    assert len(comparison.reports) == case.ranks * (2 if case.resumes else 1)
    assert comparison.worked, [report.trouble for report in comparison.reports]
    for side in (comparison.plain, comparison.within):
        assert len(side.step_s) >= STEPS // 2  # which the page's table is made of
    if case.name in EVALUATES:  # steps in which there is an evaluation or a checkpoint, too
        assert comparison.modes[StepMode.DEMAND] == 0
    if case.name == "fsdp2":  # DTensors count as what they are
        moved = [step.evicted_bytes for report in comparison.reports for step in report.steps]
        assert sum(each.parameter for each in moved) > 0
        assert sum(each.optimizer_state for each in moved) > 0
