"""Turns the user's budget and the machine's limits into the two bounds that native code keeps, and back again.

Pure functions. Example: ``--fast 8GiB`` in a container of 6 GiB gives a process bound of 6 GiB less 2 % less 32 MiB,
and a warning. ``--fast 25%`` gives no arena budget at first. A recorded step then shows a peak of, say, 4 GiB: the
arena's budget is 1 GiB.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ebbtide.errors import BudgetError, SettingError, TiersTooSmallError
from ebbtide.host.process import MemoryLimit
from ebbtide.units import MIB, Budget, format_bytes, option, round_up

TOLERANCE_PERCENT = 2
"""The tolerance: a process may peak this far above its bound before the budget counts as violated. PyTorch, Python and
the script also allocate outside the arena. The arena sees those bytes only once they are there, and gives way to them
within about 10 ms."""

_HEADROOM_PERCENT = 2
_HEADROOM_BYTES = 32 * MIB
_REST_VARIES_BYTES = 16 * MIB
"""The unmanaged bytes of two runs of one script differ by about this much."""
_MARGIN_BYTES = 4 * MIB
_MARGIN_PART = 128
"""Native code leaves this part of the process's bound, and those bytes, free (``Arena::measure_rest``)."""


_GATHERS = re.compile("embedding|gather|index|select|take")
"""Operators that may use a few rows of a large tensor."""
_SMALLER_PIECE = 4 * MIB
"""Fused updates need two pieces of each tensor at once."""


@dataclass(frozen=True, slots=True)
class Need:
    """The bytes that have to be in the arena at once: ``nbytes``, for ``operator`` with its ``operand_bytes``.

    The operands use ``used_bytes`` of their storages, and the largest of these has ``largest_bytes``. Arrays
    and the session's ``keep`` hold ``held_bytes`` in memory. ``peak_bytes``: a step's tensors peak there; 0: not known.
    """

    operator: str
    operand_bytes: int
    used_bytes: int
    largest_bytes: int
    nbytes: int
    held_bytes: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds that the session starts with; 0 means no bound.

    ``fraction`` is the arena's share of the recorded peak, None when nothing has to be recorded. ``process_asked``:
    the process is what is bounded. Otherwise ``process_bytes`` only keeps the kernel from killing it. ``size`` is what
    was asked for, even where there is less; None where the session takes what is free. ``there_bytes`` is what the
    process can have in all, and ``limit`` the most that it could have. ``warning`` and ``said`` are "" or what the user
    must, and should, know.
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


def need_of(counters: Mapping[str, Any], peak_bytes: int = 0) -> Need:
    """Read from native counters the operation that needed most; where room was short, with what could not leave."""
    largest = counters.get("largest_operator_bytes", 0)
    return Need(
        counters.get("largest_operator", ""),
        largest,
        counters.get("largest_operator_used", 0),
        counters.get("largest_operand_bytes", 0),
        max(largest, counters.get("stuck_at_bytes", 0)),
        counters.get("held_bytes", 0),
        peak_bytes,
    )


def choose_bounds(
    budget: Budget | None, arena_bytes: int | None, limit: MemoryLimit, free: MemoryLimit, ranks: int = 1
) -> Bounds:
    """Choose the bounds. ``limit`` is for all ``ranks`` on this node, and ``free`` is what this one can have now.

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
            f"two steps measure the peak first, within the {format_bytes(there)} that {free.source} has for this "
            f"process{share}; the limit of {budget} applies from step 3. A size ({option('fast', '8GiB')}) applies at "
            "once"
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
    """Return the limit less the headroom that the kernel's own charges need."""
    return max(limit.nbytes - limit.nbytes * _HEADROOM_PERCENT // 100 - _HEADROOM_BYTES, MIB)


def process_too_small(
    process_bytes: int, rest_bytes: int, need: Need | None, planning_bytes: int = 0, limit: MemoryLimit | None = None
) -> BudgetError:
    """Make an error with the smallest process bound: unmanaged bytes, what the arena needs at once, and margins.

    While a step is planned the arena is empty, and ``planning_bytes`` take its place. Where no step has shown a need,
    the result is a lower bound: unmanaged bytes must fit in any case.
    """
    known = need or need_of({})
    minimum = smallest_process(rest_bytes, known.nbytes, planning_bytes)
    advice = _join(_advice(known), _limit_advice(minimum, limit))
    fast = f"{minimum // MIB}MiB" if need is not None else ""
    return _too_small(minimum, known, process_bytes, fast, advice, _plain_bytes(minimum, rest_bytes, known, limit))


def arena_too_small(
    arena_bytes: int,
    peak_bytes: int,
    need: Need,
    rest_bytes: int = 0,
    planning_bytes: int = 0,
    limit: MemoryLimit | None = None,
) -> BudgetError:
    """Make an error with the smallest arena: what must be in it at once, as whole percent of the recorded peak.

    Sometimes no percentage is enough: there is no such peak, or an operation outside the steps (an evaluation's, say)
    needs more. Then the error has the smallest process bound, as in ``process_too_small``.
    """
    if need.nbytes <= peak_bytes:
        minimum = rounded if (rounded := round_up(need.nbytes, MIB)) <= peak_bytes else need.nbytes
        return _too_small(minimum, need, arena_bytes, f"{-(-100 * minimum // peak_bytes)}%", _advice(need))
    minimum = smallest_process(rest_bytes, need.nbytes, planning_bytes)
    above = f"A step's tensors peak at {format_bytes(peak_bytes)}, so no percentage is enough." if peak_bytes else ""
    advice = _join(above, _advice(need), _limit_advice(minimum, limit))
    return _too_small(minimum, need, arena_bytes, f"{minimum // MIB}MiB", advice)


def tiers_too_small(arena_bytes: int, peak_bytes: int, slower: Sequence[tuple[str, int]]) -> TiersTooSmallError | None:
    """Make an error unless the arena and the ``slower`` tiers together (where, and bytes) hold a step's peak."""
    if arena_bytes + sum(nbytes for _, nbytes in slower) >= peak_bytes:
        return None
    peak = format_bytes(peak_bytes)
    works = (
        f"Use {option('fast', '100%')}, or a directory with {peak} free ({option('spill')}), or a NUMA tier of {peak}"
    )
    return TiersTooSmallError(peak_bytes, (("in memory", arena_bytes), *slower), "100%", works)


def smallest_process(rest_bytes: int, needed_bytes: int, planning_bytes: int = 0) -> int:
    """Return the smallest process bound that works, if the arena needs so many bytes at once."""
    needed = max(needed_bytes, planning_bytes) + rest_bytes + _MARGIN_BYTES + _REST_VARIES_BYTES
    return round_up(needed * _MARGIN_PART // (_MARGIN_PART - 1), MIB)


def arena_within(process_bytes: int, rest_bytes: int) -> int:
    """Return what a process bound leaves to the arena beside the unmanaged bytes; 0 where they leave nothing."""
    return max(process_bytes - process_bytes // _MARGIN_PART - _MARGIN_BYTES - rest_bytes, 0)


def _too_small(
    minimum: int, need: Need, budget_bytes: int, fast: str, advice: str, plain_bytes: int = 0
) -> BudgetError:
    return BudgetError(minimum, need.operator, need.operand_bytes, budget_bytes, fast, advice, plain_bytes)


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _limit_advice(minimum: int, limit: MemoryLimit | None) -> str:
    """Advise to raise the limit where no budget helps by itself; else ""."""
    if limit is None or minimum <= usable_bytes(limit):
        return ""
    raised = round_up((minimum + _HEADROOM_BYTES) * 100 // (100 - _HEADROOM_PERCENT), MIB)
    return (
        f"But {limit.source} allows {format_bytes(limit.nbytes)} in all, with headroom for what the kernel charges: "
        f"raise that limit to {format_bytes(raised)} first."
    )


def _plain_bytes(minimum: int, rest_bytes: int, need: Need, limit: MemoryLimit | None) -> int:
    """Return what the script takes without Ebbtide, where that is less than it does with it and is there; else 0."""
    plain = rest_bytes + need.peak_bytes
    is_there = limit is None or plain <= usable_bytes(limit)
    return plain if need.peak_bytes and plain <= minimum and is_there else 0


def _advice(need: Need) -> str:
    """Advise what else helps, in four cases: arrays and ``keep`` hold most of the need; an operation uses little of its
    storages; one of them is most of what it needs; or it goes through large pieces."""
    if need.held_bytes > need.nbytes // 2:
        return (
            f"{format_bytes(need.held_bytes)} are held in memory, by NumPy or DLPack arrays that share a tensor's "
            "memory, or by session.keep(): copy such arrays (tensor.numpy().copy()), or keep less."
        )
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
    if "_fused_" in need.operator and need.largest_bytes >= 2 * _SMALLER_PIECE:
        return (
            "The update has two pieces of each tensor in memory at once, or all of a small one, of "
            f"{format_bytes(need.largest_bytes)} at most: EBBTIDE_PIECE={_SMALLER_PIECE // MIB}MiB makes these smaller."
        )
    return ""
