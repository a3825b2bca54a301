"""Module names are noted without a trace in what a script can do."""

import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.hooks import RemovableHandle

from ebbtide.capture.module_names import ModuleNames


class Native:
    def __init__(self) -> None:
        self.entered = 0
        self.names: list[str] = []

    def enter_module(self, name: str) -> int:
        self.entered += 1
        self.names.append(name)
        return 0

    def back_to_module(self, number: int) -> None:
        pass


class Chain(torch.nn.Module):
    def forward(self, length: int) -> int:
        rest: int = self(length - 1) if length else 0
        return rest + 1


def works(length: int) -> bool:
    try:
        return bool(Chain()(length) == length + 1)
    except RecursionError:
        return False


def test_modules_may_be_as_deep_within_each_other_as_without_names() -> None:
    longest = max(length for length in range(10, 500, 10) if works(length))
    before, native = sys.getrecursionlimit(), Native()
    names = ModuleNames(native)
    names.install()
    try:
        assert works(longest)
    finally:
        names.remove()
    assert native.entered == longest + 1
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize("limit", [2**31 - 1, 2**30])
def test_any_limit_of_the_scripts_is_there_again(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [limit]

    def setrecursionlimit(number: int) -> None:
        assert number < 2**31  # else Python cannot take it
        now[0] = number

    monkeypatch.setattr(sys, "getrecursionlimit", lambda: now[0])
    monkeypatch.setattr(sys, "setrecursionlimit", setrecursionlimit)
    names: Any = ModuleNames(Native())
    names.install()
    assert now[0] >= limit
    names.remove()
    assert now[0] == limit


@dataclass
class Unhashable(torch.nn.Module):
    """A dataclass compares, and so it has no hash."""

    rate: float

    def __post_init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Identity())

    def named_modules(self, *_: Any, **__: Any) -> Any:
        raise ValueError("not supported")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x)
        return result


def test_any_module_can_be_named_and_hooks_of_the_scripts_keep_their_numbers() -> None:
    before, native = RemovableHandle.next_id, Native()
    names = ModuleNames(native)
    names.install()
    try:
        Unhashable(0.5)(torch.ones(1))
    finally:
        names.remove()
    assert native.names == ["Unhashable", "Unhashable.inner", "Unhashable.inner.0"]
    assert RemovableHandle.next_id == before
