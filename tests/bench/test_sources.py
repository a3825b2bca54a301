"""The sources' page: rows that have their figures, a cache of lines as a stupider one has it, and inputs by hand."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.papers import findings, ten_cache, tiertrain
from bench.papers.common import Row, spread, within
from bench.papers.memory_mode import Lines, memory_mode
from bench.papers.pinpointing import inputs_of
from bench.papers.steps import XEON, resnet
from ebbtide.ir.trace import Storage, StorageKind, Ticks
from ebbtide.machines import find_machine
from tests.helpers.make_steps import PAGE, R, W, step
from tests.helpers.paths import ROOT


def test_a_row_says_whether_it_held_and_has_a_figure_of_ours() -> None:
    Row("claim", "2x", "1.9x", "", "yes")
    with pytest.raises(ValueError, match="neither yes, part nor no"):
        Row("claim", "2x", "1.9x", "", "almost")
    with pytest.raises(ValueError, match="no figure"):
        Row("claim", "2x", "twice as fast", "", "yes: as there")


def test_verdicts_and_spreads() -> None:
    assert [within(values, 1, 2) for values in ([1.0, 2.0], [0.5, 2.0], [3.0])] == ["yes", "part", "no"]
    assert spread([0.2, 0.1], "{:.0%}") == "10% to 20%"
    assert spread([0.101, 0.1], "{:.0%}") == "10%"


@pytest.mark.starts
def test_the_page_has_one_table_for_each_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row("a|b", "2x", "1.9x", "", "yes")]
    monkeypatch.setattr(findings, "SOURCES", {"one": ("One", lambda: rows), "two": ("Two", lambda: rows)})
    monkeypatch.setattr(sys, "argv", ["findings", "--out", str(tmp_path / "page.md")])
    findings.main()
    page = (tmp_path / "page.md").read_text()
    assert page.count("| claim | source | simulated | real | held? |\n|---|---|---|---|---|\n| a/b | 2x |") == 2
    assert "## One" in page
    assert "## Two" in page


@pytest.mark.slow
@pytest.mark.parametrize("source", [tiertrain, ten_cache])
def test_quick_sources_have_their_rows(source: object) -> None:
    found = source.rows()  # type: ignore[attr-defined]
    assert len({row.claim for row in found}) == len(found) > 5


@pytest.mark.slow
def test_the_committed_page_has_the_rows_of_the_quick_sources() -> None:
    page = max((ROOT / "bench" / "results").glob("*_sources.md")).read_text()
    for source in (tiertrain, ten_cache):
        for row in source.rows():
            assert f"| {row.claim} | {row.source} | {row.simulated} |" in page


@pytest.mark.parametrize("seed", range(20))
def test_a_cache_of_lines_is_what_single_lines_give(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 20)
    cache, held, dirty = Lines(count), dict[int, int](), set[int]()
    for _ in range(200):
        first, writes = chance.randint(0, 60), chance.random() < 0.5
        last = first + chance.randint(0, 30)
        came = went = 0
        for line in range(first, last):
            place = line % count
            if held.get(place) != line:
                came, went = came + 1, went + (place in dirty)
                dirty.discard(place)
                held[place] = line
            if writes:
                dirty.add(place)
        assert cache.use(first, last, writes) == (came, went)


def test_memory_mode_moves_nothing_where_all_fits_and_writes_dead_data_back_where_not() -> None:
    trace, machine = resnet((1, 1, 1, 1), 64, XEON), find_machine("dram-optane")
    roomy = memory_mode(trace, machine, 2**40)
    assert (roomy.step_ns, roomy.read_bytes, roomy.written_bytes) == (trace.step_ns, 0, 0)
    tight = memory_mode(trace, machine, 2**28)
    assert tight.step_ns > 1.1 * trace.step_ns
    activations = sum(row.nbytes for row in trace.storages if row.kind is StorageKind.ACTIVATION)
    assert tight.written_bytes > activations / 2


def test_the_batch_is_what_a_module_reads_and_no_module_wrote() -> None:
    kinds = (StorageKind.OTHER, StorageKind.OTHER, StorageKind.ACTIVATION)
    storages = [Storage(PAGE, kind, birth, 8) for kind, birth in zip(kinds, (0, 1, 1), strict=True)]
    made = step([10] * 8, storages, [(0, 0, W), (0, 1, R), (1, 1, W), (1, 2, R), (2, 1, W), (2, 2, R)])
    modules = ["", *["net"] * 7]
    named = [replace(row, module=module) for row, module in zip(made.ticks, modules, strict=True)]
    assert inputs_of(replace(made, ticks=Ticks.from_rows(named))) == {0}
