"""What a probe measures becomes a machine file that reads back; its pure parts are exact, its traces are none."""

import os
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import SpillError
from ebbtide.host.spill import checked_spill_directory
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import Compute, ComputeRule, InPlace, Machine
from ebbtide.pipeline.reading import this_machine
from ebbtide.probe import compute, quick
from ebbtide.probe import pages as pages_module
from ebbtide.probe.command import machine_file, probe_and_write
from ebbtide.probe.figures import CHUNK_BYTES, Direction, Figure, Findings, Slowdown
from ebbtide.probe.kernels import Copying, Matmul
from ebbtide.probe.measure import Effort, measure, parts_of
from ebbtide.probe.model import machine_of
from ebbtide.probe.pages import HUGE_PAGE_BYTES, MovingPages, huge_bytes
from ebbtide.probe.quick import cache_file, probe_quick
from ebbtide.probe.spill_bench import SpillBench
from ebbtide.probe.table import render_table
from ebbtide.units import GIB, MIB
from tests.commands.test_screen import lines_of, on_a_terminal
from tests.helpers import command

TINY = Effort(seconds=0.3, file_bytes=16 * MIB, memory_bytes=8 * MIB, rounds=1)
OUT, BACK, BOTH = Direction.OUT, Direction.BACK, Direction.BOTH


def sure(value: float, spread: float = 0.0) -> Figure:
    return Figure(value, value - spread, value + spread / 2)


FINDINGS = Findings(
    machine="2 CPUs (a model), 16.0 GiB of memory",
    directory="/spill (ext4 on /dev/sda1)",
    notes=("something to know",),
    disturbed=False,
    took_s=11.6,
    file_bytes=GIB,
    memory_capacity_bytes=16 * GIB,
    file_capacity_bytes=100 * GIB,
    io_threads=2,
    memory_threads=2,
    memory=sure(20e9, 1e9),
    first_write=sure(0.5e9),
    latency_ns={OUT: sure(80_000, 2_000), BACK: sure(60_000)},
    slowdown={OUT: Slowdown(sure(0.02), sure(0.04)), BACK: Slowdown(sure(-0.03), sure(0.0))},
    moves={OUT: sure(2e9, 0.2e9), BACK: sure(3e9), BOTH: sure(2.5e9, 0.1e9)},
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A directory that can serve, and that is empty before and after."""
    try:
        with SpillBench([checked_spill_directory(tmp_path)], CHUNK_BYTES, 1):
            pass
    except SpillError as error:
        pytest.skip(str(error))
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


# ---- statistics ------------------------------------------------------------------------------------------------------


def test_quartiles_of_a_known_row() -> None:
    assert Figure.of([5.0, 1.0, 4.0, 2.0, 3.0]) == Figure(3.0, 2.0, 4.0)
    assert Figure.of([7.0]) == Figure(7.0, 7.0, 7.0)
    assert Figure.of([1.0, 2.0]).median == 1.5
    with pytest.raises(ValueError, match="needs a sample"):
        Figure.of([])


@given(st.lists(st.floats(0, 1e12), min_size=2, max_size=40))
def test_quartiles_are_those_of_numpy(samples: list[float]) -> None:
    figure = Figure.of(samples)
    expected = np.quantile(samples, [0.25, 0.5, 0.75])
    assert np.allclose([figure.low, figure.median, figure.high], expected, rtol=1e-9, atol=1e-6)


def test_a_gain_beside_a_busy_link_is_noise() -> None:
    assert Slowdown(sure(0.02), sure(0.04)).typical == pytest.approx(0.03)
    assert Slowdown(sure(-0.4), sure(0.02)).typical == pytest.approx(0.01)
    assert Slowdown(sure(-0.4), sure(-0.1)).typical == 0.0


# ---- the machine and the table --------------------------------------------------------------------------------------


def test_the_machine_has_the_figures_of_the_runtimes_own_copies() -> None:
    machine = machine_of(FINDINGS)
    assert machine.origin is Origin.MEASURED
    assert machine.name == "2 CPUs (a model), 16.0 GiB of memory, spilling to /spill (ext4 on /dev/sda1)"
    dram, file = machine.tiers
    assert (dram.name, dram.in_place, dram.capacity_bytes) == ("dram", InPlace.ALL, 16 * GIB)
    assert dram.bytes_per_s == 20 * 10**9
    assert (file.name, file.in_place, file.capacity_bytes) == ("file", InPlace.NOTHING, 100 * GIB)
    out, back = machine.link("dram", "file"), machine.link("file", "dram")
    assert out is not None
    assert back is not None
    assert (out.bytes_per_s, out.latency_ns, out.slows_compute) == (2 * 10**9, 80_000, 0.03)
    assert (back.bytes_per_s, back.latency_ns, back.slows_compute) == (3 * 10**9, 60_000, 0.0)
    assert {out.shares, back.shares} == {"disk"}
    assert [(group.name, group.bytes_per_s) for group in machine.groups] == [("disk", 25 * 10**8)]


def test_a_machine_file_reads_back_and_says_how_it_was_got() -> None:
    text = machine_file(FINDINGS, render_table(FINDINGS), machine_of(FINDINGS))
    assert Machine.from_toml(text) == machine_of(FINDINGS)
    assert text.startswith("# Measured by ebbtide probe in 12 s.\n")
    assert "# note: something to know" in text


def test_the_table_shows_every_figure_with_its_quartiles() -> None:
    text = render_table(FINDINGS)
    assert "moves of 4.00 MiB by 2 threads" in text
    assert "out (write)          2.00 [1.80-2.10] GB/s\n" in text
    assert "back (read)          3.00 [3.00-3.00] GB/s\n" in text
    assert "both at once         2.50 [2.40-2.55] GB/s\n" in text
    assert "out 80.0 us [78.0 us-81.0 us], back 60.0 us" in text
    assert "out slows            matmul by 2 % [2 to 2], copying by 4 % [4 to 4]" in text
    assert "back slows           matmul by 0 % (noise), copying by 0 % [0 to 0]" in text
    assert "20.00 [19.00-20.50] GB/s read and written, 2 threads copying" in text


# ---- the real thing -------------------------------------------------------------------------------------------------


def test_a_tiny_probe_finds_every_figure_and_its_file_reads_back(disk: Path) -> None:
    begun: list[str] = []
    findings = measure([disk], TINY, begin=begun.append)
    assert len(begun) == parts_of(TINY)
    assert set(findings.moves) == set(Direction)
    figures = [*findings.moves.values(), findings.memory, findings.first_write, *findings.latency_ns.values()]
    assert all(0 < figure.low <= figure.median <= figure.high for figure in figures)
    assert all(slowdown.typical >= 0 for slowdown in findings.slowdown.values())
    assert findings.file_bytes in range(CHUNK_BYTES, 16 * MIB + 1, CHUNK_BYTES)  # a slow disk: not all
    machine = Machine.from_toml(machine_file(findings, render_table(findings), machine_of(findings)))
    assert machine == machine_of(findings)
    assert str(disk) in machine.name


def test_both_directions_move_bytes_both_ways(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with one thread, which then takes turns."""
    calls: list[str] = []
    write, read = os.pwritev, os.preadv
    monkeypatch.setattr(os, "pwritev", lambda *call: calls.append("out") or write(*call))
    monkeypatch.setattr(os, "preadv", lambda *call: calls.append("back") or read(*call))
    for threads in (1, 2):
        with SpillBench([disk], 16 * MIB, threads) as bench:
            bench.write_first(10.0)
            calls.clear()
            with bench.busy(BOTH):
                while not {"out", "back"} <= set(calls):
                    time.sleep(0.001)
            for direction, expected in ((OUT, "out"), (BACK, "back")):
                calls.clear()
                bench.speed(direction, 0.0)
                assert calls == [expected] * threads  # a chunk for each thread, however short the time


def test_the_file_is_written_in_full_before_it_is_measured(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[int] = []
    write = os.pwritev

    def record(fd: int, parts: list[memoryview], place: int) -> int:
        places.append(place)
        assert sum(len(part) for part in parts) == CHUNK_BYTES
        return write(fd, parts, place)

    monkeypatch.setattr(os, "pwritev", record)
    with SpillBench([disk], 64 * MIB, 2) as bench:
        speeds = bench.write_first(60.0)
        assert len(speeds) == 16
        assert sorted(places) == list(range(0, 64 * MIB, CHUNK_BYTES))
        assert bench.nbytes == 64 * MIB


def test_several_directories_share_what_is_moved_in_stripes(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = [disk / "one", disk / "two"]
    for each in disks:
        each.mkdir()
    calls: list[tuple[int, int, int]] = []
    write = os.pwritev

    def record(fd: int, parts: list[memoryview], place: int) -> int:
        calls.append((fd, place, sum(map(len, parts))))
        return write(fd, parts, place)

    monkeypatch.setattr(os, "pwritev", record)
    with SpillBench(disks, 64 * MIB, 2) as bench:
        bench.write_first(60.0)
        files = sorted({fd for fd, _, _ in calls})
        expected = [(file, place, CHUNK_BYTES) for file in files for place in range(0, 32 * MIB, CHUNK_BYTES)]
        assert len(files) == 2
        assert sorted(calls) == expected
        calls.clear()
        bench.speed(OUT, 0.0)  # of two chunks, each goes to another
        assert sorted(calls) == [(file, 0, CHUNK_BYTES) for file in files]
    findings = measure(disks, TINY)
    assert all(str(each) in findings.directory for each in disks)
    assert cache_file(disks, 2) not in (cache_file(disks[:1], 2), cache_file(disks[::-1], 2))
    for each in disks:
        each.rmdir()  # they are empty again


def test_a_slow_disk_is_measured_as_far_as_it_was_written(disk: Path) -> None:
    with SpillBench([disk], 64 * MIB, 2) as bench:
        assert len(bench.write_first(0.0)) == 1
        assert bench.nbytes == CHUNK_BYTES
        assert bench.speed(BOTH, 0.0) > 0


def test_where_o_direct_is_refused_the_page_cache_serves_and_the_notes_say_so(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("fcntl.fcntl", refuse)
    assert "page cache" in " ".join(measure([disk], TINY).notes)


def test_a_file_system_that_cannot_reserve_is_measured_all_the_same(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert "cannot reserve space" in " ".join(measure([disk], TINY).notes)


@pytest.mark.parametrize(("call", "reason"), [("posix_fallocate", "cannot be reserved"), ("pwritev", "failed")])
def test_a_disk_that_is_full_or_fails_is_a_spill_error(
    disk: Path, monkeypatch: pytest.MonkeyPatch, call: str, reason: str
) -> None:
    open_before = len(os.listdir("/proc/self/fd"))

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(SpillError, match=rf"{reason} \(No space left on device\)"):
        measure([disk], TINY)
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_too_little_free_space_is_told(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.host.spill.shutil.disk_usage", lambda _: type("", (), {"free": 20 * MIB}))
    with pytest.raises(SpillError, match=r"only 20\.0 MiB are free"):
        measure([disk], TINY)


def huge_kib(address: int) -> int:
    """How much of the mapping at an address lies on huge pages, in KiB."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            first, last = (int(end, 16) for end in name.split("-"))
            inside = first <= address < last
        elif inside and name in ("AnonHugePages:", "ShmemPmdMapped:"):
            return int(rest.split()[0])
    raise AssertionError("there is no mapping at the address")


@pytest.mark.skipif(
    "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(), reason="no huge pages here"
)
def test_memory_lies_on_huge_pages() -> None:
    memory = huge_bytes(64 * MIB)
    assert (memory.ctypes.data % HUGE_PAGE_BYTES, memory.nbytes, memory.sum()) == (0, 64 * MIB, 0)
    assert huge_kib(memory.ctypes.data + 32 * MIB) > 32 * 1024  # the kernel may be short of some


@pytest.mark.parametrize("out", [True, False])
def test_after_a_transfer_the_same_bytes_are_at_another_place(out: bool) -> None:
    contents = np.random.default_rng(0).integers(0, 256, 4 * MIB, dtype=np.uint8)
    pages = MovingPages(contents)
    places = []
    for turn in range(3):
        with pages.transferred(out) as memory:
            places.append(np.frombuffer(memory, dtype=np.uint8).ctypes.data)
            if not out:
                memory[turn] = contents[turn] = turn + 1
        assert pages.data == contents.data
        pages.data[-1] = contents[-1] = turn  # they can be written to again
    assert places[0] == places[2] != places[1]


@pytest.mark.parametrize("out", [True, False])
def test_where_the_kernel_moves_no_pages_the_bytes_are_the_same(out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_module, "_TO_ANOTHER_PLACE", 1 << 20)  # an unknown flag
    contents = np.arange(2 * MIB, dtype=np.uint8)
    pages = MovingPages(contents)
    for _ in range(2):
        with pages.transferred(out) as memory:
            assert memory == contents.data


def test_kernels_get_something_done() -> None:
    with Copying(8 * MIB) as copying:
        assert copying.speed(0.0) > 0
    assert Matmul().speed(0.0) > 0


# ---- the cache ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(disk: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache file of the disk, not there yet; and a probe that takes no time: it finds FINDINGS."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("home") / "cache"))
    monkeypatch.setattr(quick, "measure", lambda *_: FINDINGS)
    path = cache_file([disk], 2)
    assert path is not None
    return path


def never(*_: object) -> Findings:
    raise AssertionError("measured again")


def test_a_quick_probe_measures_once(disk: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    first = probe_quick([disk], say=said.append)
    assert said == [f"measuring {disk} for about 2 s (kept for up to a week)"]
    assert first.links == machine_of(FINDINGS).links
    assert Machine.from_toml(cache.read_text()) == machine_of(FINDINGS)
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]
    assert stat.S_IMODE(cache.parent.stat().st_mode) == 0o700
    monkeypatch.setattr(quick, "measure", never)
    again = probe_quick([disk], say=said.append)
    assert len(said) == 1
    assert (again.name, again.links, again.groups) == (first.name, first.links, first.groups)


def test_of_processes_that_start_together_one_measures(
    disk: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By threads here: each opens the lock for itself. The second one asks while the first one measures."""
    found: list[Machine] = []
    second = Thread(target=lambda: found.append(probe_quick([disk])))

    def measures(*_: object) -> Findings:
        assert not second.ident
        second.start()
        second.join(0.2)
        return FINDINGS

    monkeypatch.setattr(quick, "measure", measures)
    first = probe_quick([disk])
    second.join()
    assert found == [first]


def test_machines_that_nobody_would_read_any_more_leave_the_cache(disk: Path, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    for name, age_s in (("machine-old.toml", quick.MOST_AGE_S + 60), ("machine-new.toml", 60), ("mine.toml", 1e8)):
        (cache.parent / name).write_text("")
        os.utime(cache.parent / name, (time.time() - age_s,) * 2)
    probe_quick([disk])
    assert {path.name for path in cache.parent.iterdir()} == {cache.name, "machine-new.toml", "mine.toml"}


def test_whoever_waits_for_a_quick_probe_is_told_on_standard_error(
    disk: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EBBTIDE_MACHINE", raising=False)
    monkeypatch.setenv("EBBTIDE_SPILL", str(disk))
    this_machine()
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"ebbtide: measuring {disk} for about 2 s (kept for up to a week)\n")
    this_machine()
    cache.unlink()
    monkeypatch.setenv("EBBTIDE_PROGRESS", "off")
    this_machine()
    assert capsys.readouterr() == ("", "")


def test_who_asks_how_fast_the_machine_computes_gets_it_in_the_same_file(
    disk: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    assert probe_quick([disk]).compute == Compute()
    written = time.time() - 5000
    os.utime(cache, (written, written))
    measured = Compute(flops_per_s=10**11, bfloat16_flops_per_s=4 * 10**11, float16_flops_per_s=10**9, operator_ns=2000)
    monkeypatch.setattr(compute, "with_compute", lambda machine: replace(machine, compute=measured))
    assert probe_quick([disk], say=said.append, computes=True).compute == measured
    assert said == ["measuring how fast this machine computes for about 1 s"]
    assert cache.stat().st_mtime == pytest.approx(written, abs=5)  # what it says of the disk is no newer
    monkeypatch.setattr(compute, "with_compute", never)
    again = probe_quick([disk], computes=True)
    assert (again.compute, again.links) == (measured, machine_of(FINDINGS).links)


def test_what_computes_is_measured_and_reads_back() -> None:
    machine = compute.with_compute(machine_of(FINDINGS), seconds=0.05)
    found = machine.compute
    rates = (found.flops_per_s, found.bfloat16_flops_per_s, found.float16_flops_per_s)
    assert all(rate is not None and rate > 10**6 for rate in rates)
    assert found.operator_ns > 0
    assert found.rule is ComputeRule.TRACE  # steps that were recorded here keep their times
    assert Machine.from_toml(machine.to_toml()) == machine
    assert "matrix products" in compute.render_compute(found)


def test_capacities_are_those_of_now(disk: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe_quick([disk])
    limit = type("", (), {"nbytes": 3 * GIB})
    monkeypatch.setattr(quick, "memory_limit", lambda: limit)
    assert probe_quick([disk]).tiers[0].capacity_bytes == 3 * GIB
    assert probe_quick([disk]).tiers[1].capacity_bytes != FINDINGS.file_capacity_bytes


ANOTHER_KIND = replace(machine_of(FINDINGS), links=(), groups=()).to_toml()


@pytest.mark.parametrize(
    "kept", ["", "not = TOML = at all", "\0\xff", 'format = "ebbtide-machine"\nversion = 2\n', ANOTHER_KIND]
)
def test_a_damaged_cache_is_measured_and_written_anew(disk: Path, cache: Path, kept: str) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(kept.encode("latin-1"))
    assert probe_quick([disk]).links == machine_of(FINDINGS).links
    assert Machine.from_toml(cache.read_text()) == machine_of(FINDINGS)


@pytest.mark.parametrize("age_s", [quick.MOST_AGE_S + 60, -3600])
def test_a_cache_that_is_old_or_from_the_future_is_measured_anew(disk: Path, cache: Path, age_s: int) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(replace(machine_of(FINDINGS), name="before").to_toml())
    assert probe_quick([disk]).name == "before"
    written = time.time() - age_s
    os.utime(cache, (written, written))
    assert probe_quick([disk]).name == machine_of(FINDINGS).name


def test_what_was_measured_on_a_busy_machine_is_kept_for_an_hour(
    disk: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick, "measure", lambda *_: replace(FINDINGS, disturbed=True))
    probe_quick([disk])
    monkeypatch.setattr(quick, "measure", never)
    probe_quick([disk])
    written = cache.stat().st_mtime - quick.DISTURBED_AGE_S
    os.utime(cache, (written, written))
    with pytest.raises(AssertionError, match="measured again"):
        probe_quick([disk])


def test_a_busy_machine_is_noted(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (500.0, 0.0, 0.0))
    findings = measure([disk], TINY)
    assert findings.disturbed
    assert "other programs were running (load 500.0)" in findings.notes[0]
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert not measure([disk], TINY).disturbed


def test_a_cache_that_cannot_be_written_is_done_without(disk: Path, cache: Path) -> None:
    cache.parent.parent.mkdir()
    cache.parent.write_text("a file where the folder should be")
    assert probe_quick([disk]).links == machine_of(FINDINGS).links


def test_directories_and_threads_have_caches_of_their_own(disk: Path, cache: Path, tmp_path: Path) -> None:
    assert cache_file([tmp_path.parent], 2) != cache
    assert cache_file([disk], 3) != cache


def test_without_a_cache_variable_the_home_is_used(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/somewhere")
    path = cache_file([disk], 2)
    assert path is not None
    assert path.parent == Path("/somewhere/.cache/ebbtide")


def test_a_quick_probe_of_the_real_thing(
    disk: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("home")))
    machine = probe_quick([disk], effort=TINY)
    assert [link.name for link in machine.links] == ["dram->file", "file->dram"]
    assert probe_quick([disk], effort=TINY).links == machine.links


# ---- the command ----------------------------------------------------------------------------------------------------


def probe(*arguments: str) -> subprocess.CompletedProcess[str]:
    return command.run(command.EBBTIDE, "probe", *arguments)


@pytest.mark.starts
def test_the_command_shows_the_table_and_writes_the_machine(
    disk: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, shown = tmp_path_factory.mktemp("out") / "machine.toml", []
    monkeypatch.setattr("ebbtide.probe.command.THOROUGH", TINY)
    probe_and_write([str(disk)], 0.1, output, shown.append)
    assert Machine.from_toml(output.read_text()).origin is Origin.MEASURED
    assert "both at once" in shown[0]
    assert f"wrote {output}" in shown[1]
    probe_and_write([str(disk)], 0.1, None, shown.append)
    assert len(shown) == 3


WITH_SMALL_FILES = """
from dataclasses import replace
from ebbtide.cli import main
from ebbtide.probe import command
command.THOROUGH = replace(command.THOROUGH, file_bytes=1 << 24, memory_bytes=1 << 24)
main()
"""


@pytest.mark.starts
def test_on_a_terminal_the_command_shows_what_it_measures_and_its_table_fits(disk: Path) -> None:
    said = on_a_terminal("probe", "--spill", disk, "--seconds", "1", starts=("-c", WITH_SMALL_FILES))
    for part in ("writing a file", "writing and reading, round 5 of 5", "computing beside a busy disk"):
        assert part in said
    lines = lines_of(said)
    at = next(number for number, line in enumerate(lines) if line.startswith("median [quartiles]"))
    assert all(len(line) <= 80 for line in lines[at:])


@pytest.mark.starts
def test_help_names_the_options() -> None:
    text = probe("--help").stdout
    assert all(option in text for option in ("--spill", "--seconds", "--output"))


@pytest.mark.parametrize(
    ("directory", "complaint"),
    [("/proc", "no file can be created"), ("/missing", "does not exist"), ("/dev/shm", "lies in RAM")],
)
@pytest.mark.starts
def test_a_directory_that_cannot_serve_is_refused_at_once(directory: str, complaint: str) -> None:
    if directory == "/dev/shm" and not Path(directory).is_mount():
        pytest.skip("no /dev/shm here")
    done = probe("--spill", directory)
    assert (done.returncode, done.stdout) == (4, "")
    assert complaint in done.stderr
    assert "--spill or EBBTIDE_SPILL" in done.stderr
    assert "Traceback" not in done.stderr
