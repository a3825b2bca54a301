"""Operations on whole numbers: every sum is exact in any order, so whatever differs is a lost byte, or a stale one.

    python -m tests.training.whole_numbers --seed 5 --operations 3000

Storages of 4 KiB to 6 MiB hold whole numbers from -3 to 3, each beside a twin in NumPy, in a session whose arena has
room for a quarter of them and evicts random ones all the time. An operation is done on both. What the arena holds is
compared with the twin by an operator, so nothing is pinned for that. The seed draws threads, chaos, pieces, and whether
there are checksums. Forked children compare what they inherit. A thread maps memory of its own, and looks whether it
stays its own: it must not get a place of the arena's.

With ``tests/helpers/unkind_system.cpp`` preloaded, huge pages collapse beside all that. Then the net of whole numbers
(``zoo_features.py``) is trained, plainly and under chaos. The last line is JSON with the counts, and with what differs.
"""

import argparse
import ctypes
import faulthandler
import json
import mmap
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.helpers import machine

MIB = 1 << 20
PAGE_BYTES = 4096
HUNG_AFTER_S = 600
LIVE_BYTES = 40 * MIB
COUNTED = ("preadv", "pwritev", "mprotect", "mremap", "madvise", "mmap", "delayed", "shortened", "interrupted")
COUNTED += ("collapsed", "read_bytes", "written_bytes")
ROWS = (1, 3, 64, 256, 700, 1024)
COLUMNS = (64, 256, 512, 1000, 1536)

Twin = np.ndarray[Any, Any]


@dataclass(slots=True)
class Pair:
    """A tensor of whole numbers, and what it should hold."""

    ours: Tensor
    twin: Twin


@dataclass
class Found:
    """What a run came to."""

    operations: int = 0
    forks: int = 0
    mappings: int = 0
    trainings: int = 0
    evicted_bytes: int = 0
    fetched_bytes: int = 0
    system: dict[str, int] = field(default_factory=dict)
    different: list[str] = field(default_factory=list)


def folded(numbers: Tensor) -> Tensor:
    return numbers.remainder_(7).sub_(3)


def folded_twin(numbers: Twin) -> Twin:
    return np.mod(numbers, 7) - 3


def difference(pair: Pair) -> str:
    """Where it differs from its twin; looked at twice, since a stale read heals."""
    expected = torch.from_numpy(pair.twin.astype(np.float32))
    if torch.equal(pair.ours, expected):
        return ""
    wrong = (pair.ours != expected).flatten().nonzero().flatten()
    again = (pair.ours != expected).flatten().nonzero().flatten()
    places = [f"{int(at)} (page {int(at) * 4 // PAGE_BYTES})" for at in (wrong[0], wrong[-1])] if len(wrong) else []
    zeros = int((pair.ours.flatten()[wrong] == 0).sum())
    return f"{len(wrong)} of {pair.twin.size} elements, {places}, {zeros} of them 0; {len(again)} when looked at again"


class Operations:
    """What may be done to pairs. Each takes some of the right shapes, and makes a new one or changes one in place."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.pairs: list[Pair] = []
        self.kept: list[Pair] = []  # a forked child is looking at these
        self.all: tuple[Callable[[], Pair], ...] = (
            self.product,
            self.transposed,
            self.sum_of_two,
            self.in_place,
            self.rows,
            self.summed,
            self.joined,
            self.slice_written,
            self.in_lists,
        )

    def fill(self) -> None:
        while sum(pair.twin.size * 4 for pair in self.pairs) < LIVE_BYTES:
            shape = (self.draw.choice(ROWS), self.draw.choice(COLUMNS))
            self.pairs.append(self.new(self.numbers.integers(-3, 4, shape, dtype=np.int8)))

    @staticmethod
    def new(twin: Twin) -> Pair:
        twin = twin.astype(np.int8)
        return Pair(torch.from_numpy(twin).to(torch.float32), twin)

    def any(self, fits: Callable[[Pair], bool] = lambda _: True) -> Pair:
        found = [pair for pair in self.pairs if fits(pair)]
        return self.draw.choice(found) if found else self.new(self.pairs[0].twin)

    def changeable(self, fits: Callable[[Pair], bool] = lambda _: True) -> Pair:
        return self.any(lambda pair: fits(pair) and all(pair is not other for other in self.kept))

    def step(self) -> str:
        """One operation, compared; what differs."""
        operation = self.draw.choice(self.all)
        pair = operation()
        if how := difference(pair):
            return f"{operation.__name__}: {how}"
        if all(pair is not other for other in self.pairs):
            self.pairs.append(pair)
        while sum(each.twin.size * 4 for each in self.pairs) > LIVE_BYTES:
            gone = self.changeable()
            how = difference(gone)
            self.pairs = [each for each in self.pairs if each is not gone]
            if how:
                return f"at its end, after {operation.__name__}: {how}"
        return ""

    # ---- operations

    def product(self) -> Pair:
        one = self.any()
        other = self.any(lambda pair: pair.twin.shape[0] == one.twin.shape[1])
        if other.twin.shape[0] != one.twin.shape[1]:
            other = self.new(self.numbers.integers(-3, 4, (one.twin.shape[1], 256), dtype=np.int8))
        twin = folded_twin(one.twin.astype(np.float64) @ other.twin.astype(np.float64)).astype(np.int8)
        return Pair(folded(one.ours @ other.ours), twin)

    def transposed(self) -> Pair:
        one = self.any()
        return Pair(one.ours.t().clone(memory_format=torch.contiguous_format), one.twin.T.copy())

    def sum_of_two(self) -> Pair:
        one = self.any()
        other = self.any(lambda pair: pair.twin.shape == one.twin.shape)
        return Pair(folded(one.ours + other.ours), folded_twin(one.twin + other.twin))

    def in_place(self) -> Pair:
        one = self.changeable()
        folded(one.ours.mul_(2).add_(1))
        one.twin = folded_twin(one.twin * 2 + 1)
        return one

    def rows(self) -> Pair:
        one = self.any()
        chosen = self.numbers.permutation(one.twin.shape[0])
        return Pair(one.ours.index_select(0, torch.from_numpy(chosen)), one.twin[chosen])

    def summed(self) -> Pair:
        one = self.any()
        twin = folded_twin(one.twin + one.twin.sum(0, dtype=np.int64, keepdims=True)).astype(np.int8)
        return Pair(folded(one.ours + one.ours.sum(0, keepdim=True)), twin)

    def joined(self) -> Pair:
        one = self.any()
        other = self.any(lambda pair: pair.twin.shape[1] == one.twin.shape[1])
        rows = min(one.twin.shape[0] + other.twin.shape[0], 1024)
        joined = torch.cat((one.ours, other.ours))[:rows].clone()
        return Pair(joined, np.concatenate((one.twin, other.twin))[:rows].copy())

    def slice_written(self) -> Pair:
        one = self.changeable()
        other = self.any(lambda pair: pair.twin.shape[1] == one.twin.shape[1])
        rows = self.draw.randint(0, min(one.twin.shape[0], other.twin.shape[0]))
        one.ours[:rows].copy_(other.ours[:rows].clone())
        one.twin[:rows] = other.twin[:rows].copy()
        return one

    def in_lists(self) -> Pair:
        some = [self.changeable() for _ in range(3)]
        some = [pair for number, pair in enumerate(some) if all(pair is not other for other in some[:number])]
        torch._foreach_add_([pair.ours for pair in some], 4)
        for pair in some:
            folded(pair.ours)
            pair.twin = folded_twin(pair.twin + 4)
        return some[0]

    # ---- a forked child

    def fork(self) -> int:
        """A child that compares some pairs; until it ends, its parent leaves them as they are."""
        self.kept = [self.any() for _ in range(4)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from Python 3.12 on
            pid = os.fork()
        if pid == 0:
            torch.set_num_threads(1)
            signal.alarm(HUNG_AFTER_S)  # faulthandler's thread is the parent's alone
            found = [how for pair in self.kept if (how := difference(pair))]
            print(*found, sep="\n", file=sys.stderr, flush=True)
            os._exit(3 if found else 0)
        return pid


class Bystander:
    """A thread that maps memory of its own, fills it, and finds it as it left it."""

    def __init__(self) -> None:
        self.mappings = 0
        self.different: list[str] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._map)

    def __enter__(self) -> "Bystander":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _map(self) -> None:
        while not self._ends.wait(0.0005):
            pages = random.choice((1, 2, 16, 64, 512))
            content = bytes([self.mappings % 251 + 1]) * (pages * PAGE_BYTES)
            mapping = mmap.mmap(-1, len(content), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            mapping[:] = content
            if self._ends.wait(0.001) or mapping[:] == content:
                mapping.close()
            else:
                self.different.append(f"{pages} pages of another thread's own memory")  # left as they are
            self.mappings += 1


def settings(seed: int) -> tuple[int, dict[str, str]]:
    """PyTorch's threads, and Ebbtide's variables."""
    draw = random.Random(seed)
    return draw.choice((1, 2, 3, 4)), {
        "EBBTIDE_ARENA": f"{draw.choice((10, 12, 16))}MiB",
        "EBBTIDE_POLICY": draw.choice(("demand", "demand", "lru", "evict-all")),
        "EBBTIDE_CHAOS_RATE": draw.choice(("0.1", "0.3", "0.5")),
        "EBBTIDE_CHAOS_SEED": str(seed % 2**32),
        "EBBTIDE_IO_THREADS": draw.choice(("1", "2", "4")),
        "EBBTIDE_PIECE": draw.choice(("2MiB", "16MiB")),
        "EBBTIDE_CHECKSUM": draw.choice(("0", "1", "pages")),
        "EBBTIDE_REMAKE": draw.choice(("0", "check")),
        "EBBTIDE_MIN_STORAGE": "4096",
        "EBBTIDE_PROGRESS": "off",
    }


def operate(seed: int, operations: int, found: Found) -> None:
    import ebbtide
    from ebbtide import _torch

    work, child = Operations(seed), 0
    with ebbtide.Session(), Bystander() as bystander:
        work.fill()
        for number in range(operations):
            faulthandler.dump_traceback_later(HUNG_AFTER_S, exit=True)
            if how := work.step():
                found.different.append(f"operation {number}, {how}")
                break
            found.operations += 1
            if number % 100 == 50:
                child = work.fork()
            if number % 100 == 99:
                _, status = os.waitpid(child, 0)
                work.kept = []
                found.forks += 1
                if status != 0:
                    found.different.append(f"in a forked child, before operation {number}: status {status}")
                    break
        found.different += [how for pair in work.pairs if (how := difference(pair))]
        counters = _torch.counters()
        found.evicted_bytes, found.fetched_bytes = sum(counters["evicted_bytes"]), sum(counters["fetched_bytes"])
    found.mappings = bystander.mappings
    found.different += bystander.different


def train(seed: int, found: Found) -> None:
    from tests.training.same_bits import compare_ways

    chaos = {"EBBTIDE_CHAOS_RATE": "0.3", "EBBTIDE_CHAOS_SEED": str(seed % 2**32), "EBBTIDE_MIN_STORAGE": "4096"}
    ways = {policy: ("60%", chaos | {"EBBTIDE_POLICY": policy}) for policy in ("demand", "ebbtide")}
    os.environ["EBBTIDE_WAIT_FOR_PLAN"] = "1"
    for way, verdict in compare_ways("whole-numbers", 5, ways).items():
        found.trainings += 1
        if isinstance(verdict, str):
            found.different.append(verdict)
        else:
            found.different += [f"training, {way}: {how}" for how in verdict.differences]
            found.evicted_bytes += sum(verdict.evicted_bytes.values())


def system() -> Any:
    """The preloaded library's functions; None without it."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "unkind_count"):
        return None
    library.unkind_count.restype = ctypes.c_long
    return library


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Operations on whole numbers under Ebbtide, against NumPy.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operations", type=int, default=3000)
    args = parser.parse_args(arguments)
    threads, variables = settings(args.seed)
    torch.set_num_threads(threads)
    found, library = Found(), system()
    if library is not None:
        library.unkind_collapse()
    os.environ |= variables
    operate(args.seed, args.operations, found)
    for variable in variables:
        del os.environ[variable]
    train(args.seed, found)
    if library is not None:
        found.system = {name: library.unkind_count(name.encode()) for name in COUNTED}
    if found.different:
        found.different.append(f"{machine.describe()}; {threads} threads; {variables}")
    print(json.dumps(vars(found)))
    return 1 if found.different else 0


if __name__ == "__main__":
    sys.exit(main())
