"""Where a program's step ends, whatever its optimizers do: by real optimizers, and nothing of native code."""

import gc
from collections.abc import Iterator

import pytest
import torch
from torch.optim import SGD, Optimizer

from ebbtide.capture.iterations import MOST, Iterations
from ebbtide.capture.optimizer_events import Place, Subscriber, subscribe, unsubscribe
from tests.helpers.at_once import at_once


class Program(Subscriber):
    """Optimizers that are stepped by name; ``ended`` are those whose steps ended one of the program's, in order."""

    place = Place.STEPS

    def __init__(self) -> None:
        self.optimizers: dict[str, Optimizer] = {}
        self.ended: list[str] = []
        self.iterations = Iterations()

    def build(self, *names: str) -> None:
        for name in names:
            self.optimizers[name] = SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)

    def step(self, names: str) -> list[str]:
        """Each letter is a step of the optimizer of that name; those that ended a step of the program."""
        before = len(self.ended)
        for name in names:
            self.optimizers[name].step()
        return self.ended[before:]

    def built(self, optimizer: Optimizer) -> None:
        self.iterations.built(optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        if self.iterations.stepped(optimizer):
            self.ended.append(next(name for name, known in self.optimizers.items() if known is optimizer))


@pytest.fixture
def program() -> Iterator[Program]:
    program = Program()
    subscribe(program)
    yield program
    unsubscribe(program)


def test_one_optimizer_ends_a_step_each_time(program: Program) -> None:
    program.build("a")
    assert program.step("aaa") == ["a", "a", "a"]


def test_with_two_the_last_of_an_iteration_ends_it(program: Program) -> None:
    program.build("a", "b")
    assert program.step("ababab") == ["b", "b", "b"]
    assert program.step("baba") == ["a", "a"]


@pytest.mark.parametrize("times", [2, 5, MOST])
def test_a_discriminator_may_step_several_times_for_each_step_of_the_generator(program: Program, times: int) -> None:
    program.build("d", "g")
    assert program.step(("d" * times + "g") * 4) == ["g"] * 4


def test_a_hook_per_parameter_makes_one_step_of_an_iteration(program: Program) -> None:
    names = [chr(ord("a") + number) for number in range(26)]
    program.build(*names)
    assert program.step("".join(reversed(names)) * 3) == ["a"] * 3


def test_trainings_that_follow_one_another_and_keep_their_optimizers_are_all_followed(program: Program) -> None:
    seen = []
    for name in "abcde":
        program.build(name)
        seen.append(len(program.step(name * 12)))
    assert seen == [12, 0, 7, 11, 11]


def test_optimizers_that_were_built_before_are_known_from_their_first_steps(program: Program) -> None:
    program.build("a", "b")
    program.iterations = Iterations()
    assert program.step("ababab") == ["a", "a", "a"]  # each but the first holds a whole iteration


def test_one_that_steps_for_a_group_of_parameters_at_a_time_makes_one_step_of_an_iteration(program: Program) -> None:
    """As ZeRO-3 does: the optimizer was built with the model's parameters, and never steps for those."""
    program.optimizers["z"] = SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    groups = [torch.nn.Parameter(torch.ones(2), requires_grad=True) for _ in range(5)]
    for parameter in groups:
        parameter.grad = torch.ones(2)
    ends = []
    for _ in range(4):
        for number, parameter in enumerate(groups):
            program.optimizers["z"].param_groups[0]["params"] = [parameter]
            ends += [number] * len(program.step("z"))
    assert ends == [0, 0, 0, 0]


def test_parameters_that_are_made_anew_for_each_step_are_not_waited_for(program: Program) -> None:
    program.build("a")
    for _ in range(3):
        program.optimizers["a"].param_groups[0]["params"] = [torch.nn.Parameter(torch.ones(2))]
        assert program.step("a") == ["a"]


def test_one_that_never_steps_is_not_waited_for_any_longer_than_that(program: Program) -> None:
    program.build("a", "never")
    assert program.step("a" * MOST) == []
    assert program.step("aaa") == ["a", "a", "a"]


def test_one_that_steps_rarely_ends_nothing_and_delays_nothing_once_that_is_known(program: Program) -> None:
    program.build("a", "rare")
    program.optimizers["r"] = program.optimizers.pop("rare")
    program.step("a" * (MOST + 1))
    assert program.step(("a" * 30 + "r") * 3) == ["a"] * 90


def test_a_phase_with_another_optimizer_is_followed_after_a_while_and_so_is_the_way_back(program: Program) -> None:
    program.build("a")
    assert program.step("aa") == ["a", "a"]
    program.build("b")
    assert program.step("b" * (MOST + 3)) == ["b"] * 3
    assert program.step("a" * (MOST + 3)) == ["a"] * 3


def test_one_that_is_freed_or_replaced_is_not_waited_for(program: Program) -> None:
    program.build("a", "b")
    program.step("ab")
    program.build("b")  # in the place of the old one
    gc.collect()
    assert program.step("abab") == ["b", "b"]
    del program.optimizers["b"]
    gc.collect()
    assert program.step("aa") == ["a", "a"]


def test_one_that_is_made_anew_over_the_same_parameters_takes_the_place_of_the_former(program: Program) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    for _ in range(3):
        for _ in range(2):
            program.optimizers["a"] = SGD([parameter], lr=0.1)
            gc.collect()
            assert program.step("a") == ["a"]
        assert program.step("aa") == ["a", "a"]


def test_inner_optimizers_that_come_and_go_belong_to_the_outer_ones_step(program: Program) -> None:
    program.build("o")
    for _ in range(3):
        for _ in range(2):  # tasks
            program.build("i")
            gc.collect()
            assert program.step("iii") == []
        assert program.step("o") == ["o"]


def test_optimizers_of_another_thread_end_nothing_and_are_not_waited_for(program: Program) -> None:
    program.build("a", "b")
    assert program.step("a") == []
    at_once(lambda: program.step("bb"), 1)
    assert program.ended == []
    assert program.step("aa") == ["a", "a"]


def test_a_thread_that_ended_hands_over(program: Program) -> None:
    program.build("a")
    at_once(lambda: program.step("aa"), 1)
    assert program.ended == ["a", "a"]
    assert program.step("a") == ["a"]


def test_a_training_that_moves_to_other_threads_is_followed(program: Program) -> None:
    program.build("a", "b")
    program.step("ab")
    for _ in range(3):
        at_once(lambda: program.step("ab"), 1)
    assert program.step("ab") == ["b"]
    assert program.ended == ["b"] * 5


def test_a_training_on_another_thread_is_followed_once_the_first_ones_optimizers_are_gone(program: Program) -> None:
    program.build("a")
    program.step("a")
    program.build("a")  # in the place of the old one
    gc.collect()
    at_once(lambda: program.step("aa"), 1)
    assert program.ended == ["a"] * 3


def test_what_steps_on_another_thread_while_a_step_ends_here_ends_none(program: Program) -> None:
    program.build("a")
    program.step("a")
    ended_there: list[list[str]] = []

    def step_there_once(*_: object) -> None:
        handle.remove()
        ended_there.extend(at_once(lambda: program.step("a"), 1))

    handle = program.optimizers["a"].register_step_post_hook(step_there_once)
    program.step("a")
    assert ended_there == [[]]


class Around(Optimizer):
    """Steps another one within its own step, as sharding and averaging wrappers do."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_what_steps_within_another_is_part_of_it(program: Program) -> None:
    program.build("i")
    program.optimizers["o"] = Around(program.optimizers["i"])
    assert program.step("ooo") == ["o"] * 3


def test_what_nobody_knows_any_more_is_forgotten(program: Program) -> None:
    for _ in range(5):
        program.build("a")
        program.step("a")
    gc.collect()
    iterations = program.iterations
    assert len(iterations._known) == len(iterations._in_use) == 1
    assert iterations._awaited | iterations._made.keys() <= iterations._in_use
