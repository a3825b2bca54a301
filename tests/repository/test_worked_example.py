"""The design's page follows one storage: its commands run as written, and its numbers are the ones that they give.

The machine of the example is made up and its operations' times are modelled, so the plan does not depend on where the
test runs. A failure names the sentence that the page should have. Left out: the numbers that only a debugger sees.
"""

import re
import sys
from pathlib import Path

import pytest

from ebbtide.commands.inputs import read_inputs
from ebbtide.ir.files import load
from ebbtide.ir.native import Verb
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.plan import Plan
from ebbtide.ir.timeline import Timeline
from ebbtide.planners.rivals import rival_plans
from ebbtide.planners.search.bound import lower_bound_ns
from ebbtide.planners.search.idle_table import idle_table
from ebbtide.simulator import simulate
from ebbtide.simulator.lowering import lower
from tests.helpers.command import EBBTIDE, run
from tests.helpers.paths import ROOT
from tests.helpers.schedules import rows_of

pytestmark = pytest.mark.starts
DOCS = ROOT / "docs"
EXAMPLE = DOCS / "example"
OURS = 5  # the storage that the page follows

RECORDED = """
import sys, runpy
import torch
import ebbtide._torch as native
from ebbtide import Session
from ebbtide.settings import Settings

take, load = native.take_recording, native.load_schedule
followed = []

def noted_take():
    recording = take()
    if recording.n_ticks and followed:
        row = next(r for r in range(recording.n_storages) if recording.birth[r] == 1)
        print("BORN", row, recording.serial[row])
    return recording

def noted_load(columns):
    followed.append(load(columns))
    return followed[-1]

native.take_recording, native.load_schedule = noted_take, noted_load
settings = Settings(plan="step.plan", machine=sys.argv[2], save_timeline="again.timeline")
with Session(fast="50%", settings=settings, progress="off") as session:
    runpy.run_path(sys.argv[1])
assert sum(step.mode == "planned" for step in session.report().steps) > 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's first console block ran, as written."""
    path = tmp_path_factory.mktemp("example")
    (path / "docs").symlink_to(DOCS)
    block = re.search(r"```console\n(.*?)```", (DOCS / "design.md").read_text(), re.DOTALL)
    assert block is not None
    for line in block[1].splitlines():
        words = line.removeprefix("$ ").split()
        assert words[0] == "ebbtide", line
        run(EBBTIDE, *words[1:], cwd=path, status=0)
    return path


def words(path: Path) -> str:
    return " ".join(path.read_text().replace("**", "").replace("\\*", "").split())


def test_the_life_of_one_storage(folder: Path) -> None:
    inputs = read_inputs(folder / "step.trace", EXAMPLE / "machine.toml", (), "50%")
    trace, plan = inputs.trace, load(folder / "step.plan", Plan)
    storage, fast = trace.storages[OURS], inputs.machine.tiers[0].name
    rows = trace.accesses.of(OURS)
    idle = idle_table(trace)
    first, second = (at for at in range(len(idle)) if idle.storage[at] == OURS)
    stays = [stay for stay in plan.stays if stay.storage == OURS]
    before, after = sorted((stay for stay in stays if stay.tier == fast), key=lambda stay: stay.start)
    (away,) = (stay for stay in stays if stay.tier != fast)
    commands, _ = rows_of(lower(plan, trace, inputs.machine), inputs.machine)
    mine = [at for at, command in enumerate(commands) if command.storage == OURS]
    timeline = load(folder / "simulated.timeline", Timeline)
    out, back = (span for span in timeline.spans if span.storage == OURS)
    ours = [span for span in load(folder / "run.timeline", Timeline).spans if span.storage == OURS and span.nbytes]
    assert {span.nbytes for span in ours} == {storage.nbytes}  # it moved in the run, too, however late

    assert trace.accesses.tick[rows].tolist() == [storage.birth, 2, 9]
    assert [commands[at].verb for at in mine] == [Verb.EVICT, Verb.DROP, Verb.FETCH, Verb.DROP]
    assert not commands[mine[0]].leaves
    assert plan.budget_bytes == inputs.budget_bytes
    listed = ", ".join(map(str, mine))
    expected = [
        f"{storage.nbytes:,} bytes",
        f"The step has {len(trace.ticks)} ticks and {len(trace.storages)} storages",
        f"ours is storage {OURS}, an activation of `{storage.module}`. It is born at tick {storage.birth} ",
        f"it is dead from tick {storage.death} on",
        f"peak at {peak(live_bytes(trace)):,} bytes, so 50 % is a budget of {plan.budget_bytes:,}",
        f"Between ticks {idle.after[first]} and {idle.until[first]} nobody uses it: row {first} of the planner's table",
        f"From tick {idle.after[second]} until its death it lies idle again (row {second})",
        f"in memory in ticks [{before.start}, {before.stop}); in the file in [{away.start}, {away.stop}), "
        f"valid from {away.valid_from}; in memory in [{after.start}, {after.stop}), valid from {after.valid_from}",
        "its own: {} (evict at tick {}, due at {}), {} (drop from memory at {}), {} (fetch at {}, due at {}) and "
        "{} (drop from the file at {})".format(
            *(mine[0], commands[mine[0]].at, commands[mine[0]].due, mine[1], commands[mine[1]].at),
            *(mine[2], commands[mine[2]].at, commands[mine[2]].due, mine[3], commands[mine[3]].at),
        ),
        f"at 4 GB/s: {out.stop_ns - out.start_ns:,} ns, from {out.start_ns:,} to {out.stop_ns:,} ns. "
        f"The fetch runs from {back.start_ns:,} to {back.stop_ns:,} ns",
        f"*evict* at tick {commands[mine[0]].at} writes",
        f"*drop* at {commands[mine[1]].at} finds",
        f"*fetch* at {commands[mine[2]].at} may move forward to tick {commands[mine[2]].earliest} in a late step",
        f"| {first} |",
        f"| {listed} |",
    ]
    page = words(DOCS / "design.md")
    assert "\n".join(text for text in expected if text not in page) == ""


def test_the_numbers_that_the_arena_gives_it(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "recorded.py"
    script.write_text(RECORDED)
    finished = run(sys.executable, str(script), str(EXAMPLE / "train.py"), str(EXAMPLE / "machine.toml"), cwd=folder)
    assert finished.returncode == 0, finished.stderr
    row, serial = next(line.split()[1:] for line in finished.stdout.splitlines() if line.startswith("BORN"))
    page = words(DOCS / "design.md")
    assert f"serial {serial} is born" in page
    assert f"| the process | {serial} |" in page
    assert f"| the step | {row} |" in page


def test_the_search_on_the_example(folder: Path) -> None:
    inputs = read_inputs(folder / "step.trace", EXAMPLE / "machine.toml", (), "50%")
    plan, idle = load(folder / "step.plan", Plan), idle_table(inputs.trace)
    expected = [
        f"take {inputs.trace.step_ns:,} ns with everything in memory",
        f"There are {len(idle)} idle intervals",
        f"The bound is {lower_bound_ns(inputs.trace, inputs.machine, inputs.budget_bytes):,} ns",
        f"{plan.predicted_ns:,} ns",
        f"a gap of {plan.gap * 100:.2f} % and the status `{plan.status}`",
    ]
    page = words(DOCS / "planners.md")
    assert "\n".join(text for text in expected if text not in page) == ""


def test_no_rival_is_faster_on_the_example(folder: Path) -> None:
    inputs = read_inputs(folder / "step.trace", EXAMPLE / "machine.toml", (), "50%")
    machine, found = inputs.machine.with_budget(inputs.budget_bytes), load(folder / "step.plan", Plan)
    rivals = list(rival_plans(inputs.trace, machine, inputs.budget_bytes, 2**62))
    assert len(rivals) == 7
    times = [simulate(lower(rival, inputs.trace, machine), inputs.trace, machine).step_ns for rival in rivals]
    assert min(times) >= found.predicted_ns  # solvers that run out of time answer this or that, once as fast as ours
