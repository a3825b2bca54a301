"""Training whose tensors have a GPU's memory, over a fake driver: the same bits, and bytes move through all tiers.

The fake's memory is this machine's, each operator of the CPU is a kernel there, and one that touches what it did not
name ends the process. So does oneDNN's LSTM, which keeps an address from its forward pass: it is left out.
"""

import json
import sys
from pathlib import Path

import pytest
import torch

from ebbtide import _torch
from ebbtide.host.gpu import Gpu
from ebbtide.ir.files import load
from ebbtide.ir.occupancy import live_bytes
from ebbtide.ir.trace import Trace
from ebbtide.planners import PLANNERS
from ebbtide.runtime import cuda_front
from ebbtide.runtime.adopt import on_gpu_before
from ebbtide.runtime.watching import watching
from ebbtide.settings import Settings
from ebbtide.simulator import POLICIES
from tests.helpers import child, fake_gpu
from tests.helpers.command import EBBTIDE, TRAIN_MLP, run
from tests.helpers.paths import ROOT
from tests.training.cases_gpu import LARGEST, OVER_LISTS
from tests.training.same_bits import CASES

SMALLEST = {"EBBTIDE_MIN_STORAGE": "8192"}
GPT = "gpt2-adamw-fused"
NAMED = sorted(CASES.keys() - {"lstm-sgd-momentum"})
MOVING = {"10cache", "autotm-async", "autotm-sync", "ebbtide", "g10", "tiertrain"}
"""Planners whose plans move what does not fit."""

pytestmark = [
    pytest.mark.starts,
    pytest.mark.skipif(not fake_gpu.LIBRARY.exists(), reason=f"needs {fake_gpu.LIBRARY.name}: make {fake_gpu.LIBRARY}"),
]


@pytest.mark.parametrize("name", NAMED)
def test_a_case_ends_with_the_same_bits_from_host_memory_and_the_file(name: str) -> None:
    env = SMALLEST | fake_gpu.variables(host="2MiB")
    verdict, read = child.run("cases_tiers:compare", name, "60%", "ebbtide", env=env)
    assert verdict.differences == ()
    assert "planned" in verdict.modes
    assert sum(verdict.evicted_bytes.values()) > 0
    assert len(read) == 2
    assert sum(read) > 0


@pytest.mark.parametrize("name", NAMED)
def test_a_case_gives_the_same_bits_under_chaos(name: str) -> None:
    chaos = {"EBBTIDE_CHAOS_RATE": "0.05", "EBBTIDE_CHAOS_SEED": "7"}
    env = SMALLEST | chaos | fake_gpu.variables(host="2MiB")
    verdict, read = child.run("cases_tiers:compare", name, "100%", "demand", env=env)
    assert verdict.differences == ()
    assert min(read) > 0  # host memory and the file


@pytest.mark.parametrize("policy", sorted({*PLANNERS, *POLICIES} - {"first-touch", "reactive"}))
def test_every_policy_runs_there(policy: str) -> None:
    env = SMALLEST | fake_gpu.variables(host="4MiB")
    verdict, read = child.run("cases_tiers:compare", GPT, "60%", policy, env=env)
    assert verdict.differences == ()
    assert sum(read) > 0
    assert verdict.modes[-1] == "planned" or policy not in MOVING


def test_a_run_on_a_gpu_is_told_as_one(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run(
        *(EBBTIDE, "run", "--fast", "50%", "--host", "64MiB", "--report", str(report), TRAIN_MLP),
        env=fake_gpu.variables(),
    )
    assert done.returncode == 0, done.stderr
    assert "fake device (GPU 0)" in done.stderr
    assert "gpu->host" in done.stderr + done.stdout
    assert "GPU peak" in done.stderr
    assert "process peak" not in done.stderr
    assert json.loads(report.read_text())["gpu"] == "fake device"
    tiers = json.loads(report.read_text())["tiers"]
    assert tiers[0]["name"] == "host"
    assert tiers[0]["capacity_bytes"] == 64 << 20
    assert tiers[0]["written_bytes"] > 0


def test_a_step_is_traced_there_and_told_of(tmp_path: Path) -> None:
    """The same storages and kinds as on the CPU: nothing moves, so a fake GPU's memory is not needed."""
    for name, env in (("gpu", fake_gpu.variables()), ("cpu", {})):
        trace = str(tmp_path / f"{name}.trace")
        done = run(EBBTIDE, "trace", "--device", "cuda" if env else "cpu", "-o", trace, TRAIN_MLP, env=env)
        assert done.returncode == 0, done.stderr
    gpu, cpu = (load(tmp_path / f"{name}.trace", Trace) for name in ("gpu", "cpu"))
    assert [storage.kind for storage in gpu.storages] == [storage.kind for storage in cpu.storages]
    assert live_bytes(gpu).max() == live_bytes(cpu).max()
    done = run(EBBTIDE, "analyze", str(tmp_path / "gpu.trace"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("run", "--host", "1GiB", "--device", "cpu"), "memory below a GPU, and this run is on the CPU"),
        (("run", "--host", "1GiB"), "is not built for CUDA"),
        (("run", "--device", "cuda"), "is not built for CUDA"),
        (("run", "--device", "gpu"), "accepted: cpu, cuda or cuda:NUMBER"),
        (("run", "--device", "cuda:x"), "accepted: cpu, cuda or cuda:NUMBER"),
        (("run", "--tier", "host:1GiB"), "--host SIZE"),
        (("trace", "--device", "cuda"), "is not built for CUDA"),
        (("trace", "--device", "gpu"), "accepted: cpu, cuda or cuda:NUMBER"),
        (("trace", "--device", "cpu", "--fake"), "with --fake, none are"),
    ],
)
def test_a_gpu_that_cannot_be_is_refused_in_a_sentence(command: tuple[str, ...], says: str) -> None:
    done = run(EBBTIDE, *command, TRAIN_MLP, env={"EBBTIDE_FAKE_CUDA": ""})
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"EBBTIDE_TIERS": "compressed:1MiB"}, "below a GPU lie --host and the spill directory, and no compressed"),
        ({"EBBTIDE_FAKE_CUDA": "/no/such/library.so"}, "--device cpu trains on the CPU"),
    ],
)
def test_what_does_not_go_with_a_gpu_is_refused_in_a_sentence(env: dict[str, str], says: str) -> None:
    done = run(EBBTIDE, "run", TRAIN_MLP, env=fake_gpu.variables() | env)
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_settings_of_a_gpu_are_read_from_variables() -> None:
    settings = Settings.from_environment({"EBBTIDE_DEVICE": "cuda:1", "EBBTIDE_HOST": "64GiB"})
    assert (settings.device, settings.host) == ("cuda:1", 64 << 30)


@pytest.mark.parametrize("are_unlike", [False, True], ids=["alike", "unlike"])
@pytest.mark.parametrize("name", OVER_LISTS)
def test_operators_over_lists_give_the_same_bits_in_groups(name: str, are_unlike: bool) -> None:
    env = fake_gpu.variables(host="64MiB")
    same, fetched, most = child.run("cases_gpu:over_lists", name, are_unlike, env=env)
    assert same
    assert fetched > 0
    assert (most > 4 * LARGEST) == are_unlike  # else one element of each list, and of the result


def test_what_python_touches_between_operators_is_brought() -> None:
    assert child.run("cases_gpu:touched_between_operators", env=fake_gpu.variables(host="64MiB"))


def test_an_operator_that_touches_what_it_did_not_name_ends_the_process_with_its_name() -> None:
    with pytest.raises(child.ChildError, match="ebbtide_tests::stray is under way, which did not name it"):
        child.run("cases_gpu:touched_by_an_operator_that_does_not_name_it", env=fake_gpu.variables(host="64MiB"))


def test_a_graph_that_inductor_compiled_is_one_operator_there() -> None:
    """Its kernels are called without PyTorch's dispatcher, and use inputs' memory again for what they make."""
    chaos = {"EBBTIDE_CHAOS_RATE": "0.05", "EBBTIDE_CHAOS_SEED": "3"}
    moved = child.run(
        "cases_mishaps:a_compiled_gpt_block", "inductor", "70%", env=fake_gpu.variables() | SMALLEST | chaos
    )
    assert moved["parameter"] > 0
    assert moved["activation"] > 0
    assert moved["arena peak"] <= 0.71 * moved["unbounded peak"]


def test_all_operators_touch_what_they_name() -> None:
    """Each of PyTorch's operators in fp32, with its operands away before it."""
    script = str(ROOT / "tests" / "training" / "operators.py")
    done = run(sys.executable, script, "--only=float32 strided", "--samples=1", env=fake_gpu.variables())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["cases"] >= 600
    assert found["same"] > 0.99 * found["calls"]
    assert found["fetched_bytes"] > 4096 * found["calls"]


def test_what_a_gpu_has_before_the_session_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda ordinal: 5 * ordinal)
    assert on_gpu_before(0) == []
    ((nbytes, why),) = on_gpu_before(1)
    assert nbytes == 5
    assert "begin the session before the model is made" in why


def test_a_gpu_is_watched_with_backward_passes_on_the_thread_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(cuda_front, "face", lambda ordinal: ("face", ordinal))
    monkeypatch.setattr(_torch, "watch_gpu", lambda **named: told.append(named))
    monkeypatch.setattr(torch.autograd, "set_multithreading_enabled", told.append)
    begin = watching(Gpu(1, "a GPU", 0, 0, 0), piece_bytes=4096)
    assert told == []
    begin()
    assert told == [{"cuda_face": ("face", 1), "ordinal": 1}, False]
