"""The doctor on machines that a test makes up, file by file, and on the real one."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from ebbtide.doctor import memory, processors, storage
from ebbtide.doctor.examine import examine, software
from ebbtide.doctor.finding import Finding, Level
from ebbtide.doctor.text import render, runs, to_json
from ebbtide.doctor.view import TorchFacts, View, outdated, this_machine
from ebbtide.units import GIB, MIB

TORCH = TorchFacts("2.13.0", 2, "")
HUGE = "sys/kernel/mm/transparent_hugepage"
WELL = {
    f"{HUGE}/enabled": "always [madvise] never\n",
    f"{HUGE}/defrag": "always defer [madvise] never\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "proc/sys/vm/max_map_count": "1048576\n",
    "proc/meminfo": f"MemTotal: {16 * MIB} kB\nMemAvailable: {8 * MIB} kB\n",
    "proc/self/status": "Name:\tpython\nTHP_enabled:\t1\n",
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
    "sys/devices/system/node/node0/cpulist": "0-3\n",
}


class Machine:
    """A well machine below a directory; files given here stand in place of its own, or (None) are missing."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def view(self, files: Mapping[str, str | None] | None = None, **rest: object) -> View:
        for name, text in (WELL | dict(files or {})).items():
            if text is not None:
                path = self.root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        known = {"environment": {}, "cpus": 4, "load_torch": lambda: TORCH} | rest
        return View(root=self.root, **known)  # type: ignore[arg-type]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def test_a_well_machine_has_nothing_to_cure(machine: Machine, tmp_path: Path) -> None:
    findings = examine(machine.view(), ["/var/tmp"])
    wrong = [finding for finding in findings if finding.level is not Level.OK]
    assert [finding.name for finding in wrong] in ([], ["free space"])  # that is the real disk's
    assert len({finding.name for finding in findings}) == len(findings) == 13
    assert all(finding.found and finding.means for finding in findings)
    assert runs(findings)


# what is wrong -> (the check, the files that make it so, the level, words that the finding must hold)
SICK: dict[str, tuple[Callable[[View], Finding], dict[str, str | None], Level, tuple[str, ...]]] = {
    "huge pages off": (
        memory.huge_pages,
        {f"{HUGE}/enabled": "always madvise [never]\n"},
        Level.HINT,
        ("switched off", "echo madvise >"),
    ),
    "no huge pages": (memory.huge_pages, {f"{HUGE}/enabled": None}, Level.HINT, ("this kernel has none",)),
    "no huge pages for us": (
        memory.huge_pages,
        {"proc/self/status": "Name:\tpython\nTHP_enabled:\t0\n"},
        Level.HINT,
        ("for this process", "PR_SET_THP_DISABLE"),
    ),
    "huge pages only if free": (
        memory.huge_pages,
        {f"{HUGE}/defrag": "always defer madvise [never]\n"},
        Level.HINT,
        ("fragmented", "defrag"),
    ),
    "strict overcommit": (
        memory.overcommit,
        {"proc/sys/vm/overcommit_memory": "2\n"},
        Level.HINT,
        ("strict (2)", "vm.overcommit_memory=0"),
    ),
    # 16 GiB are 8,192 huge pages of two areas each, and 4,096 areas besides: 20,480
    "few areas": (
        memory.memory_areas,
        {"proc/sys/vm/max_map_count": "20479\n"},
        Level.HINT,
        ("20479", "20480", "sysctl vm.max_map_count=1000000", "16.0 GiB"),
    ),
    "enough areas": (memory.memory_areas, {"proc/sys/vm/max_map_count": "20480\n"}, Level.OK, ("20480",)),
    "two nodes": (
        processors.nodes,
        {"sys/devices/system/node/node1/cpulist": "4-7\n"},
        Level.HINT,
        ("2 nodes", "numactl --cpunodebind=0 --membind=0"),
    ),
    "a node of CXL memory": (
        processors.nodes,
        {"sys/devices/system/node/node1/cpulist": "\n"},
        Level.OK,
        ("2 nodes", "node1 without processors", "--tier numa:1:SIZE"),
    ),
}


@pytest.mark.parametrize("case", SICK)
def test_what_the_kernels_files_say_is_found(machine: Machine, case: str) -> None:
    check, files, level, words = SICK[case]
    view = machine.view(files)
    missing = next((name for name, text in files.items() if text is None), None)
    if missing is not None:
        assert not (machine.root / missing).exists()
    finding = check(view)
    said = f"{finding.found} {finding.cure}"
    assert finding.level is level, said
    assert [word for word in words if word not in said] == [], said


def test_limits_of_the_process_stop_a_run_and_say_which_option_lifts_them(machine: Machine) -> None:
    finding = memory.resource_limits(machine.view(soft_limits={"RLIMIT_AS": 4 * GIB, "RLIMIT_FSIZE": GIB}))
    assert finding.level is Level.PROBLEM
    assert finding.found == "RLIMIT_AS is 4.00 GiB, RLIMIT_FSIZE is 1.00 GiB"
    assert "ulimit -v unlimited" in finding.cure
    assert "ulimit -f unlimited" in finding.cure
    assert memory.resource_limits(machine.view()).level is Level.OK
    assert memory.resource_limits(machine.view(soft_limits={"RLIMIT_FSIZE": GIB})).level is Level.HINT


@pytest.mark.parametrize(
    ("cgroup", "mount", "files"),
    [
        ("0::/job\n", "cgroup2 cgroup rw", {"job/memory.max": f"{2 * GIB}\n", "job/cpu.max": "150000 100000\n"}),
        (
            "4:memory,cpu:/job\n",
            "cgroup cgroup rw,memory,cpu",
            {
                "job/memory.limit_in_bytes": f"{2 * GIB}\n",
                "job/cpu.cfs_quota_us": "150000\n",
                "job/cpu.cfs_period_us": "100000\n",
                "cpu.cfs_quota_us": "-1\n",
            },
        ),
    ],
    ids=["v2", "v1"],
)
def test_a_containers_limits_are_read(machine: Machine, cgroup: str, mount: str, files: dict[str, str]) -> None:
    where = machine.root / "groups"
    mounts = f"{WELL['proc/self/mountinfo']}30 20 0:26 / {where} rw - {mount}\n"
    group_files = {f"groups/{name}": text for name, text in files.items()}
    view = machine.view({"proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts} | group_files)
    found = memory.memory(view).found
    assert found == "2.00 GiB, the limit of this container; 8.00 GiB of the machine's are free now"
    finding = processors.threads(view, TORCH)
    assert finding.level is Level.HINT
    assert "4 processors, of which the container may use 1.5; PyTorch uses 2 threads" in finding.found
    assert finding.cure == "set OMP_NUM_THREADS=1"


def test_threads_beyond_the_processors_are_too_many(machine: Machine) -> None:
    assert processors.threads(machine.view(cpus=2), TORCH).level is Level.OK
    finding = processors.threads(machine.view(cpus=2), TorchFacts("2.13.0", 8, ""))
    assert (finding.level, finding.cure) == (Level.HINT, "set OMP_NUM_THREADS=2")


@pytest.mark.parametrize(
    ("environment", "level", "found"),
    [
        ({}, Level.OK, "the C library's, as it comes"),
        ({"GLIBC_TUNABLES": "glibc.malloc.top_pad=1"}, Level.OK, "tuned (GLIBC_TUNABLES)"),
        ({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, Level.OK, "jemalloc in place"),
        ({"MALLOC_CHECK_": "3"}, Level.HINT, "MALLOC_CHECK_ set"),
    ],
)
def test_the_heap_is_named(machine: Machine, environment: dict[str, str], level: Level, found: str) -> None:
    finding = memory.heap(machine.view(environment=environment))
    assert finding.level is level
    assert found in finding.found


def test_a_kernel_that_cannot_move_pages_and_a_torch_that_does_not_load_are_problems(machine: Machine) -> None:
    refused = machine.view(
        try_page_move=lambda: "Invalid argument",
        load_torch=lambda: TorchFacts("2.12.1", 0, "pip install torch==2.13.*"),
    )
    findings = {finding.name: finding for finding in examine(refused, ["/var/tmp"])}
    assert findings["page moves"].level is Level.PROBLEM
    assert findings["torch"] == software(TorchFacts("2.12.1", 0, "pip install torch==2.13.*"))
    assert "2.12.1" in findings["torch"].found
    assert findings["torch"].cure == "pip install torch==2.13.*"
    assert not runs(list(findings.values()))


@pytest.mark.parametrize(
    ("package", "newer", "is_outdated"),
    [
        ("src/ebbtide", "native/core/arena.hpp", True),
        ("src/ebbtide", "native/tests/test_arena.cpp", False),  # no module is made of these
        ("src/ebbtide", None, False),
        ("site-packages/ebbtide", "native/core/arena.hpp", False),
    ],
)
def test_native_modules_older_than_a_clones_sources_are_a_problem(
    machine: Machine, tmp_path: Path, package: str, newer: str | None, is_outdated: bool
) -> None:
    for name in ("native/core/arena.hpp", "native/tests/test_arena.cpp", f"{package}/_torch.so", f"{package}/_else.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000, 3000 if name == newer else 4000 if "_else" in name else 2000))
    assert outdated(tmp_path / package) is is_outdated
    view = machine.view(load_torch=lambda: TorchFacts("2.13.0", 2, "", outdated(tmp_path / package)))
    findings = examine(view, ["/var/tmp"])
    assert runs(findings) is not is_outdated
    assert ("make install" in findings[0].cure) is is_outdated


@pytest.mark.parametrize(
    ("kind", "level", "word"),
    [
        ("ext4", Level.OK, ""),
        ("xfs", Level.OK, ""),
        ("nfs4", Level.HINT, "network"),
        ("fuse.sshfs", Level.HINT, "network"),
        ("virtiofs", Level.HINT, "host"),
        ("overlay", Level.HINT, "container"),
        ("btrfs", Level.HINT, "copies"),
    ],
)
def test_the_file_system_of_the_spill_directory_is_judged(
    machine: Machine, tmp_path: Path, kind: str, level: Level, word: str
) -> None:
    mounts = f"{WELL['proc/self/mountinfo']}30 20 0:26 / {tmp_path.resolve()} rw - {kind} there rw\n"
    finding = storage.storage(machine.view({"proc/self/mountinfo": mounts}), [str(tmp_path)])[0]
    assert (finding.name, finding.level) == ("spill directory", level)
    assert word in finding.found
    assert os.listdir(tmp_path) == ["machine"]


def test_a_spill_directory_in_ram_or_missing_is_a_problem(machine: Machine, tmp_path: Path) -> None:
    mounts = f"{WELL['proc/self/mountinfo']}30 20 0:26 / {tmp_path.resolve()} rw - tmpfs tmpfs rw\n"
    for files, directory, word in (
        ({"proc/self/mountinfo": mounts}, tmp_path, "RAM"),
        ({}, tmp_path / "missing", "does not exist"),
        ({}, Path("/proc"), "no file can be created"),
    ):
        (finding,) = storage.storage(machine.view(files), [str(directory)])
        assert finding.level is Level.PROBLEM
        assert word in finding.found
        assert "--spill" in finding.cure


def test_each_of_several_directories_is_judged_and_named(machine: Machine, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    directories = [str(tmp_path.resolve() / name) for name in ("one", "two")]
    findings = storage.storage(machine.view({}), directories)
    assert [finding.name for finding in findings] == ["spill directory", "O_DIRECT", "free space"] * 2
    assert all(directories[row // 3] in finding.found for row, finding in enumerate(findings))
    (finding,) = storage.storage(machine.view({}), [directories[0], "/proc"])
    assert (finding.level, "/proc" in finding.found) == (Level.PROBLEM, True)


def test_a_trial_writes_and_reads_back_and_leaves_nothing(tmp_path: Path) -> None:
    trial = storage.try_spill(tmp_path, 1)
    assert trial.error == ""
    assert trial.free_bytes > 0
    assert os.listdir(tmp_path) == []


def test_a_trial_that_reads_other_bytes_or_finds_no_space_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        assert storage.try_spill(tmp_path, 1).error == "No space left on device"
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", lambda file, pages, offset: len(pages[0]))
        assert "other bytes" in storage.try_spill(tmp_path, 1).error
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", lambda file, pages, offset: 4096)
        assert "only 4096 of" in storage.try_spill(tmp_path, 1).error


def test_free_space_is_weighed_against_memory() -> None:
    def trial(free_bytes: int, *, reserved: bool = True) -> storage.SpillTrial:
        return storage.SpillTrial("", True, reserved, free_bytes)

    assert storage.free_space(trial(GIB - 1), 16 * GIB).level is Level.PROBLEM
    assert storage.free_space(trial(15 * GIB), 16 * GIB).level is Level.HINT
    assert storage.free_space(trial(16 * GIB), 16 * GIB).level is Level.OK
    assert storage.free_space(trial(16 * GIB, reserved=False), 16 * GIB).level is Level.HINT


def test_without_o_direct_it_is_a_hint() -> None:
    finding = storage.direct_writes(storage.SpillTrial("", False, True, 1))
    assert (finding.level, "page cache" in finding.found) == (Level.HINT, True)


@pytest.mark.parametrize("columns", [80, 100])
def test_the_text_fits_the_terminal(machine: Machine, columns: int) -> None:
    views = (machine.view(), machine.view({f"{HUGE}/enabled": "never\n", "proc/sys/vm/max_map_count": "65530\n"}))
    for view in views:
        lines = render(examine(view, ["/var/tmp"]), columns, verbose=True).splitlines()
        assert max(map(len, lines)) <= columns
        assert max(map(len, lines)) > columns - 15  # and has use of it


def test_text_and_json_hold_every_finding() -> None:
    findings = [
        Finding("one", Level.OK, "found one", "means one"),
        Finding("two", Level.HINT, "found two", "means two", "cure two"),
        Finding("three", Level.PROBLEM, "found three", "means three", "cure three"),
    ]
    assert "(means one)" not in render(findings, 80)
    text = render(findings, 80, verbose=True)
    for word in ("one", "two", "three"):
        assert f"found {word}" in text
        assert f"(means {word})" in text
    assert "-> cure two" in text
    assert "cannot run here. Problems: 1, hints: 1." in text
    assert "can run here. Hints: 1." in render(findings[:2], 80)
    loaded = json.loads(to_json(findings))
    assert (loaded["runs"], [finding["level"] for finding in loaded["findings"]]) == (False, ["ok", "hint", "problem"])
    with pytest.raises(ValueError, match="needs a cure"):
        Finding("four", Level.HINT, "found", "means")


def test_the_command_examines_the_real_machine() -> None:
    from ebbtide.cli import cli

    done = CliRunner().invoke(cli, ["doctor", "--spill", "/var/tmp", "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == (0 if found["runs"] else 1)
    assert len(found["findings"]) == 13
    refused = CliRunner().invoke(cli, ["doctor", "--spill", "/proc"])
    assert refused.exit_code == 1
    assert "no file can be created" in refused.stdout


def test_the_real_trials_answer() -> None:
    view = this_machine()
    assert view.cpus >= 1
    assert view.try_page_move() == ""  # or no other test of the arena could pass here
    assert view.read("proc/self/status").startswith("Name:")
    assert view.read("proc/no such file") == ""
    assert view.number("proc/sys/vm/max_map_count") is not None
