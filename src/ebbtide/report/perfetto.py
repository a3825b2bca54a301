"""Writes a report as Chrome's trace-event JSON, which Perfetto's UI and chrome://tracing open.

The trace is one process, and each timeline another. Operations and the spans of lanes are complete events ("X").
Storages are asynchronous events ("b", "e"), since their lives overlap. Live and resident bytes are counters ("C").
Slices of a row must nest, so copies that overlap on one link lie on rows of their own. Times are microseconds, as the
format wants, with the nanoseconds as fractions.

The format: "Trace Event Format", Google, 2016, and Perfetto's page on it.
"""

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

from ebbtide.analysis.columns import modules_of
from ebbtide.analysis.memory import memory_of
from ebbtide.ir.timeline import COMPUTE_LANE, Span, Timeline
from ebbtide.ir.trace import Storage, Trace
from ebbtide.report.stalls import STALLS, stalls_of
from ebbtide.report.subject import Subject

Event: TypeAlias = dict[str, Any]

_TRACE = 1  # process; the timelines follow
_OPERATIONS = 1  # thread


def render_perfetto(subject: Subject) -> str:
    """Return one line of JSON."""
    events: list[Event] = []
    if subject.trace is not None:
        events += _trace(subject.trace)
    for number, timeline in enumerate(subject.timelines):
        events += _timeline(timeline, subject.trace, _TRACE + 1 + number)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, separators=(",", ":"), allow_nan=False) + "\n"


def _named(process: int, name: str) -> Event:
    return {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}


def _thread(process: int, thread: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}


def _trace(trace: Trace) -> Iterator[Event]:
    memory = memory_of(trace)
    start = memory.start_ns.tolist()
    yield _named(_TRACE, f"trace {trace.name} ({trace.origin})")
    yield from _thread(_TRACE, _OPERATIONS, "operations")
    for number, tick in enumerate(trace.ticks):
        args = {"tick": number, "module": tick.module, "flops": tick.flops, "bytes": tick.nbytes}
        yield _slice(_TRACE, _OPERATIONS, tick.operator or f"tick {number}", start[number], start[number + 1], args)
    levels = {str(kind): level.tolist() for kind, level in memory.by_kind.items()}
    for number in range(len(trace.ticks)):
        bytes_of = {kind: level[number] for kind, level in levels.items()}
        if number == 0 or any(level[number] != level[number - 1] for level in levels.values()):
            yield _counter(_TRACE, "live bytes", start[number], bytes_of)
    modules = modules_of(trace)
    for number, storage in enumerate(trace.storages):
        yield from _storage(trace, number, storage, modules[number], start)


def _storage(trace: Trace, number: int, storage: Storage, module: str, start: list[int]) -> Iterator[Event]:
    """Draw a storage's life until the step's end. If it lives past that, the rest of its last generation comes
    first."""
    n_ticks = len(trace.ticks)
    lives = [(start[storage.birth], start[min(storage.death, n_ticks)])]
    if storage.death > n_ticks:
        lives.insert(0, (0, start[min(storage.death - n_ticks, storage.birth)]))
    rows = trace.accesses.of(number)
    args = {"storage": number, "bytes": storage.nbytes, "module": module, "accesses": rows.stop - rows.start}
    for piece, (begin, end) in enumerate(lives):
        event = {"pid": _TRACE, "tid": _OPERATIONS, "cat": str(storage.kind), "name": f"#{number}"}
        event["id"] = f"{number}.{piece}"
        yield event | {"ph": "b", "ts": begin / 1000, "args": args}
        yield event | {"ph": "e", "ts": end / 1000}


def _timeline(timeline: Timeline, trace: Trace | None, process: int) -> Iterator[Event]:
    yield _named(process, f"timeline {timeline.policy} ({timeline.origin})")
    compute = [span for span in timeline.spans if span.lane == COMPUTE_LANE and span.kind not in STALLS]
    yield from _thread(process, 1, COMPUTE_LANE)
    for span in compute:
        yield _slice(process, 1, span.label or str(span.kind), span.start_ns, span.stop_ns, {"tick": span.tick})
    yield from _thread(process, 2, "stall")
    for stall in stalls_of(timeline, trace):
        waited = ", ".join(f"storage {row.storage} on {row.lane}" for row in stall.awaited) or "nothing recorded"
        args = {"tick": stall.tick, "operation": stall.label, "waited_for": waited}
        yield _slice(process, 2, str(stall.kind), stall.start_ns, stall.stop_ns, args)
    thread = 3
    for lane in sorted({span.lane for span in timeline.spans} - {COMPUTE_LANE}):
        for number, row in enumerate(_rows([span for span in timeline.spans if span.lane == lane])):
            yield from _thread(process, thread, f"{lane} ({number + 1})" if number else lane)
            for span in row:
                args = {"storage": span.storage, "bytes": span.nbytes}
                name = str(span.kind) if span.storage is None else f"{span.kind} #{span.storage}"
                yield _slice(process, thread, name, span.start_ns, span.stop_ns, args)
            thread += 1
    for level in timeline.levels:
        yield _counter(process, f"resident bytes, {level.tier}", level.time_ns, {"bytes": level.nbytes})


def _rows(spans: list[Span]) -> list[list[Span]]:
    """Divide the spans into rows without overlaps. Each span goes to the first row that has time for it."""
    rows: list[list[Span]] = []
    for span in spans:
        free = next((row for row in rows if row[-1].stop_ns <= span.start_ns), None)
        if free is None:
            rows.append([span])
        else:
            free.append(span)
    return rows


def _slice(process: int, thread: int, name: str, start_ns: int, stop_ns: int, args: Event) -> Event:
    known = {key: value for key, value in args.items() if value is not None}
    times = {"ts": start_ns / 1000, "dur": (stop_ns - start_ns) / 1000}
    return {"ph": "X", "pid": process, "tid": thread, "name": name, "args": known} | times


def _counter(process: int, name: str, at_ns: int, values: Event) -> Event:
    return {"ph": "C", "pid": process, "name": name, "ts": at_ns / 1000, "args": values}
