"""A step on fake tensors as the columns that native code makes of a real one (``ir.recording``)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ebbtide.ir.base import Ints
from ebbtide.ir.native import NEVER
from ebbtide.ir.recording import Recording


@dataclass(slots=True)
class FakeTick:
    name: int
    module: int
    begin_ns: int
    arguments: int
    phase: int


@dataclass(slots=True)
class FakeRow:
    serial: int
    nbytes: int
    kind: int
    birth: int
    allocation: int
    module: int
    death: int = NEVER
    freed_after: int = 0
    line: int = 0


Use = tuple[int, int, int, int]  # row, tick, access, bytes moved


class FakeRecording:
    """Collects the columns of one step."""

    def __init__(self) -> None:
        self.names = {"": 0}
        self.ticks = [FakeTick(0, 0, 0, 0, 0)]
        self.rows: list[FakeRow] = []
        self.uses: list[Use] = []
        self.now_ns = 0

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def columns(self) -> Recording:
        def column(values: Iterator[int]) -> Ints:
            return np.array(list(values), dtype=np.int64)

        n_ticks, n_storages = len(self.ticks), len(self.rows)
        tick_zeros, storage_zeros, no_spans = (np.zeros(n, dtype=np.int64) for n in (n_ticks, n_storages, 0))
        ticks = {
            f"tick_{name}": column(getattr(tick, name) for tick in self.ticks)
            for name in ("name", "module", "begin_ns", "arguments", "phase")
        }
        storages = {
            name: column(getattr(row, name) for row in self.rows)
            for name in ("serial", "nbytes", "kind", "birth", "allocation", "module", "death", "freed_after", "line")
        }
        uses = {
            f"use_{name}": column(use[place] for use in self.uses)
            for name, place in (("storage", 0), ("first", 1), ("last", 1), ("access", 2), ("moved", 3))
        }
        of_span = ("storage", "tick", "lane", "source", "target", "asked_ns", "begin_ns", "end_ns")
        spans = {f"span_{name}": no_spans for name in of_span}
        return Recording(
            time_ns=self.now_ns,
            stalled_ns=0,
            names=list(self.names),
            tick_stalled_ns=tick_zeros,
            tick_depth=tick_zeros,
            tick_reserved=tick_zeros,
            scratch=storage_zeros,
            packed_bytes=np.full(n_storages, NEVER, dtype=np.int64),
            thread=storage_zeros,
            depth=np.ones(n_storages, dtype=np.int64),
            whole=storage_zeros,
            **ticks,
            **storages,
            **uses,
            **spans,
        )
