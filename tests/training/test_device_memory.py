"""Trainings on the tests' device end with the same bits in a session as without, and bytes moved in each."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.ir.base import Origin
from ebbtide.ir.machine import InPlace, Link, Machine, Tier
from tests.device import lagging
from tests.helpers import child
from tests.helpers.command import EBBTIDE, TRAIN_MLP, run
from tests.training import cases_device_memory as cases
from tests.training.device_jobs import JOBS

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
pytestmark = pytest.mark.in_child(ONE_THREAD, lagging.load)
ONE_STORAGE = 16 << 10  # the weight of a layer
SLOW = Machine(
    "slow host",
    Origin.ASSUMED,
    (Tier("lagging", InPlace.ALL, page_bytes=512), Tier("host", InPlace.NOTHING, page_bytes=512)),
    (Link("lagging", "host", 10**6), Link("host", "lagging", 10**6)),
)
"""To run an operator again costs less than any copy."""
MOVING = {"parameter", "gradient", "optimizer_state", "activation"}
STAY = {"on-another-stream": {"parameter"}, "sharded": {"parameter", "gradient", "optimizer_state"}}
"""What another stream has used stays. What is resized in each step is no parameter to the session."""
CHANGING = {"lengths-that-change", "catches", "saves-and-loads", "views"}  # not each step is like one before
UNLIKE = {"views"}  # none is
LONG = {"dropout", "lengths-that-change"}  # of a GPT


@pytest.mark.alike
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in LONG else name for name in JOBS]
)
def test_a_training_ends_with_the_same_bits_by_demand_by_plan_and_under_chaos(name: str, tmp_path: Path) -> None:
    verdicts = cases.compare(name, tmp_path)
    for way, verdict in verdicts.items():
        assert verdict.differences == (), way
        assert verdict.compared > 6
        assert verdict.trouble == "", way
        assert verdict.budget_bytes < verdict.unbounded_peak_bytes
        assert verdict.managed_peak_bytes <= verdict.budget_bytes + verdict.largest_operator_bytes
        assert verdict.peak_bytes <= verdict.budget_bytes + verdict.largest_operator_bytes, way
        assert sum(verdict.out_bytes.values()) > 0, way
        assert sum(verdict.back_bytes.values()) > 0, way
    for kind in MOVING - STAY.get(name, set()):
        assert verdicts["chaos"].out_bytes[kind] > 0, kind
        assert verdicts["chaos"].back_bytes[kind] > 0, kind
    assert sum(verdicts["remade by chaos"].made_anew_bytes) > 0
    assert min(verdicts["file"].file_bytes) > 0
    planned = verdicts["planned"]
    assert planned.modes[:2] == ("recorded",) * 2
    if name not in UNLIKE:
        assert "planned" in planned.modes
    if name not in CHANGING:
        assert planned.modes[2:] == ("planned",) * 4
        assert planned.forecasts
        # A storage that is in use at its command stays, or goes later. Where the device lags, memory that is being
        # copied out is not free yet, and one more leaves.
        for forecast, measured in planned.forecasts:
            assert measured == pytest.approx(forecast, rel=0.02, abs=ONE_STORAGE)


@pytest.mark.alike
@pytest.mark.parametrize("name", ["mlp-sgd", "gpt-adamw", "autocast"])
def test_where_copies_are_slow_a_plan_has_storages_made_anew(name: str, tmp_path: Path) -> None:
    machine = tmp_path / "machine.toml"
    machine.write_text(SLOW.to_toml())
    anew, moves = cases.made_anew_by_plan(name, machine)
    for verdict in (anew, moves):
        assert verdict.differences == ()
        assert verdict.modes[2:] == ("planned",) * 4
        assert verdict.peak_bytes <= verdict.budget_bytes + verdict.largest_operator_bytes
    assert min(anew.made_anew_bytes[1:]) > 0, anew.made_anew_bytes
    assert sum(moves.made_anew_bytes) == 0
    assert sum(anew.back_bytes.values()) < sum(moves.back_bytes.values())


@pytest.mark.parametrize(
    "case",
    [
        cases.an_address_is_held,
        cases.storages_without_operators,
        cases.saving_holds_nothing,
        cases.a_storage_that_python_alone_has,
        cases.suspended,
    ],
)
def test_who_is_not_announced_finds_the_contents_or_an_error(case: Callable[..., None]) -> None:
    case()


@pytest.mark.parametrize(
    "case",
    [
        cases.a_tensor_dies_before_it_is_back,
        cases.a_tensor_leaves_before_it_is_back,
        cases.memory_is_handed_over_in_order,
        cases.another_stream_still_reads,
        cases.all_is_back_at_the_end,
        cases.threads_train,
    ],
)
def test_streams_threads_and_sessions_wait_for_one_another(case: Callable[..., None]) -> None:
    case()


def test_little_host_memory_lets_little_leave() -> None:
    verdict = cases.little_host_memory()
    assert verdict.differences == ()
    assert sum(verdict.out_bytes.values()) > 0
    assert "nothing else could leave" in verdict.trouble


@pytest.mark.here
@pytest.mark.alike
@pytest.mark.parametrize("name", ["mlp-sgd", "gpt-adamw", "autocast"])
def test_what_finds_no_host_memory_goes_to_a_file_by_demand_and_by_plan(name: str, tmp_path: Path) -> None:
    for policy in ("demand", "ebbtide"):
        verdict = child.run(cases.through_a_file, name, policy, str(tmp_path), env=ONE_THREAD, first=[lagging.load])
        assert verdict.differences == ()
        assert verdict.trouble == ""
        assert verdict.managed_peak_bytes <= verdict.budget_bytes + verdict.largest_operator_bytes
        assert min(verdict.file_bytes) > 0
    assert verdict.modes[2:] == ("planned",) * 4
    assert sum(forecast for forecast, _ in verdict.forecasts) == pytest.approx(
        sum(measured for _, measured in verdict.forecasts), rel=0.1
    )
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_lets_less_leave_and_is_told(tmp_path: Path) -> None:
    verdict = cases.a_full_disk(tmp_path)
    assert verdict.differences == ()
    assert "nothing else could leave: the spill directory" in verdict.trouble
    assert "RLIMIT_FSIZE" in verdict.trouble


@pytest.mark.parametrize(
    "case",
    [
        cases.a_closed_file,
        cases.place_for_all_sizes,
        cases.a_copy_is_dropped_before_what_it_had_is_back,
        cases.a_session_after_one_that_left_something,
    ],
)
def test_below_host_memory(case: Callable[..., None], tmp_path: Path) -> None:
    case(tmp_path)


@pytest.mark.alike
@pytest.mark.parametrize("seed", range(1, 9))
def test_random_actions_leave_each_tensor_what_it_was(seed: int, tmp_path: Path) -> None:
    actions, written = cases.random_actions(seed, tmp_path)
    assert actions > 500
    assert written > 1 << 20


def test_host_memory_is_pinned_by_a_thread_of_its_own_where_the_need_is_known() -> None:
    assert cases.pinned_by() == ([], [256 << 20])


def test_a_budget_below_what_an_operator_needs_is_exceeded_and_told() -> None:
    verdict = cases.less_than_an_operator_needs()
    assert verdict.differences == ()
    assert verdict.managed_peak_bytes <= verdict.budget_bytes + verdict.largest_operator_bytes
    assert "nothing else could leave" in verdict.trouble


def test_an_operator_that_finds_no_memory_fails_and_training_can_go_on() -> None:
    cases.is_out_of_memory()


def test_a_net_trains_where_the_device_is_too_small_for_it() -> None:
    assert cases.fits_by_moving() == ()


@pytest.mark.here
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "cuda:7"], "PyTorch has no device cuda:7 here"),
        (["--device", "auto"], "PyTorch sees no accelerator here"),
        (["--device", "cpu"], "leave --device out"),
        (["--device", "cuda"], "here (no accelerator): leave out --device, or try `ebbtide estimate --device cuda"),
        (["--device", "gpu"], "'gpu' is no device of PyTorch's (did you mean cuda?); accepted"),
        (["--device", "toaster"], "is no device of PyTorch's"),
        (["--device", "cuda", "--spill", "/nowhere"], "PyTorch has no device cuda here"),
        (["--device", "cuda", "--tier", "compressed:1MiB"], "--tier does not go with --device yet"),
        (["--device", "cuda", "--optimizer", "in-backward"], "--optimizer does not go with --device yet"),
        (["--host", "1GiB"], "--host is for --device"),
    ],
)
def test_wishes_that_do_not_go_together_are_told_in_a_sentence(options: list[str], said: str) -> None:
    done = run(EBBTIDE, "run", *options, TRAIN_MLP)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
