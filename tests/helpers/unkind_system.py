"""Compiles ``unkind_system.cpp``, and names what a process's environment must hold for its system calls to be slow."""

from pathlib import Path

from tests.helpers.faulty_disk import compiled

SOURCE = Path(__file__).with_suffix(".cpp")


def build(folder: Path) -> Path:
    """The library, compiled into ``folder`` unless it is there."""
    return compiled(SOURCE, folder)


def environment(library: Path, seed: int, chance: int = 20, most_us: int = 400) -> dict[str, str]:
    """So many of 1,000 calls wait up to so many microseconds; transfers are short, or interrupted."""
    return {"LD_PRELOAD": str(library), "UNKIND_SYSTEM": f"{seed}:{chance}:{most_us}"}
