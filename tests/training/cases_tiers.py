"""What the tests of tiers between memory and the spill file run in child processes."""

import ebbtide
from ebbtide import _torch
from ebbtide.errors import SessionError
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
