"""Runs whose plans place storages in compressed memory: what shrinks lies there, the rest does not, same bits."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import ebbtide
from ebbtide import _torch
from ebbtide.ir.base import Origin
from ebbtide.ir.check import check_plan
from ebbtide.ir.files import load
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.ir.occupancy import arena_pages
from ebbtide.ir.plan import Plan
from ebbtide.ir.trace import StorageKind, Trace
from tests.helpers.zoo import Case
from tests.training.same_bits import Verdict, begin, train, train_plainly, verdict

SMALLEST = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_CHECKSUM": "1"}
pytestmark = pytest.mark.in_child(SMALLEST)
STEPS = 6
CAPACITY = 64 * 2**20
PACKED = "compressed"
_WIDTH, _ROWS, _LAYERS = 256, 2048, 8
MACHINE = Machine(
    "a slow file behind compressed memory",
    Origin.ASSUMED,
    (
        Tier("dram", InPlace.ALL),
        Tier(PACKED, InPlace.NOTHING, CAPACITY, packs=True),
        Tier("file", InPlace.NOTHING),
    ),
    (
        Link("dram", PACKED, 2 * 10**9),
        Link(PACKED, "dram", 4 * 10**9),
        Link("dram", "file", 10**6),  # no copy hides behind compute, however slow the test's machine is
        Link("file", "dram", 10**6),
    ),
)


def _stack(between: Callable[[], nn.Module]) -> nn.Module:
    layers = [module for _ in range(_LAYERS) for module in (nn.Linear(_WIDTH, _WIDTH), between())]
    return nn.Sequential(*layers)


def _case(name: str, between: Callable[[], nn.Module]) -> Case:
    return Case(
        name,
        lambda: _stack(between),
        lambda generator: tuple(torch.randn(2, _ROWS, _WIDTH, generator=generator).unbind()),
        lambda model, batch: (model(batch[0]) * batch[1]).sum() / _ROWS,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    )


CASES = {
    case.name: case
    for case in (
        _case("relu", nn.ReLU),
        _case("relu-in-place", lambda: nn.ReLU(inplace=True)),
        _case("masks", lambda: nn.Sequential(nn.Sigmoid(), nn.Dropout(0.5))),
        _case("gelu", nn.GELU),
    )
}


def compare(name: str, folder: str, fast: str = "50%") -> tuple[Verdict, tuple[int, int], tuple[int, int]]:
    """The case plainly and on ``MACHINE``, with the step's trace and plan in the folder; and what the last step, which
    followed the plan, wrote to each slower tier and read from it."""
    case = CASES[name]
    plain = train_plainly(case, STEPS)
    file, trace, plan = (Path(folder) / part for part in ("machine.toml", "trace", "plan"))
    file.write_text(MACHINE.to_toml())
    tiers = f"{PACKED}:{CAPACITY}"
    with ebbtide.Session(fast=fast, machine=file, tiers=tiers, save_trace=trace, save_plan=plan) as session:
        ours = begin(case)
        for at in range(STEPS):
            if at == STEPS - 1:
                before = _torch.counters()
            train(ours, 1, session)
        after = _torch.counters()
        written, read = (
            tuple(now - then for now, then in zip(after[key], before[key], strict=True))
            for key in ("tier_written_bytes", "tier_read_bytes")
        )
    return verdict(plain, ours, session), written, read  # type: ignore[return-value]


def test_a_run_without_the_tier_looks_at_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with ebbtide.Session(fast="50%", save_trace=trace) as session:
        train(begin(CASES["relu"]), 4, session)
    assert {row.packed_bytes for row in load(trace, Trace).storages} == {None}


@pytest.mark.parametrize(("name", "most"), [("relu", 0.6), ("relu-in-place", 0.6), ("masks", 0.05)])
def test_a_plan_places_in_compressed_memory_what_shrinks_and_the_bytes_go_there(
    name: str, most: float, tmp_path: Path
) -> None:
    verdict, written, read = compare(name, tmp_path)
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
    verdict, written, read = compare("gelu", tmp_path)
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
