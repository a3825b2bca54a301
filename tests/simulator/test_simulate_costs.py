"""Energy, money and wear of a step worked out by hand, and times by a roofline and by a systolic array."""

from dataclasses import replace

import numpy as np
import pytest

from ebbtide.errors import SettingError
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import Compute, ComputeRule, Cost, InPlace, Link, Machine, Tier
from ebbtide.ir.trace import Trace
from ebbtide.simulator import is_modelled, recost, simulate_policy
from ebbtide.simulator.costs import Costs, costs_of
from tests.helpers.make_steps import R, W, parameter, step

MS = 1_000_000
MB = 1_000_000
YEAR_S = 365 * 24 * 3600

DRAM = Tier(
    "dram", InPlace.ALL, 5 * MB, usd_per_gb=10.0, static_mw_per_gb=100.0, read_pj_per_bit=10.0, write_pj_per_bit=20.0
)
FLASH = Tier(
    "flash",
    InPlace.NOTHING,
    10**9,
    usd_per_gb=1.0,
    static_mw_per_gb=1.0,
    read_pj_per_bit=100.0,
    write_pj_per_bit=200.0,
    endurance_bytes=10**12,
)
MACHINE = Machine(
    "made up",
    Origin.ASSUMED,
    (DRAM, FLASH),
    (Link("dram", "flash", 10**9, pj_per_bit=5.0), Link("flash", "dram", 10**9, pj_per_bit=6.0)),
    compute=Compute(busy_w=50.0, idle_w=20.0),
    cost=Cost(rest_usd=1000.0, years=2.0, usd_per_kwh=0.5),
)
# Two parameters of 4 MB, written in turn, in 5 MB: 4 ms out and 4 ms in for each tick of 1 ms, so 18 ms a step.
TRACE = step([MS, MS], [parameter(4 * MB, 2)] * 2, [(0, 0, W), (1, 1, W)])


def costs(machine: Machine) -> Costs:
    outcome = simulate_policy("lru", TRACE, machine)
    assert outcome.step_ns == 18 * MS
    return costs_of(outcome, machine)


def test_energy_is_that_of_moves_accesses_and_rest() -> None:
    found = costs(MACHINE)
    bits = 8 * 8 * MB  # each way, and written by operations
    assert found.moves_j == pytest.approx(bits * (10 + 5 + 200 + 100 + 6 + 20) / 1e12)
    assert found.accesses_j == pytest.approx(bits * 20 / 1e12)
    assert found.static_j == pytest.approx((0.005 * 0.1 + 1 * 0.001) * 0.018)
    assert found.compute_j == pytest.approx(50 * 0.002 + 20 * 0.016)
    assert found.energy_j is not None
    assert found.steps_per_j == pytest.approx(1 / found.energy_j)


def test_money_is_the_price_of_memory_and_the_whole_machine_for_the_time_of_a_step() -> None:
    found = costs(MACHINE)
    assert found.memory_usd == pytest.approx(0.005 * 10 + 1)
    assert found.energy_j is not None
    owned = (0.005 * 10 + 1 + 1000) * 0.018 / (2 * YEAR_S)
    assert found.step_usd == pytest.approx(owned + found.energy_j / 3.6e6 * 0.5)


def test_flash_wears_out_at_the_rate_of_what_is_written() -> None:
    found = costs(MACHINE)
    assert found.written_bytes == {"dram": 16 * MB, "flash": 8 * MB}
    assert found.years == {"flash": pytest.approx(10**12 / (8 * MB) * 0.018 / YEAR_S)}


def test_utilisation_of_tiers_and_links() -> None:
    found = costs(MACHINE)
    assert found.link_utilisation == {"dram->flash": pytest.approx(8 / 18), "flash->dram": pytest.approx(8 / 18)}
    # 4 of 5 MB all the time: room is given up when a copy out is done, and taken at once for the copy in.
    assert found.tier_utilisation["dram"] == pytest.approx(4 / 5, abs=1e-3)


def test_what_a_machine_does_not_say_is_not_made_up() -> None:
    silent = replace(MACHINE, tiers=(Tier("dram", InPlace.ALL, 5 * MB), Tier("flash", InPlace.NOTHING)), cost=Cost())
    found = costs(silent)
    assert (found.moves_j, found.accesses_j, found.static_j, found.energy_j) == (None, None, None, None)
    assert (found.memory_usd, found.step_usd, found.steps_per_j, found.years) == (None, None, None, {})


def with_flops(*flops: int) -> Trace:
    trace = step([MS] * len(flops), [parameter(4 * MB, len(flops))], [(0, 0, R), (0, 1, R | W)])
    return replace(trace, ticks=replace(trace.ticks, flops=np.array(flops)))


def on(compute: Compute, bytes_per_s: int = 10**9) -> Machine:
    return Machine("npu", Origin.ASSUMED, (Tier("hbm", InPlace.ALL, bytes_per_s=bytes_per_s),), compute=compute)


def test_a_roofline_is_the_longer_of_compute_and_bytes() -> None:
    machine = on(Compute(ComputeRule.ROOFLINE, flops_per_s=10**12))
    trace = recost(with_flops(10**10, 10**9), machine)
    assert [tick.time_ns for tick in trace.ticks] == [10 * MS, 8 * MS]  # 4 MB read; 4 MB read and 4 MB written
    assert trace.origin is Origin.SIMULATED
    assert trace.signature() == with_flops(0, 0).signature()
    assert is_modelled(machine)


def test_a_roofline_has_a_rate_for_each_type_and_a_cost_of_each_call() -> None:
    rates = Compute(ComputeRule.ROOFLINE, flops_per_s=10**12, bfloat16_flops_per_s=2 * 10**12, operator_ns=MS)
    machine, told = on(rates, 10**18), '{"overload":"","args":[{"shape":[4],"dtype":"bfloat16"}],"kwargs":{}}'
    trace = with_flops(10**10, 10**10)
    ticks = replace(trace.ticks, arguments=np.array(["", told], dtype=object))
    assert [tick.time_ns for tick in recost(replace(trace, ticks=ticks), machine).ticks] == [11 * MS, 6 * MS]
    assert [machine.roofline_ns(10**10, 0, arguments) for arguments in ("", told)] == [11 * MS, 6 * MS]


def test_a_systolic_array_fills_once_for_each_buffer() -> None:
    """4 x 4 multiply-adds a cycle at 1 GHz; half of 320 bytes holds 20 columns of four 2-byte elements."""
    machine = on(Compute(ComputeRule.SYSTOLIC, array=4, clock_hz=10**9, buffer_bytes=320), 10**18)
    trace = recost(with_flops(2 * 16 * 100, 2 * 16 * 10, 0), machine)
    # 100 columns in 5 passes of 20, 4 cycles each to fill; 10 columns in one; nothing at all.
    assert [tick.time_ns for tick in trace.ticks] == [100 + 5 * 4, 10 + 4, 0]


def test_measured_times_stay_as_they_are() -> None:
    trace = with_flops(1, 1)
    assert recost(trace, on(Compute())) is trace
    assert not is_modelled(on(Compute()))


def test_a_trace_without_flops_has_no_modelled_times() -> None:
    with pytest.raises(SettingError, match="has none: record it"):
        recost(with_flops(0, 0), on(Compute(ComputeRule.ROOFLINE, flops_per_s=10**12)))
