"""Operators called again by where their operands lie: what is measured, how a machine keeps it, what it does to plans.

Times are asserted only of tables that are made up; of measured ones, that they are whole and belong to the step.
"""

import json
import random
import time
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.capture.calls import describe_call
from ebbtide.errors import FileFormatError, SettingError, SpillError
from ebbtide.host.mounts import find_mount, read_mounts
from ebbtide.host.process import PROC
from ebbtide.ir.base import Origin
from ebbtide.ir.files import load, save
from ebbtide.ir.kernels import Kernel, whole_operators
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.ir.plan import Plan, PlanStatus, Stay
from ebbtide.ir.trace import Accesses, Storage, StorageKind, Storages, Tick, Ticks, Trace
from ebbtide.planners import plan
from ebbtide.probe.calls import NotRepeatableError, call_of
from ebbtide.probe.figures import Figure
from ebbtide.probe.kernel_table import render_kernels
from ebbtide.probe.mapped import MappedFile
from ebbtide.probe.placements import TOO_SMALL, Profile, Unique, measure_kernel, measure_kernels, unique_operators
from ebbtide.simulator import simulate
from ebbtide.simulator.lowering import lower
from ebbtide.simulator.measured_in_place import MeasuredInPlace
from tests.helpers import command
from tests.helpers.cli import call as run
from tests.helpers.paths import ROOT
from tests.probe.test_probe import TINY

R, W, RW = 1, 2, 3
MUL = Kernel("aten::mul", "x", "pmm", Origin.MEASURED, (100, 200, 100), (R, R, W), (0, 1, 2, 4, 3, 5, 6, 7),
             (50, 60, 80, 55, 95, 64, 83, 99), (1,) * 8)  # fmt: skip
FAST = Tier("dram", InPlace.ALL, 1000, 10**9, page_bytes=1)
SLOW = Tier("pmm", InPlace.ALL, None, 10**8)
MACHINE = Machine(
    "made up",
    Origin.ASSUMED,
    (FAST, SLOW, Tier("file", InPlace.NOTHING)),
    (Link("dram", "pmm", 10**9), Link("pmm", "dram", 10**9)),
    kernels=(MUL,),
)


def with_arguments(trace: Trace, arguments: str) -> Trace:
    return replace(trace, ticks=Ticks.from_rows(replace(row, arguments=arguments) for row in trace.ticks))


def step(depths: tuple[int, ...] = (0, 0)) -> Trace:
    """mul over storages 0 and 1 into 2, in one tick or with another operator within; and after it something else."""
    last = len(depths) - 2
    ticks = tuple(Tick(1000, "aten::mul" if at == 0 else f"op{at}", depth=depth, arguments="x")
                  for at, depth in enumerate(depths))  # fmt: skip
    storages = (
        Storage(100, StorageKind.PARAMETER, 0, len(depths), persistent=True),
        Storage(200, StorageKind.PARAMETER, 0, len(depths), persistent=True),
        Storage(100, StorageKind.ACTIVATION, last, len(depths)),
    )
    uses = [(number, tick, R) for number in (0, 1) for tick in range(last + 1)] + [(2, last, W)]
    accesses = Accesses(*np.array(uses).T)
    return Trace("made up", Origin.ASSUMED, Ticks.from_rows(ticks), Storages.from_rows(storages), accesses)


def simulated(trace: Trace, slow: set[int], machine: Machine = MACHINE) -> int:
    """The step's time with those storages in the slow tier for good."""
    stays = tuple(
        Stay(number, "pmm" if number in slow else "dram", row.birth, row.birth, row.death)
        for number, row in enumerate(trace.storages)
    )
    placed = Plan("by hand", PlanStatus.FEASIBLE, trace.signature(), 1000, 0, 0, 0, stays)
    return simulate(lower(placed, trace, machine), trace, machine).step_ns


# ---- the table ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depths", [(0, 0), (0, 1, 0), (0, 1, 2, 0)])
def test_simulated_times_are_what_the_table_says(depths: tuple[int, ...]) -> None:
    trace = step(depths)
    for bits in product((0, 1), repeat=3):
        slow = {number for number, bit in enumerate(bits) if bit}
        place = sum(1 << number for number in slow)
        expected = MUL.times_ns[MUL.slow.index(place)] - MUL.times_ns[0]
        assert simulated(trace, slow) == trace.step_ns + expected, slow
    # Without the table each byte of the 200 takes 9 ns longer there, in every tick that holds it.
    assert simulated(trace, {1}, replace(MACHINE, kernels=())) == trace.step_ns + 1800 * (len(depths) - 1)
    assert simulated(with_arguments(trace, "y"), {1}) == (trace.step_ns + 1800 * (len(depths) - 1))


def test_what_could_not_be_placed_keeps_the_formula() -> None:
    kept = replace(MUL, slow=(0, 1), times_ns=(50, 60), spread_ns=(1, 1))
    machine = replace(MACHINE, kernels=(kept,))
    assert simulated(step(), {0, 1}, machine) == step().step_ns + 10 + 1800


def test_a_planner_places_by_the_table() -> None:
    """By the formula the larger storage is the dearer one in the slow tier; by this table the smaller one."""
    trace = step()
    keep = trace.accesses.storage < 2
    accesses = Accesses(*(getattr(trace.accesses, name)[keep] for name in ("storage", "tick", "mode")))
    short = replace(trace, storages=trace.storages.take(slice(2)), accesses=accesses)
    table = replace(MUL, slow=(0, 1, 2, 3), times_ns=(50, 950, 51, 951), spread_ns=(0,) * 4)
    for kernels, expected in (((), 0), ((table,), 1)):
        made = plan("autotm-static", short, replace(MACHINE, kernels=kernels), 200)
        assert {row.storage: row.tier for row in made.stays} == {expected: "pmm", 1 - expected: "dram"}


@pytest.mark.parametrize("seed", range(20))
def test_a_program_takes_the_time_of_a_placement_as_a_whole(seed: int) -> None:
    """What each operand costs alone says nothing of two."""
    chance, trace = random.Random(seed), step()
    times = (50, *(50 + chance.randint(0, 1000) for _ in range(7)))
    machine, budget = replace(MACHINE, kernels=(replace(MUL, times_ns=times),)), chance.randint(0, 400)
    sizes = [row.nbytes for row in trace.storages]
    ways = [{at for at, bit in enumerate(bits) if bit} for bits in product((0, 1), repeat=3)]
    fit = [slow for slow in ways if sum(size for at, size in enumerate(sizes) if at not in slow) <= budget]
    made = plan("autotm-static", trace, machine, budget)
    found = simulate(lower(made, trace, machine), trace, machine).step_ns
    assert found <= min(simulated(trace, slow, machine) for slow in fit) + 1


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_between_placements_times_are_linear_in_each_operand(shares: list[float]) -> None:
    found = MUL.extra_ns(dict(enumerate(shares)))
    expected = 0.0
    for bits in product((0, 1), repeat=3):
        weight = np.prod([share if bit else 1 - share for share, bit in zip(shares, bits, strict=True)])
        place = sum(bit << at for at, bit in enumerate(bits))
        expected += weight * (MUL.times_ns[MUL.slow.index(place)] - 50)
    assert found == pytest.approx(expected, abs=1e-9)


def test_an_additive_model_adds() -> None:
    alone = tuple(1 << at for at in range(7))
    kernel = Kernel("aten::cat", "x", "pmm", Origin.MODELLED, (5000,) * 7, (R,) * 7, (0, *alone),
                    (100, *range(101, 108)), (0,) * 8)  # fmt: skip
    assert kernel.extra_ns(dict.fromkeys(range(7), 1.0)) == sum(range(1, 8))
    assert kernel.extra_ns({2: 0.5, 6: 1.0}) == 1.5 + 7


def test_operands_that_are_alike_are_taken_in_order() -> None:
    twins = replace(MUL, operand_bytes=(100, 100, 100), operand_access=(R, R, W))
    trace = step()
    storages = (trace.storages[0], replace(trace.storages[1], nbytes=100), trace.storages[2])
    found = MeasuredInPlace(replace(trace, storages=Storages.from_rows(storages)), replace(MACHINE, kernels=(twins,)))
    assert [found.operand(0, 1, number) for number in range(3)] == [0, 1, 2]
    assert [found.operand(0, 2, number) for number in range(3)] == [None] * 3
    assert [found.operand(1, 1, number) for number in range(3)] == [None] * 3


def test_a_machine_file_keeps_the_table() -> None:
    assert Machine.from_toml(MACHINE.to_toml()) == MACHINE


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tier": "tape"}, "no slower tier"),
        ({"tier": "dram"}, "no slower tier"),
        ({"tier": "file"}, "no slower tier"),
        ({"origin": "simulated"}, "measured, or modelled"),
        ({"origin": "modelled"}, "one operand each"),
        ({"slow": [0, 1]}, "differ in length"),
        ({"slow": [1, 0, 2, 4, 3, 5, 6, 7]}, "the first has nothing slow"),
        ({"slow": [0, 1, 2, 4, 3, 5, 6, 6]}, "placements of a kernel differ"),
        ({"slow": [0, 1, 2, 4, 3, 5, 6, 8]}, "slow of a kernel"),
        ({"slow": [0, 1, 2], "times_ns": [1, 2, 3], "spread_ns": [1, 2, 3]}, "has all placements"),
        ({"times_ns": [-1, 2, 3, 4, 5, 6, 7, 8]}, "times_ns of a kernel"),
        ({"times_ns": [1.5] * 8}, "must be a int"),
        ({"operand_access": [1, 4, 2]}, "operand_access of a kernel"),
        ({"operand_bytes": [0, 1, 2]}, "operand_bytes of a kernel"),
        ({"operand_bytes": [1] * 70, "operand_access": [1] * 70}, "1 to 62 operands"),
        ({"speed": 1}, "speed"),
    ],
)
def test_hostile_tables_are_refused(change: dict[str, Any], says: str) -> None:
    head = MACHINE.to_toml().splitlines()
    at = head.index("[[kernels]]")
    kept = [line for line in head[at:] if line.partition(" = ")[0] not in change]
    text = "\n".join([*head[:at], *kept, *(f"{name} = {json.dumps(value)}" for name, value in change.items())])
    with pytest.raises(FileFormatError, match=says):
        Machine.from_toml(text)


def test_the_kernel_in_the_docs_is_one() -> None:
    text = (ROOT / "docs" / "format.md").read_text()
    block = next(part for part in text.split("```") if part.startswith("toml\n[[kernels]]")).removeprefix("toml")
    machine = replace(MACHINE, tiers=(FAST, replace(SLOW, name="file")), links=(), kernels=())
    (kernel,) = Machine.from_toml(machine.to_toml() + block).kernels
    told = describe_call(_overload("mm"), (torch.rand(64, 512), torch.rand(512, 512)), {})
    assert (kernel.arguments, kernel.operand_bytes) == (told, (64 * 512 * 4, 512 * 512 * 4, 64 * 512 * 4))


def test_one_table_for_each_operation_and_tier() -> None:
    with pytest.raises(ValueError, match="two kernels"):
        replace(MACHINE, kernels=(MUL, MUL))


# ---- calling again -----------------------------------------------------------------------------------------------


def _overload(name: str, overload: str = "default") -> Any:
    return getattr(getattr(torch.ops.aten, name), overload)


X, Y = torch.rand(8, 6), torch.rand(6, 4)
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (_overload("mm"), (X, Y), {}),
    (_overload("mm"), (Y.t(), X.t()), {}),
    (_overload("add", "Tensor"), (X, X), {"alpha": 2}),
    (_overload("addcmul_"), (X.clone(), X, X), {"value": 0.5}),
    (_overload("cat"), ([X, X[:4], X[2:]], 0), {}),
    (_overload("masked_fill", "Scalar"), (X, X > 2, float("-inf")), {}),
    (_overload("embedding"), (X, torch.tensor([[1, 7], [0, 3]])), {}),
    (_overload("gelu"), (X[:, 1:],), {"approximate": "tanh"}),
    (_overload("_softmax"), (X, -1, False), {}),
    (_overload("sum", "dim_IntList"), (X, [0], True), {}),
]


@pytest.mark.parametrize(("operator", "args", "kwargs"), CALLS, ids=lambda value: str(value) if callable(value) else "")
def test_a_call_is_made_again_with_the_same_shapes(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    call = call_of(operator._schema.name, describe_call(operator, args, kwargs))
    buffers = [call.buffer(at) for at in range(len(call.trace_bytes))]
    for at, buffer in enumerate(buffers):
        call.fill(at, buffer)
    again, before = call.bound(buffers)(), operator(*args, **kwargs)
    assert (again.shape, again.dtype, again.stride()) == (before.shape, before.dtype, before.stride())
    call.add_results(again, buffers)
    born = before.untyped_storage().data_ptr() not in {
        value.untyped_storage().data_ptr() for value in args if isinstance(value, torch.Tensor)
    }
    assert len(call.trace_bytes) == len(buffers) + born
    if call.into is not None:
        placed = [*buffers, *(call.buffer(at) for at in range(len(buffers), len(call.trace_bytes)))]
        assert torch.equal(call.bound(placed)(), again)


def test_one_storage_is_one_operand() -> None:
    whole = torch.rand(10, 10)
    told = describe_call(_overload("addcmul_"), (whole[:, :5], whole[:, 5:], torch.rand(10, 5)), {})
    call = call_of("aten::addcmul_", told)
    assert (call.trace_bytes, call.access) == ([400, 200], [RW, R])


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("aten::mm", ""),
        ("mine::mm", "{}"),
        ("aten::mm", "not JSON"),
        ("aten::mm", "[" * 100_000),
        ("aten::mm", "[]"),
        ("aten::no_such_operator", '{"overload":"","args":[],"kwargs":{}}'),
        ("aten::set_", describe_call(_overload("set_", "source_Tensor"), (X, Y), {})),
        ("aten::from_file", '{"overload":"","args":["/etc/passwd",true,8],"kwargs":{}}'),
        ("aten::relu", '{"overload":"","args":[{"shape":[-4],"dtype":"float32"}],"kwargs":{}}'),
        ("aten::relu", '{"overload":"","args":[{"shape":[4],"dtype":"save"}],"kwargs":{}}'),
        ("aten::relu", '{"overload":"","args":[{"shape":[4],"dtype":"float32","strides":[-1]}],"kwargs":{}}'),
        ("aten::relu", '{"overload":"","args":[{"shape":[4],"dtype":"float32","bytes":"x"}],"kwargs":{}}'),
        ("aten::relu", '{"overload":"","args":[{"shape":[4],"dtype":"float32","same":3}],"kwargs":{}}'),
        ("aten::relu", '{"overload":"","args":[{"other":"Generator"}],"kwargs":{}}'),
        ("aten::relu", '{"overload":"","args":[{"shape":[4000000000,4000],"dtype":"float32"}],"kwargs":{}}'),
        ("aten::repeat", '{"overload":"","args":[{"shape":[9],"dtype":"float32"},[300000000]],"kwargs":{}}'),
        ("aten::mm", '{"overload":"","args":[{"shape":[2000,3],"dtype":"float32"}],"kwargs":{}}'),
    ],
)
def test_what_cannot_be_called_is_left_out(operator: str, arguments: str, tmp_path: Path) -> None:
    with pytest.raises(NotRepeatableError):
        measure_kernel(operator, arguments, partial(MappedFile, tmp_path), "file", time.monotonic(), 10**9)


# ---- measuring ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slow")
    file = MappedFile(folder, 1 << 16)
    file.buffer.fill_(1)
    try:
        file.leave_memory()
    except SpillError as error:
        pytest.skip(f"no slow memory to measure with: {error}")
    return folder


def test_a_mapped_file_leaves_memory_and_keeps_its_contents(disk: Path) -> None:
    file = MappedFile(disk, 1 << 20)
    file.buffer.fill_(7)
    assert file.resident_share() == 1
    file.leave_memory()
    assert file.resident_share() == 0
    assert int(file.buffer.sum()) == 7 << 20
    assert file.resident_share() == 1


def test_memory_is_no_slow_memory() -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or find_mount(read_mounts(PROC), shm).kind != "tmpfs":
        pytest.skip("there is no tmpfs here")
    file = MappedFile(shm, 1 << 16)
    file.buffer.fill_(1)
    with pytest.raises(SpillError, match="no slow memory"):
        file.leave_memory()


def test_up_to_six_operands_get_all_placements_and_more_are_modelled(disk: Path) -> None:
    for n, has_time, origin, placements in ((2, True, Origin.MEASURED, 8), (2, False, Origin.MODELLED, 4),
                                            (6, True, Origin.MODELLED, 8)):  # fmt: skip
        told = describe_call(_overload("cat"), ([torch.rand(64, 16) for _ in range(n)], 0), {})
        deadline = time.monotonic() + (1000 if has_time else -1)
        kernel = measure_kernel("aten::cat", told, partial(MappedFile, disk), "file", deadline, 10**9)
        assert (kernel.origin, len(kernel.slow), kernel.free) == (origin, placements, tuple(range(n + 1)))
        assert kernel.operand_bytes == (4096,) * n + (4096 * n,)
        assert kernel.operand_access == (R,) * n + (W,)
        assert min(kernel.times_ns) > 0


SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
optimizer = torch.optim.Adam(model.parameters())
x = torch.rand(32, 64)
for _ in range(4):
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "train.py").write_text(SCRIPT)
    assert command.run(command.EBBTIDE, "trace", "-o", "step.trace", "train.py", cwd=folder).returncode == 0
    return load(folder / "step.trace", Trace)


@pytest.mark.parametrize(("columns", "has_placements"), [(80, False), (100, True), (110, True), (None, True)])
def test_the_table_of_operators_fits(columns: int | None, has_placements: bool) -> None:
    told = json.dumps({"args": [{"shape": [4096, 3072]}] * 5})
    profile = Profile([(Unique("aten::addcmul_", told, 12_345, 1000), MUL)] * 20, {TOO_SMALL: 500})
    rate = Figure.of([1e9])
    head, *rows = render_kernels(profile, step(), rate, rate, columns=columns).splitlines()[3:]
    assert head.endswith("placements") == has_placements
    assert max(map(len, (head, *rows))) <= (columns or 112)
    assert rows[0].startswith("  addcmul_ 4096")
    assert rows[0].endswith("  8") == has_placements


@pytest.mark.starts
def test_a_step_is_measured_and_accounted_for(recorded: Trace, disk: Path) -> None:
    uniques = unique_operators(recorded)
    assert sum(unique.step_ns for unique in uniques) == recorded.step_ns
    assert sum(unique.calls for unique in uniques) == len(whole_operators(recorded))
    profile = measure_kernels(recorded, partial(MappedFile, disk), "file", 1000, 10**9)
    covered = sum(unique.step_ns for unique, _ in profile.kernels)
    assert covered + sum(profile.left_out_ns.values()) == recorded.step_ns
    assert profile.left_out_ns[TOO_SMALL] > 0
    measured = {unique.operator for unique, _ in profile.kernels}
    assert {"aten::addmm", "aten::mm", "aten::relu", "aten::addcmul_", "aten::lerp_"} <= measured
    text = render_kernels(profile, recorded, Figure.of([1e9]), Figure.of([1e9]))
    assert f"{len(profile.kernels)} operators" in text
    _every_operand_is_found(recorded, profile)


def _every_operand_is_found(trace: Trace, profile: Profile) -> None:
    """Of matrix products, all storages of a page or more are operands, each another one."""
    tiers = (FAST, replace(SLOW, name="file"))
    machine = Machine("made up", Origin.ASSUMED, tiers, kernels=tuple(row for _, row in profile.kernels))
    found, rows, products = MeasuredInPlace(trace, machine), trace.accesses, 0
    for ticks in whole_operators(trace):
        if trace.ticks[ticks[0]].operator not in ("aten::mm", "aten::addmm"):
            continue
        used = rows.storage[rows.tick == ticks[-1]].tolist()
        operands = [found.operand(ticks[-1], 1, number) for number in used if trace.storages[number].nbytes >= 4096]
        assert None not in operands
        assert len(set(operands)) == len(operands) == 3
        products += 1
    assert products == 5


@pytest.mark.starts
def test_the_recorders_tell_calls_alike(recorded: Trace) -> None:
    """The native one and ``capture.calls`` write the same JSON for the same call."""
    x, weight, bias = torch.rand(32, 64), torch.rand(128, 64), torch.rand(128)
    told = json.loads(describe_call(_overload("addmm"), (bias, x, weight.t()), {"beta": 1, "alpha": 1}))
    assert told in [json.loads(tick.arguments) for tick in recorded.ticks if tick.operator == "aten::addmm"]
    lerps = [json.loads(tick.arguments)["args"][2] for tick in recorded.ticks if tick.operator == "aten::lerp_"]
    assert set(lerps) == {1 - 0.9}
    assert any('"same":1' in tick.arguments for tick in recorded.ticks if tick.operator == "aten::addcmul_")


# ---- the command -------------------------------------------------------------------------------------------------


@pytest.mark.starts
def test_the_command_writes_a_machine_that_commands_take(
    recorded: Trace, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, machine = tmp_path / "step.trace", tmp_path / "machine.toml"
    monkeypatch.setattr("ebbtide.probe.command.THOROUGH", TINY)
    save(recorded, trace)
    done = run("probe", "--spill", disk, "--seconds", 1, "--kernels", trace, "--kernel-seconds", 60, "-o", machine)
    assert done.exit_code == 0, done.output
    found = Machine.from_toml(machine.read_text())
    assert found.tiers[1].in_place is InPlace.ALL
    assert len(found.kernels) > 10
    some = ("--policy", "first-touch,autotm-static", "--json")
    compared = run("compare", trace, "--machine", machine, "--fast", "60%", *some)
    assert compared.exit_code == 0, compared.output
    assert all(row["in_place_ns"] > 0 for row in json.loads(compared.stdout))


def test_a_trace_without_arguments_is_refused(tmp_path: Path) -> None:
    trace = step()
    save(with_arguments(trace, ""), tmp_path / "old.trace")
    done = run("probe", "--kernels", tmp_path / "old.trace")
    assert isinstance(done.exception, SettingError)
    assert "record the step anew" in str(done.exception)
    (tmp_path / "bad.trace").write_bytes(b"x")
    assert isinstance(run("probe", "--kernels", tmp_path / "bad.trace").exception, FileFormatError)
