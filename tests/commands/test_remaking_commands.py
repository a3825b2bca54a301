"""What commands say of a plan that makes contents anew."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ebbtide.cli import cli
from ebbtide.ir.files import load, save
from ebbtide.ir.plan import Plan
from ebbtide.ir.remakes import made_anew, remade, remakes_of
from ebbtide.ir.trace import Trace
from ebbtide.report.plan_data import away_data
from ebbtide.report.subject import Subject
from tests.helpers.make_remakes import repeating
from tests.helpers.make_steps import network

MACHINE = """
format = "ebbtide-machine"
version = 1
name = "a slow disk"
origin = "assumed"
tiers = [{name = "dram", in_place = "all"}, {name = "file", in_place = "nothing"}]
links = [
    {source = "dram", target = "file", bytes_per_s = 300_000_000},
    {source = "file", target = "dram", bytes_per_s = 300_000_000},
]
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    save(repeating(network(layers=8, width_bytes=2**20)), tmp_path / "step.trace")
    (tmp_path / "disk.toml").write_text(MACHINE)
    return tmp_path


def said(*arguments: object) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exception is None, result.output
    return result.stdout


def test_each_says_what_is_made_anew_and_what_that_takes(files: Path) -> None:
    step, on = files / "step.trace", ("--machine", files / "disk.toml", "--fast", "40%")
    planned = said("plan", step, *on, "-o", files / "made.plan")
    found = re.search(r"^made anew +(.+) are made anew in a step, in (.+): (.+) % of its compute$", planned, re.M)
    assert found is not None
    told = f"{found[1]} are made anew in a step, in {found[2]}: {found[3]} % of its compute"
    assert told in said("simulate", step, *on[:2], "--plan", files / "made.plan")
    compared = said("compare", step, *on, "--policy", "ebbtide,lru")
    assert f"ebbtide: {told}" in compared
    assert "lru:" not in compared
    assert told in " ".join(said("explain", step, "--at-peak", "--plan", files / "made.plan").split())
    trace, made = load(step, Trace), load(files / "made.plan", Plan)
    number = remakes_of(trace).chosen(remade(made.stays, trace)).storage[0]
    one = " ".join(said("explain", step, "--storage", number, "--plan", files / "made.plan").split())
    assert re.search(r"leaves at .+, without a copy; made anew at .+ by op\d+: 200 us", one)


def test_programs_are_told_how_much_that_is(files: Path) -> None:
    step, on = files / "step.trace", ("--machine", files / "disk.toml", "--fast", "40%")
    planned = json.loads(said("plan", step, *on, "-o", files / "made.plan", "--json"))
    found = {name: planned[name] for name in ("made_anew_bytes", "made_anew_ns")}
    assert (found["made_anew_bytes"], found["made_anew_ns"]) == made_anew(
        load(files / "made.plan", Plan), load(step, Trace)
    )
    assert found["made_anew_bytes"] > 0
    for row in json.loads(said("compare", step, *on, "--policy", "ebbtide,lru", "--json")):
        assert {name: row[name] for name in found} == (found if row["policy"] == "ebbtide" else dict.fromkeys(found, 0))


def test_the_page_shows_it_as_away(files: Path) -> None:
    said("plan", files / "step.trace", "--machine", files / "disk.toml", "--fast", "40%", "-o", files / "made.plan")
    trace, made = load(files / "step.trace", Trace), load(files / "made.plan", Plan)
    away = away_data(Subject(trace=trace, plan=made))
    assert away is not None
    remakes = remakes_of(trace).chosen(remade(made.stays, trace))
    shown = set(zip(away["storage"].tolist(), away["gone"].tolist(), away["back"].tolist(), away["tier"], strict=True))
    columns = (remakes.storage, remakes.gone, remakes.until)
    assert {(*row, "") for row in zip(*(column.tolist() for column in columns), strict=True)} <= shown


def test_a_plan_that_moves_everything_says_nothing_of_it(files: Path) -> None:
    save(network(layers=8, width_bytes=2**20), files / "moves.trace")
    assert "made anew" not in said("plan", files / "moves.trace", "--machine", files / "disk.toml", "--fast", "40%")
