"""An operator's call as JSON, in which a trace keeps the arguments of a tick. ``docs/format.md`` has the table.

``native/torch/recorder.cpp`` writes the same. Values of tensors are never kept.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch


def describe_call(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Describe the call of an overload, one of ``torch.ops``."""
    storages: list[int] = []
    overload = operator._schema.overload_name
    return json.dumps(
        {
            "overload": "" if overload == "default" else overload,
            "args": [_described(value, storages) for value in args],
            "kwargs": {name: _described(value, storages) for name, value in kwargs.items()},
        },
        separators=(",", ":"),
        allow_nan=False,
    )


def shapes_of(value: Any) -> Any:
    """Replace each tensor in arguments that ``json.loads`` made by its shape, and what cannot be told by None."""
    if isinstance(value, list):
        return [shapes_of(item) for item in value]
    if isinstance(value, dict):
        return float(value["float"]) if "float" in value else value.get("shape")
    return value


def _described(value: Any, storages: list[int]) -> Any:
    if isinstance(value, torch.Tensor):
        return _tensor(value, storages)
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_described(item, storages) for item in value]
    return {"other": type(value).__name__}


def _tensor(tensor: torch.Tensor, storages: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    if tensor.layout is not torch.strided:
        return {**found, "layout": "other"}
    if tensor.device.type != "cpu":
        found["device"] = "other"
    if not tensor.is_contiguous():
        found["strides"] = list(tensor.stride())
    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.numel() * tensor.itemsize:
        found["bytes"] = storage.nbytes()
    if storage._cdata in storages:
        found["same"] = storages.index(storage._cdata)
    storages.append(storage._cdata)
    return found
