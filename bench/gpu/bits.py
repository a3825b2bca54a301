"""U6 and D16: do storages with handles of their own, or the backward pass on one thread, change results?

Left out: which operator differs first where they do.
"""

import ctypes
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nets
import torch
from common import Device, digest, say
from torch import Tensor, nn

PROBE = Path(__file__).with_name("probe.py")


def train_once(device: Device, net: str, dtype: str, optimizer: str, steps: int, small: bool) -> dict[str, object]:
    """Some steps from fixed seeds; hashes of losses, and of parameters and optimizer state."""
    torch.manual_seed(0)
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    if net == "conv":
        model: nn.Module = nets.Conv(4 if small else 64)
        batch = torch.randn(2 if small else 32, 3, 32 if small else 128, 32 if small else 128).to(kind)
    else:
        shape, length = (nets.TINY, 16) if small else (nets.GPT_SMALL, 512)
        model = nets.Transformer(shape, length)
        batch = torch.randint(0, shape.words, (2 if small else 8, length))
    model, batch = model.to(device.name, kind), batch.to(device.name)
    tuned = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=optimizer == "fused", foreach=optimizer == "foreach")
    losses = []
    for _ in range(steps):
        loss = model(batch)
        loss.backward()
        tuned.step()
        tuned.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    state = (t for values in tuned.state.values() for t in values.values() if isinstance(t, Tensor))
    return {
        "losses": digest(iter(losses)),
        "state": digest(itertools.chain(model.parameters(), state)),
        "last_loss": losses[-1].item(),
    }


CONFIGURATIONS = [
    *itertools.product(["gpt"], ["fp32", "bf16"], ["fused", "foreach"]),
    *itertools.product(["conv"], ["fp32", "bf16"], ["foreach"]),
]


def bits_child(device: Device, allocator: str, deterministic: bool, backward: str, small: bool) -> None:
    slots: Callable[[], int] = int  # none
    if allocator == "vmm" and device.cuda:
        library = os.environ["EBBTIDE_PROBE_ALLOCATOR"]
        torch.cuda.memory.change_current_allocator(
            torch.cuda.memory.CUDAPluggableAllocator(library, "vmm_malloc", "vmm_free")
        )
        slots = ctypes.CDLL(library).vmm_slots
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = deterministic
    with torch.autograd.set_multithreading_enabled(backward == "threads"):
        for net, dtype, optimizer in CONFIGURATIONS:
            key = {"net": net, "dtype": dtype, "optimizer": optimizer}
            try:
                answer = train_once(device, net, dtype, optimizer, 3 if small else 20, small)
            except RuntimeError as error:
                answer = {"failed": str(error).splitlines()[0]}
            way = {"allocator": allocator, "deterministic": deterministic, "backward": backward}
            say("bits_run", **way, **key, **answer, slots=slots())


def bits(device: Device, small: bool) -> None:
    """Each way twice, each run a process of its own, since an allocator is chosen once. Then what equals what."""
    runs: list[dict[str, Any]] = []
    ways = [*itertools.product(["native", "vmm"], [False, True], ["threads"]), ("native", False, "one thread")]
    for repeat, (allocator, deterministic, backward) in itertools.product(range(2), ways):
        command = [sys.executable, str(PROBE), "bits_child", "--device", device.name, "--allocator", allocator]
        command += ["--backward", backward] + ["--deterministic"] * deterministic + ["--small"] * small
        environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if deterministic else None
        try:
            child = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            say("bits_failed", way=[allocator, deterministic, backward], why="took longer than 60 s")
            continue
        if child.returncode != 0:
            say("bits_failed", way=[allocator, deterministic, backward], why=child.stderr.strip().splitlines()[-1:])
        for line in child.stdout.splitlines():
            print(line, flush=True)
            runs.append(json.loads(line) | {"repeat": repeat})

    def answers(net: str, dtype: str, optimizer: str, way: tuple[str, bool, str]) -> list[object]:
        allocator, deterministic, backward = way
        wanted: dict[str, object] = {"net": net, "dtype": dtype, "optimizer": optimizer, "allocator": allocator}
        wanted |= {"deterministic": deterministic, "backward": backward}
        return [(r.get("losses"), r.get("state")) for r in runs if wanted.items() <= r.items() and "state" in r]

    for configuration, deterministic in itertools.product(CONFIGURATIONS, [False, True]):
        native = answers(*configuration, ("native", deterministic, "threads"))
        ours = answers(*configuration, ("vmm", deterministic, "threads"))
        single = answers(*configuration, ("native", False, "one thread"))
        whole = len(native) == len(ours) == 2
        fields: dict[str, object] = {"native_repeats": len(native) == 2 and native[0] == native[1]}
        fields |= {"vmm_repeats": len(ours) == 2 and ours[0] == ours[1], "vmm_equals_native": whole and native == ours}
        if not deterministic:
            fields["one_thread_equals_native"] = len(single) == 2 and single == native
        net, dtype, optimizer = configuration
        say("bits", net=net, dtype=dtype, optimizer=optimizer, deterministic=deterministic, **fields)
