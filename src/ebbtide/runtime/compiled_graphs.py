"""On a GPU a graph that Inductor compiled is one operator. Its kernels are launched without PyTorch's dispatcher, so
nobody else says what they touch: all its inputs are brought before, and held until its kernels have run. It may use the
memory of an input again for what it makes, so all but parameters count as written.

On the CPU its accesses fault and are served. The wrapper stays until the process ends, because managed storages do.
Left out: what AOTInductor packs into a library, and kernels of Triton that a script launches itself.
"""

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch

import ebbtide._torch as _torch
from ebbtide.after_import import AfterImport

_INDUCTORS = "torch._inductor.output_code"
_announced = False


def announce() -> None:
    """From now on, once; Inductor need not have been imported, which takes a second."""
    global _announced
    if _announced:
        return
    _announced = True
    if _INDUCTORS in sys.modules:
        _wrap()
    else:
        sys.meta_path.insert(0, AfterImport(_INDUCTORS, _wrap))


def _wrap() -> None:
    from torch._inductor.output_code import CompiledFxGraph

    run = CompiledFxGraph.__call__

    @functools.wraps(run)
    def as_one_operator(self: CompiledFxGraph, inputs: Sequence[Any]) -> Any:
        read = [value for value in (getattr(self, "constants", None) or {}).values() if isinstance(value, torch.Tensor)]
        written: list[torch.Tensor] = []
        for at, value in enumerate(inputs):
            if isinstance(value, torch.Tensor):
                stays = isinstance(value, torch.nn.Parameter) and at not in self.mutated_input_idxs
                (read if stays else written).append(value)
        if not _torch.enter_graph(read, written):
            return run(self, inputs)
        results: Any = ()
        try:
            results = run(self, inputs)
        finally:
            _torch.exit_graph([value for value in results if isinstance(value, torch.Tensor)])
        return results

    CompiledFxGraph.__call__ = as_one_operator  # type: ignore[method-assign]
