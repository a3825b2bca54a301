"""The table of repeatable operators, tried: each call that one of them gets is made again, and has the same bits.

    python -m tests.training.repeatable --most 2   # two calls of each operator; without it: all calls

Calls come from PyTorch's operator database, forward, backward and in place; from its pointwise calls, enlarged until
threads share them; and from the larger calls of ``larger_calls.py``. Between a call and its repetition other operators
run, and the allocator fills what it gives and takes with other bytes. Operands lie where they lay, then at other
addresses (``Place``). Compared are all elements' bytes, and sizes, strides and types; where operands lie where they
lay, all bytes of the result's memory, too: what is made anew is compared whole. Inputs must stay as they were.

The last line that it prints is JSON with the counts.
"""

import argparse
import ctypes
import enum
import json
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.testing._internal import common_methods_invocations as database
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from ebbtide import _torch
from tests.training.larger_calls import larger_calls
from tests.training.operators import copied, seed_everything, tensors_in

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64)
LARGER_DTYPES = (torch.float32, torch.bfloat16)
SAMPLES = 200  # of an entry of the database, at most: a few have a thousand that are alike
ENLARGED = 200_000  # elements: some times what one thread is given at least
PAGE = 4096
M_PERTURB, M_MMAP_THRESHOLD = -6, -3
libc = ctypes.CDLL(None)


class Place(enum.Enum):
    """Where operands lie when a call is made again.

    PyTorch's allocator gives multiples of 64 bytes, so all promise their bits for places that are such multiples apart.
    Products, convolutions and attention have others elsewhere: what differs ANYWHERE is counted, and is no fault.
    """

    SAME = "where they lay"
    PAGE = "from a page's start"
    LINE = "from a multiple of 64 bytes"
    ANYWHERE = "from any element's address"


@dataclass
class Found:
    """What came of it."""

    calls: Counter[str] = field(default_factory=Counter)  # of each operator
    comparisons: Counter[str] = field(default_factory=Counter)  # of each place
    result_at_same_address: int = 0
    different: Counter[str] = field(default_factory=Counter)  # by operator and place
    different_anywhere: Counter[str] = field(default_factory=Counter)  # by operator
    refused: Counter[str] = field(default_factory=Counter)  # by PyTorch
    examples: dict[str, str] = field(default_factory=dict)  # the first of each


class OtherWork:
    """Small operators of all libraries, drawn anew each time; no two times in a row are alike."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def __call__(self, moves: bool = True) -> None:
        """``moves``: what is allocated next lies elsewhere than what was freed last."""
        draw = self.random.randint
        n, m = draw(1, 70), draw(1, 70)
        x = torch.full((n, m), 0.5)
        done = [
            lambda: x @ x.T,
            lambda: x.bfloat16() @ x.bfloat16().T,
            lambda: torch.conv2d(x[None, None], torch.ones(draw(1, 8), 1, 1, 1)),
            lambda: torch.nn.functional.linear(x, torch.ones(draw(1, 40), m), torch.ones(1)),
            lambda: x.softmax(0).exp().sum(),
            lambda: torch.nn.functional.layer_norm(x, (m,)),
            lambda: torch.full((draw(1, 300_000),), float("nan")).cos(),
        ]
        for do in self.random.sample(done, 2):
            do()
        libc.mallopt(M_PERTURB, draw(1, 255))
        if moves:
            self.keeps = torch.empty(draw(1, 200_000), dtype=torch.uint8)


@dataclass(frozen=True)
class Storage:
    """One storage's bytes as they were before a call."""

    storage: torch.UntypedStorage
    contents: np.ndarray
    itemsize: int

    def bytes_now(self) -> np.ndarray:
        if not self.storage.nbytes():
            return np.empty(0, np.uint8)
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.storage.nbytes()).from_address(self.storage.data_ptr()))

    def at(self, shift: int) -> torch.UntypedStorage:
        """The same bytes, so far from a page's start."""
        room = np.empty(len(self.contents) + 2 * PAGE, np.uint8)
        start = -room.ctypes.data % PAGE + shift
        part = room[start : start + len(self.contents)]
        part[:] = self.contents
        return torch.from_numpy(part).untyped_storage()


class Call:
    """An operator's call with what its storages held before."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        self.storages: dict[int, Storage] = {}
        for tensor in tensors_in((args, kwargs)):
            storage = tensor.untyped_storage()
            known = self.storages.get(storage._cdata)
            itemsize = max(tensor.dtype.itemsize, known.itemsize if known else 1)
            held = known.contents if known else Storage(storage, np.empty(0), 1).bytes_now().copy()
            self.storages[storage._cdata] = Storage(storage, held, itemsize)

    def is_changed(self, key: int) -> bool:
        return bool((self.storages[key].bytes_now() != self.storages[key].contents).any())

    def elsewhere(self, place: Place, draw: random.Random, given: Any) -> Any:
        """The arguments again, over other storages with the bytes of before."""

        def shift(storage: Storage) -> int:
            match place:
                case Place.PAGE:
                    return 0
                case Place.LINE:
                    return 64 * draw.randrange(PAGE // 64)
                case _:
                    return storage.itemsize * draw.randrange(PAGE // storage.itemsize)

        moved = {key: storage.at(shift(storage)) for key, storage in self.storages.items()}

        def over(tensor: Tensor) -> Tensor:
            bare = torch.empty(0, dtype=tensor.dtype)
            bare.set_(moved[tensor.untyped_storage()._cdata], tensor.storage_offset(), tensor.size(), tensor.stride())
            bare = torch._conj(bare) if tensor.is_conj() else bare
            return torch._neg_view(bare) if tensor.is_neg() else bare

        return tree_map_only(Tensor, over, given)

    def put_back(self, keys: set[int]) -> None:
        for key in keys:
            self.storages[key].bytes_now()[:] = self.storages[key].contents


def storages_of(thing: Any) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in tensors_in(thing)}


def elements(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach()
    tensor = tensor.conj() if tensor.is_conj() else tensor
    tensor = torch._neg_view(tensor) if tensor.is_neg() else tensor
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)


def all_of(result: Any) -> list[Any]:
    """Everything in a result that a repetition must have, too."""
    found: list[Any] = []
    for leaf in tree_flatten(result)[0]:
        if not isinstance(leaf, Tensor):
            found.append(repr(leaf))
            continue
        found.append((leaf.dtype, leaf.shape, leaf.stride(), leaf.storage_offset(), leaf.is_conj(), leaf.is_neg()))
        found.append(elements(leaf).copy())
    return found


def memory_of(result: Any) -> list[np.ndarray]:
    return [Storage(tensor.untyped_storage(), np.empty(0), 1).bytes_now().copy() for tensor in tensors_in(result)]


def are_same(one: list[Any], other: list[Any]) -> bool:
    def same(a: Any, b: Any) -> bool:
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
            return type(a) is type(b) and len(a) == len(b) and bool((a == b).all())
        return bool(a == b)

    return len(one) == len(other) and all(map(same, one, other))


def with_gaps(tensor: Tensor) -> Tensor:
    return torch.stack((tensor, tensor), -1)[..., 1]


ODD_BITS = {2: np.array([0x7FC1, 0xFFE2, 0x7F81, 0x8000, 0x7F80, 0xFF80, 0x0001], np.uint16)}
"""NaNs that differ, one of them signalling, minus zero, infinities, and the smallest number: of bfloat16, whose bits
float32 begins with."""
ODD_BITS[4] = (ODD_BITS[2].astype(np.uint32) << 16) + np.uint32(3)


def with_odd_values(tensor: Tensor) -> Tensor:
    """Some elements of a tensor of floating-point numbers become what arithmetic has rules of its own for."""
    if tensor.dtype in (torch.float32, torch.bfloat16) and tensor.dim():
        odd = torch.from_numpy(ODD_BITS[tensor.itemsize]).view(tensor.dtype)
        places = torch.arange(0, tensor.numel(), 37)
        tensor = tensor.contiguous()
        tensor.view(-1)[places] = odd[places % len(odd)]
    return tensor


def is_plain(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_quantized
        and not tensor._is_zerotensor()
    )


class Repeats(TorchDispatchMode):
    """Makes each call of an operator of the table again and again."""

    def __init__(self, found: Found, most: int | None, seed: int) -> None:
        super().__init__()
        fresh, in_place, _ = _torch.repeatable_operators()
        self.in_place = set(in_place)
        self.names = {*fresh, *in_place}
        self.found = found
        self.most = most
        self.random = random.Random(seed)
        self.other_work = OtherWork(seed)
        self.enlarged: Counter[tuple[str, torch.dtype]] = Counter()
        self.where = ""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = operator.name()
        enough = self.most is not None and self.found.calls[name] >= self.most
        if name not in self.names or enough or not all(map(is_plain, tensors_in((args, kwargs)))):
            return operator(*args, **kwargs)
        if torch.Tag.pointwise in operator.tags:
            self.enlarge(operator, args, kwargs)
        return self.repeated(operator, args, kwargs)

    def enlarge(self, operator: Any, args: Any, kwargs: Any) -> None:
        """Also tiled, so that threads share it and vectors end within rows: contiguous; with gaps; with odd values."""
        tensors = tensors_in((args, kwargs))
        rank = max((tensor.dim() for tensor in tensors), default=0)
        largest = max((tensor.numel() for tensor in tensors), default=0)
        about = (operator.name(), tensors[0].dtype if tensors else torch.bool)
        if rank == 0 or largest == 0 or self.enlarged[about] >= (self.most or 6):
            return
        self.enlarged[about] += 1

        def tiled(tensor: Tensor) -> Tensor:
            tensor = tensor.detach()
            return tensor.repeat(-(-ENLARGED // largest), *[1] * rank) if tensor.dim() == rank else tensor.clone()

        for change in (tiled, lambda t: with_gaps(tiled(t)), lambda t: with_odd_values(tiled(t))):
            mine = tree_map_only(Tensor, change, (args, kwargs))
            try:
                self.repeated(operator, *mine)
            except Exception:
                return  # a call that only its own sizes suit

    def repeated(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """What the call returns; it has been made once for the program and once for each place."""
        call = Call(args, kwargs)
        self.other_work()
        results = [operator(*args, **kwargs)]  # where it raises, the program sees that
        self.found.calls[operator.name()] += 1
        try:
            self.repeat(call, results, operator, args, kwargs)
        except Exception as error:
            self.differs(operator.name(), f"cannot be repeated: {error!r}", args)
        return results[0]

    def repeat(self, call: Call, results: list[Any], operator: Any, args: Any, kwargs: Any) -> None:
        """The list alone holds the result, so that the repetition may have its place; then the list has that one."""
        name = operator.name()
        wanted, memory = all_of(results), memory_of(results)
        addresses = [tensor.data_ptr() for tensor in tensors_in(results)]
        own = storages_of(args[0]) if name in self.in_place else set()
        if storages_of(results) & call.storages.keys() != own:
            self.differs(name, "shares memory as it should not", args)
        args = without_statistics(name, args)
        if any(call.is_changed(key) for key in storages_of((args, kwargs)) - own):
            self.differs(name, "writes to an argument", args)
        for place in Place:
            if place is Place.SAME and not own:
                results.clear()
            self.other_work(moves=place is not Place.SAME)
            if place is Place.SAME:
                call.put_back(own)
                mine = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
            else:
                mine = call.elsewhere(place, self.random, (args, kwargs))
            with torch.no_grad():
                again = operator(*mine[0], **mine[1])
            if place is Place.SAME and not own:
                results.append(again)
                if not are_same(memory, memory_of(again)):
                    self.differs(name, "leaves bytes of its result's memory as it found them", args)
                self.found.result_at_same_address += addresses == [tensor.data_ptr() for tensor in tensors_in(again)]
            self.found.comparisons[place.name] += 1
            if are_same(wanted, all_of([again])):
                continue
            if place is Place.ANYWHERE:
                self.found.different_anywhere[name] += 1
            else:
                self.differs(name, place.value, args)

    def differs(self, name: str, how: str, args: Any) -> None:
        self.found.different[f"{name} {how}"] += 1
        shown = [
            (tuple(t.shape), t.stride(), str(t.dtype)) if isinstance(t, Tensor) else t for t in tree_flatten(args)[0]
        ]
        self.found.examples.setdefault(f"{name} {how}", f"{self.where}: {shown}, {torch.get_num_threads()} threads")


def without_statistics(name: str, args: Any) -> Any:
    """As a batch norm is run again: one that trains writes to its running statistics, and reads nothing there."""
    if name != "aten::native_batch_norm" or not args[5]:
        return args
    return (*args[:3], None, None, *args[5:])


def run(repeats: Repeats, where: str, function: Callable[[], Any]) -> Any:
    """What the function returns, or nothing where PyTorch refuses it."""
    repeats.where = where
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with repeats:
                return function()
        except Exception as error:
            repeats.found.refused[f"{where}: {type(error).__name__}: {str(error).splitlines()[:1]}"] += 1
            return None


def try_database(repeats: Repeats, dtypes: Sequence[torch.dtype], most: int) -> None:
    """Forward, backward and in place, of the first samples."""
    for info in database.op_db:
        for dtype in dtypes:
            if dtype not in info.supported_dtypes("cpu"):
                continue
            trains = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
            print(info.name, dtype, flush=True)
            where = f"{info.name} {info.variant_test_name} {dtype}"
            for sample in samples_of(info, dtype, trains, most):
                given = sample.input, tuple(sample.args), dict(sample.kwargs)

                def forward(given: Any = given, operator: Any = info.op) -> Any:
                    return operator(given[0], *given[1], **given[2])

                outputs = [t for t in tensors_in(run(repeats, where, forward)) if t.grad_fn is not None and is_plain(t)]
                inputs = [t for t in tensors_in(given) if t.requires_grad]
                if outputs and inputs:
                    gradients = [torch.ones_like(output) for output in outputs]

                    def backward(outputs: Any = outputs, inputs: Any = inputs, gradients: Any = gradients) -> Any:
                        return torch.autograd.grad(outputs, inputs, gradients, allow_unused=True)

                    run(repeats, f"{where} backward", backward)
                if info.inplace_variant is not None:
                    mine = tree_map_only(Tensor, Tensor.detach, copied(given))

                    def in_place(mine: Any = mine, operator: Any = info.inplace_variant) -> Any:
                        return operator(mine[0], *mine[1], **mine[2])

                    run(repeats, f"{where} in place", in_place)


def samples_of(info: Any, dtype: torch.dtype, trains: bool, most: int) -> list[Any]:
    seed_everything()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return list(islice(info.sample_inputs("cpu", dtype, requires_grad=trains), most))
        except Exception:
            return []


def try_larger(repeats: Repeats, dtypes: Sequence[torch.dtype]) -> None:
    for dtype in dtypes:
        seed_everything()
        for where, call in larger_calls(dtype):
            print(where, dtype, flush=True)
            run(repeats, f"{where} {dtype}", call)


def unknown_and_untried(found: Found) -> tuple[list[str], list[str]]:
    """Names of the table that are no operators here, and those that got no call."""
    known = set(torch._C._dispatch_get_all_op_names())
    names = [name for names in _torch.repeatable_operators()[:2] for name in names]
    return [n for n in names if n not in known], [n for n in names if n in known and n not in found.calls]


def main() -> int:
    parser = argparse.ArgumentParser(description="Calls the operators of the table again and compares the bits.")
    parser.add_argument("--most", type=int, help="calls of each operator, and samples of each entry of the database")
    parser.add_argument("--seed", type=int, default=0, help="of addresses and of other work")
    parser.add_argument("--threads", type=int, help="(default: as PyTorch starts, where it tells MKL of none)")
    parser.add_argument("--only", choices=("larger", "database"))
    parser.add_argument("--dtypes", nargs="*", help="of the calls (default: all that are tried)")
    args = parser.parse_args()
    dtypes = [dtype for dtype in DTYPES if args.dtypes is None or str(dtype).removeprefix("torch.") in args.dtypes]
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)  # large results lie at other offsets in a page, too
    found = Found()
    repeats = Repeats(found, args.most, args.seed)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    if args.only != "database":
        try_larger(repeats, [dtype for dtype in dtypes if dtype in LARGER_DTYPES])
    if args.only != "larger":
        try_database(repeats, dtypes, args.most or SAMPLES)
    unknown, untried = unknown_and_untried(found)
    for name, example in found.examples.items():
        print(f"DIFFERENT {name} ({found.different[name]} times): {example}")
    print(json.dumps({**vars(found), "unknown": unknown, "untried": untried}))
    return 1 if found.different else 0


if __name__ == "__main__":
    sys.exit(main())
