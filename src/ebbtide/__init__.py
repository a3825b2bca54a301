"""Trains PyTorch networks in far less fast memory than they need, with the same bits.

Names are loaded when first used (PEP 562), so that ``import ebbtide`` and every command that needs no torch start
at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ebbtide.api import load, plan, record, run, save, simulate
    from ebbtide.errors import (
        BudgetError,
        EbbtideError,
        EbbtideWarning,
        PlatformError,
        ReportError,
        SessionError,
        SettingError,
        SpillError,
    )
    from ebbtide.ir.run_report import RunReport, StepReport
    from ebbtide.session.driven import active
    from ebbtide.session.session import Session

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "EbbtideError",
    "EbbtideWarning",
    "PlatformError",
    "ReportError",
    "RunReport",
    "Session",
    "SessionError",
    "SettingError",
    "SpillError",
    "StepReport",
    "__version__",
    "active",
    "load",
    "plan",
    "record",
    "run",
    "save",
    "simulate",
]

_HOMES = {"RunReport": "ebbtide.ir.run_report", "StepReport": "ebbtide.ir.run_report"}
_HOMES |= {"Session": "ebbtide.session.session", "active": "ebbtide.session.driven"}
_HOMES |= dict.fromkeys(("load", "plan", "record", "run", "save", "simulate"), "ebbtide.api")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES.get(name, "ebbtide.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
