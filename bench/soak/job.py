"""What a seed of the soak stands for: a network and its sizes, an optimizer, how steps are made, how Ebbtide runs."""

import random
from dataclasses import dataclass

NETS = ("mlp", "convolutions", "gpt", "lstm", "embedding")
OPTIMIZERS = {
    "sgd": ("SGD", {"lr": 0.01}),
    "sgd-momentum": ("SGD", {"lr": 0.01, "momentum": 0.9}),
    "sgd-fused": ("SGD", {"lr": 0.01, "fused": True}),
    "adam-foreach": ("Adam", {"lr": 1e-3, "foreach": True}),
    "adamw-loop": ("AdamW", {"lr": 1e-3, "foreach": False}),
    "adamw-foreach": ("AdamW", {"lr": 1e-3, "foreach": True}),
    "adamw-fused": ("AdamW", {"lr": 1e-3, "fused": True, "amsgrad": True}),
    "adagrad": ("Adagrad", {"lr": 0.01}),
    "rmsprop": ("RMSprop", {"lr": 1e-3, "momentum": 0.9}),
    "adafactor": ("Adafactor", {"lr": 1e-2}),
}
POLICIES = ("ebbtide", "ebbtide", "ebbtide", "demand", "demand", "lru", "evict-all", "first-touch", "lru-next-use")
FAULTS = {
    "none": "",
    "EIO on writing for a time": "pwritev:{at}:{few}:5",
    "no space for a time": "pwritev:{at}:{few}:28",
    "one EIO on reading": "preadv:{at}:1:5",
    "one flipped bit": "preadv:{at}:1:flip",
    "slow calls": "preadv:{at}:200:slow{few} pwritev:{at}:200:slow{few}",
    "short transfers": "preadv:0:500:short pwritev:0:500:short",
}


@dataclass(frozen=True, slots=True)
class Job:
    """What a seed stands for."""

    seed: int
    net: str
    optimizer: str
    steps: int
    batch: int
    width: int
    depth: int
    lengths: tuple[int, ...]  # of sequences or images, step by step in turn
    micro_batches: int
    clip: bool
    autocast: bool
    recompute: bool
    keep_gradients: bool
    workers: int  # of the data loader
    saved_after: int  # the step after which everything is saved and loaded again; -1: never
    threads: int
    fast_percent: int
    by_step: bool  # steps enclosed by session.step(), else as the optimizer's are found
    policy: str
    fault: str
    directories: int
    variables: dict[str, str]

    @staticmethod
    def of(seed: int) -> "Job":
        draw = random.Random(seed)
        net = draw.choice(NETS)
        fault = FAULTS[draw.choice(list(FAULTS) if draw.random() < 0.5 else ["none"])]
        variables = {
            "EBBTIDE_MIN_STORAGE": str(draw.choice((4096, 4096, 16384, 65536))),
            "EBBTIDE_IO_THREADS": str(draw.choice((1, 2, 2, 4))),
            "EBBTIDE_CHAOS_RATE": draw.choice(("0", "0", "0.02", "0.1", "0.3")),
            "EBBTIDE_CHAOS_SEED": str(seed % 2**32),
            "EBBTIDE_WAIT_FOR_PLAN": "0" if seed % 4 == 0 else "1",  # a job is short: most wait
            "EBBTIDE_CHECKSUM": "1",
            "EBBTIDE_REMAKE": "0" if seed % 3 == 0 else "check",
        }
        return Job(
            seed=seed,
            net=net,
            optimizer=draw.choice(list(OPTIMIZERS)),
            steps=draw.randint(6, 14),
            batch=draw.choice((4, 8, 12)),
            width=draw.choice((64, 96, 128, 192, 256)),
            depth=draw.randint(2, 6),
            lengths=tuple(draw.choice((24, 32, 48)) for _ in range(draw.choice((1, 1, 2, 3)))),
            micro_batches=draw.choice((1, 1, 2, 3)),
            clip=draw.random() < 0.3,
            autocast=draw.random() < 0.25,
            recompute=draw.random() < 0.2,
            keep_gradients=draw.random() < 0.3,
            workers=draw.choice((0, 0, 0, 1, 2)),
            saved_after=draw.choice((-1, -1, 3, 5)),
            threads=draw.choice((1, 2, 2)),
            fast_percent=draw.choice((25, 30, 40, 50, 60, 75, 90)),
            by_step=draw.random() < 0.6,
            policy=draw.choice(POLICIES),
            fault=fault.format(at=draw.randint(0, 300), few=draw.randint(1, 12)),
            directories=draw.choice((1, 1, 2)),
            variables=variables,
        )
