"""The sources' findings, and what came of each here: one page, with one table for each source.

    make sources    # or: python -m bench.papers.findings [tiertrain ... g10] --out PAGE

*Simulated* figures come from machines whose figures are assumed or from data sheets (``ebbtide/machines``), with steps
made from the networks' shapes (``steps.py``). They are the same wherever this runs, but for solvers that stop at a time
limit. The authors measured theirs on other hardware (TM-Training's: simulated), so only the shape is compared. *Real*
figures were measured with Ebbtide's runtime, and say when and where.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from time import perf_counter

from bench.papers import autotm, g10, pinpointing, ten_cache, tiertrain, tm_training
from bench.papers.common import Row
from bench.step.measure import machine

SOURCES: dict[str, tuple[str, Callable[[], Sequence[Row]]]] = {
    "tiertrain": ("TierTrain (ISMM 2025)", tiertrain.rows),
    "tm-training": ("TM-Training (TOS 2025)", tm_training.rows),
    "autotm": ("AutoTM (ASPLOS 2020)", autotm.rows),
    "10cache": ("10Cache (SoCC 2025)", ten_cache.rows),
    "pinpointing": ("Pinpointing (ISPASS 2021)", pinpointing.rows),
    "g10": ("G10 (MICRO 2023)", g10.rows),
}
HEADER = ["claim", "source", "simulated", "real", "held?"]


def table(rows: Sequence[Row]) -> str:
    lines = [[row.claim, row.source, row.simulated, row.real, row.held] for row in rows]
    texts = ["| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in [HEADER, *lines]]
    return "\n".join([texts[0], "|---" * len(HEADER) + "|", *texts[1:]])


def page(names: Sequence[str]) -> str:
    on = machine()
    parts = [
        f"# The sources' findings, {date.today()}, build {on['commit']}",
        f"Printed by `make sources` on {on['cores']} CPUs ({on['cpu']}), Python {on['python']}, torch {on['torch']}. "
        "Simulated figures do not depend on that, but for searches that stop at a time limit: AutoTM's and "
        "TM-Training's programs, and `ebbtide`'s plans. The simulated machines are those of `ebbtide machines`, or "
        "made in `bench/papers`; their figures are assumed or from data sheets. Real figures name their build and "
        "their machine, or a test of this build.",
        "*held?* says *yes* if all our figures lie in the source's range, or in the range that the row counts as yes. "
        "It says *part* if some do, or if ours point the source's way and their size is another. Else it says *no*. "
        "The authors measured on other hardware.",
    ]
    for name in names:
        title, rows = SOURCES[name]
        print(f"{name} ...", file=sys.stderr, flush=True)
        began = perf_counter()
        parts += [f"## {title}", table(rows())]
        print(f"{name}: {perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help=f"of {', '.join(SOURCES)}; default: all")
    parser.add_argument("--out", type=Path, help="the page; default: standard output")
    asked = parser.parse_args()
    if unknown := set(asked.sources) - SOURCES.keys():
        parser.error(f"there is no source {', '.join(sorted(unknown))}; there are {', '.join(SOURCES)}")
    made = page(asked.sources or list(SOURCES))
    if asked.out is None:
        print(made)
    else:
        asked.out.write_text(made)


if __name__ == "__main__":
    main()
