"""Floating-point operations of one operator, from the shapes of its arguments.

Most formulas are those of ``torch.utils.flop_counter`` (matrix products, attention; a product and a sum are two). A
program's own operators have what it registered there. PyTorch does not count the CPU's own operators, so their formulas
stand here. So do those of convolutions, since PyTorch's backward formula ignores groups: each gradient of a convolution
costs as much as the convolution. Where no formula is known (elementwise operators, norms, optimizers) the count is 0.
Those are bound by the bytes that they move, which a tick has too.
"""

import json
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, mm_flop, sdpa_backward_flop_count, sdpa_flop_count

from ebbtide.capture.calls import shapes_of

Arguments = Sequence[Any]  # a tensor is its shape, other values are themselves
Shape = Sequence[int]


def count_flops(operator: str, arguments: str) -> int:
    """Count FLOPs of an operator such as "aten::mm". ``arguments`` is the recorder's JSON. 0 where not known."""
    if not arguments or _formula(operator) is None:
        return 0
    return flops_of(operator, shapes_of(json.loads(arguments)["args"]))


def flops_of(operator: str, arguments: Arguments) -> int:
    """Count the FLOPs for arguments in Python."""
    formula = _formula(operator)
    if formula is None:
        return 0
    try:
        return max(int(formula(*arguments)), 0)
    except (TypeError, ValueError, LookupError, AttributeError, AssertionError):
        return 0  # a formula that needs more than shapes, or another overload's arguments


def _formula(operator: str) -> Callable[..., int] | None:
    if operator in _CPU:
        return _CPU[operator]
    namespace, _, name = operator.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return flop_registry.get(packet)


def _convolved(x: Shape, weight: Shape, stride: Shape, padding: Shape, dilation: Shape, transposed: bool) -> int:
    """Count a product for each output element of every channel, weight and sample; transposed, for each input element.

    Example: x [8, 3, 32, 32], weight [16, 3, 3, 3], padding 1: 2 * 8 * (32 * 32) * (16 * 3 * 3 * 3).
    """
    places = x[2:]
    if not transposed:
        last = [stride, padding, dilation]
        stride, padding, dilation = (list(v) * len(places) if len(v) == 1 else v for v in last)
        places = [
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, s, p, d in zip(places, weight[2:], stride, padding, dilation, strict=True)
        ]
    return 2 * x[0] * prod(places) * prod(weight)


def _convolution(
    x: Shape, weight: Shape, _bias: Any, stride: Shape, padding: Shape, dilation: Shape, transposed: bool, *_: Any
) -> int:
    return _convolved(x, weight, stride, padding, dilation, transposed)


def _mkldnn_convolution(
    x: Shape, weight: Shape, _bias: Any, padding: Shape, stride: Shape, dilation: Shape, *_: Any
) -> int:
    return _convolved(x, weight, stride, padding, dilation, False)


def _slow_convolution(
    x: Shape, weight: Shape, _kernel: Shape, _bias: Any, stride: Shape, padding: Shape, *rest: Any
) -> int:
    return _convolved(x, weight, stride, padding, rest[0] if rest else [1] * len(stride), False)


def _convolution_backward(
    gradient: Shape,
    x: Shape,
    weight: Shape,
    _bias: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _output_padding: Any,
    _groups: int,
    wanted: Sequence[bool],
) -> int:
    places = (x if transposed else gradient)[2:]
    return 2 * x[0] * prod(places) * prod(weight) * (bool(wanted[0]) + bool(wanted[1]))


def _recurrent(x: Shape, from_input: Shape, from_state: Shape, *_: Any) -> int:
    return 2 * x[0] * x[1] * (prod(from_input) + prod(from_state))  # x is [time, batch, features]


def _attention(query: Shape, key: Shape, value: Shape, *_: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _attention_backward(gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Any) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))  # type: ignore[no-untyped-call]


_CPU: dict[str, Callable[..., int]] = {
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_overrideable": _convolution,
    "aten::mkldnn_convolution": _mkldnn_convolution,
    "aten::_slow_conv2d_forward": _slow_convolution,
    "aten::slow_conv3d_forward": _slow_convolution,
    "aten::slow_conv_dilated2d": _slow_convolution,
    "aten::slow_conv_dilated3d": _slow_convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::mkldnn_rnn_layer": _recurrent,
    "aten::mkldnn_rnn_layer_backward": lambda *arguments: 2 * _recurrent(*arguments),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::_addmm_activation": lambda _bias, a, b, *_: mm_flop(a, b),
    "aten::addbmm": lambda _sum, a, b, *_: 2 * prod(a) * b[2],
    "aten::addmv": lambda _sum, a, *_: 2 * prod(a),
    "aten::mv": lambda a, *_: 2 * prod(a),
    "aten::dot": lambda a, *_: 2 * prod(a),
}
