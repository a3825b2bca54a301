"""A great many storages: memory areas suffice on a default kernel, and room is found without looking at all of them."""

import random
from pathlib import Path

import pytest
import torch

import ebbtide
from ebbtide import _torch

PAGES = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_PROGRESS": "off"}
pytestmark = pytest.mark.in_child(PAGES)
COUNT = 46_000
PAGE = 4096


def _memory_areas() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def _storages(count: int) -> list[torch.Tensor]:
    return [torch.full((PAGE // 4,), float(i)) for i in range(count)]


def _check(storages: list[torch.Tensor], which: range | list[int]) -> None:
    wrong = [i for i in which if storages[i][-1].item() != float(i)]
    assert wrong == []


def test_memory_areas_suffice_for_many_storages_that_are_away() -> None:
    """Three memory areas for each of half of them would be too many."""
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    with ebbtide.Session(fast="4GiB", policy="demand", progress="off"):
        storages = _storages(COUNT)
        left = sum(_torch.evict([storages[i]]) > 0 for i in range(0, COUNT, 2))
        areas = [_memory_areas()]
        for i in range(COUNT // 4):  # what lies beside one that is away may leave in any case
            _torch.evict([storages[i]])
        areas.append(_memory_areas())
        chance = random.Random(0)
        for _ in range(4):
            _check(storages, [chance.randrange(COUNT) for _ in range(COUNT // 8)])
            areas.append(_memory_areas())
        _check(storages, range(COUNT))
        areas.append(_memory_areas())
        counters = _torch.counters()
        assert counters["evicted_bytes"][4] > COUNT // 4 * PAGE
        assert counters["fetched_bytes"][4] > COUNT // 4 * PAGE
        assert not counters["over_budget"]
    assert left > min(limit // 8, COUNT // 2) - 1000  # of two areas or three each, in half of the limit
    assert max(areas) < limit


def test_few_storages_are_looked_at_for_each_that_leaves() -> None:
    """Twice as many are born as there is room for."""
    with ebbtide.Session(fast="4GiB", policy="demand", progress="off"):
        storages = _storages(4_000)
        _torch.set_limits(arena_bytes=4_000 * PAGE, process_bytes=0)
        before = _torch.counters()
        storages += [torch.full((PAGE // 4,), float(i)) for i in range(4_000, 2 * 4_000)]
        after = _torch.counters()
        left = sum(after["evicted_bytes"]) - sum(before["evicted_bytes"])
        assert left > 4_000 * PAGE * 0.9
        assert not after["over_budget"]
        _check(storages, range(2 * 4_000))
    assert (after["looked_at"] - before["looked_at"]) / (left / PAGE) < 1000  # of 6,000 in the mean
