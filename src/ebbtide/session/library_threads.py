"""The numbers of threads that PyTorch and NumPy take, where a script says them as it begins.

Libraries read ``OMP_NUM_THREADS`` and the like, and the CPUs that they may use, as they are loaded. Here they are
loaded before the script's first line, and bits depend on these numbers. So when the script first imports one of them,
and has changed what that would read, another process loads it and says what numbers its threads have. Those here are
given the same ones.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import chain
from types import ModuleType
from typing import Any

from ebbtide.host.kernel_files import text_of
from ebbtide.host.process import PROC, is_bound, on_all_cpus
from ebbtide.terminal import tell

_READ_AS_LOADED = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS"),
    *("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OPENBLAS_DEFAULT_NUM_THREADS"),
)
_TOO_LATE = {
    "torch": ("PYTORCH_JIT", "OMP_THREAD_LIMIT", "OMP_DYNAMIC", "MKL_DYNAMIC", "MKL_DOMAIN_NUM_THREADS"),
    "numpy": ("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES"),
}
"""Others that decide about bits, by who reads them."""
_READ_AGAIN: dict[str, Callable[[], object]] = {
    "TORCH_LOGS": lambda: import_module("torch._logging._internal")._init_logs(),
    "TORCH_DISTRIBUTED_DEBUG": lambda: import_module("torch.distributed").set_debug_level_from_env(),
}
"""Others of PyTorch's, which can be read again."""
_OPENBLAS = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads")
LIBRARIES = ("numpy", "torch")
"""PyTorch imports NumPy."""
_ASK = """\
import sys
sys.path[:] = {path!r}
import {library}
from ebbtide.session.library_threads import threads_of
print(*threads_of({library}))
"""


def threads_of(library: ModuleType) -> tuple[int, ...]:
    """Return how many threads share what this one does with the library; nothing if that is not known."""
    if library.__name__ == "torch":
        from ebbtide.runtime.threads import here_and_in_a_new_thread

        return here_and_in_a_new_thread()
    ask = _openblas("get")
    return () if ask is None else (ask(),)


@contextmanager
def taken_as_the_script_says() -> Iterator[None]:
    """Meanwhile watch for the first import of each library that is loaded."""
    loaded = {name: sys.modules.pop(name) for name in LIBRARIES if name in sys.modules}
    watchers = [_FirstImport(module, partial(_take, module, _AS_LOADED)) for module in loaded.values()]
    for watcher in watchers:
        sys.meta_path.insert(0, watcher)
    try:
        yield
    finally:
        for watcher in watchers:
            watcher.stop()
        for name, module in loaded.items():
            sys.modules.setdefault(name, module)


class _FirstImport(MetaPathFinder):
    """Gives a module that is loaded to whoever imports it first, and does something before. Its loader is of the class
    that the module's own has."""

    def __init__(self, module: ModuleType, does: Callable[[], None]) -> None:
        self._module, self._does, self._spec = module, does, module.__spec__

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._module.__name__:
            return None
        own = copy(self._spec)
        assert own is not None
        loader: Any = copy(own.loader)
        loader.create_module, loader.exec_module = (lambda spec: self._module), self._exec_module
        own.loader = loader
        return own

    def _exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        self.stop()
        self._does()

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _what_they_read() -> dict[str, object]:
    read: dict[str, object] = {name: os.environ.get(name) for name in _NAMES}
    return read | {"CPUs": None if is_bound() else os.sched_getaffinity(0)}


_NAMES = (*_READ_AS_LOADED, *_READ_AGAIN, *chain(*_TOO_LATE.values()))
_AS_LOADED = _what_they_read()  # as this module is: a package around a script's module may change it since


def _take(library: ModuleType, before: dict[str, object]) -> None:
    """Load it in another process, with what it would read now, and take the numbers there."""
    changed = {name for name, value in _what_they_read().items() if value != before[name]}
    for name in sorted(changed.intersection(_TOO_LATE[library.__name__])):
        tell(
            f"ebbtide: warning: {name} is read as {library.__name__} is loaded, before the script, so bits may differ "
            "from a plain run's: set it for `ebbtide run`"
        )
    if library.__name__ == "torch":
        for name in changed.intersection(_READ_AGAIN):
            _READ_AGAIN[name]()
        with suppress(ImportError):  # NumPy, as PyTorch's own import does
            import_module("numpy")
    if not changed & {*_READ_AS_LOADED, "CPUs"}:
        return
    code = _ASK.format(path=sys.path, library=library.__name__)
    with on_all_cpus():
        asked = subprocess.run(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    threads = tuple(int(word) for word in asked.stdout.split() if word.isdigit())
    if asked.returncode or len(threads) != len(threads_of(library)):
        tell("ebbtide: warning: numbers of threads are not as the script says: set OMP_NUM_THREADS for `ebbtide run`")
    elif threads != threads_of(library):
        _set(library, threads)


def _set(library: ModuleType, threads: tuple[int, ...]) -> None:
    if library.__name__ == "torch":
        from ebbtide.runtime.threads import give

        give(*threads)
    elif (change := _openblas("set")) is not None:
        change(*threads)


def _openblas(what: str) -> Callable[..., int] | None:
    """Return the function of NumPy's OpenBLAS that gets or sets its number of threads, if it is found."""
    maps = text_of(PROC / "self/maps").splitlines()
    paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "openblas" in line}
    for path in filter(os.path.exists, sorted(paths)):
        library = ctypes.CDLL(path)
        for name in _OPENBLAS:
            if (found := getattr(library, name.format(what), None)) is not None:
                function: Callable[..., int] = found
                return function
    return None
