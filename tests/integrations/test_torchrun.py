"""Ranks that torchrun starts: their budgets, how they end together, and what they show."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.command import EBBTIDE, run
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.starts

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python")
DDP = str(ROOT / "examples" / "integrations" / "ddp.py")
FIT_FOR_A_TEST = {"OMP_NUM_THREADS": "1", "EBBTIDE_POLICY": "demand"}

STAYS = """\
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
here = pathlib.Path(os.environ["STAYS"])
(here / f"stays{os.environ['RANK']}").touch()
patience = time.monotonic() + 30
while len(list(here.glob("stays?"))) < 2 and time.monotonic() < patience:
    time.sleep(0.02)
sys.exit(int(sys.argv[2]))
"""
"""What stays of a rank, in place of the true one: until the other rank has ended, too, and not for seconds."""

EACH_ITS_OWN = """\
#!{python}
import os, sys
from ebbtide.cli import main
from ebbtide.session import ending

ending._STAY = {stay!r} or ending._STAY
os.environ["STAYS"] = {folder!r}
os.environ["EBBTIDE_FAST"] = {budgets}[int(os.environ["RANK"])]
sys.argv[:] = sys.argv[1:]
sys.exit(main())
"""


def each_its_own(tmp_path: Path, budgets: tuple[str, str], stay: str = STAYS) -> str:
    """A program that runs the command that follows, which is ebbtide, with a budget for each rank."""
    program = tmp_path / "rank.py"
    words = {"python": sys.executable, "budgets": budgets, "stay": stay, "folder": str(tmp_path)}
    program.write_text(EACH_ITS_OWN.format(**words))
    program.chmod(0o755)
    return str(program)


def start(*command: str) -> subprocess.CompletedProcess[str]:
    return run(*TORCHRUN, *command, env=FIT_FOR_A_TEST)


def ddp(tmp_path: Path, *arguments: str) -> tuple[str, ...]:
    return (DDP, "--width", "256", "--out", str(tmp_path / "out"), *arguments)


def statuses(done: subprocess.CompletedProcess[str]) -> set[str]:
    """Of all ranks, as torchrun lists them."""
    return set(re.findall(r"exitcode  : (-?\d+)", done.stderr))


def said_by_both(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence that both ranks end with, and with status 3."""
    first, second = re.findall(r"^ebbtide: error: (.*)$", done.stderr, re.MULTILINE)
    assert first == second
    # Where a rank ends just before torchrun sends it a signal, torchrun fails in this line and lists no status.
    assert statuses(done) == {"3"} or "os.killpg(self.proc.pid, death_sig)\nProcessLookupError" in done.stderr
    return str(first)


def test_the_budget_of_a_node_is_shared_and_one_summary_shows_all_ranks(tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    done = start(EBBTIDE, "run", "--fast-node", "1GiB", "--report", str(report), *ddp(tmp_path, "--steps", "3"))
    assert done.returncode == 0, done.stderr
    reports = [json.loads((tmp_path / f"out.{rank}.json").read_text()) for rank in range(2)]
    assert [each["fast_bytes"] for each in reports] == [2**29, 2**29]
    assert done.stderr.count("Ebbtide: ") == 1
    table = r"Ebbtide: within budget, 2 runs side by side.*\n +rank 0 +rank 1\n  budget +512 MiB +512 MiB"
    assert re.search(table, done.stderr)
    assert "rank 1:" not in done.stderr  # the first of a node shows its progress


def test_without_a_size_a_rank_takes_its_share_of_what_is_free(tmp_path: Path) -> None:
    done = start(EBBTIDE, "run", "--policy", "ebbtide", "--save-plan", str(tmp_path / "a.plan"), *ddp(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.glob("*.plan")) == ["a.0.plan", "a.1.plan"]
    assert "no size was named" in done.stderr
    assert "as its share: there are 2 ranks on this node" in done.stderr


def test_all_ranks_end_with_the_sentence_of_the_one_whose_budget_cannot_work(tmp_path: Path) -> None:
    program = each_its_own(tmp_path, ("60%", "1%"), stay="")  # the true one
    done = start(program, EBBTIDE, "run", *ddp(tmp_path))
    assert done.returncode != 0
    sentence = said_by_both(done)
    assert sentence.startswith("rank 1: a budget of ")
    assert "use --fast" in sentence
    assert "closed by peer" not in done.stderr
    assert "NOT BOUNDED" not in done.stderr


def test_all_ranks_end_with_status_3_where_one_was_never_bounded(tmp_path: Path) -> None:
    """One step shows no peak to take a percentage of; the other rank's size was in force."""
    program = each_its_own(tmp_path, ("4GiB", "50%"))
    done = start(program, EBBTIDE, "run", *ddp(tmp_path, "--steps", "1"))
    assert said_by_both(done).startswith("rank 1: the run was not bounded as asked: 1 of 2 steps that find the peak")


@pytest.mark.nightly
def test_what_collectives_worked_on_leaves_memory_once_they_have_ended(tmp_path: Path) -> None:
    """Buckets of all gradients, and all parameters that the ranks broadcast, are more than this budget."""
    script = str(ROOT / "examples" / "integrations" / "zero_redundancy.py")
    within = (EBBTIDE, "run", "--fast", "30%", "--report", str(tmp_path / "out.json"))
    for name, command in (("plain", (sys.executable,)), ("ours", within)):
        done = start(*command, script, "--steps", "4", "--out", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
    for rank in range(2):
        plain, ours = (torch.load(tmp_path / name / f"weights.{rank}.pt") for name in ("plain", "ours"))
        assert all(torch.equal(plain[name], ours[name]) for name in plain)
        report = json.loads((tmp_path / f"out.{rank}.json").read_text())
        assert not report["budget_violated"]
        assert sum(step["fetched_bytes"]["parameter"] for step in report["steps"]) > 0


def test_a_script_that_fails_by_itself_fails_as_it_does_without_ebbtide(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "if os.environ['RANK'] == '1':\n    raise ValueError('its own')\ndist.barrier()\n"
    )
    done = start(EBBTIDE, "run", "--fast", "4GiB", str(script))
    assert done.returncode == 1
    assert "ValueError: its own" in done.stderr
    assert "ebbtide: error" not in done.stderr


STARTS_ITS_OWN_RANKS = """
import signal, subprocess, sys, torch, torch.distributed as dist

rank = int(sys.argv[1])
other = subprocess.Popen([sys.executable, sys.argv[0], "1", sys.argv[2]]) if rank == 0 else None  # as Lightning does
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(net.parameters())
for _ in range(4):
    optimizer.zero_grad()
    net(torch.randn(64, 256)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
if other is not None:
    # Plain PyTorch, which has been seen to abort as it ends, with its process group's threads.
    sys.exit(0 if other.wait() in (0, -signal.SIGABRT) else 1)
"""


def test_ranks_that_the_script_starts_are_said_to_be_unbounded(tmp_path: Path) -> None:
    script = tmp_path / "starts.py"
    script.write_text(STARTS_ITS_OWN_RANKS)
    done = run(EBBTIDE, "run", "--fast", "2GiB", str(script), "0", str(tmp_path / "store"), env=FIT_FOR_A_TEST)
    assert done.returncode == 0, done.stderr
    assert "this process trains as one of 2 ranks, and no launcher has told of them" in done.stderr


OUTGROWS = """
import os, sys, torch, torch.distributed as dist

dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024))
optimizer = torch.optim.SGD(net.parameters())
kept = []
for step in range(40):
    optimizer.zero_grad()
    net(torch.randn(64, 1024)).sum().backward()
    optimizer.step()
    if os.environ["RANK"] == "1" and step > 3:
        kept.append(bytearray(b"x" * (64 << 20)))  # outside PyTorch
"""


def test_all_ranks_end_with_the_sentence_of_the_one_that_outgrew_its_budget(tmp_path: Path) -> None:
    script = tmp_path / "outgrows.py"
    script.write_text(OUTGROWS)
    done = start(each_its_own(tmp_path, ("4GiB", "1GiB")), EBBTIDE, "run", str(script))
    assert said_by_both(done).startswith("rank 1: ")


IN_PYTHON = """
import os, sys, time, torch, torch.distributed as dist, ebbtide

dist.init_process_group("gloo")
mine = os.environ["RANK"] == "1"
net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
optimizer = torch.optim.SGD(net.parameters())
try:
    with ebbtide.Session(fast="1%" if mine else "60%", progress="off"):
        while True:
            optimizer.zero_grad()
            net(torch.randn(64, 256)).sum().backward()
            optimizer.step()  # in which there is no collective
except ebbtide.BudgetError as error:
    print(f"ended with {error}", flush=True)
    time.sleep(4 * mine)  # torchrun ends all as soon as one has failed
    sys.exit(error.exit_code)
"""


def test_a_session_raises_the_error_of_another_rank_at_a_steps_end(tmp_path: Path) -> None:
    script = tmp_path / "session.py"
    script.write_text(IN_PYTHON)
    done = start(sys.executable, str(script))
    assert "ended with a budget of" in done.stdout
    assert "ended with rank 1: a budget of" in done.stdout
    assert "3" in statuses(done)
