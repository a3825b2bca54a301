"""A great many storages: memory areas suffice on a default kernel, and room is found without looking at all of them."""

from pathlib import Path

from tests.helpers import child

PAGES = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_PROGRESS": "off"}
COUNT = 46_000


def test_memory_areas_suffice_for_many_storages_that_are_away() -> None:
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    left, most = child.run("cases_scale:every_other_one_away", COUNT, env=PAGES)
    assert left > min(limit // 8, COUNT // 2) - 1000  # of two areas or three each, in half of the limit
    assert most < limit


def test_few_storages_are_looked_at_for_each_that_leaves() -> None:
    assert child.run("cases_scale:births_under_pressure", 8_000, env=PAGES) < 2000  # of 12,000 in the mean
