"""The device of the tests' own: networks train on it as on the CPU, and who forgets to wait gets other bytes.

Where a fault must show, a gate holds a stream until the other side has gone on. So no test hopes for a slow thread.
"""

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

from tests.device import lagging
from tests.device.lagging import held
from tests.helpers import child
from tests.training.device_jobs import (
    Bits,
    Checkpointed,
    Images,
    Job,
    Make,
    Tokens,
    bits,
    conv,
    gpt,
    mlp,
    train,
    with_dropout,
)

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
FORGOTTEN = [
    "that it is written before it is copied",
    "that it is copied before it is freed",
    "who had the memory before",
    "that it is there before it is read",
]
"""A wait each, of a storage that moves."""
pytestmark = pytest.mark.in_child(ONE_THREAD, lagging.load)
DEVICE = lagging.DEVICE
STEPS = 5
NUMBERS = 1 << 16


def updates(foreach: bool) -> list[Make]:
    with_momentum = partial(optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01, foreach=foreach)
    return [with_momentum, partial(optim.AdamW, lr=0.01, foreach=foreach)]


def gpt_job(make: Make, device: str) -> Job:
    job = Tokens(gpt(), make, device)
    job.net.config._attn_implementation = "eager"  # of the fused ones, each device has its own
    return job


NETS: dict[str, Callable[[Make, str], Job]] = {
    "mlp": lambda make, device: Job(mlp(), make, device),
    "conv": lambda make, device: Images(conv(), make, device),
    "gpt": gpt_job,
}


@contextmanager
def alone() -> Iterator[None]:
    """What is late in a step is done before the next one: late bytes would lie where that has its labels."""
    yield
    torch.accelerator.synchronize()


def trained(begin: Callable[[], Job], each: Callable[[], AbstractContextManager[None]] = nullcontext) -> Bits:
    """The bits of losses, parameters, gradients and the optimizer's state, after steps with one batch."""
    torch.manual_seed(1)
    job = begin()
    return bits(job, train(job, [0] * STEPS, each))


@pytest.mark.alike
@pytest.mark.parametrize("net", ["mlp", "conv", "gpt"])
def test_networks_train_with_the_same_bits_as_on_the_cpu(net: str) -> None:
    for make in (*updates(foreach=False), *updates(foreach=True)):
        first = trained(partial(NETS[net], make, DEVICE))
        assert struct.unpack("f", first[f"loss {STEPS - 1}"]) < struct.unpack("f", first["loss 0"])
        assert first == trained(partial(NETS[net], make, DEVICE))
        assert first == trained(partial(NETS[net], make, "cpu"))
    # Nothing has the host wait before the end, or the device would find little.
    assert sum(beside for beside, _ in lagging.load().calls().values()) > 1000
    assert {operator for operator, (_, waited_for) in lagging.load().calls().items() if waited_for} == set()


def test_trains_with_checkpoints() -> None:
    """The mask of the dropout is drawn again in the backward pass."""
    plain = trained(lambda: Job(with_dropout()))
    assert plain == trained(lambda: Checkpointed(with_dropout()))
    assert plain == trained(lambda: Checkpointed(with_dropout(), reentrant=True))
    assert plain != trained(lambda: Job(with_dropout().eval()))


def test_trains_on_another_stream() -> None:
    with torch.Stream(device=DEVICE):
        other = trained(lambda: Job(mlp()))
    assert other == trained(lambda: Job(mlp()))


def two_streams() -> tuple[torch.Stream, torch.Stream]:
    return torch.accelerator.current_stream(), torch.Stream(device=DEVICE)


def numbers(value: float) -> Tensor:
    """Written when it is returned."""
    made = torch.full((NUMBERS,), float(value), device=DEVICE)
    torch.accelerator.synchronize()
    return made


def is_all(tensor: Tensor, value: float) -> bool:
    torch.accelerator.synchronize()
    return bool((tensor.cpu() == value).all())


def test_freed_while_another_stream_reads() -> None:
    ours, other = two_streams()
    for records in (False, True):
        read = numbers(3)
        result = numbers(0)
        with held(other):
            with other:
                result.copy_(read)
            if records:
                read.record_stream(other)
            address = read.data_ptr()
            del read
            again = torch.full((NUMBERS,), 5.0, device=DEVICE)
            ours.synchronize()
            assert (again.data_ptr() == address) is not records
        assert is_all(result, 3) is records


def test_given_out_again_when_the_other_stream_has_read() -> None:
    _, other = two_streams()
    freed = numbers(3)
    address = freed.data_ptr()
    with held(other):
        freed.record_stream(other)
        del freed
        kept = torch.empty(NUMBERS, device=DEVICE)
        assert kept.data_ptr() != address
    other.synchronize()
    assert torch.empty(NUMBERS, device=DEVICE).data_ptr() == address
    with other:
        assert torch.empty(NUMBERS, device=DEVICE).data_ptr() != address


def moved(tensors: list[Tensor], forgets: str) -> None:
    """All leave for pinned memory and come back elsewhere, beside the stream that computes, which waits by events."""
    computes, copies = two_streams()
    addresses = [tensor.data_ptr() for tensor in tensors]

    def after(first: torch.Stream, then: torch.Stream, what: str) -> None:
        if forgets != what:
            then.wait_event(first.record_event())

    after(computes, copies, "that it is written before it is copied")
    with copies:
        kept = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in tensors]
        for tensor, copy in zip(tensors, kept, strict=True):
            copy.copy_(tensor, non_blocking=True)
    after(copies, computes, "that it is copied before it is freed")
    sizes = [tensor.untyped_storage().nbytes() for tensor in tensors]
    for tensor in tensors:
        tensor.untyped_storage().resize_(0)
    for tensor, nbytes in zip(tensors, sizes, strict=True):
        tensor.untyped_storage().resize_(nbytes)
    after(computes, copies, "who had the memory before")
    with copies:
        for tensor, copy in zip(tensors, kept, strict=True):
            tensor.copy_(copy, non_blocking=True)
    after(copies, computes, "that it is there before it is read")
    assert addresses != [tensor.data_ptr() for tensor in tensors]


@pytest.mark.parametrize("forgets", ["", *FORGOTTEN])
def test_a_training_whose_storages_move_must_wait(forgets: str) -> None:
    """A training that waits has its bits. In one that forgets one of the waits, some tensor is late before long."""

    def moves() -> Job:
        job = Job(mlp())

        def before_update(*_: object) -> None:
            moved([tensor for one in job.net.parameters() for tensor in (one.detach(), one.grad)], forgets)

        job.optimizer.register_step_pre_hook(before_update)
        return job

    plain = trained(lambda: Job(mlp()))
    assert all(trained(moves, alone) == plain for _ in range(3)) is (forgets == "")


def test_freed_and_read_by_the_same_stream() -> None:
    ours, _ = two_streams()
    result = numbers(0)
    with held(ours):
        read = torch.full((NUMBERS,), 3.0, device=DEVICE)
        result.copy_(read)
        del read
        torch.full((NUMBERS,), 5.0, device=DEVICE)
    assert is_all(result, 3)


def test_no_event_between_streams() -> None:
    ours, other = two_streams()
    for waits in (False, True):
        written = numbers(1)
        result = numbers(0)
        with held(ours):
            written.fill_(2)
            if waits:
                other.wait_event(ours.record_event())
            with other:
                result.copy_(written)
            if not waits:
                other.synchronize()
        assert is_all(result, 2 if waits else 1)


def test_a_kernel_has_the_pointers_of_its_call() -> None:
    """Whoever gives a storage other memory must have copied, and have waited."""
    ours, _ = two_streams()
    moved, elsewhere = numbers(1), numbers(2)
    with held(ours):
        result = moved * 10
        moved.set_(elsewhere)
    assert is_all(result, 10)
    assert is_all(moved * 10, 20)


def test_freed_memory_is_garbage() -> None:
    read = numbers(3)
    address = read.data_ptr()
    del read
    torch.accelerator.synchronize()
    assert set(ctypes.string_at(address, 4 * NUMBERS)) == {0xEE}
    assert (torch.empty(100, dtype=torch.uint8, device=DEVICE).cpu() == 0xEE).all()


def test_the_host_does_not_wait() -> None:
    ours, _ = two_streams()
    source = numbers(7)
    target = torch.zeros(NUMBERS, pin_memory=True)
    with held(ours):
        target.copy_(source, non_blocking=True)
        assert (target == 0).all()
    ours.synchronize()
    assert (target == 7).all()
    pageable = torch.zeros(NUMBERS)
    pageable.copy_(source, non_blocking=True)
    assert (pageable == 7).all()


def test_pinned_memory_changes_before_its_copy() -> None:
    ours, _ = two_streams()
    source = torch.full((NUMBERS,), 3.0).pin_memory()
    assert source.is_pinned()
    assert not torch.empty(3).is_pinned()
    with held(ours):
        moved = source.to(DEVICE, non_blocking=True)
        source.fill_(4)
    assert is_all(moved, 4)
    with held(ours):  # a freed one is kept for its copy
        moved = source.to(DEVICE, non_blocking=True)
        del source
        other = torch.full((NUMBERS,), 5.0).pin_memory()
    assert is_all(moved, 4)
    assert is_all(other.to(DEVICE), 5)


def read_after_it_went_back_to_the_system() -> None:
    """Never returns."""
    read = numbers(3)
    address = read.data_ptr()
    assert ctypes.string_at(address, 4) == b"\0\0\x40\x40"
    del read
    torch.accelerator.empty_cache()
    ctypes.string_at(address, 4)


def test_counts_its_memory() -> None:
    memory = torch.accelerator
    before = memory.memory_allocated()
    one = torch.empty(1000, dtype=torch.uint8, device=DEVICE)
    assert memory.memory_allocated() - before == 1024
    two = torch.empty(1 << 20, dtype=torch.uint8, device=DEVICE)
    assert memory.memory_allocated() - before == 1024 + (1 << 20)
    del two
    assert memory.memory_allocated() - before == 1024
    assert memory.max_memory_allocated() - before == 1024 + (1 << 20)
    memory.reset_peak_memory_stats()
    assert memory.max_memory_allocated() - before == 1024
    reserved = memory.memory_reserved()
    memory.empty_cache()
    assert reserved - memory.memory_reserved() >= 1 << 20
    one.untyped_storage().resize_(0)
    assert memory.memory_allocated() == before
    one.untyped_storage().resize_(1000)
    assert memory.memory_allocated() - before == 1024


def test_tells_the_profiler() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        kept = torch.empty(4096, dtype=torch.uint8, device=DEVICE)
        torch.empty(512, dtype=torch.uint8, device=DEVICE)
    told = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert told == [4096, 512, -512]
    del kept


def test_is_out_of_memory() -> None:
    lagging.load().set_capacity(torch.accelerator.memory_reserved() + (3 << 20))
    kept = torch.empty(2 << 20, dtype=torch.uint8, device=DEVICE)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(2 << 20, dtype=torch.uint8, device=DEVICE)
    del kept
    larger = torch.empty(3 << 20, dtype=torch.uint8, device=DEVICE)  # what was cached makes room
    assert torch.accelerator.get_memory_info()[0] == 0, torch.accelerator.get_memory_info()
    del larger


def test_draws_in_the_hosts_order() -> None:
    def draws() -> list[list[float]]:
        torch.manual_seed(7)
        drawn = []
        for _ in range(3):
            drawn += [torch.rand(3, device=DEVICE), torch.randn(3), torch.randn(3, device=DEVICE)]
            with torch.Stream(device=DEVICE):
                drawn.append(torch.rand(3, device=DEVICE))
        torch.accelerator.synchronize()
        return [tensor.tolist() for tensor in drawn]

    first = draws()
    assert first == draws()
    assert len({tuple(drawn) for drawn in first}) == 12
    own = torch.Generator(DEVICE).manual_seed(3)
    assert (
        torch.rand(3, device=DEVICE, generator=own).tolist() == torch.rand(3, generator=torch.manual_seed(3)).tolist()
    )


def test_tells_an_error_where_the_host_waits() -> None:
    ours, _ = two_streams()
    table = torch.zeros(4, 2, device=DEVICE)
    wrong = torch.tensor([9], device=DEVICE)
    with held(ours):
        F.embedding(wrong, table)
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        ours.synchronize()
    assert is_all(table, 0)


def test_events_pass_when_the_work_is_done() -> None:
    ours, _ = two_streams()
    event = torch.Event(device=DEVICE, enable_timing=True)
    later = torch.Event(device=DEVICE, enable_timing=True)
    with held(ours):
        event.record()
        later.record()
        assert not event.query()
        assert not ours.query()
    event.synchronize()
    assert event.query()
    later.synchronize()
    assert event.elapsed_time(later) >= 0


def test_sizes_that_only_the_kernel_knows() -> None:
    """Of batch norm's statistics; of an `out` that is larger while the kernel computes, or that data make larger."""
    inputs = torch.arange(24.0).reshape(4, 6)
    here = inputs.to(DEVICE)
    assert torch.equal(F.mse_loss(here, 2 * here).cpu(), F.mse_loss(inputs, 2 * inputs))
    assert torch.equal(here[here > 5].cpu(), inputs[inputs > 5])
    indices = torch.empty(0, dtype=torch.long, device=DEVICE)
    torch.nonzero(here > 5, out=indices)
    assert torch.equal(indices.cpu(), (inputs > 5).nonzero())
    norm = nn.BatchNorm1d(6).eval()
    expected = norm(inputs)
    assert torch.equal(norm.to(DEVICE)(here).cpu(), expected)
    turned = torch.complex(inputs, inputs)
    assert torch.equal(turned.to(DEVICE).conj().cpu(), turned.conj())


def test_its_kernels_are_no_operators() -> None:
    """A callback on every thread sees what the host calls, and nothing that a stream's thread does."""
    every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    numbers(1)
    with torch.profiler.profile(experimental_config=every_thread) as profile:
        numbers(1) * 2
        torch.accelerator.synchronize()
    events = [event for event in profile.profiler.kineto_results.events() if event.name().startswith("aten::")]
    assert "aten::mul" in {event.name() for event in events}
    assert len({event.start_thread_id() for event in events}) == 1, [(e.name(), e.start_thread_id()) for e in events]


def test_what_was_saved_is_loaded_onto_it(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    torch.manual_seed(1)
    net = mlp().to(DEVICE)
    torch.save(net.state_dict(), path)
    loaded = torch.load(path)
    assert all(value.device.type == DEVICE for value in loaded.values())
    for name, value in torch.load(path, map_location="cpu").items():
        assert torch.equal(value, loaded[name].cpu())
        assert torch.equal(loaded[name], net.state_dict()[name])


@pytest.mark.here
def test_memory_that_went_back_to_the_system_cannot_be_read() -> None:
    with pytest.raises(child.ChildError, match="Segmentation fault"):
        child.run(read_after_it_went_back_to_the_system, env=ONE_THREAD, first=[lagging.load])
