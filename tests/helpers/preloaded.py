"""What the servers of processes import before they fork any: PyTorch, what its optimizers load, and all of Ebbtide.

Nothing has been computed after that. It is imported last, so that the collector has looked through it all once. It is
not frozen: whoever looks for tensors in a frozen process follows every reference, for a second each time.
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


gc.collect()
