"""Planners of other packages: found by an entry point's name, named when they are broken; and the one in the docs."""

import re
from dataclasses import replace
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ebbtide import planners
from ebbtide.errors import EbbtideWarning, PlanError, SettingError
from ebbtide.ir.machine import InPlace
from ebbtide.ir.plan import PlanStatus
from ebbtide.pipeline import trials
from ebbtide.planners import BUILT_IN, plan
from ebbtide.planners.base import Planner
from ebbtide.planners.search.bound import lower_bound_ns
from ebbtide.simulator.registry import Registry
from tests.helpers.make_steps import budget_at, disk, network
from tests.helpers.paths import ROOT

DISK = disk()
IN_PLACE = replace(DISK, tiers=(DISK.tiers[0], replace(DISK.tiers[1], in_place=InPlace.ALL, bytes_per_s=10**9)))


def registry(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> Registry[Planner]:
    found = [EntryPoint(name, value, planners.GROUP) for name, value in entries]
    monkeypatch.setattr(metadata, "entry_points", lambda group: found if group == planners.GROUP else [])
    fresh = Registry(planners.GROUP, "planner", BUILT_IN)
    monkeypatch.setattr(planners, "PLANNERS", fresh)
    return fresh


def test_a_planner_of_another_package_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = registry(monkeypatch, ("theirs", "ebbtide.planners.resident:resident"))
    assert "theirs" in found
    assert sorted([*BUILT_IN, "theirs"]) == list(found)
    assert plan("theirs", network(), DISK, 10**9).planner == "resident"


def test_a_plan_without_a_bound_gets_ours_and_no_time_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = network(8)
    budget = budget_at(trace, 0.1)
    bound = lower_bound_ns(trace, DISK, budget)
    ours = plan("g10", trace, DISK, budget)
    assert bound > trace.step_ns
    for predicted_ns, status in ((ours.predicted_ns, ours.status), (2**62, ours.status), (1, PlanStatus.OVER_BUDGET)):
        theirs = replace(ours, planner="theirs", status=status, predicted_ns=predicted_ns, lower_bound_ns=0)
        monkeypatch.setattr(planners, "PLANNERS", {"theirs": lambda *_, made=theirs: made})
        found = plan("theirs", trace, DISK, budget)
        assert found.lower_bound_ns == bound
        assert found.predicted_ns == (ours.predicted_ns if predicted_ns == 1 else predicted_ns)


def leaves(*_: object) -> None:
    raise SystemExit(0)


def fails(*_: object) -> None:
    raise RuntimeError("no such luck")


def test_a_planner_of_another_package_that_fails_is_named_and_ends_no_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("broken", "no_such_module:planner"), ("fails", f"{__name__}:fails"), ("leaves", f"{__name__}:leaves")
    found = registry(monkeypatch, *names)
    monkeypatch.setattr(trials, "PLANNERS", found)
    trace = network()
    rows = [trials.try_policy(name, trace, DISK, 10**9) for name in ("broken", "fails", "leaves", "ebbtide")]
    assert [row.outcome is None for row in rows] == [True, True, True, False]
    whys = ("cannot be loaded", "failed: RuntimeError: no such luck", "failed: SystemExit: 0")
    for row, why in zip(rows, whys, strict=False):
        assert f"the planner '{row.policy}' of an unknown package {why}" in row.why_not
    with pytest.raises(SettingError, match="no such luck"):
        plan("fails", trace, DISK, 10**9)


def test_a_broken_planner_of_another_package_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    found = registry(monkeypatch, ("broken", "no_such_module:planner"), ("number", "ebbtide.planners:GROUP"))
    for name in ("broken", "number"):
        with pytest.raises(SettingError, match=f"planner '{name}' of an unknown package"):
            found[name]
    assert found["ebbtide"] is BUILT_IN["ebbtide"]
    twice = registry(monkeypatch, *[("twice", "ebbtide.planners.resident:resident")] * 2)
    with pytest.raises(SettingError, match="several packages have a planner 'twice'"):
        twice["twice"]
    monkeypatch.setattr(planners, "PLANNERS", {"strange": lambda *_: "a plan"})
    with pytest.raises(PlanError, match="strange returned str"):
        plan("strange", network(), DISK, 10**9)


def test_another_package_cannot_replace_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    found = registry(monkeypatch, ("ebbtide", "no_such_module:planner"))
    with pytest.warns(EbbtideWarning, match="ours is used"):
        assert list(found) == sorted(BUILT_IN)
    assert found["ebbtide"] is BUILT_IN["ebbtide"]


def test_the_planner_in_the_docs_works_and_the_table_has_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "planners.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(program.splitlines()) <= 30
    (tmp_path / "in_the_docs.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    registry(monkeypatch, ("coldest", "in_the_docs:coldest"))
    trace = network()
    found = plan("coldest", trace, IN_PLACE, budget_at(trace, 0.5))
    assert any(stay.tier == "file" for stay in found.stays)
    assert found.lower_bound_ns == trace.step_ns < found.predicted_ns
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE)) == set(BUILT_IN)
