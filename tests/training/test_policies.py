"""Online policies in the runtime: the decider does there what it does in the simulator, and changes no bit."""

import pytest

import ebbtide
from ebbtide.errors import SettingError
from ebbtide.ir.occupancy import arena_pages
from ebbtide.ir.schedule import no_commands
from ebbtide.ir.trace import Trace
from ebbtide.planning.policies import is_planned
from ebbtide.settings import Settings
from ebbtide.simulator import POLICIES, Simulator
from tests.helpers import child
from tests.helpers.make_steps import disk
from tests.training.cases_policies import KIB, Moved

SMALLEST = {"EBBTIDE_MIN_STORAGE": "4096"}


def simulated(policy: str, trace: Trace, budget: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The copies that a steady step puts on their links: (tick, storage) out of the first tier, and into it."""
    simulator = Simulator(trace, disk().with_budget(budget), arena_pages)
    found = simulator.noted(no_commands(), record=True, policy=POLICIES[policy])
    assert not isinstance(found, int)
    columns = found.queued()
    rows = list(zip(columns["tick"].tolist(), columns["storage"].tolist(), columns["source"].tolist(), strict=True))
    return [row[:2] for row in rows if row[2] == 0], [row[:2] for row in rows if row[2] != 0]


@pytest.mark.alike
@pytest.mark.parametrize("budget", [640 * KIB, 1000 * KIB])
@pytest.mark.parametrize("policy", ["lru", "lru-next-use"])
def test_the_runtime_moves_what_the_simulator_says_in_that_order(policy: str, budget: int) -> None:
    moved: Moved = child.run("cases_policies:known_step", policy, budget, env=SMALLEST)
    assert moved.same_bits
    written, fetched = simulated(policy, moved.trace, budget)
    assert len(moved.fetched) > 10
    assert len(moved.written) > 5
    assert moved.fetched == fetched
    assert moved.written == written


def test_every_online_policy_trains_with_the_same_bits() -> None:
    fetched = {}
    for policy in POLICIES:
        env = SMALLEST | {"EBBTIDE_POLICY": policy}
        verdict = child.run("same_bits:compare", "tied-weights", "50%", 4, env=env)
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
