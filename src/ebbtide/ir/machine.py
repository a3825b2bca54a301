"""Machine: the memories of a computer and the paths between them, as planners and the simulator see them.

Who writes it: ``probe`` (measured), people and data sheets (assumed). Its file is TOML: ``docs/format.md``.
Left out: bandwidth by block size and by number of threads (the figures are those of the runtime's own copies), and
NUMA distances of threads.
"""

import json
import math
import re
import tomllib
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from ebbtide.errors import FileFormatError
from ebbtide.ir.base import Origin, check_range
from ebbtide.ir.records import read_record

FORMAT = "ebbtide-machine"
VERSION = 1

_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,64}")


def check_name(name: str) -> None:
    """Tiers and groups have names that need no quoting anywhere."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r:.80} is not a name: up to 64 of letters, digits and _ . + -")


class InPlace(StrEnum):
    """What an operation may do with a tier's bytes where they lie. Only a tier of NOTHING is not addressable."""

    NOTHING = "nothing"
    READS = "reads"
    ALL = "all"

    @property
    def reads(self) -> bool:
        return self is not InPlace.NOTHING

    @property
    def writes(self) -> bool:
        return self is InPlace.ALL


class Movement(StrEnum):
    """How contents get from one tier to another.

    COPY: a storage's bytes are copied and then given up where they were, so a clean replica may stay behind and make
    the next eviction free (Ebbtide's arena). MIGRATE: page by page, each with its room, and never in two places, so
    leaving always writes (unified memory of GPUs, ``move_pages`` of Linux).
    """

    COPY = "copy"
    MIGRATE = "migrate"


@dataclass(frozen=True, slots=True)
class Tier:
    """A memory. ``capacity_bytes`` None is unlimited; ``bytes_per_s`` is what operations reach in place, None unknown.

    ``bytes_per_s_spread`` is how far single measurements lay from it. ``page_bytes`` is what room is counted in; None
    for the pages of the runtime's arena, which come in two sizes.
    """

    name: str
    in_place: InPlace
    capacity_bytes: int | None = None
    bytes_per_s: int | None = None
    bytes_per_s_spread: int = 0
    page_bytes: int | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        check_range(self, "capacity_bytes bytes_per_s_spread")
        check_range(self, "bytes_per_s page_bytes", low=1)


@dataclass(frozen=True, slots=True)
class Link:
    """A directed path: a copy of n bytes alone on it takes ``latency_ns + n / bytes_per_s``.

    ``shares`` names the group whose total bounds this link and its other members while they are busy at once.
    ``slows_compute`` is by how much an operation takes longer while the link is busy: 0.06 is 6 %.
    """

    source: str
    target: str
    bytes_per_s: int
    latency_ns: int = 0
    shares: str | None = None
    slows_compute: float = 0.0
    bytes_per_s_spread: int = 0
    latency_ns_spread: int = 0

    def __post_init__(self) -> None:
        check_range(self, "bytes_per_s", low=1)
        check_range(self, "latency_ns bytes_per_s_spread latency_ns_spread")
        if not (math.isfinite(self.slows_compute) and self.slows_compute >= 0):
            raise ValueError(f"slows_compute must be a finite number of at least 0, not {self.slows_compute}")
        if self.source == self.target:
            raise ValueError(f"a link from {self.source} to itself")

    @property
    def name(self) -> str:
        """Its lane in a timeline."""
        return f"{self.source}->{self.target}"


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """What several links share: together they move at most ``bytes_per_s``.

    ``first`` names the link that takes what it can, so that the others have the rest; None for each in proportion.
    """

    name: str
    bytes_per_s: int
    bytes_per_s_spread: int = 0
    first: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        check_range(self, "bytes_per_s", low=1)
        check_range(self, "bytes_per_s_spread")


@dataclass(frozen=True, slots=True)
class Machine:
    """``tiers``, fastest first: a budget bounds ``tiers[0]``. At most one link for each ordered pair of them."""

    name: str
    origin: Origin
    tiers: tuple[Tier, ...]
    links: tuple[Link, ...] = ()
    groups: tuple[LinkGroup, ...] = ()
    movement: Movement = Movement.COPY

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            raise ValueError("the machine's name must be printable")
        if not self.tiers or not self.tiers[0].in_place.writes:
            raise ValueError("the first tier must be one in which operations may read and write")
        tiers, groups = [tier.name for tier in self.tiers], [group.name for group in self.groups]
        for what, names in (("tier", tiers), ("group", groups), ("link", [link.name for link in self.links])):
            if len(set(names)) != len(names):
                raise ValueError(f"two of a {what} with one name")
        for link in self.links:
            if unknown := {link.source, link.target} - set(tiers):
                raise ValueError(f"link {link.name} names a tier that is not there: {', '.join(sorted(unknown))}")
            if link.shares is not None and link.shares not in groups:
                raise ValueError(f"link {link.name} shares {link.shares}, which is not a group")
        for group in self.groups:
            if group.first is not None and group.first not in {link.name for link in self.links}:
                raise ValueError(f"group {group.name} puts {group.first} first, which is not a link")

    def tier(self, name: str) -> Tier:
        """Raises KeyError."""
        return {tier.name: tier for tier in self.tiers}[name]

    def rank(self, name: str) -> int:
        """0 for the fastest tier."""
        return self.tiers.index(self.tier(name))

    def link(self, source: str, target: str) -> Link | None:
        return next((link for link in self.links if (link.source, link.target) == (source, target)), None)

    def with_budget(self, budget_bytes: int) -> "Machine":
        """The same machine, of whose fastest tier only ``budget_bytes`` may be used."""
        capacity = self.tiers[0].capacity_bytes
        bound = budget_bytes if capacity is None else min(budget_bytes, capacity)
        return replace(self, tiers=(replace(self.tiers[0], capacity_bytes=bound), *self.tiers[1:]))

    def to_toml(self) -> str:
        lines = [
            f'format = "{FORMAT}"',
            f"version = {VERSION}",
            *_toml_pairs(asdict(self), "name", "origin", "movement"),
        ]
        for header, records in (("tiers", self.tiers), ("links", self.links), ("groups", self.groups)):
            for record in records:
                lines += ["", f"[[{header}]]", *_toml_pairs(asdict(record))]
        return "\n".join(lines) + "\n"

    @staticmethod
    def from_toml(text: str) -> "Machine":
        """Raises FileFormatError for anything but a machine of this version."""
        try:
            value = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"not TOML: {error}") from error
        found = (value.pop("format", None), value.pop("version", None))
        if found != (FORMAT, VERSION) or type(found[1]) is not int:
            raise FileFormatError(f"not a machine that this Ebbtide reads: format {FORMAT!r} version {VERSION}")
        return read_record(Machine, value, "machine")


def _toml_pairs(values: dict[str, Any], *names: str) -> list[str]:
    """TOML has no null: a field that is None is left out. JSON writes a printable string as TOML does."""
    return [
        f"{name} = {json.dumps(values[name], ensure_ascii=False)}"
        for name in names or values
        if values[name] is not None
    ]
