"""What has a recipe is made anew whatever else the script does meanwhile."""

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
import pytest
import torch
from torch import Tensor, nn

import ebbtide
from ebbtide import _torch
from tests.helpers import child
from tests.training.looks_at_what_is_made_anew import made_of_two, recipes
from tests.training.test_making_anew import WHOLE, by_numpy

pytestmark = pytest.mark.in_child({"EBBTIDE_POLICY": "demand"})


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


@pytest.mark.parametrize("what", ["copied", "rounded"])
def test_what_hooks_do_within_an_operator_is_not_made_by_it(what: str) -> None:
    """They are for what backward needs, and allocate or write memory by NumPy."""

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
        assert run() == plain
        assert sum(_torch.counters()["evicted_bytes"]) > 0


def test_a_fork_does_not_wait_for_pythons_lock() -> None:
    """A recipe alone owns what it reads, whose storage has a Python object."""
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
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(made, plain)


def test_operators_of_a_parallel_region_are_no_others_outside_of_it() -> None:
    """Each operator of a region of OpenMP runs on a thread of its own."""
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
        assert torch.equal(found[0], plain)
        assert kept[0] == 0


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


def test_what_was_called_before_a_setting_changed_is_not_made_anew_after_it() -> None:
    """Another thread changes settings, also to what they were, while operators run."""
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
    assert count > 0
    assert same


def test_memory_that_another_thread_gets_while_an_operator_reads_it_stays_writable(tmp_path: Path) -> None:
    """It gets an operand's memory as an array, and reads a file into it afterwards."""
    path = tmp_path / "data"
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
    assert count > 0
    assert whole


def test_what_an_operator_warned_of_is_not_said_again_where_it_makes_contents_anew() -> None:
    """The script ignores the warning there and makes it an error elsewhere."""
    warnings.simplefilter("error")
    with ebbtide.Session(fast="1GiB"), recipes(0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = torch.rand(1, WHOLE, WHOLE).std(0)
        before = _torch.counters()["made_anew_bytes"]
        _torch.evict([made])
        found = float(made.nan_to_num(3)[5, 5])
    assert _torch.counters()["made_anew_bytes"] > before
    assert found == 3


def test_a_fork_makes_what_is_away_though_another_library_has_taken_the_handler_of_faults() -> None:
    """A C library takes it while something is to be made anew."""
    with ebbtide.Session(fast="1GiB"), recipes(0):
        _, _, made = made_of_two(WHOLE)
        expected = made[5, 5].item()
        _torch.evict([made])
        assert not _torch.is_resident(made)
        ctypes.CDLL(None).signal(signal.SIGSEGV, ctypes.c_void_p(0))
        child = os.fork()
        if child == 0:
            os._exit(made[5, 5].item() != expected)
        assert os.waitpid(child, 0)[1] == 0


def test_a_child_that_changes_a_setting_is_refused_training_state_still() -> None:
    """As every worker of a DataLoader changes one. A recipe reads a parameter, and nothing is away."""
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
    assert os.WIFSIGNALED(status)


@pytest.mark.here
def test_an_operator_that_is_added_makes_contents_anew_unless_it_is_python_or_changes_something() -> None:
    added = "+mkldnn::_linear_pointwise,+mine::in_python,+mine::typed,+aten::index_add_"
    demand = {"EBBTIDE_POLICY": "demand"}
    as_it_is = child.run(made_by_added_operators, env=demand)
    assert as_it_is == {"C++": False, "Python": False, "typed": False, "in place": False, "same": True}
    found = child.run(made_by_added_operators, env=demand | {"EBBTIDE_REMAKE": added})
    assert found == {"C++": True, "Python": False, "typed": False, "in place": False, "same": True}


@pytest.mark.parametrize("by", ["an array", "an address"])
def test_what_is_written_beside_an_operator_in_place_is_kept(by: str) -> None:
    """Another thread writes to rows of a storage without an operator, while an operator changes other rows."""
    rows, count = 2**22, 0
    with ebbtide.Session(fast="1GiB"), recipes(1):
        after_s = kept_in(lambda: torch.full((rows,), 0.5).lgamma_()) / 4
        for trial in range(100):
            if count > 2:  # on a busy machine one may come too late
                break
            changed = torch.full((2 * rows,), 0.5)
            write = partial(lambda half: half.numpy().fill(7.0), changed[rows : rows + 1000])
            if by == "an address":
                first = changed.untyped_storage().data_ptr() + rows * 4
                write = partial(ctypes.memmove, first, np.full(1000, 7.0, np.float32).tobytes(), 4000)
            _, within = at_the_same_time(partial(changed[:rows].lgamma_), write, after_s)
            assert _torch.evict([changed]) > 0
            assert changed[rows : rows + 1000].eq(7.0).all(), trial
            count += within
    assert count > 2
