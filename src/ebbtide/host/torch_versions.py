"""The versions of torch that Ebbtide supports. setup.py runs this file, too, so it imports nothing.

``make versions`` builds against each and runs a quick suite; ``bench/results`` has what it found. Older versions are
refused. For newer ones, a build warns. A native module works only with the minor version of torch that it was built
for.
"""

TRIED = ("2.11", "2.12", "2.13", "2.14", "2.15")
DEVELOPED_WITH = "2.13"


def minor_of(version: str) -> str:
    """Return ``2.13`` for ``2.13.0+cpu``."""
    return ".".join(version.split(".")[:2])


def is_older(minor: str) -> bool:
    """Say whether torch is older than any supported version. Text that is no version counts as older."""
    return _numbers(minor) < _numbers(TRIED[0])


def is_newer(minor: str) -> bool:
    """Say whether torch is newer than any version that Ebbtide was tried with."""
    return _numbers(minor) > _numbers(TRIED[-1])


def not_tried(version: str) -> str:
    """Return the warning for a newer version."""
    return f"not tried with torch {version}; tried: {TRIED[0]} to {TRIED[-1]}"


def _numbers(minor: str) -> list[int]:
    return [int(part) for part in minor.split(".") if part.isdigit()]
