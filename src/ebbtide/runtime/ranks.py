"""Messages between the ranks of a job: why one of them ends, and at the end each one's figures.

They go through the store of torch.distributed's default process group, over a connection of their own. torchrun's agent
serves that store, so it outlives any rank; with several nodes it is the same one. Without a process group, a rank
counts as the only one. Nothing waits for the store for longer than ``_ANSWER_S``. Where it does not answer, a rank goes
on as if it were alone.

A thread looks once a second whether a rank ended. A step asks only what that thread found.
"""

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Any, TypeVar

from ebbtide.errors import BudgetError, RankError
from ebbtide.host.own_thread import OwnThread
from ebbtide.host.place import Place

_ANSWER_S = 5.0
_LOOK_EVERY_S = 1.0
_POLL_S = 0.02
_REASON, _ENDED = "reason", "ended"
_sessions = 0  # of this process, with ranks: all ranks begin the same ones, in the same order
_T = TypeVar("_T")


class Ranks:
    """One session's ranks. ``look`` MUST be called now and then, until a process group is there."""

    def __init__(self, here: Place) -> None:
        self._here = here
        self._store: Any = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._reason: RankError | None = None

    @property
    def together(self) -> bool:
        """True once the others can be told anything."""
        return self._store is not None

    def look(self) -> None:
        """Take up the store, once there is a process group. Until then it costs a look at a table."""
        distributed = sys.modules.get("torch.distributed")
        if self._store is not None or self._here.size == 1 or distributed is None:
            return
        if not distributed.is_available() or not distributed.is_initialized():
            return
        global _sessions
        _sessions += 1
        of_the_group, prefix = distributed.distributed_c10d._get_default_store(), f"ebbtide/{_sessions}"
        self._store = _in_time(lambda: distributed.PrefixStore(prefix, of_the_group.clone()))
        if self._store is not None:
            self._thread = OwnThread(target=self._watch, name="ebbtide-ranks", daemon=True)
            self._thread.start()

    def unlaunched(self) -> int:
        """Return the number of ranks in the process group if no launcher started this process as one; else 0."""
        distributed = sys.modules.get("torch.distributed")
        if self._here != Place() or distributed is None or not distributed.is_available():
            return 0
        size = distributed.get_world_size() if distributed.is_initialized() else 1
        return size if size > 1 else 0

    def close(self) -> None:
        """Stop looking. The store can still be asked."""
        self._closing.set()

    def heard(self) -> RankError | None:
        """Return why a rank ended, as far as this one has heard."""
        return self._reason

    def ask(self) -> RankError | None:
        """Ask now why a rank ended, and return it."""
        self.look()
        if self._reason is None and self._store is not None:
            self._reason = _in_time(self._read)
        return self._reason

    def tell(self, error: BudgetError | str) -> RankError | None:
        """Tell that this rank ends, and why. Return what the first rank that ended said: all end with that. None for
        a rank alone."""
        self.look()
        if self._store is None or isinstance(error, RankError):
            return None
        least = (error.minimum_bytes, error.minimum_fast) if isinstance(error, BudgetError) else (0, "")
        mine = RankError(self._here.rank, str(error), *least)
        self._reason = _in_time(lambda: _decoded(self._store.compare_set(_REASON, "", json.dumps(mine.args)))) or mine
        return self._reason

    def gather(self, column: Sequence[str], most_s: float) -> dict[int, list[str]]:
        """Gather at the end the column of each rank of this node. Empty unless all ranks of the job came to their
        ends."""
        if self._store is None:
            return {}

        def ended() -> dict[int, list[str]]:
            self._store.set(f"{_ENDED}/{self._here.rank}", json.dumps(list(column)))
            self._store.add(_ENDED, 1)
            deadline = monotonic() + most_s
            while self._store.add(_ENDED, 0) < self._here.size:
                if monotonic() > deadline or self._store.check([_REASON]):
                    return {}
                sleep(_POLL_S)
            if self._store.check([_REASON]):
                return {}
            ranks = self._here.of_the_node()
            found = self._store.multi_get([f"{_ENDED}/{rank}" for rank in ranks])
            return {rank: json.loads(text) for rank, text in zip(ranks, found, strict=True)}

        return _in_time(ended, most_s) or {}

    def _watch(self) -> None:
        while self._reason is None and not self._closing.wait(_LOOK_EVERY_S):
            try:
                self._reason = self._read()
            except Exception:  # the store is gone, and with it everybody who could have told
                return

    def _read(self) -> RankError | None:
        return _decoded(self._store.get(_REASON)) if self._store.check([_REASON]) else None


def _decoded(text: bytes) -> RankError | None:
    return RankError(*json.loads(text)) if text else None


def _in_time(call: Callable[[], _T], beyond_s: float = 0.0) -> _T | None:
    """Return the call's result; None where it raises, or takes ``_ANSWER_S`` longer than that: a store, or its
    machine, may be gone."""
    answer: list[_T] = []

    def carry_out() -> None:
        with contextlib.suppress(Exception):
            answer.append(call())

    thread = threading.Thread(target=carry_out, name="ebbtide-store", daemon=True)
    thread.start()
    thread.join(beyond_s + _ANSWER_S)
    return answer[0] if answer else None
