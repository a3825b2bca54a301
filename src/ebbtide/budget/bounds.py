"""From what was asked for and what the machine has to the two bounds that native code keeps, and back again.

Pure functions. Example: ``--fast 8GiB`` in a container of 6 GiB gives a process bound of 6 GiB less 2 % less 32 MiB,
and a warning; ``--fast 25%`` gives no arena budget until a recorded step has shown a peak of, say, 4 GiB: then 1 GiB.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.errors import BudgetError, SettingError, TiersTooSmallError
from ebbtide.host.process import MemoryLimit
from ebbtide.units import MIB, Budget, format_bytes, option, round_up

TOLERANCE_PERCENT = 2
"""How far above its bound a process may peak before the budget counts as violated: what PyTorch, Python and the script
allocate outside the arena is seen when it is there, and the arena gives way to it within about 10 ms."""

_HEADROOM_PERCENT = 2
_HEADROOM_BYTES = 32 * MIB
_REST_VARIES_BYTES = 16 * MIB
"""What a process holds outside the arena differs a little between two runs of one script."""
_MARGIN_BYTES = 4 * MIB
_MARGIN_PART = 128
"""Of the process's bound, native code leaves this part and those bytes free (``Arena::measure_rest``)."""


_GATHERS = re.compile("embedding|gather|index|select|take")
"""Operators that may use a few rows of a large tensor."""


@dataclass(frozen=True, slots=True)
class Need:
    """What has to be in the arena at once: ``nbytes``, for ``operator``, whose operands are ``operand_bytes`` of it.

    ``used_bytes`` of these is what the operands take of their storages; ``largest_bytes`` is the largest of those.
    ``kept_bytes`` is what the session's ``keep`` holds in memory besides.
    """

    operator: str
    operand_bytes: int
    used_bytes: int
    largest_bytes: int
    nbytes: int
    kept_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the session starts with; 0 means no bound.

    ``fraction`` is the arena's share of the recorded peak, None when nothing has to be recorded. ``process_asked``
    says that the process is what is bounded: otherwise ``process_bytes`` only keeps the kernel from killing it.
    ``size`` is the one that was asked for, also where there is less; None where what there is was taken.
    ``there_bytes`` is what the process can have in all, ``limit`` the most that it could have. ``warning`` and ``said``
    are "" or what the user must, and should, know.
    """

    process_bytes: int
    arena_bytes: int
    fraction: float | None
    process_asked: bool
    size: int | None = None
    there_bytes: int = 0
    limit: MemoryLimit | None = None
    warning: str = ""
    said: str = ""


def need_of(counters: Mapping[str, Any], kept_bytes: int = 0) -> Need:
    """From native counters: of the operation that needed most; where room was short, with what could not leave."""
    largest = counters.get("largest_operator_bytes", 0)
    return Need(
        counters.get("largest_operator", ""),
        largest,
        counters.get("largest_operator_used", 0),
        counters.get("largest_operand_bytes", 0),
        max(largest, counters.get("stuck_at_bytes", 0)),
        kept_bytes,
    )


def choose_bounds(
    budget: Budget | None, arena_bytes: int | None, limit: MemoryLimit, free: MemoryLimit, ranks: int = 1
) -> Bounds:
    """``limit`` is the most that there may be for all ``ranks`` on this node, ``free`` what there is for this one.

    Without a budget it takes what is free. Raises SettingError when the same thing is bounded twice.
    """
    there = usable_bytes(free)
    share = f", as its share: there are {ranks} ranks on this node" if ranks > 1 else ""
    limit = MemoryLimit(limit.nbytes // ranks, limit.source)
    if budget is None and arena_bytes is not None:
        return Bounds(0, arena_bytes, None, process_asked=False)
    if budget is None:
        said = (
            f"no size was named, so this process takes {format_bytes(there)}, which is what {free.source} has for it "
            f"({format_bytes(free.nbytes)}{share}) less a margin; {option('fast', 'SIZE')} takes less"
        )
        return Bounds(there, 0, None, process_asked=True, there_bytes=there, limit=limit, said=said)
    if budget.fraction is not None:
        if arena_bytes is not None:
            raise SettingError(f"EBBTIDE_ARENA and a budget of {budget} both set the arena's budget: use one of them")
        said = (
            f"{budget} of what a step's tensors peak at, which two steps have to show first: these run within the "
            f"{format_bytes(there)} that {free.source} has for this process{share}. A size "
            f"({option('fast', '8GiB')}) binds from the start"
        )
        return Bounds(there, 0, budget.fraction, process_asked=False, there_bytes=there, limit=limit, said=said)
    asked = budget.nbytes or 0
    usable = usable_bytes(limit)
    warning = ""
    if asked > limit.nbytes:
        allowed = f"{format_bytes(limit.nbytes)}{share}"
        warning = (
            f"the budget of {format_bytes(asked)} exceeds what {limit.source} allows ({allowed}), "
            f"so {format_bytes(usable)} is used; the rest is headroom for what the kernel charges beyond"
        )
    process_bytes = usable if asked > limit.nbytes else asked
    return Bounds(process_bytes, arena_bytes or 0, None, True, asked, there, limit, warning)


def usable_bytes(limit: MemoryLimit) -> int:
    """The limit less the headroom that the kernel's own charges need."""
    return max(limit.nbytes - limit.nbytes * _HEADROOM_PERCENT // 100 - _HEADROOM_BYTES, MIB)


def process_too_small(
    process_bytes: int, rest_bytes: int, need: Need | None, planning_bytes: int = 0, limit: MemoryLimit | None = None
) -> BudgetError:
    """The smallest process bound: what lies outside the arena, what must be in it at once, and margins.

    While a step is planned the arena is empty, and ``planning_bytes`` lie in its place. With no need, since
    no step has shown it, this is a lower bound: what lies outside the arena must fit in any case.
    """
    known = need or need_of({})
    minimum = _smallest_process(rest_bytes, known, planning_bytes)
    advice = _join(_advice(known), _limit_advice(minimum, limit))
    return _too_small(minimum, known, process_bytes, f"{minimum // MIB}MiB" if need is not None else "", advice)


def arena_too_small(
    arena_bytes: int,
    peak_bytes: int,
    need: Need,
    rest_bytes: int = 0,
    planning_bytes: int = 0,
    limit: MemoryLimit | None = None,
) -> BudgetError:
    """The smallest arena: what must be in it at once, as whole percent of the recorded peak.

    Where there is no such peak, or an operation outside the steps (an evaluation's, say) needs more than it, no
    percentage is enough: then it is the smallest process bound, as of ``process_too_small``.
    """
    minimum = round_up(need.nbytes, MIB)
    if minimum <= peak_bytes:
        return _too_small(minimum, need, arena_bytes, f"{-(-100 * minimum // peak_bytes)}%", _advice(need))
    minimum = _smallest_process(rest_bytes, need, planning_bytes)
    above = f"A step's tensors peak at {format_bytes(peak_bytes)}, so no percentage is enough." if peak_bytes else ""
    advice = _join(above, _advice(need), _limit_advice(minimum, limit))
    return _too_small(minimum, need, arena_bytes, f"{minimum // MIB}MiB", advice)


def tiers_too_small(arena_bytes: int, peak_bytes: int, slower: Sequence[tuple[str, int]]) -> TiersTooSmallError | None:
    """None where the arena and the ``slower`` tiers together (where, and bytes) have room for a step's peak."""
    if arena_bytes + sum(nbytes for _, nbytes in slower) >= peak_bytes:
        return None
    peak = format_bytes(peak_bytes)
    works = (
        f"Use {option('fast', '100%')}, or a directory with {peak} free ({option('spill')}), or a NUMA tier of {peak}"
    )
    return TiersTooSmallError(peak_bytes, (("in memory", arena_bytes), *slower), "100%", works)


def _smallest_process(rest_bytes: int, need: Need, planning_bytes: int) -> int:
    needed = max(need.nbytes, planning_bytes) + rest_bytes + _MARGIN_BYTES + _REST_VARIES_BYTES
    return round_up(needed * _MARGIN_PART // (_MARGIN_PART - 1), MIB)


def _too_small(minimum: int, need: Need, budget_bytes: int, fast: str, advice: str) -> BudgetError:
    return BudgetError(minimum, need.operator, need.operand_bytes, budget_bytes, fast, advice)


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _limit_advice(minimum: int, limit: MemoryLimit | None) -> str:
    """Where no budget helps by itself."""
    if limit is None or minimum <= usable_bytes(limit):
        return ""
    return f"But {limit.source} allows {format_bytes(limit.nbytes)} in all: that limit must be raised first."


def _advice(need: Need) -> str:
    """What else helps where ``keep`` holds most of what there must be, little of an operation's storages is used, or
    one of them is most of what it needs."""
    if need.kept_bytes > need.nbytes // 2:
        return f"{format_bytes(need.kept_bytes)} are kept in memory by session.keep(): keep less."
    if need.used_bytes < need.operand_bytes // 2:
        return (
            f"Of that, the operation uses {format_bytes(need.used_bytes)}: it works on a part of a tensor, which must "
            "be in memory whole, or, of a large one, the pieces around that part. Make flat buffers smaller (DDP's "
            "bucket_cap_mb, DeepSpeed's reduce_bucket_size); keep a data set or a replay buffer in NumPy or a file."
        )
    if need.largest_bytes > need.operand_bytes * 3 // 4 and _GATHERS.search(need.operator):
        return (
            f"One tensor of {format_bytes(need.largest_bytes)} is most of it: if only a few rows of that are used, "
            "keep it in NumPy or a file."
        )
    return ""
