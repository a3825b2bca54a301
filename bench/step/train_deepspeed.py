"""Trains one of the benchmark's GPTs with DeepSpeed on the CPU: ZeRO stage 3, optimizer state on NVMe or in memory.

Run by an interpreter that has DeepSpeed 0.19, beside the packages that ``train.py`` needs. Its operators are compiled
at first use: that takes minutes, libaio's headers, and a ``TORCH_EXTENSIONS_DIR`` of its own is best.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
os.environ.setdefault("MASTER_PORT", "29511")

import deepspeed
import torch
from torch import Tensor

from bench.step.measured_loop import train
from bench.step.nets import NETS, Gpt
from bench.step.train import gpt_loss, gpt_model

SUB_GROUP = 20_000_000  # parameters that are reduced, and updated, together: 80 MB of fp32


def configuration(shape: Gpt, device: str, spill: Path) -> dict[str, object]:
    """``buffer_count`` is what the documentation asks for: parameter, gradient and moments of Adam, and one more."""
    offload: dict[str, object] = {"device": device, "pin_memory": False}
    if device == "nvme":
        offload |= {"nvme_path": str(spill), "buffer_count": 5}
    return {
        "train_micro_batch_size_per_gpu": shape.batch,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "bf16": {"enabled": shape.bf16},
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": SUB_GROUP,
            "reduce_bucket_size": SUB_GROUP,
            "offload_optimizer": offload,
        },
        "aio": {"block_size": 2**20, "queue_depth": 16, "intra_op_parallelism": 2},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train one of the benchmark's GPTs with DeepSpeed ZeRO-3.")
    parser.add_argument("net", choices=[name for name, net in NETS.items() if isinstance(net.shape, Gpt)])
    parser.add_argument("--offload", choices=["nvme", "cpu"], default="nvme", help="where the optimizer's state lies")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--spill", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args()
    shape = NETS[args.net].shape
    assert isinstance(shape, Gpt)
    torch.manual_seed(0)
    model = gpt_model(shape)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=configuration(shape, args.offload, args.spill)
    )
    loss = gpt_loss(shape, engine)

    def step() -> Tensor:
        value = loss()
        engine.backward(value)
        engine.step()
        return value.detach()

    # Its parameters are partitioned and its moments lie in files, so there are no hashes to compare: losses are.
    train(step, args.steps, args.result, weights=lambda: (), moments=lambda: ())


if __name__ == "__main__":
    main()
