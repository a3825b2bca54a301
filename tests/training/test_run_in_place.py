"""A run on a machine whose file lets operations use a slower tier in place."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.errors import EbbtideWarning
from ebbtide.ir.check import check_plan
from ebbtide.ir.files import load
from ebbtide.ir.machine import InPlace, Tier
from ebbtide.ir.occupancy import arena_pages
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import Trace
from ebbtide.planners import plan
from ebbtide.planning.policies import machine_for
from ebbtide.settings import Settings
from tests.helpers.command import EBBTIDE, TRAIN_MLP, run
from tests.helpers.make_steps import disk

MOVES = disk(latency_ns=1000)
FAST = MOVES.tiers[0]
FILE = Tier("file", InPlace.ALL, bytes_per_s=10**12)
"""So fast that a planner leaves in it what it can."""
IN_PLACE = replace(MOVES, tiers=(FAST, FILE))


def test_a_run_plans_without_use_in_place_and_says_so(tmp_path: Path) -> None:
    machine, trace, made, report = (tmp_path / name for name in ("machine.toml", "trace", "plan", "report"))
    machine.write_text(IN_PLACE.to_toml())
    size = ["--width", "512", "--depth", "4", "--rows", "512", "--steps", "5"]
    options = ["--fast", "40%", "--save-trace", trace, "--save-plan", made, "--report", report, "--machine", machine]
    finished = run(*map(str, [EBBTIDE, "run", *options, TRAIN_MLP, *size]), status=0)
    assert f"{machine} lets operations use file in place" in finished.stderr
    assert [step["mode"] for step in json.loads(report.read_text())["steps"]] == ["recorded"] * 2 + ["planned"] * 3
    step, followed = load(trace, Trace), load(made, Plan)
    assert check_plan(followed, step, MOVES.with_budget(followed.budget_bytes), arena_pages) == ()
    offered = plan("ebbtide", step, IN_PLACE, followed.budget_bytes)  # what a run cannot do
    assert check_plan(offered, step, MOVES.with_budget(followed.budget_bytes), arena_pages) != ()


def test_the_machine_of_a_run_is_its_files_but_for_use_in_place(tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(IN_PLACE.to_toml())
    with pytest.warns(EbbtideWarning, match="lets operations use file in place"):
        machine = machine_for(Settings(machine=str(file)), [])
    assert machine == replace(IN_PLACE, tiers=(FAST, replace(FILE, in_place=InPlace.NOTHING)))
    file.write_text(MOVES.to_toml())
    assert machine_for(Settings(machine=str(file)), []) == MOVES  # and no warning, which would be an error here
