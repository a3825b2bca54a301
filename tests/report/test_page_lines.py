"""The page in headless Chromium: lines of the program, and what is said of one storage."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ebbtide.analysis.memory import peak_of
from ebbtide.ir.trace import Storages, Trace
from ebbtide.report.answers import line_tree
from ebbtide.report.page import render_page
from ebbtide.report.page_data import page_data
from ebbtide.report.subject import Subject
from ebbtide.units import MIB
from tests.helpers.make_page import IMAGE, LINK, column, step, subject

Show = Callable[..., Any]

LINES = ("", f"net/model.py:12 {IMAGE}", "train.py:30", "train.py:31 <lambda>")


def with_lines(trace: Trace) -> Trace:
    rows = zip(trace.storages, LINES, strict=True)
    return replace(trace, storages=Storages.from_rows(replace(row, line=line) for row, line in rows))


@pytest.fixture
def show(open_page: Show) -> Show:
    return lambda what, *args, **options: open_page(render_page(what), *args, **options)


def test_the_tree_by_line_holds_every_byte_once_by_file_and_line() -> None:
    tree = {node["id"]: node for node in line_tree(peak_of(with_lines(step())))}
    (whole,) = (node for node in tree.values() if node["parent"] is None)
    assert whole["nbytes"] == 28 * MIB
    found = {
        (tree[tree[node["parent"]]["parent"]]["label"], tree[node["parent"]]["label"]): node["nbytes"]
        for node in tree.values()
        if node["kind"]
    }
    assert found == {
        ("the program", "made before the step"): 4 * MIB,
        ("net/model.py", f"line 12 {IMAGE}"): 8 * MIB,
        ("train.py", "line 31 <lambda>"): 16 * MIB,
    }


def test_the_peak_is_told_by_line(show: Show) -> None:
    page = show(replace(subject(), trace=with_lines(step())))
    assert page.locator("#tree .slicetext").count()
    answer = [row.inner_text().split("\t") for row in page.locator("#made tr").all()]
    assert answer[1:] == [
        ["train.py:31 <lambda>", "16.0 MiB", "57.1\u00a0%"],
        [LINES[1], "8.00 MiB", "28.6\u00a0%"],
        ["(made before the step)", "4.00 MiB", "14.3\u00a0%"],
    ]
    page.get_by_label("by line of the program").check()
    page.locator("#tree .slicetext", has_text="train.py").first.wait_for()
    page.locator("#peak summary").click()
    assert column(page, "#peak-lines", 1) == ["train.py:31 <lambda>", LINES[1], "(made before the step)"]
    assert column(page, "#peak-lines", 3) == ["57.1\u00a0%", "28.6\u00a0%", "14.3\u00a0%"]
    assert column(page, "#peak-storages", 5) == [LINES[3], LINES[1], ""]
    assert LINES[1] in column(page, "#candidate-table", 8)
    assert page.evaluate("window.harm") is None


def test_a_filter_finds_lines_and_the_panel_names_them(show: Show) -> None:
    page = show(replace(subject(), trace=with_lines(step()), file="my step.trace"))
    page.get_by_label("Module or line contains").fill("TRAIN.PY")
    assert page.locator("output").inner_text().startswith("2 of 4 storages, 18.0 MiB")
    page.get_by_label("Module or line contains").fill("h.1.mlp")
    assert page.locator("output").inner_text().startswith("1 of 4")
    page.get_by_label("Module or line contains").fill("")
    page.get_by_label("Order").select_option("line")
    page.locator("#storages .chart").focus()
    for expected in ("#0: 4.00 MiB, parameter", "#1: 8.00 MiB, activation"):
        page.keyboard.press("j")
        assert page.locator("#storage strong").inner_text() == expected
    said = page.locator("#storage").inner_text()
    assert f"made at {LINES[1]}" in said
    assert "Idle longest for 4.00 ms" in said
    assert "The plan has it away from 4.00 ms to 5.00 ms (in file)." in said
    assert "ebbtide explain 'my step.trace' --storage 1" in said


def test_where_no_line_was_recorded_there_is_one_sentence_and_no_empty_column(show: Show) -> None:
    page = show(subject())
    assert "ebbtide trace --lines" in page.locator("#answers").inner_text()
    page.locator("#peak summary").click()
    assert page.locator("main").inner_text().count("--lines") == 1
    for gone in ("#tree-by", "#peak-lines", "option[value=line]", "th >> text=/^Line/"):
        assert page.locator(gone).count() == 0
    assert page.get_by_label("Module contains").count() == 1


def test_a_step_whose_modules_are_unknown_is_shown_by_line(show: Show) -> None:
    ticks = replace(step().ticks, module=np.full(len(step().ticks), "", dtype=object))
    rows = tuple(replace(row, module="") for row in with_lines(step()).storages)
    page = show(Subject(replace(step(), ticks=ticks, storages=Storages.from_rows(rows))))
    assert page.get_by_label("by line of the program").is_checked()
    assert page.locator("#tree .slicetext", has_text="train.py").count()
    assert page.locator("#memory .legendtext").count() == 5  # four kinds, and what is in use


def test_the_address_names_the_storage_that_is_shown(show: Show) -> None:
    page = show(subject())
    page.locator("h1").click()
    page.keyboard.press("j")  # anywhere on the page
    page.keyboard.press("j")
    assert page.url.endswith("#storage=1")
    page.locator("#filter input[type=search]").press("j")  # but where one writes: another filter may hide it
    assert page.url.endswith("#text=j")
    assert page.locator("#storage strong").inner_text().startswith("#1: ")
    page.evaluate("location.hash = '#storage=2'")
    page.locator("#storage strong", has_text="#2: 2.00 MiB, gradient").wait_for()
    for address in ("#storage=99", "#storage=x", "#timelines"):
        assert show(subject(), address).locator("#storage").inner_text() == "No storage is chosen."
    assert show(subject(), "#storage=3").locator("#storage strong").inner_text() == "#3: 16.0 MiB, other"


def test_tables_do_not_scroll_within_and_lanes_keep_their_origin_on_a_phone(show: Show) -> None:
    page = show(subject(), width=400)
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every((e) => e.scrollHeight <= e.clientHeight + 1)")
    lanes = page.locator("#timelines .ytick text").all_text_contents()
    assert {"simulated compute", "measured compute"} <= set(lanes)
    assert len(set(lanes)) == len(lanes)
    assert LINK not in "".join(lanes)


def test_buttons_of_a_chart_cover_nothing(show: Show) -> None:
    page = show(subject())
    for section in page.locator("main section:has(.tools)").all():
        tools = section.locator(".tools").bounding_box()
        chart = section.locator(".chart").bounding_box()
        assert tools["y"] + tools["height"] <= chart["y"] + 1


def test_data_of_lines_is_theirs() -> None:
    data = page_data(Subject(with_lines(step())))
    strings, lines = data["trace"]["strings"], data["trace"]["storages"]["line"]
    assert [strings[line] for line in lines] == list(LINES)
