"""A trace's storages as columns, since an analysis asks all of them the same questions."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebbtide.ir.base import Ints
from ebbtide.ir.trace import Trace

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Row i is ``trace.storages[i]``. ``first`` and ``last`` are ticks of its first and last access, -1 for none."""

    nbytes: Ints
    birth: Ints
    death: Ints
    persistent: Flags
    scratch: Flags
    kind: npt.NDArray[np.object_]
    module: npt.NDArray[np.object_]
    first: Ints
    last: Ints

    def __len__(self) -> int:
        return len(self.nbytes)


def columns_of(trace: Trace) -> Columns:
    rows, used = trace.storages, trace.accesses.storage
    first, last = np.full(len(rows), -1, dtype=np.int64), np.full(len(rows), -1, dtype=np.int64)
    begins = np.flatnonzero(np.diff(used, prepend=-1))
    ends = np.append(begins[1:], len(used)) - 1 if len(begins) else begins
    first[used[begins]] = trace.accesses.tick[begins]
    last[used[ends]] = trace.accesses.tick[ends]
    return Columns(
        np.array([row.nbytes for row in rows], dtype=np.int64),
        np.array([row.birth for row in rows], dtype=np.int64),
        np.array([row.death for row in rows], dtype=np.int64),
        np.array([row.persistent for row in rows], dtype=bool),
        np.array([row.scratch for row in rows], dtype=bool),
        np.array([row.kind for row in rows], dtype=object),
        np.array([row.module for row in rows], dtype=object),
        first,
        last,
    )
