"""Files come back equal, or not at all: truncated, flipped, hostile and huge ones each give one clear error."""

import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import FileFormatError
from ebbtide.ir.files import decode, encode, kind_of, load, save
from ebbtide.ir.occupancy import live_bytes, needed_bytes, peak
from ebbtide.ir.plan import Plan, Stay
from ebbtide.ir.tiertrace import load_tiertrace, read_tiertrace
from ebbtide.ir.timeline import Timeline
from ebbtide.ir.trace import Access, Storage, StorageKind, Storages, Trace
from ebbtide.units import GIB
from tests.helpers.make_ir import R, W, plan_of, planned, shrunk, timelines, trace_of
from tests.helpers.paths import G10, ROOT

WEIGHT = Storage(8, StorageKind.PARAMETER, 0, 3, "conv1", persistent=True)
SMALL = trace_of(3, [WEIGHT, Storage(2**40 + 3, StorageKind.ACTIVATION, 1, 5, allocation=0)], [(0, 1, R), (1, 1, W)])


def packed(header: bytes, arrays: dict[str, npt.NDArray[Any]]) -> bytes:
    """A whole file, as somebody who wants to do harm would write it."""
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=True, **{"header": np.frombuffer(header, np.uint8), **arrays})
    return file.getvalue()


def unpacked(data: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    with np.load(io.BytesIO(data)) as file:
        arrays = dict(file.items())
    return json.loads(arrays.pop("header").tobytes()), arrays


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


def test_numpy_reads_the_columns(tmp_path: Path) -> None:
    save(SMALL, tmp_path / "step.trace")
    with np.load(tmp_path / "step.trace") as file:
        assert file["storages.nbytes"].tolist() == [8, 2**40 + 3]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(SMALL, tmp_path / "step.trace")
    monkeypatch.setattr("ebbtide.ir.files.encode", lambda value: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save(SMALL, tmp_path / "step.trace")
    assert [path.name for path in tmp_path.iterdir()] == ["step.trace"]
    assert load(tmp_path / "step.trace", Trace) == SMALL


def test_every_truncation_is_refused() -> None:
    data = encode(SMALL)
    for length in range(len(data)):
        with pytest.raises(FileFormatError):
            decode(data[:length], Trace)


def test_no_flipped_byte_reads_as_something_else() -> None:
    """A zip file has bytes that nobody needs, such as the time of writing: a flip there changes nothing."""
    data = encode(SMALL)
    places, refused = range(0, len(data), 7), 0
    for at in places:
        try:
            assert decode(data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :], Trace) == SMALL
        except FileFormatError:
            refused += 1
    assert refused > len(places) / 2


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([SMALL, plan_of(SMALL, [Stay(0, "dram", 0, 0, 3)])]), st.data())
def test_flipped_bytes_under_right_checksums_never_crash(value: Trace | Plan, data: st.DataObject) -> None:
    header, arrays = unpacked(encode(value))
    text = bytearray(json.dumps(header, separators=(",", ":")).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        part = data.draw(st.sampled_from([text, *(array.view(np.uint8) for array in arrays.values() if len(array))]))
        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = decode(packed(bytes(text), arrays), type(value))  # type: ignore[type-var]
    except FileFormatError:
        return
    assert decode(encode(read), type(value)) == read  # type: ignore[type-var]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers()))
def test_bytes_at_random_never_crash(header: bytes, column: list[int]) -> None:
    for data in (header, b"PK\3\4" + header, packed(header, {"ticks.time_ns": np.array(column)})):
        with pytest.raises(FileFormatError):
            decode(data, Trace)


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    header, arrays = unpacked(encode(SMALL))
    change(header)
    return packed(json.dumps(header).encode(), arrays)


def with_column(array: npt.NDArray[Any] | None, name: str = "ticks.time_ns") -> bytes:
    header, arrays = unpacked(encode(SMALL))
    if array is None:
        del arrays[name]
    else:
        arrays[name] = array
    return packed(json.dumps(header).encode(), arrays)


def in_archive(name: str, content: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr(name, content)
    return file.getvalue()


def damaged(data: bytes) -> bytes:
    at = len("header.npy") + 30  # where its contents begin
    return data[:at] + b"\xff" * 4 + data[at + 4 :]


def starting(text: bytes) -> bytes:
    """An array that begins with this text, which NumPy reads as Python's code."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"x"


NO_ARRAYS = [
    *(b"(", b"'''", b"{[]: 1}", b"-" * 9000 + b"1", b"(" * 5000, b"\x00"),
    *(
        b"{'descr': '%b', 'fortran_order': False, 'shape': (%b,), }\n" % claims
        for claims in ((b",", b"1"), (b"|u1", b"2"), (b"|u1", b"9" * 5000))
    ),
]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"PK\3\4" * 100, "not a whole file that Ebbtide wrote"),
        (in_archive("archive/data.pkl", b"a checkpoint of PyTorch's"), "not a whole file that Ebbtide wrote"),
        (in_archive("header.npy", b""), "elements of this version"),
        *((in_archive("header.npy", starting(text)), "elements of this version") for text in NO_ARRAYS),
        (damaged(in_archive("header.npy", bytes(80), zipfile.ZIP_DEFLATED)), "not a whole file that Ebbtide wrote"),
        (in_archive("header.npy", bytes(80), zipfile.ZIP_BZIP2), "packed by a method"),
        (in_archive("header.npy", bytes(80), zipfile.ZIP_LZMA), "packed by a method"),
        (in_archive("header.npy", bytes(80_000_000)), "claims 80000000 bytes"),
        (changed(lambda header: header.update(version=12)), "of version 12, and this Ebbtide reads version 13: write"),
        (packed(b"[" * 100_000, {}), "header is damaged"),
        (packed(b"\xff{}", {}), "header is damaged"),
        (packed(b'{"kind":' + b"9" * 5000 + b"}", {}), "header is damaged"),
        (packed(b'{"kind":NaN}', {}), "header is damaged"),
        (packed(b"[]", {}), "not a file that Ebbtide wrote"),
        (changed(lambda header: header.update(format="other")), "not a file that Ebbtide wrote"),
        (changed(lambda header: header.update(more=1)), "fields of this version"),
        (changed(lambda header: header.update(kind=[])), "fields of this version"),
        (changed(lambda header: header.update(kind="plan")), "holds a 'plan'"),
        (changed(lambda header: header["fields"].update(name=7)), "name must be a str"),
        (changed(lambda header: header["fields"].update(origin="guessed")), "origin must be one of"),
        (changed(lambda header: header["fields"].update(more=7)), "fields of this version"),
        (changed(lambda header: header.update(strings=header["strings"][:-1])), "does not exist"),
        (changed(lambda header: header.update(strings=["?"] * 99)), "must be one of"),
        (changed(lambda header: header.update(strings=[7])), "must be a str"),
        (with_column(None), "columns of this version"),
        (with_column(np.zeros(3), "ticks.more"), "columns of this version"),
        (with_column(np.zeros(3)), "elements of this version"),
        (with_column(np.zeros((3, 1), np.int64)), "elements of this version"),
        (with_column(np.array([{}, {}, {}])), "elements of this version"),
        (with_column(np.zeros(4, np.int64)), "differ in length"),
        (with_column(np.zeros(2**20 + 100, np.int64)), "at most 1048576 elements are read"),
        (with_column(np.array([-5, 0, 0])), "time_ns"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        decode(data, Trace)


def test_a_refusal_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "old.trace").write_bytes(changed(lambda header: header.update(version=7)))
    for read in (lambda path: load(path, Trace), kind_of):
        with pytest.raises(FileFormatError, match=r"old\.trace: it is of version 7"):
            read(tmp_path / "old.trace")


def test_whatever_a_library_raises_for_a_file_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists of what they raise are open: each version may add to them."""
    save(SMALL, tmp_path / "step.trace")
    monkeypatch.setattr(zipfile.ZipFile, "getinfo", lambda *_: next(iter(())))
    for read in (lambda path: load(path, Trace), kind_of):
        with pytest.raises(FileFormatError, match=r"step\.trace: .*: StopIteration"):
            read(tmp_path / "step.trace")


def test_lines_come_back_and_one_that_is_no_text_of_the_file_is_refused() -> None:
    weight, activation = SMALL.storages
    lines = [weight, replace(activation, line="train.py:12 Net.forward")]
    made = replace(SMALL, storages=Storages.from_rows(lines))
    assert decode(encode(made), Trace) == made
    header, arrays = unpacked(encode(made))
    header["strings"].remove("train.py:12 Net.forward")
    with pytest.raises(FileFormatError, match=r"storages\.line has a value that does not exist"):
        decode(packed(json.dumps(header).encode(), arrays), Trace)


def test_pieces_come_back() -> None:
    weight, activation = SMALL.storages
    pieces = [weight, *(replace(activation, nbytes=5, allocation=at, piece_of=1) for at in range(3))]
    made = replace(SMALL, storages=Storages.from_rows(pieces))
    assert decode(encode(made), Trace) == made


def test_a_small_file_cannot_claim_much_memory() -> None:
    """Neither what a zip entry unpacks to nor what an array's header claims is allocated before it is looked at."""
    hostile = io.BytesIO()
    np.lib.format.write_array_header_1_0(hostile, {"descr": "<i8", "fortran_order": False, "shape": (2**40,)})
    for data in (with_column(np.zeros(64 * 2**17, np.int64)), in_archive("header.npy", hostile.getvalue())):
        tracemalloc.start()
        try:
            with pytest.raises(FileFormatError):
                decode(data, Trace)
            assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
        finally:
            tracemalloc.stop()


def test_the_table_in_the_docs_is_what_is_written() -> None:
    plan = plan_of(SMALL, [])
    timeline = Timeline("", SMALL.origin, 0, (), ())
    text = (ROOT / "docs" / "format.md").read_text()
    for value in (SMALL, plan, timeline):
        header, arrays = unpacked(encode(value))
        fields = ", ".join(f"`{name}`" for name in header["fields"])
        assert f"| `{header['kind']}` | fields | {fields} |" in text
        for table in dict.fromkeys(name.split(".")[0] for name in arrays):
            columns = ", ".join(f"`{name.split('.')[1]}`" for name in arrays if name.startswith(f"{table}."))
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
    assert round(int(trace.storages.nbytes.sum()) / GIB, 1) == all_gib
    assert (round(peak(live) / GIB, 2), int(np.argmax(live))) == (peak_gib, peak_at)
    assert round(peak(needed_bytes(trace)) / GIB, 2) == largest_gib
    assert machine is not None
    assert machine.tiers[0].capacity_bytes == 40 * GIB
    link = machine.link("ssd", "gpu")
    assert link is not None
    assert (link.bytes_per_s, link.shares) == (3_200_000_000, "gpu_in")
    assert decode(encode(trace), Trace) == trace
