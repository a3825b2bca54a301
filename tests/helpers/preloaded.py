"""What the servers of processes import before they fork any: PyTorch, what optimizers load, Transformers, Ebbtide.

After that one thread computes two numbers. Where a team of threads makes MKL's first call, plain PyTorch has other bits
once in a few hundred processes (pytorch/pytorch#188792), and tests compare with it. Nothing else has been computed.

This module is imported last, and freezes what is there: else a session in each fork looks through 400,000 objects four
times, and the kernel copies all that it touches. None of them is a tensor of the fork's. So the fork counts as frozen
only what it froze itself: a session looks for tensors in a frozen process by following every reference, for a second
each time.
"""

import gc
import pkgutil
import weakref
from importlib import import_module

import torch
import torch._dynamo  # every optimizer imports it
from _pytest.assertion import install_importhook
from _pytest.config import get_config

import ebbtide

LEFT_OUT = ("ebbtide.__main__", "ebbtide.after_import", "ebbtide.integrations")

for model in ("gpt2", "llama", "vit", "resnet", "convnext"):
    import_module(f"transformers.models.{model}.modeling_{model}")
import_module("transformers.trainer")
for module in pkgutil.walk_packages(ebbtide.__path__, "ebbtide."):
    if not module.name.startswith(LEFT_OUT):
        import_module(module.name)

install_importhook(get_config())  # a test that fails in a fork shows what its assertion compared
torch.ones(2).sqrt()
for finalizer in weakref.finalize._registry:
    finalizer.atexit = False  # of what was imported, and each fork would copy the memory that it touches


def freeze() -> None:
    """What a fork freezes itself counts."""
    gc.get_freeze_count = _count
    _freeze()


gc.collect()
gc.freeze()
_count, gc.get_freeze_count = gc.get_freeze_count, lambda: 0
_freeze, gc.freeze = gc.freeze, freeze
