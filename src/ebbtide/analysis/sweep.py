"""Compares the machines of a grid, from less and slower memory to more and faster: which one to buy?

It shows the frontier, the cheapest machine within a time, and the time that one more GB or GB/s saves. These savings
are finite differences to the next machine of the grid, so they are shadow prices only as fine as the grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_GB = 10**9

MEMORY, OWNERSHIP = "memory_usd", "step_usd"
"""The prices of a point: that of the tiers, and the total cost of ownership of one step."""


@dataclass(frozen=True, slots=True)
class Point:
    """A machine of the grid, and its cost when each slower tier is as large as the step needs.

    ``bandwidth`` is the factor for all links. The time is None where the budget cannot be kept. A price is None where
    the machine does not give it.
    """

    fast_bytes: int
    bandwidth: float
    step_ns: int | None
    memory_usd: float | None
    step_usd: float | None


def priced(points: Sequence[Point], price: str) -> list[tuple[int, float, Point]]:
    """Return time, price (MEMORY or OWNERSHIP) and point for each point that has both."""
    found = [(point.step_ns, getattr(point, price), point) for point in points]
    return [(step_ns, usd, point) for step_ns, usd, point in found if step_ns is not None and usd is not None]


def frontier(points: Sequence[Point], price: str) -> list[Point]:
    """Return the points that no other beats in time or price without losing in the other. Their order stays."""
    known = priced(points, price)
    rows = {(step_ns, usd) for step_ns, usd, _ in known}

    def is_beaten(row: tuple[int, float]) -> bool:
        return any(other != row and other[0] <= row[0] and other[1] <= row[1] for other in rows)

    return [point for step_ns, usd, point in known if not is_beaten((step_ns, usd))]


def cheapest(points: Sequence[Point], price: str, most_ns: float) -> Point | None:
    """Return the cheapest point within a time; of several, the fastest."""
    within = [(usd, step_ns, point) for step_ns, usd, point in priced(points, price) if step_ns <= most_ns]
    return min(within, key=lambda row: row[:2])[2] if within else None


def ns_per_gb(point: Point, points: Sequence[Point]) -> float | None:
    """Return the ns that one more GB of fast memory saves, up to the next larger one with the same links."""
    larger = [row for row in points if row.bandwidth == point.bandwidth and row.fast_bytes > point.fast_bytes]
    following = min(larger, key=lambda row: row.fast_bytes, default=None)
    if following is None or point.step_ns is None or following.step_ns is None:
        return None
    return (point.step_ns - following.step_ns) / (following.fast_bytes - point.fast_bytes) * _GB


def ns_per_rate(point: Point, points: Sequence[Point], links_bytes_per_s: int) -> float | None:
    """Return the ns that one more GB/s on all links saves, up to the next faster links.

    ``links_bytes_per_s`` is the rate of all links at factor 1.
    """
    faster = [row for row in points if row.fast_bytes == point.fast_bytes and row.bandwidth > point.bandwidth]
    following = min(faster, key=lambda row: row.bandwidth, default=None)
    if following is None or point.step_ns is None or following.step_ns is None or not links_bytes_per_s:
        return None
    more = (following.bandwidth - point.bandwidth) * links_bytes_per_s / _GB
    return (point.step_ns - following.step_ns) / more
