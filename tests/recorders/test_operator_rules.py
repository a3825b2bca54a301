"""What the recorder of fake tensors takes an operator to do: native code's rules, asked about known operators."""

from typing import Any

import pytest
import torch

from ebbtide import _torch
from ebbtide.ir.trace import Access
from ebbtide.recorders.operators import operands, over_lists, touches_nothing

aten = torch.ops.aten
READ, WRITE, BOTH = int(Access.READ), int(Access.WRITE), int(Access.READ | Access.WRITE)


@pytest.mark.parametrize(
    "operator",
    [
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_strided.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
        aten._unsafe_view.default,
        aten.view.default,
        aten.t.default,
        aten.split.Tensor,
    ],
    ids=str,
)
def test_views_and_memory_that_nobody_wrote(operator: Any) -> None:
    assert touches_nothing(operator)


@pytest.mark.parametrize(
    "operator",
    [
        aten.zeros_like.default,  # a CPU runs empty_like and zero_ in it, which nobody sees on fake tensors
        aten.ones_like.default,
        aten.new_zeros.default,
        aten.new_full.default,
        aten.randn_like.default,
        aten.add_.Tensor,  # an alias, and written
        aten.mm.default,
        aten._foreach_zero_.default,  # no result
    ],
    ids=str,
)
def test_what_writes_is_no_view(operator: Any) -> None:
    assert not touches_nothing(operator)


def test_which_operators_work_through_lists() -> None:
    through = (
        aten._foreach_add_.List,
        aten._fused_adam_.default,
        aten._fused_sgd_.default,
        aten._fused_adagrad_.default,
    )
    assert all(over_lists(operator) for operator in through)
    assert not any(over_lists(operator) for operator in (aten.add_.Tensor, aten.cat.default))


def accesses(operator: Any, *args: Any, element: int | None = None, **kwargs: Any) -> list[tuple[int, bool]]:
    return [(access, overwrites) for _, access, overwrites in operands(operator, args, kwargs, element)]


def test_what_an_operator_does_with_its_arguments() -> None:
    x, y = torch.ones(2), torch.ones(2)
    assert accesses(aten.add_.Tensor, x, y) == [(BOTH, False), (READ, False)]
    assert accesses(aten.copy_.default, x, y)[0] == (BOTH, True)
    assert accesses(aten.mm.out, x, y, out=x) == [(READ, False), (READ, False), (BOTH, True)]


def test_running_statistics_are_written_though_no_schema_says_so() -> None:
    x, mean, var = torch.ones(2, 2), torch.ones(2), torch.ones(2)
    found = accesses(aten.native_batch_norm.default, x, None, None, mean, var, True, 0.1, 1e-5)
    assert found == [(READ, False), (BOTH, False), (BOTH, False)]


@pytest.mark.parametrize("name", ["zero_", "copy_", "add_"])
def test_an_operator_over_lists_does_to_an_element_what_the_plain_one_does(name: str) -> None:
    """On the CPU it calls the plain one: zero_ and copy_ write an element without reading it."""
    x, y = torch.ones(2), torch.ones(2)
    plain = getattr(aten, name).Tensor if name == "add_" else getattr(aten, name).default
    listed = getattr(aten, f"_foreach_{name}").List if name == "add_" else getattr(aten, f"_foreach_{name}").default
    args = [x] if name == "zero_" else [x, y]
    assert accesses(listed, *([arg] for arg in args), element=0) == accesses(plain, *args)
    assert accesses(plain, *args)[0] == (BOTH, name != "add_")


@pytest.mark.parametrize("unscales", [False, True])
def test_fused_optimizers_write_to_gradients_only_where_they_unscale_them(unscales: bool) -> None:
    weight, gradient, momentum = torch.ones(2), torch.ones(2), torch.ones(2)
    found = accesses(
        aten._fused_sgd_.default,
        [weight],
        [gradient],
        [momentum],
        element=0,
        grad_scale=torch.ones(()) if unscales else None,
    )
    assert found == [(BOTH, False), (BOTH if unscales else READ, False), (BOTH, False)]


def test_an_operator_that_nobody_registered_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no such operator: aten::nothing\.of_the_kind"):
        _torch.touches_nothing("aten::nothing", "of_the_kind")
