"""What a session on the tests' device did. Who reads it in another process loads no device for that."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a session did. ``peak_bytes`` are the allocator's, of the bounded steps."""

    differences: tuple[str, ...]
    compared: int
    out_bytes: Mapping[str, int]
    back_bytes: Mapping[str, int]
    made_anew_bytes: tuple[int, ...]  # by bounded step
    modes: tuple[str, ...]
    forecasts: tuple[tuple[int, int | None], ...]
    budget_bytes: int
    largest_operator_bytes: int
    peak_bytes: int
    managed_peak_bytes: int
    unbounded_peak_bytes: int
    trouble: str
    file_bytes: tuple[int, int]  # written there, and read
