"""What the tests of tiers between memory and the spill file run in child processes."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

import ebbtide
from ebbtide import _torch
from ebbtide.errors import SessionError, SettingError
from ebbtide.planners import PLANNERS
from ebbtide.settings import Settings
from tests.training.cases_mishaps import refused_in_mid_step
from tests.training.same_bits import CASES, Verdict, begin, train, train_plainly, verdict

STEPS = 6


def compare(name: str, fast: str, policy: str) -> tuple[Verdict, tuple[int, ...]]:
    """The case plainly and under the tiers of the environment, and the bytes that were read from each."""
    case = CASES[name]
    plain = train_plainly(case, STEPS)
    settings = Settings.from_environment().but(wait_for_plan=policy != "demand")
    with ebbtide.Session(fast=fast, policy=policy, settings=settings) as session:
        ours = begin(case)
        train(ours, STEPS, session)
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
            train(ours, 1, session)
            in_tier.append(_torch.counters()["tier_bytes"][0])
    steps = session.report().steps
    moved = [each.evicted_bytes.total + each.fetched_bytes.total for each in steps]
    return InPlace(verdict(plain, ours, session), in_tier, moved, _torch.counters()["faults"])


def two_sessions(first: dict[str, str], second: dict[str, str]) -> str:
    """What the second says."""
    with ebbtide.Session(fast="1GiB", policy="demand", **first):
        pass
    try:
        with ebbtide.Session(fast="1GiB", policy="demand", **second):
            pass
    except SessionError as error:
        return str(error)
    return ""


def refused(tiers: str | None) -> str:
    """What a session says of such tiers; those of the environment for None."""
    with pytest.raises(SettingError) as raised, ebbtide.Session(fast="50%", policy="demand", tiers=tiers):
        raise AssertionError("its block was entered")
    return str(raised.value)


def a_disk_that_fills_up(place: str) -> tuple[str, tuple[int, ...]]:
    """What a step raises that needs more than the tier and the disk have left, once somebody has taken the rest. With
    the bytes that were read from each tier."""
    ballast = Path(place, "ballast")

    def fill() -> None:
        free = os.statvfs(place)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - (2 << 20))

    return refused_in_mid_step(fill, ballast.unlink), _torch.counters()["tier_read_bytes"]
