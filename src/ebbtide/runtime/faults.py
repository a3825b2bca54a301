"""Keeps the SIGSEGV safety net on top when the script enables Python's faulthandler after it.

faulthandler's own handler ends the process at the first fault it sees; ours must see a fault first and pass on those
that are not its own. The wrapper stays until the process ends, because managed storages do.
"""

import faulthandler
import functools

import ebbtide._torch as _torch

_wrapped = False


def stay_on_top() -> None:
    """Puts the safety net on top now, and again after every ``faulthandler.enable``."""
    global _wrapped
    _torch.install_fault_handler()
    if _wrapped:
        return
    _wrapped = True
    enable = faulthandler.enable

    @functools.wraps(enable)
    def enable_below(*args: object, **kwargs: object) -> None:
        enable(*args, **kwargs)  # type: ignore[arg-type]
        _torch.install_fault_handler()

    faulthandler.enable = enable_below
