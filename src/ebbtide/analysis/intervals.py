"""Access-time intervals (ATIs): the times that storages wait between two uses, by ``ir.trace.idle_intervals``.

Pinpointing (ISPASS'21) found that most ATIs lie near 0. A few outliers, which are long and belong to large blocks, hold
what is worth moving. The product of ATI and size, in byte-seconds, tells them apart.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebbtide.analysis.columns import modules_of
from ebbtide.ir.base import Floats, Ints
from ebbtide.ir.trace import IdleIntervals, Trace, idle_intervals

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)

_BINS_PER_DECADE = 4


def module_patterns(modules: Iterable[str]) -> dict[str, str]:
    """Replace the numbers of like layers in each name: ``h.3.mlp.c_fc`` becomes ``h.*.mlp.c_fc``.

    A number stays where nothing lies within: the layers of one ``Sequential`` are not alike.
    """
    names = set(modules)
    parents = {".".join(parts[:end]) for parts in map(_parts, names) for end in range(1, len(parts))}

    def pattern(name: str) -> str:
        parts = _parts(name)
        return ".".join(
            "*" if part.isdigit() and ".".join(parts[: end + 1]) in parents else part for end, part in enumerate(parts)
        )

    return {name: pattern(name) for name in names}


def _parts(name: str) -> list[str]:
    return name.split(".")


@dataclass(frozen=True, slots=True)
class Distribution:
    """ATIs under one label. ``quantiles_ns`` are those of QUANTILES. ``byte_seconds`` sums bytes x ATI.

    ``top_share`` is the share of ``byte_seconds`` in the hundredth of the intervals that have the most (at least one).
    """

    label: str
    count: int
    quantiles_ns: tuple[int, ...]
    longest_ns: int
    byte_seconds: float
    top_share: float


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """``count[i]`` ATIs with ``nbytes[i]`` bytes in all lie in [edges_ns[i], edges_ns[i + 1]). The first edge is 0."""

    edges_ns: Ints
    count: Ints
    nbytes: Ints


@dataclass(frozen=True, slots=True)
class Distributions:
    """Distributions of all intervals, by kind, and by module pattern. The latter two have the most byte-seconds
    first."""

    overall: Distribution
    by_kind: tuple[Distribution, ...]
    by_module: tuple[Distribution, ...]


def distributions_of(trace: Trace) -> Distributions:
    rows, found = trace.storages, idle_intervals(trace)
    nbytes = rows.nbytes[found.storage]
    names = modules_of(trace)
    patterns = module_patterns(names)
    modules = np.array([patterns[module] for module in names], dtype=object)
    kinds = np.array([str(kind) for kind in rows.kind.tolist()], dtype=object)
    return Distributions(
        _distribution("all", found.idle_ns, nbytes),
        _ranked(_grouped(kinds[found.storage], found.idle_ns, nbytes)),
        _ranked(_grouped(modules[found.storage], found.idle_ns, nbytes)),
    )


def _ranked(found: Iterator[Distribution]) -> tuple[Distribution, ...]:
    return tuple(sorted(found, key=lambda row: (-row.byte_seconds, row.label)))


def _grouped(labels: npt.NDArray[np.object_], idle_ns: Ints, nbytes: Ints) -> Iterator[Distribution]:
    names, group = np.unique(labels.astype(str), return_inverse=True)
    order = np.argsort(group, kind="stable")
    cuts = np.searchsorted(group[order], np.arange(len(names) + 1))
    for place, name in enumerate(names.tolist()):
        chosen = order[cuts[place] : cuts[place + 1]]
        yield _distribution(name, idle_ns[chosen], nbytes[chosen])


def _distribution(label: str, idle_ns: Ints, nbytes: Ints) -> Distribution:
    if not len(idle_ns):
        return Distribution(label, 0, (0,) * len(QUANTILES), 0, 0.0, 0.0)
    # A quantile is one of the intervals: the smallest that at least this share of them does not exceed.
    quantiles = np.quantile(idle_ns, QUANTILES, method="inverted_cdf")
    weight = byte_seconds(idle_ns, nbytes)
    n_top = -(-len(weight) // 100)
    total = float(weight.sum())
    top = float(np.partition(weight, len(weight) - n_top)[len(weight) - n_top :].sum())
    return Distribution(
        label,
        len(idle_ns),
        tuple(int(value) for value in quantiles),
        int(idle_ns.max()),
        total,
        top / total if total else 0.0,
    )


def byte_seconds(idle_ns: Ints, nbytes: Ints) -> Floats:
    """Return bytes x ATI of each interval, as floats, since the products exceed 64 bits."""
    product: Floats = nbytes.astype(np.float64) * (idle_ns.astype(np.float64) / 1e9)
    return product


def histogram_of(trace: Trace) -> Histogram:
    """Count ATIs in four bins to a decade from 1 us on, and in one bin for all shorter ones."""
    found: IdleIntervals = idle_intervals(trace)
    nbytes = trace.storages.nbytes[found.storage]
    longest = max(int(found.idle_ns.max(initial=0)), 1000)
    n_bins = int(np.ceil((np.log10(longest) - 3) * _BINS_PER_DECADE)) + 1
    edges = np.rint(10 ** (3 + np.arange(n_bins + 1) / _BINS_PER_DECADE)).astype(np.int64)
    edges = np.concatenate(([0], edges))
    place = np.searchsorted(edges, found.idle_ns, side="right") - 1
    count = np.bincount(place, minlength=len(edges) - 1)
    total = np.bincount(place, nbytes, minlength=len(edges) - 1)
    return Histogram(edges, count.astype(np.int64), np.minimum(total, 2.0**62).astype(np.int64))
