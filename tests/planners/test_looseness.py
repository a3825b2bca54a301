"""What makes the bound loose: machines on which one constraint alone is at work, plans made by hand, known answers."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ebbtide.cli import cli
from ebbtide.ir.files import save
from ebbtide.ir.machine import InPlace, Machine
from ebbtide.ir.occupancy import exact, needed_bytes, peak
from ebbtide.ir.plan import Plan, PlanStatus, Stay
from ebbtide.ir.trace import Storage, StorageKind, Trace
from ebbtide.planners.search.bound_diagnosis import WORDS, Constraint, Looseness, looseness_of
from ebbtide.simulator import simulate
from ebbtide.simulator.lowering import lower
from tests.helpers.make_steps import PAGE, R, W, disk, network, parameter, step

SIZE = 8 * PAGE
"""Of a storage: a copy takes as many ns, at a byte a ns."""


def in_bytes(machine: Machine) -> Machine:
    return replace(machine, tiers=(replace(machine.tiers[0], page_bytes=1), *machine.tiers[1:]))


def found(trace: Trace, machine: Machine, budget_bytes: int, *stays: Stay) -> tuple[int, Looseness | None]:
    """The step's time, and what the gap to the operations' own time comes from."""
    plan = Plan("by hand", PlanStatus.FEASIBLE, trace.signature(), budget_bytes, 0, 0, 0, stays)
    within = machine.with_budget(budget_bytes)
    step_ns = simulate(lower(plan, trace, within), trace, within, exact).step_ns
    made = replace(plan, predicted_ns=step_ns, lower_bound_ns=trace.step_ns)
    return step_ns, looseness_of(made, trace, machine)


def only(found: Looseness | None, constraint: Constraint, gap: float, share: float) -> bool:
    assert found is not None
    assert found.gap == pytest.approx(gap, rel=1e-3)
    assert found.shares == ((constraint, pytest.approx(share, abs=1e-3)),)
    assert found.together == pytest.approx(share, abs=1e-3)
    assert f"does not count {WORDS[constraint][0]} in full" in found.sentence()
    assert found.sentence().endswith(f"{100 * share:.0f} % of the gap")
    return found.named is constraint


def test_a_copy_beside_an_operation_slows_it() -> None:
    """A replica is written beside the second operation: s / (1 + s) of the copy's time is lost."""
    trace = step([SIZE, 2 * SIZE], [parameter(SIZE, 2)], [(0, 0, W)])
    machine = in_bytes(disk())
    machine = replace(machine, links=tuple(replace(link, slows_compute=0.25) for link in machine.links))
    step_ns, loose = found(trace, machine, SIZE, Stay(0, "dram", 0, 0, 2), Stay(0, "file", 1, 1, 2))
    assert step_ns == pytest.approx(3 * SIZE + SIZE * 0.25 / 1.25, rel=1e-3)
    assert only(loose, Constraint.SLOWDOWN, 0.2 / 3, 1.0)


def test_a_fetch_that_is_waited_for_shares_the_disk_with_a_write() -> None:
    """Both at half the rate: the fetch takes twice as long as alone, and half of that is the sharing's."""
    trace = step([10 * SIZE] * 3, [parameter(SIZE, 3)] * 2, [(0, 0, W), (1, 1, R)])
    stays = (
        Stay(0, "dram", 0, 0, 3),
        Stay(0, "file", 1, 2, 3),  # a copy out that nobody waits for
        Stay(1, "file", 0, 0, 3),
        Stay(1, "dram", 1, 1, 2),
    )
    step_ns, loose = found(trace, in_bytes(disk(both=10**9)), 2 * SIZE, *stays)
    assert step_ns == pytest.approx(30 * SIZE + 2 * SIZE, rel=1e-3)
    assert only(loose, Constraint.SHARING, 2 / 30, 0.5)


ONE_AT_A_TIME = step(
    [10 * SIZE] * 4,
    [parameter(SIZE, 4), *(Storage(SIZE, StorageKind.ACTIVATION, tick, tick + 1) for tick in (1, 3))],
    [(0, 0, R), (0, 2, R), (1, 1, W), (2, 3, W)],
)
"""With room for one storage the weight comes twice, and each time compute waits."""
ITS_STAYS = (
    Stay(0, "file", 0, 0, 4),
    *(Stay(0, "dram", tick, tick, tick + 1) for tick in (0, 2)),
    *(Stay(number, "dram", tick, tick, tick + 1) for number, tick in ((1, 1), (2, 3))),
)


def test_of_a_copy_that_is_waited_for_the_latency_is_named() -> None:
    step_ns, loose = found(ONE_AT_A_TIME, in_bytes(disk(latency_ns=3 * SIZE)), SIZE, *ITS_STAYS)
    assert step_ns == pytest.approx(40 * SIZE + 2 * (3 + 1) * SIZE, rel=1e-3)
    assert only(loose, Constraint.LATENCY, 8 / 40, 3 / 4)


def test_shares_that_do_not_add_up_are_said_to_be_of_each_by_itself() -> None:
    shares = ((Constraint.SLOWDOWN, 0.48), (Constraint.SHARING, 0.15), (Constraint.PAGES, 0.01))
    said = Looseness(0.1, shares, 0.67).sentence()
    assert "48 % of the gap, bandwidth that links share 15 %, each by itself" in said
    assert "67 % together; the other" in said
    assert said.endswith("the other 33 % are the search's, or that of the copies' order")


def test_where_no_constraint_explains_the_gap_none_is_named() -> None:
    step_ns, loose = found(ONE_AT_A_TIME, in_bytes(disk()), SIZE, *ITS_STAYS)
    assert step_ns == pytest.approx(42 * SIZE, rel=1e-3)
    assert loose is not None
    assert (loose.named, loose.shares, loose.together) == (None, (), 0.0)
    assert "nothing that the bound leaves out" in loose.sentence()


def test_slow_operands_in_place_are_named() -> None:
    """The second operation reads its operand at a byte a ns, not at ten."""
    trace = step([SIZE, 2 * SIZE], [parameter(SIZE, 2)], [(0, 1, R)])
    fast, slow = disk().tiers
    slow = replace(slow, in_place=InPlace.READS, bytes_per_s=10**9)
    machine = replace(disk(), tiers=(replace(fast, bytes_per_s=10**10, page_bytes=1), slow))
    step_ns, loose = found(trace, machine, SIZE, Stay(0, "file", 0, 0, 2))
    assert step_ns == pytest.approx(3 * SIZE + 0.9 * SIZE, rel=1e-3)
    assert only(loose, Constraint.IN_PLACE, 0.3, 1.0)


def test_what_is_within_two_per_cent_is_not_looked_into() -> None:
    ticks = replace(ONE_AT_A_TIME.ticks, time_ns=np.full(len(ONE_AT_A_TIME.ticks), 30 * SIZE))
    trace = replace(ONE_AT_A_TIME, ticks=ticks)
    step_ns, loose = found(trace, in_bytes(disk(latency_ns=1)), SIZE, *ITS_STAYS)
    assert 1.01 < step_ns / trace.step_ns < 1.02
    assert loose is None


@pytest.mark.slow
def test_plan_and_compare_name_it(tmp_path: Path) -> None:
    trace, machine = tmp_path / "step.trace", tmp_path / "machine.toml"
    made = network(layers=3)
    save(made, trace)
    machine.write_text(disk(latency_ns=100_000, both=10**9).to_toml())
    fast = str(peak(needed_bytes(made)) * 5 // 4)
    planned = CliRunner().invoke(cli, ["plan", str(trace), "--machine", str(machine), "--fast", fast])
    assert planned.exit_code == 0, planned.output
    assert f"does not count {WORDS[Constraint.LATENCY][0]} in full" in planned.output.splitlines()[-2]
    command = ["compare", str(trace), "--machine", str(machine), "--fast", fast, "--policy", "ebbtide,lru"]
    compared = CliRunner().invoke(cli, command)
    assert compared.exit_code == 0, compared.output
    assert re.search(r"ebbtide, gap [0-9.]+ %: the bound .* [0-9]+ % of the gap", " ".join(compared.output.split()))
    figures = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    rows = {row["policy"]: row["loose"] for row in figures}
    assert rows["lru"] is None
    assert rows["ebbtide"]["named"] == "latency"
    assert rows["ebbtide"]["unexplained"] == pytest.approx(1 - rows["ebbtide"]["together"])
