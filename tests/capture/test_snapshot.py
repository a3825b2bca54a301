"""A CUDA memory snapshot becomes a trace of allocations; a file that is anything else is refused, and nothing runs."""

import copy
import os
import pickle
import pickletools
import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ebbtide.capture.snapshot import read_snapshot
from ebbtide.cli import cli
from ebbtide.errors import FileFormatError
from ebbtide.ir.files import load
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.trace import Trace

INSTRUCTIONS = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes]
Event = dict[str, Any]

# As torch writes them: innermost first, C++ and library frames among the program's.
FRAMES = [
    {"filename": "??", "line": 0, "name": "c10::cuda::CUDACachingAllocator::malloc"},
    {"filename": "/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", "line": 125, "name": "forward"},
    {"filename": "/home/user/train.py", "line": 12, "name": "forward"},
    {"filename": "/home/user/train.py", "line": 40, "name": "<module>"},
]


def event(action: str, addr: int, size: int, time_us: int, frames: list[dict[str, Any]] | None = None) -> Event:
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": 0,
        "time_us": time_us,
        "compile_context": "N/A",
        "user_metadata": "",
        "pool_id": (0, 0),
        "frames": FRAMES if frames is None else frames,
    }


def block(address: int, size: int, requested: int, state: str) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": []}


def snapshot(events: list[Event], blocks: list[dict[str, Any]], device: int = 0) -> dict[str, Any]:
    segment = {
        "device": device,
        "address": 0x7F00_0000_0000,
        "total_size": 20 << 20,
        "allocated_size": sum(b["size"] for b in blocks if b["state"] == "active_allocated"),
        "active_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
        "requested_size": sum(b["requested_size"] for b in blocks),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
    traces: list[list[Event]] = [[], []]
    traces[device] = events
    return {
        "segments": [segment],
        "device_traces": traces,
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False},
        "external_annotations": [],
    }


def written(value: object, folder: Path) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(value))
    return path


BASE = 0x7F00_0000_0000
HISTORY = [
    event("segment_alloc", BASE, 20 << 20, 90),
    event("alloc", BASE + 4096, 1000, 100),
    event("free_requested", BASE, 700, 130),  # born before the history
    event("free_completed", BASE, 700, 150),
    event("alloc", BASE, 300, 151),
    event("oom", 0, 1 << 40, 160),
    event("free_requested", BASE + 4096, 1000, 170, []),
    event("alloc", BASE + 8192, 50, 180),  # while the first still waits for its stream
    event("free_completed", BASE + 4096, 1000, 200, []),
    event("snapshot", 0, 0, 999),
]
BLOCKS = [
    block(BASE, 512, 300, "active_allocated"),
    block(BASE + 4096, 1024, 0, "inactive"),
    block(BASE + 8192, 512, 50, "active_allocated"),
    block(BASE + 65536, 2048, 2000, "active_allocated"),  # from before the history, and still there
]


def test_every_figure_of_a_small_history(tmp_path: Path) -> None:
    trace = read_snapshot(written(snapshot(HISTORY, BLOCKS), tmp_path))
    assert [tick.operator for tick in trace.ticks] == [
        *("alloc", "free_requested", "free_completed", "alloc", "free_requested", "alloc", "free_completed")
    ]
    assert [tick.time_ns for tick in trace.ticks] == [30_000, 20_000, 1_000, 19_000, 10_000, 20_000, 0]
    assert [trace.ticks[0].module, trace.ticks[-1].module] == ["train.py:12 forward", ""]
    lines = {storage.nbytes: storage.line for storage in trace.storages}
    assert {lines[1000], lines[300]} == {"train.py:12 forward"}
    assert lines[2000] == ""  # of the time before the history
    lives = {storage.nbytes: (storage.birth, storage.death, storage.persistent) for storage in trace.storages}
    assert lives == {2000: (0, 7, True), 700: (0, 2, False), 1000: (0, 6, False), 300: (3, 7, False), 50: (5, 7, False)}
    assert live_bytes(trace).tolist() == [3700, 3700, 3000, 3300, 3300, 3350, 2350]
    assert not trace.accesses_known
    assert len(trace.accesses) == 0


def test_what_is_live_follows_a_naive_count_of_a_random_history(tmp_path: Path) -> None:
    chance = random.Random(7)
    alive: dict[int, int] = {BASE + 4096 * number: chance.randrange(1, 5000) for number in range(5)}
    events, levels = [], []
    old = dict(alive)
    for time in range(400):
        free = [BASE + 4096 * number for number in range(40) if BASE + 4096 * number not in alive]
        if free and (not alive or chance.random() < 0.5):
            address = chance.choice(free)
            alive[address] = chance.randrange(1, 5000)
            events.append(event("alloc", address, alive[address], time))
        else:
            address = chance.choice(list(alive))
            events.append(event("free_completed", address, alive.pop(address), time))
            old.pop(address, None)
        levels.append(sum(alive.values()))
    blocks = [block(address, size, size, "active_allocated") for address, size in alive.items()]
    trace = read_snapshot(written(snapshot(events, blocks), tmp_path))
    counted = live_bytes(trace).tolist()
    assert counted[1:] == levels[1:]  # what is freed by the first event has to live for one tick
    assert sum(storage.persistent for storage in trace.storages) == len(old)


def test_the_command_writes_a_trace(tmp_path: Path) -> None:
    source, out = written(snapshot(HISTORY, BLOCKS, device=1), tmp_path), tmp_path / "step.trace"
    done = CliRunner().invoke(cli, ["import", str(source), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "7 allocations and releases, 5 storages" in done.output
    assert "accesses are not known" in done.output
    trace = load(out, Trace)
    assert trace.name == "snapshot.pickle, device 1"
    assert peak(live_bytes(trace)) == 3700


def test_without_a_history_it_is_what_was_there_at_that_moment(tmp_path: Path) -> None:
    trace = read_snapshot(written(snapshot([], BLOCKS), tmp_path))
    assert len(trace.ticks) == 1
    assert peak(live_bytes(trace)) == 2350


def test_a_device_is_chosen_where_there_are_two(tmp_path: Path) -> None:
    both = snapshot(HISTORY, BLOCKS)
    both["device_traces"][1] = HISTORY[1:2]
    path = written(both, tmp_path)
    with pytest.raises(FileFormatError, match="choose one of the devices in it with --device: cuda:0, cuda:1"):
        read_snapshot(path)
    assert len(read_snapshot(path, 1).ticks) == 1


def test_a_device_is_named_as_for_other_commands_or_by_its_number(tmp_path: Path) -> None:
    both, out = snapshot(HISTORY, BLOCKS), tmp_path / "step.trace"
    both["device_traces"][1] = HISTORY[1:2]
    command = ["import", str(written(both, tmp_path)), "-o", str(out), "--device"]
    for name in ("cuda:1", "1"):
        assert CliRunner().invoke(cli, [*command, name]).exit_code == 0
        assert load(out, Trace).name == "snapshot.pickle, device 1"
    assert isinstance(CliRunner().invoke(cli, [*command, "cuda"]).exception, FileFormatError)  # which of the two
    for wrong in ("cpu", "cuda:", "cuda1", ":1", "-1", "cuda:1000"):
        done = CliRunner().invoke(cli, [*command, wrong])
        assert done.exit_code == 2
        assert "accepted: cuda, cuda:NUMBER or NUMBER" in " ".join(done.output.split())


class Hostile:
    def __reduce__(self) -> object:
        return os.mkdir, ("it-ran",)


def test_nothing_in_a_hostile_pickle_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (
        Hostile(),
        {"segments": [Hostile()], "device_traces": []},
        {"segments": [], "device_traces": [Hostile()]},
    ):
        with pytest.raises(FileFormatError, match=r"it would call .*mkdir"):
            read_snapshot(written(value, tmp_path))
    old_protocol = b"cos\nmkdir\n(S'it-ran'\ntR."
    (tmp_path / "old").write_bytes(old_protocol)
    with pytest.raises(FileFormatError, match=r"it would call os\.mkdir"):
        read_snapshot(tmp_path / "old")
    (tmp_path / "persistent").write_bytes(b"Pelsewhere\n.")
    with pytest.raises(FileFormatError, match="outside of it"):
        read_snapshot(tmp_path / "persistent")
    assert not (tmp_path / "it-ran").exists()


endless: list[Any] = []
endless.append(endless)


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"segments": []},
        {"segments": 3, "device_traces": []},
        {"segments": [], "device_traces": [[3]]},
        {"segments": [], "device_traces": [[{"action": "alloc"}]]},
        {"segments": endless, "device_traces": [endless]},
        snapshot([event("alloc", 1, -5, 0)], []),
        snapshot([event("alloc", 1, 2**70, 0)], []),
        snapshot([event("alloc", [], 1, 0)], []),
        snapshot([event("alloc", 1, 1, 2**70)], []),
        snapshot([event("alloc", 1, 1, 0, [{"filename": 3}])], []),
    ],
)  # fmt: skip
def test_plain_data_that_is_no_snapshot_is_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"snapshot\.pickle"):
        read_snapshot(written(value, tmp_path))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = pickle.dumps(snapshot(HISTORY, BLOCKS))
    path = tmp_path / "damaged"
    claims = struct.pack("<Q", 2**60)  # more bytes than there are
    for data in (
        b"",
        b"text",
        whole[:-1],
        whole[: len(whole) // 2],
        b"\x80\x04\x8e" + claims,
        b"\x80\x04\x8d" + claims,
    ):
        path.write_bytes(data)
        with pytest.raises(FileFormatError, match="not a pickle, or a damaged one"):
            read_snapshot(path)
    chance = random.Random(3)
    for _ in range(300):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        try:
            read_snapshot(path)
        except FileFormatError:
            continue  # or the flip was in a text or a number, and it is another snapshot


def nested() -> Any:
    value: Any = (1,)
    for _ in range(60):
        value = (value, value)
    return value


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: whole["device_traces"][0][1].update(action=nested()),
        lambda whole: whole["device_traces"][0][1].update(addr=nested()),
        lambda whole: whole["device_traces"][0][1].update(size=nested()),
        lambda whole: whole["device_traces"][0][1].update(time_us=nested()),
        lambda whole: whole["device_traces"][0][1].update(frames=nested()),
        lambda whole: whole["device_traces"][0][1].update(frames=[{**FRAMES[2], "name": nested()}]),
        lambda whole: whole["device_traces"][0][1].update(frames=[{**FRAMES[2], "line": whole}]),
        lambda whole: whole["segments"][0].update(device=nested()),
        lambda whole: whole["segments"][0]["blocks"][0].update(address=nested()),
        lambda whole: whole["segments"][0]["blocks"][0].update(requested_size=nested()),
    ],
)
def test_what_is_no_number_and_no_text_is_neither_printed_nor_compared(change: Any, tmp_path: Path) -> None:
    whole = copy.deepcopy(snapshot(HISTORY, BLOCKS))
    change(whole)
    with suppress(FileFormatError):  # it would not come back, were one of them looked through
        read_snapshot(written(whole, tmp_path))


def test_lists_that_are_named_many_times_are_read_once(tmp_path: Path) -> None:
    """Were each looked at once more for each name, this would take 4e9 looks."""
    frames = [FRAMES[0]] * 40_000
    events = [event("alloc", BASE + 8 * number, 1, number, frames) for number in range(1000)]
    whole = snapshot(events, BLOCKS * 10_000)
    whole["segments"] *= 50_000
    whole["device_traces"] = [[], *[whole["device_traces"][0]] * 50_000]
    path = written(whole, tmp_path)
    with pytest.raises(FileFormatError, match="choose one of the devices"):
        read_snapshot(path)
    assert len(read_snapshot(path, 1).ticks) == 1000
