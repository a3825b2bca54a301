"""Operators called again from what a trace tells of their calls."""

import json
from typing import Any

import pytest
import torch

from ebbtide.capture.calls import describe_call
from ebbtide.ir.files import load
from ebbtide.ir.trace import Trace
from ebbtide.probe.call_times import _Caller
from ebbtide.probe.calls import NotRepeatableError, call_of
from tests.helpers import command


def _overload(name: str, overload: str = "default") -> Any:
    return getattr(getattr(torch.ops.aten, name), overload)


X, Y = torch.rand(8, 6), torch.rand(6, 4)
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (_overload("mm"), (X, Y), {}),
    (_overload("mm"), (Y.t(), X.t()), {}),
    (_overload("add", "Tensor"), (X, X), {"alpha": 2}),
    (_overload("addcmul_"), (X.clone(), X, X), {"value": 0.5}),
    (_overload("cat"), ([X, X[:4], X[2:]], 0), {}),
    (_overload("masked_fill", "Scalar"), (X, X > 2, float("-inf")), {}),
    (_overload("embedding"), (X, torch.tensor([[1, 7], [0, 3]])), {}),
    (_overload("gelu"), (X[:, 1:],), {"approximate": "tanh"}),
    (_overload("_softmax"), (X, -1, False), {}),
    (_overload("sum", "dim_IntList"), (X, [0], True), {}),
]


@pytest.mark.parametrize(("operator", "args", "kwargs"), CALLS, ids=lambda value: str(value) if callable(value) else "")
def test_a_call_is_made_again_with_the_same_shapes(
    operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    call = call_of(operator._schema.name, describe_call(operator, args, kwargs))
    again, before = call.bound(call.filled())(), operator(*args, **kwargs)
    assert (again.shape, again.dtype, again.stride()) == (before.shape, before.dtype, before.stride())


def test_one_storage_is_one_operand() -> None:
    whole = torch.rand(10, 10)
    told = describe_call(_overload("addcmul_"), (whole[:, :5], whole[:, 5:], torch.rand(10, 5)), {})
    call = call_of("aten::addcmul_", told)
    assert call.needed_bytes == [384, 208]


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("aten::mm", ""),
        ("mine::mm", "{}"),
        ("aten::mm", "not JSON"),
        ("aten::mm", "[" * 100_000),
        ("aten::mm", "[]"),
        ("aten::no_such_operator", '{"overload":"","args":[],"kwargs":{}}'),
        ("aten::set_", describe_call(_overload("set_", "source_Tensor"), (X, Y), {})),
        ("aten::from_file", '{"overload":"","args":["/etc/passwd",true,8],"kwargs":{}}'),
        ("aten::relu", '{"overload":"","args":[{"shape":[-4],"dtype":"float32"}],"kwargs":{}}'),
        ("aten::relu", '{"overload":"","args":[{"shape":[4],"dtype":"save"}],"kwargs":{}}'),
        ("aten::relu", '{"overload":"","args":[{"shape":[4],"dtype":"float32","strides":[-1]}],"kwargs":{}}'),
        ("aten::relu", '{"overload":"","args":[{"shape":[4],"dtype":"float32","same":3}],"kwargs":{}}'),
        ("aten::relu", '{"overload":"","args":[{"other":"Generator"}],"kwargs":{}}'),
        ("aten::relu", '{"overload":"","args":[{"shape":[4000000000,4000],"dtype":"float32"}],"kwargs":{}}'),
        ("aten::repeat", '{"overload":"","args":[{"shape":[9],"dtype":"float32"},[300000000]],"kwargs":{}}'),
        ("aten::mm", '{"overload":"","args":[{"shape":[2000,3],"dtype":"float32"}],"kwargs":{}}'),
    ],
)
def test_what_cannot_be_called_is_left_out(operator: str, arguments: str) -> None:
    with pytest.raises(NotRepeatableError):
        _Caller(10**9, 0.0).call(operator, arguments)


SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
optimizer = torch.optim.Adam(model.parameters())
x = torch.rand(32, 64)
for _ in range(4):
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "train.py").write_text(SCRIPT)
    assert command.run(command.EBBTIDE, "trace", "-o", "step.trace", "train.py", cwd=folder).returncode == 0
    return load(folder / "step.trace", Trace)


@pytest.mark.starts
def test_the_recorders_tell_calls_alike(recorded: Trace) -> None:
    """The native one and ``capture.calls`` write the same JSON for the same call."""
    x, weight, bias = torch.rand(32, 64), torch.rand(128, 64), torch.rand(128)
    told = json.loads(describe_call(_overload("addmm"), (bias, x, weight.t()), {"beta": 1, "alpha": 1}))
    assert told in [json.loads(tick.arguments) for tick in recorded.ticks if tick.operator == "aten::addmm"]
    lerps = [json.loads(tick.arguments)["args"][2] for tick in recorded.ticks if tick.operator == "aten::lerp_"]
    assert set(lerps) == {1 - 0.9}
    assert any('"same":1' in tick.arguments for tick in recorded.ticks if tick.operator == "aten::addcmul_")
