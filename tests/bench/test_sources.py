"""The sources' page: rows that have their figures, and a cache of lines as a stupider one has it."""

import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.papers import findings, ten_cache, tierscape, tiertrain, tm_training
from bench.papers.common import Row, peak_of, spread, within
from bench.papers.layout import lay_out
from bench.papers.memory_mode import Lines, memory_mode
from bench.papers.steps import XEON, densenet, inception_v4, resnet
from ebbtide.ir.occupancy import live_bytes
from ebbtide.ir.trace import Storage, StorageKind, Trace
from ebbtide.machines import find_machine
from ebbtide.planners.resident import resident
from tests.helpers.make_steps import PAGE, R, W, parameter, step
from tests.helpers.paths import ROOT


def test_a_row_says_whether_it_held_and_has_a_figure_of_ours() -> None:
    Row("claim", "2x", "1.9x", "", "yes")
    with pytest.raises(ValueError, match="neither yes, part nor no"):
        Row("claim", "2x", "1.9x", "", "almost")
    with pytest.raises(ValueError, match="no figure"):
        Row("claim", "2x", "twice as fast", "", "yes: as there")
    for real in ("1.9x (build 31eaabc, 2 AMD CPUs)", "the same bits (`tests/training/test_tiers.py`)"):
        Row("claim", "2x", "1.9x", real, "yes")
    with pytest.raises(ValueError, match="neither a build nor a test"):
        Row("claim", "2x", "1.9x", "1.9x on this computer", "yes")


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


@pytest.fixture(scope="module", params=[tiertrain, ten_cache])
def found(request: pytest.FixtureRequest) -> list[Row]:
    """A quick source's rows."""
    return list(request.param.rows())


@pytest.mark.slow
def test_quick_sources_have_their_rows(found: list[Row]) -> None:
    assert len({row.claim for row in found}) == len(found) > 5


@pytest.mark.slow
def test_the_committed_page_has_the_rows_of_the_quick_sources(found: list[Row]) -> None:
    page = max((ROOT / "bench" / "results").glob("*_sources.md")).read_text()
    for row in found:
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


def test_no_two_storages_that_live_together_share_addresses() -> None:
    trace, machine = resnet((1, 1, 1, 1), 64, XEON), find_machine("dram-optane")
    stays, address = lay_out(trace, list(resident(trace, machine, 2**40).stays), machine)
    end = address + np.array([trace.storages[stay.storage].nbytes for stay in stays])
    for at, one in enumerate(stays):
        for below, other in enumerate(stays[:at]):
            if one.start < other.stop and other.start < one.stop:
                assert end[at] <= address[below] or end[below] <= address[at]


def test_memory_mode_moves_nothing_where_all_fits_and_writes_dead_data_back_where_not() -> None:
    trace, machine = resnet((1, 1, 1, 1), 64, XEON), find_machine("dram-optane")
    roomy = memory_mode(trace, machine, 2**40)
    assert (roomy.step_ns, roomy.read_bytes, roomy.written_bytes) == (trace.step_ns, 0, 0)
    tight = memory_mode(trace, machine, 2**28)
    assert tight.step_ns > 1.1 * trace.step_ns
    activations = sum(row.nbytes for row in trace.storages if row.kind is StorageKind.ACTIVATION)
    assert tight.written_bytes > activations / 2


@pytest.mark.parametrize(
    ("made", "parameters", "gigabytes"),
    [  # those of the networks' papers, less classifiers; AutoTM's bytes
        (lambda: inception_v4(6144, XEON), 41.1e6, 659),
        (lambda: densenet((6, 12, 64, 48), 3072, XEON), 30.7e6, 688),
    ],
)
def test_the_networks_of_autotm_are_as_large_as_there(
    made: Callable[[], Trace], parameters: float, gigabytes: float
) -> None:
    trace = made()
    found = sum(row.nbytes for row in trace.storages if row.kind is StorageKind.PARAMETER) / 4
    assert found == pytest.approx(parameters, rel=0.03)
    assert peak_of(trace) / 1e9 == pytest.approx(gigabytes, rel=0.25)


def test_a_cut_step_has_the_same_bytes_and_uses_and_two_storages_for_one() -> None:
    large = Storage(8 * tm_training.PAGE, StorageKind.ACTIVATION, 0, 4)
    trace = step([10] * 4, [parameter(PAGE, 4), large, large], [(0, 1, R), (1, 0, W), (1, 3, R), (2, 0, W), (2, 2, R)])
    found = tm_training.cut(trace, np.array([1, 1, 2]), np.array([0.26, 0.9, 1.0]))
    assert [row.nbytes // tm_training.PAGE for row in found.storages][1:] == [2, 8, 6]
    assert live_bytes(found).tolist() == live_bytes(trace).tolist()
    assert found.accesses.tick[found.accesses.of(3)].tolist() == [0, 3]


def test_compressed_tiers_save_memory_where_contents_shrink_and_nothing_where_time_is_dear() -> None:
    trace = resnet((1, 1, 1, 1), 64, XEON)
    shrinks = {"a": {"relu": tierscape.Packed(0.5, 4.0, 4.0)}}
    cheap, dear = (tierscape.saved(trace, shrinks, knob) for knob in (0.0, 1e6))
    assert (dear.memory, dear.time) == (pytest.approx(0.0, abs=0.1), pytest.approx(0.0, abs=0.1))
    assert -50 < cheap.memory < -2
    assert cheap.time > 0
    assert tierscape.within_time([tierscape.Saved(-30.0, 9.0), tierscape.Saved(-10.0, 4.0)]) == -10.0
