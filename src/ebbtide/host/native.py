"""The door to the native module. It checks the machine once, so that a wrong one is one clear error."""

import platform
import sys
from importlib.util import find_spec

from ebbtide.errors import PlatformError
from ebbtide.host.torch_versions import DEVELOPED_WITH, is_newer, minor_of, not_tried
from ebbtide.terminal import warn_user

_AGAIN = "install Ebbtide again, in the environment that holds torch (in a clone: make install)"


def require_native() -> None:
    """Import torch and the native module. Raises PlatformError, which says what to do, where that cannot work.

    Warns of a torch that is newer than those Ebbtide was tried with.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        raise PlatformError(
            f"Ebbtide runs on Linux on x86-64, and this is {platform.system()} on {platform.machine()}. "
            "Use such a machine, or set EBBTIDE_DISABLE=1 to run without it."
        )
    built_for = _built_for()
    if find_spec("torch") is None:
        raise PlatformError(f'torch is not installed for {sys.executable}: pip install "torch=={built_for}.*"')
    import torch

    if minor_of(torch.__version__) != built_for:
        raise PlatformError(
            f"this Ebbtide is built for torch {built_for} and found torch {torch.__version__}: build it again for that "
            "one (pip install --force-reinstall --no-deps --no-cache-dir and what you installed it from; in a clone: "
            f'python setup.py build_ext --inplace), or pip install "torch=={built_for}.*"'
        )
    try:
        import ebbtide._torch  # noqa: F401
    except ImportError as error:
        raise PlatformError(f"Ebbtide's native module cannot be loaded ({error}): {_AGAIN}") from error
    if is_newer(built_for):
        warn_user(f"Ebbtide was {not_tried(torch.__version__)}")


def _built_for() -> str:
    """Ask the module that loads without torch, since the other may not load with the torch that is there."""
    try:
        from ebbtide._planning import BUILT_FOR_TORCH
    except ImportError as error:
        torch = "" if find_spec("torch") else f'; first, pip install "torch=={DEVELOPED_WITH}.*"'
        raise PlatformError(f"Ebbtide's native module cannot be loaded ({error}): {_AGAIN}{torch}") from error
    return BUILT_FOR_TORCH
