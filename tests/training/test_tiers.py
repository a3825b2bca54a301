"""Runs with tiers between memory and the spill file: the same bits, and bytes really lie there."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

import ebbtide
from ebbtide import _torch
from ebbtide.errors import SessionError, SettingError
from ebbtide.ir.files import load
from ebbtide.ir.machine import InPlace
from ebbtide.ir.run_report import RunReport
from ebbtide.ir.timeline import Timeline
from ebbtide.planners import PLANNERS
from ebbtide.planning.policies import machine_for
from ebbtide.probe.quick import probe_quick
from ebbtide.probe.tiers_between import render_between
from ebbtide.settings import Settings
from ebbtide.units import GIB
from tests.helpers import child
from tests.helpers.command import EBBTIDE, run
from tests.training.same_bits import CASES, Verdict, begin, train, train_plainly, verdict
from tests.training.test_mishaps import refused_in_mid_step

SMALLEST = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_CHECKSUM": "1"}
NODE_0 = {"EBBTIDE_TIERS": "numa:0:32MiB"}
BOTH = {"EBBTIDE_TIERS": "compressed:8MiB,numa:0:2MiB"}
WHOLE = SMALLEST | {"EBBTIDE_TIERS": "numa:0:1GiB"}  # room for all
NET = "tied-weights"
STEPS = 6


def compare(name: str, fast: str, policy: str) -> tuple[Verdict, tuple[int, ...]]:
    """The case plainly and under the tiers of the environment, and the bytes that were read from each."""
    case = CASES[name]
    plain = train_plainly(case, STEPS)
    settings = Settings.from_environment().but(wait_for_plan=policy != "demand")
    with ebbtide.Session(fast=fast, policy=policy, settings=settings) as session:
        ours = begin(case)
        train(ours, STEPS, session)
    return verdict(plain, ours, session), _torch.counters()["tier_read_bytes"]


def used_in_place(policy: str) -> tuple[str, list[int], list[int]]:
    """A run over a node that has room for all, with the same bits and no fault: the last step's mode, the bytes in the
    node after each step, and those out of fast memory and back in it."""
    case = CASES[NET]
    plain = train_plainly(case, STEPS)
    settings = Settings.from_environment().but(wait_for_plan=policy in PLANNERS)
    in_tier: list[int] = []
    with ebbtide.Session(fast="50%", policy=policy, settings=settings) as session:
        ours = begin(case)
        for _ in range(STEPS):
            train(ours, 1, session)
            in_tier.append(_torch.counters()["tier_bytes"][0])
    steps = session.report().steps
    moved = [each.evicted_bytes.total + each.fetched_bytes.total for each in steps]
    found = verdict(plain, ours, session)
    assert (found.differences, _torch.counters()["faults"]) == ((), 0)
    assert in_tier[-1] > 0
    return found.modes[-1], in_tier, moved


def two_sessions(first: dict[str, str], second: dict[str, str]) -> str:
    """What the second says."""
    with ebbtide.Session(fast="1GiB", policy="demand", **first):
        pass
    try:
        with ebbtide.Session(fast="1GiB", policy="demand", **second):
            pass
    except SessionError as error:
        return str(error)
    return ""


def refused(tiers: str | None) -> str:
    """What a session says of such tiers; those of the environment for None."""
    with pytest.raises(SettingError) as raised, ebbtide.Session(fast="50%", policy="demand", tiers=tiers):
        raise AssertionError("its block was entered")
    return str(raised.value)


def a_disk_that_fills_up(place: str) -> tuple[str, tuple[int, ...]]:
    """What a step raises that needs more than the tier and the disk have left, once somebody has taken the rest. With
    the bytes that were read from each tier."""
    ballast = Path(place, "ballast")

    def fill() -> None:
        free = os.statvfs(place)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - (2 << 20))

    return refused_in_mid_step(fill, ballast.unlink), _torch.counters()["tier_read_bytes"]


@pytest.mark.in_child(SMALLEST | BOTH)
@pytest.mark.alike
@pytest.mark.parametrize("name", sorted(CASES))
def test_demand_mode_over_four_tiers_ends_with_the_same_bits(name: str) -> None:
    verdict, read = compare(name, "50%", "demand")
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
    verdict, read = child.run(compare, NET, "50%", "ebbtide", env=environment)
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


@pytest.mark.in_child(WHOLE)
def test_what_a_plan_places_on_a_node_is_used_there_and_does_not_move() -> None:
    mode, in_tier, moved = used_in_place("autotm-static")
    assert mode == "planned"
    assert min(in_tier[-2:]) > 0
    assert moved[-1] == 0  # what lay in fast memory has gone there by then


@pytest.mark.in_child(WHOLE)
@pytest.mark.alike
@pytest.mark.parametrize("policy", ["tiertrain", "autotm-async"])
def test_planners_move_pages_to_a_node_and_back(policy: str) -> None:
    mode, _, moved = used_in_place(policy)
    assert mode == "planned"
    # By this machine's times autotm-async may let all lie in place in the end.
    assert sum(moved if policy == "autotm-async" else moved[-1:]) > 0


@pytest.mark.in_child(WHOLE)
@pytest.mark.parametrize("policy", ["first-touch", "reactive"])
def test_births_that_find_no_room_go_to_a_node_under_policies_that_say_so(policy: str) -> None:
    assert (used_in_place(policy)[2][-1] == 0) == (policy == "first-touch")


def test_the_tiers_of_a_process_stay(tmp_path: Path) -> None:
    small, large = {"tiers": "numa:0:2MiB"}, {"tiers": "numa:0:4MiB"}
    assert "which stay: name the same" in child.run(two_sessions, small, large, env=SMALLEST)
    assert child.run(two_sessions, small, small, env=SMALLEST) == ""
    there = {"spill": str(tmp_path)}
    assert "which stays: name the same" in child.run(two_sessions, {}, there, env=SMALLEST)
    assert child.run(two_sessions, there, {}, env=SMALLEST) == ""


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
    assert said in child.run(refused, tier)
    assert said in child.run(refused, None, env={"EBBTIDE_TIERS": tier})


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
