"""Traces, machines, plans and timelines check themselves; access-time intervals and the clock by hand and by walks."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from ebbtide.errors import FileFormatError
from ebbtide.ir.base import Origin, frozen_ints
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from ebbtide.ir.plan import Plan, PlanStatus, Stay
from ebbtide.ir.timeline import Level, Span, SpanKind, Timeline
from ebbtide.ir.trace import Accesses, Storage, StorageKind, Storages, Tick, Ticks, Trace, idle_intervals
from tests.helpers.make_ir import MACHINE, R, W, plan_of, trace_of, traces
from tests.helpers.paths import ROOT

WEIGHT = Storage(8, StorageKind.PARAMETER, 0, 4, persistent=True)
BLOCK = Storage(4, StorageKind.ACTIVATION, 2, 6, allocation=1)
SCRATCH = replace(BLOCK, death=BLOCK.birth + 1, scratch=True)


def test_idle_intervals_by_hand() -> None:
    scratch = Storage(4, StorageKind.OTHER, 0, 3, scratch=True)
    trace = trace_of(4, [WEIGHT, scratch, BLOCK], [(0, 1, R), (1, 0, W), (1, 2, R), (2, 2, W), (2, 5, R)])
    found = idle_intervals(trace)
    rows = zip(found.storage, found.after, found.until, found.idle_ns, strict=True)
    # Ticks take 10, 20, 30, 40 ns. The weight is idle in ticks 2, 3, 0; the block in ticks 3 and 4, which is 0.
    assert list(rows) == [(0, 1, 5, 30 + 40 + 10), (2, 2, 5, 40 + 10)]


@settings(max_examples=100, deadline=None)
@given(traces())
def test_idle_intervals_are_what_a_walk_finds(trace: Trace) -> None:
    expected = []
    for number, storage in enumerate(trace.storages):
        ticks = trace.accesses.tick[trace.accesses.of(number)].tolist()
        if storage.persistent and ticks:
            ticks.append(ticks[0] + len(trace.ticks))
        for after, until in pairwise(ticks):
            if not storage.scratch:
                times = [trace.ticks[tick % len(trace.ticks)].time_ns for tick in range(after + 1, until)]
                expected.append((number, after, until, sum(times)))
    found = idle_intervals(trace)
    assert list(zip(found.storage, found.after, found.until, found.idle_ns, strict=True)) == expected


def test_the_clock_and_the_signature() -> None:
    first = Storage(4, StorageKind.ACTIVATION, 2, 3, allocation=0)
    trace = trace_of(4, [WEIGHT, BLOCK, first], [])
    assert trace.allocations().tolist() == [2, 1]
    assert trace.step_ns == 100
    assert trace.start_ns(np.array([0, 3, 4, 7])).tolist() == [0, 60, 100, 160]
    assert trace.signature() == trace_of(4, [WEIGHT, BLOCK, first], [(0, 0, R)]).signature()
    others = [trace_of(4, [WEIGHT, BLOCK], []), trace_of(5, [replace(WEIGHT, death=5), BLOCK, first], [])]
    others += [trace_of(4, [WEIGHT, replace(BLOCK, nbytes=5), first], [])]
    assert trace.signature() not in [other.signature() for other in others]


def test_a_table_has_its_records_back() -> None:
    rows = [WEIGHT, BLOCK, replace(BLOCK, allocation=2, module="h.3.mlp", packed_bytes=0)]
    trace = trace_of(4, rows, [])
    assert list(trace.storages) == [trace.storage(number) for number in range(3)] == rows
    assert trace.storages.allocation.tolist() == [-1, 1, 2]
    assert trace.storages.packed_bytes.tolist() == [-1, -1, 0]
    assert trace.storages.piece_of.tolist() == [-1, -1, -1]
    assert list(trace.storages.take(trace.storages.birth > 0)) == rows[1:]
    assert trace.tick(3) == list(trace.ticks)[3] == trace.ticks[-1]
    assert trace.storages == Storages.from_rows(rows) != Storages.from_rows(rows[:2])


def test_an_operation_is_told_by_its_module_and_its_time() -> None:
    trace = trace_of(3, [], [])
    ticks = (Tick(1_200_000), Tick(5, "aten::mm", "h.3.mlp"), Tick(5, "aten::add"))
    named = replace(trace, ticks=Ticks.from_rows(ticks))
    assert [named.operation(tick) for tick in range(3)] == [
        "an operation (0 s into the step)",
        "aten::mm in h.3.mlp (1.20 ms into the step)",
        "aten::add (1.20 ms into the step)",
    ]


def test_columns_cannot_be_changed() -> None:
    given_ticks = np.array([1, 2])
    rows = Accesses(np.array([0, 0]), given_ticks, np.array([1, 2]))
    given_ticks[0] = 7
    assert rows.tick.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        rows.tick[0] = 7
    with pytest.raises(ValueError, match="integers"):
        frozen_ints([0.5], "ticks")
    with pytest.raises(ValueError, match="integers"):
        frozen_ints(np.array([2**63], dtype=np.uint64), "ticks")


SPAN = Span("compute", SpanKind.COMPUTE, 0, 10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ticks.from_rows([Tick(-1)]), "time_ns"),
        (lambda: Ticks.from_rows([Tick(1.5)]), "time_ns must be one row of integers"),  # type: ignore[arg-type]
        (lambda: Ticks.from_rows([Tick(1, operator=3)]), "operator must be one row of str"),  # type: ignore[arg-type]
        (lambda: Ticks.from_rows([Tick(1, phase="other")]), "phase must be one row of Phase"),  # type: ignore[arg-type]
        (lambda: replace(Ticks.from_rows([Tick(1)]), module=np.array([], dtype=object)), "the ticks differ in length"),
        (lambda: Storages.from_rows([Storage(0, StorageKind.OTHER, 0, 1)]), "nbytes"),
        (lambda: Storages.from_rows([Storage(1, StorageKind.OTHER, 3, 3)]), "death"),
        (lambda: Storages.from_rows([replace(BLOCK, allocation=-2)]), "allocation"),
        (lambda: Storages.from_rows([replace(WEIGHT, allocation=0)]), "not allocated"),
        (lambda: Storages.from_rows([replace(BLOCK, maker=BLOCK.birth + 1)]), "an operator allocates"),
        (lambda: Storages.from_rows([replace(BLOCK, allocation=None, maker=0)]), "an operator allocates"),
        (lambda: trace_of(0, [], []), "at least one tick"),
        (lambda: trace_of(5, [WEIGHT], []), "not the whole step"),
        (lambda: trace_of(2, [BLOCK], []), "born at tick 2 of 2"),
        (lambda: trace_of(4, [BLOCK], [(0, 6, R)]), "outside its life"),
        (lambda: trace_of(4, [BLOCK], [(1, 2, R)]), "not in the trace"),
        (lambda: trace_of(4, [BLOCK], [(-1, 2, R)]), "storage must be"),
        (lambda: trace_of(4, [BLOCK, BLOCK], []), "same place of the clock"),
        (lambda: trace_of(4, [BLOCK, replace(BLOCK, allocation=None, room_of=0)], []), "room that is not there"),
        (lambda: trace_of(4, [SCRATCH, replace(SCRATCH, allocation=None, room_of=1)], []), "room that is not there"),
        (
            lambda: trace_of(4, [SCRATCH, replace(SCRATCH, allocation=None, room_of=0, nbytes=SCRATCH.nbytes + 1)], []),
            "room that is not there",
        ),
        (lambda: trace_of(4, [WEIGHT, replace(BLOCK, piece_of=2)], []), "first piece is another"),
        (lambda: trace_of(4, [WEIGHT, replace(BLOCK, piece_of=0)], []), "first piece is another"),
        (lambda: trace_of(4, [replace(BLOCK, nbytes=2**61)] + [replace(WEIGHT, nbytes=2**61)] * 2, []), "add up"),
        (lambda: Accesses([1, 0], [0, 0], [1, 1]), "sorted"),  # type: ignore[arg-type]
        (lambda: Accesses([1, 1], [0, 0], [1, 1]), "sorted"),  # type: ignore[arg-type]
        (lambda: Accesses([1], [0], [4]), "reads"),  # type: ignore[arg-type]
        (lambda: Accesses([1], [0], []), "length"),  # type: ignore[arg-type]
        (lambda: Stay(0, "dram", 2, 1, 3), "valid_from"),
        (lambda: Stay(0, "dram", 2, 3, 3), "stop"),
        (lambda: Plan("p", PlanStatus.OPTIMAL, "", 1, 99, 100, 0, ()), "predicted_ns"),
        (lambda: Tier("a b", InPlace.ALL), "not a name"),
        (lambda: Link("a", "a", 1), "itself"),
        (lambda: Link("a", "b", 0), "bytes_per_s"),
        (lambda: Link("a", "b", 1, slows_compute=float("nan")), "slows_compute"),
        (lambda: replace(MACHINE, tiers=MACHINE.tiers[1:]), "first tier"),
        (lambda: replace(MACHINE, tiers=MACHINE.tiers[:2]), "not there: file"),
        (lambda: replace(MACHINE, groups=()), "not a group"),
        (lambda: replace(MACHINE, links=MACHINE.links * 2), "two of a link"),
        (lambda: replace(MACHINE, name="a\nb"), "printable"),
        (lambda: Span("compute", SpanKind.EVICT, 0, 1), "not for lane"),
        (lambda: replace(SPAN, stop_ns=-1), "stop_ns"),
        (lambda: Timeline("", Origin.MEASURED, 20, (SPAN, replace(SPAN, start_ns=9)), ()), "overlap"),
        (lambda: Timeline("", Origin.MEASURED, 9, (SPAN,), ()), "past the step's end"),
        (lambda: Timeline("", Origin.MEASURED, 9, (), (Level("a", 3, 1), Level("a", 2, 1))), "sorted"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_figures_derived_from_plans_and_timelines() -> None:
    assert plan_of(trace_of(1, [], []), []).gap == 1.0
    copies = [Span("a->b", SpanKind.EVICT, 3, 9, nbytes=5), Span("a->b", SpanKind.FETCH, 4, 6, nbytes=7)]
    timeline = Timeline("", Origin.SIMULATED, 10, (SPAN, *copies), ())
    assert timeline.moved_bytes() == {"a->b": 12}
    assert timeline.busy_ns() == {"a->b": 6}
    assert timeline.time_ns(SpanKind.EVICT, SpanKind.FETCH) == 8


def test_machines_round_trip_as_toml() -> None:
    machine = replace(MACHINE, name='Émile\'s "box" \\ 2')
    assert Machine.from_toml(machine.to_toml()) == machine
    budget = MACHINE.with_budget(100)
    assert budget.tiers[0].capacity_bytes == 100
    assert budget.with_budget(200) == budget
    assert budget.tier("file") == MACHINE.tiers[2]
    link = budget.link("dram", "file")
    assert link is not None
    assert link.name == "dram->file"
    with pytest.raises(KeyError):
        budget.tier("moon")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('format = "ebbtide-machine"', 'format = "machine"'),
        ("version = 1", "version = 2"),
        ("version = 1", "version = true"),
        ("version = 1", "version = 1\nnote = 3"),
        ('in_place = "all"', 'in_place = "some"'),
        ("latency_ns = 1000", "latency_ns = 1000.5"),
        ("latency_ns = 1000", "latency_ns = -1"),
        ("latency_ns = 1000", "latency_ns = true"),
        ("latency_ns = 1000", f"latency_ns = {'9' * 5000}"),
        ("slows_compute = 0.05", "slows_compute = inf"),
        ("slows_compute = 0.05", f"slows_compute = {'9' * 400}"),
        ("slows_compute = 0.05", "slow_compute = 0.05"),
        ('source = "dram"', ""),
        ('source = "dram"', 'source = "moon"'),
        ("[[tiers]]", "[tiers]"),
        ("[[links]]", "[[links"),
        ('name = "made up"', f"name = {'[' * 100_000}"),
    ],
)
def test_machines_that_are_not_known_are_refused(old: str, new: str) -> None:
    text = MACHINE.to_toml()
    assert old in text
    with pytest.raises(FileFormatError):
        Machine.from_toml(text.replace(old, new, 1))


@pytest.mark.starts
def test_the_layer_loads_no_torch() -> None:
    program = "import sys, ebbtide.ir.check, ebbtide.ir.files, ebbtide.ir.schedule, ebbtide.ir.tiertrace"
    program += "; assert not {'torch', 'rich', 'click'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_machine_in_the_docs_is_one() -> None:
    text = (ROOT / "docs" / "format.md").read_text()
    machine = Machine.from_toml(text.split("```toml\n")[1].split("```")[0])
    assert [tier.name for tier in machine.tiers] == ["dram", "file"]
    assert Machine.from_toml(machine.to_toml()) == machine
