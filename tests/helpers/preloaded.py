"""What the servers of processes import before they fork any: PyTorch, what its optimizers load, and all of Ebbtide.

Nothing has been computed after that. It is imported last, and freezes what is there: else a session in each fork looks
through 400,000 objects four times, and the kernel copies all that it touches. None of them is a tensor of the fork's.
So the fork counts as frozen only what it froze itself: a session looks for tensors in a frozen process by following
every reference, for a second each time.
"""

import gc
import pkgutil
from importlib import import_module

import torch._dynamo  # noqa: F401 (every optimizer imports it)

import ebbtide

LEFT_OUT = ("ebbtide.__main__", "ebbtide.after_import", "ebbtide.integrations")

for module in pkgutil.walk_packages(ebbtide.__path__, "ebbtide."):
    if not module.name.startswith(LEFT_OUT):
        import_module(module.name)


def freeze() -> None:
    """What a fork freezes itself counts."""
    gc.get_freeze_count = _count
    _freeze()


gc.collect()
gc.freeze()
_count, gc.get_freeze_count = gc.get_freeze_count, lambda: 0
_freeze, gc.freeze = gc.freeze, freeze
