"""The words of native code as numbers. Each enum is named after native's (``native/core``). Imports no torch.

Native code exports the names of each enum in the order of their values. A session compares them with ``WORDS`` when it
starts. The kinds of storages are the first of ``ir.trace.StorageKind``, and accesses are ``ir.trace.Access``.
"""

from enum import IntEnum

from ebbtide.ir.run_report import KINDS

NEVER = -1
"""No tick, or no number: kNever in native code's columns."""


class Phase(IntEnum):
    """The phase in which a tick begins. Only the rest of the step shows whether OTHER is the forward pass."""

    OTHER = 0
    BACKWARD = 1
    OPTIMIZER = 2


class Lane(IntEnum):
    """The kind of a span: a copy to a slower tier, a copy back to a faster one, or a stall by its cause."""

    OUT = 0
    BACK = 1
    STALL_ROOM = 2
    STALL_LATE = 3
    STALL_DEMAND = 4


class Verb(IntEnum):
    """EVICT copies to a slower tier, FETCH to a faster one. Both wait for room there, but nobody waits for them.

    DROP gives up the contents on a tier, once the copies from there are done.
    """

    EVICT = 0
    DROP = 1
    FETCH = 2


def _names(words: type[IntEnum]) -> tuple[str, ...]:
    assert [word.value for word in words] == list(range(len(words)))
    return tuple(word.name.lower() for word in words)


WORDS: dict[str, tuple[str, ...]] = {
    "KINDS": KINDS,
    "PHASES": _names(Phase),
    "LANES": _names(Lane),
    "VERBS": _names(Verb),
    "ACCESSES": ("", "read", "write", "read_write"),
}
"""The words that each of native code's tuples must hold, by its name."""


def disagreement(found: object) -> str:
    """Say in words where the native module ``found`` differs from Python; "" where they agree."""
    for name, words in WORDS.items():
        if getattr(found, name, None) != words:
            return f"the native module's {name} are {getattr(found, name, None)}, and Python's are {words}"
    return ""
