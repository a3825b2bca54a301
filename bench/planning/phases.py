"""Where the CPU seconds of one ``ebbtide plan`` go: its parts, in the order in which the command does them.

    python -m bench.planning.phases STEP.trace [--machine NAME|FILE] [--fast 25%]

In this process, which has loaded nothing of Ebbtide's before.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", type=Path)
    parser.add_argument("--machine", type=Path)
    parser.add_argument("--fast", default="25%")
    asked = parser.parse_args()
    spent = {"Python's start": process_time()}

    def note(what: str) -> None:
        spent[what] = process_time() - sum(spent.values())

    from ebbtide.commands.inputs import read_inputs
    from ebbtide.ir.check import require_valid
    from ebbtide.ir.files import save
    from ebbtide.pipeline.reading import step_on  # noqa: F401 (loaded here, as the others are)
    from ebbtide.planners.base import page_size_of
    from ebbtide.planners.ebbtide import ebbtide

    note("loading Ebbtide and NumPy")
    trace, machine, budget_bytes = read_inputs(asked.step, asked.machine, (), asked.fast)
    note("reading the trace")
    made = ebbtide(trace, machine, budget_bytes)
    note("planning")
    require_valid(made, trace, machine.with_budget(budget_bytes), page_size_of(machine))
    note("checking the plan")
    with TemporaryDirectory() as folder:
        save(made, Path(folder) / "made.plan")
    note("writing")
    for what, cpu_s in spent.items():
        print(f"{cpu_s:6.3f} s  {what}")
    print(f"{sum(spent.values()):6.3f} s  in all: {len(trace.ticks)} operations, {len(trace.storages)} storages")


if __name__ == "__main__":
    main()
