"""DeepSpeed's ZeRO, stages 1 to 3, with its CPU accelerator, and with its optimizer offloaded.

torchrun --nproc-per-node 2 deepspeed_zero.py --stage 2 --out plain
torchrun --nproc-per-node 2 --no-python ebbtide run --fast 60% deepspeed_zero.py --stage 2 --out ebbtide
deepspeed --no_python --no_local_rank ebbtide run --fast 60% deepspeed_zero.py --stage 2 --out ebbtide
"""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
from common import VOCABULARY, arguments, budget, leave, sentences
from transformers import GPT2Config, GPT2LMHeadModel

BUCKETS = ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--sub-group", type=int, default=500_000, help="of stage 3: parameters that step at a time")
    parser.add_argument("--offload", action="store_true", help="DeepSpeed's own ZeRO-Offload, to host memory")
    parser.add_argument("--default-buckets", action="store_true", help="as large as DeepSpeed makes them: 2 GB")
    args = parser.parse_args()
    torch.manual_seed(0)
    zero = {"stage": args.stage, "stage3_param_persistence_threshold": 10_000, "sub_group_size": args.sub_group}
    if not args.default_buckets:  # of which a small model uses a hundredth
        zero |= dict.fromkeys(BUCKETS, 1_000_000)
    if args.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": not args.offload}},
        "steps_per_print": 10**9,
    }
    deepspeed.init_distributed(dist_backend="gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=256, n_layer=4, n_head=4))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    losses = []
    with budget(args.fast):
        for batch in sentences(4 * ranks * args.steps, 128).split(4)[rank::ranks]:
            loss = engine(input_ids=batch, labels=batch).loss
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=args.stage == 3):
        leave(args.out, model.state_dict(), losses)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
