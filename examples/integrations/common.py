"""What the scripts beside this one share: their arguments, a text to learn, and what they leave behind.

A script writes what it has learnt to ``--out``: ``weights.RANK.pt``, a dict of tensors, and ``losses.RANK.json``. So
two runs can be compared byte by byte, as ``python -m bench.integrations`` does.

With ``--fast`` a script asks for Ebbtide itself.
"""

import argparse
import json
import os
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

VOCABULARY = 256
"""Texts are bytes."""


def arguments(about: str) -> argparse.ArgumentParser:
    """Whose ``parse_args`` a script calls, once it has added its own."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps")
    parser.add_argument("--out", type=Path, required=True, help="the directory that weights and losses go to")
    parser.add_argument("--fast", help="a budget for Ebbtide, from within; without it the script knows nothing of that")
    return parser


def budget(fast: str | None) -> AbstractContextManager[object]:
    """Around the training: a session of Ebbtide's, or nothing."""
    if fast is None:
        return nullcontext()
    import ebbtide

    return ebbtide.Session(fast=fast)


def sentences(count: int, length: int) -> torch.Tensor:
    """``count`` rows of ``length`` bytes, from the sources of Python's standard library."""
    text = b""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= count * length:
            break
    return torch.frombuffer(bytearray(text[: count * length]), dtype=torch.uint8).view(count, length).long()


def leave(out: Path, weights: Mapping[str, torch.Tensor], losses: Iterable[float]) -> None:
    """Of several ranks each leaves its own."""
    rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))  # the latter by Lightning
    out.mkdir(parents=True, exist_ok=True)
    torch.save({name: tensor.detach().cpu().clone() for name, tensor in weights.items()}, out / f"weights.{rank}.pt")
    (out / f"losses.{rank}.json").write_text(json.dumps(list(losses)))
