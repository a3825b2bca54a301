"""The doctor on accelerators that a test makes up."""

from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.doctor.accelerator import accelerator, allocator, device_memory, pinned_memory, unseen_accesses
from ebbtide.doctor.examine import examine
from ebbtide.doctor.finding import Level
from ebbtide.doctor.text import runs
from ebbtide.doctor.view import DeviceFacts, View
from ebbtide.units import GIB, MIB
from tests.doctor.test_doctor import TORCH, Machine

H100 = DeviceFacts("cuda:0", "NVIDIA H100 80GB HBM3", 78 * GIB, 80 * GIB)
LARGE = {"proc/meminfo": f"MemTotal: {256 * MIB} kB\nMemAvailable: {200 * MIB} kB\n"}


@pytest.fixture
def view(tmp_path: Path) -> View:
    return Machine(tmp_path / "machine").view(LARGE)


def test_a_well_device_has_nothing_to_cure(view: View) -> None:
    findings = accelerator(view, H100, "2.13.0", is_named=True)
    assert [finding.name for finding in findings] == ["device", "pinned memory", "allocator", "unseen accesses"]
    assert all(finding.level is Level.OK for finding in findings)
    assert "NVIDIA H100 80GB HBM3; 78.0 GiB of 80.0 GiB are free" in findings[0].found
    assert "at most about 100 GiB" in findings[1].found
    assert "expandable_segments:True" in findings[2].found


def test_a_device_without_events_is_a_problem_for_who_named_it(view: View) -> None:
    lacking = replace(H100, error="no pinned memory")
    (named,) = accelerator(view, lacking, "2.13.0", is_named=True)
    (found,) = accelerator(view, lacking, "2.13.0", is_named=False)
    assert (named.level, found.level) == (Level.PROBLEM, Level.HINT)
    assert "no pinned memory" in named.found
    assert not runs([named])
    assert runs([found])


def test_what_others_hold_and_a_slice_are_told() -> None:
    assert device_memory(replace(H100, free_bytes=40 * GIB)).level is Level.OK
    taken = device_memory(replace(H100, free_bytes=40 * GIB - 1))
    assert (taken.level, "nvidia-smi" in taken.cure) == (Level.HINT, True)
    sliced = device_memory(replace(H100, model="NVIDIA H100 80GB HBM3 MIG 1g.10gb"))
    assert (sliced.level, "slice of a GPU (MIG)" in sliced.found) == (Level.OK, True)


def test_less_host_memory_than_the_device_has_is_a_hint(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    for free_mib, level in ((160 * 1024, Level.OK), (160 * 1024 - 1, Level.HINT)):
        files = {"proc/meminfo": f"MemTotal: {256 * MIB} kB\nMemAvailable: {free_mib * 1024} kB\n"}
        finding = pinned_memory(machine.view(files), H100)
        assert finding.level is level
    assert "--host" in finding.cure
    under_windows = machine.view(LARGE | {"proc/version": "Linux version 5.15 (Microsoft@Microsoft.com)\n"})
    assert "WSL" in pinned_memory(under_windows, H100).found


def test_the_allocators_settings_are_told(view: View) -> None:
    named = replace(view, environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    assert allocator(named).found == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    uncached = allocator(replace(view, environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}))
    assert (uncached.level, "unset" in uncached.cure) == (Level.HINT, True)


def test_an_old_torch_is_a_hint() -> None:
    assert [unseen_accesses(version).level for version in ("2.12.1+cu130", "2.13.0", "2.15.0a0")] == [
        *(Level.HINT, Level.OK, Level.OK)
    ]


def test_only_a_device_that_is_there_is_examined(view: View) -> None:
    asked: list[str | None] = []

    def here(name: str | None) -> DeviceFacts | None:
        asked.append(name)
        return H100

    names = {finding.name for finding in examine(replace(view, load_device=here), ["/var/tmp"])}
    assert {"device", "pinned memory"} < names
    assert "device" not in {finding.name for finding in examine(view, ["/var/tmp"])}
    examine(replace(view, load_device=here), ["/var/tmp"], "cuda:1")
    broken = replace(view, load_device=here, load_torch=lambda: replace(TORCH, error="no torch"))
    assert "device" not in {finding.name for finding in examine(broken, ["/var/tmp"])}
    assert asked == [None, "cuda:1"]
