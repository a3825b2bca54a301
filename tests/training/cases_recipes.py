"""What has a recipe, and where it is not carried out: operators that are added, hooks, forks and parallel regions."""

import ctypes
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ebbtide
from ebbtide import _torch
from tests.training.looks_at_what_is_made_anew import made_of_two, recipes
from tests.training.making_anew import WHOLE, by_numpy


def made_by_added_operators() -> dict[str, bool]:
    """Tell for operators that are not in the table whether what they make has a recipe, and all bits are as plainly."""
    one, other, _ = made_of_two(WHOLE)
    rows = torch.arange(len(one))

    @torch.library.custom_op("mine::in_python", mutates_args=())
    def in_python(x: Tensor) -> Tensor:
        return by_numpy(x)

    typed: dict[str, Any] = {"torch": torch}
    exec("library = torch.library.Library('mine', 'FRAGMENT')", typed)  # as at a prompt
    typed["library"].define("typed(Tensor x) -> Tensor")
    typed["library"].impl("typed", by_numpy, "CPU")

    calls = {
        "C++": lambda x: torch.ops.mkldnn._linear_pointwise(x, other, None, "none", [], ""),
        "Python": in_python,
        "typed": torch.ops.mine.typed,
        "in place": lambda x: x.clone().index_add_(0, rows, other),
    }
    plain = {name: call(one) for name, call in calls.items()}
    found, same = dict[str, bool](), True
    with ebbtide.Session(fast="1GiB"), recipes(1):
        for name, call in calls.items():
            made, before = call(one), _torch.counters()["made_anew_bytes"]
            _torch.evict([made])
            same &= torch.equal(made, plain[name])
            found[name] = _torch.counters()["made_anew_bytes"] > before
    return {**found, "same": same}


def saved_by_hooks(what: str) -> tuple[bool, bool]:
    """Hooks for what backward needs allocate or write memory by NumPy, within the operators that they are called in.
    Tell whether all bits are as plainly, and whether something moved."""

    def copied(t: Tensor) -> Tensor:
        kept = torch.empty(t.shape)
        np.copyto(kept.numpy(), t.detach().numpy())
        return kept

    def rounded(t: Tensor) -> Tensor:
        np.round(t.detach().numpy(), 1, out=t.detach().numpy())
        return t

    def run() -> bytes:
        leaf = made_of_two(512)[0].requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks({"copied": copied, "rounded": rounded}[what], lambda t: t):
            made = [nn.functional.silu(leaf * 2), torch.tanh(leaf)]
        for kept in (*made, *(saved_of(one) for one in made)):
            if ebbtide.active():
                _torch.evict([kept])
        sum(one.sum() for one in made).backward()
        assert leaf.grad is not None
        return b"".join(t.detach().numpy().tobytes() for t in (*made, leaf.grad))

    def saved_of(made: Tensor) -> Tensor:
        node: Any = made.grad_fn
        return node._saved_self if hasattr(node, "_saved_self") else node._saved_result

    plain = run()
    with ebbtide.Session(fast="1GiB"), recipes(1):
        same = run() == plain
        return same, sum(_torch.counters()["evicted_bytes"]) > 0


def forks_with_the_last_owner() -> bool:
    """Fork where a recipe alone owns what it reads, whose storage has a Python object. Tell whether bits are right."""
    one, other, _ = made_of_two(WHOLE)
    plain = one * other
    with ebbtide.Session(fast="1GiB"), recipes(0):
        mine = one.clone()
        mine.untyped_storage().nbytes()
        made = mine * other
        del mine
        _torch.evict([made])
        assert not _torch.is_resident(made)
        if (child := os.fork()) == 0:
            os._exit(0)
        return os.waitpid(child, 0)[1] == 0 and torch.equal(made, plain)


def within_a_parallel_region() -> tuple[bool, int]:
    """Make something anew within a region of OpenMP whose operators run on a thread each, and make something there.
    Tell whether the first has its bits, and how many recipes came."""
    torch.set_num_threads(2)
    norm = nn.BatchNorm2d(64).to(memory_format=torch.channels_last)
    pictures = torch.randn(16, 64, 31, 31).to(memory_format=torch.channels_last)
    plain = norm(pictures).detach()
    found: list[Tensor] = []
    kept: list[int] = []
    threads = [1, 2]

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def region(_: object) -> None:
        if threads.pop() == 2:
            before = _torch.recipes()
            found.append(made[0].clone())
            kept.append(_torch.recipes() - before)

    with ebbtide.Session(fast="1GiB"), recipes(1):
        made = [norm(pictures).detach()]
        _torch.evict(made)
        assert not _torch.is_resident(made[0])
        ctypes.CDLL(None).GOMP_parallel(region, None, 2, 0)
        return torch.equal(found[0], plain), kept[0]


def kept_in(call: Callable[[], Tensor]) -> float:
    """Return the seconds of an operator whose result has a recipe."""
    kept, began = _torch.recipes(), time.perf_counter()
    made = call()
    took = time.perf_counter() - began
    assert _torch.recipes() > kept
    del made
    return took


def at_the_same_time(call: Callable[[], Tensor], other: Callable[[], object], after_s: float) -> tuple[Tensor, bool]:
    """Return what an operator makes, and whether another thread's call began and ended within it."""
    times = list[float]()

    def on_the_other_thread() -> None:
        time.sleep(after_s)
        times.append(time.perf_counter())
        other()
        times.append(time.perf_counter())

    thread = threading.Thread(target=on_the_other_thread)
    thread.start()
    before = time.perf_counter()
    made = call()
    after = time.perf_counter()
    thread.join()
    return made, before < times[0] and times[1] < after


def called_before_a_change() -> tuple[int, bool]:
    """Another thread changes settings, also to what they were, while operators run. Return how many changes were within
    an operator, and whether all results had the same bits when they were needed again."""
    source = torch.rand(2**25)
    expected, count, same = nn.functional.silu(source), 0, True
    with ebbtide.Session(fast="2GiB"), recipes(1):
        after_s = kept_in(lambda: nn.functional.silu(source)) / 4
        for trial in range(100):
            if count and trial > 9:  # on a busy machine one may come too late
                break
            change = partial(torch.use_deterministic_algorithms, trial % 2 == 0)
            made, within = at_the_same_time(lambda: nn.functional.silu(source), change, after_s)
            count += within
            _torch.evict([made])
            assert not _torch.is_resident(made)
            same = same and torch.equal(made, expected)
    return count, same


def given_away_meanwhile(path: Path) -> tuple[int, bool]:
    """Another thread gets an operand's memory as an array while the operator runs, and reads a file into it afterwards.
    Return how many arrays were made within an operator, and whether all of the file was read each time."""
    source, arrays = torch.rand(2**25), list[Any]()
    path.write_bytes(bytes(source.nbytes))
    count, whole = 0, True
    with ebbtide.Session(fast="2GiB"), recipes(0):
        after_s = kept_in(lambda: nn.functional.silu(source)) / 4
        for trial in range(100):
            if count and trial > 9:
                break
            operand = source.clone()
            made, within = at_the_same_time(
                lambda: nn.functional.silu(operand),  # noqa: B023
                lambda: arrays.append(operand.numpy()),  # noqa: B023
                after_s,
            )
            count += within
            with path.open("rb", buffering=0) as file:
                whole = whole and file.readinto(arrays.pop()) == source.nbytes
            del made
    return count, whole


def warned_of_once() -> tuple[bool, float]:
    """An operator warns, which the script ignores there and makes an error elsewhere. Tell whether its result was made
    anew, and return an element of it."""
    warnings.simplefilter("error")
    with ebbtide.Session(fast="1GiB"), recipes(0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.rand(1, WHOLE, WHOLE).std(0)
        before = _torch.counters()["made_anew_bytes"]
        _torch.evict([made])
        found = float(made.nan_to_num(3)[5, 5])
    return _torch.counters()["made_anew_bytes"] > before, found


def fork_after_another_handler() -> int:
    """A C library takes the handler of faults away while something is to be made anew. Return the status of a child
    that is forked then, and reads it."""
    with ebbtide.Session(fast="1GiB"), recipes(0):
        _, _, made = made_of_two(WHOLE)
        expected = made[5, 5].item()
        _torch.evict([made])
        assert not _torch.is_resident(made)
        ctypes.CDLL(None).signal(signal.SIGSEGV, ctypes.c_void_p(0))
        child = os.fork()
        if child == 0:
            os._exit(made[5, 5].item() != expected)
        return os.waitpid(child, 0)[1]


def a_setting_changes_in_a_child() -> bool:
    """A recipe reads a parameter, and nothing is away. Tell whether a forked child that changes a setting, as every
    worker of a DataLoader does, is refused that parameter's bytes still."""
    net = nn.Linear(WHOLE, WHOLE, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with ebbtide.Session(fast="1GiB") as session:
        for _ in range(2):
            with session.step():
                net(torch.rand(8, WHOLE)).sum().backward()
                optimizer.step()
        with recipes(0):
            before = _torch.recipes()
            made = net.weight.detach() * 2
            assert _torch.recipes() > before
            child = os.fork()
            if child == 0:
                torch.set_num_threads(1)
                os._exit(0 if net.weight[5, 5].item() == 0 else 1)
            status = os.waitpid(child, 0)[1]
            assert made[5, 5] == net.weight[5, 5] * 2
    return os.WIFSIGNALED(status)
