"""The words of native code as numbers, each enum named after native's (``native/core``). Imports no torch.

Native code exports the names of each in the order of their values; a session compares them with ``WORDS`` when it
starts. The kinds of storages are ``ir.trace.StorageKind``, and what an operator does with one is ``ir.trace.Access``.
"""

from enum import IntEnum

from ebbtide.ir.run_report import KINDS

NEVER = -1
"""No tick, no number: in a column, what native code calls kNever."""


class Phase(IntEnum):
    """What runs when a tick begins. Whether OTHER is the forward pass shows only later in the step."""

    OTHER = 0
    BACKWARD = 1
    OPTIMIZER = 2


class Lane(IntEnum):
    """What a span is: a copy to a slower tier or back to a faster one, or a stall by its cause."""

    OUT = 0
    BACK = 1
    STALL_ROOM = 2
    STALL_LATE = 3
    STALL_DEMAND = 4


class Verb(IntEnum):
    """EVICT and FETCH copy to a slower or faster tier and wait for room there, but nobody waits for them.

    DROP gives up the room on a tier, once the copies from there are done.
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
"""By the name of native code's tuple, what it has to hold."""


def disagreement(found: object) -> str:
    """What the native module ``found`` calls otherwise than Python does, in words; empty where they agree."""
    for name, words in WORDS.items():
        if getattr(found, name, None) != words:
            return f"the native module's {name} are {getattr(found, name, None)}, and Python's are {words}"
    return ""
