"""Online policies of other packages: what scores like a policy of ours is that policy; and who breaks its promise."""

import json
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebbtide.cli import cli
from ebbtide.errors import SettingError
from ebbtide.ir.base import Floats
from ebbtide.ir.files import save
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import live_bytes, needed_bytes, peak
from ebbtide.ir.trace import Trace
from ebbtide.pipeline import trials
from ebbtide.planning.policies import is_planned
from ebbtide.simulator import Candidates, scores, simulate_policy
from ebbtide.simulator.registry import Registry
from tests.helpers.make_steps import disk, machines, network, page_traces

GROUP = scores.GROUP


def like_demand(candidates: Candidates) -> Floats:
    """What the decider weighs: the age over the cost of the round trip."""
    return (candidates.idle_ticks + 1.0) / np.where(candidates.is_clean, 1.0, 2.0)


def smallest(candidates: Candidates) -> Floats:
    return 1 / (1.0 + candidates.nbytes)


def fails(candidates: Candidates) -> Floats:
    raise KeyError("no such storage")


def one_too_many(candidates: Candidates) -> Floats:
    return np.zeros(len(candidates.nbytes) + 1)


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("like_demand", "smallest", "fails", "one_too_many")
    found = [EntryPoint(name, f"{__name__}:{name}", GROUP) for name in names]
    found.append(EntryPoint("g10", f"{__name__}:fails", GROUP))
    monkeypatch.setattr(metadata, "entry_points", lambda group: found if group == GROUP else [])
    fresh: Registry[Any] = Registry(GROUP, "policy", {})
    for module in ("ebbtide.simulator", "ebbtide.pipeline.trials", "ebbtide.planning.policies"):
        monkeypatch.setattr(f"{module}.SCORES", fresh)


def figures(name: str, trace: Trace, machine: Machine) -> dict[str, Any] | str:
    try:
        found = simulate_policy(name, trace, machine)
    except ValueError as error:
        return str(error)
    return {
        "starts": found.start_ns.tolist(),
        "moved": found.moved_bytes,
        "counts": (found.rescues, found.hits, found.demand_fetches),
    }


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_what_scores_as_the_decider_weighs_is_demand(share: float) -> None:
    trace = network(8)
    least, most = peak(needed_bytes(trace)), peak(live_bytes(trace))
    machine = disk().with_budget(least + int(share * (most - least)))
    found = figures("like_demand", trace, machine)
    assert found == figures("demand", trace, machine)
    assert isinstance(found, dict)
    assert found["moved"]["file->dram"] > 0
    assert figures("smallest", trace, machine) != found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(page_traces(), st.data())
def test_it_is_demand_on_random_steps_and_machines(trace: Trace, data: st.DataObject) -> None:
    machine = data.draw(machines(peak(live_bytes(trace))))
    assert figures("like_demand", trace, machine) == figures("demand", trace, machine)


def test_a_candidate_is_a_storage_of_the_step_that_is_there_and_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, seen = network(8), []

    def looks(candidates: Candidates) -> Floats:
        seen.append(candidates)
        return candidates.nbytes * 0.0

    monkeypatch.setattr("ebbtide.simulator.SCORES", {"looks": looks})
    simulate_policy("looks", trace, disk().with_budget(peak(needed_bytes(trace))))
    assert seen
    for one in seen:
        assert len(set(one.storage.tolist())) == len(one.storage)
        assert (one.nbytes == trace.storages.nbytes[one.storage]).all()
        assert not trace.storages.scratch[one.storage].any()
        assert (one.idle_ticks >= 0).all()
    assert {clean for one in seen for clean in one.is_clean.tolist()} == {True, False}


def test_one_that_breaks_its_promise_is_named(tmp_path: Path) -> None:
    trace = network(8)
    machine = disk().with_budget(peak(needed_bytes(trace)))
    with pytest.raises(
        SettingError, match="the policy 'fails' of an unknown package failed: KeyError: 'no such storage'"
    ):
        simulate_policy("fails", trace, machine)
    with pytest.raises(SettingError, match="the policy 'one_too_many' must return one number for each of"):
        simulate_policy("one_too_many", trace, machine)
    assert "KeyError: 'no such storage'" in trials.try_policy("fails", trace, disk(), peak(needed_bytes(trace))).why_not
    with pytest.raises(SettingError, match="'smallest' of another package can be simulated only"):
        is_planned("smallest")


def test_compare_ranks_it_in_one_line_and_the_names_of_ours_stay_ours(tmp_path: Path) -> None:
    steps = [tmp_path / "small.trace", tmp_path / "large.trace"]
    for layers, path in zip((3, 8), steps, strict=True):
        save(network(layers=layers), path)
    words = ["compare", *map(str, steps), "--machine", "h200", "--fast", "50%", "--policy", "smallest,g10,demand"]
    found = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert {one["policy"]: one["plans"] for one in found["standings"]} == {"smallest": 2, "g10": 2, "demand": 2}
    assert sorted(name for name in trials.policies() if name == "g10") == ["g10"]
    assert set(trials.policies()) >= {"smallest", "fails"}
