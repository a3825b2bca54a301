"""What goes wrong around a session, and unusual training in one: the same bits, or an error that says what to do."""

import json
import signal
import socket
import sys
from pathlib import Path

import pytest

from ebbtide.host.free_memory import free_memory
from ebbtide.units import GIB
from tests.helpers import child
from tests.helpers.command import EBBTIDE, run
from tests.helpers.paths import SCRIPTS
from tests.helpers.training_script import training_script

MCL_CURRENT, MCL_FUTURE = 1, 2
PLANNED = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_PROGRESS": "off"}
PAGES = PLANNED | {"EBBTIDE_POLICY": "demand"}  # where a plan would change nothing, its two seconds are saved
TRAIN_RANKS = str(SCRIPTS / "train_ranks.py")


CASES = [
    "a_session_in_a_thread",
    "nested_sessions",
    "a_second_session",
    "a_data_set_for_workers_of_every_epoch",
    "descriptors_used_up",
    "lbfgs",
    "operators_that_come_and_go",
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


def test_a_limited_address_space_is_an_error_that_names_the_limit() -> None:
    said = child.run("cases_mishaps:an_address_space_that_is_limited", env=PAGES)
    assert "address space" in said
    assert "ulimit -v unlimited" in said
    assert "--spill" not in said


LIMITED = training_script(
    before="""
        import resource, sys
        which = getattr(resource, sys.argv[1])
        resource.setrlimit(which, (int(sys.argv[2]) << 30, resource.getrlimit(which)[1]))
    """,
    after="print('trained')",
)


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


LOCKED = training_script(
    before="import ctypes, sys",
    begins="""
        if step == 3 and ctypes.CDLL(None).mlockall(int(sys.argv[1])) != 0:
            sys.exit("it may not lock memory")
    """,
)


@pytest.mark.parametrize("kind", [pytest.param(MCL_CURRENT, marks=pytest.mark.nightly), MCL_FUTURE])
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


def test_sizes_that_are_symbols_are_no_trouble() -> None:
    assert "callback" not in child.run("cases_mishaps:an_operator_on_symbolic_sizes", env=PAGES)


def test_what_is_only_looked_at_by_its_address_is_not_held() -> None:
    env = PAGES | {"EBBTIDE_ARENA": "12MiB", "EBBTIDE_PIECE": "2MiB"}
    child.run("cases_mishaps:what_is_looked_at_by_its_address", env=env)


def test_arrays_that_share_tensors_memory_are_named_where_they_take_the_budget() -> None:
    said = child.run("cases_mishaps:arrays_that_hold_the_budget", env=PAGES)
    assert "held in memory, by NumPy or DLPack arrays" in said


def test_a_model_can_be_built_larger_than_the_budget() -> None:
    child.run("cases_mishaps:a_model_built_larger_than_the_budget", env=PAGES | {"EBBTIDE_ARENA": "12MiB"})


INTERRUPT = "signal.raise_signal(signal.SIGINT)"


def test_ctrl_c_ends_the_command_as_it_ends_python_and_the_report_is_written(tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out.json"
    script.write_text(training_script("import signal", midway=f"if step == 4: {INTERRUPT}", rows=1024, steps=9))
    done = run(EBBTIDE, "run", "--fast", "40%", "--report", str(out), str(script), status=-signal.SIGINT)
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


def test_more_ctrl_c_while_the_first_is_told_shows_nothing_of_ours(tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "out.json"
    again = f"def tell(*error):\n    {INTERRUPT}\n    sys.__excepthook__(*error)\n\nsys.excepthook = tell\n{INTERRUPT}"
    script.write_text(training_script("import signal, sys", after=again, steps=9))
    done = run(EBBTIDE, "run", "--fast", "40%", "--report", str(out), str(script), status=-signal.SIGINT)
    assert "KeyboardInterrupt" in done.stderr
    assert "launch.py" not in done.stderr
    assert len(json.loads(out.read_text())["steps"]) == 9


CLOSES = training_script(
    before="""
        import os, sys
        from ebbtide.planning import plan_child
        from tests.helpers.own_threads import own_threads

        if sys.argv[2] == "while planning":
            held = "import ctypes, time; ctypes.CDLL(None).prctl(1, 9); time.sleep(1000)"  # ends with this process
            plan_child._START = held + "\\n" + plan_child._START
    """,
    begins="""
        if step == 5:
            if sys.argv[2] == "while planning":
                assert "ebbtide-planning" in own_threads()
            os.closerange(3, 1000)
            mine = [open(f"{sys.argv[1]}/{number}", "w+b", buffering=0) for number in range(64)]
    """,
    layers=8,
    rows=512,
    steps=8,
)


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
