"""Every knob and its ``EBBTIDE_...`` variable, in one table.

An empty variable counts as unset. A value that cannot be understood is an error. An unknown variable is one warning,
which names the nearest known one.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import EnumType, StrEnum
from typing import TypedDict, TypeVar, Unpack

from ebbtide.errors import SettingError, did_you_mean
from ebbtide.terminal import warn_user
from ebbtide.units import KIB, MIB, SIZES_ACCEPTED, Budget, format_bytes, option, parse_budget, parse_size

PREFIX = "EBBTIDE_"
_File = str | os.PathLike[str]
PAGE_BYTES = 4 * KIB


class ProgressMode(StrEnum):
    """The ways to show progress. The summary is always shown.

    AUTO is a live line on a terminal and plain lines elsewhere. PLAIN is plain lines, ever more seldom. VERBOSE is a
    plain line for each step, or for the last of the steps in a quarter of a second. OFF is no line.
    """

    AUTO = "auto"
    PLAIN = "plain"
    VERBOSE = "verbose"
    OFF = "off"


class TierKind(StrEnum):
    """A tier between memory and the spill file: compressed memory, or the memory of a NUMA node."""

    COMPRESSED = "compressed"
    NUMA = "numa"


@dataclass(frozen=True, slots=True)
class SlowerTier:
    """A tier that a run has besides memory and the spill file. ``node`` is a NUMA node's number, else -1."""

    kind: TierKind
    capacity_bytes: int
    node: int = -1

    @property
    def name(self) -> str:
        return self.kind if self.node < 0 else f"{self.kind}{self.node}"


_LAST_NODE = 1023
TIERS_ACCEPTED = "compressed:SIZE or numa:NODE:SIZE, or several with ',' between them, the fastest first"


class NoTierError(ValueError):
    """Says what is wrong with the text of a tier, as the end of a sentence."""


def parse_tiers(text: str) -> tuple[SlowerTier, ...]:
    """Parse ``"numa:1:32GiB,compressed:2GiB"``, for one. Raises NoTierError."""
    tiers = tuple(_parse_tier(each.strip()) for each in text.split(","))
    names = [tier.name for tier in tiers]
    if twice := [name for name in names if names.count(name) > 1]:
        raise NoTierError(f"{twice[0]} is given twice, so give it once, with the size of both")
    return tiers


def _parse_tier(text: str) -> SlowerTier:
    shown = f"{text!r:.60}"
    kind, *rest = (part.strip() for part in text.split(":"))
    if kind not in [*TierKind]:
        raise NoTierError(f"there is no kind {kind!r:.20}" if kind else f"{shown} names no kind")
    node = -1
    if kind == TierKind.NUMA:
        number = rest.pop(0) if rest else ""
        if not (number.isascii() and number.isdecimal() and len(number) < 10 and int(number) <= _LAST_NODE):
            raise NoTierError(f"{shown} has no number of a node, from 0 to {_LAST_NODE}")
        node = int(number)
    if len(rest) != 1 or not rest[0]:
        raise NoTierError(f"{shown} has {'two sizes' if len(rest) > 1 else 'no size'}")
    try:
        size = parse_size(rest[0])
    except ValueError:
        what = "a share, not a size" if rest[0].endswith("%") else "not a size"
        raise NoTierError(f"{rest[0]!r:.20} is {what}") from None
    if size < PAGE_BYTES:
        least = f"{format_bytes(PAGE_BYTES)} is the least"
        why = "a bare number means bytes" if rest[0].isdecimal() and size else least
        raise NoTierError(f"a tier of {format_bytes(size)} holds nothing ({why})")
    return SlowerTier(TierKind(kind), size, node)


@dataclass(frozen=True, slots=True)
class Remake:
    """Whether plans have contents made anew. ``checks``: their bytes are compared with what they were. None of the
    operators in ``without`` runs again for that. Those in ``added`` are the user's own, and may."""

    on: bool = True
    checks: bool = False
    without: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = (*(f"-{name}" for name in self.without), *(f"+{name}" for name in self.added))
        return ",".join(["check" if self.checks else str(int(self.on)), *names])

    @staticmethod
    def parse(text: str) -> "Remake":
        """Parse ``"check,-aten::silu,+mine::rotate"``, for one. Raises ValueError."""
        first, *rest = (part.strip() for part in text.split(","))
        named = [first, *rest] if first.startswith(("-", "+")) else rest
        if not all(_NAMED.fullmatch(name) for name in named):
            raise ValueError(text)
        without, added = (tuple(name[1:] for name in named if name[0] == sign) for sign in "-+")
        checks = first.lower() == "check"
        return Remake(checks or first in named or _switch(first), checks, without, added)


_NAMED = re.compile(r"[-+]\w+::\w+(\.\w+)?")


class UpdateOrder(StrEnum):
    """The time of an update: in ``optimizer.step()``, in the backward pass, or before the parameter's next use. AUTO is
    the first or the last, whichever is faster.
    """

    AS_WRITTEN = "as-written"
    IN_BACKWARD = "in-backward"
    DEFERRED = "deferred"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Settings:
    """The knobs of a session. An argument of ``Session`` or of the command overrides the variable."""

    disable: bool = False  # turns Ebbtide off
    fast: Budget | None = None  # the budget
    fast_node: int | None = None  # the budget of all ranks on this node together
    spill: tuple[str, ...] = ()  # directories for evicted contents, in stripes
    tiers: tuple[SlowerTier, ...] = ()  # tiers between memory and the spill file
    device: str | None = None  # the accelerator whose memory is bounded, in place of the process's
    host_bytes: int | None = None  # with a device: the most host memory to pin; default: half of the free
    report: str | None = None  # the report's file
    policy: str = "ebbtide"  # the planner or policy that decides which storages move when
    plan: str | None = None  # a saved plan, in place of a planner
    machine: str | None = None  # a machine, in place of a probe
    optimizer: UpdateOrder = UpdateOrder.AS_WRITTEN  # when each parameter is updated
    save_trace: str | None = None  # the file for the recorded step
    save_plan: str | None = None  # the file for its plan
    save_timeline: str | None = None  # the file for the timeline of a planned step
    wait_for_plan: bool = False  # training waits while a plan is made
    lines: bool = False  # a saved step says which line made each storage
    min_storage_bytes: int = 64 * KIB  # the smallest storage that is managed
    piece_bytes: int = 16 * MIB  # storages of twice this size move in pieces of at least this size
    io_threads: int = 2  # native threads for each slower tier
    watchdog_s: float = 30.0  # after a longer wait for room, the run goes over budget, with a warning
    chaos_rate: float = 0.0  # for tests: probability of a random move at each operator and allocation
    chaos_seed: int = 0  # for tests: the seed of these moves
    checksum: bool | str = False  # bytes read back are compared with those written; with `pages`, clean storages too
    remake: Remake = Remake()  # make contents anew; `check` compares bytes; `-NAME` excludes, `+NAME` adds an operator
    arena_bytes: int | None = None  # the arena's budget itself, for tests and experiments
    progress: ProgressMode = ProgressMode.AUTO  # a live line, plain lines, a line for each step, or none

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> "Settings":
        """Read the variables. Raises SettingError for a value that cannot be understood."""
        values: dict[str, object] = {}
        for variable in sorted(name for name in environment if name.startswith(PREFIX)):
            if variable not in KNOBS:
                _warn_unknown(variable)
            elif environment[variable].strip():
                knob = KNOBS[variable]
                values[knob.field] = knob.read(variable, environment[variable].strip())
        if "fast" in values and "fast_node" in values:
            raise SettingError(f"EBBTIDE_FAST and EBBTIDE_FAST_NODE are both set: {_ONE_OF_THEM}")
        return Settings(**values)  # type: ignore[arg-type]

    def but(self, fast: str | int | Budget | None = None, **named: Unpack["Named"]) -> "Settings":
        """Return these settings with the named ones replaced; None replaces nothing. Raises SettingError, as for a
        variable."""
        knobs = {knob.field: knob for knob in KNOBS.values()}
        known = Named.__annotations__
        if unknown := [name for name in named if name not in known]:
            raise SettingError(f"there is no setting {unknown[0]!r:.80}; there are fast, {', '.join(known)}")
        values = {name: _taken(name, value, knobs[name]) for name, value in named.items() if value is not None}
        if fast is not None and "fast_node" in values:
            raise SettingError(f"{option('fast')} and {option('fast-node')} are both given: {_ONE_OF_THEM}")
        if fast is not None:
            values["fast_node"] = None
        try:
            budget = self.fast if fast is None else parse_budget(fast)
        except ValueError as error:
            raise SettingError(str(error)) from error
        if values.get("fast_node") is not None:
            budget = None
        return replace(self, fast=budget, **values)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Knob:
    """A row of the table: the field it sets, the function that reads its text, and the accepted values in words."""

    field: str
    parse: Callable[[str], object]
    accepts: str

    def read(self, variable: str, text: str) -> object:
        try:
            return self.parse(text)
        except SettingError:
            raise
        except ValueError as error:
            known = [*map(str, self.parse)] if isinstance(self.parse, EnumType) else list[str]()
            why = f": {error}" if isinstance(error, NoTierError) else did_you_mean(text, known)
            raise SettingError(f"{variable}={text!r} is not understood{why}; accepted: {self.accepts}") from error


class Named(TypedDict, total=False):
    """The names that ``Session`` takes besides ``fast``: fields of ``Settings``, with sizes also as text."""

    disable: bool | None
    fast_node: str | int | None
    spill: _File | Sequence[_File] | None
    tiers: str | None
    device: str | None
    host_bytes: str | int | None
    report: _File | None
    policy: str | None
    plan: _File | None
    machine: _File | None
    optimizer: str | None
    save_trace: _File | None
    save_plan: _File | None
    save_timeline: _File | None
    wait_for_plan: bool | None
    lines: bool | None
    min_storage_bytes: str | int | None
    piece_bytes: str | int | None
    io_threads: int | None
    watchdog_s: float | None
    chaos_rate: float | None
    chaos_seed: int | None
    checksum: bool | str | None
    remake: bool | str | None
    arena_bytes: str | int | None
    progress: str | None


def _taken(name: str, value: object, knob: Knob) -> object:
    if name == "spill":
        names = (value,) if not isinstance(value, Sequence) or isinstance(value, str | bytes) else tuple(value)
        if not names or not all(map(_is_text, names)):
            raise SettingError(f"spill={value!r:.80} is not understood; accepted: a directory, or several")
        return tuple(os.fspath(each) for each in names)
    if name == "device":
        value = str(value)  # a torch.device
    if knob.parse is str and not _is_text(value):
        raise SettingError(f"{name}={value!r:.80} is not understood; accepted: {knob.accepts}")
    return knob.read(name, os.fspath(value) if isinstance(value, os.PathLike) else str(value))


def _is_text(value: object) -> bool:
    """Tell whether it can be a name or a file."""
    return isinstance(value, str | os.PathLike) and "\0" not in (text := str(value)) and text != ""


_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_Number = TypeVar("_Number", int, float)


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCHES:
        raise ValueError(text)
    return _SWITCHES[text.lower()]


PAGES = "pages"
"""The value of ``checksum`` by which clean storages in memory are compared, too."""


def _switch_or_pages(text: str) -> bool | str:
    return PAGES if text.lower() == PAGES else _switch(text)


_ONE_OF_THEM = "name one of them, the budget of each rank or that of all ranks on this node"


def _node_size(text: str) -> int:
    if "%" in text:
        raise SettingError(
            f"{text} of all ranks on this node is not understood, since each rank has a step of its own: give each "
            f"its percentage ({option('fast', text)}), or the node a size ({option('fast-node', '64GiB')})"
        )
    try:
        return parse_budget(text).nbytes or 0
    except ValueError as error:
        raise SettingError(str(error)) from error


def _directories(text: str) -> tuple[str, ...]:
    names = tuple(text.split(os.pathsep))
    if not all(names):
        raise ValueError(text)
    return names


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        return _within(int(text), low, high)

    return parse


def _real(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        return _within(float(text), low, high)

    return parse


def _size(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        return _within(parse_size(text), low, 2**62)

    return parse


def _pieces(text: str) -> int:
    size = _size(2 * MIB)(text)
    if size % (2 * MIB):
        raise ValueError(text)
    return size


def _within(value: _Number, low: _Number, high: _Number) -> _Number:
    if not low <= value <= high:
        raise ValueError(value)
    return value


KNOBS: dict[str, Knob] = {
    "EBBTIDE_DISABLE": Knob("disable", _switch, "1 or 0"),
    "EBBTIDE_FAST": Knob("fast", parse_budget, f"{SIZES_ACCEPTED}, or a percentage such as 25%"),
    "EBBTIDE_FAST_NODE": Knob("fast_node", _node_size, SIZES_ACCEPTED),
    "EBBTIDE_SPILL": Knob("spill", _directories, f"a directory, or several with {os.pathsep!r} between them"),
    "EBBTIDE_TIERS": Knob("tiers", parse_tiers, TIERS_ACCEPTED),
    "EBBTIDE_DEVICE": Knob("device", str, "a device of PyTorch's, such as cuda or cuda:1, or auto"),
    "EBBTIDE_HOST": Knob("host_bytes", _size(PAGE_BYTES), f"{SIZES_ACCEPTED}, one page or more"),
    "EBBTIDE_REPORT": Knob("report", str, "a file"),
    "EBBTIDE_POLICY": Knob("policy", str, "the name of an online policy (demand, lru, ...) or of a planner"),
    "EBBTIDE_PLAN": Knob("plan", str, "a file"),
    "EBBTIDE_MACHINE": Knob("machine", str, "a name or a file"),
    "EBBTIDE_OPTIMIZER": Knob("optimizer", UpdateOrder, "as-written, in-backward, deferred or auto"),
    "EBBTIDE_SAVE_TRACE": Knob("save_trace", str, "a file"),
    "EBBTIDE_SAVE_PLAN": Knob("save_plan", str, "a file"),
    "EBBTIDE_SAVE_TIMELINE": Knob("save_timeline", str, "a file"),
    "EBBTIDE_WAIT_FOR_PLAN": Knob("wait_for_plan", _switch, "1 or 0"),
    "EBBTIDE_LINES": Knob("lines", _switch, "1 or 0"),
    "EBBTIDE_MIN_STORAGE": Knob(
        "min_storage_bytes", _size(PAGE_BYTES), f"a size from {format_bytes(PAGE_BYTES)} up, such as 64KiB"
    ),
    "EBBTIDE_PIECE": Knob("piece_bytes", _pieces, "a multiple of 2MiB, such as 16MiB"),
    "EBBTIDE_IO_THREADS": Knob("io_threads", _whole(1, 64), "a whole number from 1 to 64"),
    "EBBTIDE_WATCHDOG": Knob("watchdog_s", _real(0.001, 86_400), "seconds, from 0.001 to 86400"),
    "EBBTIDE_CHAOS_RATE": Knob("chaos_rate", _real(0, 1), "a probability from 0 to 1"),
    "EBBTIDE_CHAOS_SEED": Knob("chaos_seed", _whole(0, 2**63 - 1), "a whole number from 0 up"),
    "EBBTIDE_CHECKSUM": Knob("checksum", _switch_or_pages, "1, 0 or pages"),
    "EBBTIDE_REMAKE": Knob("remake", Remake.parse, "1, 0 or check, -aten::silu, +mine::rotate, with ',' between"),
    "EBBTIDE_ARENA": Knob("arena_bytes", _size(PAGE_BYTES), f"{SIZES_ACCEPTED}, one page or more"),
    "EBBTIDE_PROGRESS": Knob("progress", ProgressMode, "auto, plain, verbose or off"),
}


def _warn_unknown(variable: str) -> None:
    from difflib import get_close_matches

    nearest = get_close_matches(variable, KNOBS, n=1, cutoff=0.0)[0]
    warn_user(f"{variable} is unknown and ignored; the nearest known is {nearest}")
