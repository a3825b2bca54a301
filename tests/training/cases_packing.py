"""What the tests of plans that pack storages run in child processes."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import ebbtide
from ebbtide import _torch
from ebbtide.ir.base import Origin
from ebbtide.ir.files import load
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.ir.trace import Trace
from tests.helpers.zoo import Case
from tests.training.same_bits import Verdict, begin, train, train_plainly, verdict

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


def packed_without(folder: str) -> set[int | None]:
    """What the storages of a run with no such tier pack to."""
    trace = Path(folder) / "trace"
    with ebbtide.Session(fast="50%", save_trace=trace) as session:
        train(begin(CASES["relu"]), 4, session)
    return {row.packed_bytes for row in load(trace, Trace).storages}
