"""The probe for GPUs (bench/gpu) over its fake driver: the phases run, bytes keep, and mistakes are loud.

No GPU is here and no figure is looked at.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.paths import ROOT

pytestmark = pytest.mark.starts

GPU = ROOT / "bench" / "gpu"


def probe_run() -> ModuleType:
    """bench/gpu/run.py by its path: its folder is not to shadow other modules."""
    spec = importlib.util.spec_from_file_location("gpu_probe_run", GPU / "run.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CAN_BUILD = shutil.which("g++") is not None and any((f / "cuda.h").exists() for f in probe_run().include_folders())
needs_cuda_headers = pytest.mark.skipif(not CAN_BUILD, reason="needs g++ and cuda.h: pip install nvidia-cuda-runtime")

PHASES = ["attributes", "costs", "homes", "reflow", "tickets", "host_net", "round_trip", "crash:store_read_only"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    command = [sys.executable, str(GPU / "run.py"), "--fake", "--out", str(folder), "--only", *PHASES]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return folder


def lines(folder: Path, phase: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / f"{phase}.jsonl").read_text().splitlines()]


@needs_cuda_headers
def test_every_phase_prints_lines_over_the_fake_driver(results: Path) -> None:
    for phase in PHASES:
        assert lines(results, phase.replace(":", ".")), phase


@needs_cuda_headers
def test_bytes_keep_while_handles_come_and_go(results: Path) -> None:
    trips = lines(results, "round_trip")
    assert any(trip["moving"] for trip in trips)
    for trip in trips:
        assert trip["wrong_words"] == 0
        assert not trip["moving"] or float(str(trip["gb_s_in"])) > 0
    homes = lines(results, "homes")[0]
    assert (homes["wrong_words_out"], homes["wrong_words_in"]) == (0, 0)


@needs_cuda_headers
def test_a_store_to_a_read_only_mapping_loses_the_context(results: Path) -> None:
    (crash,) = lines(results, "crash.store_read_only")
    assert crash["synchronize"] == crash["then_launch"] == "CUDA_ERROR_ILLEGAL_ADDRESS"


@needs_cuda_headers
def test_the_fake_driver_ends_the_process_at_an_unmap_under_queued_work(results: Path) -> None:
    build = results / "build"
    command = [str(build / "probe"), "crash:unmap_under_reader", "--library", str(build / "libfake_cuda.so"), "--small"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode != 0
    assert "under work that is still queued" in answer.stderr


@needs_cuda_headers
def test_no_page_is_made_of_figures_that_mean_nothing(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = [sys.executable, str(GPU / "summarise.py"), str(results), "-o", str(page)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "mean nothing" in refused.stderr
    assert not page.exists()
    subprocess.run([*command, "--fake-too"], check=True)
    assert "FAKE" in page.read_text().splitlines()[0]
