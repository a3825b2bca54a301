"""What is looked for in this process is found, also where the script has told the collector to forget it."""

import gc
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from ebbtide.capture.objects import instances, running_locals
from ebbtide.capture.storage_parts import tensors_in
from ebbtide.recorders import step_recorder
from ebbtide.verify import watch


@pytest.fixture(params=[False, True], ids=["as usual", "frozen"])
def freeze(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A function that freezes what there is, or does not."""
    yield gc.freeze if request.param else lambda: None
    gc.unfreeze()


def test_what_a_function_holds_is_found_once(freeze: Any) -> None:
    tensor, deep = torch.ones(3), {"deep": [(torch.ones(4),)]}
    freeze()
    young = torch.ones(5)
    found = list(map(id, instances(torch.Tensor)))
    assert [found.count(id(each)) for each in (tensor, deep["deep"][0][0], young)] == [1, 1, 1]


def test_what_a_module_a_class_or_a_closure_holds_is_found(freeze: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("of_this_test")
    monkeypatch.setitem(sys.modules, "of_this_test", module)

    def keep(tensor: torch.Tensor) -> Any:
        return lambda: tensor

    class Holder:
        tensor = torch.ones(2)

    module.holder, module.closure, module.tensor = Holder, keep(torch.ones(2)), torch.ones(2)  # type: ignore[attr-defined]
    places = [id(Holder.tensor), id(module.closure()), id(module.tensor)]
    del Holder, keep
    freeze()
    found = set(map(id, instances(torch.Tensor)))
    assert found.issuperset(places)


def test_a_look_leaves_no_reference_and_what_is_frozen_stays_so(freeze: Any) -> None:
    tensor = torch.ones(3)
    freeze()
    before = sys.getrefcount(tensor), gc.get_freeze_count()
    for _ in range(2):  # the second finds what the first left in frames
        found = instances(torch.Tensor)
        assert sys.getrefcount(tensor) == before[0] + 1
        assert gc.get_freeze_count() == before[1]
        del found
        assert sys.getrefcount(tensor) == before[0]


def test_a_recorder_notes_the_tensors_and_verify_the_modules(freeze: Any) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3))
    optimizer = torch.optim.SGD(net.parameters())
    freeze()
    assert any(tensor is net[0].weight for tensor in step_recorder._tensors())
    assert watch._outermost_modules([optimizer]) == [net]


def test_a_look_disturbs_no_thread_that_fills_a_tuple(freeze: Any) -> None:
    """Python asks that nobody else has a reference to a tuple that it fills: with one, the thread fails."""
    freeze()
    begun, looked = threading.Event(), threading.Event()

    def elements() -> Iterator[int]:
        yield from range(100)
        begun.set()
        looked.wait()

    filled: list[tuple[int, ...]] = []
    thread = threading.Thread(target=lambda: filled.append(tuple(elements())))

    class GoesOn(type):
        """Code that runs while somebody looks for a class lets the thread run on."""

        def __subclasscheck__(cls, other: type) -> bool:
            looked.set()
            thread.join()
            return super().__subclasscheck__(other)

    class Kind(metaclass=GoesOn):
        pass

    wanted = Kind()
    thread.start()
    begun.wait()
    assert instances(Kind) == [wanted]
    looked.set()
    thread.join()
    assert filled == [tuple(range(100))]


def test_what_a_function_got_from_locals_stays_as_it_was(freeze: Any) -> None:
    def of_script(rate: float) -> None:
        noted, shared, deleted = locals(), object(), object()
        before = dict(noted)
        later = torch.ones(3)

        def inner() -> object:
            return shared

        del deleted
        freeze()
        plain, of_all = running_locals(), running_locals(of_all=True)
        assert {id(rate), id(later), id(noted)} <= {*map(id, plain)}
        assert id(inner()) not in {*map(id, plain)}
        assert id(inner()) in {*map(id, of_all)}
        assert noted == before

    of_script(0.5)


def test_tensors_are_found_in_what_contains_itself() -> None:
    first, second = torch.ones(1), torch.ones(2)
    state: dict[str, Any] = {"a": first, "all": []}
    state["all"] += [state, {"deep": (second, state)}]
    assert {*map(id, tensors_in(state))} == {id(first), id(second)}
