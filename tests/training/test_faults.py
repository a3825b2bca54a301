"""The safety net: accesses that no operator announced cost time and change nothing, and real crashes stay crashes."""

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import time

import pytest
import torch
from torch.distributed.rpc.internal import _internal_rpc_pickler
from torch.profiler import ProfilerActivity, profile

import ebbtide
from ebbtide import _torch
from tests.helpers import child
from tests.helpers.at_once import at_once

PAGES = {"EBBTIDE_MIN_STORAGE": "4096"}
pytestmark = pytest.mark.in_child(PAGES)
N = 3 << 20


@contextlib.contextmanager
def managed_tensor():
    """A tensor whose pages are away, its bytes, and a session around both."""
    with ebbtide.Session(fast="50%"):
        tensor = torch.arange(N, dtype=torch.int32)
        content = bytes(tensor.numpy())
        assert _torch.evict([tensor]) > 0
        assert not _torch.is_resident(tensor)
        yield tensor, content


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Read past torch, so that only the fault handler can help."""
    return ctypes.string_at(tensor.untyped_storage().data_ptr(), tensor.nbytes)


def test_reads_past_torch() -> None:
    with managed_tensor() as (tensor, content):
        before = _torch.counters()["faults"]
        assert raw_bytes(tensor) == content
        assert _torch.counters()["faults"] > before


def test_writes_past_torch() -> None:
    with managed_tensor() as (tensor, _):
        ctypes.memset(tensor.untyped_storage().data_ptr(), 1, tensor.nbytes)
        assert _torch.evict([tensor]) > 0
        assert torch.all(tensor == 0x01010101)


def test_another_thread_touches() -> None:
    with managed_tensor() as (tensor, content):
        assert at_once(lambda: raw_bytes(tensor)) == [content] * 4


def test_faulthandler_first() -> None:
    faulthandler.enable(file=sys.stderr)
    with managed_tensor() as (tensor, content):
        assert raw_bytes(tensor) == content


def test_faulthandler_last() -> None:
    faulthandler.disable()
    with managed_tensor() as (tensor, content):
        faulthandler.enable(file=sys.stderr)
        assert raw_bytes(tensor) == content
        faulthandler.disable()
        assert _torch.evict([tensor]) > 0
        assert raw_bytes(tensor) == content


def test_faulthandler_many_times() -> None:
    """As test runners and notebooks do: whoever takes the signal is found, and the net goes back on top."""
    faulthandler.disable()
    with managed_tensor() as (tensor, content):
        for _ in range(200):
            faulthandler.enable(file=sys.stderr)
            faulthandler.disable()
        for _ in range(3):
            _torch.evict([tensor])
            assert raw_bytes(tensor) == content
            faulthandler.enable(file=sys.stderr)


@contextlib.contextmanager
def all_signals_blocked():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def blocks_faults() -> bool:
    return signal.SIGSEGV in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_signals_blocked_in_a_session() -> None:
    with managed_tensor() as (tensor, content), all_signals_blocked():
        assert not blocks_faults()
        assert raw_bytes(tensor) == content


def test_signals_blocked_before_the_session() -> None:
    """The threads that compute are as old as the process's first operator, and each of them faults."""
    torch.set_num_threads(2)
    with all_signals_blocked():
        ones = torch.ones(N)
        assert blocks_faults()
        with managed_tensor() as (tensor, content):
            for _ in range(3):
                assert raw_bytes(tensor) == content
                assert _torch.evict([tensor, ones]) > 0
                assert tensor[5] == 5  # in memory, and clean
                tensor.add_(0)


def test_a_thread_of_another_language_blocks_signals() -> None:
    """Nothing of Python's changes its mask: the first operator does."""
    with managed_tensor() as (tensor, content):
        blocked = (ctypes.c_ulong * 16)(*[~0 & (1 << 64) - 1] * 16)

        def look() -> bytes:
            assert ctypes.CDLL(None).pthread_sigmask(signal.SIG_BLOCK, blocked, None) == 0
            assert blocks_faults_by_the_kernel()
            assert tensor[5] == 5
            assert _torch.evict([tensor]) > 0
            return raw_bytes(tensor)

        assert at_once(look, 1) == [content]


def blocks_faults_by_the_kernel() -> bool:
    with open("/proc/thread-self/status") as status:
        return bool(int(status.read().split("SigBlk:")[1].split()[0], 16) & 1 << (signal.SIGSEGV - 1))


def test_another_library_takes_the_signal() -> None:
    """By ``sigaction``, in the middle of a step: an operator puts the safety net back before it can fault."""
    default = (ctypes.c_ulong * 19)()  # struct sigaction: SIG_DFL
    with managed_tensor() as (tensor, content):
        for _ in range(20):
            assert tensor[5] == 5
            assert ctypes.CDLL(None).sigaction(signal.SIGSEGV, default, None) == 0
            tensor.add_(0)  # the first write to a clean storage faults
            assert _torch.evict([tensor]) > 0
        assert raw_bytes(tensor) == content


def test_the_script_takes_the_signal() -> None:
    with managed_tensor() as (tensor, content):
        for handler in (signal.SIG_DFL, lambda *_: os._exit(3)):
            signal.signal(signal.SIGSEGV, handler)
            assert raw_bytes(tensor) == content
            assert _torch.evict([tensor]) > 0


def a_real_crash(order: str) -> None:
    """Dies by SIGSEGV, after faulthandler has written where."""
    faulthandler.disable()
    if order == "faulthandler first":
        faulthandler.enable(file=sys.stderr)
    with managed_tensor():
        if order == "faulthandler last":
            faulthandler.enable(file=sys.stderr)
        if order == "faulthandler gone":
            faulthandler.enable(file=sys.stderr)
            faulthandler.disable()
        ctypes.string_at(16)


def test_a_forked_child_touches_training_memory() -> None:
    """The child dies by SIGSEGV and the parent goes on."""
    faulthandler.disable()
    model = torch.nn.Linear(1024, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ebbtide.Session(fast="100%") as session:
        for _ in range(3):
            with session.step():
                model(torch.randn(8, 1024)).sum().backward()
                optimizer.step()
        before = raw_bytes(model.weight)
        pid = os.fork()
        if pid == 0:
            ctypes.string_at(model.weight.data_ptr(), 16)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGSEGV
        assert raw_bytes(model.weight) == before


def test_a_step_that_raises() -> None:
    """Its activations live on in the traceback; the session goes on, and so do the bits."""
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)])
    optimizer = torch.optim.AdamW(model.parameters())

    def train(session: ebbtide.Session | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.05)
        optimizer.state.clear()
        kept = None
        for number in range(5):
            with session.step() if session else contextlib.nullcontext():
                optimizer.zero_grad()
                loss = model(torch.randn(512, 256)).square().mean()
                try:
                    if number == 3:
                        raise RuntimeError("in mid-step")
                    loss.backward()
                except RuntimeError as error:
                    kept = error
                optimizer.step()
        assert kept is not None
        return [parameter.detach().clone() for parameter in model.parameters()]

    plain = train(None)
    with ebbtide.Session(fast="40%") as session:
        ours = train(session)
        assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
        bounded = session.report().steps[2:]
    assert sum(step.evicted_bytes.total for step in bounded) > 0


def test_the_profiler_sees_managed_storages() -> None:
    with ebbtide.Session(fast="50%"), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        torch.ones(N).add(1)
    assert max(event.self_cpu_memory_usage for event in profiled.key_averages()) >= 4 * N


def test_the_profiler_shows_what_an_operator_waits_for() -> None:
    with managed_tensor() as (tensor, _), profile(activities=[ProfilerActivity.CPU]) as profiled:
        tensor.add(1)  # away, so it waits for a fetch
        tensor.add(1)
    waits = {event.key: event.count for event in profiled.key_averages() if event.key.startswith("ebbtide: ")}
    assert waits == {"ebbtide: fetch, on demand": 1}


def test_a_lazy_clone_is_a_copy() -> None:
    """Copy on write goes through the allocator's copy_data, from a storage that is away."""
    with managed_tensor() as (tensor, content):
        clone = torch._lazy_clone(tensor)
        assert _torch.evict([tensor]) >= 0
        clone.add_(1)
        assert raw_bytes(tensor) == content
        assert torch.equal(clone, tensor + 1)


def test_what_rpc_sends_stays() -> None:
    """Another process's kernel reads it."""
    with managed_tensor() as (tensor, content):
        _, sent = _internal_rpc_pickler.serialize([tensor])
        assert sent[0].data_ptr() == tensor.data_ptr()
        assert _torch.evict([tensor]) == 0
        assert bytes(tensor.numpy()) == content


def test_a_held_array_keeps_its_storage() -> None:
    with managed_tensor() as (tensor, content):
        array = tensor.numpy()
        part = array[5:10]
        del array
        assert _torch.evict([tensor]) == 0
        assert bytes(part) == content[20:40]
        del part
        assert _torch.evict([tensor]) > 0
        assert raw_bytes(tensor) == content


def a_clean_storage_stays_in_memory(changes: bool) -> bool:
    """A byte of it changes, if told so, as by a kernel or a memory that errs. Whether the session got over it."""
    with ebbtide.Session(fast="50%", policy="demand", checksum="pages"):
        tensor = torch.arange(N, dtype=torch.int32)
        expected = tensor.sum().item()
        assert _torch.evict([tensor]) > 0
        assert tensor.sum().item() == expected
        [(address, _)] = _torch.memory_of([tensor])  # data_ptr would make it dirty
        if changes:
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(address + N)
                memory.write(b"\x99")
            signal.pause()  # until the governor has looked
        for _ in range(100):
            time.sleep(0.01)
        return tensor.sum().item() == expected


@pytest.mark.here
@pytest.mark.parametrize("order", ["faulthandler first", "faulthandler last", "faulthandler gone"])
def test_a_real_crash_reaches_faulthandler_if_it_is_on_and_ends_the_process(order: str) -> None:
    with pytest.raises(child.ChildError) as crash:
        child.run(a_real_crash, order, env=PAGES)
    assert "exit code -11" in str(crash.value)
    if order != "faulthandler gone":
        assert "Fatal Python error: Segmentation fault" in str(crash.value)
        assert "a_real_crash" in str(crash.value)
