"""Every error that Ebbtide raises on purpose. Each carries its data, a way out, and the command's exit status.

All of them can be pickled: their arguments are their fields, and the text is made when it is read.
"""

import signal
from collections.abc import Collection

from ebbtide.units import KIB, MIB, format_bytes, option


class _OfInterrupt(int):
    """A status that is not taken for its equal, with which a script may end."""


INTERRUPTED = _OfInterrupt(130)
"""A shell's exit status for a process that Ctrl-C ended."""


class EbbtideWarning(UserWarning):
    """Something that was asked for is not available in full. The run goes on as the text says."""


class EbbtideError(Exception):
    """The base of all of Ebbtide's errors. The command exits with ``exit_code``."""

    exit_code = 1


class SettingError(EbbtideError, ValueError):
    """An argument or an ``EBBTIDE_...`` variable that cannot be understood. The text says what is accepted."""

    exit_code = 2


def unknown_name(what: str, name: str, known: Collection[str], besides: str = "") -> SettingError:
    """Return the error for a name that is not in ``known``. ``besides`` says what else is accepted."""
    there_are = f"there are {', '.join(known)}{besides}"
    return SettingError(f"there is no {what} {name!r:.300}{did_you_mean(name, known)}; {there_are}")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a question in parentheses, or "" where no name is near."""
    from difflib import get_close_matches

    nearest = get_close_matches(name[:80], known, n=1)
    return f" (did you mean {nearest[0]}?)" if nearest else ""


class ReportError(EbbtideError, ValueError):
    """A file that is no report, or a report of a version that this Ebbtide cannot read."""

    exit_code = 2


class BudgetError(EbbtideError):
    """The budget is smaller than what has to be in memory at once.

    ``minimum_bytes`` is a budget that works, planning included. It counts what ``budget_bytes`` counts: the process for
    a size, the arena for a percentage. Where no percentage is enough, it counts the process. ``minimum_fast`` is the
    same budget as a user would write it.

    ``operator`` is the operation with the largest operands, and ``operator_bytes`` their bytes, rounded up to pages.
    ``operator`` is "" when what the process holds outside tensors leaves no room at all. ``advice`` says what makes the
    need itself smaller, or is "". ``plain_bytes``: the script takes about that without Ebbtide, which is less than
    a budget that works; 0 where it takes more, or nobody knows.

    Where memory is too small even for a first step, ``minimum_fast`` is "" and ``minimum_bytes`` only a lower bound.
    Only that step shows what the operations need on top.
    """

    exit_code = 3

    def __init__(
        self,
        minimum_bytes: int,
        operator: str,
        operator_bytes: int,
        budget_bytes: int,
        minimum_fast: str,
        advice: str = "",
        plain_bytes: int = 0,
    ) -> None:
        super().__init__(minimum_bytes, operator, operator_bytes, budget_bytes, minimum_fast, advice, plain_bytes)
        self.minimum_bytes = minimum_bytes
        self.operator = operator
        self.operator_bytes = operator_bytes
        self.budget_bytes = budget_bytes
        self.minimum_fast = minimum_fast
        self.advice = advice
        self.plain_bytes = plain_bytes

    def __str__(self) -> str:
        refused = f"a budget of {format_bytes(self.budget_bytes)} is too small"
        if self.plain_bytes:
            plain = format_bytes(self.plain_bytes)
            return (
                f"{refused}. What has run so far takes about {plain} without Ebbtide: run the script as it is, unless "
                f"later steps take more. A budget that works for what has run so far is "
                f"{format_bytes(self.minimum_bytes)}: use {option('fast', self.minimum_fast)} or more."
            )
        outside = "the process holds more outside the tensors that can be moved"
        use = f"use {option('fast', self.minimum_fast)}" + (" or more" if self.minimum_fast != "100%" else "")
        advice = f" {self.advice}" if self.advice else ""
        if not self.operator and self.minimum_fast:
            works = f"A budget that works is {format_bytes(self.minimum_bytes)}: {use}."
            return f"{refused}: {outside}. {works}{advice}"
        if not self.operator:
            return (
                f"{refused}: {outside}. At least "
                f"{format_bytes(self.minimum_bytes)} is needed, plus what the largest operation works on, which only a "
                "first step shows. This machine has no memory for that step: run it where there is more (it then names "
                f"the smallest budget that works).{advice}"
            )
        besides = ", besides what the process holds outside them and what planning takes"
        smallest = "A budget that works is"
        if self.minimum_fast.endswith("%"):
            besides, smallest = "", "The smallest budget that can work with what has run so far is"
        return (
            f"{refused}: {self.operator} needs {format_bytes(self.operator_bytes)} of tensors in memory at once"
            f"{besides}. {smallest} {format_bytes(self.minimum_bytes)}: {use}, or a smaller batch.{advice}"
        )


class TiersTooSmallError(BudgetError):
    """Memory and the slower tiers together have less room than ``peak_bytes``, the peak of a step's tensors.

    ``rooms`` names the tiers in words with their bytes, memory first. ``works`` says what to do. ``in_pages``: the peak
    is counted in whole pages.
    """

    def __init__(
        self,
        peak_bytes: int,
        rooms: tuple[tuple[str, int], ...],
        minimum_fast: str,
        works: str,
        in_pages: bool = False,
    ) -> None:
        missing = peak_bytes - sum(nbytes for _, nbytes in rooms)
        super().__init__(rooms[0][1] + missing, "", 0, rooms[0][1], minimum_fast)
        self.args = (peak_bytes, rooms, minimum_fast, works, in_pages)
        self.peak_bytes = peak_bytes
        self.rooms = rooms
        self.works = works
        self.in_pages = in_pages

    def __str__(self) -> str:
        counted = " in whole pages" if self.in_pages else ""
        rooms = ", ".join(f"{format_bytes(nbytes)} {where}" for where, nbytes in self.rooms)
        there = format_bytes(sum(nbytes for _, nbytes in self.rooms))
        return (
            f"the tiers are too small: a step's tensors peak at {format_bytes(self.peak_bytes)}{counted}, and there is "
            f"room for {there} ({rooms}). {self.works}, or a smaller batch."
        )


class RankError(BudgetError):
    """The budget of rank ``rank`` cannot work or was not kept, so all ranks of the job end.

    ``said`` is that rank's own sentence. ``minimum_bytes`` and ``minimum_fast`` are those of its error, or 0 and ""
    where they are unknown.
    """

    def __init__(self, rank: int, said: str, minimum_bytes: int = 0, minimum_fast: str = "") -> None:
        super().__init__(minimum_bytes, "", 0, 0, minimum_fast)
        self.args = (rank, said, minimum_bytes, minimum_fast)
        self.rank = rank
        self.said = said

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.said}"


class SpillError(EbbtideError):
    """A directory that cannot hold the contents moved out of memory."""

    exit_code = 4

    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(directory, reason)
        self.directory = directory
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"cannot spill to {self.directory}: {self.reason}. Name a writable directory on a local disk, best an NVMe "
            f"drive, with {option('spill')} or EBBTIDE_SPILL."
        )


class SessionError(EbbtideError):
    """A session was used in an order that makes no sense."""

    exit_code = 5


class PlatformError(EbbtideError):
    """Ebbtide does not run on this machine, Python or torch."""

    exit_code = 6


class FileFormatError(EbbtideError, ValueError):
    """A trace, machine, plan or timeline that this Ebbtide cannot read: damaged, or of another version."""

    exit_code = 2


class RecordingError(EbbtideError):
    """A step that cannot be recorded. The text says why and what to do."""

    exit_code = 1


class OrderError(EbbtideError):
    """The script did something that its order of updates does not allow. It is raised before a wrong number comes of
    that.

    ``what`` says what the script did. ``deferred``: updates are deferred; otherwise they are made in the backward pass.
    Some parameters may differ from what the script's own order would have left, so training cannot go on after it.
    """

    exit_code = 1

    def __init__(self, what: str, deferred: bool = False) -> None:
        super().__init__(what, deferred)
        self.what = what
        self.deferred = deferred

    def __str__(self) -> str:
        order = "Parameters are updated in the backward pass here, and their gradients freed"
        if self.deferred:
            order = "Parameters are updated after optimizer.step() here, before their next use"
        return (
            f"{self.what}. {order}. Run with "
            "--optimizer as-written (EBBTIDE_OPTIMIZER=as-written, Session(optimizer='as-written')), from a checkpoint."
        )


OTHER_STORAGES = (
    "it was made for a step with other storages. A plan is for the step that it was made from, or one like it of the "
    "same script and settings: for a run that is a step that `ebbtide run --save-trace` recorded (`ebbtide trace` has "
    "every storage, and a run manages the large ones)"
)
"""The reason why a plan is not one for a step. All messages use this text."""


class PlanError(EbbtideError):
    """A plan that breaks its promises for a trace and a machine. ``violations`` says in words which."""

    def __init__(self, violations: tuple[str, ...]) -> None:
        super().__init__(violations)
        self.violations = violations

    def __str__(self) -> str:
        shown = "; ".join(self.violations[:3])
        more = f"; and {len(self.violations) - 3} more" if len(self.violations) > 3 else ""
        return f"the plan cannot be carried out: {shown}{more}"


def written_size(nbytes: int) -> str:
    """Return a size of at least ``nbytes`` as a user would write it."""
    unit, name = (MIB, "MiB") if nbytes >= MIB else (KIB, "KiB")
    return f"{-(-nbytes // unit)}{name}"


class InfeasibleBudgetError(EbbtideError):
    """No plan of the planner's kind keeps the budget: ``operator`` at ``tick`` needs ``minimum_bytes`` of fast memory.

    ``minimum_bytes`` is the smallest budget that can work. Like ``budget_bytes``, it is counted in the arena's pages.
    ``operation`` is that tick in words, with its module and its time in the step where they are known.
    """

    exit_code = 3

    def __init__(self, minimum_bytes: int, operator: str, tick: int, budget_bytes: int, operation: str = "") -> None:
        super().__init__(minimum_bytes, operator, tick, budget_bytes, operation)
        self.minimum_bytes = minimum_bytes
        self.operator = operator
        self.tick = tick
        self.budget_bytes = budget_bytes
        self.operation = operation or operator or "an operation"

    def __str__(self) -> str:
        budget, least = format_bytes(self.budget_bytes), format_bytes(self.minimum_bytes)
        more = f" ({format_bytes(self.minimum_bytes - self.budget_bytes)} more)" if budget == least else ""
        return (
            f"no plan keeps a budget of {budget}: {self.operation} needs "
            f"{least}{more} of tensors in fast memory at once. The smallest budget that can work "
            f"is {format_bytes(self.minimum_bytes)}: use "
            f"{option('fast', written_size(self.minimum_bytes))} or more."
        )


def how_it_ended(status: int) -> str:
    """Say how a process ended, by the status that ``subprocess`` has. Out of memory, the kernel sends SIGKILL."""
    if status == -signal.SIGKILL:
        return "was killed by signal 9, likely by the kernel because memory ran out (the machine's or its container's)"
    return f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
