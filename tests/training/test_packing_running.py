"""Runs whose plans place storages in compressed memory: what shrinks lies there, the rest does not, same bits."""

from pathlib import Path

import pytest

from ebbtide.ir.check import check_plan
from ebbtide.ir.files import load
from ebbtide.ir.occupancy import arena_pages
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import StorageKind, Trace
from tests.helpers import child
from tests.training.cases_packing import CAPACITY, MACHINE, PACKED

SMALLEST = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_CHECKSUM": "1"}

pytestmark = pytest.mark.starts


@pytest.mark.parametrize(("name", "most"), [("relu", 0.6), ("relu-in-place", 0.6), ("masks", 0.05)])
def test_a_plan_places_in_compressed_memory_what_shrinks_and_the_bytes_go_there(
    name: str, most: float, tmp_path: Path
) -> None:
    verdict, written, read = child.run("cases_packing:compare", name, str(tmp_path), env=SMALLEST)
    assert verdict.differences == ()
    assert verdict.modes[-3:] == ("planned",) * 3
    trace, plan = load(tmp_path / "trace", Trace), load(tmp_path / "plan", Plan)
    assert check_plan(plan, trace, MACHINE.with_budget(plan.budget_bytes), arena_pages) == ()
    there = {stay.storage for stay in plan.stays if stay.tier == PACKED}
    rows = [trace.storages[number] for number in there]
    assert StorageKind.ACTIVATION in {row.kind for row in rows}
    packed = {row.packed_bytes / row.nbytes for row in rows if row.packed_bytes is not None}
    assert len(rows) == len([row for row in rows if row.packed_bytes is not None])
    assert min(packed) <= most
    planned = sum(trace.storages[stay.storage].nbytes for stay in plan.stays if stay.tier == PACKED and stay.start)
    assert 0.5 * planned <= written[0] <= CAPACITY
    assert read[0] >= 0.5 * planned


def test_where_nothing_shrinks_nothing_is_placed_there(tmp_path: Path) -> None:
    verdict, written, read = child.run("cases_packing:compare", "gelu", str(tmp_path), env=SMALLEST)
    assert verdict.differences == ()
    assert verdict.modes[-3:] == ("planned",) * 3
    trace, plan = load(tmp_path / "trace", Trace), load(tmp_path / "plan", Plan)
    assert not [stay for stay in plan.stays if stay.tier == PACKED]
    assert [stay for stay in plan.stays if stay.tier == "file"]
    large = [row for row in trace.storages if row.nbytes >= 2**20 and not row.scratch]
    assert large
    assert all(row.packed_bytes is None for row in large)
    assert read[0] == 0
    assert read[1] > 0
    assert written[1] > 0


def test_a_run_without_the_tier_looks_at_nothing(tmp_path: Path) -> None:
    trace = child.run("cases_packing:packed_without", str(tmp_path), env=SMALLEST)
    assert trace == {None}
