"""What one look at the machine found."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """OK needs nothing; a HINT costs speed or comfort; a PROBLEM keeps a run from starting, or from ending well."""

    OK = "ok"
    HINT = "hint"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """``found`` is what is so, ``means`` why that matters, and ``cure`` what to do: a PROBLEM or a HINT has one."""

    name: str
    level: Level
    found: str
    means: str
    cure: str = ""

    def __post_init__(self) -> None:
        if self.level is not Level.OK and not self.cure:
            raise ValueError(f"{self.name}: what is not well needs a cure")
