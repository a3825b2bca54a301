"""Examines the spill directories by doing there what a run does."""

import errno
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ebbtide.doctor.finding import Finding, Level
from ebbtide.doctor.view import View
from ebbtide.errors import SpillError
from ebbtide.host.mounts import find_mount, read_mounts
from ebbtide.host.process import memory_limit
from ebbtide.host.spill import choose_spill_directories, free_bytes_of, open_unnamed, reserve
from ebbtide.units import GIB, MIB, format_bytes

_TRIAL_BYTES = 2 * MIB
_LEAST_BYTES = GIB
_NETWORK_KINDS = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "afs", "beegfs", "gpfs")
_SHARED_KINDS = ("virtiofs", "vboxsf", "drvfs")
_COPYING_KINDS = ("btrfs", "zfs", "bcachefs")


@dataclass(frozen=True, slots=True)
class SpillTrial:
    """The result of a trial with an unnamed file.

    ``error`` says why it could not be written, or is "". ``direct`` says that O_DIRECT worked.
    """

    error: str
    direct: bool
    reserved: bool
    free_bytes: int


def storage(view: View, asked: Sequence[str]) -> list[Finding]:
    """Return one PROBLEM where a directory cannot serve; otherwise several findings for each, which name it."""
    means = "tensors that leave memory are written to an unnamed file there"
    cure = "name a writable directory on a local disk with --spill or EBBTIDE_SPILL"
    try:
        directories = choose_spill_directories(asked, view.proc)
    except SpillError as error:
        return [Finding("spill directory", Level.PROBLEM, f"{error.directory}: {error.reason}", means, cure)]
    trials = [
        try_spill(directory, free) for directory, free in zip(directories, free_bytes_of(directories), strict=True)
    ]
    needed_bytes = memory_limit(view.proc).nbytes // len(directories)  # stripes fill all alike
    found: list[Finding] = []
    for directory, trial in zip(directories, trials, strict=True):
        if trial.error:
            problem = f"{directory}: cannot be written ({trial.error})"
            return [Finding("spill directory", Level.PROBLEM, problem, means, cure)]
        about = [direct_writes(trial), free_space(trial, needed_bytes)]
        if len(directories) > 1:
            about = [replace(finding, found=f"{directory}: {finding.found}") for finding in about]
        found += [spill_kind(directory, find_mount(read_mounts(view.proc), directory).kind), *about]
    return found


def try_spill(directory: Path, free: int) -> SpillTrial:
    """Reserve, write and read back 2 MiB of an unnamed file, as a run does. Nothing stays."""
    direct = True
    try:
        file, direct = open_unnamed(directory)
        try:
            reserved = reserve(file, _TRIAL_BYTES)
            with mmap.mmap(-1, _TRIAL_BYTES) as pages:
                pages[:] = os.urandom(mmap.PAGESIZE) * (_TRIAL_BYTES // mmap.PAGESIZE)
                written = bytes(pages)
                _move(os.pwritev, file, pages, "written")
                pages[:] = bytes(_TRIAL_BYTES)
                _move(os.preadv, file, pages, "read")
                if pages[:] != written:
                    return SpillTrial("other bytes came back than were written", direct, reserved, free)
        finally:
            os.close(file)
    except OSError as error:
        return SpillTrial(error.strerror or str(error), direct, False, free)
    return SpillTrial("", direct, reserved, free)


def _move(call: "object", file: int, pages: mmap.mmap, verb: str) -> None:
    moved = call(file, [pages], 0)  # type: ignore[operator]
    if moved != _TRIAL_BYTES:
        raise OSError(errno.EIO, f"only {moved} of {_TRIAL_BYTES} bytes could be {verb}")


def spill_kind(directory: Path, kind: str) -> Finding:
    found = f"{directory}, on {kind}"
    means = "tensors that leave memory are written to an unnamed file there, many times their size in a long run"
    cure = "name a directory on a local disk, best NVMe, with --spill or EBBTIDE_SPILL"
    if kind in _NETWORK_KINDS or kind.startswith("fuse"):
        return Finding("spill directory", Level.HINT, f"{found}, a network or user-space file system", means, cure)
    if kind in _SHARED_KINDS:
        return Finding("spill directory", Level.HINT, f"{found}, shared with the host", means, cure)
    if kind == "overlay":
        cure = "mount a volume on a local disk into the container and name it with --spill or EBBTIDE_SPILL"
        return Finding("spill directory", Level.HINT, f"{found}, the container's own layer", means, cure)
    if kind in _COPYING_KINDS:
        cure = "use a directory without copy-on-write and compression (on btrfs: chattr +C), or an ext4 or XFS disk"
        return Finding("spill directory", Level.HINT, f"{found}, which copies on every write", means, cure)
    return Finding("spill directory", Level.OK, found, means)


def direct_writes(trial: SpillTrial) -> Finding:
    means = "moves go straight between memory and disk; through the page cache they are slower and use memory"
    if not trial.direct:
        cure = "name a directory on ext4 or XFS with --spill or EBBTIDE_SPILL"
        return Finding("O_DIRECT", Level.HINT, "refused, so the page cache is used", means, cure)
    return Finding("O_DIRECT", Level.OK, "written and read back", means)


def free_space(trial: SpillTrial, memory_bytes: int) -> Finding:
    means = (
        "a step's tensors less the budget must fit; space is reserved before it is needed, so a full disk shows early"
    )
    found = format_bytes(trial.free_bytes)
    if not trial.reserved:
        found += ", and none can be reserved on this file system"
    if trial.free_bytes < _LEAST_BYTES:
        return Finding("free space", Level.PROBLEM, found, means, "make room, or name another directory with --spill")
    if trial.free_bytes < memory_bytes or not trial.reserved:
        cure = f"{format_bytes(memory_bytes)} is enough for most runs: in all, as much as the machine has memory"
        return Finding("free space", Level.HINT, found, means, cure)
    return Finding("free space", Level.OK, found, means)
