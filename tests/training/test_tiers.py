"""Runs with tiers between memory and the spill file: the same bits, and bytes really lie there."""

from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.errors import SettingError
from ebbtide.ir.files import load
from ebbtide.ir.machine import InPlace
from ebbtide.ir.run_report import RunReport
from ebbtide.ir.timeline import Timeline
from ebbtide.planning.policies import machine_for
from ebbtide.probe.quick import probe_quick
from ebbtide.probe.tiers_between import render_between
from ebbtide.settings import Settings
from ebbtide.units import GIB
from tests.helpers import child
from tests.helpers.command import EBBTIDE, run
from tests.training.cases_tiers import InPlace as Ran
from tests.training.same_bits import CASES

SMALLEST = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_CHECKSUM": "1"}
NODE_0 = {"EBBTIDE_TIERS": "numa:0:32MiB"}
BOTH = {"EBBTIDE_TIERS": "compressed:8MiB,numa:0:2MiB"}
NET = "tied-weights"

pytestmark = pytest.mark.starts


@pytest.mark.alike
@pytest.mark.parametrize("name", sorted(CASES))
def test_demand_mode_over_four_tiers_ends_with_the_same_bits(name: str) -> None:
    verdict, read = child.run("cases_tiers:compare", name, "50%", "demand", env=SMALLEST | BOTH)
    assert verdict.differences == ()
    assert sum(verdict.evicted_bytes.values()) > 0
    assert sum(verdict.fetched_bytes.values()) > 0
    assert len(read) == 3
    assert read[0] + read[1] > 0


def with_a_slow_disk(tiers: dict[str, str], folder: Path) -> dict[str, str]:
    """A machine on which a plan prefers a node to the file, whatever load the file's disk has, and brings back from it
    what is used."""
    machine = machine_for(Settings().but(tiers=tiers["EBBTIDE_TIERS"]), [folder])
    links = tuple(
        replace(link, bytes_per_s=10**8 if "file" in (link.source, link.target) else 10**10, shares=None)
        for link in machine.links
    )
    path = folder / "machine.toml"
    fast, *slower = machine.tiers
    tiers_alone = (fast, *(replace(tier, in_place=InPlace.NOTHING) for tier in slower))
    path.write_text(replace(machine, tiers=tiers_alone, links=links, groups=()).to_toml())
    return tiers | {"EBBTIDE_MACHINE": str(path)}


@pytest.mark.alike
@pytest.mark.parametrize("tiers", [NODE_0, BOTH])
def test_a_planned_run_uses_its_tiers_and_ends_with_the_same_bits(tiers: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "step.timeline"
    report = tmp_path / "report.json"
    saved = {"EBBTIDE_SAVE_TIMELINE": str(path), "EBBTIDE_REPORT": str(report)}
    environment = SMALLEST | with_a_slow_disk(tiers, tmp_path) | saved
    verdict, read = child.run("cases_tiers:compare", NET, "50%", "ebbtide", env=environment)
    assert verdict.differences == ()
    assert "planned" in verdict.modes
    assert read[-2] > 0  # of the node, the last before the file
    lanes = {span.lane for span in load(path, Timeline).spans if span.nbytes}
    assert {"dram->numa0", "numa0->dram"} <= lanes
    plan = RunReport.from_json(report.read_text()).plan
    assert plan is not None
    assert plan.measured_s is not None
    assert {"dram->numa0", "numa0->dram"} <= {link.name for link in plan.links if link.measured_bytes}
    assert sum(link.forecast_bytes for link in plan.links) > 0


def used_in_place(policy: str) -> Ran:
    """A run over a node that has room for all, with the same bits and no fault."""
    environment = SMALLEST | {"EBBTIDE_TIERS": "numa:0:1GiB"}
    found = child.run("cases_tiers:used_in_place", NET, "50%", policy, env=environment)
    assert (found.verdict.differences, found.faults) == ((), 0)
    assert found.in_tier[-1] > 0
    return found


def test_what_a_plan_places_on_a_node_is_used_there_and_does_not_move() -> None:
    found = used_in_place("autotm-static")
    assert found.verdict.modes[-1] == "planned"
    assert min(found.in_tier[-2:]) > 0
    assert found.moved[-1] == 0  # what lay in fast memory has gone there by then


@pytest.mark.alike
@pytest.mark.parametrize("policy", ["tiertrain", "autotm-async"])
def test_planners_move_pages_to_a_node_and_back(policy: str) -> None:
    found = used_in_place(policy)
    assert found.verdict.modes[-1] == "planned"
    # By this machine's times autotm-async may let all lie in place in the end.
    moved = found.moved if policy == "autotm-async" else found.moved[-1:]
    assert sum(moved) > 0


@pytest.mark.parametrize("policy", ["first-touch", "reactive"])
def test_births_that_find_no_room_go_to_a_node_under_policies_that_say_so(policy: str) -> None:
    assert (used_in_place(policy).moved[-1] == 0) == (policy == "first-touch")


def test_the_tiers_of_a_process_stay(tmp_path: Path) -> None:
    small, large = {"tiers": "numa:0:2MiB"}, {"tiers": "numa:0:4MiB"}
    assert "which stay: name the same" in child.run("cases_tiers:two_sessions", small, large, env=SMALLEST)
    assert child.run("cases_tiers:two_sessions", small, small, env=SMALLEST) == ""
    there = {"spill": str(tmp_path)}
    assert "which stays: name the same" in child.run("cases_tiers:two_sessions", {}, there, env=SMALLEST)
    assert child.run("cases_tiers:two_sessions", there, {}, env=SMALLEST) == ""


MISSING, TOO_LARGE = ("numa:63:1GiB", "there is no NUMA node 63"), ("numa:0:900TiB", "less than the 900 TiB asked for")
WRONG = [
    MISSING,
    TOO_LARGE,
    ("compressed:300GiB", "to 256 GiB"),
    ("numa:x:1GiB", "is not understood"),
    ("", "names no"),
]


@pytest.mark.parametrize(("tier", "said"), WRONG)
@pytest.mark.parametrize("command", [("run", "--policy=demand", "--fast=50%"), ("run",), ("verify",), ("probe",)])
def test_a_tier_that_cannot_be_had_is_refused_before_anything_runs(
    command: tuple[str, ...], tier: str, said: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("open('ran', 'w')")
    asked = [EBBTIDE, *command, "--tier", tier, *([str(script)] if command != ("probe",) else [])]
    finished = run(*asked, cwd=tmp_path, status=2)
    assert said in finished.stderr.splitlines()[-1]
    assert "Traceback" not in finished.stderr
    assert "plain run" not in finished.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("tier", "said"), WRONG[:4])
def test_a_session_refuses_it_before_its_block(tier: str, said: str) -> None:
    assert said in child.run("cases_tiers:refused", tier)
    assert said in child.run("cases_tiers:refused", None, env={"EBBTIDE_TIERS": tier})


def test_a_machine_is_one_of_the_tiers_that_a_run_has(tmp_path: Path) -> None:
    spill = [tmp_path]
    settings = Settings().but(tiers="numa:0:1GiB,compressed:1GiB")
    machine = machine_for(settings, spill)
    assert [tier.name for tier in machine.tiers] == ["dram", "numa0", "compressed", "file"]
    assert [tier.in_place.value for tier in machine.tiers] == ["all", "all", "nothing", "nothing"]
    assert machine.exclusive
    assert machine.tiers[2].capacity_bytes == GIB
    assert machine.packing == {"compressed"}
    assert f"{'numa0 in place':<24}read at " in render_between(machine)
    assert all(machine.link(a.name, b.name) is not None for a in machine.tiers for b in machine.tiers if a is not b)
    file = tmp_path / "machine.toml"
    file.write_text(machine.to_toml())
    assert machine_for(settings.but(machine=file), spill).tiers == machine.tiers
    with pytest.raises(SettingError, match=r"has 4 tiers .*, and this run has 2: memory and the spill file"):
        machine_for(Settings().but(machine=file), spill)
    file.write_text(probe_quick(spill).to_toml())
    said = r"has 2 tiers .*, and this run has 4: memory, numa0, compressed and .*`ebbtide probe` with the same `--tier`"
    with pytest.raises(SettingError, match=said):
        machine_for(settings.but(machine=file), spill)
