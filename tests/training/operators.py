"""PyTorch's own operator database, plainly and under Ebbtide with everything moving: the same bits, or both refuse.

    python tests/training/operators.py --share 0.01 --seed 5   # so much, drawn by this seed; --share 1: all of it

A case is an operator with a type of numbers and a layout. Its first samples are computed forward, in place, into
``out=`` and backward. First twice plainly: what differs then is set apart. Then in a session where every storage is
managed, however small, random ones leave all the time, and all operands of a call are moved out before it. Compared are
the bytes of results, of gradients, and of the inputs afterwards; and the kind of error, where there is one.

The last line that it prints is JSON with the counts. Left out: nested tensors and quantized ones.
"""

import argparse
import faulthandler
import gc
import hashlib
import json
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal import common_methods_invocations as database
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core as opinfo
from torch.utils._pytree import tree_flatten, tree_map_only

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.complex64)
LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr)
HUNG_AFTER_S = 600
UNDEFINED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
"""Their results are whatever was there."""
READS_WHAT_WAS_THERE = (None, "gelsy")
"""Drivers of linalg.lstsq for which PyTorch leaves the pivots as memory has them, and LAPACK reads them."""

for module in (common_utils, opinfo):  # the database looks for a TestCase among its callers: most of the time
    module.extract_test_fn = lambda: None


@dataclass(frozen=True)
class Case:
    """One operator, with one type of numbers and one layout."""

    info: Any
    dtype: torch.dtype
    layout: torch.layout

    def __str__(self) -> str:
        words = (self.info.name, self.info.variant_test_name, str(self.dtype), str(self.layout))
        return " ".join(word.removeprefix("torch.") for word in words if word)

    def samples(self, most: int) -> list[Any]:
        """The same in every call; fewer where PyTorch has no more or cannot make them."""
        seed_everything()
        trains = self.trains()
        try:
            if self.is_foreach():
                made = self.info.sample_inputs("cpu", self.dtype, noncontiguous=False)
            elif self.layout is torch.strided:
                made = self.info.sample_inputs("cpu", self.dtype, requires_grad=trains)
            else:
                made = self.info.sample_inputs_sparse(self.layout, "cpu", self.dtype, requires_grad=trains)
            return list(islice(filter(self.is_defined, made), most))
        except Exception:
            return []

    def is_defined(self, sample: Any) -> bool:
        return self.info.name != "linalg.lstsq" or sample.kwargs.get("driver") not in READS_WHAT_WAS_THERE

    def is_foreach(self) -> bool:
        return isinstance(self.info, database.ForeachFuncInfo)

    def trains(self) -> bool:
        return self.info.supports_autograd and self.dtype in self.info.supported_backward_dtypes("cpu")


def all_cases() -> list[Case]:
    """In an order that does not change."""
    names = [name for name in sorted(dir(database)) if name.startswith("foreach_") and name.endswith("_db")]
    foreach = [info for name in names for info in getattr(database, name)]
    found = []
    for info in [*database.op_db, *foreach]:
        sparse = {torch.sparse_coo: info.supports_sparse, torch.sparse_csr: info.supports_sparse_csr}
        for dtype in DTYPES:
            if info.name in UNDEFINED or dtype not in info.supported_dtypes("cpu"):
                continue
            found += [Case(info, dtype, layout) for layout in LAYOUTS if sparse.get(layout, True)]
    return found


def chosen_cases(share: float, seed: int) -> list[Case]:
    cases = all_cases()
    return sorted(random.Random(seed).sample(cases, max(1, round(share * len(cases)))), key=str)


def seed_everything() -> None:
    random.seed(0)
    torch.default_generator.manual_seed(0)  # alone: the other generators note who called
    database.np.random.seed(0)


def tensors_in(thing: object) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(thing)[0] if isinstance(leaf, Tensor)]


def parts_of(tensor: Tensor) -> list[Tensor]:
    """The dense tensors that it consists of."""
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


def digest(thing: object) -> str:
    """Of every number in it, to the last bit."""
    found = hashlib.sha256()
    for leaf in tree_flatten(thing)[0]:
        if not isinstance(leaf, Tensor):
            found.update(repr(leaf).encode())
            continue
        found.update(f"{leaf.dtype} {tuple(leaf.shape)} {leaf.layout}".encode())
        for part in parts_of(leaf):
            flat = part.resolve_conj().resolve_neg().contiguous().reshape(-1)
            if flat.dtype.is_complex or flat.dtype.is_floating_point or flat.numel():
                found.update(flat.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


Move = Callable[[Sequence[Tensor]], None]
"""Called with all operands before each call, and with what came of it."""


def copied(thing: Any) -> Any:
    """With tensors of its own, which are leaves where the originals are."""

    def copy(tensor: Tensor) -> Tensor:
        with torch.no_grad():
            mine = tensor.detach().clone()
        return mine.requires_grad_(tensor.requires_grad and tensor.is_leaf)

    return tree_map_only(Tensor, copy, thing)


def calls_of(case: Case, sample: Any, move: Move, variants: bool) -> Iterator[tuple[str, str]]:
    """(what was computed, its digest) for every call of one sample; ``variants``: in place and into ``out=``, too."""
    results: dict[str, Any] = {}

    def call(what: str, function: Callable[[], Any], operands: object) -> tuple[str, str]:
        seed_everything()
        move(tensors_in(operands))
        try:
            results[what] = function()
            move(tensors_in(results[what]))
            return what, digest(results[what])
        except Exception as error:
            return what, type(error).__name__

    operator = case.info.method_variant if case.is_foreach() else case.info.op
    given = first, rest, words = sample.input, tuple(sample.args), dict(sample.kwargs)
    yield call("forward", lambda: operator(first, *rest, **words), given)
    yield "inputs", digest(given)
    if case.trains() and not case.is_foreach():
        outputs = [t for t in tensors_in(results.get("forward")) if t.requires_grad and t.grad_fn is not None]
        inputs = [t for t in tensors_in(given) if t.requires_grad]
        gradients = [output.detach().clone() for output in outputs]
        if outputs and inputs:
            operands = (given, outputs, gradients)
            yield call("backward", lambda: torch.autograd.grad(outputs, inputs, gradients, allow_unused=True), operands)
    if not variants:
        return
    in_place, into = case.info.inplace_variant, results.get("forward")
    with torch.no_grad():
        if in_place is not None:
            mine = copied(given)
            yield call("in place", lambda: in_place(mine[0], *mine[1], **mine[2]), mine)
            yield "inputs in place", digest(mine)
        if case.info.supports_out and isinstance(into, Tensor) and case.layout is torch.strided:
            out = torch.zeros_like(into, requires_grad=False)
            yield call("out", lambda: operator(first, *rest, **words, out=out), (given, out))
            yield "after out", digest(out)


@dataclass
class Found:
    """What a comparison came to."""

    cases: int = 0
    calls: int = 0
    same: int = 0
    unstable: int = 0  # differ between two plain runs
    fetched_bytes: int = 0
    made_anew_bytes: int = 0
    different: list[str] = field(default_factory=list)
    not_computed: list[str] = field(default_factory=list)  # by this program: it cannot make their calls


def compute(cases: Sequence[Case], most: int, move: Move, what: str) -> dict[str, dict[str, str]]:
    found = {}
    for case in cases:
        faulthandler.dump_traceback_later(HUNG_AFTER_S, exit=True)
        print(f"{what}: {case}", flush=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found[str(case)] = {
                    f"{number} {what}": result
                    for number, sample in enumerate(case.samples(most))
                    for what, result in calls_of(case, sample, move, variants=number == 0)
                }
            except Exception as error:
                found[str(case)] = {"not computed": type(error).__name__}
    faulthandler.cancel_dump_traceback_later()
    return found


def compare(cases: Sequence[Case], most: int, seed: int, remake: bool) -> Found:
    """Plainly twice, then in a session of its own. ``remake``: what operators made leaves without a copy there."""
    plain, again = (compute(cases, most, lambda _: None, "plainly") for _ in range(2))
    gc.collect()
    os.environ |= {"EBBTIDE_ARENA": "64MiB", "EBBTIDE_POLICY": "demand", "EBBTIDE_CHAOS_RATE": "0.5"}
    os.environ |= {"EBBTIDE_CHAOS_SEED": str(seed), "EBBTIDE_PROGRESS": "off"}
    import ebbtide
    from ebbtide import _torch

    def move(operands: Sequence[Tensor]) -> None:
        _torch.evict([part for operand in operands for part in parts_of(operand)])

    with ebbtide.Session():
        manage_everything(seed)
        _torch.want_all_recipes(remake)
        ours = compute(cases, most, move, "under Ebbtide")
        counters = _torch.counters()
        found = Found(
            len(cases), fetched_bytes=sum(counters["fetched_bytes"]), made_anew_bytes=counters["made_anew_bytes"]
        )
        _torch.make_all()
        _torch.want_all_recipes(False)
    found.not_computed = [case for case, calls in plain.items() if "not computed" in calls]
    for case, calls in plain.items():
        for call, expected in calls.items():
            found.calls += 1
            if again[case].get(call) != expected:
                found.unstable += 1
            elif ours[case].get(call) == expected:
                found.same += 1
            else:
                found.different.append(f"{case}: {call}: plainly {expected[:16]}, ours {ours[case].get(call, '')[:16]}")
    return found


def manage_everything(seed: int) -> None:
    """However small: below what EBBTIDE_MIN_STORAGE allows."""
    from ebbtide import _torch
    from ebbtide.host.spill import choose_spill_directories

    asked = _torch.ArenaSettings()
    asked.spill_dirs = [str(directory) for directory in choose_spill_directories(())]
    asked.arena_bytes = 64 << 20
    asked.min_bytes = 1
    asked.chaos_rate = 0.5
    asked.chaos_seed = seed
    _torch.start(asked)


def main() -> int:
    parser = argparse.ArgumentParser(description="PyTorch's operator database under Ebbtide, against itself.")
    parser.add_argument("--share", type=float, default=1.0, help="of all cases (default: 1, all)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn, and of the chaos")
    parser.add_argument("--samples", type=int, default=8, help="of each case, at most (default: 8)")
    parser.add_argument("--remake", action="store_true", help="have what operators made leave without a copy")
    parser.add_argument("--only", help="cases whose names contain this")
    args = parser.parse_args()
    cases = [case for case in chosen_cases(args.share, args.seed) if args.only is None or args.only in str(case)]
    found = compare(cases, args.samples, args.seed, args.remake)
    for line in found.different:
        print(f"DIFFERENT {line}")
    print(json.dumps(vars(found)))
    return 1 if found.different else 0


if __name__ == "__main__":
    sys.exit(main())
