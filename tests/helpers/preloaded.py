"""What the servers of processes import before they fork any: PyTorch, what its optimizers load, and all of Ebbtide.

Nothing has been computed after that. A session looks through the collector's objects for tensors, and these are frozen:
they are no longer among them. It is imported last, so that all that the server has imported is.
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
gc.freeze()
