"""The report of a run: its budget, the memory it used, and what every step moved and waited for.

Sizes are bytes, times are seconds. Every figure is measured, on the machine of the run. The JSON file has exactly
these fields. ``format`` and ``version`` say what it is, and a reader refuses any other.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from html import escape
from pathlib import Path

from ebbtide.errors import FileFormatError, ReportError
from ebbtide.ir.records import check_reals, printable, read_record, refusing_damage
from ebbtide.units import format_bytes
from ebbtide.whole_file import write_whole

FORMAT = "ebbtide-run"
VERSION = 6

KINDS = ("parameter", "gradient", "optimizer_state", "activation", "other")

_FAR_ABOVE, _FAR_BELOW = 1.5, 0.5


class StepMode(StrEnum):
    """The way in which a step decided what to move.

    RECORDED is a step run to learn what later steps need; it may use as much memory as it likes. PLANNED carries out a
    plan. DEMAND evicts when room is needed and fetches when an access forces it.
    """

    RECORDED = "recorded"
    PLANNED = "planned"
    DEMAND = "demand"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that moved in one direction, or lie in memory, rounded up to pages, by the kind of the storage."""

    total: int
    parameter: int
    gradient: int
    optimizer_state: int
    activation: int
    other: int

    def __post_init__(self) -> None:
        check_reals(self, " ".join(KINDS))
        if self.total != sum(self.by_kind()):
            raise ValueError(f"total is {self.total} but the kinds add up to {sum(self.by_kind())}")

    @staticmethod
    def of(by_kind: Sequence[int]) -> "Traffic":
        """Make it from bytes in the order of KINDS."""
        return Traffic(sum(by_kind), *by_kind)

    def by_kind(self) -> tuple[int, ...]:
        return tuple(getattr(self, kind) for kind in KINDS)


@dataclass(frozen=True, slots=True)
class Stall:
    """Time in which at least one thread stood still: for room, for a late prefetch, for a demand fetch."""

    room: float
    late_prefetch: float
    demand_fetch: float

    def __post_init__(self) -> None:
        check_reals(self, "room late_prefetch demand_fetch")

    @property
    def total(self) -> float:
        return self.room + self.late_prefetch + self.demand_fetch


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step. ``cpu_s`` is of all threads. ``evicted_bytes`` left memory; ``written_bytes`` of them were written.

    ``made_anew_bytes`` left without a copy, and operators made them once more, in ``made_anew_s``.
    ``operators`` began on the step's thread; 0 on a device. ``between_s`` passed since the end of the step before.

    ``inconsistent`` says which counters ran backwards, and is "" as a rule. A figure that depends on one is 0.
    """

    wall_s: float
    cpu_s: float
    stall_s: Stall
    evicted_bytes: Traffic
    fetched_bytes: Traffic
    written_bytes: Traffic
    minor_faults: int
    mode: StepMode
    inconsistent: str = ""
    made_anew_bytes: int = 0
    made_anew_s: float = 0.0
    operators: int = 0
    between_s: float = 0.0

    def __post_init__(self) -> None:
        check_reals(self, "wall_s cpu_s minor_faults made_anew_bytes made_anew_s operators between_s")


LEFT = "is left as the script has it"
"""In ``RunReport.updates``: an optimizer whose parameters are not updated in the order that was asked for."""


@dataclass(frozen=True, slots=True)
class OutsideStorage:
    """Storages that stay where they are, and the reason: ``count`` of them share it, with ``nbytes`` in all."""

    reason: str
    count: int
    nbytes: int

    def __post_init__(self) -> None:
        check_reals(self, "count nbytes")


def by_reason(left_alone: list[tuple[int, str]]) -> tuple[OutsideStorage, ...]:
    """Sum up pairs of (bytes, reason)."""
    count = Counter(reason for _, reason in left_alone)
    nbytes: defaultdict[str, int] = defaultdict(int)
    for size, reason in left_alone:
        nbytes[reason] += size
    return tuple(OutsideStorage(reason, count[reason], nbytes[reason]) for reason in sorted(count))


@dataclass(frozen=True, slots=True)
class LinkReport:
    """The copies of a step over one link: the plan's forecast, and what the last measured step did.

    Busy times are those with at least one copy under way. The measured fields are null until a step that follows the
    plan is measured.
    """

    name: str
    forecast_bytes: int
    forecast_busy_s: float
    measured_bytes: int | None = None
    measured_busy_s: float | None = None

    def __post_init__(self) -> None:
        check_reals(self, "forecast_bytes forecast_busy_s measured_bytes measured_busy_s")


@dataclass(frozen=True, slots=True)
class PlanReport:
    """The plan of the step that was planned last, and the number of plans (one for each shape of step).

    ``step_s`` is the step without stalls and copies: that of the recorded step, or the typical one of several that
    followed a plan. ``predicted_s`` is the planner's forecast under its budget. ``lower_bound_s`` is a time that no
    plan can beat, by the planner's own model. It is null where a step that followed a plan was faster: the model does
    not hold. ``plan_s`` is the measured time of planning. ``taken_up_after`` steps had ended when steps began to follow
    the plan. ``links`` are those with copies, forecast or measured.
    ``measured_s`` is the time of the step that was measured for them, null where none was.
    """

    planner: str
    status: str
    budget_bytes: int
    step_s: float
    predicted_s: float
    lower_bound_s: float | None
    plan_s: float
    plans: int
    taken_up_after: int = 0
    links: tuple[LinkReport, ...] = ()
    measured_s: float | None = None

    def __post_init__(self) -> None:
        check_reals(self, "budget_bytes step_s predicted_s lower_bound_s plan_s plans taken_up_after measured_s")

    def missed_by(self, typical_s: float) -> float | None:
        """Return how many times as long as forecast a typical step takes, if that is 1.5 or more, or half or less."""
        times = typical_s / self.predicted_s if self.predicted_s > 0 else 1.0
        return times if times >= _FAR_ABOVE or times <= _FAR_BELOW else None


@dataclass(frozen=True, slots=True)
class TierReport:
    """The bytes that a run wrote to a slower tier and read from it. ``capacity_bytes`` is null for the spill file."""

    name: str
    capacity_bytes: int | None
    written_bytes: int
    read_bytes: int

    def __post_init__(self) -> None:
        check_reals(self, "capacity_bytes written_bytes read_bytes")


@dataclass(frozen=True, slots=True)
class Moment:
    """A run that goes on, or was killed: what happened when its report was written, at ``at_s`` (seconds since 1970).

    ``process_began`` is when its process began, in the kernel's ticks: a later one may have the same ``pid``.
    ``what`` is bounded ("process", "tensors", a device) and holds ``held_bytes``; ``budget_bytes`` 0 means no
    bound yet. ``running_s`` is the age of the open step. ``doing`` is what is done besides training, or "".
    ``total_steps`` is null where the script has not told. ``in_memory`` is what live storages have in memory, or
    on the device.
    """

    pid: int
    process_began: int
    command: str
    at_s: float
    what: str
    held_bytes: int
    budget_bytes: int
    running_s: float
    doing: str
    total_steps: int | None = None
    in_memory: Traffic | None = None

    def __post_init__(self) -> None:
        check_reals(self, "pid process_began at_s held_bytes budget_bytes running_s total_steps")


@dataclass(frozen=True, slots=True, repr=False)
class RunReport:
    """A whole run.

    ``fast_bytes`` bounds the process. It is the size that was asked for, or the machine's own limit where that is
    lower. Where no size was named, it is the highest that was taken. It is null for a budget in percent, which bounds
    the arena alone, and for a size that never came into force. The process may peak 2 % above it before
    ``budget_violated`` says so. ``process_peak_bytes`` is VmHWM since the budget took effect,
    as the governor saw it every few milliseconds where VmHWM had been higher before a percentage took effect.
    ``process_peak_before_bytes`` is VmHWM until then.
    ``unbounded_peak_bytes`` is a step's peak of live bytes in managed storages, in memory or not.
    ``arena_peak_bytes`` and ``arena_mean_bytes`` (over time) count the arena's pages since the budget took effect,
    including those that freed storages left behind. ``resident_peak_bytes`` and ``resident_mean_bytes`` are the part
    under live storages, null for a device. ``trouble`` is the first thing that went wrong, in words. ``plan`` is null
    where nothing was planned.

    A very long run keeps its first and its last ``steps``, and counts the ``left_out_steps`` between them.
    ``written_bytes`` is what the run wrote to slower tiers, in steps and between them. ``updates`` says what became of
    each optimizer where another order of updates was asked for. ``tiers`` are the slower ones, fastest first, where
    there are others than the spill file. ``device`` is the accelerator whose memory was bounded, null where it was the
    process's; then what is said of the arena is that device's. ``trained_parameters`` counts the numbers that
    optimizers updated in the last step. ``moment`` is null once the run has ended.

    ``bounded_as_asked`` is false in two cases: a budget was asked for and not in force at the end; or no step was seen,
    and a process that the script started peaked above it. ``planned_as_asked`` is false where no step followed a named
    plan to its end, or where a trace, plan or timeline was not saved as asked. ``trouble`` says why.
    """

    format: str
    version: int
    policy: str
    fast_bytes: int | None
    arena_budget_bytes: int | None
    process_peak_bytes: int
    unbounded_peak_bytes: int
    arena_peak_bytes: int
    arena_mean_bytes: int
    budget_violated: bool
    trouble: str
    adopted_bytes: int
    outside_bytes: int
    outside: tuple[OutsideStorage, ...]
    plan: PlanReport | None
    steps: tuple[StepReport, ...]
    left_out_steps: int = 0
    bounded_as_asked: bool = True
    planned_as_asked: bool = True
    resident_peak_bytes: int | None = None
    resident_mean_bytes: int | None = None
    written_bytes: int = 0
    updates: tuple[str, ...] = ()
    tiers: tuple[TierReport, ...] = ()
    device: str | None = None
    trained_parameters: int = 0
    moment: Moment | None = None
    process_peak_before_bytes: int = 0

    def __post_init__(self) -> None:
        if (self.format, self.version) != (FORMAT, VERSION):
            raise ValueError(f"this is {self.format!r} version {self.version}; read is {FORMAT!r} version {VERSION}")
        check_reals(self, "fast_bytes arena_budget_bytes process_peak_bytes process_peak_before_bytes")
        check_reals(self, "unbounded_peak_bytes arena_peak_bytes arena_mean_bytes resident_peak_bytes")
        check_reals(self, "resident_mean_bytes adopted_bytes outside_bytes written_bytes left_out_steps")
        check_reals(self, "trained_parameters")
        if self.outside_bytes != sum(entry.nbytes for entry in self.outside):
            raise ValueError("outside_bytes is not the sum over outside")

    def step_count(self) -> int:
        return len(self.steps) + self.left_out_steps

    def __repr__(self) -> str:
        """Show the run in short: its JSON has all."""
        peak = f"process peak {format_bytes(self.process_peak_bytes)}"
        return f"<RunReport: {self.step_count()} steps, policy {self.policy}, {peak}>"

    def _repr_html_(self) -> str:
        """Show one line in a notebook's cell, and every figure once it is opened."""
        steps = f"{self.step_count()} steps, policy {escape(self.policy)}"
        head = f"Ebbtide's report: {steps}; <code>session.summary()</code> tells it in words"
        return f"<details><summary>{head}</summary><pre>{escape(self.to_json())}</pre></details>"

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str) -> "RunReport":
        """Make texts printable. Raise ReportError for anything but a report of this version."""
        try:
            with refusing_damage("not JSON"):
                value = _printable(json.loads(text))
            if isinstance(value, dict) and (value.get("format"), value.get("version")) != (FORMAT, VERSION):
                raise ReportError(
                    f"not a report that this Ebbtide reads: it wants format {FORMAT!r} version {VERSION} and found "
                    f"format {value.get('format')!r} version {value.get('version')!r}"
                )
            return read_record(RunReport, value, "report")
        except FileFormatError as error:
            raise ReportError(str(error)) from error

    def write(self, path: Path) -> None:
        """Write the file whole or not at all."""
        write_whole(path, self.to_json().encode())


def _printable(value: object) -> object:
    if isinstance(value, str):
        return printable(value, besides="\n")
    if isinstance(value, list):
        return [_printable(each) for each in value]
    return {key: _printable(each) for key, each in value.items()} if isinstance(value, dict) else value
