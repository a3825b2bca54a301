"""From what was asked for and what the machine has to the two bounds that native code keeps, and back again.

Pure functions. Example: ``--fast 8GiB`` in a container of 6 GiB gives a process bound of 6 GiB less 2 % less 32 MiB,
and a warning; ``--fast 25%`` gives no arena budget until a recorded step has shown a peak of, say, 4 GiB: then 1 GiB.
"""

from dataclasses import dataclass

from ebbtide.errors import BudgetError, SettingError
from ebbtide.runtime.process import MemoryLimit
from ebbtide.units import MIB, Budget, format_bytes, round_up

TOLERANCE_PERCENT = 2
"""How far above its bound a process may peak before the budget counts as violated."""

_HEADROOM_PERCENT = 2
_HEADROOM_BYTES = 32 * MIB
_REST_VARIES_BYTES = 16 * MIB
"""What a process holds outside the arena differs a little between two runs of one script."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the session starts with; 0 means no bound.

    ``fraction`` is the arena's share of the recorded peak, None when nothing has to be recorded. ``process_asked``
    says that the user bounds the process: otherwise ``process_bytes`` only keeps the kernel from killing it.
    ``warning`` is "" or what the user must know.
    """

    process_bytes: int
    arena_bytes: int
    fraction: float | None
    process_asked: bool
    warning: str


def choose_bounds(budget: Budget | None, arena_bytes: int | None, limit: MemoryLimit) -> Bounds:
    """Raises SettingError when nothing is bounded, or the same thing twice."""
    usable = usable_bytes(limit)
    if budget is None:
        if arena_bytes is None:
            raise SettingError("no budget: name one with --fast (fast= in Python) or EBBTIDE_FAST, such as 8GiB or 25%")
        return Bounds(0, arena_bytes, None, process_asked=False, warning="")
    if budget.fraction is not None:
        if arena_bytes is not None:
            raise SettingError(f"EBBTIDE_ARENA and a budget of {budget} both set the arena's budget: use one of them")
        return Bounds(usable, 0, budget.fraction, process_asked=False, warning="")
    asked = budget.nbytes or 0
    warning = ""
    if asked > usable:
        warning = (
            f"the budget of {format_bytes(asked)} exceeds what {limit.source} allows ({format_bytes(limit.nbytes)}), "
            f"so {format_bytes(usable)} is used; the rest is headroom for what the kernel charges beyond"
        )
    return Bounds(min(asked, usable), arena_bytes or 0, None, process_asked=True, warning=warning)


def usable_bytes(limit: MemoryLimit) -> int:
    """The limit less the headroom that the kernel's own charges need."""
    return max(limit.nbytes - limit.nbytes * _HEADROOM_PERCENT // 100 - _HEADROOM_BYTES, MIB)


def process_too_small(process_bytes: int, rest_bytes: int, operator: str, operator_bytes: int) -> BudgetError:
    """The smallest process bound: the largest operation's operands, what lies outside the arena, 2 % and a margin.

    With no operator it is a lower bound: what lies outside the arena must fit in any case.
    """
    needed = operator_bytes + rest_bytes
    minimum = round_up(needed + needed * TOLERANCE_PERCENT // 100 + _REST_VARIES_BYTES, MIB)
    return BudgetError(minimum, operator, operator_bytes, process_bytes, f"{minimum // MIB}MiB")


def arena_too_small(arena_bytes: int, peak_bytes: int, operator: str, operator_bytes: int) -> BudgetError:
    """The smallest arena: the operands of the largest operation; as whole percent of the recorded peak, if any."""
    minimum = round_up(operator_bytes, MIB)
    if peak_bytes:
        percent = min(-(-100 * minimum // peak_bytes), 100)
        return BudgetError(minimum, operator, operator_bytes, arena_bytes, f"{percent}%")
    return BudgetError(minimum, operator, operator_bytes, arena_bytes, f"{minimum // MIB}MiB")
