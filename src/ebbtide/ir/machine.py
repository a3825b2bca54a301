"""Machine: the memories of a computer and the paths between them, as planners and the simulator see them.

``probe`` writes measured machines; people write assumed ones from data sheets. The file is TOML: ``docs/format.md``. A
GB is 10**9 bytes here, as in prices and data sheets. Each field says what it means to leave it out. Prices, energies
and endurance are None where unknown, and results that depend on them are then not given.

Left out: bandwidth by block size and by number of threads (the figures are those of the runtime's own copies), and
NUMA distances of threads.

[Note: in place]
An operation uses each operand where its fastest valid replica lies. It takes its ``time_ns`` when all operands lie on
the first tier. Each byte that it reads on another tier adds the difference of two times: 1/bytes_per_s of that tier,
less 1/bytes_per_s of the first. ``write_bytes_per_s`` does the same for bytes that it writes. The operation also spends
time on other things than its operands' bytes. A share ``overlap`` of that time hides the addition: 0 adds all of it,
and 1 is the roofline max(compute, sum of bytes / rate of their tier). ``in_place_ns`` is the formula.
"""

import json
import re
import tomllib
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, overload

from ebbtide.errors import FileFormatError, SettingError
from ebbtide.ir.base import Floats, Ints, Origin, check_range
from ebbtide.ir.records import check_reals, read_record, refusing_damage

FORMAT = "ebbtide-machine"
VERSION = 1

_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_DTYPE = re.compile(r'"dtype":"(\w+)"')


def check_name(name: str) -> None:
    """Raise ValueError for a name of a tier or a group that would need quoting anywhere."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r:.80} is not a name: up to 64 of letters, digits and _ . + -")


class InPlace(StrEnum):
    """The use that operations may make of a tier's bytes in place. Only a tier of NOTHING is not addressable."""

    NOTHING = "nothing"
    READS = "reads"
    ALL = "all"

    @property
    def reads(self) -> bool:
        return self is not InPlace.NOTHING

    @property
    def writes(self) -> bool:
        return self is InPlace.ALL


@dataclass(frozen=True, slots=True)
class Tier:
    """A memory, or a place behind it. ``capacity_bytes`` None is unlimited.

    ``bytes_per_s`` is the rate at which operations read in place, None if unknown. ``write_bytes_per_s`` is the same
    for writing; None means as for reading. ``usd_per_gb`` is the price, and ``static_mw_per_gb`` the power at rest.
    ``read_pj_per_bit`` and ``write_pj_per_bit`` are what an access or a copy costs on top. ``endurance_bytes`` can be
    written to the whole tier before it wears out, None without end. ``page_bytes`` is the unit of space; None means the
    pages of the runtime's arena, which have two sizes. On a tier that ``packs``, a storage takes its
    ``Storage.packed_bytes``, and one that does not shrink may not lie there.
    """

    name: str
    in_place: InPlace
    capacity_bytes: int | None = None
    bytes_per_s: int | None = None
    write_bytes_per_s: int | None = None
    usd_per_gb: float | None = None
    static_mw_per_gb: float | None = None
    read_pj_per_bit: float | None = None
    write_pj_per_bit: float | None = None
    endurance_bytes: int | None = None
    page_bytes: int | None = None
    packs: bool = False

    def __post_init__(self) -> None:
        check_name(self.name)
        check_range(self, "capacity_bytes")
        check_range(self, "bytes_per_s write_bytes_per_s endurance_bytes page_bytes", low=1)
        check_reals(self, "usd_per_gb static_mw_per_gb read_pj_per_bit write_pj_per_bit")
        if self.packs and self.in_place is not InPlace.NOTHING:
            raise ValueError(f"{self.name} packs what lies there, so operations cannot use it in place")

    def ns_per_byte(self, writes: bool) -> float:
        """Return the time of an operation in place; 0 where the tier's speed is not known."""
        rate = self.write_bytes_per_s if writes and self.write_bytes_per_s is not None else self.bytes_per_s
        return 0.0 if rate is None else 1e9 / rate


@dataclass(frozen=True, slots=True)
class Link:
    """A directed path: a copy of n bytes alone on it takes ``latency_ns + n / bytes_per_s``.

    ``shares`` names a group. Its total bounds this link and the group's other members while they are busy at once.
    ``slows_compute`` is how much longer an operation takes while the link is busy: 0.06 is 6 %. ``beside_bytes_per_s``
    is the rate while an operation runs, None where it is the same. ``pj_per_bit`` is the path's own energy, beside that
    of reading one tier and writing the other.
    """

    source: str
    target: str
    bytes_per_s: int
    latency_ns: int = 0
    shares: str | None = None
    slows_compute: float = 0.0
    pj_per_bit: float = 0.0
    beside_bytes_per_s: int | None = None

    def __post_init__(self) -> None:
        check_range(self, "bytes_per_s beside_bytes_per_s", low=1)
        check_range(self, "latency_ns")
        check_reals(self, "slows_compute pj_per_bit")
        if self.source == self.target:
            raise ValueError(f"a link from {self.source} to itself")

    @property
    def name(self) -> str:
        """Its lane in a timeline."""
        return f"{self.source}->{self.target}"

    @property
    def most_bytes_per_s(self) -> int:
        """The higher of its two rates."""
        return max(self.bytes_per_s, self.beside_bytes_per_s or 0)

    @overload
    def copy_ns(self, nbytes: float, beside: bool = False) -> float: ...

    @overload
    def copy_ns(self, nbytes: Ints, beside: bool = False) -> Floats: ...

    def copy_ns(self, nbytes: Any, beside: bool = False) -> Any:
        """Return the time of a copy that is alone on the link, or of several such. ``beside``: an operation runs."""
        rate = self.beside_bytes_per_s if beside and self.beside_bytes_per_s is not None else self.bytes_per_s
        return self.latency_ns + nbytes * (1e9 / rate)


class Sharing(StrEnum):
    """FAIR: links slow down in proportion. IN_ORDER: the machine's earlier links take all they can; the rest wait."""

    FAIR = "fair"
    IN_ORDER = "in_order"


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """A port, bus or disk that several links share: together they move at most ``bytes_per_s``."""

    name: str
    bytes_per_s: int
    sharing: Sharing = Sharing.FAIR

    def __post_init__(self) -> None:
        check_name(self.name)
        check_range(self, "bytes_per_s", low=1)


class ComputeRule(StrEnum):
    """The source of operations' times: the TRACE; a ROOFLINE over FLOPs and bytes; a SYSTOLIC array's cycles."""

    TRACE = "trace"
    ROOFLINE = "roofline"
    SYSTOLIC = "systolic"


@dataclass(frozen=True, slots=True)
class Compute:
    """The part that carries operations out. ``simulator.recost`` applies the rule. ``overlap``: see [Note: in place].

    ROOFLINE needs ``flops_per_s`` and the first tier's ``bytes_per_s``. Types half as wide may have rates of their own,
    and each operation takes ``operator_ns`` besides. SYSTOLIC needs that ``bytes_per_s`` and three
    others: the side of the ``array`` (its square is the multiply-adds of a cycle), ``clock_hz``, and ``buffer_bytes``.
    From that buffer, columns stream past a stationary tile. Elements have ``element_bytes``. ``busy_w`` and ``idle_w``
    are the power while it works and while it waits.
    """

    rule: ComputeRule = ComputeRule.TRACE
    flops_per_s: int | None = None
    bfloat16_flops_per_s: int | None = None
    float16_flops_per_s: int | None = None
    operator_ns: int = 0
    overlap: float = 0.0
    array: int | None = None
    clock_hz: int | None = None
    buffer_bytes: int | None = None
    element_bytes: int = 2
    busy_w: float = 0.0
    idle_w: float = 0.0

    def __post_init__(self) -> None:
        check_range(self, "flops_per_s bfloat16_flops_per_s float16_flops_per_s", low=1)
        check_range(self, "array clock_hz buffer_bytes element_bytes", low=1)
        check_range(self, "operator_ns")
        check_reals(self, "busy_w idle_w overlap")
        if self.overlap > 1:
            raise ValueError(f"overlap must be at most 1, not {self.overlap}")
        needed = {
            ComputeRule.TRACE: (),
            ComputeRule.ROOFLINE: ("flops_per_s",),
            ComputeRule.SYSTOLIC: ("array", "clock_hz", "buffer_bytes"),
        }[self.rule]
        if lacking := [name for name in needed if getattr(self, name) is None]:
            raise ValueError(f"the rule {self.rule} needs {', '.join(lacking)}")

    def rate_of(self, arguments: str) -> int | None:
        """Return the FLOPs a second of an operation, by the type of its first tensor; None where no rate is known.

        ``arguments`` are those of a tick.
        """
        found = _DTYPE.search(arguments)
        own = {"bfloat16": self.bfloat16_flops_per_s, "float16": self.float16_flops_per_s}
        return own.get(found[1] if found else "") or self.flops_per_s


@dataclass(frozen=True, slots=True)
class Cost:
    """A machine's cost beside its tiers. ``rest_usd`` is for all other parts (None unknown), written off over
    ``years``. Electricity costs ``usd_per_kwh``."""

    rest_usd: float | None = None
    years: float = 4.0
    usd_per_kwh: float = 0.1

    def __post_init__(self) -> None:
        check_reals(self, "rest_usd years usd_per_kwh")
        if self.years == 0:
            raise ValueError("years must be above 0")


@dataclass(frozen=True, slots=True)
class Machine:
    """``tiers``, fastest first: a budget bounds ``tiers[0]``. At most one link for each ordered pair of them.

    ``chunk_bytes`` is the space that a copy takes and gives up at a time; None: all of it, before and after. In an
    ``exclusive`` machine contents lie on one tier only, so every eviction writes (unified memory of GPUs,
    ``move_pages`` of Linux). Otherwise a clean replica may stay behind.
    """

    name: str
    origin: Origin
    tiers: tuple[Tier, ...]
    links: tuple[Link, ...] = ()
    groups: tuple[LinkGroup, ...] = ()
    chunk_bytes: int | None = None
    exclusive: bool = False
    compute: Compute = Compute()
    cost: Cost = Cost()

    def __post_init__(self) -> None:
        check_range(self, "chunk_bytes", low=1)
        if not self.name.isprintable():
            raise ValueError("the machine's name must be printable")
        if not self.tiers or not self.tiers[0].in_place.writes:
            raise ValueError("the first tier must be one in which operations may read and write")
        if self.tiers[-1].packs:
            raise ValueError(
                f"{self.tiers[-1].name} packs what lies there, so one for what does not shrink must follow"
            )
        tiers, groups = [tier.name for tier in self.tiers], [group.name for group in self.groups]
        for what, names in (("tier", tiers), ("group", groups), ("link", [link.name for link in self.links])):
            if len(set(names)) != len(names):
                raise ValueError(f"two of a {what} with one name")
        for link in self.links:
            if unknown := {link.source, link.target} - set(tiers):
                raise ValueError(f"link {link.name} names a tier that is not there: {', '.join(sorted(unknown))}")
            if link.shares is not None and link.shares not in groups:
                raise ValueError(f"link {link.name} shares {link.shares}, which is not a group")
        for tier in self.tiers[1:]:
            if tier.in_place.reads and tier.bytes_per_s is None:
                raise ValueError(f"operations may use {tier.name} in place, so it needs bytes_per_s")
        if self.compute.rule is not ComputeRule.TRACE and self.tiers[0].bytes_per_s is None:
            raise ValueError(f"the rule {self.compute.rule} needs bytes_per_s of {self.tiers[0].name}")

    @property
    def packing(self) -> frozenset[str]:
        """The tiers that pack."""
        return frozenset(tier.name for tier in self.tiers if tier.packs)

    def tier(self, name: str) -> Tier:
        """Raise KeyError for an unknown name."""
        return {tier.name: tier for tier in self.tiers}[name]

    def rank(self, name: str) -> int:
        """Return a tier's number; 0 is the fastest."""
        return self.tiers.index(self.tier(name))

    def link(self, source: str, target: str) -> Link | None:
        return next((link for link in self.links if (link.source, link.target) == (source, target)), None)

    def ways(self, slow: str) -> tuple[Link, Link]:
        """Return the links from a slow tier to the fastest and back, both of which MUST be there."""
        inward, outward = self.link(slow, self.tiers[0].name), self.link(self.tiers[0].name, slow)
        assert inward is not None
        assert outward is not None
        return inward, outward

    def with_budget(self, budget_bytes: int) -> "Machine":
        """Return the same machine with at most ``budget_bytes`` of its fastest tier."""
        return self.with_fast(self.within(budget_bytes))

    def within(self, budget_bytes: int) -> int:
        """Return how much of the fastest tier a budget allows: no more than there is."""
        capacity = self.tiers[0].capacity_bytes
        return budget_bytes if capacity is None else min(budget_bytes, capacity)

    def with_fast(self, capacity_bytes: int | None) -> "Machine":
        """Return the same machine with so many bytes of its fastest tier; None: as many as it takes."""
        return replace(self, tiers=(replace(self.tiers[0], capacity_bytes=capacity_bytes), *self.tiers[1:]))

    def require_rates(self) -> None:
        """Raise SettingError unless the machine says how fast it computes."""
        if self.compute.flops_per_s is None or self.tiers[0].bytes_per_s is None:
            raise SettingError(
                f"the machine {self.name!r} does not say how fast it computes: flops_per_s of [compute] and "
                "bytes_per_s of its first tier are needed (`ebbtide probe` measures both)"
            )

    def roofline_ns(self, flops: int, nbytes: int, arguments: str = "") -> int:
        """Return an operation's time by the rule ROOFLINE, whether it is the machine's or not (Williams et al., CACM
        2009). Callers MUST have called ``require_rates``. Left out: caches, and how much less kernels reach."""
        rate, bytes_per_s = self.compute.rate_of(arguments), self.tiers[0].bytes_per_s
        assert rate is not None
        assert bytes_per_s is not None
        return self.compute.operator_ns + max(flops * 10**9 // rate, nbytes * 10**9 // bytes_per_s)

    def in_place_ns(self, tier: str, read_bytes: int, written_bytes: int) -> float:
        """Return the extra time of using these bytes on ``tier`` and not on the first, if nothing hides it:
        [Note: in place]."""
        there, fast = self.tier(tier), self.tiers[0]
        reading = read_bytes * (there.ns_per_byte(False) - fast.ns_per_byte(False))
        return max(reading + written_bytes * (there.ns_per_byte(True) - fast.ns_per_byte(True)), 0.0)

    def tick_ns(self, time_ns: float, read_bytes: int, written_bytes: int, extra_ns: float) -> float:
        """Return an operation's time. ``time_ns`` is its time with all operands on the first tier. ``extra_ns`` is for
        those elsewhere (the sum of ``in_place_ns``), less what ``overlap`` hides."""
        fast = self.tiers[0]
        moving = read_bytes * fast.ns_per_byte(False) + written_bytes * fast.ns_per_byte(True)
        return time_ns + max(extra_ns - self.compute.overlap * max(time_ns - moving, 0.0), 0.0)

    def to_toml(self) -> str:
        """Write the machine as TOML. Fields that are None are left out, and so are [compute] and [cost] by default."""
        top = _toml_pairs(asdict(self), "name", "origin", "chunk_bytes", "exclusive")
        lines = [f'format = "{FORMAT}"', f"version = {VERSION}", *top]
        for table, single, default in (("compute", self.compute, Compute()), ("cost", self.cost, Cost())):
            if single != default:
                lines += ["", f"[{table}]", *_toml_pairs(asdict(single))]
        for header, records in (("tiers", self.tiers), ("links", self.links), ("groups", self.groups)):
            for record in records:
                lines += ["", f"[[{header}]]", *_toml_pairs(asdict(record))]
        return "\n".join(lines) + "\n"

    @staticmethod
    def from_toml(text: str) -> "Machine":
        """Raise FileFormatError for anything but a machine of this version."""
        with refusing_damage("not TOML"):
            value = tomllib.loads(text)
        found = (value.pop("format", None), value.pop("version", None))
        if found != (FORMAT, VERSION) or type(found[1]) is not int:
            raise FileFormatError(f"not a machine that this Ebbtide reads: format {FORMAT!r} version {VERSION}")
        with refusing_damage("not a machine that this Ebbtide reads"):  # TOML's whole numbers have no bound
            return read_record(Machine, value, "machine")


def _toml_pairs(values: dict[str, Any], *names: str) -> list[str]:
    """Write fields as TOML, which has no null: None is left out. JSON writes a printable string as TOML does."""
    return [
        f"{name} = {json.dumps(values[name], ensure_ascii=False)}"
        for name in names or values
        if values[name] is not None
    ]
