"""How policies stand over several steps: by hand, against a plain sort, and in the table of ``ebbtide compare``."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.analysis.standings import Cell, places, standings
from ebbtide.ir.files import save
from ebbtide.machines import find_machine
from ebbtide.pipeline.trials import again, noisy, try_policy
from tests.helpers.cli import call as run
from tests.helpers.make_steps import network

POLICIES = ("ebbtide", "g10", "lru", "resident")


def test_places_and_medians_by_hand() -> None:
    cells = [
        Cell("25%", {"a": 1.0, "b": 1.5, "c": None}, ({"a": 1.25, "b": 1.5, "c": None},)),
        Cell("25%", {"a": 1.5, "b": 1.5, "c": None}, ({"a": 1.75, "b": 1.5, "c": None},)),
        Cell("1GiB", {"a": 2.0, "b": 1.0, "c": 1.0}, ({"a": 2.0, "b": 1.0, "c": 3.0},)),
    ]
    a, b, c = sorted(standings(cells, ["1GiB", "25%", "50%"]), key=lambda one: one.policy)
    assert [one.policy for one in standings(cells, ["25%", "1GiB"])] == ["b", "a", "c"]
    assert (a.plans, b.plans, c.plans) == (3, 3, 1)
    assert a.place == pytest.approx((1 + 1.5 + 3) / 3)
    assert b.place == pytest.approx((2 + 1.5 + 1.5) / 3)
    assert c.place == pytest.approx((3 + 3 + 1.5) / 3)
    assert list(a.over_bound) == ["1GiB", "25%"]
    assert a.over_bound == {"25%": 1.25, "1GiB": 2.0}
    assert c.over_bound == {"25%": None, "1GiB": 1.0}
    assert (a.noisy_place, a.noisy_over_bound) == (pytest.approx((1 + 2 + 2) / 3), 1.75)
    assert (c.noisy_place, c.noisy_over_bound) == (3.0, None)
    assert standings([replace(cell, noisy=()) for cell in cells], ["25%"])[0].noisy_place is None
    assert standings([], ["25%"]) == []


@given(st.lists(st.one_of(st.none(), st.integers(1, 4)), min_size=1, max_size=7))
def test_a_place_is_the_mean_of_those_that_equals_take_in_a_sort(times: list[int | None]) -> None:
    found = places({str(number): time for number, time in enumerate(times)})
    in_order = sorted(9 if time is None else time for time in times)
    for number, time in enumerate(times):
        taken = [place for place, other in enumerate(in_order, 1) if other == (9 if time is None else time)]
        assert found[str(number)] == sum(taken) / len(taken)


def test_noise_changes_each_time_by_no_more_than_its_share_and_repeats() -> None:
    trace = network(8)
    times = trace.ticks.time_ns
    drawn = noisy(trace, 0.25, seed=1).ticks.time_ns
    assert (drawn != times).all()
    assert (np.abs(drawn - times) <= 0.25 * times + 0.5).all()
    assert np.array_equal(drawn, noisy(trace, 0.25, seed=1).ticks.time_ns)
    assert not np.array_equal(drawn, noisy(trace, 0.25, seed=2).ticks.time_ns)
    assert noisy(trace, 0.25, seed=1).signature() == trace.signature()


def test_under_noise_the_same_plan_is_simulated_and_held_against_that_steps_bound() -> None:
    trace, machine = network(5), find_machine("dram-cxl")
    budget = int(trace.storages.nbytes.sum()) // 3
    for policy in POLICIES[:3]:
        row = try_policy(policy, trace, machine, budget)
        assert again(row, trace, machine) == row.over_bound
        overs = [again(row, noisy(trace, 0.25, seed), machine) for seed in range(3)]
        assert len({*overs, row.over_bound}) == 4
        assert all(over is not None and over >= 1 for over in overs)
    assert again(try_policy("resident", trace, machine, budget), trace, machine) is None


def test_compare_over_steps_and_machines_has_the_cells_that_it_has_alone(tmp_path: Path) -> None:
    steps = [tmp_path / "small.trace", tmp_path / "large.trace"]
    for layers, path in zip((6, 8), steps, strict=True):
        save(network(layers=layers), path)
    machines = ("--machine", "rtx4090", "--machine", "h200")
    asked = ("--fast", "50%,2MiB,100%", "--policy", ",".join(POLICIES))
    found = json.loads(run("compare", *steps, *machines, *asked, "--noise", 25, "--json").stdout)
    cells = found["cells"]
    assert len(cells) == 2 * 2 * 3 * len(POLICIES)
    alone = json.loads(run("compare", steps[1], "--machine", "h200", *asked, "--json").stdout)
    mine = [row for row in cells if row["trace"] == str(steps[1]) and row["machine"].startswith("one H200")]
    varying = ("took_s", "noisy_over_bound")
    assert [{k: v for k, v in row.items() if k not in varying} for row in mine] == [
        {k: v for k, v in row.items() if k not in varying} for row in alone
    ]
    assert {row["fast"] for row in cells if not row["counts"]} == {"100%"}
    assert all(len(row["noisy_over_bound"]) == 3 for row in cells)
    for one in found["standings"]:
        rows = [row for row in cells if row["policy"] == one["policy"] and row["counts"]]
        assert one["plans"] == sum(row["feasible"] for row in rows)
        assert one["place"] == pytest.approx(sum(row["place"] for row in rows) / len(rows))
        halves = [row["gap"] + 1 for row in rows if row["fast"] == "50%" and row["feasible"]]
        assert one["over_bound"]["50%"] == (pytest.approx(np.median(halves)) if halves else None)
    assert found["standings"][0]["policy"] == "ebbtide"

    shown = run("compare", *steps, *machines, *asked, "--noise", 25)
    assert shown.exit_code == 0, shown.output
    header, *rows = shown.stdout.splitlines()[1:-1]
    assert header.split() == ["policy", "place", "plans", "50%", "2MiB", "noisy", "place", "noisy"]
    assert [row.split()[0] for row in rows] == [one["policy"] for one in found["standings"]]
    assert "left out: 4 cells" in shown.stdout
    nothing = run("compare", *steps, *machines, "--fast", "100%", "--policy", "lru").stdout
    assert nothing == "none of 4 cells counts: each budget holds everything, or nobody has a plan\n"
