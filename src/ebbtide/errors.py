"""Every error that Ebbtide raises on purpose: it carries its data, a way out, and the command's exit status.

All of them can be pickled: their arguments are their fields, and the text is made when it is read.
"""

from ebbtide.units import format_bytes


class EbbtideWarning(UserWarning):
    """What was asked for is not available in full; the run goes on as the text says."""


class EbbtideError(Exception):
    """The base of all of Ebbtide's errors; ``exit_code`` is what the command exits with."""

    exit_code = 1


class SettingError(EbbtideError, ValueError):
    """An argument or an ``EBBTIDE_...`` variable that cannot be understood; says what is accepted."""

    exit_code = 2


class ReportError(EbbtideError, ValueError):
    """A file that is not a report of a version that this Ebbtide reads."""

    exit_code = 2


class BudgetError(EbbtideError):
    """The budget is below what has to be in memory at once.

    ``minimum_bytes`` is the smallest budget that can work, counted as ``budget_bytes`` is (the process for a size,
    the arena for a percentage); ``minimum_fast`` is the same as the user would write it. ``operator`` is the
    operation with the largest operands, of ``operator_bytes`` bytes rounded up to pages; it is "" when what the
    process holds outside tensors leaves no room at all.
    """

    exit_code = 3

    def __init__(
        self, minimum_bytes: int, operator: str, operator_bytes: int, budget_bytes: int, minimum_fast: str
    ) -> None:
        super().__init__(minimum_bytes, operator, operator_bytes, budget_bytes, minimum_fast)
        self.minimum_bytes = minimum_bytes
        self.operator = operator
        self.operator_bytes = operator_bytes
        self.budget_bytes = budget_bytes
        self.minimum_fast = minimum_fast

    def __str__(self) -> str:
        cause = f"{self.operator} needs {format_bytes(self.operator_bytes)} of tensors in memory at once"
        if not self.operator:
            held = self.minimum_bytes - self.operator_bytes
            cause = f"the process holds {format_bytes(held)} outside the tensors that can be moved"
        return (
            f"a budget of {format_bytes(self.budget_bytes)} is too small: {cause}. The smallest budget that can work "
            f"is {format_bytes(self.minimum_bytes)}: use --fast {self.minimum_fast} or more, or a smaller batch."
        )


class SpillError(EbbtideError):
    """A directory that cannot hold what is moved out of memory."""

    exit_code = 4

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(directory, reason)
        self.directory = directory
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"cannot spill to {self.directory}: {self.reason}. Name a writable directory on a local disk, best an NVMe "
            "drive, with --spill or EBBTIDE_SPILL."
        )


class SessionError(EbbtideError):
    """A session used in an order that has no meaning."""

    exit_code = 5


class PlatformError(EbbtideError):
    """This machine, Python or torch is not one that Ebbtide runs on."""

    exit_code = 6


class FileFormatError(EbbtideError, ValueError):
    """A trace, machine, plan or timeline that this Ebbtide does not read: damaged, or of another version."""

    exit_code = 2


class PlanError(EbbtideError):
    """A plan that breaks its promises for a trace and a machine; ``violations`` says how, in words."""

    def __init__(self, violations: tuple[str, ...]) -> None:
        super().__init__(violations)
        self.violations = violations

    def __str__(self) -> str:
        shown = "; ".join(self.violations[:3])
        more = f"; and {len(self.violations) - 3} more" if len(self.violations) > 3 else ""
        return f"the plan cannot be carried out: {shown}{more}"
