"""Recording: one step as native code noted it, in columns, before it is a Trace. Imports no torch.

The native module writes it, and ``recorders`` for steps on fake tensors. ``capture`` reads it. It goes to the process
that plans as a file. Columns with the same first word form one table; those without such a word are the storages'.
Ticks count operators on the step's thread from 1, and tick 0 is everything before. -1 is "never".

Left out of the checks: whether values agree across rows, such as the order of times.
"""

from dataclasses import dataclass, fields

import numpy as np

from ebbtide.ir.base import Ints
from ebbtide.ir.native import NEVER, Lane, Phase
from ebbtide.ir.run_report import KINDS


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Recording:
    """Raises ValueError for columns of one table that differ in length, wrong types, and numbers out of range."""

    time_ns: int  # the whole step's time
    stalled_ns: int  # stalls in it
    names: list[str]  # operators, modules and arguments; columns of names hold places in this list
    tick_name: Ints  # place in names
    tick_module: Ints  # place in names
    tick_arguments: Ints  # place in names: the call as JSON, see docs/format.md
    tick_depth: Ints  # the number of operators that it runs in
    tick_phase: Ints  # native.Phase
    tick_begin_ns: Ints  # since the step began
    tick_stalled_ns: Ints  # stalls between the step's and the tick's beginning
    tick_reserved: Ints  # bytes that the arena had reserved when the tick began
    serial: Ints  # the allocation's number, unique in the process
    nbytes: Ints
    kind: Ints  # place in run_report.KINDS
    birth: Ints  # tick; -1: before the step
    allocation: Ints  # within tick birth; -1: not by the step's thread
    depth: Ints  # the number of operators that its thread was in
    death: Ints  # first tick without it; -1: it outlived the step
    scratch: Ints  # 1: born and gone within one operator, or pinned when the step began
    thread: Ints  # the one that allocated it
    whole: Ints  # of a piece of a large storage, that storage's number, unique in the process; 0: it is no piece
    freed_after: Ints  # if it died within the step, the serial given last before that
    packed_bytes: Ints  # size of its contents on a tier that packs; -1: it refuses them, or nobody looked
    module: Ints  # place in names: the module in which it was born
    line: Ints  # place in names: the line of the user's program that made it
    use_storage: Ints  # an operator used this storage
    use_first: Ints  # in ticks [use_first, use_last]
    use_last: Ints
    use_access: Ints  # Access
    use_moved: Ints  # bytes
    span_storage: Ints  # a move of this storage, or a wait for it; -1: a wait for room for a new one
    span_tick: Ints  # the tick at which it was asked for
    span_lane: Ints  # native.Lane
    span_source: Ints  # number of the tier that a move came from
    span_target: Ints  # and of the one that it went to
    span_asked_ns: Ints  # since the step began, as are the others
    span_begin_ns: Ints
    span_end_ns: Ints

    def __post_init__(self) -> None:
        lengths: dict[str, int] = {}
        for field in fields(self):
            if field.name in ("time_ns", "stalled_ns", "names"):
                continue
            column = getattr(self, field.name)
            if not isinstance(column, np.ndarray) or column.dtype != np.int64 or column.ndim != 1:
                raise ValueError(f"not a recording: {field.name} must be one row of 64-bit integers")
            table = _table(field.name)
            if lengths.setdefault(table, len(column)) != len(column):
                rows = f"{lengths[table]} {table}s, and {len(column)} rows in {field.name}"
                raise ValueError(f"not a recording: there are {rows}")
            kept = column.view()
            kept.flags.writeable = False
            object.__setattr__(self, field.name, kept)
        n_names, n_ticks, n_storages = len(self.names), self.n_ticks, self.n_storages
        for name, low, end in (
            ("tick_name", 0, n_names),
            ("tick_module", 0, n_names),
            ("tick_arguments", 0, n_names),
            ("tick_phase", 0, len(Phase)),
            ("nbytes", 1, None),
            ("kind", 0, len(KINDS)),
            ("birth", NEVER, n_ticks),
            ("allocation", NEVER, None),
            ("death", NEVER, n_ticks + 1),
            ("whole", 0, None),
            ("packed_bytes", NEVER, None),
            ("module", 0, n_names),
            ("line", 0, n_names),
            ("use_storage", 0, n_storages),
            ("use_first", 0, n_ticks),
            ("use_last", 0, n_ticks),
            ("use_access", 1, 4),
            ("span_storage", NEVER, n_storages),
            ("span_lane", 0, len(Lane)),
            ("span_source", 0, None),
            ("span_target", 0, None),
        ):
            self._check_range(name, low, end)
        copies = self.span_lane <= Lane.BACK
        if np.any(self.span_storage[copies] == NEVER):
            raise ValueError("not a recording: a copy of no storage in span_storage")

    def _check_range(self, name: str, low: int, end: int | None) -> None:
        column: Ints = getattr(self, name)
        if not len(column):
            return
        least, most = int(column.min()), int(column.max())
        if least < low or (end is not None and most >= end):
            most_allowed = "" if end is None else f" to {end - 1}"
            raise ValueError(f"not a recording: {name} holds {least} to {most}, and {low}{most_allowed} is its range")

    @property
    def n_ticks(self) -> int:
        """0 where no step was recorded, or where the step was too long."""
        return len(self.tick_name)

    @property
    def n_storages(self) -> int:
        return len(self.nbytes)


def _table(column: str) -> str:
    beginning = column.partition("_")[0]
    return beginning if beginning in ("tick", "use", "span") else "storage"
