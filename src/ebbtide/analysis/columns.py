"""What an analysis asks of a trace's storages, beyond their own columns."""

import numpy as np

from ebbtide.ir.base import Ints
from ebbtide.ir.trace import StorageKind, Trace


def first_and_last_use(trace: Trace) -> tuple[Ints, Ints]:
    """Return the ticks of each storage's first and last access, or -1 for none."""
    n_storages, used = len(trace.storages), trace.accesses.storage
    first, last = np.full(n_storages, -1, dtype=np.int64), np.full(n_storages, -1, dtype=np.int64)
    begins = np.flatnonzero(np.diff(used, prepend=-1))
    ends = np.append(begins[1:], len(used)) - 1 if len(begins) else begins
    first[used[begins]] = trace.accesses.tick[begins]
    last[used[ends]] = trace.accesses.tick[ends]
    return first, last


def has_lines(trace: Trace) -> bool:
    """Say whether the program's line that made a storage is known for any."""
    return any(trace.storages.line.tolist())


def modules_of(trace: Trace) -> list[str]:
    """Return the module that each storage belongs to, or "" where none is known.

    That is the module that allocated it, or else the first that uses it, as for a parameter. For an optimizer's state
    it is that of the parameter or gradient of the same size that some tick uses along with it, if there is only one.
    """
    n_ticks, rows = len(trace.ticks), trace.accesses
    found: list[str] = trace.storages.module.tolist()
    module_at = trace.ticks.module.tolist()
    sizes, kinds = trace.storages.nbytes.tolist(), trace.storages.kind.tolist()
    uses = list(zip(rows.storage.tolist(), (rows.tick % n_ticks).tolist(), strict=True))
    for storage, tick in uses:
        found[storage] = found[storage] or module_at[tick]
    owner: dict[tuple[int, int], str] = {}  # (tick, bytes) -> module, "" where there are several
    owners = (StorageKind.PARAMETER, StorageKind.GRADIENT)
    for storage, tick in uses:
        if kinds[storage] in owners and found[storage]:
            key = (tick, sizes[storage])
            owner[key] = found[storage] if owner.get(key, found[storage]) == found[storage] else ""
    for storage, tick in uses:
        if kinds[storage] is StorageKind.OPTIMIZER_STATE and not found[storage]:
            found[storage] = owner.get((tick, sizes[storage]), "")
    return found


def common_root(modules: list[str]) -> str:
    """Return the prefix that all names share, in whole parts and with a dot at the end: "GPT2LMHeadModel.".

    The prefix is "" if they share none, or if they are no names of modules.
    """
    names = [name.split(".") for name in set(modules) if name]
    if not names or not all(part.replace("_", "a").isalnum() for name in names for part in name):
        return ""
    shared = 0
    while all(len(name) > shared + 1 and name[shared] == names[0][shared] for name in names):
        shared += 1
    return "".join(f"{part}." for part in names[0][:shared])
