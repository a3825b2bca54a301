"""What the tests of online policies run in child processes: a step whose accesses are known, and what it moved."""

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

import ebbtide
from ebbtide import _torch
from ebbtide.capture.flops import count_flops
from ebbtide.capture.recording import capture
from ebbtide.ir.native import Lane
from ebbtide.ir.trace import Trace
from ebbtide.settings import Settings

KIB = 1024
STEPS = 5


@dataclass(frozen=True, slots=True)
class Moved:
    """The last step's moves, each (tick, storage of the trace): what was written, what came back, as asked for."""

    trace: Trace
    same_bits: bool
    written: list[tuple[int, int]]
    fetched: list[tuple[int, int]]
    modes: tuple[str, ...]


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


def known_step(policy: str, arena_bytes: int) -> Moved:
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
    settings = replace(Settings.from_environment(), arena_bytes=arena_bytes)
    with ebbtide.Session(policy=policy, settings=settings) as session:
        same = _train(session) == plain
    recording = recordings[0]
    step = capture(recording, "known", count_flops)
    columns = (recording.span_asked_ns, recording.span_lane, recording.span_tick, recording.span_storage)
    spans = zip(*(column.tolist() for column in columns), strict=True)
    moves = [(lane, (tick, step.numbers[row])) for _, lane, tick, row in sorted(spans) if lane <= Lane.BACK]
    return Moved(
        step.trace,
        same,
        [move for lane, move in moves if lane == Lane.OUT],
        [move for lane, move in moves if lane == Lane.BACK],
        tuple(str(row.mode) for row in session.report().steps),
    )
