"""One finding about the machine."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The weight of a finding.

    OK needs nothing. A HINT costs speed or comfort. A PROBLEM keeps a run from starting, or from ending well.
    """

    OK = "ok"
    HINT = "hint"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: ``found`` is the fact, ``means`` its importance, and ``cure`` the remedy for a PROBLEM or a HINT."""

    name: str
    level: Level
    found: str
    means: str
    cure: str = ""

    def __post_init__(self) -> None:
        if self.level is not Level.OK and not self.cure:
            raise ValueError(f"{self.name}: what is not well needs a cure")
