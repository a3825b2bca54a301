"""The arena of this process: its first session makes it, and it stays until the process ends."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import ebbtide._torch as _torch
from ebbtide.budget import bounds
from ebbtide.budget.bounds import Bounds
from ebbtide.errors import PlatformError, SessionError, SettingError, SpillError
from ebbtide.host import process
from ebbtide.host.page_moves import try_page_move
from ebbtide.host.spill import usable_bytes
from ebbtide.ir import native
from ebbtide.ir.run_report import TierReport
from ebbtide.settings import Settings, SlowerTier, TierKind
from ebbtide.units import format_bytes

SPILL_FILE = "spill file"
_OF_A_PARENT = (
    "this process was forked from one that had a session, and has what is left of that one's arena, so it can have no "
    "session of its own: start it with the spawn method, or fork before the parent's first session"
)
_process: int | None = None  # the one that made the arena
_tiers: tuple[SlowerTier, ...] = ()
_spill: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """A session's settings, and what it has derived from them: bounds, spill directories and native policy."""

    settings: Settings
    bounds: Bounds
    spill: Sequence[Path]
    decider: str


def start_arena(run: Run) -> None:
    """Have new storages come from the arena from now on, within its bounds.

    Raises SessionError in a forked child of a process that has one, and for other tiers than it has. Raises
    SettingError for a tier that this machine does not have. Also raises SpillError, and PlatformError where the kernel
    lacks what the arena needs.
    """
    global _process, _tiers, _spill
    if _process not in (None, os.getpid()):
        raise SessionError(_OF_A_PARENT)
    if _process is not None and run.settings.tiers != _tiers:
        raise SessionError(
            f"the first session of this process had {_names(_tiers)}, which stay: name the same, or start another "
            f"process for {_names(run.settings.tiers)}"
        )
    if trouble := native.disagreement(_torch):
        raise RuntimeError(trouble)
    if _process is None and (refusal := try_page_move()):
        raise PlatformError(
            f"this kernel refuses to move pages ({refusal}; mremap with MREMAP_DONTUNMAP), by which tensors leave "
            "memory: use Linux 5.7 or newer, and no sandbox that imitates a kernel (gVisor)"
        )
    try:
        with process.on_all_cpus():
            _torch.start(_asked(run))
    except ValueError as error:
        raise SettingError(str(error)) from error
    except RuntimeError as error:
        if "address space" in str(error):  # the directory is not to blame
            raise PlatformError(str(error)) from error
        raise SpillError(_listed(run.spill), str(error)) from error
    _process, _tiers, _spill = os.getpid(), run.settings.tiers, tuple(run.spill)


def spill_of_this_process(chosen: tuple[Path, ...], is_named: bool) -> tuple[Path, ...]:
    """Return the directories of the first session, which stay, or else those chosen. Raises SessionError where others
    are named."""
    if is_named and _spill and chosen != _spill:
        raise SessionError(
            f"the first session of this process writes to {_listed(_spill)}, which stays: name the same, or start "
            f"another process for {_listed(chosen)}"
        )
    return _spill or chosen


def _asked(run: Run) -> "_torch.ArenaSettings":
    settings, asked = run.settings, _torch.ArenaSettings()
    asked.spill_dirs = [str(directory) for directory in run.spill]
    asked.tiers = [
        _torch.AskedTier(kind=tier.kind, capacity_bytes=tier.capacity_bytes, node=tier.node) for tier in settings.tiers
    ]
    asked.arena_bytes = run.bounds.arena_bytes
    asked.process_bytes = run.bounds.process_bytes
    asked.machine_bytes = most_bytes()
    asked.min_bytes = settings.min_storage_bytes
    asked.piece_bytes = settings.piece_bytes
    asked.policy = run.decider
    asked.io_threads = settings.io_threads
    asked.watchdog_ns = round(settings.watchdog_s * 1e9)
    asked.chaos_rate = settings.chaos_rate
    asked.chaos_seed = settings.chaos_seed
    return asked


def most_bytes() -> int:
    """Return the bytes above which the kernel is about to end the process; 0 where it swaps instead."""
    return 0 if process.may_swap() else bounds.usable_bytes(process.memory_limit())


def stop_arena() -> None:
    """Give new storages back to PyTorch. Those of the arena stay valid."""
    _torch.stop()


def tier_reports(
    tiers: Sequence[SlowerTier], before: "_torch.Counters", after: "_torch.Counters"
) -> tuple[TierReport, ...]:
    """Report the tiers' traffic between two moments; none where the spill file is the only slower tier."""
    if not tiers:
        return ()
    return reported([*((tier.name, tier.capacity_bytes) for tier in tiers), (SPILL_FILE, None)], before, after)


def reported(
    named: Sequence[tuple[str, int | None]], before: "_torch.Counters", after: "_torch.Counters"
) -> tuple[TierReport, ...]:
    """Report what went to the tiers of these names and capacities, and came back, between two moments."""

    def since(key: Literal["tier_written_bytes", "tier_read_bytes"], place: int) -> int:
        return after[key][place] - before[key][place]

    return tuple(
        TierReport(name, capacity, since("tier_written_bytes", place), since("tier_read_bytes", place))
        for place, (name, capacity) in enumerate(named)
    )


def may_still_pack(tiers: Sequence[SlowerTier], counters: "_torch.Counters") -> int:
    """Return how much of its size compressed memory has not taken yet."""
    return sum(
        max(tier.capacity_bytes - counters["tier_peak_bytes"][place], 0)
        for place, tier in enumerate(tiers)
        if tier.kind is TierKind.COMPRESSED
    )


def rooms_of(tiers: Sequence[SlowerTier], spill: Sequence[Path]) -> list[tuple[str, int]] | None:
    """List where bytes can go besides memory, and how many; None where nobody can tell."""
    if any(tier.kind is TierKind.COMPRESSED for tier in tiers):
        return None  # nobody knows how much will shrink
    try:
        free = usable_bytes(spill)
    except OSError:
        return None
    file = free + _torch.counters()["tier_bytes"][-1]
    return [*((f"in {tier.name}", tier.capacity_bytes) for tier in tiers), (f"in {_listed(spill)}", file)]


def _listed(directories: Sequence[Path]) -> str:
    return ", ".join(map(str, directories))


def _names(tiers: Sequence[SlowerTier]) -> str:
    listed = (f"{tier.name} of {format_bytes(tier.capacity_bytes)}" for tier in tiers)
    return f"the tiers {', '.join(listed)}" if tiers else "no tier but memory and the spill file"
