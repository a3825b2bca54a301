"""What a script does to standard error, or chooses for its processes, changes what is shown and not how it trains."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command import EBBTIDE, environment, run

TRAINS = """
net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(5):
    optimizer.zero_grad()
    net(torch.ones(64, 256)).square().mean().backward()
    optimizer.step()
print("trained", sum(p.double().sum().item() for p in net.parameters()))
"""
TEE = """
class Tee:
    def write(self, text): open("told", "a").write(text)
    def flush(self): pass
sys.stderr = Tee()
"""
DONE_TO_STANDARD_ERROR = {
    "closed": "sys.stderr.close()",
    "its descriptor closed": "import os; os.close(2)",
    "none": "sys.stderr = None",
    "no isatty": TEE,
    "nobody reads it": "import os; r, w = os.pipe(); os.dup2(w, 2); os.close(r); os.close(w)",
}


def trained(prologue: str, folder: Path, command: list[str]) -> str:
    """What the script printed, and that Ebbtide bounded it and said so in its report."""
    script, report = folder / "train.py", folder / "report.json"
    script.write_text(f"import sys, torch\ntorch.manual_seed(1)\n{prologue}\n{TRAINS}")
    options = ["run", "--fast", "40%", "--report", str(report)] if command == [EBBTIDE] else []
    done = run(*command, *options, str(script), cwd=folder, status=0)
    assert not options or '"bounded_as_asked": true' in report.read_text()
    return done.stdout


@pytest.mark.alike
@pytest.mark.parametrize("prologue", DONE_TO_STANDARD_ERROR.values(), ids=DONE_TO_STANDARD_ERROR.keys())
def test_what_a_script_does_to_standard_error_does_not_end_its_training(prologue: str, tmp_path: Path) -> None:
    plain = trained(prologue, tmp_path, [sys.executable])
    assert plain.startswith("trained")
    assert trained(prologue, tmp_path, [EBBTIDE]) == plain


@pytest.mark.parametrize("words", ["del sys.argv", "sys.argv = []"])
def test_a_script_that_clears_its_arguments_trains_by_a_plan(words: str, tmp_path: Path) -> None:
    trained(words, tmp_path, [EBBTIDE])
    assert json.loads((tmp_path / "report.json").read_text())["plan"]


def test_a_script_chooses_how_its_processes_start(tmp_path: Path) -> None:
    """In a fresh process: whoever starts from a server that has imported everything finds a choice made."""
    script = tmp_path / "train.py"
    script.write_text(f"import sys, torch, tqdm, multiprocessing\n{TRAINS}\nmultiprocessing.set_start_method('spawn')")
    command = [EBBTIDE, "run", "--fast", "40%", str(script)]
    done = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ebbtide: " in done.stderr


def test_an_error_has_a_line_of_its_own_behind_an_unfinished_bar(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch, tqdm\nbar = tqdm.tqdm(total=9)\nbar.update(1)\nbar.refresh()\n" + TRAINS)
    done = run(EBBTIDE, "run", "--fast", "2%", str(script), cwd=tmp_path, status=3)
    assert "1/9" in done.stderr
    lines = re.split(r"[\r\n]", done.stderr)
    assert [line for line in lines if line.startswith("ebbtide: error: ")]
    assert not [line for line in lines if "ebbtide: " in line and not line.startswith(("ebbtide: ", "  "))]
