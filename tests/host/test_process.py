"""What the kernel says about this process and its container, the latter on files laid out as the kernel does."""

import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ebbtide.host import process
from ebbtide.host.free_memory import free_memory
from ebbtide.host.mounts import read_mounts
from tests.helpers.at_once import at_once

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10


def test_this_process_holds_something_and_peaked_no_lower() -> None:
    block = bytearray(64 * MIB)
    block[::4096] = b"x" * len(block[::4096])
    held = process.resident_bytes()
    assert held >= 64 * MIB
    assert process.peak_resident_bytes() >= held
    del block


def test_the_peak_can_start_again() -> None:
    block = bytearray(256 * MIB)
    block[::4096] = b"x" * len(block[::4096])
    before = process.peak_resident_bytes()
    del block
    if not process.reset_peak():
        pytest.skip("this kernel does not let VmHWM be reset")
    assert process.peak_resident_bytes() < before - 128 * MIB


def test_what_it_holds_is_known_when_descriptors_are_used_up_and_after_they_were_closed() -> None:
    held, limits = process.resident_bytes(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many"):
            os.open("/dev/null", os.O_RDONLY)
        assert process.resident_bytes() >= held // 2
        assert process.peak_resident_bytes() >= held // 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert process._kept is not None
    os.close(process._kept[1])
    assert process.resident_bytes() >= held // 2


def test_names_may_have_any_bytes(tmp_path: Path) -> None:
    """The kernel cuts a process's name within a letter, and mount points may be named in any encoding."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_bytes(b"Name:\t\xd0\xbe\xd0\nVmRSS:\t   12 kB\n")
    mounted = b"caf\xe9\xe2\x80\xa8"  # and no line ends in it
    (tmp_path / "self/mountinfo").write_bytes(b"30 1 0:26 / /" + mounted + b" rw - tmpfs none rw\n")
    assert process.resident_bytes(tmp_path) == 12 << 10
    assert [os.fsencode(mount.point) for mount in read_mounts(tmp_path)] == [b"/" + mounted]


@pytest.mark.starts
def test_a_process_may_have_a_name_that_was_cut() -> None:
    command = """
import ctypes
from ebbtide.host import process
ctypes.CDLL(None).prctl(15, "\u043e\u0431\u0443\u0447\u0435\u043d\u0438\u0435".encode(), 0, 0, 0)
assert process.resident_bytes() > 0
"""
    subprocess.run([sys.executable, "-c", command], check=True)


@pytest.mark.starts
def test_a_child_reads_its_own() -> None:
    block = bytearray(256 * MIB)
    block[::4096] = b"x" * len(block[::4096])
    held = process.resident_bytes()
    child = os.fork()
    if child == 0:
        del block
        os._exit(process.resident_bytes() > held - 128 * MIB)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def layout(root: Path, cgroup: str, mounts: list[str], limits: dict[str, str], memory_kib: int = 16 * MIB) -> Path:
    proc = root / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal:       {memory_kib} kB\nMemFree:  1 kB\n")
    (proc / "self/status").write_text("VmRSS: 1024 kB\nRssFile: 512 kB\n")
    (proc / "self/cgroup").write_text(cgroup)
    (proc / "self/mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    for name, text in limits.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return proc


def test_without_a_cgroup_limit_the_machine_is_the_limit(tmp_path: Path) -> None:
    mount = f"30 1 0:26 / {tmp_path}/cg rw - cgroup2 cgroup rw"
    proc = layout(tmp_path, "0::/job\n", [mount], {"cg/job/memory.max": "max\n"})
    assert process.memory_limit(proc) == process.MemoryLimit(16 * GIB, "this machine")


@pytest.mark.parametrize("limited", ["cg/memory.max", "cg/a/memory.max", "cg/a/b/memory.max", "cg/a/memory.high"])
def test_the_lowest_limit_of_all_groups_above_counts(tmp_path: Path, limited: str) -> None:
    mount = f"30 1 0:26 / {tmp_path}/cg rw,nosuid shared:4 - cgroup2 cgroup rw"
    limits = {"cg/a/b/memory.max": f"{9 * GIB}\n", limited: f"{6 * GIB}\n"}
    proc = layout(tmp_path, "0::/a/b\n", [mount], limits)
    assert process.memory_limit(proc) == process.MemoryLimit(6 * GIB, "this container")


def test_a_v1_memory_controller_is_read_and_its_unlimited_is_none(tmp_path: Path) -> None:
    mounts = [
        f"31 1 0:27 / {tmp_path}/cpu rw - cgroup cgroup rw,cpu",
        f"32 1 0:28 / {tmp_path}/memory rw - cgroup cgroup rw,memory",
        f"33 1 0:29 / {tmp_path}/unified rw - cgroup2 cgroup2 rw",
    ]
    limits = {
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/job/memory.limit_in_bytes": f"{3 * GIB}\n",
        "cpu/job/memory.limit_in_bytes": "1\n",
    }
    proc = layout(tmp_path, "8:cpu:/job\n4:memory:/job\n0::/\n", mounts, limits)
    assert process.memory_limit(proc) == process.MemoryLimit(3 * GIB, "this container")


def test_a_mount_that_shows_only_the_containers_own_group_is_understood(tmp_path: Path) -> None:
    mount = f"30 1 0:26 /docker/abc {tmp_path}/cg ro - cgroup2 cgroup rw"
    proc = layout(tmp_path, "0::/docker/abc\n", [mount], {"cg/memory.max": f"{2 * GIB}\n"})
    assert process.memory_limit(proc).nbytes == 2 * GIB


def test_a_group_outside_the_namespace_leads_nowhere_else(tmp_path: Path) -> None:
    mount = f"30 1 0:26 / {tmp_path}/cg rw - cgroup2 cgroup rw"
    limits = {"cg/memory.max": f"{4 * GIB}\n", "other/memory.max": "1\n"}
    proc = layout(tmp_path, "0::/../other\n", [mount], limits)
    assert process.memory_limit(proc).nbytes == 4 * GIB


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3, 5 and 8 GiB, each with 1 GiB free and as much of files, and another that has CPUs alone."""
    monkeypatch.setattr(process, "_NODES", tmp_path / "nodes")
    for number, gib in zip((0, 1, 3), (3, 5, 8), strict=True):
        fields = {"MemTotal": gib, "MemFree": 1, "Active(file)": 0.5, "Inactive(file)": 0.5}
        (tmp_path / f"nodes/node{number}").mkdir(parents=True)
        (tmp_path / f"nodes/node{number}/meminfo").write_text(
            "".join(f"Node {number} {name}: {int(held * MIB)} kB\n" for name, held in fields.items())
        )
    (tmp_path / "nodes/has_memory").write_text("0-1,3\n")


@pytest.mark.parametrize(("allowed", "gib"), [("0", 3), ("0-1", 8), ("1,3", 13), ("0-1,3", 16), ("", 16)])
def test_nodes_to_which_a_cpuset_binds_memory_are_the_limit(
    allowed: str, gib: int, tmp_path: Path, nodes: None
) -> None:
    proc = layout(tmp_path, "", [], {})
    if allowed:
        with (proc / "self/status").open("a") as status:
            status.write(f"Mems_allowed:\t1\nMems_allowed_list:\t{allowed}\n")
    assert process.memory_limit(proc).nbytes == gib * GIB


def test_of_bound_nodes_free_pages_and_those_of_files_are_free(tmp_path: Path, nodes: None) -> None:
    proc = layout(tmp_path, "", [], {})
    (proc / "meminfo").write_text(f"MemAvailable: {7 * MIB} kB\n")
    assert free_memory(proc).nbytes == 7 * GIB + 512 * KIB
    (proc / "self/status").write_text("VmRSS: 1024 kB\nRssFile: 512 kB\nMems_allowed_list:\t1\n")
    found = [free_memory(proc, ranks) for ranks in (1, 2)]
    assert found == [process.MemoryLimit(gib * GIB + 512 * KIB, "this set of NUMA nodes") for gib in (2, 1)]


def test_the_policy_of_numactl_binds_as_well(nodes: None) -> None:
    def bound() -> list[process.MemoryLimit]:
        """In a thread of its own, since the policy is the thread's."""
        mask = (ctypes.c_ulong * 16)(1)
        if ctypes.CDLL(None).syscall(238, 2, mask, 1025):  # set_mempolicy(MPOL_BIND)
            pytest.skip("this process may not set a policy")
        return process.of_bound_nodes("MemTotal")

    assert at_once(bound, 1) == [[process.MemoryLimit(3 * GIB, "this set of NUMA nodes")]]
    assert process._nodes_of_policy() == set(range(1024))


@pytest.mark.parametrize(("swap_max", "swaps"), [("0", False), ("max", True), ("4096", True), (None, True)])
def test_a_group_may_forbid_what_the_machine_allows(tmp_path: Path, swap_max: str | None, swaps: bool) -> None:
    mount = f"30 1 0:26 / {tmp_path}/cg rw - cgroup2 cgroup rw"
    files = {"cg/a/b/memory.swap.max": "max\n"} | ({"cg/a/memory.swap.max": swap_max} if swap_max else {})
    proc = layout(tmp_path, "0::/a/b\n", [mount], files)
    (proc / "meminfo").write_text("SwapTotal: 1048576 kB\n")
    assert process.may_swap(proc) is swaps
    (proc / "meminfo").write_text("SwapTotal: 0 kB\n")
    assert not process.may_swap(proc)


def test_the_real_files_are_understood() -> None:
    assert process.memory_limit().nbytes > 64 * MIB


@pytest.mark.starts
def test_processes_that_run_are_found_with_those_that_they_started() -> None:
    """A child, and its own child, which holds 64 MiB and has computed."""
    inner = 'x = b"x" * (1 << 26); print(sum(range(10**7)), flush=True); input()'
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    before_s = process.worked_by_descendants_s()
    with subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = [int(folder.name) for folder in process.descendants()]
        assert child.pid in found
        assert len(found) >= 2
        assert process.peak_of_descendants_bytes() >= 64 * MIB
        assert process.worked_by_descendants_s() > before_s
        child.communicate(b"\n")
    assert child.pid not in [int(folder.name) for folder in process.descendants()]
