"""What goes wrong around a session, and unusual training in one: the same bits, or an error that says what to do."""

import json
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from ebbtide.cli import cli
from ebbtide.errors import EbbtideError
from ebbtide.host.free_memory import free_memory
from ebbtide.units import GIB
from tests.helpers import child
from tests.helpers.command import EBBTIDE, run
from tests.helpers.paths import SCRIPTS

MCL_CURRENT, MCL_FUTURE = 1, 2
PLANNED = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_PROGRESS": "off"}
PAGES = PLANNED | {"EBBTIDE_POLICY": "demand"}  # where a plan would change nothing, its two seconds are saved
TRAIN_RANKS = str(SCRIPTS / "train_ranks.py")


CASES = [
    "a_session_in_a_thread",
    "nested_sessions",
    "a_second_session",
    "a_data_set_for_workers_of_every_epoch",
    "lbfgs",
    "shared_memory",
]


@pytest.mark.parametrize("case", CASES)
def test_it_trains_to_the_same_bits(case: str) -> None:
    child.run(f"cases_mishaps:{case}", env=PAGES)


def test_forks_in_the_middle_of_steps_harm_neither_side() -> None:
    assert child.run("cases_mishaps:forks_with_work_in_flight", env=PAGES) > 10


@pytest.mark.parametrize("order", ["as-written", "deferred"])
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_script_that_is_interrupted_saves_and_goes_on_with_the_same_bits(
    name: str, where: str, order: str, tmp_path: Path
) -> None:
    child.run("cases_mishaps:interrupted", name, where, order, str(tmp_path), env=PAGES)


def test_a_full_spill_directory_is_an_error_that_says_so_and_training_can_go_on() -> None:
    said = child.run("cases_mishaps:a_full_spill_directory", env=PAGES)
    assert "spill directory" in said
    assert "File too large" in said
    assert "lift the limit on a file's size (RLIMIT_FSIZE, ulimit -f unlimited)" in said
    assert "--spill DIR" in said


def test_descriptors_that_are_used_up_do_not_end_a_training() -> None:
    child.run("cases_mishaps:descriptors_used_up", env=PAGES)


def test_a_limited_address_space_is_an_error_that_names_the_limit() -> None:
    said = child.run("cases_mishaps:an_address_space_that_is_limited", env=PAGES)
    assert "address space" in said
    assert "ulimit -v unlimited" in said
    assert "--spill" not in said


LIMITED = """
import resource, sys, torch
which = getattr(resource, sys.argv[1])
resource.setrlimit(which, (int(sys.argv[2]) << 30, resource.getrlimit(which)[1]))
net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(6):
    optimizer.zero_grad()
    net(torch.randn(256, 512)).square().mean().backward()
    optimizer.step()
print("trained")
"""


@pytest.mark.parametrize(
    ("limit", "gibibytes", "said"), [("RLIMIT_AS", "8", "ulimit -v"), ("RLIMIT_DATA", "2", "ulimit -d")]
)
def test_a_script_that_limits_itself_is_told_which_limit_is_met(
    limit: str, gibibytes: str, said: str, tmp_path: Path
) -> None:
    """Plain PyTorch trains within them."""
    (tmp_path / "script.py").write_text(LIMITED)
    assert run(sys.executable, "script.py", limit, gibibytes, cwd=tmp_path).stdout == "trained\n"
    done = run(EBBTIDE, "run", "--quiet", "--fast", "60%", "script.py", limit, gibibytes, cwd=tmp_path)
    assert done.returncode == -signal.SIGABRT
    assert f"limited ({limit}, {said})" in done.stderr
    assert "lift that limit" in done.stderr
    assert "max_map_count" not in done.stderr


LOCKED = """
import ctypes, sys, torch
net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)])
optimizer = torch.optim.AdamW(net.parameters())
for i in range(6):
    if i == 3 and ctypes.CDLL(None).mlockall(int(sys.argv[1])) != 0:
        sys.exit("it may not lock memory")
    optimizer.zero_grad()
    net(torch.randn(256, 512)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.alike
@pytest.mark.parametrize("kind", [MCL_CURRENT, MCL_FUTURE])
def test_memory_that_is_locked_is_told_where_that_fills_tables(kind: int, tmp_path: Path) -> None:
    if free_memory().nbytes < 8 * GIB:
        pytest.skip("it fills 4 GiB")
    (tmp_path / "script.py").write_text(LOCKED)
    done = run(EBBTIDE, "run", "--fast", "60%", "--report", "report.json", "script.py", str(kind), cwd=tmp_path)
    if "it may not lock memory" in done.stderr:
        pytest.skip("it may not lock memory")
    assert done.returncode == 0, done.stderr
    fills = kind == MCL_CURRENT
    assert done.stderr.count("locked its memory (mlockall)") == fills
    assert (json.loads((tmp_path / "report.json").read_text())["process_peak_bytes"] > 2 * GIB) == fills


def test_a_model_can_be_built_larger_than_the_budget() -> None:
    child.run("cases_mishaps:a_model_built_larger_than_the_budget", env=PAGES | {"EBBTIDE_ARENA": "12MiB"})


@pytest.mark.parametrize("fast", ["", "lots", "0", "-8GiB", "8XB", "0%", "-5%", "101%", "nan%", "8", "1e99GiB"])
def test_a_budget_of_nonsense_is_refused_before_anything_runs(fast: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("raise AssertionError('it ran')")
    done = CliRunner().invoke(cli, ["run", "--fast", fast, str(tmp_path / "script.py")])
    assert isinstance(done.exception, EbbtideError)
    assert done.exception.exit_code == 2
    assert "such as" in str(done.exception) or "write 8GiB?" in str(done.exception)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_from_outside_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    moving = tmp_path / "moving"
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as spill,
        child.Child("cases_files:train_for_ever", (spill, str(moving)), PAGES) as trainer,
    ):
        trainer.wait_for(moving.exists)
        os.kill(trainer.pid, number)
        with pytest.raises(child.ChildError) as stopped:
            trainer.result()
        assert ("exit code -15" if number == signal.SIGTERM else "KeyboardInterrupt") in str(stopped.value)
        assert os.listdir(spill) == []


INTERRUPTS_ITSELF = """
import signal, torch
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(9):
    optimizer.zero_grad()
    loss = model(torch.randn(1024, 512)).square().mean()
    if step == 4:
        signal.raise_signal(signal.SIGINT)
    loss.backward()
    optimizer.step()
"""


def test_ctrl_c_ends_the_command_as_it_ends_python_and_the_report_is_written(tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out.json"
    script.write_text(INTERRUPTS_ITSELF)
    done = run(EBBTIDE, "run", "--fast", "40%", "--report", str(out), str(script), status=130)
    assert "KeyboardInterrupt" in done.stderr
    assert "trained for 4 steps in " in done.stderr
    report = json.loads(out.read_text())
    assert len(report["steps"]) == 4
    assert report["steps"][-1]["evicted_bytes"]["total"] > 0


def test_a_compiled_gpt_block_trains_to_the_same_bits() -> None:
    moved = child.run("cases_mishaps:a_compiled_gpt_block", "aot_eager", "60%", env=PLANNED)
    assert moved["parameter"] + moved["optimizer_state"] > 0
    assert moved["arena peak"] <= 0.61 * moved["unbounded peak"]


@pytest.fixture(scope="module")
def plain_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each of two ranks ends with on plain PyTorch."""
    result = tmp_path_factory.mktemp("ranks") / "plain"
    return train_ranks("", result)[0]


def free_port() -> int:
    """Asked for just before it is used: other tests take ports meanwhile."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def train_ranks(fast: str, result: Path) -> tuple[list[str], list[int]]:
    """Two ranks at once; what each ended with, and the bytes each moved."""
    port = free_port()
    ranks = [child.Child("cases_mishaps:train_rank", (rank, 2, port, fast, str(result)), PLANNED) for rank in range(2)]
    with ranks[0], ranks[1]:
        moved = [rank.result() for rank in ranks]
    return [result.with_suffix(f".{rank}").read_text() for rank in range(2)], moved


def test_all_reduce_of_what_is_away_gives_the_same_bits(plain_ranks: list[str], tmp_path: Path) -> None:
    """Gloo's threads send from buckets and receive into them while the backward pass needs room."""
    ours, moved = train_ranks("45%", tmp_path / "ours")
    assert ours == plain_ranks
    assert min(moved) > 0


def test_torchrun_starts_ranks_that_each_keep_a_budget(plain_ranks: list[str], tmp_path: Path) -> None:
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--no-python", "--nproc-per-node", "2"]
    ours = [EBBTIDE, "run", "--fast", "50%", "--report", str(tmp_path / "out.json"), TRAIN_RANKS]
    run(*torchrun, *ours, "--result", str(tmp_path / "ours"), env={"OMP_NUM_THREADS": "1", **PLANNED}, status=0)
    assert [(tmp_path / f"ours.{rank}").read_text() for rank in range(2)] == plain_ranks
    for rank in range(2):
        report = json.loads((tmp_path / f"out.{rank}.json").read_text())
        assert report["budget_violated"] is False
        assert sum(step["fetched_bytes"]["total"] for step in report["steps"]) > 0


def test_more_ctrl_c_while_the_first_is_told_shows_nothing_of_ours(tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out.json"
    again = (
        "import sys\n\ndef tell(*error):\n    signal.raise_signal(signal.SIGINT)\n    sys.__excepthook__(*error)\n\n"
    )
    script.write_text(INTERRUPTS_ITSELF + again + "sys.excepthook = tell\nsignal.raise_signal(signal.SIGINT)\n")
    script.write_text(script.read_text().replace("if step == 4:", "if step == 40:"))
    done = run(EBBTIDE, "run", "--fast", "40%", "--report", str(out), str(script), status=130)
    assert "KeyboardInterrupt" in done.stderr
    assert "launch.py" not in done.stderr
    assert len(json.loads(out.read_text())["steps"]) == 9


CLOSES = """
import os, sys, threading
import torch
from torch import nn
from ebbtide.planning import plan_child

if sys.argv[2] == "while planning":
    held = "import ctypes, time; ctypes.CDLL(None).prctl(1, 9); time.sleep(1000)"  # it does not outlive this process
    plan_child._START = held + "\\n" + plan_child._START

model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(8):
    if step == 5:
        if sys.argv[2] == "while planning":
            assert "ebbtide-planning" in [thread.name for thread in threading.enumerate()]
        os.closerange(3, 1000)
        mine = [open(f"{sys.argv[1]}/{number}", "w+b", buffering=0) for number in range(64)]
    optimizer.zero_grad()
    model(torch.ones(512, 512)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("moment", ["after planning", "while planning"])
def test_a_script_that_closes_the_spill_file_is_told_and_its_own_files_are_left_alone(
    moment: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(CLOSES)
    wait = "1" if moment == "after planning" else "0"
    done = run(EBBTIDE, "run", "--fast", "40%", str(script), str(tmp_path), moment, env={"EBBTIDE_WAIT_FOR_PLAN": wait})
    assert done.returncode != 0
    assert "the script closed a file that it had not opened" in done.stderr
    assert {(tmp_path / str(number)).stat().st_size for number in range(64)} == {0}
