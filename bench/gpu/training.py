"""U12 and U13: large nets as they train today. How far ahead the host is, how large storages are, what others cost."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import nets
import torch
from common import MIB, Device, median, say, seconds_of
from offload import Offload
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def large_nets(small: bool) -> dict[str, tuple[nets.Shape, int, int]]:
    """Name: shape, batch, length."""
    if small:
        return {"tiny": (nets.TINY, 2, 16)}
    return {"gpt2-xl": (nets.GPT2_XL, 8, 1024), "4-layers-of-llama-8b": (nets.LLAMA_8B_LAYERS, 2, 4096)}


Step = Callable[[], Tensor]


@contextmanager
def trained(device: Device, shape: nets.Shape, batch: int, length: int) -> Iterator[tuple[nets.Transformer, Step]]:
    """The net in bf16 with AdamW, and a step."""
    torch.manual_seed(0)
    with torch.device(device.name):
        model = nets.Transformer(shape, length).to(torch.bfloat16)
        words = torch.randint(0, shape.words, (batch, length))
    tuned = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=True)

    def step() -> Tensor:
        loss = model(words)
        loss.backward()
        tuned.step()
        tuned.zero_grad(set_to_none=True)
        return loss.detach()

    yield model, step
    del step
    tuned.state.clear()


def run_ahead(model: nets.Transformer, step: Step) -> list[float]:
    """By how many ms the device was behind the host at the end of each layer's forward."""
    seen: list[tuple[float, Any]] = []

    def note(*_: object) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        seen.append((time.perf_counter(), event))

    hooks = [block.register_forward_hook(note) for block in model.blocks]
    torch.cuda.synchronize()
    note()
    step()
    torch.cuda.synchronize()
    for hook in hooks:
        hook.remove()
    (start, first), *rest = seen
    return [first.elapsed_time(event) - (at - start) * 1e3 for at, event in rest]


def births(step: Step) -> dict[str, object]:
    """How many storages a step allocates, and their bytes, by size."""
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python", context=None)
    step()
    torch.cuda.synchronize()
    traces = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    sizes = [entry["size"] for entry in traces if entry["action"] == "alloc"]
    borders = [0, 1, 2, 4, 8, 16, 64, 256, 1 << 20]
    counts: dict[str, object] = {}
    for low, high in itertools.pairwise(borders):
        inside = [s for s in sizes if low * MIB <= s < high * MIB]
        counts[f"from_{low}_mib"] = [len(inside), sum(inside)]
    return counts


def dispatch(device: Device, small: bool) -> None:
    for name, (shape, batch, length) in large_nets(small).items():
        device.forget_peak()
        say("dispatch", net=name, batch=batch, length=length, **dispatch_of(device, shape, batch, length))


def dispatch_of(device: Device, shape: nets.Shape, batch: int, length: int) -> dict[str, object]:
    with trained(device, shape, batch, length) as (model, step):
        step()
        whole, host = [], []
        for _ in range(4):
            device.wait()
            start = time.perf_counter()
            step()
            host.append(time.perf_counter() - start)
            device.wait()
            whole.append(time.perf_counter() - start)
        fields: dict[str, object] = {"step_s": whole, "host_s": host, **device.peaks()}
        fields["parameters"] = sum(p.numel() for p in model.parameters())
        fields["tflop_s"] = nets.flops_of_step(shape, batch, length) / median(whole) / 1e12
        if device.cuda:
            fields["behind_ms_at_layers"] = run_ahead(model, step)
            fields["births"] = births(step)
            fields["small_pool_reserved"] = torch.cuda.memory_stats()["reserved_bytes.small_pool.peak"]
        with torch.autograd.set_multithreading_enabled(False):  # as D16 would run it
            fields["step_on_one_thread_s"] = [seconds_of(device, step) for _ in range(3)]
        return fields


def baselines(device: Device, small: bool) -> None:
    for name, (shape, batch, length) in large_nets(small).items():
        plain_losses: object = None
        for way in ("plain", "checkpoint", "save_on_cpu", "offload", "plain"):
            device.forget_peak()
            try:
                losses, fields = baseline_of(device, shape, batch, length, way)
            except torch.OutOfMemoryError as error:
                say("baseline", net=name, way=way, failed=str(error).splitlines()[0])
                continue
            plain_losses = plain_losses or losses
            say("baseline", net=name, way=way, losses_as_plain=losses == plain_losses, **fields)


def baseline_of(
    device: Device, shape: nets.Shape, batch: int, length: int, way: str
) -> tuple[list[float], dict[str, object]]:
    """Losses of four steps, and seconds of the last three."""
    with trained(device, shape, batch, length) as (model, step):
        around: Any = nullcontext()
        if way == "checkpoint":
            model.around = lambda block, x: checkpoint(block, x, use_reentrant=False)
        elif way == "save_on_cpu":
            around = torch.autograd.graph.save_on_cpu(pin_memory=device.cuda)
        elif way == "offload":
            around = Offload(model.parameters(), smallest=MIB if device.cuda else 0)
        losses, times = [], []
        with around:
            for _ in range(4):
                device.wait()
                start = time.perf_counter()
                losses.append(step())
                device.wait()
                times.append(time.perf_counter() - start)
        moved = around.moved if isinstance(around, Offload) else None
        return [loss.item() for loss in losses], {"step_s": times[1:], "bytes_out": moved, **device.peaks()}
