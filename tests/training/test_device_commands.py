"""Commands on the tests' device, as a person calls them."""

import json
from pathlib import Path

import pytest

from ebbtide.verify.record import FILE_NAME, read_record
from tests.device import lagging
from tests.helpers.command import EBBTIDE, run

SCRIPT = """
import argparse, sys, torch
parser = argparse.ArgumentParser()
parser.add_argument("--twist", action="store_true")
args = parser.parse_args()
torch.manual_seed(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)]).to("lagging")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(1, 7):
    optimizer.zero_grad()
    model(torch.randn(128, 64).to("lagging")).square().mean().backward()
    optimizer.step()
    if args.twist and step == 4 and "ebbtide._torch" in sys.modules:
        with torch.no_grad():  # between two steps, so the next one is the first to show it
            model[4].bias[7] += 1e-6
"""


@pytest.fixture
def device(tmp_path: Path) -> dict[str, str]:
    """The variables of a process that finds the device."""
    lagging.build()
    (tmp_path / "packages").mkdir()
    return lagging.installed(tmp_path / "packages") | {"EBBTIDE_MIN_STORAGE": "4096"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    return project


def test_a_bounded_run_is_compared_with_plain_ones_on_the_device(
    project: Path, device: dict[str, str], tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    options = ["--device", "lagging", "--host", "256MiB", "--fast", "50%", "--json", "--keep", str(kept)]
    done = run(EBBTIDE, "verify", *options, "train.py", cwd=project, env=device)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["proven"]
    assert (verdict["device"], verdict["steps"], verdict["losses"]) == ("lagging:0", 6, 6)
    assert verdict["plain_device_bytes"] > verdict["arena_budget_bytes"] >= verdict["arena_peak_bytes"]
    for kind, moved in verdict["moved"].items():
        assert moved["evicted_bytes"] > 0, kind
    bounded = read_record(kept / "bounded" / FILE_NAME)
    assert "random generator of lagging:0" in bounded.states[6].digests
    assert float(bounded.losses[0].value) > 0


def test_one_wrong_bit_on_the_device_is_found(project: Path, device: dict[str, str]) -> None:
    options = ["--device", "lagging", "--host", "256MiB", "--fast", "50%"]
    done = run(EBBTIDE, "verify", *options, "train.py", "--twist", cwd=project, env=device)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NOT VERIFIED: train.py --twist, --device lagging:0 --fast 50%" in done.stdout
    assert "it begins so: in step 5, loss: " in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--spill", "/tmp"], "--spill does not go with --device yet"),
        (["--optimizer", "deferred"], "--optimizer does not go with --device yet"),
        (["--device", "cuda:7"], "PyTorch has no device cuda:7 here"),
    ],
)
def test_what_does_not_go_with_a_device_is_refused_before_the_plain_runs(
    options: list[str], said: str, project: Path
) -> None:
    done = run(EBBTIDE, "verify", "--device", "cuda", *options, "train.py", cwd=project)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
