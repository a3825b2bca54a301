"""What the tests of tiers between memory and the spill file run in child processes."""

from dataclasses import dataclass

import ebbtide
from ebbtide import _torch
from ebbtide.errors import SessionError
from ebbtide.planners import PLANNERS
from ebbtide.settings import Settings
from tests.training.same_bits import CASES, Verdict, begin, step, train_plainly, verdict

STEPS = 6


def compare(name: str, fast: str, policy: str) -> tuple[Verdict, tuple[int, ...]]:
    """The case plainly and under the tiers of the environment, and the bytes that were read from each."""
    case = CASES[name]
    plain = train_plainly(case, STEPS)
    settings = Settings.from_environment().but(wait_for_plan=policy != "demand")
    with ebbtide.Session(fast=fast, policy=policy, settings=settings) as session:
        ours = begin(case)
        for _ in range(STEPS):
            with session.step():
                step(ours)
    return verdict(plain, ours, session), _torch.counters()["tier_read_bytes"]


@dataclass(frozen=True)
class InPlace:
    """What a run over memory that is used in place came to; bytes by step are of steps that followed a plan."""

    verdict: Verdict
    in_tier: list[int]  # bytes at the end of each step
    moved: list[int]  # bytes out of fast memory and back, by step
    faults: int


def used_in_place(name: str, fast: str, policy: str) -> InPlace:
    """The first tier of the environment is a NUMA node's."""
    case = CASES[name]
    plain = train_plainly(case, STEPS)
    settings = Settings.from_environment().but(wait_for_plan=policy in PLANNERS)
    in_tier: list[int] = []
    with ebbtide.Session(fast=fast, policy=policy, settings=settings) as session:
        ours = begin(case)
        for _ in range(STEPS):
            with session.step():
                step(ours)
            in_tier.append(_torch.counters()["tier_bytes"][0])
    steps = session.report().steps
    moved = [sum(each.evicted_bytes.values()) + sum(each.fetched_bytes.values()) for each in steps]
    return InPlace(verdict(plain, ours, session), in_tier, moved, _torch.counters()["faults"])


def two_sessions(first: str, second: str) -> str:
    """What the second says."""
    with ebbtide.Session(fast="1GiB", policy="demand", tiers=first):
        pass
    try:
        with ebbtide.Session(fast="1GiB", policy="demand", tiers=second):
            pass
    except SessionError as error:
        return str(error)
    return ""
