"""The door to the native module: checked once, so that a wrong machine is one clear error."""

import platform
import sys
from importlib.util import find_spec

from ebbtide.errors import PlatformError

TORCH_VERSION = "2.13"


def require_native() -> None:
    """Imports torch and the native module; raises PlatformError, with what to do, where that cannot work."""
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"):
        raise PlatformError(
            f"Ebbtide runs on Linux on x86-64 and arm64, and this is {platform.system()} on {platform.machine()}. "
            "Use such a machine, or set EBBTIDE_DISABLE=1 to run without it."
        )
    if find_spec("torch") is None:
        raise PlatformError(f'torch is not installed for {sys.executable}: pip install "torch=={TORCH_VERSION}.*"')
    import torch

    if not torch.__version__.startswith(f"{TORCH_VERSION}."):
        raise PlatformError(
            f"this Ebbtide is built for torch {TORCH_VERSION} and found torch {torch.__version__}: "
            f'pip install "torch=={TORCH_VERSION}.*"'
        )
    try:
        import ebbtide._torch  # noqa: F401
    except ImportError as error:
        raise PlatformError(
            f"Ebbtide's native module cannot be loaded ({error}): install Ebbtide again, in the environment that holds "
            "torch (in a clone: make install)"
        ) from error
