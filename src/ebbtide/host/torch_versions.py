"""The versions of torch that Ebbtide is for. setup.py runs this file, too, so it imports nothing.

``make versions`` builds against each and runs a quick suite; ``bench/results`` has what it found. Older ones are
refused, newer ones are built for with a warning. A native module works with the one minor version it was built for.
"""

TRIED = ("2.11", "2.12", "2.13", "2.14", "2.15")
DEVELOPED_WITH = "2.13"


def minor_of(version: str) -> str:
    """2.13 of 2.13.0+cpu."""
    return ".".join(version.split(".")[:2])


def is_older(minor: str) -> bool:
    """Than any that Ebbtide is for. What is no version is not."""
    return _numbers(minor) < _numbers(TRIED[0])


def is_newer(minor: str) -> bool:
    """Than any that Ebbtide was tried with."""
    return _numbers(minor) > _numbers(TRIED[-1])


def not_tried(version: str) -> str:
    """What is to be said of a newer one."""
    return f"not tried with torch {version}; tried: {TRIED[0]} to {TRIED[-1]}"


def _numbers(minor: str) -> list[int]:
    return [int(part) for part in minor.split(".") if part.isdigit()]
