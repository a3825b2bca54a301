"""One run's record for the comparison: its losses step by step, and its state as digests.

The record is lines of JSON, written as the run goes, so a run that is killed leaves what it had. Steps are those of a
session that follows the optimizers. They are counted as they end: until the first has ended, it is step 0.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ebbtide.errors import FileFormatError

FILE_NAME = "record.jsonl"
GONE = "freed in the backward pass"
"""The digest of a gradient that cannot be compared, because its parameter was updated in the backward pass."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A root of a backward call. ``value`` is its number as text, or "" if it is not one number."""

    step: int
    digest: str
    value: str


@dataclass(frozen=True, slots=True)
class State:
    """The state after a step: a digest by name for every tensor and number that training would need to go on."""

    step: int
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run: ``status`` is the script's exit status, and ``peak_bytes`` is VmHWM.

    ``largest_bytes`` has the largest tensor of each kind. ``device_peak_bytes`` is what tensors took of an accelerator,
    0 where there is none.
    """

    status: int
    steps: int
    peak_bytes: int
    seconds: float
    largest_bytes: Mapping[str, int]
    device_peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """One run, as far as it came. ``ending`` is None if the process died."""

    losses: tuple[Loss, ...]
    states: Mapping[int, State]
    ending: Ending | None


class Recorder:
    """Writes a record line by line. Only one thread at a time may use it. The file is open only while a line is
    written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("")

    def write(self, entry: Loss | State | Ending) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({type(entry).__name__.lower(): asdict(entry)}) + "\n")


def read_record(path: Path) -> Record:
    """Read a record. A missing file is a run that did nothing. Raises FileFormatError for a damaged one."""
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
