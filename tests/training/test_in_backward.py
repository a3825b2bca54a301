"""Updates in the backward pass: the bits of the script's own order, gradients that never move, and clear refusals."""

import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.update_order.signals_later import SignalsLater
from tests.helpers import child
from tests.helpers.command import EBBTIDE, run
from tests.helpers.training_script import training_script
from tests.training import cases_in_backward as cases
from tests.training import cases_in_backward_refused as refused

QUIET = {"EBBTIDE_PROGRESS": "off"}
pytestmark = pytest.mark.in_child(QUIET)


@pytest.mark.alike
@pytest.mark.parametrize("name", cases.OPTIMIZERS)
def test_every_optimizer_whose_parameters_are_independent_ends_with_the_same_bits(name: str) -> None:
    """With two groups of parameters, a scheduler, a tied weight, a layer used twice, frozen and unused parameters."""
    assert cases.every_optimizer(name)


@pytest.mark.here
def test_all_of_torch_optim_is_tried_or_left() -> None:
    from torch import optim

    from ebbtide.update_order.independent import INDEPENDENT

    there = {kind for kind in vars(optim).values() if isinstance(kind, type) and issubclass(kind, optim.Optimizer)}
    assert there - {optim.Optimizer, optim.LBFGS, optim.SparseAdam} == set(INDEPENDENT)
    assert {kind for kind, _ in cases.OPTIMIZERS.values()} == set(INDEPENDENT)


def test_a_handler_of_a_signal_that_comes_in_the_backward_pass_saves_when_the_step_has_ended() -> None:
    assert cases.a_handler_that_saves(1) == 1


@pytest.mark.here
def test_a_signal_that_comes_twice_in_the_backward_pass_is_not_put_off() -> None:
    with pytest.raises(child.ChildError, match="OrderError"):
        child.run(cases.a_handler_that_saves, 2, env=QUIET)


NUMBERS = [signal.SIGUSR2, signal.SIGUSR1]


@pytest.mark.here
@pytest.mark.parametrize(("times", "heard"), [(0, []), (1, ["at the end"]), (2, ["at once"])])
def test_a_handler_that_raises_does_so_once(times: int, heard: list[str]) -> None:
    def handler(number: int, frame: object) -> None:
        raise InterruptedError

    raised = []
    before = signal.signal(signal.SIGUSR1, handler)
    later = SignalsLater(for_long=True)
    try:
        later.begin()
        for _ in range(times):
            signal.raise_signal(signal.SIGUSR1)
    except InterruptedError:
        raised.append("at once")
    try:
        later.end()
    except InterruptedError:
        raised.append("at the end")
    assert signal.signal(signal.SIGUSR1, before) is handler
    assert raised == heard


@pytest.mark.here
@pytest.mark.parametrize("for_long", [True, False])
def test_a_time_limit_is_put_off_for_a_moment_alone(for_long: bool) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: heard.append(number))
    later = SignalsLater(for_long=for_long)
    try:
        later.begin()
        signal.raise_signal(signal.SIGALRM)
        assert bool(heard) is for_long
        later.end()
        assert heard == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.here
def test_a_signal_that_is_put_off_wakes_asyncio_once() -> None:
    reads, writes = socket.socketpair()
    called: list[int] = []
    before = [signal.signal(number, lambda number, frame: called.append(number)) for number in NUMBERS]
    writes.setblocking(False)
    descriptor = signal.set_wakeup_fd(writes.fileno())
    later = SignalsLater(for_long=True)
    try:
        later.begin()
        for number in NUMBERS:
            signal.raise_signal(number)
        assert called == []
        later.end()
        assert called == NUMBERS
        assert reads.recv(99) == bytes(NUMBERS)
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in zip(NUMBERS, before, strict=True):
            signal.signal(number, handler)
        reads.close(), writes.close()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_forward_pass_that_is_made_again_in_the_backward_pass(use_reentrant: bool) -> None:
    cases.checkpointed(use_reentrant)


@pytest.mark.parametrize(
    "name",
    [
        cases.autocast_around_all_but_step,
        cases.autocast_without_a_context,
        cases.compiled_after_step,
        cases.gradients_of_inputs,
        cases.a_batch_that_is_skipped,
        cases.moved_to_where_it_is,
        cases.two_optimizers,
        cases.sparse_gradients,
        cases.gradients_of_gradients,
        cases.an_array_of_a_parameter,
        cases.small_parameters_that_are_read,
        cases.a_mode_around_the_backward_pass,
        cases.an_operator_under_way_on_another_thread,
        cases.another_steps_in_a_hook,
        cases.a_rate_that_is_another_for_a_while,
        cases.nets_that_are_left_before_their_step,
        cases.hooks_take_no_numbers,
        cases.tensors_of_the_scripts_in_a_group,
        cases.beside_an_optimizer_of_the_scripts_own,
    ],
)
def test_other_ways_to_train_end_with_the_same_bits(name: Callable[..., None]) -> None:
    name()


@pytest.mark.parametrize(("of_step", "why"), [(True, "a hook of its step"), (False, "a hook of the script's waits")])
def test_what_forbids_it_when_nothing_is_due_ends_it_and_no_training(of_step: bool, why: str) -> None:
    early, left = cases.a_hook_that_comes_late(of_step)
    assert "as soon as its gradient is complete" in early
    assert f"left as the script has it: {why}" in left


@pytest.mark.parametrize("ends_with_zeros", [False, True])
def test_of_a_gan_the_optimizer_whose_gradients_others_add_to_is_left_as_it_is(ends_with_zeros: bool) -> None:
    left, early = cases.a_gan(ends_with_zeros)
    assert "left as the script has it" in left
    assert "as soon as its gradient is complete" in early


def test_steps_are_planned_in_the_new_order_and_gradients_never_move(tmp_path: Path) -> None:
    cases.built_before_the_session(tmp_path)


def test_the_second_step_is_in_the_new_order_and_plans_are_made_of_it() -> None:
    """Were it in the script's order, later steps would follow no plan."""
    modes = cases.born_in_the_session()
    assert modes == ["recorded", "recorded", "demand", "planned", "planned", "planned"]


@pytest.mark.parametrize("name", refused.REFUSALS)
def test_a_script_that_it_would_change_is_left_as_written_and_the_report_says_why(name: str) -> None:
    updates = refused.refused(name)
    assert updates
    assert all("is left as the script has it" in told for told in updates)
    assert refused.REFUSALS[name][-1] in updates[0]


GOES_ON = {
    "keeps_gradients",
    "reads_the_norm_after_step",
    "compiles_the_norm_after_step",
    "never_zeroes",
}
"""Errors before which no parameter was updated for a step that is not made."""


@pytest.mark.parametrize("name", refused.ERRORS)
def test_what_an_early_update_does_not_allow_is_an_error_where_the_script_does_it(name: str) -> None:
    """And training does not go on from parameters that were updated for a step that was not made."""
    said, made = refused.error(name)
    assert refused.ERRORS[name][-1] in said
    assert "--optimizer as-written" in said
    assert made == (2 if name in GOES_ON else 0)


def test_after_an_error_and_its_session_settings_are_free_and_parameters_are_guarded() -> None:
    refused.settings_after_an_error()


def test_a_net_that_a_cycle_alone_keeps_is_in_nobodys_way() -> None:
    refused.a_net_that_a_cycle_keeps()


@pytest.mark.here
def test_verify_compares_all_but_the_gradients_that_are_gone(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(training_script("torch.manual_seed(0)"))
    done = run(EBBTIDE, "verify", "--fast", "40%", "--optimizer", "in-backward", "script.py", cwd=tmp_path, status=0)
    assert "VERIFIED" in done.stdout
    assert "optimizer state" in done.stdout
    assert "gradient" not in done.stdout


@pytest.mark.here
def test_a_handler_that_the_script_asked_for_meanwhile_is_its_own() -> None:
    calls: list[int] = []
    later = SignalsLater()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))
    try:
        for _ in range(2):
            later.begin()
            old = signal.signal(signal.SIGUSR1, lambda number, frame: None)
            later.end()
            signal.signal(signal.SIGUSR1, old)
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == [signal.SIGUSR1] * 2
