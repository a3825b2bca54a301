"""Keeps the SIGSEGV safety net on top when the script enables Python's faulthandler after it.

faulthandler's own handler ends the process at the first fault it sees. Ours must see a fault first, and pass on those
that are not its own.
"""

from collections.abc import Callable

import ebbtide._torch as _torch
from ebbtide.in_front import InFrontOf

_stays = False


def stay_on_top() -> None:
    """Put the safety net on top now, and again after every ``faulthandler.enable``."""
    global _stays
    _torch.install_fault_handler()
    if not _stays:
        _stays = True
        InFrontOf.FAULTHANDLER.install(_enable_below)


def _enable_below(enable: Callable[..., None], *args: object, **kwargs: object) -> None:
    enable(*args, **kwargs)
    _torch.install_fault_handler()
