"""What one run of a script leaves for the comparison: its losses step by step, and its state as digests.

Lines of JSON, written as the run goes, so that a run that is killed leaves what it had. Steps are those of a session
that follows the optimizers, and are counted as they end: what lies before the end of the first is step 0.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ebbtide.errors import FileFormatError

FILE_NAME = "record.jsonl"
GONE = "freed in the backward pass"
"""The digest of a gradient that is not there to be compared: its parameter was updated in the backward pass."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A root of a backward call. ``value`` is the number as text where it is one, else ""."""

    step: int
    digest: str
    value: str


@dataclass(frozen=True, slots=True)
class State:
    """After a step: a digest for every tensor and number that training would need to go on, by name."""

    step: int
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ending:
    """``status`` is the script's exit status; ``peak_bytes`` is VmHWM; ``largest_bytes`` is of one tensor, by kind."""

    status: int
    steps: int
    peak_bytes: int
    seconds: float
    largest_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Record:
    """One run, as far as it came; ``ending`` is None if the process died."""

    losses: tuple[Loss, ...]
    states: Mapping[int, State]
    ending: Ending | None


class Recorder:
    """Writes a record line by line; used by one thread at a time. The file is open only while a line is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("")

    def write(self, entry: Loss | State | Ending) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({type(entry).__name__.lower(): asdict(entry)}) + "\n")


def read_record(path: Path) -> Record:
    """A missing file is a run that came to nothing. Raises FileFormatError for a damaged one."""
    losses: list[Loss] = []
    states: dict[int, State] = {}
    ending: Ending | None = None
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines):
        try:
            ((kind, fields),) = json.loads(line).items()
            if kind == "loss":
                losses.append(Loss(**fields))
            elif kind == "state":
                states[fields["step"]] = State(**fields)
            else:
                ending = Ending(**fields)
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines) - 1:
                break  # the process died while it wrote this line
            raise FileFormatError(f"{path}, line {number + 1}: {error}") from error
    return Record(tuple(losses), states, ending)
