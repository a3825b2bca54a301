"""What test_device_memory.py runs in child processes: trainings on the tests' device, plainly and in its sessions."""

import gc
import io
import os
import random
import re
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, redirect_stderr, suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import ebbtide
from ebbtide import _torch
from tests.device import lagging
from tests.device.lagging import held
from tests.helpers import dlpack_table
from tests.training.device_jobs import (
    DEVICE,
    KEPT,
    STEPS,
    batch,
    begin,
    bits,
    differences,
    moved,
    plainly,
    train,
    within,
)
from tests.training.device_verdict import Verdict

WAYS: dict[str, dict[str, Any]] = {
    "demand": {"fast": "62%", "policy": "demand"},
    "planned": {"fast": "65%"},
    "chaos": {"fast": "80%", "policy": "demand", "chaos_rate": 0.2, "chaos_seed": 5},
    "file": {"fast": "80%", "policy": "demand", "chaos_rate": 0.2, "chaos_seed": 7, "host_bytes": "2MiB"},
    "remade by chaos": {"fast": "80%", "policy": "demand", "chaos_rate": 0.2, "chaos_seed": 5, "remake": "check"},
}


def compare(name: str, spill: str) -> dict[str, Verdict]:
    """Each way is a session of its own in this process."""
    WAYS["file"]["spill"] = spill
    plain = plainly(name)
    assert differences(plainly(name), plain) == ()
    return {way: within(plain, name, **wishes) for way, wishes in WAYS.items()}


def through_a_file(name: str, policy: str, spill: str) -> Verdict:
    """Most of what leaves finds no host memory."""
    return within(plainly(name), name, fast="65%", policy=policy, host_bytes="128KiB", spill=spill)


def made_anew_by_plan(name: str, machine: str) -> tuple[Verdict, Verdict]:
    """With making anew, and without."""
    plain = plainly(name)
    anew, moves = (within(plain, name, fast="50%", machine=machine, remake=remake) for remake in ("check", "0"))
    return anew, moves


# ---- one thing at a time -------------------------------------------------------------------------------------------

NUMBERS = 1 << 12


@contextmanager
def session(**wishes: Any) -> Iterator[Any]:
    """Within which nothing moves by itself."""
    with ebbtide.Session(**({"fast": "1GiB", "policy": "demand"} | KEPT | wishes)) as opened, opened.step():
        yield opened


def numbers(value: float) -> Tensor:
    return torch.full((NUMBERS,), float(value), device=DEVICE)


def away(value: float) -> Tensor:
    """A tensor that is on the host."""
    made = numbers(value)
    assert _torch.evict([made]) == 4 * NUMBERS
    assert not _torch.is_resident(made)
    return made


def is_all(tensor: Tensor, value: float) -> bool:
    return bool((tensor.cpu() == value).all())


@contextmanager
def held_for_a_while(stream: torch.Stream) -> Iterator[None]:
    """As ``held``, for half a second at most: the block may wait for the stream."""
    gate = lagging.load().Gate(stream)
    opens = threading.Timer(0.5, gate.open)
    opens.start()
    yield
    opens.join()


def streams_of_copies() -> tuple[torch.Stream, torch.Stream]:
    """Those of copies out and back: the two that are given out when the first session of a process starts."""
    before = torch.Stream(device=DEVICE).stream_id
    with session():
        pass
    return tuple(torch.Stream(stream_id=before + at, device_index=0, device_type=20) for at in (1, 2))  # type: ignore[return-value]


def an_address_is_held() -> None:
    looks: list[Callable[[Tensor], int]] = [
        lambda tensor: tensor.data_ptr(),
        lambda tensor: tensor[5:].data_ptr(),
        lambda tensor: tensor.untyped_storage().data_ptr(),
        dlpack_table.address_of,
    ]
    with ebbtide.Session("1GiB", policy="demand", **KEPT) as opened:
        with opened.step():
            seen = [away(value) for value in range(len(looks))]
            for tensor, look in zip(seen, looks, strict=True):
                address = look(tensor)
                assert _torch.is_resident(tensor)
                assert _torch.evict([tensor]) == 0
                assert look(tensor) == address
            exported = away(9)
            capsule = torch.utils.dlpack.to_dlpack(exported)
        with opened.step():
            assert [_torch.evict([tensor]) for tensor in seen] == [4 * NUMBERS] * len(looks)
            assert _torch.evict([exported]) == 0
            again = [tensor.data_ptr() for tensor in seen]  # a second time in its life
            assert len(set(again)) == len(looks)
        with opened.step():
            assert [_torch.evict([tensor]) for tensor in seen] == [4 * NUMBERS] * len(looks)
            assert all(is_all(tensor, value) for value, tensor in enumerate(seen))
    del capsule


def storages_without_operators() -> None:
    """Storages' own methods find the contents, and hold them no longer than they run."""
    with session():
        tensor = away(3)
        storage = tensor.untyped_storage()
        storage[0] = 1
        assert _torch.evict([tensor]) > 0
        assert storage[0] == 1
        tensor = away(3)
        other = away(4)
        other.untyped_storage().copy_(tensor.untyped_storage())
        assert _torch.evict([tensor, other]) == 8 * NUMBERS
        assert is_all(other, 3)
        tensor = away(3)
        tensor.untyped_storage().resize_(8 * NUMBERS)
        assert _torch.evict([tensor]) == 8 * NUMBERS
        assert is_all(tensor, 3)
        tensor = away(3)
        tensor.untyped_storage().resize_(0)
        assert _torch.evict([tensor]) == 0
        tensor.untyped_storage().resize_(4 * NUMBERS)
        tensor.fill_(6)
        assert _torch.evict([tensor]) > 0
        assert is_all(tensor, 6)
        tensor = away(3)
        assert is_all(torch.empty(0, device=DEVICE).set_(tensor.untyped_storage()), 3)
        tensor, other = away(3), away(4)
        torch.utils.swap_tensors(tensor, other)
        assert is_all(tensor, 4)
        assert is_all(other, 3)
        tensor, other = away(3), away(4)
        tensor.data = other
        assert is_all(tensor, 4)


def saving_holds_nothing() -> None:
    with session():
        tensors = [away(value) for value in range(3)]
        file = io.BytesIO()
        torch.save(tensors, file)
        assert _torch.evict(tensors) == 12 * NUMBERS
        file.seek(0)
        for value, (tensor, loaded) in enumerate(zip(tensors, torch.load(file), strict=True)):
            assert is_all(loaded, value)
            assert is_all(tensor, value)


def suspended() -> None:
    """As for a graph, which uses again the addresses of what its operators use."""
    with session():
        tensors = [away(value) for value in range(3)]
        _torch.suspend_device(True)
        assert all(map(_torch.is_resident, tensors))
        captured = tensors[0] + 1
        assert _torch.evict(tensors) == 0
        _torch.suspend_device(False)
        assert _torch.evict([*tensors, captured]) == 8 * NUMBERS
        assert all(is_all(tensor, value) for value, tensor in enumerate([*tensors]))
        assert is_all(captured, 1)


def a_tensor_dies_before_it_is_back() -> None:
    """Its memory is somebody else's at once, and the copy back must not write to it any more."""
    ours, (_, back) = torch.accelerator.current_stream(), streams_of_copies()
    with session():
        tensor = away(3)
        ours.synchronize()
        with held(back):
            _torch.prefetch([tensor])
            assert _torch.is_resident(tensor)
            del tensor
            other = numbers(5)
            event = ours.record_event()
            assert not event.query()
        assert is_all(other, 5)


def a_tensor_leaves_before_it_is_back() -> None:
    ours, (_, back) = torch.accelerator.current_stream(), streams_of_copies()
    with session():
        tensor = away(3)
        ours.synchronize()
        with held(back):
            _torch.prefetch([tensor])
            assert _torch.evict([tensor]) > 0
            other = numbers(5)
        assert is_all(other, 5)
        assert is_all(tensor, 3)


def memory_is_handed_over_in_order() -> None:
    """What comes back into memory that something leaves waits for it; so does what is born there."""
    ours, (out, _) = torch.accelerator.current_stream(), streams_of_copies()
    with session():
        tensor, leaves, born = away(3), numbers(4), numbers(5)
        ours.synchronize()
        with held(out):
            assert _torch.evict([leaves]) > 0
            _torch.prefetch([tensor])
            sums = tensor + 1
            assert _torch.evict([born]) > 0
            new = numbers(6)
        assert is_all(sums, 4)
        assert is_all(leaves, 4)
        assert is_all(born, 5)
        assert is_all(new, 6)


def another_stream_still_reads() -> None:
    ours, other = torch.accelerator.current_stream(), torch.Stream(device=DEVICE)
    with session():
        tensor, result = numbers(3), numbers(0)
        other.wait_stream(ours)
        with held(other):
            with other:
                result.copy_(tensor)
            tensor.mul_(1)
            assert _torch.evict([tensor]) == 0
        assert is_all(tensor, 3)
        ours.wait_stream(other)
        assert is_all(result, 3)


def all_is_back_at_the_end() -> None:
    """And goes on as plainly: nothing of the session's is kept."""
    plain = plainly("mlp-sgd")
    gc.collect()
    torch.accelerator.synchronize()
    torch.empty(1, pin_memory=True)  # PyTorch looks then which copies have ended
    before, pinned = torch.accelerator.memory_allocated(), lagging.load().pinned_bytes()
    for end in (nullcontext, partial(pytest.raises, ZeroDivisionError)):
        job = begin("mlp-sgd")
        with end(), ebbtide.Session("50%", policy="demand", **KEPT) as opened:
            losses = train(job, range(4), opened.step)
            weights = [parameter.detach() for parameter in job.net.parameters()]
            assert _torch.evict(weights) > 0
            if end is not nullcontext:
                raise ZeroDivisionError
        assert all(map(_torch.is_resident, weights))
        moved_before = _torch.counters()["evicted_bytes"]
        losses += train(job, range(4, STEPS))
        assert differences(bits(job, losses), plain) == ()
        assert _torch.counters()["evicted_bytes"] == moved_before
        del job, losses, weights, opened
        gc.collect()
        torch.accelerator.synchronize()
        torch.zeros(1, device=DEVICE)
        torch.empty(1, pin_memory=True)
        assert torch.accelerator.memory_allocated() == before
        assert (lagging.load().pinned_bytes(), _torch.counters()["tier_bytes"]) == (pinned, (0,))


def a_storage_that_python_alone_has() -> None:
    with session():
        storage, shared = away(3).untyped_storage(), away(3).untyped_storage()
        lagging.load().fill_storage(shared._cdata, 0x41)
        assert shared[4 * NUMBERS - 1] == 0x41
    assert storage.cpu()[3] == 0x40
    assert storage[4 * NUMBERS - 1] == 0x40


def little_host_memory() -> Verdict:
    return within(plainly("mlp-sgd"), "mlp-sgd", fast="50%", policy="demand", host_bytes="64KiB")


def a_full_disk(spill: str) -> Verdict:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    return within(plainly("gpt-adamw"), "gpt-adamw", fast="50%", policy="demand", host_bytes="128KiB", spill=spill)


def a_closed_file(spill: str) -> None:
    """What cannot be read is an error wherever it is used, and what is in memory goes on."""
    with redirect_stderr(io.StringIO()) as said, session(host_bytes="64KiB", spill=spill):
        there = numbers(9)
        tensors = [away(value) for value in range(12)]
        assert _torch.counters()["tier_bytes"][1] > 0
        for number in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{number}").startswith(f"{spill}/#"):
                    os.close(number)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"cannot come back: .*closed"):
                tensors[0].add_(1)
        assert is_all(there + 1, 10)
    assert re.search(r"of tensors did not come back: .*closed", said.getvalue())


def place_for_all_sizes(spill: str) -> None:
    """Where host memory is full of small copies, a large one has them written, and their memory joined."""
    with session(host_bytes="1MiB", spill=spill):
        small = [away(value) for value in range(60)]
        assert _torch.counters()["tier_bytes"][0] > 800 << 10
        large = [torch.full((NUMBERS * 40,), float(value), device=DEVICE) for value in range(3)]
        assert [_torch.evict([each]) for each in large] == [4 * 40 * NUMBERS] * 3
        assert _torch.counters()["tier_peak_bytes"][0] <= 1 << 20
        assert [is_all(tensor, value) for value, tensor in enumerate(small)] == [True] * 60
        assert [is_all(tensor, value) for value, tensor in enumerate(large)] == [True] * 3
    assert _torch.counters()["tier_bytes"] == (0,)


def a_copy_is_dropped_before_what_it_had_is_back(spill: str) -> None:
    """Host memory is short, so the copy of a tensor that is on its way back is dropped. It leaves again at once."""
    ours, (out, back) = torch.accelerator.current_stream(), streams_of_copies()

    def of(kib: int, value: int) -> Tensor:
        return torch.full((kib * 256,), float(value), device=DEVICE)

    with session(host_bytes="512KiB", spill=spill):
        tensor, other, fill = of(24, 3), of(24, 4), [of(40, 10 + number) for number in range(12)]
        _torch.evict([other, tensor])
        del other
        for _ in range(8):  # these operators notice that
            torch.zeros(1, device=DEVICE)
        ours.synchronize()
        out.synchronize()
        with held_for_a_while(back):
            _torch.prefetch([tensor])
            assert _torch.is_resident(tensor)
            written = _torch.counters()["tier_written_bytes"][0]
            assert _torch.evict(fill[:11]) == 11 * 40 << 10
            assert _torch.evict([tensor]) == 24 << 10
            assert _torch.counters()["tier_written_bytes"][0] == written + (11 * 40 + 24 << 10)  # its copy was dropped
        assert is_all(tensor, 3)
        assert [is_all(each, 10 + number) for number, each in enumerate(fill)] == [True] * 12


def a_session_after_one_that_left_something(spill: str) -> None:
    """More host memory is allowed than before, and other directories are named: both are used."""
    first, second = (os.path.join(spill, name) for name in "ab")
    os.mkdir(first)
    os.mkdir(second)
    with session(host_bytes="64KiB", spill=first):
        left = [away(value) for value in range(8)]
        kept = [tensor.untyped_storage() for tensor in left]
        del left  # Python alone has them, so they stay
        _torch.set_device_limit(1 << 14)  # more is wanted than may be
    assert _torch.counters()["tier_bytes"][0] > 0
    with session(host_bytes="256KiB", spill=second):
        tensors = [away(value) for value in range(40)]
        named = {os.path.dirname(os.readlink(f"/proc/self/fd/{number}")) for number in os.listdir("/proc/self/fd")[:-1]}
        assert {first, second} <= named
        assert [is_all(tensor, value) for value, tensor in enumerate(tensors)] == [True] * 40
    assert [storage.cpu()[4 * NUMBERS - 1] for storage in kept] == [0, *[0x3F] * 1, *[0x40] * 6]


ACTIONS: dict[str, int] = {
    "makes": 5,
    "evicts": 3,
    "fetches": 3,
    "drops": 3,
    "changes": 1,
    "reads": 2,
    "looks": 2,
    "fills without an operator": 1,
    "writes through an address": 1,
    "limits": 1,
}
"""How often each is taken, of all."""


def random_actions(seed: int, spill: str) -> tuple[int, int]:
    """Tensors whose values are known, of widely different sizes, in sessions one after another: how many actions were
    taken, and how many bytes were written to files."""
    chance, actions, written = random.Random(seed), 0, 0
    tensors: list[tuple[Tensor, float]] = []
    names = [name for name, times in ACTIONS.items() for _ in range(times)]

    def some() -> list[Tensor]:
        return [tensor for tensor, _ in chance.sample(tensors, min(len(tensors), chance.randrange(1, 20)))]

    for _ in range(24):
        wishes = {
            "fast": chance.choice(["1200KiB", "1MiB", "4MiB", "1GiB"]),
            "host_bytes": chance.choice([16 << 10, 64 << 10, 100_000, 1 << 20, 3 << 20]),
            "spill": chance.choice([spill, spill, spill, None]),
            "chaos_rate": chance.choice([0, 0.1, 0.4]),
            "chaos_seed": seed,
            "remake": chance.choice(["check", "0"]),
        }
        with session(**wishes):
            for _ in range(chance.randrange(20, 200)):
                actions += 1
                action = chance.choice(names) if tensors else "makes"
                if action == "makes":
                    value = float(chance.randrange(1000))
                    tensors.append((torch.full((int(2 ** chance.uniform(10, 18.5)),), value, device=DEVICE), value))
                    continue
                at = chance.randrange(len(tensors))
                tensor, value = tensors[at]
                if action == "evicts":
                    _torch.evict(some())
                elif action == "fetches":
                    _torch.prefetch(some())
                elif action == "drops":
                    tensors.pop(at)
                elif action == "changes":
                    tensors[at] = tensor.add_(1), value + 1
                elif action == "reads":
                    tensors.append((tensor + 2, value + 2))
                elif action == "looks":
                    assert is_all(tensor, value)
                elif action == "fills without an operator":
                    lagging.load().fill(tensor, 0)
                    tensors[at] = tensor, 0.0
                elif action == "writes through an address":
                    lagging.load().over(tensor).add_(3)
                    tensors[at] = tensor, value + 3
                else:
                    _torch.set_device_limit(chance.choice([100 << 10, 1 << 20, 8 << 20]))
            counts = _torch.counters()["tier_written_bytes"]
            written += sum(counts[1:])
        assert all(is_all(tensor, value) for tensor, value in tensors)
        tensors = [each for each in tensors if chance.random() < 0.5]
    return actions, written


def pinned_by() -> tuple[list[int], list[int]]:
    """Return how much host memory the training's thread pinned, and others, in large pieces."""
    with ebbtide.Session("1GiB", policy="demand", **KEPT) as opened:
        with opened.step():
            tensors = [numbers(value) for value in range(8)]
            _torch.set_device_limit(4 * 4 * NUMBERS)
        assert [is_all(tensor, value) for value, tensor in enumerate(tensors)] == [True] * 8
        assert _torch.counters()["tier_written_bytes"][0] > 0
    pieces = [(nbytes, thread) for nbytes, thread in lagging.load().pinned_by() if nbytes >= 64 << 20]
    ours = threading.get_native_id()
    return tuple([nbytes for nbytes, by in pieces if (by == ours) == mine] for mine in (True, False))


def less_than_an_operator_needs() -> Verdict:
    return within(plainly("mlp-sgd"), "mlp-sgd", fast="5%", policy="demand")


def is_out_of_memory() -> None:
    """Where the device itself has no memory left, an operator fails with a sentence, and what follows goes well."""
    with session():
        tensors = [away(value) for value in range(8)]
        for limit in (1, 1 << 30):  # what they had goes back to PyTorch
            _torch.set_device_limit(limit)
        torch.accelerator.empty_cache()
        lagging.load().set_capacity(torch.accelerator.memory_reserved() + 8 * NUMBERS)
        kept = [tensor.add_(0) for tensor in tensors[:2]]
        _torch.pin_on_device(kept[0])
        _torch.pin_on_device(kept[1])
        for _ in range(2):
            with pytest.raises(RuntimeError, match="out of memory"):
                tensors[2].add_(1)
        lagging.load().set_capacity(1 << 30)
        assert [is_all(tensor, value) for value, tensor in enumerate(tensors)] == [True] * 8
        assert _torch.evict(tensors[2:]) == 6 * 4 * NUMBERS


def fits_by_moving() -> tuple[str, ...]:
    """On a device that has not the memory to train plainly."""
    plain = plainly("own-functions")
    gc.collect()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    lagging.load().set_capacity(torch.accelerator.memory_reserved() + (7 << 19))
    with pytest.raises(torch.OutOfMemoryError):
        plainly("own-functions")
    gc.collect()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    job = begin("own-functions")
    with ebbtide.Session("3MiB", policy="demand", **KEPT) as opened:
        losses = train(job, range(STEPS), opened.step)
        assert opened.report().steps[-1].fetched_bytes.total > 0
        ours = bits(job, losses)
        lagging.load().set_capacity(1 << 30)
    return differences(ours, plain)


def threads_train() -> None:
    """Two models at once, one of them in steps, while a third thread makes and drops tensors."""
    names = ("mlp-sgd", "own-functions")
    plain = [plainly(name) for name in names]
    jobs = [begin(name) for name in names]
    ends = threading.Event()
    faults = []

    def makes() -> None:
        while not ends.is_set():
            made = [moved(batch(number)) for number in range(3)]
            faults.extend(
                number for number, (rows, _) in enumerate(made) if not torch.equal(rows.cpu(), batch(number)[0])
            )

    with (
        ebbtide.Session("1MiB", policy="demand", chaos_rate=0.2, chaos_seed=9, **KEPT) as opened,
        ThreadPoolExecutor(2) as pool,
    ):
        making = pool.submit(makes)
        second = pool.submit(train, jobs[1], range(STEPS))
        try:
            first = train(jobs[0], range(STEPS), opened.step)
        finally:
            ends.set()
        making.result()
        losses = [first, second.result()]
        assert all(sum(_torch.counters()[way]) > 0 for way in ("evicted_bytes", "fetched_bytes"))
    assert faults == []
    for job, its_losses, its_plain in zip(jobs, losses, plain, strict=True):
        assert differences(bits(job, its_losses), its_plain) == ()
