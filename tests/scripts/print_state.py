"""Prints what a script can see of its process as JSON: as it begins, and when it has trained. Each step warns."""

import atexit
import decimal
import faulthandler
import gc
import json
import locale
import logging
import multiprocessing
import os
import pickle
import random
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.backends import mkldnn


def of_kernel(*names: str) -> dict[str, str]:
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return {name: fields[name].strip() for name in names}


def named(function: Callable[..., object] | int | None) -> str:
    """A wrapper has the name of what it wraps."""
    return getattr(function, "__qualname__", str(function))


DOORS = [getattr(torch.Tensor, name) for name in ("numpy", "data_ptr", "untyped_storage", "__dlpack__")]


class Asked(torch.Tensor):
    """Notes what is asked of it, and answers ``numpy`` itself."""

    asked: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        cls.asked.append(func.__name__)
        return "its own" if func == torch.Tensor.numpy else super().__torch_function__(func, types, args, kwargs or {})


def of_functions() -> list[object]:
    Asked.asked.clear()
    tensor = torch.ones(70_000).as_subclass(Asked)
    answered = [named(type(getattr(tensor, door.__name__)())) for door in DOORS]
    kept = [pickle.loads(pickle.dumps(each)) == each for each in (*DOORS, os._exit, os.execv, signal.signal)]
    return [answered, Asked.asked.copy(), kept, [torch.overrides.resolve_name(door) for door in DOORS]]


def state() -> dict[str, object]:
    return {
        "start method": multiprocessing.get_start_method(allow_none=True),
        "children": multiprocessing.active_children(),
        "warnings": [str(each) for each in warnings.filters],
        "hooks": [named(each) for each in (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook)],
        "shown warnings": [named(each) for each in (warnings.showwarning, warnings.formatwarning)],
        "handlers": {number: named(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
        "atexit": atexit._ncallbacks(),
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "kernel": of_kernel("SigBlk", "SigIgn", "SigCgt", "Umask", "Cpus_allowed", "CoreDumping", "NoNewPrivs"),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT_" in name},
        "paths": [sys.path, sys.argv, os.getcwd(), __file__, __name__],
        "environment": dict(os.environ),
        "flags": [str(sys.flags), sys.warnoptions, sys.dont_write_bytecode, sys.get_int_max_str_digits()],
        "streams": [[named(type(each)), each.encoding, each.errors] for each in (sys.stdin, sys.stdout, sys.stderr)],
        "interpreter": [sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile()],
        "threads": [threading.stack_size(), named(threading.current_thread() is threading.main_thread())],
        "listed threads": [each.name for each in threading.enumerate()],
        "garbage": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug(), len(gc.callbacks)],
        "locale": [locale.setlocale(locale.LC_ALL), str(decimal.getcontext())],
        "logging": [logging.root.level, len(logging.root.handlers), logging.root.manager.disable],
        "process": [faulthandler.is_enabled(), os.nice(0), sorted(os.sched_getaffinity(0))],
        "NumPy": [np.geterr(), str(np.get_printoptions())],
        "generators": [sum(random.getstate()[1]), repr(np.random.get_state()), torch.get_rng_state().sum().item()],
        "defaults": [str(torch.get_default_dtype()), str(torch.get_default_device())],
        "sharing": torch.multiprocessing.get_sharing_strategy(),
        "computing": [torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_float32_matmul_precision()],
        "modes": [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()],
        "switches": [torch.are_deterministic_algorithms_enabled(), torch.is_autocast_enabled("cpu"), mkldnn.enabled],
        "functions": of_functions(),
        "subnormal": (torch.tensor(1e-40) * 1).item(),
        "stacks": [torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()],
        "bars": sys.modules["tqdm"].tqdm.monitor_interval if "tqdm" in sys.modules else 10,
    }


random.seed(1), np.random.seed(2), torch.manual_seed(3)
states = [state()]
net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(6):
    warnings.warn("shown once", stacklevel=1)
    optimizer.zero_grad()
    net(torch.randn(64, 256)).square().mean().backward()
    optimizer.step()
states.append(state())
print(json.dumps(states))
