"""What test_scale.py runs in child processes: a great many storages of a page each."""

import random
from pathlib import Path

import torch

import ebbtide
from ebbtide import _torch

PAGE = 4096


def _memory_areas() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def _storages(count: int) -> list[torch.Tensor]:
    return [torch.full((PAGE // 4,), float(i)) for i in range(count)]


def _check(storages: list[torch.Tensor], which: range | list[int]) -> None:
    wrong = [i for i in which if storages[i][-1].item() != float(i)]
    assert wrong == []


def every_other_one_away(count: int) -> tuple[int, int]:
    """Three memory areas for each of half of them would be too many. How many left, and the most areas seen."""
    with ebbtide.Session(fast="4GiB", policy="demand", progress="off"):
        storages = _storages(count)
        left = sum(_torch.evict([storages[i]]) > 0 for i in range(0, count, 2))
        areas = [_memory_areas()]
        for i in range(count // 4):  # what lies beside one that is away may leave in any case
            _torch.evict([storages[i]])
        areas.append(_memory_areas())
        chance = random.Random(0)
        for _ in range(8):
            _check(storages, [chance.randrange(count) for _ in range(count // 8)])
            areas.append(_memory_areas())
        _check(storages, range(count))
        areas.append(_memory_areas())
        counters = _torch.counters()
        assert counters["evicted_bytes"][4] > count // 4 * PAGE
        assert counters["fetched_bytes"][4] > count // 4 * PAGE
        assert not counters["over_budget"]
    return left, max(areas)


def births_under_pressure(count: int) -> float:
    """Storages that were looked at for each that left, while twice as many were born as there was room for."""
    with ebbtide.Session(fast="4GiB", policy="demand", progress="off"):
        storages = _storages(count)
        _torch.set_limits(arena_bytes=count * PAGE, process_bytes=0)
        before = _torch.counters()
        storages += [torch.full((PAGE // 4,), float(i)) for i in range(count, 2 * count)]
        after = _torch.counters()
        left = sum(after["evicted_bytes"]) - sum(before["evicted_bytes"])
        assert left > count * PAGE * 0.9
        assert not after["over_budget"]
        _check(storages, range(2 * count))
    return (after["looked_at"] - before["looked_at"]) / (left / PAGE)
