"""The page of a sweep: its data against naive counts, what the command writes, and what a person sees in Chromium."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.analysis.sweep import MEMORY, OWNERSHIP, Point, cheapest, frontier
from ebbtide.cli import cli
from ebbtide.ir.files import save
from ebbtide.report.packing import pack
from ebbtide.report.sweep_page import Sweep, render_sweep, sweep_data
from tests.helpers.make_page import SCRIPT, column, step
from tests.report.test_page import unpack

GB = 10**9
POINTS = (
    Point(GB, 1.0, None, None, None),  # infeasible
    Point(2 * GB, 1.0, 50_000_000, 20.0, 9e-6),
    Point(2 * GB, 2.0, 30_000_000, 20.0, 6e-6),
    Point(4 * GB, 1.0, 20_000_000, 40.0, 5e-6),
    Point(4 * GB, 2.0, 20_000_000, 45.0, 5e-6),
    Point(8 * GB, 1.0, 10_000_000, 80.0, 4e-6),
    Point(8 * GB, 2.0, 10_000_000, 80.0, 7e-6),
)
SWEEP = Sweep(SCRIPT, "made <b>up</b>", "lru", False, 10_000_000, 8 * GB, 10 * GB, 3.0, POINTS)


@given(
    st.lists(
        st.builds(
            Point,
            st.integers(1, 3),
            st.sampled_from([1.0, 2.0]),
            st.none() | st.integers(1, 5),
            st.none() | st.integers(0, 5).map(float),
            st.none() | st.integers(0, 5).map(float),
        )
    ),
    st.integers(0, 6),
)
def test_frontier_and_cheapest_are_those_of_a_naive_count(points: list[Point], most_ns: int) -> None:
    for price in (MEMORY, OWNERSHIP):
        found, best = frontier(points, price), cheapest(points, price, most_ns)
        known = [row for row in points if row.step_ns is not None and row.price(price) is not None]
        costs = {step_ns: min(row.price(price) or 0 for row in known if (row.step_ns or 0) <= step_ns)
                 for step_ns in {row.step_ns or 0 for row in known}}  # fmt: skip
        for row in known:
            faster = [cost for step_ns, cost in costs.items() if step_ns < (row.step_ns or 0)]
            is_best = row.price(price) == costs[row.step_ns or 0] and (row.price(price) or 0) < min(faster, default=9)
            assert (row in found) == is_best
        within = [row.price(price) for row in known if (row.step_ns or 0) <= most_ns]
        assert (None if best is None else best.price(price)) == min(within, default=None)  # type: ignore[type-var]


def test_the_page_has_the_sweep_as_it_is() -> None:
    data = unpack(pack(sweep_data(SWEEP)))
    assert [row["step_ns"] for row in data["points"]] == [row.step_ns for row in POINTS]
    assert [row["ratio"] for row in data["points"]] == ["1:7", "1:3", "1:3", "1:1", "1:1", "1:0", "1:0"]
    assert data["stairs"] == {MEMORY: [5, 6, 3, 2], OWNERSHIP: [5]}
    # 30 ms for 2 GB, then 10 ms for 4 GB; 20 ms for 10 GB/s more.
    assert [row["ns_per_gb"] for row in data["points"]] == [None, 15e6, 5e6, 2.5e6, 2.5e6, None, None]
    assert [row["ns_per_gb_per_s"] for row in data["points"]] == [None, 2e6, None, 0, None, 0, None]
    ratios = data["ratios"]
    assert (ratios["bandwidth"], ratios["of"], ratios["places"]) == (1, "1:0", [1, 3, 5])
    assert (ratios["step"], ratios[MEMORY]) == ([5, 2, 1], [0.25, 0.5, 1])
    assert ratios[OWNERSHIP] == pytest.approx([9 / 4, 5 / 4, 1])
    assert data["target_ns"] == 30_000_000
    assert dict(data["facts"])["cheapest within 3 resident steps, by the price of memory"] == "1.86 GiB fast, links x 2"
    assert dict(data["facts"])["cheapest within 3 resident steps, by the total cost of a step"].startswith("7.45 GiB")


def test_a_machine_without_prices_has_no_costs() -> None:
    free = tuple(replace(row, memory_usd=None, step_usd=None) for row in POINTS)
    data = sweep_data(replace(SWEEP, points=free, target=None))
    assert data["stairs"] == {MEMORY: [], OWNERSHIP: []}
    assert data["ratios"][MEMORY] == [None] * 3
    assert sweep_data(replace(SWEEP, points=POINTS[:1]))["ratios"] is None


def test_the_command_writes_what_it_shows(tmp_path: Path) -> None:
    save(step(), tmp_path / "step.trace")
    base = ["sweep", str(tmp_path / "step.trace"), "--machine", "dram-optane", "--policy", "first-touch"]
    grid = ["--fast", "1:1,1:0", "--links", "1,2", "--target", "1.5", "--json"]
    done = CliRunner().invoke(cli, [*base, *grid, "-o", str(tmp_path / "sweep.html")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "sweep.html").read_text()
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|https?://", page)
    assert SCRIPT not in page
    data = unpack(re.findall(r'id="data">([^<]*)<', page)[0])
    rows = json.loads(done.stdout)
    assert len(rows) == 4
    for row, point in zip(rows, data["points"], strict=True):
        for name in ("fast_bytes", "bandwidth", "step_ns", MEMORY, OWNERSHIP, "ns_per_gb", "ns_per_gb_per_s"):
            assert point[name] == row[name]
        assert point["frontier"] == {MEMORY: "m" in row["frontier"], OWNERSHIP: "t" in row["frontier"]}
    refused = CliRunner().invoke(cli, [*base, "--fast", "1:0", "-o", str(tmp_path / "no" / "sweep.html")])
    assert "No such file" in str(refused.exception)


# ---- in a browser ------------------------------------------------------------------------------------------------

Show = Callable[[Sweep], Any]


@pytest.fixture
def show(open_page: Callable[..., Any]) -> Show:
    return lambda sweep: open_page(render_sweep(sweep), width=1200)


def drawn(page: Any, section: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.evaluate(
        """(section) => document.querySelector(`#${section} .chart`).data.map(
               ({ name, x, y }) => ({ name, x: Array.from(x), y: Array.from(y) }))""",
        section,
    )
    return found


def test_charts_have_the_machines_and_their_frontier(show: Show) -> None:
    page = show(SWEEP)
    one, two, line = drawn(page, "frontier")
    assert one == {"name": "links \u00d7 1", "x": [50, 20, 10], "y": [20, 40, 80]}
    assert two == {"name": "links \u00d7 2", "x": [30, 20, 10], "y": [20, 45, 80]}
    assert (line["x"], line["y"]) == ([10, 10, 20, 30], [80, 80, 40, 20])
    page.check("input[value=step_usd]")
    assert drawn(page, "frontier")[0]["y"] == pytest.approx([9e-3, 5e-3, 4e-3])
    assert drawn(page, "frontier")[2]["x"] == [10]
    times, memory, total = drawn(page, "ratios")
    assert times == {"name": "step time", "x": ["1:3", "1:1", "1:0"], "y": [5, 2, 1]}
    assert memory["y"] == [0.25, 0.5, 1]
    assert total["y"] == pytest.approx([2.25, 1.25, 1])
    assert [row["y"] for row in drawn(page, "gb")] == [[15, 2.5], [5, 2.5]]
    assert [row["y"] for row in drawn(page, "rate")] == [[2], [0], [0]]
    assert sorted(column(page, "#machine-table", 4)) == sorted(
        ["infeasible", "50.0 ms", "30.0 ms", "20.0 ms", "20.0 ms", "10.0 ms", "10.0 ms"]
    )
    assert "made <b>up</b>" in page.locator("#source").inner_text()
    assert page.locator("h1").inner_text() == f"{SCRIPT}: what memory to buy"


def test_the_name_of_a_line_stands_on_the_side_that_has_room(show: Show) -> None:
    page = show(replace(SWEEP, target=4.5))
    sides = page.evaluate(
        """() => document.querySelector("#frontier .chart").layout.annotations.map(({ x, xanchor }) => [x, xanchor])"""
    )
    low, high = page.evaluate("""() => document.querySelector("#frontier .chart").layout.xaxis.range""")
    assert len(sides) == 2
    assert [side for _, side in sides] == ["right" if x > (low + high) / 2 else "left" for x, _ in sides]
    assert {side for _, side in sides} == {"left", "right"}


def test_without_prices_there_is_no_frontier_but_the_rest(show: Show) -> None:
    free = tuple(replace(row, memory_usd=None, step_usd=None) for row in POINTS)
    page = show(replace(SWEEP, points=free))
    assert not page.locator("#frontier").is_visible()
    assert [row["name"] for row in drawn(page, "ratios")] == ["step time"]
    assert page.locator("#machine-table tbody tr").count() == len(POINTS)
