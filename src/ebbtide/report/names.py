"""Sorts names by the numbers in them, so that ``h.2`` comes before ``h.10``."""

import re

_NUMBER = re.compile(r"([0-9]+)")


def by_number(name: str) -> list[tuple[int, str]]:
    """Return the key that sorts a name: its parts, with numbers by their value."""
    parts = _NUMBER.split(name)
    return [(int(part), part) if place % 2 else (0, part) for place, part in enumerate(parts)]
