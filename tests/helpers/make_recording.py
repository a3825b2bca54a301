"""Recordings as native code makes them, of which a test says only what it is about."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ebbtide.ir.recording import Recording

TABLES = ("tick", "use", "span")


def recording(n_ticks: int = 1, n_storages: int = 0, **told: Any) -> Recording:
    """Columns that are not told are 0, in the length of their tables; storages have one byte and were not looked at,
    uses read."""
    others = {"nbytes": 1, "use_access": 1, "packed_bytes": -1}
    lengths = {"tick": n_ticks, "storage": n_storages, "use": 0, "span": 0}
    lengths |= {_table(name): len(column) for name, column in told.items() if np.ndim(column) and name != "names"}
    columns: Mapping[str, npt.ArrayLike] = {
        field.name: np.full(lengths[_table(field.name)], others.get(field.name, 0)) for field in fields(Recording)[3:]
    } | {name: column for name, column in told.items() if name not in ("time_ns", "stalled_ns", "names")}
    return Recording(
        told.get("time_ns", 0),
        told.get("stalled_ns", 0),
        told.get("names", [""]),
        **{name: np.array(column, dtype=np.int64) for name, column in columns.items()},
    )


def _table(column: str) -> str:
    beginning = column.partition("_")[0]
    return beginning if beginning in TABLES else "storage"
