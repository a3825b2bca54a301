"""Which line of a program made a storage: forward and backward, in its own files, and within those of others."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from ebbtide.ir.files import load
from ebbtide.ir.trace import Phase, StorageKind, Trace
from tests.helpers.command import EBBTIDE, environment, run

SCRIPT = """
from contextlib import nullcontext
import torch
from torch.utils.checkpoint import checkpoint
from net.model import Block, Cube
from installed import doubled, grown

torch.manual_seed(0)
block = Block()
optimizer = torch.optim.SGD(block.parameters(), lr=0.1, momentum=0.9, foreach=False)
for _ in range(STEPS):
    optimizer.zero_grad()
    rows = torch.ones(100, 200)  # made here
    hidden = block(rows)
    hidden = doubled(hidden)  # a library's
    hidden = checkpoint(grown, hidden, use_reentrant=False, preserve_rng_state=False)  # a library's, made twice
    hidden = checkpoint(torch.exp, hidden, use_reentrant=False)  # torch's own
    with nullcontext():
        (Cube.apply(hidden)[:, 7:]  # a view's
            ).sum().backward()
    optimizer.step()  # the optimizer's
"""
MODEL = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(200, 300)

    def forward(self, x):
        x = self.layer(x)  # the layer's
        return torch.nn.functional.gelu(x)  # gelu's

class Cube(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return x**3  # cubed

    @staticmethod
    def backward(context, gradient):
        (x,) = context.saved_tensors
        return 3 * x**2 * gradient  # and back
"""
INSTALLED = """
def doubled(x):
    return x * 2

def grown(x):
    return x.sin()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    (tmp_path / "lib/site-packages").mkdir(parents=True)
    (tmp_path / "train.py").write_text(SCRIPT.replace("STEPS", "4"))
    (tmp_path / "net/model.py").write_text(MODEL)
    (tmp_path / "lib/site-packages/installed.py").write_text(INSTALLED)
    return tmp_path


def installed(folder: Path) -> dict[str, str]:
    paths = (str(folder / "lib/site-packages"), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def traced(folder: Path, *options: str, env: dict[str, str] | None = None, command: str = "trace") -> Trace:
    out = folder / "step.trace"
    name = ["-o", str(out)] if command == "trace" else ["--save-trace", str(out)]
    finished = run(EBBTIDE, command, *options, *name, "train.py", cwd=folder, env=installed(folder) | dict(env or {}))
    assert finished.returncode == 0, finished.stderr
    return load(out, Trace)


def place(comment: str, function: str = "") -> str:
    """The line of the program that has this comment."""
    for file, text in (("train.py", SCRIPT), ("net/model.py", MODEL)):
        for number, line in enumerate(text.splitlines(), 1):
            if line.endswith(f"# {comment}"):
                return f"{file}:{number} {function}".strip()
    raise AssertionError(comment)


LAYER, GELU = place("the layer's", "Block.forward"), place("gelu's", "Block.forward")
CUBED, BACK = place("cubed", "Cube.forward"), place("and back", "Cube.backward")
DOUBLED = "installed.py:3 doubled from " + place("a library's")
GROWN = "installed.py:6 grown from " + place("a library's, made twice")
EXP, VIEW = place("torch's own"), place("a view's")


def lines(trace: Trace, least: int = 2000) -> dict[Phase, set[str]]:
    """Of what is born in the step, by phase; small storages, such as a gelu's constants, left out."""
    found = defaultdict(set)
    for storage in trace.storages:
        if not storage.persistent and storage.nbytes >= least and storage.allocation is not None:
            found[trace.ticks[storage.birth].phase].add(storage.line)
    return found


@pytest.mark.parametrize("how", [[], ["--fake"]], ids=["cpu", "fake"])
def test_each_storage_of_a_step_has_the_line_that_made_it(program: Path, how: list[str]) -> None:
    trace = traced(program, "--lines", *how)
    found = lines(trace)
    assert found[Phase.FORWARD] - {place("made here")} == {LAYER, GELU, DOUBLED, GROWN, EXP, CUBED}
    assert found[Phase.BACKWARD] >= {LAYER, GELU, DOUBLED, GROWN, EXP, BACK, VIEW}
    assert found[Phase.BACKWARD] <= {LAYER, GELU, DOUBLED, GROWN, EXP, BACK, VIEW, VIEW_BACKWARD}
    gradients = [storage for storage in trace.storages if storage.kind is StorageKind.GRADIENT]
    assert {storage.line for storage in gradients if storage.nbytes == 4 * 200 * 300} == {LAYER}
    rows = [storage.line for storage in trace.storages if storage.nbytes == 4 * 100 * 200 and not storage.persistent]
    assert place("made here") in rows
    assert {storage.line for storage in trace.storages if storage.persistent} == {""}


VIEW_BACKWARD = f"train.py:{int(VIEW.split(':')[1]) + 1}"


def test_the_optimizers_scratch_is_made_where_it_steps(program: Path) -> None:
    script = program / "train.py"
    script.write_text(script.read_text().replace("SGD", "Adam").replace(", momentum=0.9", ""))
    assert lines(traced(program, "--lines"))[Phase.OPTIMIZER] == {place("the optimizer's")}


def test_no_line_is_noted_unless_asked_for(program: Path) -> None:
    silent = traced(program)
    assert {storage.line for storage in silent.storages} == {""}
    asked = traced(program, env={"EBBTIDE_LINES": "1"})
    assert GELU in {storage.line for storage in asked.storages}
    assert asked.signature() == silent.signature()


PIECES = """
import torch
layer = torch.nn.Linear(100, 100)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    table = torch.empty(3, 1 << 20)  # made as a whole
    table[0] = 1
    layer(table[:2, :100]).sum().backward()
    table[1] = 2
    optimizer.step()
"""


@pytest.mark.parametrize("how", [["trace"], ["run", "--fast", "90%"]], ids=["trace", "run"])
def test_each_piece_has_the_line_that_made_its_storage_and_names_the_first_piece(how: list[str], program: Path) -> None:
    (program / "train.py").write_text(PIECES)
    env = {"EBBTIDE_LINES": "1", "EBBTIDE_PIECE": "2MiB"}
    trace = traced(program, *how[1:], env=env, command=how[0])
    pieces = [storage for storage in trace.storages if storage.nbytes == 2 << 20 and storage.allocation is not None]
    assert {storage.line for storage in pieces} == {"train.py:7"}
    assert len(pieces) == 4  # of six, of which nobody touches the last two
    assert len({storage.birth for storage in pieces}) > 1
    first = next(at for at, storage in enumerate(trace.storages) if storage in pieces)
    assert {storage.piece_of for storage in pieces} == {first}
    assert {storage.piece_of for storage in trace.storages if storage.nbytes != 2 << 20} <= {None}


IN_PYTHON = """
import ebbtide, torch
with ebbtide.record("step.trace", first=1, lines=True) as recorder:
    with recorder.step():
        kept = torch.ones(1000)
"""


def test_a_program_without_a_file_has_lines_too(tmp_path: Path) -> None:
    run(sys.executable, "-c", IN_PYTHON, cwd=tmp_path, status=0)
    trace = load(tmp_path / "step.trace", Trace)
    assert {storage.line for storage in trace.storages if storage.nbytes == 4000} == {"<string>:5"}


def test_a_run_saves_its_trace_with_lines(program: Path) -> None:
    script = program / "train.py"
    script.write_text(script.read_text().replace("range(4)", "range(8)"))
    env = {"EBBTIDE_LINES": "1", "EBBTIDE_MIN_STORAGE": "4KiB"}
    trace = traced(program, "--fast", "90%", env=env, command="run")
    assert trace.name.startswith("train.py, step ")
    found = lines(trace)
    assert {LAYER, GELU, DOUBLED, GROWN, EXP, CUBED} <= found[Phase.FORWARD]
    assert {LAYER, GELU, BACK} <= found[Phase.BACKWARD]


def test_a_file_outside_is_named_without_the_home_directory(program: Path) -> None:
    elsewhere = program / "elsewhere"
    elsewhere.mkdir()
    out = elsewhere / "step.trace"
    script = str(program / "train.py")
    env = installed(program) | {"HOME": str(program.parent)}
    run(EBBTIDE, "trace", "--lines", "-o", str(out), script, cwd=elsewhere, env=env, status=0)
    found = set().union(*lines(load(out, Trace)).values())
    assert f"~/{program.name}/{GELU}" in found
    assert DOUBLED.replace("from ", f"from ~/{program.name}/") in found
    assert str(program.parent) not in out.read_bytes().decode(errors="replace")


def test_where_only_libraries_run_the_innermost_of_them_is_named(program: Path) -> None:
    """In a fresh process: a server's program would be among the callers."""
    package = program / "lib/site-packages"
    (package / "trainer.py").write_text(SCRIPT.replace("STEPS", "4"))
    env = installed(program)
    env["PYTHONPATH"] += os.pathsep + str(program)
    out = package.parent / "trainer.trace"  # where no other name is given
    command = [EBBTIDE, "trace", "--lines", "-m", "trainer"]
    subprocess.run(command, cwd=package.parent, env=environment(env), check=True)
    found = set().union(*lines(load(out, Trace)).values())
    assert "installed.py:3 doubled" in found
    assert place("made here").replace("train.py", "trainer.py") in found
