"""What a script may do to a storage that is away and is made anew, or to what that is made of: on any device.

Each look gets two operands, and what was made of them by ``aten::mul``. ``looks_of`` finds a module's.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ebbtide import _torch
from tests.helpers.at_once import at_once

Look = Callable[[Tensor, Tensor, Tensor], Tensor]


def looks_of(module: Mapping[str, Any]) -> Mapping[str, Look]:
    """Those that are named in a module, by names that can be typed."""
    return {
        name.removeprefix("_").replace("_", "-"): value
        for name, value in module.items()
        if callable(value) and getattr(value, "__annotations__", {}).keys() == {"one", "other", "made", "return"}
    }


@contextmanager
def recipes(one_in: int = 2) -> Iterator[None]:
    """Meanwhile all that can be made anew is ready for that, and one in so many is an ingredient of what is made of
    it; 0: none is."""
    _torch.want_all_recipes(True, one_in)
    yield
    _torch.want_all_recipes(False)


def made_of_two(side: int, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Two operands, and what is made of them."""
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(side, side, generator=generator).to(device) for _ in range(2))
    return one, other, torch.mul(one, other)


def element(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    return torch.tensor([made[3, 5].item(), made.view(-1)[-1].item()])


def operand_resized(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    one.untyped_storage().resize_(0)
    return made.clone()


def operand_swapped(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    one.data = torch.ones(64, 64, device=one.device)
    other.set_(torch.zeros(4, device=one.device))  # type: ignore[call-overload]
    return made.clone()


def changed_in_place(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    made.add_(one).relu_()
    _torch.evict([made])
    one.fill_(7)
    return made.clone()


def random_in_place(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    before = made.clone()
    made.bernoulli_(0.5, generator=torch.Generator(made.device).manual_seed(1))
    _torch.evict([made])
    return made + before


def chain(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    """What is made of it is away too."""
    more = torch.sigmoid(made)
    _torch.evict([more, made, one])
    return more + made


def all_operands_gone(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    more = torch.tanh(made)
    _torch.evict([more, made])
    del made
    return more.clone()


def from_other_threads(one: Tensor, other: Tensor, made: Tensor) -> Tensor:
    return torch.stack(at_once(lambda: made * 2))


class Doubles(TorchDispatchMode):
    """Each product is twice as large as its operator makes it."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        return torch.mul(out, 2, out=out) if function is torch.ops.aten.mul.Tensor else out
