"""``--fast SIZE`` bounds the whole process: watched from outside, and under the kernel's own limit."""

import json
import re
import signal
import sys
from ast import literal_eval
from pathlib import Path

import pytest

from tests.helpers.command import EBBTIDE, TRAIN_MLP, watch
from tests.helpers.memory_cgroup import NotPermitted, memory_cgroup

# 7 layers of 2048 x 2048 floats: 16 MiB each, held four times over (weight, gradient, two moments) = 448 MiB of state;
# a batch of 64 rows makes half a MiB an activation, two a layer = 7 MiB; and Python with PyTorch some 220 MiB.
MODEL = ["--width", "2048", "--depth", "7", "--rows", "64", "--steps", "4"]
FAST_BYTES = 400 * 2**20
TOLERANCE = 1.02


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], int]:
    """The plain run's result and peak, which must be well above the bound or the tests below prove nothing."""
    result = tmp_path_factory.mktemp("plain") / "result.json"
    watched = watch([sys.executable, TRAIN_MLP, *MODEL, "--result", str(result)])
    assert watched.exit_code == 0, watched.output
    assert watched.peak_bytes > 1.5 * FAST_BYTES
    return json.loads(result.read_text()), watched.peak_bytes


def test_the_process_stays_within_its_bound_where_the_kernel_kills_plain_pytorch(
    plain: tuple[dict, int], tmp_path: Path
) -> None:
    result, out = tmp_path / "result.json", tmp_path / "report.json"
    script = [TRAIN_MLP, *MODEL, "--result", str(result)]
    ours = [EBBTIDE, "run", "--fast", str(FAST_BYTES), "--report", str(out), *script]
    limit_bytes = int(1.25 * FAST_BYTES)  # the kernel charges page tables, page cache and buffers too
    try:
        with memory_cgroup(limit_bytes) as cgroup:
            killed = watch(cgroup.wrap([sys.executable, *script]))
            assert killed.exit_code == -signal.SIGKILL
            assert cgroup.oom_kills() == 1
            watched = watch(cgroup.wrap(ours))
            assert cgroup.oom_kills() == 1
    except NotPermitted:
        watched = watch(ours)
    assert watched.exit_code == 0, watched.output
    assert watched.peak_bytes <= TOLERANCE * FAST_BYTES
    report = json.loads(out.read_text())
    assert report["fast_bytes"] == FAST_BYTES
    assert report["process_peak_bytes"] <= watched.peak_bytes
    assert not report["budget_violated"]
    assert json.loads(result.read_text()) == plain[0]


READS_A_FILE = """
import sys, numpy as np, torch

torch.manual_seed(0)
data = np.memmap(sys.argv[1], dtype=np.uint8, mode="r").reshape(-1, 4096)
net = torch.nn.Sequential(torch.nn.Linear(4096, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4096))
optimizer = torch.optim.AdamW(net.parameters())
for rows in np.array_split(np.arange(len(data)), 12):
    optimizer.zero_grad()
    net(torch.from_numpy(data[rows].mean(axis=0, dtype=np.float32))).square().mean().backward()
    optimizer.step()
resident = [line.split() for line in open("/proc/self/status") if line.startswith("Rss")]
print({name: int(kib) << 10 for name, kib, _ in resident})
"""


def test_pages_of_a_file_that_the_script_maps_do_not_count(tmp_path: Path) -> None:
    """A data set larger than the budget, which stays mapped: the kernel takes its pages back when memory is short."""
    script, data, out = tmp_path / "train.py", tmp_path / "data", tmp_path / "report.json"
    script.write_text(READS_A_FILE)
    with data.open("wb") as file:
        file.truncate(FAST_BYTES)
    options = ["--fast", str(FAST_BYTES), "--report", str(out)]
    watched = watch([EBBTIDE, "run", *options, str(script), str(data)])
    assert watched.exit_code == 0, watched.output
    resident = literal_eval(re.search(r"^\{.*\}$", watched.output, re.MULTILINE)[0])
    assert resident["RssFile:"] > FAST_BYTES
    assert resident["RssAnon:"] < json.loads(out.read_text())["process_peak_bytes"] <= TOLERANCE * FAST_BYTES


def test_a_percentage_hides_no_peak_of_the_steps_before_it(plain: tuple[dict, int], tmp_path: Path) -> None:
    """Two steps take what plain PyTorch takes. Whoever watches the process sees them, and the report says both."""
    out = tmp_path / "report.json"
    watched = watch([EBBTIDE, "run", "--fast", "30%", "--policy", "demand", "--report", str(out), TRAIN_MLP, *MODEL])
    assert watched.exit_code == 0, watched.output
    report = json.loads(out.read_text())
    assert watched.peak_bytes > 0.9 * plain[1]
    assert report["process_peak_before_bytes"] == pytest.approx(watched.peak_bytes, rel=0.01)
    assert report["process_peak_bytes"] < 0.8 * report["process_peak_before_bytes"]
    assert "before the budget was in force" in watched.output
