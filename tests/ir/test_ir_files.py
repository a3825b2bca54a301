"""Files come back equal, or not at all: truncated, flipped, hostile and huge ones each give one clear error."""

import json
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import FileFormatError
from ebbtide.ir.files import MAGIC, VERSION, decode, encode, load, save
from ebbtide.ir.occupancy import live_bytes, needed_bytes, peak
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.tiertrace import load_tiertrace, read_tiertrace
from ebbtide.ir.timeline import Timeline
from ebbtide.ir.trace import Access, Storage, StorageKind, Storages, Trace
from ebbtide.units import GIB
from tests.helpers.make_ir import R, W, plan_of, planned, shrunk, timelines, trace_of
from tests.helpers.paths import G10, ROOT

PREFIX = struct.Struct("<8sIII")

WEIGHT = Storage(8, StorageKind.PARAMETER, 0, 3, "conv1", persistent=True)
SMALL = trace_of(3, [WEIGHT, Storage(2**40 + 3, StorageKind.ACTIVATION, 1, 5, allocation=0)], [(0, 1, R), (1, 1, W)])


def packed(header: bytes, body: bytes, version: int = VERSION, n_header: int | None = None) -> bytes:
    """A file with the right checksum, as somebody who wants to do harm would write it."""
    n_header = len(header) if n_header is None else n_header
    checksum = zlib.crc32(header + body, zlib.crc32(struct.pack("<II", version, n_header)))
    return PREFIX.pack(MAGIC, version, n_header, checksum) + header + body


def unpacked(data: bytes) -> tuple[dict[str, Any], bytes]:
    n_header = PREFIX.unpack_from(data)[2]
    return json.loads(data[PREFIX.size :][:n_header]), data[PREFIX.size + n_header :]


@settings(max_examples=60, deadline=None)
@given(planned(), timelines())
def test_what_is_written_comes_back_equal(case: tuple[Trace, Plan], timeline: Timeline) -> None:
    trace, plan = shrunk(case[0], [None, 0, 3]), case[1]
    assert decode(encode(trace), Trace) == trace
    assert decode(encode(plan), Plan) == plan
    assert decode(encode(timeline), Timeline) == timeline
    assert encode(decode(encode(trace), Trace)) == encode(trace)


def test_files_are_written_whole_and_read_as_their_kind(tmp_path: Path) -> None:
    save(SMALL, tmp_path / "step.trace")
    assert load(tmp_path / "step.trace", Trace) == SMALL
    assert [path.name for path in tmp_path.iterdir()] == ["step.trace"]
    with pytest.raises(FileFormatError, match=r"step\.trace: this holds a 'trace', not a plan"):
        load(tmp_path / "step.trace", Plan)


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(SMALL, tmp_path / "step.trace")
    monkeypatch.setattr("ebbtide.ir.files.encode", lambda value: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save(SMALL, tmp_path / "step.trace")
    assert [path.name for path in tmp_path.iterdir()] == ["step.trace"]
    assert load(tmp_path / "step.trace", Trace) == SMALL


def test_every_truncation_and_any_tail_is_refused() -> None:
    data = encode(SMALL)
    for length in range(len(data)):
        with pytest.raises(FileFormatError):
            decode(data[:length], Trace)
    with pytest.raises(FileFormatError):
        decode(data + b"\0", Trace)
    header, body = unpacked(data)
    for length in range(len(body)):
        with pytest.raises(FileFormatError):
            decode(packed(json.dumps(header).encode(), body[:length]), Trace)


def test_every_flipped_byte_is_refused() -> None:
    data = encode(SMALL)
    for at in range(len(data)):
        with pytest.raises(FileFormatError):
            decode(data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :], Trace)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([SMALL, plan_of(SMALL, [Stay(0, "dram", 0, 0, 3)])]), st.data())
def test_flipped_bytes_under_a_right_checksum_never_crash(value: Trace | Plan, data: st.DataObject) -> None:
    header, body = unpacked(encode(value))
    parts = [bytearray(json.dumps(header, separators=(",", ":")).encode()), bytearray(zlib.decompress(body))]
    for _ in range(data.draw(st.integers(1, 3))):
        part = data.draw(st.sampled_from(parts))
        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = decode(packed(bytes(parts[0]), zlib.compress(bytes(parts[1]))), type(value))  # type: ignore[type-var]
    except FileFormatError:
        return
    assert decode(encode(read), type(value)) == read  # type: ignore[type-var]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=100))
def test_bytes_at_random_never_crash(header: bytes, body: bytes) -> None:
    for data in (header, MAGIC + header, packed(header, body)):
        with pytest.raises(FileFormatError):
            decode(data, Trace)


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    header, body = unpacked(encode(SMALL))
    change(header)
    return packed(json.dumps(header).encode(), body)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"PK\3\4" * 100, "not a file that Ebbtide wrote"),
        (MAGIC, "truncated"),
        (packed(b"{}", b"", version=6), "of version 6, and this Ebbtide reads version 7: write it again"),
        (packed(b"{}", b"", n_header=2**31), "header is too large"),
        (packed(b"[" * 100_000, b""), "header is damaged"),
        (packed(b"\xff{}", b""), "header is damaged"),
        (packed(b'{"kind":' + b"9" * 5000 + b"}", b""), "header is damaged"),
        (packed(b'{"kind":NaN}', b""), "header is damaged"),
        (packed(b"[]", b""), "fields of this version"),
        (changed(lambda header: header.update(more=1)), "fields of this version"),
        (changed(lambda header: header.update(kind=[])), "holds a"),
        (changed(lambda header: header.update(kind="plan")), "holds a 'plan'"),
        (changed(lambda header: header["fields"].update(name=7)), "name must be a str"),
        (changed(lambda header: header["fields"].update(origin="guessed")), "origin must be one of"),
        (changed(lambda header: header["fields"].update(more=7)), "fields of this version"),
        (changed(lambda header: header["tables"].pop("ticks")), "tables of this version"),
        (changed(lambda header: header["tables"]["ticks"].update(rows=-1)), "claims -1 rows"),
        (changed(lambda header: header["tables"]["ticks"].update(rows=10**12)), "claims 1000000000000 rows"),
        (changed(lambda header: header["tables"]["ticks"].update(rows=10**6)), "not as long"),
        (changed(lambda header: header["tables"]["ticks"].update(rows=2)), "not as long"),
        (changed(lambda header: header["tables"]["ticks"].update(rows=True)), "must be a int"),
        (changed(lambda header: header["tables"]["ticks"].update(columns=["time_ns"])), "columns of this version"),
        (changed(lambda header: header.update(strings=header["strings"][:-1])), "does not exist"),
        (changed(lambda header: header.update(strings=["?"] * 99)), "must be one of"),
        (changed(lambda header: header.update(strings=[7])), "must be a str"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        decode(data, Trace)


def test_lines_come_back_and_one_that_is_no_text_of_the_file_is_refused() -> None:
    weight, activation = SMALL.storages
    lines = [weight, replace(activation, line="train.py:12 Net.forward")]
    made = replace(SMALL, storages=Storages.from_rows(lines))
    assert decode(encode(made), Trace) == made
    header, body = unpacked(encode(made))
    header["strings"].remove("train.py:12 Net.forward")
    with pytest.raises(FileFormatError, match=r"storages\.line has a value that does not exist"):
        decode(packed(json.dumps(header).encode(), body), Trace)


def test_a_small_file_cannot_claim_much_memory() -> None:
    bomb = zlib.compress(bytes(64 * 2**20))
    header, _ = unpacked(encode(SMALL))
    data = packed(json.dumps(header).encode(), bomb)
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match="not as long"):
            decode(data, Trace)
        assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
    finally:
        tracemalloc.stop()


def test_the_table_in_the_docs_is_what_is_written() -> None:
    plan = plan_of(SMALL, [])
    timeline = Timeline("", SMALL.origin, 0, (), ())
    text = (ROOT / "docs" / "format.md").read_text()
    for value in (SMALL, plan, timeline):
        header, _ = unpacked(encode(value))
        fields = ", ".join(f"`{name}`" for name in header["fields"])
        assert f"| `{header['kind']}` | fields | {fields} |" in text
        for table, content in header["tables"].items():
            columns = ", ".join(f"`{name}`" for name in content["columns"])
            assert f"| `{header['kind']}` | table `{table}` | {columns} |" in text


# ---- tiertrace/1 -------------------------------------------------------------------------------------------------

KERNEL = {"name": "k", "layer": "l", "duration_ns": 5, "reads": [], "writes": [], "workspace_bytes": 0}


def tiertrace(*kernels: dict[str, Any], tensors: str = "lll", **more: Any) -> bytes:
    kinds = {"l": "local", "g": "global", "x": "remote"}
    rows = [{"id": number, "nbytes": 10 + number, "kind": kinds[kind]} for number, kind in enumerate(tensors)]
    listed = [{**KERNEL, "index": index, **kernel} for index, kernel in enumerate(kernels)]
    return json.dumps({"format": "tiertrace/1", "tensors": rows, "kernels": listed, **more}).encode()


def test_a_tiertrace_by_hand() -> None:
    trace, machine = read_tiertrace(
        tiertrace(
            {"writes": [0]},
            {"reads": [0, 2], "writes": [1, 2], "workspace_bytes": 7},
            {"writes": [0]},  # which nobody reads any more
            tensors="llg",
        )
    )
    assert machine is None
    assert [(row.nbytes, row.birth, row.death, row.persistent, row.scratch) for row in trace.storages] == [
        (10, 0, 2, False, False),
        (11, 1, 2, False, False),
        (12, 0, 3, True, False),
        (7, 1, 2, False, True),
        (10, 2, 3, False, True),
    ]
    rows = trace.accesses
    assert list(zip(rows.storage.tolist(), rows.tick.tolist(), rows.mode.tolist(), strict=True)) == [
        (0, 0, Access.WRITE),
        (0, 1, Access.READ),
        (1, 1, Access.WRITE),
        (2, 1, Access.READ | Access.WRITE),
    ]
    assert live_bytes(trace).tolist() == [10 + 12, 10 + 11 + 12 + 7, 12 + 10]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a file of format"),
        (b'{"format":"tiertrace/2"}', "not a file of format"),
        (tiertrace(tensors=""), "at least one tick"),
        (tiertrace({"reads": [9]}, tensors=""), "not there"),
        (tiertrace({"reads": [0]}, tensors="x"), "neither global nor local"),
        (tiertrace({}, tensors="l"), "no kernel uses"),
        (tiertrace({"duration_ns": -1}), "duration_ns"),
        (tiertrace({"duration_ns": 0.5}), "must be a int"),
        (tiertrace({"reads": 0}), "must be a list"),
        (tiertrace({"flops": 0}), "does not know: 'flops'"),
        (tiertrace({}, machine={"tiers": [], "links": []}, tensors=""), "first tier"),
    ],
)
def test_a_tiertrace_that_is_not_known_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        read_tiertrace(data)


@pytest.mark.skipif(not G10.is_dir(), reason="the G10 traces are not here")
@pytest.mark.parametrize(
    ("workload", "kernels", "tensors", "total_ms", "all_gib", "peak_gib", "peak_at", "largest_gib"),
    [  # the tables "Sizes" and "Reference results" of the traces' README
        ("bert_b256", 1369, 1463, 7285.5, 148.0, 47.76, 486, 2.25),
        ("vit_b1280", 1489, 1561, 3716.0, 184.4, 57.39, 542, 1.91),
        ("resnet152_b1280", 1299, 2903, 112589.4, 1086.2, 273.46, 423, 15.31),
    ],
)
def test_the_g10_traces_have_the_sizes_of_their_readme(
    workload: str,
    kernels: int,
    tensors: int,
    total_ms: float,
    all_gib: float,
    peak_gib: float,
    peak_at: int,
    largest_gib: float,
) -> None:
    trace, machine = load_tiertrace(G10 / f"{workload}.json")
    live = live_bytes(trace)
    assert (len(trace.ticks), sum(bool(not row.scratch) for row in trace.storages)) == (kernels, tensors)
    assert round(trace.step_ns / 1e6, 1) == total_ms
    assert round(trace.total_bytes / GIB, 1) == all_gib
    assert (round(peak(live) / GIB, 2), int(np.argmax(live))) == (peak_gib, peak_at)
    assert round(peak(needed_bytes(trace)) / GIB, 2) == largest_gib
    assert machine is not None
    assert machine.tiers[0].capacity_bytes == 40 * GIB
    link = machine.link("ssd", "gpu")
    assert link is not None
    assert (link.bytes_per_s, link.shares) == (3_200_000_000, "gpu_in")
    assert decode(encode(trace), Trace) == trace
