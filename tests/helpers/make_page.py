"""A step small enough to count by hand, with names that would do harm as markup, and what a page shows of it."""

from typing import Any

from ebbtide.analysis.swapping import assumed_route
from ebbtide.ir.base import Origin
from ebbtide.ir.plan import Plan, PlanStatus, Stay
from ebbtide.ir.timeline import COMPUTE_LANE, Level, Span, SpanKind, Timeline
from ebbtide.ir.trace import Access, Accesses, Storage, StorageKind, Storages, Tick, Ticks, Trace
from ebbtide.report.subject import Subject
from ebbtide.units import MIB

SCRIPT = "</script><script>window.harm = 1</script>"
IMAGE = '<img src="x" onerror="window.harm = 2">'
LINK = "<a href='http://example.org'>&lt;b&gt;</a>"
MS = 10**6
PATIENCE_MS = 60_000

_R, _W = Access.READ, Access.WRITE


def step() -> Trace:
    """Ten ticks of 1 ms; a parameter, an activation that waits, a gradient that outlives the step, and scratch.

    Live MiB at the ticks: 4 of the parameter; 8 of the activation in ticks 1 to 7; 2 of the gradient in 8 and 9 of
    this step and in 0 of the next; 16 of scratch at tick 3. So the peak is 28 MiB at tick 3, after 3 ms.
    """
    storages = (
        Storage(4 * MIB, StorageKind.PARAMETER, 0, 10, SCRIPT, persistent=True),
        Storage(8 * MIB, StorageKind.ACTIVATION, 1, 8, IMAGE, allocation=0),
        Storage(2 * MIB, StorageKind.GRADIENT, 8, 11, "h.1.mlp", allocation=0),
        Storage(16 * MIB, StorageKind.OTHER, 3, 4, LINK, scratch=True, allocation=0),
    )
    uses = [(0, 1, _R), (0, 6, _R), (0, 9, _R | _W), (1, 1, _W), (1, 2, _R), (1, 7, _R), (2, 8, _W), (2, 9, _R)]
    storage, tick, mode = zip(*uses, strict=True)
    ticks = tuple(Tick(MS, f"aten::op{number}" if number != 2 else IMAGE, "h.1.mlp") for number in range(10))
    uses = Accesses(storage, tick, mode)
    return Trace(f"step {SCRIPT}", Origin.ASSUMED, Ticks.from_rows(ticks), Storages.from_rows(storages), uses)


def plan() -> Plan:
    """The activation leaves at tick 3 and is back at tick 7."""
    stays = (
        Stay(0, "dram", 0, 0, 10),
        Stay(1, "dram", 1, 1, 4),
        Stay(1, "file", 3, 4, 8),
        Stay(1, "dram", 5, 7, 8),
        Stay(2, "dram", 8, 8, 11),
        Stay(3, "dram", 3, 3, 4),
    )
    return Plan(f"by hand {IMAGE}", PlanStatus.FEASIBLE, step().signature(), 29 * MIB, 12 * MS, 10 * MS, 5, stays)


def timeline(origin: Origin = Origin.MEASURED, late_ns: int = MS) -> Timeline:
    """Compute waits for the activation before tick 7, and for room before tick 8."""
    at = 7 * MS + late_ns
    compute = [Span(COMPUTE_LANE, SpanKind.COMPUTE, tick * MS, (tick + 1) * MS, tick, label=IMAGE) for tick in range(7)]
    spans = [
        *compute,
        Span("dram->file", SpanKind.EVICT, 3 * MS, 4 * MS, None, 1, 8 * MIB),
        Span("file->dram", SpanKind.FETCH, 5 * MS, at, None, 1, 8 * MIB),
        Span("file->dram", SpanKind.FETCH, 6 * MS, at, None, 0, 4 * MIB),
        Span(COMPUTE_LANE, SpanKind.STALL_LATE, 7 * MS, 7 * MS + late_ns // 2, 7),
        Span(COMPUTE_LANE, SpanKind.STALL_LATE, 7 * MS + late_ns // 2, at, 7),
        Span(COMPUTE_LANE, SpanKind.COMPUTE, at, at + MS, 7),
        Span("dram->file", SpanKind.EVICT, at, at + 2 * MS, None, 0, 4 * MIB),
        Span(COMPUTE_LANE, SpanKind.STALL_ROOM, at + MS, at + 2 * MS, 8),
        Span(COMPUTE_LANE, SpanKind.COMPUTE, at + 2 * MS, at + 3 * MS, 8),
    ]
    spans.sort(key=lambda span: span.start_ns)
    levels = tuple(Level("dram", tick * MS, (4 + tick) * MIB) for tick in range(10))
    return Timeline(f"ebbtide {LINK}", origin, at + 3 * MS, tuple(spans), levels)


def column(page: Any, table: str, place: int) -> list[str]:
    """The texts of a table's column in a browser, the first being 1."""
    texts: list[str] = page.locator(f"{table} tbody tr td:nth-child({place})").all_inner_texts()
    return texts


def subject() -> Subject:
    route = assumed_route(8 * 1024 * MIB)
    both = (timeline(Origin.SIMULATED, 10), timeline())
    return Subject(step(), plan(), both, None, route, f"a machine {SCRIPT}", Origin.ASSUMED)
