"""The page in headless Chromium: what a person sees, clicks and types. Skipped where there is no browser to drive.

Chromium comes from the system (Debian: ``apt-get install chromium``), playwright from PyPI.
"""

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebbtide.analysis.memory import contents_at, memory_of, peak_of
from ebbtide.analysis.swapping import candidates_of
from ebbtide.ir.base import Origin
from ebbtide.ir.trace import Accesses, Storage, StorageKind, Storages, Tick, Ticks, Trace
from ebbtide.report import page as page_module
from ebbtide.report import page_data
from ebbtide.report.page import render_page
from ebbtide.report.subject import Subject
from ebbtide.units import MIB
from tests.helpers.make_page import IMAGE, LINK, MS, PATIENCE_MS, SCRIPT, column, step, subject
from tests.ir.test_report_format import REPORT

Show = Callable[..., Any]


@cache
def trace_of(n_storages: int) -> Trace:
    """Random lives, sizes, kinds and accesses; the modules are h.0 to h.9."""
    rng = np.random.default_rng(7)
    n_ticks = 2000
    times = rng.integers(10**4, 10**6, n_ticks).tolist()
    ticks = tuple(Tick(time, f"op{at % 5}", f"h.{at * 10 // n_ticks}") for at, time in enumerate(times))
    storages, uses = [], []
    for number in range(n_storages):
        birth = int(rng.integers(0, n_ticks))
        death = birth + int(rng.integers(1, n_ticks // 10))
        kind = list(StorageKind)[1 + number % 4]
        storages.append(Storage(int(rng.integers(1, 8 * MIB)), kind, birth, death, ticks[birth].module))
        uses += [(number, tick, 1 + tick % 3) for tick in np.unique(rng.integers(birth, death, 5)).tolist()]
    columns, name = np.array(uses).T, f"{n_storages} storages"
    return Trace(name, Origin.ASSUMED, Ticks.from_rows(ticks), Storages.from_rows(storages), Accesses(*columns))


def spike() -> Trace:
    """A second, in the first 0.1 ms of which 64 MiB are there, and 1 MiB afterwards."""
    ticks = tuple(Tick(time_ns, "aten::mm") for time_ns in (MS // 10, MS // 10, 800 * MS, 200 * MS - MS // 5))
    sizes = ((63 * MIB, 0, 1), (MIB, 0, 4))
    storages = tuple(Storage(nbytes, StorageKind.GRADIENT, birth, death) for nbytes, birth, death in sizes)
    uses = Accesses((0, 1), (0, 2), (2, 1))
    return Trace("spike", Origin.ASSUMED, Ticks.from_rows(ticks), Storages.from_rows(storages), uses)


def numbered() -> Trace:
    """Four parameters as large as each other, of modules with numbers."""
    rows = tuple(Storage(MIB, StorageKind.PARAMETER, 0, 10, name, persistent=True) for name in ("12", "0", "10", "2"))
    uses = Accesses((0, 1, 2, 3), (1, 1, 1, 1), (1, 1, 1, 1))
    return replace(step(), storages=Storages.from_rows(rows), accesses=uses)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "small": subject,
    "run": lambda: replace(subject(), run=replace(REPORT, arena_budget_bytes=30 * MIB)),
    "random": lambda: Subject(trace_of(150), route=subject().route, machine="made up"),
    "large": lambda: Subject(trace_of(20_000), route=None),
    "spike": lambda: Subject(spike()),
    "numbered": lambda: Subject(numbered()),
}


@pytest.fixture
def show(open_page: Show) -> Show:
    return lambda name, *args, **options: open_page(render_page(SUBJECTS[name]()), *args, **options)


def drawn(page: Any) -> dict[str, Any]:
    """What the Gantt chart has: how many bars (one for each piece of a life) and marks, and its view."""
    found: dict[str, Any] = page.evaluate(
        """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
            const { layout } = document.querySelector("#storages .chart");
            const { bars, marks } = document.querySelector("#storages canvas").dataset;
            done({ bars: Number(bars), marks: Number(marks), x: layout.xaxis.range, y: layout.yaxis.range });
        })))"""
    )
    return found


def painted(page: Any, points: list[tuple[float, float]]) -> list[list[int]]:
    """Red, green, blue and opacity of the chart's bars at (part of the step's time, row)."""
    found: list[list[int]] = page.evaluate(
        """(points) => {
            const canvas = document.querySelector("#storages canvas");
            const [bottom, top] = document.querySelector("#storages .chart").layout.yaxis.range;
            const picture = canvas.getContext("2d");
            return points.map(([part, row]) => {
                const y = Math.floor(((row - top) / (bottom - top)) * canvas.height);
                return Array.from(picture.getImageData(Math.floor(part * canvas.width), y, 1, 1).data);
            });
        }""",
        points,
    )
    return found


def line_in_all(page: Any) -> tuple[list[float], list[float], float]:
    """The line of all bytes in the memory chart, its times and levels, and the width of the chart in pixels."""
    x, y, pixels = page.evaluate(
        """() => {
            const { _fullData, _fullLayout } = document.querySelector("#memory .chart");
            const { x, y } = _fullData.find(({ name }) => name === "in all");
            return [Array.from(x), Array.from(y), _fullLayout.xaxis._length];
        }"""
    )
    return x, y, pixels


def pieces(storages: Sequence[Storage], n_ticks: int = 2000) -> int:
    """Bars: a life that runs past the step's end has two, unless it is as long as the step."""
    return sum(1 + (n_ticks < row.death and row.death - row.birth < n_ticks) for row in storages)


def test_a_large_step_is_drawn_whole(show: Show) -> None:
    trace = trace_of(20_000)
    page = show("large")
    chart = drawn(page)
    assert chart["bars"] == pieces(trace.storages)
    assert chart["marks"] == len(trace.accesses)
    assert page.locator("output").inner_text().startswith("20,000 of 20,000 storages")


def test_the_chart_has_the_storages_of_the_trace(show: Show) -> None:
    trace = trace_of(150)
    page = show("random")
    chart = drawn(page)
    assert chart["bars"] == pieces(trace.storages)
    assert chart["marks"] == len(trace.accesses)
    order = sorted(range(150), key=lambda number: (trace.storages[number].birth, number))
    starts = trace.start_ns(np.arange(len(trace.ticks) + 1)) / trace.step_ns
    whole = [(row, trace.storages[number]) for row, number in enumerate(order) if trace.storages[number].death < 2000]
    inside = painted(page, [((starts[life.birth] + starts[life.death]) / 2, row) for row, life in whole])
    outside = painted(page, [(starts[life.birth] - 0.005, row) for row, life in whole[20:]])
    assert all(opacity for *_, opacity in inside)
    assert not any(opacity for *_, opacity in outside)
    assert page.locator("output").inner_text().startswith("150 of 150 storages")
    assert "No machine is known" not in page.locator("#swap-text").inner_text()


def test_zoom_works_by_button_key_and_mouse(show: Show) -> None:
    page = show("random")
    chart = page.locator("#storages .chart")
    whole = drawn(page)
    page.locator("#storages").get_by_role("button", name="Zoom in").click()
    closer = drawn(page)
    assert closer["x"][1] - closer["x"][0] == pytest.approx((whole["x"][1] - whole["x"][0]) / 2)
    assert closer["bars"] < whole["bars"]
    chart.focus()
    page.keyboard.press("ArrowRight")
    assert drawn(page)["x"][0] > closer["x"][0]
    page.keyboard.press("ArrowUp")
    assert drawn(page)["y"][1] < closer["y"][1]
    page.keyboard.press("-")
    page.keyboard.press("-")
    assert drawn(page) == whole
    page.keyboard.press("+")
    assert drawn(page) == closer
    page.keyboard.press("0")
    assert drawn(page) == whole
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 150)
    page.mouse.down()
    page.mouse.move(box["x"] + 600, box["y"] + 300, steps=3)
    page.mouse.up()
    page.wait_for_timeout(100)
    dragged = drawn(page)
    assert whole["x"][0] < dragged["x"][0] < dragged["x"][1] < whole["x"][1]
    assert dragged["bars"] < whole["bars"]


def test_filters_by_module_kind_and_size_by_typing_and_by_key(show: Show) -> None:
    trace = trace_of(150)
    page = show("random")
    page.get_by_label("Module contains").fill("H.3")
    ours = [row for row in trace.storages if row.module == "h.3"]
    assert page.locator("output").inner_text().startswith(f"{len(ours)} of 150")
    assert drawn(page)["bars"] == pieces(ours)
    page.get_by_label("At least").fill("2.5")
    ours = [row for row in ours if row.nbytes >= 2.5 * MIB]
    assert page.locator("output").inner_text().startswith(f"{len(ours)} of 150")
    page.get_by_label("activation").focus()
    page.keyboard.press("Space")
    ours = [row for row in ours if row.kind is not StorageKind.ACTIVATION]
    assert drawn(page)["bars"] == pieces(ours)
    intervals = candidates_of(trace, subject().route)  # type: ignore[arg-type]
    n_rows = sum(trace.storages[storage] in ours for storage in intervals.storage.tolist())
    assert page.locator("#candidates-text").inner_text().startswith(f"{n_rows} intervals")
    page.get_by_label("Module contains").fill("nothing has this name")
    assert page.locator("output").inner_text().startswith("0 of 150")
    assert drawn(page)["bars"] == 0


def test_candidates_sort_by_click_and_by_key(show: Show) -> None:
    trace = trace_of(150)
    found = candidates_of(trace, subject().route)  # type: ignore[arg-type]
    page = show("random")
    best = [f"#{number}" for number in found.storage.tolist()[:12]]
    assert column(page, "#candidate-table", 1) == best
    head = page.locator("#candidate-table th").filter(has_text="Idle").first
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    longest = sorted(found.idle_ns.tolist(), reverse=True)[:12]
    units = {"s": 1e9, "ms": 1e6, "\u00b5s": 1e3}
    texts = [text.split() for text in column(page, "#candidate-table", 3)]
    shown = [float(number) * units[unit] for number, unit in texts]
    assert shown == pytest.approx(longest, rel=0.01)
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(page, "#candidate-table", 3)[0] == "0 ns"
    page.locator("#candidates").get_by_role("button", name="Show more rows").press("Enter")
    assert len(column(page, "#candidate-table", 1)) == 60


def test_the_peak_is_one_click_away_and_leads_to_its_storages(show: Show) -> None:
    page = show("small")
    assert not page.locator("#peak-storages").is_visible()
    page.locator("#memory .chart").scroll_into_view_if_needed()
    mark = page.locator("#memory .scatterlayer .points path").bounding_box()
    page.mouse.click(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    assert page.locator("#peak-storages").is_visible()
    page.locator("#peak summary").click()
    assert not page.locator("#peak-storages").is_visible()
    page.locator("#peak summary").press("Enter")
    assert "28.0 MiB at 3.00 ms" in page.locator("#peak summary").inner_text()
    assert column(page, "#peak-modules", 1) == [LINK, IMAGE, SCRIPT]
    residents = peak_of(step()).residents
    assert column(page, "#peak-storages", 1) == [f"#{row.storage}" for row in residents] == ["#3", "#1", "#0"]
    assert column(page, "#peak-storages", 7) == ["in use", "4.00 ms", "4.00 ms"]
    assert column(page, "#peak-modules", 3) == ["57.1\u00a0%", "28.6\u00a0%", "14.3\u00a0%"]
    page.locator("#peak").get_by_role("button", name="Show storage 1 in the chart").click()
    assert page.locator("#storage strong").inner_text() == "#1: 8.00 MiB, activation"
    page.keyboard.press("k")
    assert page.locator("#storage strong").inner_text() == "#0: 4.00 MiB, parameter"


def click_at(page: Any, part: float) -> None:
    """On the memory chart, at a part of what is in view, half way up."""
    page.locator("#memory .chart").scroll_into_view_if_needed()
    plot = page.locator("#memory .nsewdrag").bounding_box()
    page.mouse.click(plot["x"] + part * plot["width"], plot["y"] + plot["height"] / 2)


def marks(page: Any) -> list[list[float]]:
    """Where the moment that is shown begins and ends in the chart; none at the peak."""
    shapes = "document.querySelector('#memory .chart').layout.shapes"
    found: list[list[float]] = page.evaluate(f"{shapes}.map((shape) => [shape.x0, shape.x1])")
    return found


def ns_of(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"s": 1e9, "ms": 1e6, "\u00b5s": 1e3, "ns": 1}[unit]


def test_a_click_shows_what_is_there_at_that_moment(show: Show) -> None:
    page = show("small")
    assert marks(page) == []
    click_at(page, 0.55)
    found = contents_at(step(), 5)
    assert page.locator("#peak-storages").is_visible()
    assert page.locator("#peak summary").inner_text() == "12.0 MiB at 5.00 ms, aten::op5 in h.1.mlp. What is there?"
    assert marks(page) == [[5, 6]]
    assert column(page, "#peak-storages", 1) == [f"#{row.storage}" for row in found.residents] == ["#1", "#0"]
    assert column(page, "#peak-storages", 6) == ["4.00 ms", ""]
    assert column(page, "#peak-kinds", 1) == ["activation", "parameter"]
    assert column(page, "#peak-modules", 3) == ["66.7\u00a0%", "33.3\u00a0%"]
    page.locator("#peak").get_by_role("button", name="Show storage 1 in the chart").click()
    assert page.locator("#storage strong").inner_text() == "#1: 8.00 MiB, activation"
    page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")  # ends the smooth scroll to the chart of storages
    page.locator("#memory .chart").scroll_into_view_if_needed()
    mark = page.locator("#memory .scatterlayer .points path").bounding_box()
    page.mouse.click(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    assert page.locator("#peak summary").inner_text().startswith("Peak: 28.0 MiB at 3.00 ms")
    assert marks(page) == []


def test_a_drag_or_a_click_beside_the_plot_shows_no_moment(show: Show) -> None:
    page = show("small")
    plot = page.locator("#memory .nsewdrag").bounding_box()
    page.mouse.move(plot["x"] + 300, plot["y"] + 100)
    page.mouse.down()
    page.mouse.move(plot["x"] + 700, plot["y"] + 100, steps=3)
    page.mouse.up()
    page.locator("#memory .legendtoggle").first.click()
    page.mouse.click(plot["x"] + 300, plot["y"] + plot["height"] + 30)
    page.wait_for_timeout(400)
    assert marks(page) == []
    assert not page.locator("#peak-storages").is_visible()
    click_at(page, 0.5)  # of what the drag left in view
    (mark,) = marks(page)
    assert 2 <= mark[0] <= 5


def test_moments_are_gone_through_by_key(show: Show) -> None:
    page = show("small")
    page.locator("#memory .chart").focus()
    for key, summary in (
        (".", "12.0 MiB at 4.00 ms"),
        (".", "12.0 MiB at 5.00 ms"),
        (",", "12.0 MiB at 4.00 ms"),
        (",", "Peak: 28.0 MiB at 3.00 ms"),
        (",", "12.0 MiB at 2.00 ms"),
        ("p", "Peak: 28.0 MiB at 3.00 ms"),
        (",", "12.0 MiB at 2.00 ms"),
        (",", "12.0 MiB at 1.00 ms"),
        (",", "6.00 MiB at 0 ns"),
        (",", "6.00 MiB at 0 ns"),
    ):
        page.keyboard.press(key)
        assert page.locator("#peak summary").inner_text().startswith(summary)
    assert page.locator("#peak-storages").is_visible()
    assert page.evaluate("document.activeElement.matches('#memory .chart')")


def test_a_moments_contents_are_what_the_analysis_says(show: Show) -> None:
    trace = trace_of(150)
    page = show("random")
    starts = trace.start_ns(np.arange(len(trace.ticks) + 1)).tolist()
    for part in (0.003, 0.02, 0.31, 0.62, 0.9, 0.997):
        click_at(page, part)
        ((begins, ends),) = marks(page)
        tick = min(range(len(trace.ticks)), key=lambda at: abs(starts[at] / MS - begins))
        assert (starts[tick] / MS, starts[tick + 1] / MS) == pytest.approx((begins, ends))
        told = page.locator("#memory .hoverlayer .legendtitletext").text_content()
        pixel = trace.step_ns / MS / 1200
        assert float(told.split()[1]) == pytest.approx(begins, abs=3 * pixel)  # what is pointed at
        found = contents_at(trace, tick)
        where = f"{found.operator} in {found.module}"
        assert where in page.locator("#peak summary").inner_text()
        while page.locator("#peak-storages .more").is_visible():
            page.locator("#peak-storages .more").click()
        assert column(page, "#peak-storages", 1) == [f"#{row.storage}" for row in found.residents]
        assert column(page, "#peak-storages", 5) == [row.operator or "an earlier step" for row in found.residents]
        ages = [ns_of(text) for text in column(page, "#peak-storages", 6)]
        assert ages == pytest.approx([row.age_ns for row in found.residents], rel=0.01)
        for text, row in zip(column(page, "#peak-storages", 7), found.residents, strict=True):
            if row.idle_ns:
                assert ns_of(text) == pytest.approx(row.idle_ns, rel=0.01)
            else:
                assert text == ("in use" if row.idle_ns == 0 else "no further use")
        kinds = [str(share.label).replace("_", "\u00a0") for share in found.by_kind()]
        assert column(page, "#peak-kinds", 1) == kinds
        assert column(page, "#peak-modules", 1) == [share.label for share in found.by_module()][:12]


@pytest.mark.alike
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_what_is_drawn_of_memory_is_what_is_there_to_the_pixel(show: Show, width: int) -> None:
    trace = trace_of(150)
    x, drawn_mib, pixels = line_in_all(show("random", width=width))
    live = memory_of(trace).live
    assert len(x) <= 2 * pixels + 2
    assert max(drawn_mib) * MIB == pytest.approx(live.max())
    edges = trace.step_ns * (np.arange(1, pixels) / pixels)
    starts = trace.start_ns(np.arange(len(trace.ticks)))
    there = live[np.searchsorted(starts, edges) - 1]
    shown = np.array(drawn_mib)[np.searchsorted(np.array(x) * MS, edges) - 1] * MIB
    assert shown == pytest.approx(there)


def test_a_spike_is_no_wider_than_a_pixel(show: Show) -> None:
    x, level, pixels = line_in_all(show("spike", width=400))
    assert level[0] == max(level) == 64
    assert level[1] == 1
    assert x[1] - x[0] <= 1000 / pixels  # ms of a second


def await_boxes(page: Any) -> None:
    """Until the tree has moved to a box."""
    page.wait_for_function("() => !document.querySelector('#tree')._transitionData._animationRaf")
    drawn(page)


def follow(page: Any, act: Callable[[], Any]) -> None:
    """Does what leads to another address, and waits until the page was told of it."""
    page.evaluate("followed = 0, addEventListener('hashchange', () => { followed = 1; }, { once: true })")
    act()
    page.wait_for_function("() => followed")


def test_a_box_that_fills_the_chart_shows_the_way_back(show: Show) -> None:
    page = show("random")
    page.locator("#tree").scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    boxes = page.locator("#tree g.slice")
    before = boxes.count()
    assert before >= 5
    boxes.last.locator("path.surface").click()
    await_boxes(page)
    area, back = page.locator("#tree").bounding_box(), page.locator("#tree g.pathbar").first.bounding_box()
    assert back["height"] > 10
    assert area["y"] <= back["y"]
    assert back["y"] + back["height"] <= area["y"] + area["height"]
    page.mouse.click(back["x"] + 10, back["y"] + back["height"] / 2)
    await_boxes(page)
    assert boxes.count() == before


def test_what_is_chosen_is_in_the_address_and_back_leads_to_what_was_before(show: Show) -> None:
    def seen(page: Any) -> tuple[str, str, list[str]]:
        boxes = sorted(filter(None, page.locator("#tree text.slicetext").all_text_contents()))
        return page.get_by_label("Module contains").input_value(), page.locator("output").inner_text(), boxes

    page = show("random")
    states = [seen(page)]
    page.locator("#tree g.slice").last.locator("path.surface").click()
    await_boxes(page)
    states.append(seen(page))
    page.get_by_label("Module contains").press_sequentially("h.3")
    states.append(seen(page))
    page.get_by_label("activation").focus()
    page.keyboard.press("Space")
    page.get_by_label("Order").select_option("size")
    states.append(seen(page))
    assert len({str(state) for state in states}) == len(states)
    address = page.evaluate("location.hash")
    follow(page, page.locator("nav a").last.click)  # a section's link chooses nothing
    assert seen(page) == states[3]
    follow(page, page.go_back)
    follow(page, page.go_back)  # the order
    for state in reversed(states[:3]):
        follow(page, page.go_back)
        assert seen(page) == state
    page = show("random", address)
    assert page.get_by_label("Order").input_value() == "size"
    assert seen(page) == states[3]


def test_a_storage_that_the_filter_hides_is_shown_by_a_click(show: Show) -> None:
    page = show("small")
    page.locator("#peak summary").click()
    page.get_by_label("Module contains").fill("nothing has this name")
    page.locator("#peak").get_by_role("button", name="Show storage 1 in the chart").click()
    assert page.locator("#storage strong").inner_text() == "#1: 8.00 MiB, activation"
    assert not page.locator("output").inner_text().startswith("0 of")
    page = show("small", page.evaluate("location.hash"))
    assert page.locator("#storage strong").inner_text() == "#1: 8.00 MiB, activation"


@pytest.mark.alike
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_labels_of_boxes_can_be_read_or_are_left_out(show: Show, width: int, scheme: str) -> None:
    page = show("random", width=width, color_scheme=scheme)
    page.wait_for_timeout(500)
    labels = page.evaluate(
        """() => {
            const light = (fill) => {
                const parts = fill.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255);
                const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const shown = [...document.querySelectorAll("#tree text.slicetext")].filter(
                (text) => text.textContent.trim() && getComputedStyle(text).display !== "none",
            );
            return shown.map((text) => {
                const { a, b } = text.getScreenCTM();
                const ground = getComputedStyle(text.closest(".slice").querySelector("path.surface")).fill;
                const [dark, bright] = [getComputedStyle(text).fill, ground].map(light).sort((x, y) => x - y);
                const size = parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b);
                return [size, (bright + 0.05) / (dark + 0.05)];
            });
        }"""
    )
    assert len(labels) >= 5
    assert min(size for size, _ in labels) >= 11
    assert min(contrast for _, contrast in labels) >= 4.5


def test_tables_and_orders_by_module_take_numbers_as_numbers(show: Show) -> None:
    page = show("numbered")
    page.locator("#peak summary").click()
    assert column(page, "#peak-modules", 1) == ["0", "2", "10", "12"]
    head = page.locator("#peak-storages th").filter(has_text="Module")
    head.get_by_role("button").click()
    assert column(page, "#peak-storages", 4) == ["0", "2", "10", "12"]
    page.get_by_label("Order").select_option("module")
    labels = page.locator("#storages .ytick text").all_text_contents()
    assert [label.split()[-1] for label in labels] == ["0", "2", "10", "12"]


def test_no_option_of_a_command_is_broken(show: Show) -> None:
    page = show("small", width=400)
    options = page.locator("#made .option, #change .option")
    assert options.first.inner_text() == "ebbtide trace --lines"
    assert all(option.evaluate("(option) => option.getClientRects().length") == 1 for option in options.all())


def test_levels_and_budgets_do_not_look_alike(show: Show) -> None:
    levels, bounds = show("run").evaluate(
        """() => {
            const { _fullData, layout } = document.querySelector("#timelines .chart");
            const lines = _fullData.filter(({ yaxis }) => yaxis === "y2").map(({ line }) => line);
            const looks = ({ color, dash }) => [color, dash];
            return [lines.map(looks), layout.shapes.map(({ line }) => looks(line))];
        }"""
    )
    assert len({colour for colour, _ in levels}) == len(levels) == 2
    assert not {colour for colour, _ in levels} & {colour for colour, _ in bounds}
    assert {dash for _, dash in levels} == {"solid"}
    assert {dash for _, dash in bounds} == {"dash", "dot"}


def test_names_are_text_whatever_they_say(show: Show) -> None:
    page = show("small")
    assert page.locator("h1").inner_text() == f"step {SCRIPT}: memory of a training step"
    page.locator("#peak summary").click()
    assert column(page, "#peak-storages", 4) == [LINK, IMAGE, SCRIPT]
    page.locator("#storages .chart").focus()
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert IMAGE in page.locator("#storage").inner_text()
    labels = page.locator("#storages .ytick text").all_text_contents()
    assert any(".harm = 1</script>" in label for label in labels)
    assert any(LINK[-15:] in label for label in labels)
    assert any(LINK in label for label in page.locator("#timelines .ytick text").all_text_contents())
    assert page.evaluate("window.harm") is None
    assert page.locator("img").count() == 0
    assert page.locator("a:not(nav a)").count() == 0


def test_each_stall_says_what_it_waited_for(show: Show) -> None:
    page = show("small")
    rows = page.locator("#comparison tbody tr").all_inner_texts()
    assert [row.split("\t")[1:] for row in rows] == [
        ["10.0 ms", "1.00 ms", "10 ns", "0 ns", "12.0 MiB", "12.0 MiB", "13.0 MiB"],
        ["11.0 ms", "1.00 ms", "1.00 ms", "0 ns", "12.0 MiB", "12.0 MiB", "13.0 MiB"],
    ]
    causes = column(page, "#stalls", 3)
    awaited = column(page, "#stalls", 4)
    measured = [row for row, name in enumerate(column(page, "#stalls", 6)) if "measured" in name]
    assert {causes[row]: awaited[row] for row in measured} == {
        "late": f"#1, activation of {IMAGE} (8.00 MiB on file->dram)",
        "room": f"#0, parameter of {SCRIPT} (4.00 MiB on dram->file)",
    }
    assert "plan's budget 29.0 MiB" in page.locator("#timelines .annotation-text").all_text_contents()


@pytest.mark.alike
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_budgets_are_named_above_what_they_bound(show: Show, width: int) -> None:
    page = show("run", width=width)
    shown = page.locator("#timelines .annotation-text")
    assert re.findall(r"(?:plan's )?budget [0-9.]+ MiB", shown.text_content()) == [
        "budget 30.0 MiB",
        "plan's budget 29.0 MiB",
    ]
    name = shown.evaluate(
        """(shown) => {
            const { x, top, width, height } = shown.getBoundingClientRect();
            return { x, width, height, y: top + scrollY };
        }"""
    )
    foot_of_lanes, top_of_levels = page.evaluate(
        """() => {
            const chart = document.querySelector("#timelines .chart");
            const { yaxis, yaxis2 } = chart._fullLayout;
            const top = chart.getBoundingClientRect().top + scrollY;
            return [top + yaxis._offset + yaxis._length, top + yaxis2._offset];
        }"""
    )
    assert foot_of_lanes <= name["y"] + 1
    assert name["y"] + name["height"] <= top_of_levels + 1
    assert name["x"] >= 0
    assert name["x"] + name["width"] <= width


def test_a_table_that_is_wider_than_the_window_keeps_its_first_column(show: Show) -> None:
    page = show("small", width=400)
    box = page.locator("#candidate-table .scroll")
    assert box.evaluate("(box) => (box.scrollLeft = 200) && box.scrollLeft") == 200
    assert page.locator("#candidate-table tbody td").first.bounding_box()["x"] == box.bounding_box()["x"]
    page = show("small", width=800)
    assert page.locator("#comparison .scroll").evaluate("(box) => box.scrollWidth <= box.clientWidth")
    names = page.locator("#comparison th button").all_inner_texts()
    assert all("\n" not in name for name in names)


@pytest.mark.alike
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_page_fits_a_narrow_window_in_both_themes_and_prints(show: Show, theme: str) -> None:
    page = show("small", width=420, color_scheme=theme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if theme == "light" else "rgb(20, 23, 26)")
    assert page.pdf().startswith(b"%PDF")
    assert drawn(page)["bars"] == 5


def test_on_paper_charts_are_as_wide_as_the_paper(show: Show) -> None:
    page = show("small")

    def widths() -> set[str]:
        drawings = page.locator("main .chart .main-svg").all()
        return {drawing.get_attribute("width") for drawing in drawings}

    on_screen = widths()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert widths() == {"700"}
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert widths() == on_screen != {"700"}


def test_no_name_of_the_scripts_is_global(show: Show) -> None:
    scripts = (Path(page_module.__file__).parent / "page").glob("*/*.js")
    declared = r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)"
    names = {name for script in scripts for name in re.findall(declared, script.read_text(), re.MULTILINE)}
    assert {"addSection", "Chart", "VERDICTS", "main"} < names
    kinds = """(names) => {
        const empty = document.body.appendChild(document.createElement("iframe")).contentWindow;
        return names.filter((name) => (0, eval)(`typeof ${name}`) !== empty.eval(`typeof ${name}`));
    }"""
    assert show("small").evaluate(kinds, sorted(names)) == []


SECTION = """
import { addSection } from "../shared/sections.js";
import { count } from "../shared/words.js";

addSection({
  id: "ID",
  title: "A new section",
  place: PLACE,
  needs: ["NEEDED"],
  origins: ({ trace }) => [trace.origin],
  body: "<p></p>",
  draw({ NEEDED }, section) {
    section.querySelector("p").textContent = count(NEEDED.figure);
  },
});
"""


def section(name: str, place: int, needed: str) -> str:
    return SECTION.replace("ID", name).replace("PLACE", str(place)).replace("NEEDED", needed)


def test_a_file_and_a_row_are_a_section_of_the_page(
    tab: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(Path(page_module.__file__).parent / "page", tmp_path / "page")
    monkeypatch.setattr(page_module, "_FOLDER", folder)
    monkeypatch.setitem(page_data._PARTS, "fresh", lambda subject: {"figure": 1234})
    monkeypatch.setitem(page_data._PARTS, "absent", lambda subject: None)
    (folder / "report" / "fresh.js").write_text(section("fresh", 15, "fresh"))
    (folder / "report" / "absent.js").write_text(section("absent", 25, "absent"))
    page, file = tab
    file.write_text(render_page(subject()))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]", timeout=PATIENCE_MS)
    assert page.locator("#fresh p").inner_text() == "1,234"
    assert page.locator("#fresh h2").inner_text() == "A new sectionassumed"
    shown = [part.get_attribute("id") for part in page.locator("main section").all()]
    before, after = (
        ["answers", "figures", "memory"],
        ["storages", "distribution", "swap", "candidates", "timelines", "words"],
    )
    assert shown == [*before, "fresh", *after]
    assert page.locator("nav a").all_inner_texts()[3] == "A new section"
    (folder / "report" / "absent.js").write_text(section("absent", 25, "misspelt"))
    file.write_text(render_page(subject()))
    page.goto(file.as_uri())
    page.get_by_text('a section needs "misspelt"').wait_for(timeout=PATIENCE_MS)


def test_a_page_that_was_cut_says_so(tab: tuple[Any, Path]) -> None:
    page, file = tab
    text = render_page(subject())
    start = text.index('id="data">') + 10
    file.write_text(text[: start + 400] + text[text.index("</script>", start) :])
    page.goto(file.as_uri())
    page.get_by_text("This page is damaged").wait_for(timeout=PATIENCE_MS)
