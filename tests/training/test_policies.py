"""Online policies in the runtime: the decider does there what it does in the simulator, and changes no bit."""

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

import ebbtide
from ebbtide import _torch
from ebbtide.capture.flops import count_flops
from ebbtide.capture.recording import capture
from ebbtide.errors import SettingError
from ebbtide.ir.native import Lane
from ebbtide.ir.occupancy import arena_pages
from ebbtide.ir.schedule import no_commands
from ebbtide.ir.trace import Trace
from ebbtide.planning.policies import is_planned
from ebbtide.settings import Settings
from ebbtide.simulator import POLICIES, Simulator
from tests.helpers import child
from tests.helpers.make_steps import disk
from tests.training import same_bits

SMALLEST = {"EBBTIDE_MIN_STORAGE": "4096"}
KIB = 1024
STEPS = 5


def _sizes() -> list[int]:
    """Bytes: whole small pages, no two alike."""
    return [(64 + 12 * number) * KIB for number in range(12)]


def _step(weights: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Reads, writes and copies, each of one storage (of two in a copy), in an order that is always the same."""
    chance = random.Random(3)
    copies: list[torch.Tensor] = []
    for _ in range(90):
        kind = chance.random()
        weight = chance.choice(weights)
        if kind < 0.5:
            yield weight.sum()
        elif kind < 0.7:
            weight.add_(1.0)
        elif kind < 0.85 or not copies:
            copies.append(weight.clone())
        else:
            yield copies.pop(chance.randrange(len(copies))).sum()


def _train(session: Any) -> list[float]:
    weights = [torch.full((nbytes // 4,), float(number)) for number, nbytes in enumerate(_sizes())]
    found = []
    for _ in range(STEPS):
        with session.step() if session is not None else nullcontext():
            found += [value.item() for value in _step(weights)]
    return found + [weight.sum().item() for weight in weights]


@pytest.mark.in_child(SMALLEST)
@pytest.mark.alike
@pytest.mark.parametrize("budget", [640 * KIB, 1000 * KIB])
@pytest.mark.parametrize("policy", ["lru", "lru-next-use"])
def test_the_runtime_moves_what_the_simulator_says_in_that_order(policy: str, budget: int) -> None:
    plain = _train(None)
    begin_step, end_step = _torch.begin_step, _torch.end_step
    recordings = []
    n_ended = 0

    def begin(*, record: bool, modules: bool) -> "_torch.Counters":
        return begin_step(record=True, modules=modules)  # where nothing is planned it would not be

    def end(*, completed: bool) -> "_torch.Counters":
        nonlocal n_ended
        after = end_step(completed=completed)
        n_ended += 1
        if n_ended == STEPS:
            recordings.append(_torch.take_recording())
        return after

    _torch.begin_step, _torch.end_step = begin, end
    settings = replace(Settings.from_environment(), arena_bytes=budget)
    with ebbtide.Session(policy=policy, settings=settings) as session:
        assert _train(session) == plain
    (recording,) = recordings
    step = capture(recording, "known", count_flops)
    columns = (recording.span_asked_ns, recording.span_lane, recording.span_tick, recording.span_storage)
    spans = zip(*(column.tolist() for column in columns), strict=True)
    moves = [(lane, (tick, step.numbers[row])) for _, lane, tick, row in sorted(spans) if lane <= Lane.BACK]
    written = [move for lane, move in moves if lane == Lane.OUT]
    fetched = [move for lane, move in moves if lane == Lane.BACK]
    assert len(fetched) > 10
    assert len(written) > 5
    assert (written, fetched) == simulated(policy, step.trace, budget)


def simulated(policy: str, trace: Trace, budget: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The copies that a steady step puts on their links: (tick, storage) out of the first tier, and into it."""
    simulator = Simulator(trace, disk().with_budget(budget), arena_pages)
    found = simulator.noted(no_commands(), record=True, policy=POLICIES[policy])
    assert not isinstance(found, int)
    columns = found.queued()
    rows = list(zip(columns["tick"].tolist(), columns["storage"].tolist(), columns["source"].tolist(), strict=True))
    return [row[:2] for row in rows if row[2] == 0], [row[:2] for row in rows if row[2] != 0]


def test_every_online_policy_trains_with_the_same_bits() -> None:
    fetched = {}
    for policy in POLICIES:
        env = SMALLEST | {"EBBTIDE_POLICY": policy}
        verdict = child.run(same_bits.compare, "tied-weights", "50%", 4, env=env)
        assert verdict.differences == ()
        assert not verdict.budget_violated, verdict.trouble
        mode = "planned" if policy == "lru-next-use" else "demand"
        assert verdict.modes == ("recorded",) * 2 + (mode,) * 2
        assert sum(verdict.evicted_bytes.values()) > 0
        fetched[policy] = sum(verdict.fetched_bytes.values())
    assert 0 < fetched["lru-next-use"] < fetched["lru"] < fetched["evict-all"]


@pytest.mark.parametrize("named", [{"save_plan": "a.plan"}, {"machine": "dram-cxl"}])
def test_a_policy_that_plans_nothing_has_no_plan_to_save_and_plans_for_no_machine(named: dict[str, str]) -> None:
    settings = Settings(policy="lru", arena_bytes=2**20).but(**named)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="an online policy makes no plan"), ebbtide.Session(settings=settings):
        pass


def test_an_unknown_policy_is_an_error_that_names_planners_and_online_policies() -> None:
    with pytest.raises(SettingError, match=r"'mru' \(did you mean lru\?\); there are demand, lru, .*zero-infinity"):
        is_planned("mru")
