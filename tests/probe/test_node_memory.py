"""Memory of a NUMA node as operations find it there; on a machine with one node, that is memory itself.

No time is asserted: only that figures are there, that they are whole, and that commands take them.
"""

from pathlib import Path

import pytest
import torch

from ebbtide.errors import SettingError
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Machine, Tier
from ebbtide.probe.node_memory import NodeMemory, render_nodes, with_nodes
from ebbtide.settings import SlowerTier, TierKind
from ebbtide.units import MIB
from tests.helpers import command
from tests.helpers.cli import call as run
from tests.helpers.paths import ROOT
from tests.probe.test_probe import TINY

NODE = SlowerTier(TierKind.NUMA, 64 * MIB, 0)
COMPRESSED = SlowerTier(TierKind.COMPRESSED, 64 * MIB)
TIERS = (
    Tier("dram", InPlace.ALL, bytes_per_s=20 * 10**9),
    Tier("numa0", InPlace.ALL, bytes_per_s=10**9),
    Tier("file", InPlace.NOTHING),
)


@pytest.fixture(scope="module", autouse=True)
def node() -> None:
    """Some containers do not let memory be placed."""
    try:
        NodeMemory(0, MIB)
    except SettingError as why:
        pytest.skip(str(why))


def test_a_nodes_memory_is_a_tensor_that_keeps_what_is_written() -> None:
    memory = NodeMemory(0, 3 * MIB)
    buffer = memory.buffer
    assert (buffer.numel(), int(buffer.max())) == (3 * MIB, 0)
    buffer.fill_(7)
    memory.settle()
    memory.leave_memory()
    del memory
    assert int(torch.sum(buffer, dtype=torch.int64)) == 7 * 3 * MIB


def test_memory_of_a_node_that_is_not_there_is_an_error() -> None:
    with pytest.raises(SettingError, match="NUMA node 1023"):
        NodeMemory(1023, MIB)


def test_a_machine_has_what_operations_reach_there_and_how_long_a_load_takes() -> None:
    found = with_nodes(Machine("made up", Origin.MEASURED, TIERS), (NODE,))
    dram, there, file = found.tiers
    assert dram.load_ns is not None
    assert there.load_ns is not None
    assert min(dram.load_ns, there.load_ns) > 0
    assert there.bytes_per_s is not None
    assert there.write_bytes_per_s is not None
    assert (
        0 < max(there.bytes_per_s, there.write_bytes_per_s) <= 20 * 10**9
    )  # by the formula, none is faster than memory
    assert file == TIERS[2]
    assert Machine.from_toml(found.to_toml()) == found
    assert [line.split()[0] for line in render_nodes(found).splitlines()[1:]] == ["dram", "numa0"]


def test_nothing_is_measured_without_a_node() -> None:
    machine = Machine("made up", Origin.MEASURED, TIERS[::2])
    assert with_nodes(machine, (COMPRESSED,)) is machine


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "step.trace"
    script = str(ROOT / "docs" / "example" / "train.py")
    assert command.run(command.EBBTIDE, "trace", "-o", str(path), script).returncode == 0
    return path


@pytest.mark.starts
def test_operators_are_measured_with_operands_there_and_planned_with(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = tmp_path / "machine.toml"
    monkeypatch.setattr("ebbtide.probe.command.THOROUGH", TINY)
    measured = ("--seconds", 1, "--kernels", trace, "--kernel-seconds", 60)
    done = run("probe", "--tier", "numa:0:64MiB", *measured, "-o", machine)
    assert done.exit_code == 0, done.output
    assert "on NUMA node 0" in done.output
    found = Machine.from_toml(machine.read_text())
    assert [tier.in_place for tier in found.tiers] == [InPlace.ALL, InPlace.ALL, InPlace.NOTHING]
    assert {kernel.tier for kernel in found.kernels} == {"numa0"}
    assert {kernel.operator for kernel in found.kernels} == {"aten::mm", "aten::add_"}
    assert f"in place{'reading':>29}" in machine.read_text()
    planned = run("plan", trace, "--machine", machine, "--fast", "50%")
    assert planned.exit_code == 0, planned.output


@pytest.mark.starts
@pytest.mark.parametrize("tiers", [("compressed:64MiB",), ("compressed:64MiB", "numa:0:64MiB")])
def test_operators_are_measured_in_one_other_place(tiers: tuple[str, ...], trace: Path) -> None:
    asked = [part for tier in tiers for part in ("--tier", tier)]
    done = run("probe", *asked, "--kernels", trace)
    assert isinstance(done.exception, SettingError)
    assert "name one --tier numa:NODE:SIZE, or none" in str(done.exception)
