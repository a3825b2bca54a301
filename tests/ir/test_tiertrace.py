"""A step of ours as tiertrace/1: what it becomes, that it can be read again, and that the format's judge takes it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given

from ebbtide.cli import cli
from ebbtide.errors import SettingError
from ebbtide.ir.files import save
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import live_bytes, needed_bytes
from ebbtide.ir.tiertrace import load_tiertrace, read_tiertrace, to_tiertrace
from ebbtide.ir.trace import Storage, StorageKind, Trace
from ebbtide.machines import find_machine
from tests.helpers.make_g10 import FOLDER, WORKLOADS, judge, needs_g10
from tests.helpers.make_steps import R, W, disk, network, page_traces, parameter, step
from tests.helpers.make_steps import machines as random_machines

DISK = disk(read=2, write=1, both=3, latency_ns=7)


def read_again(trace: Trace, machine: Machine = DISK) -> tuple[Trace, Machine]:
    found, its_machine = read_tiertrace(to_tiertrace(trace, machine).encode())
    assert its_machine is not None
    return found, its_machine


def test_a_step_of_ours_by_hand() -> None:
    storages = [
        parameter(8, 4),
        Storage(16, StorageKind.ACTIVATION, 0, 4, "conv"),  # lives on after its last use
        Storage(32, StorageKind.ACTIVATION, 1, 3),  # its last use writes
        Storage(64, StorageKind.GRADIENT, 3, 6),  # which the next step reads
        Storage(128, StorageKind.OTHER, 2, 4, scratch=True),
        Storage(64, StorageKind.OTHER, 3, 4, scratch=True, room_of=4),
    ]
    uses = [(0, 0, R), (0, 3, R | W), (1, 0, W), (1, 2, R), (2, 1, W), (2, 2, W), (3, 3, W), (3, 5, R)]
    found: dict[str, Any] = json.loads(to_tiertrace(step([10, 20, 30, 40], storages, uses), DISK.with_budget(99)))
    assert found["tensors"] == [
        {"id": 0, "nbytes": 8, "kind": "global", "label": ""},
        {"id": 1, "nbytes": 16, "kind": "local", "label": "conv"},
        {"id": 2, "nbytes": 32, "kind": "local", "label": ""},
        {"id": 3, "nbytes": 64, "kind": "global", "label": ""},
    ]
    rows = [(row["name"], row["duration_ns"], row["reads"], row["writes"]) for row in found["kernels"]]
    assert rows == [
        ("op0", 10, [0], [1]),
        ("op1", 20, [3], [2]),
        ("op2", 30, [1, 2], [2]),
        ("op3", 40, [0], [0, 3]),
    ]
    assert [row["workspace_bytes"] for row in found["kernels"]] == [0, 0, 128, 128]
    assert found["initial"] == {"global": "file", "local": "absent"}
    assert found["machine"]["tiers"] == [
        {"name": "dram", "capacity_bytes": 99},
        {"name": "file", "capacity_bytes": None},
    ]
    ends = [(row["name"], row["bytes_per_s"], row["latency_ns"]) for row in found["machine"]["links"]]
    assert ends == [("dram_to_file", 1, 7), ("file_to_dram", 2, 7)]
    (port,) = found["machine"]["ports"]
    assert port == {"name": "disk", "links": ["dram_to_file", "file_to_dram"], "bytes_per_s": 3}


@given(page_traces(tenants=True))
def test_a_step_that_is_read_again_needs_the_same_bytes_in_the_same_time(trace: Trace) -> None:
    found, _ = read_again(trace)
    assert found.ticks.time_ns.tolist() == trace.ticks.time_ns.tolist()
    assert needed_bytes(found).tolist() == needed_bytes(trace).tolist()
    if np.all(trace.storages.death <= len(trace.ticks)):  # nothing becomes global, and lives end with the last use
        assert np.all(live_bytes(found) <= live_bytes(trace))


@given(page_traces(tenants=True))
def test_what_the_format_can_say_is_not_changed_any_more(trace: Trace) -> None:
    found, its_machine = read_again(trace)
    assert read_again(found, its_machine) == (found, its_machine)


@given(random_machines(10**6))
def test_a_machine_keeps_its_tiers_links_and_groups(machine: Machine) -> None:
    _, found = read_again(network(), machine)
    assert [(tier.name, tier.capacity_bytes) for tier in found.tiers] == [
        (tier.name, tier.capacity_bytes) for tier in machine.tiers
    ]
    ends = {(link.name, link.bytes_per_s, link.latency_ns, link.shares) for link in machine.links}
    assert {(link.name, link.bytes_per_s, link.latency_ns, link.shares) for link in found.links} == ends
    used = {link.shares for link in machine.links}
    rates = {(group.name, group.bytes_per_s) for group in machine.groups if group.name in used}
    assert {(group.name, group.bytes_per_s) for group in found.groups} == rates


@needs_g10
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_published_network_is_the_same_when_it_is_written(workload: str) -> None:
    trace, machine = load_tiertrace(FOLDER / f"{workload}.json")
    assert machine is not None
    found, its_machine = read_again(trace, machine)
    assert its_machine == machine
    assert needed_bytes(found).tolist() == needed_bytes(trace).tolist()
    assert live_bytes(found).tolist() == live_bytes(trace).tolist()


@needs_g10
def test_the_judge_carries_out_a_plan_for_a_step_of_ours(tmp_path: Path) -> None:
    trace, step_file, plan_file = tmp_path / "a.trace", tmp_path / "a.json", tmp_path / "plan.json"
    save(network(width_bytes=2 * 2**20), trace)
    for command in (
        ["export", str(trace), "--machine", "g10", "--fast", "60%", "-o", str(step_file)],
        ["plan", str(step_file), "--export", "tierplan/1", "-o", str(plan_file)],
    ):
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0, done.output
    found = judge().main([str(step_file), str(plan_file), "--iters", "3", "--strict"])
    assert found["demand_fetches"] == 0
    assert found["peak_gpu_bytes"] <= 0.6 * int(live_bytes(network(width_bytes=2 * 2**20)).max())
    assert sum(found["moved_bytes"].values()) > 0
    share = float(done.output.split("predicted")[1].split(", ")[1].split("%")[0])
    assert abs(found["pct_of_ideal"] - share) < 3


def test_the_command_says_what_it_wrote_and_refuses_a_folder(tmp_path: Path) -> None:
    trace, step_file = tmp_path / "a.trace", tmp_path / "a.json"
    save(network(), trace)
    options = ["--machine", "g10", "--set", "host.capacity_bytes=1GiB", "--fast", "50%"]
    done = CliRunner().invoke(cli, ["export", str(trace), *options, "-o", str(step_file)])
    assert done.exit_code == 0, done.output
    assert f"{step_file}: 30 operations, 36 storages, " in done.output
    assert "of gpu, as tiertrace/1" in done.output
    _, machine = load_tiertrace(step_file)
    assert machine is not None
    assert machine.tiers[1].capacity_bytes == 2**30
    assert machine.tiers[0].capacity_bytes == int(live_bytes(network()).max()) // 2
    assert machine.links == read_again(network(), find_machine("g10"))[1].links
    failed = CliRunner().invoke(cli, ["export", str(trace), *options, "-o", str(tmp_path)])
    assert isinstance(failed.exception, SettingError)
