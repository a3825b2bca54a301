"""Recording, planning and replay on real training: traces hold what happened, and a wrong plan changes no bit."""

import gc
import os
import random
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ebbtide
from ebbtide import _torch
from ebbtide.capture import rates
from ebbtide.ir.files import load
from ebbtide.ir.native import Verb
from ebbtide.ir.occupancy import arena_pages
from ebbtide.ir.plan import Plan
from ebbtide.ir.timeline import SpanKind, Timeline
from ebbtide.ir.trace import Trace
from ebbtide.planning import load_schedule, plan_job, planning
from ebbtide.planning.followed_steps import FollowedSteps
from ebbtide.planning.load_schedule import ScheduleColumns
from ebbtide.planning.plan_job import Answer, Job, carry_out
from ebbtide.planning.policies import planner_named
from ebbtide.session import session as session_module
from ebbtide.settings import Settings
from ebbtide.units import round_up
from tests.helpers import child
from tests.helpers.ask_here import ask_here
from tests.helpers.zoo import adamw_fused, gpt2, labelled, language_loss
from tests.training.same_bits import CASES, Snapshot, Verdict, begin, compare, train, train_plainly, verdict

SMALLEST = {"EBBTIDE_MIN_STORAGE": "4096"}
NET = "tied-weights"
READ, WRITE, BOTH = 1, 2, 3
pytestmark = pytest.mark.in_child(SMALLEST)
FIELDS = ("tick", "verb", "storage", "source", "target", "then", "earliest")
Row = tuple[int, ...]  # of these fields
EVICT, DROP, FETCH = Verb
STEPS = 6


def _distorted(how: str, rows: list[Any], n_ticks: int, n_storages: int) -> list[Row]:
    chance = random.Random(5)
    if how == "shifted":
        return sorted(((tick + n_ticks // 3) % n_ticks, *rest) for tick, *rest in rows)
    if how == "reversed":
        return sorted((n_ticks - 1 - tick, *rest) for tick, *rest in rows)
    if how == "inverted":  # what should leave is fetched, what should come back leaves
        other: dict[int, tuple[int, int, int]] = {EVICT: (FETCH, 1, 0), DROP: (FETCH, 1, 0), FETCH: (DROP, 0, 1)}
        return [(tick, other[verb][0], storage, *other[verb][1:], 0, 0) for tick, verb, storage, *_ in rows]
    some = [(EVICT, 0, 1), (DROP, 0, 1), (DROP, 1, 0), (FETCH, 1, 0)]
    of_each = range(3 * n_storages)
    picked = [(chance.randrange(n_ticks), chance.choice(some), chance.randrange(n_storages)) for _ in of_each]
    follows = ((chance.randrange(2), chance.randrange(n_ticks)) for _ in of_each)
    return sorted(
        (tick, verb, storage, source, target, *then)
        for (tick, (verb, source, target), storage), then in zip(picked, follows, strict=True)
    )


def plan_here(planner: Any) -> None:
    """Sessions of this process plan in it, so that what is replaced here is seen."""
    session_module.asks_child = lambda _policy, _plan: ask_here(lambda job: carry_out(job, planner))


def links_carry(bytes_per_s: int) -> None:
    """Sessions of this process take this for what was measured of each link."""
    real = session_module.machine_for

    def machine_for(settings: Settings, spill: Sequence[Path], say: Any) -> Any:
        machine = real(settings, spill)
        return replace(machine, links=tuple(replace(link, bytes_per_s=bytes_per_s) for link in machine.links))

    session_module.machine_for = machine_for


@pytest.mark.alike
@pytest.mark.parametrize("how", ["shifted", "reversed", "inverted", "random"])
def test_a_wrong_plan_costs_time_and_changes_no_bit(how: str) -> None:
    right = load_schedule.schedule_columns

    def wrong(plan: Plan, trace: Trace, *rest: Any) -> ScheduleColumns:
        columns = right(plan, trace, *rest)
        rows = zip(*(getattr(columns.commands, field).tolist() for field in FIELDS), strict=True)
        distorted = _distorted(how, list(rows), len(trace.ticks), len(trace.storages))
        table = np.array(distorted, dtype=np.int64).reshape(-1, len(FIELDS))
        commands = {field: table[:, at] for at, field in enumerate(FIELDS)}
        return replace(columns, commands=replace(columns.commands, **commands, due=table[:, 0]))

    plan_job.schedule_columns = wrong
    plan_here(planner_named("ebbtide"))
    verdict = compare(NET, "50%", STEPS)
    assert verdict.differences == ()
    assert not verdict.budget_violated
    assert verdict.modes[2:] == ("planned",) * 4
    assert sum(verdict.evicted_bytes.values()) > 0
    assert sum(verdict.fetched_bytes.values()) > 0


def save_plan(name: str, plan_file: str, trace_file: str) -> None:
    with ebbtide.Session(fast="50%", save_plan=plan_file, save_trace=trace_file) as session:
        train(begin(CASES[name]), 3, session)


def compare_under_plan_in(name: str, plan_file: str) -> tuple[Verdict, int]:
    """The case with a plan from a file, and how often a warning said that it was made for another step."""
    case = CASES[name]
    plain = train_plainly(case, STEPS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ebbtide.Session(fast="50%", plan=plan_file) as session:
            ours = begin(case)
            train(ours, STEPS, session)
    said = sum("other storages" in str(warning.message) for warning in caught)
    return verdict(plain, ours, session), said


class Known(nn.Module):
    """Storages of sizes that occur once, used in an order that can be read here."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 128))
        self.register_buffer("one", torch.ones(128))

    def forward(self) -> torch.Tensor:
        filled = torch.empty(80, 128)
        filled.fill_(1)
        part = filled.narrow(0, 0, 64) + self.one  # reads it through a view
        return (self.weight * part).sum()


def test_a_trace_holds_the_accesses_that_the_model_makes() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "step.trace"
        with ebbtide.Session(fast="90%", save_trace=path) as session:
            model = Known()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
            for _ in range(3):
                with session.step():
                    optimizer.zero_grad()
                    model().backward()
                    optimizer.step()
        trace = load(path, Trace)

    def story(storage: int) -> list[tuple[str, int]]:
        rows = trace.accesses.of(storage)
        ticks = trace.accesses.tick[rows] % len(trace.ticks)
        operators = [trace.ticks[tick].operator for tick in ticks]
        return list(zip(operators, trace.accesses.mode[rows].tolist(), strict=True))

    stories = {}
    for number, storage in enumerate(trace.storages):
        name = "filled" if storage.nbytes == 80 * 128 * 4 else str(storage.kind)
        if name in ("filled", "parameter", "gradient", "optimizer_state"):
            assert name not in stories
            assert storage.persistent == (name in ("parameter", "optimizer_state"))
            assert (storage.persistent or storage.death > len(trace.ticks)) == (name != "filled")
            stories[name] = story(number)
    assert stories["filled"] == [("", WRITE), ("aten::fill_", BOTH), ("aten::add", READ)]  # born before any operator
    assert stories["parameter"] == [("aten::mul", READ), ("aten::add_", BOTH)]
    assert stories["gradient"] == [("aten::mul", WRITE), ("aten::add_", READ)]
    # mul_ turns its number into a tensor by two operators of its own, and uses its operand throughout
    scaled = [("aten::mul_", BOTH), ("aten::_to_copy", BOTH), ("aten::copy_", BOTH)]
    assert stories["optimizer_state"] == [*scaled, ("aten::add_", BOTH), ("aten::add_", READ)]


@pytest.mark.alike
@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD", "Adagrad"])
@pytest.mark.parametrize(("scaled", "layers"), [(False, 1), (False, 2), (True, 2)])
def test_fused_optimizers_write_to_gradients_only_to_unscale_them(optimizer: str, scaled: bool, layers: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "step.trace"
        with ebbtide.Session(fast="100%", save_trace=path) as session:  # so that nothing else moves
            model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(layers)))
            optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1, fused=True)
            scaler = torch.amp.GradScaler("cpu", enabled=scaled)
            for _ in range(3):
                with session.step():
                    optimizer.zero_grad()
                    scaler.scale(model(torch.ones(8, 64)).square().mean()).backward()
                    gradients = [layer.weight.grad for layer in model]
                    assert _torch.evict(gradients) > 0
                    scaler.step(optimizer)
                    scaler.update()
                    before = _torch.counters()["written_bytes"]
                    assert _torch.evict(gradients) > 0
                    written = sum(_torch.counters()["written_bytes"]) - sum(before)
        trace = load(path, Trace)
    modes = set[int]()
    for number, storage in enumerate(trace.storages):
        if storage.kind == "gradient":
            rows = trace.accesses.of(number)
            ticks = trace.accesses.tick[rows] % len(trace.ticks)
            modes.update(trace.accesses.mode[rows][[trace.ticks[tick].phase == "optimizer" for tick in ticks]].tolist())
    assert modes == {BOTH if scaled else READ}
    assert (written > 0) == scaled  # as the pages' protection tells


def _fetched(session: ebbtide.Session) -> list[int]:
    """Bytes that each bounded step brought back."""
    return [step.fetched_bytes.total for step in session.report().steps if step.mode != "recorded"]


def test_another_sequence_length_is_noticed_and_planned_when_it_recurs() -> None:
    def run(session: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = gpt2().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        generator = torch.Generator().manual_seed(1)
        losses = []
        for length in [64, 64, 48, 64, 48, 64, 48, 48, 64]:
            tokens = torch.randint(1536, (8, length), generator=generator)
            with session.step() if session is not None else nullcontext():
                optimizer.zero_grad()
                loss = language_loss(model, (tokens,))
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        return losses + [parameter.detach() for parameter in model.parameters()]

    plain = [tensor.numpy().copy() for tensor in run(None)]
    with ebbtide.Session(fast="50%") as session:
        ours = run(session)
    assert all(torch.equal(torch.from_numpy(a), b) for a, b in zip(plain, ours, strict=True))
    assert all(_fetched(session))
    modes = [step.mode for step in session.report().steps]
    assert modes == ["recorded", "recorded", "demand", "planned", "demand", *["planned"] * 4]


def test_evaluation_between_steps_changes_nothing() -> None:
    """A forward pass without gradients."""
    case = CASES["tied-weights"]

    def run(session: Any) -> Any:
        ours = begin(case)
        for _ in range(STEPS):
            train(ours, 1, session)
            with torch.no_grad():
                ours.losses.append(case.loss(ours.model.eval(), case.batch(ours.generator)))
            ours.model.train()
        return ours

    plain = Snapshot.of(run(None))
    with ebbtide.Session(fast="50%") as session:
        ours = run(session)
    assert plain.differences(ours) == ()
    assert all(_fetched(session))
    assert tuple(str(step.mode) for step in session.report().steps)[2:] == ("planned",) * 4


def test_a_state_that_is_loaded_is_planned_like_the_one_before() -> None:
    """It comes into memory that no plan knows."""
    case = CASES["tied-weights"]

    def run(session: Any) -> Any:
        ours = begin(case)
        train(ours, STEPS, session)
        with TemporaryDirectory() as folder:
            torch.save(ours.optimizer.state_dict(), f"{folder}/state")
            ours.optimizer.load_state_dict(torch.load(f"{folder}/state"))
        train(ours, STEPS, session)
        return ours

    plain = Snapshot.of(run(None))
    with ebbtide.Session(fast="50%") as session:
        ours = run(session)
    steps = session.report().steps
    left = [step.evicted_bytes.optimizer_state for step in steps]
    assert plain.differences(ours) == ()
    assert tuple(str(step.mode) for step in steps)[-4:] == ("planned",) * 4
    assert left[5] > 0
    assert min(left[-2:]) > left[5] / 2


def test_a_module_compiled_as_one_graph_can_be_planned() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with ebbtide.Session(fast="80%") as session:
        for length in (8, 8, 16, 8, 16, 16):
            with session.step():
                optimizer.zero_grad()
                compiled(torch.ones(length, 64)).sum().backward()
                optimizer.step()
    modes = tuple(str(step.mode) for step in session.report().steps)
    assert modes[:2] == ("recorded", "recorded")
    assert "planned" in modes


def test_arrays_in_a_function_compiled_as_one_graph_hold_what_was_away() -> None:
    weight = nn.Parameter(torch.randn(512, 512))
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "a method": lambda: torch.from_numpy(weight.detach().numpy() * 3),
        "its class's": lambda: torch.from_numpy(torch.Tensor.numpy(weight.detach()) * 2),
        "a function": lambda: torch.as_tensor(np.asarray(weight.detach()) + 1),
    }
    plain = {name: way() for name, way in ways.items()}
    found = {}
    with ebbtide.Session(fast="80%"):
        for name, way in ways.items():
            _torch.evict([weight])
            assert not _torch.is_resident(weight)
            found[name] = torch.equal(torch.compile(way, fullgraph=True, backend="aot_eager")(), plain[name])
    assert all(found.values()), found


def test_a_planner_that_fails_costs_the_plan_and_not_the_run() -> None:
    """It raises what nobody expects."""

    def planner(_trace: Trace, _machine: Any, _budget_bytes: int) -> Any:
        raise ZeroDivisionError("on purpose")

    plan_here(planner)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = compare("tied-weights", "50%", STEPS)
    assert (found.differences, sum("on purpose" in str(warning.message) for warning in caught)) == ((), 1)
    assert found.modes[2:] == ("demand",) * 4
    assert sum(found.fetched_bytes.values()) > 0


def test_what_a_step_shows_goes_before_a_probe_that_was_far_off() -> None:
    """The machine is not this one."""
    seen: list[tuple[int, ...]] = []
    planner = planner_named("ebbtide")

    def planner_that_tells(trace: Trace, machine: Any, budget_bytes: int) -> Any:
        seen.append(tuple(link.bytes_per_s for link in machine.links))
        return planner(trace, machine, budget_bytes)

    plan_here(planner_that_tells)
    links_carry(1_000_000)
    rates._ENOUGH_NS = 1  # the case is small
    case = CASES["tied-weights"]
    plain = train_plainly(case, STEPS)
    with ebbtide.Session(fast="50%") as session:
        ours = begin(case)
        train(ours, STEPS, session)
    plan = session.report().plan
    found = verdict(plain, ours, session)
    assert found.differences == ()
    assert found.modes[2:] == ("planned",) * 4
    assert sum(found.fetched_bytes.values()) > 0
    first, *later = seen
    assert first == (1_000_000, 1_000_000)
    assert len(later) == 1
    assert max(later[0]) > 10_000_000
    assert (plan.plans if plan is not None else 0) == 1  # of one shape, whatever became of the first


@dataclass(frozen=True, slots=True)
class Bettered:
    """By schedule, in the order in which they were loaded: how much effort it took, and the step's forecast in ns.
    ``moved`` are the fetched bytes of each step, ``said`` what was told of better plans."""

    verdict: Verdict
    efforts: tuple[int, ...]
    forecasts: tuple[int, ...]
    loaded_after: tuple[int, ...]
    moved: tuple[int, ...]
    said: tuple[str, ...]


def a_better_plan_later(steps: int, is_better: bool) -> Bettered:
    """The first plan is one for three quarters of the budget. What is found later is made for all of it, or is the
    first once more. The disk is slow, so that less room costs time, and nothing that steps show is news."""
    efforts: list[int] = []
    forecasts: list[int] = []
    loaded: list[int] = []
    said: list[str] = []

    def work(job: Job) -> Answer:
        def planner(trace: Trace, machine: Any, budget_bytes: int) -> Plan:
            small = job.followed is None or not is_better
            made = planner_named("ebbtide")(trace, machine, budget_bytes * 3 // 4 if small else budget_bytes)
            efforts.append(job.effort)
            forecasts.append(made.predicted_ns)
            return replace(made, budget_bytes=budget_bytes)

        return carry_out(job, planner)

    def load(columns: ScheduleColumns) -> int:
        loaded.append(len(session.report().steps))
        return real_load(columns)

    links_carry(100_000_000)
    session_module.asks_child = lambda _policy, _plan: ask_here(work)
    plan_job._NEWS = 10**9
    FollowedSteps.are_news = lambda *_: False  # type: ignore[method-assign]
    case, real_load = CASES["tied-weights"], _torch.load_schedule
    _torch.load_schedule = load
    plain = train_plainly(case, steps)
    with ebbtide.Session(fast="50%") as session:
        ours = begin(case)
        assert session._engine is not None
        assert session._engine._planning is not None
        session._engine._planning._say = said.append
        train(ours, steps, session)
    moved = tuple(step.fetched_bytes.total for step in session.report().steps)
    found = verdict(plain, ours, session)
    return Bettered(found, tuple(efforts), tuple(forecasts), tuple(loaded), moved, tuple(said))


@pytest.mark.in_child(SMALLEST)
def test_a_timeline_shows_the_moves_and_stalls_that_the_report_counts(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("step.timeline", "step.trace")]
    with ebbtide.Session(fast="50%", save_timeline=str(paths[0]), save_trace=str(paths[1])) as session:
        train(begin(CASES["tied-weights"]), STEPS, session)
    report = session.report()
    timeline, trace = load(paths[0], Timeline), load(paths[1], Trace)
    last = report.steps[-1]
    assert last.mode == "planned"
    assert timeline.policy == "ebbtide"
    moved = timeline.moved_bytes()
    exact = [span.nbytes == trace.storages[span.storage].nbytes for span in timeline.spans if span.nbytes]
    assert len(exact) > 10
    assert all(exact)
    fetched, written = last.fetched_bytes.total, last.written_bytes.total
    assert 0.9 * fetched - 2**20 <= moved["file->dram"] <= fetched  # what the report counts are whole pages
    assert 0.9 * written - 2**20 <= moved["dram->file"] <= 1.1 * written + 2**20  # and cancelled writes are spans
    stalls = (SpanKind.STALL_ROOM, SpanKind.STALL_LATE, SpanKind.STALL_DEMAND)
    assert abs(timeline.time_ns(*stalls) / 1e9 - last.stall_s.total) < 1e-3
    assert max(level.nbytes for level in timeline.levels) <= report.arena_peak_bytes


class Ladder(nn.Module):
    """Parameters and their state take as much as activations, in so few operations that planners are done in seconds.

    ``kept`` is what no operation of a step uses, as the weights of an earlier epoch would be.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.GELU())))
        self.register_buffer("kept", torch.ones(4, 512, 512))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.steps(rows)


LADDER = replace(CASES["weight-averaging"], model=Ladder, batch=labelled((1024, 512), 512), optimizer=adamw_fused)


def compare_under_policy(policy: str, fast: str) -> tuple[Verdict, ebbtide.RunReport, int, list[str]]:
    """The ladder under a policy: the report too, bytes that left the arena in all, and what was warned of."""
    plain = train_plainly(LADDER, STEPS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ebbtide.Session(fast=fast, policy=policy) as session:
            ours = begin(LADDER)
            train(ours, STEPS, session)
    said = [str(warning.message) for warning in caught]
    return verdict(plain, ours, session), session.report(), sum(_torch.counters()["evicted_bytes"]), said


def compare_over_directories(directories: list[str]) -> tuple[Verdict, dict[str, int]]:
    """The case, which spills to several directories: pages of each one's files that hold something."""
    case = CASES["tied-weights"]
    plain = train_plainly(case, STEPS)
    with ebbtide.Session(fast="50%", spill=directories) as session:
        ours = begin(case)
        train(ours, STEPS, session)
        full = {directory: _pages_written(directory) for directory in directories}
    return verdict(plain, ours, session), full


def _pages_written(directory: str) -> int:
    """Pages that are not zeros in this process's unnamed files there."""
    found, zeros = 0, bytes(4096)
    for number in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{number}"
        if os.path.islink(path) and os.readlink(path).startswith(directory + "/"):
            with open(path, "rb") as file:
                found += sum(page != zeros for page in iter(lambda: file.read(4096), b""))
    return found


@pytest.mark.in_child
def test_planners_count_the_pages_that_the_arena_takes() -> None:
    bounds = [2 / 3, 1, 16 / 9, 2, 3, 4, 4.5, 6, 33]  # MiB: where the size of the pages changes, and elsewhere
    sizes = [round(mib * 2**20) + more for mib in bounds for more in (-1, 0, 1)]
    found: list[int] = []
    with ebbtide.Session(fast="50%"):
        for nbytes in sizes:
            before = _torch.counters()["resident_bytes"]
            storage = torch.empty(nbytes, dtype=torch.uint8).zero_()  # what nobody touched may have none
            found.append(_torch.counters()["resident_bytes"] - before)
            del storage
    assert found == [round_up(nbytes, arena_pages(nbytes)) for nbytes in sizes]
    assert [arena_pages(mib << 20) for mib in (1, 2, 3, 4, 5)] == [4096, 2 << 20, 4096, 2 << 20, 2 << 20]


@pytest.mark.in_child(SMALLEST | {"EBBTIDE_PROGRESS": "off"})
def test_the_last_of_many_models_is_planned_as_the_first() -> None:
    """Of two shapes, two plans being all there may be: each model is gone when the next one comes."""
    planning._MOST_PLANS = 2
    widths = (160, 192, 224, 256, 256, 256, 256)

    def models() -> Any:
        for number, width in enumerate(widths):
            torch.manual_seed(number)
            net = nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(width, width), nn.GELU())])
            optimizer = torch.optim.Adam(net.parameters())
            for _ in range(7):
                optimizer.zero_grad()
                net(torch.randn(128, width)).square().mean().backward()
                optimizer.step()
            yield [parameter.detach().numpy().tobytes() for parameter in net.parameters()]
            del net, optimizer
            gc.collect()

    plain = list(models())
    shown = []
    with ebbtide.Session(fast="50%") as session:
        for number, bits in enumerate(models()):
            assert bits == plain[number]
            steps = session.report().steps[-7:]
            shown.append(([step.mode for step in steps], steps[-1].evicted_bytes.total))
        report = session.report().plan
    assert report is not None
    assert report.plans <= 2
    assert all(modes[-1] == "planned" for modes, _ in shown)
    assert all(evicted > 0 for _, evicted in shown)


@pytest.mark.here
def test_a_saved_plan_is_followed_and_one_for_another_model_is_not(tmp_path: Path) -> None:
    plan, trace = tmp_path / "net.plan", tmp_path / "net.trace"
    child.run(save_plan, NET, str(plan), str(trace), env=SMALLEST)
    assert load(plan, Plan).signature == load(trace, Trace).signature()
    own, said = child.run(compare_under_plan_in, NET, str(plan), env=SMALLEST)
    assert (own.differences, said) == ((), 0)
    assert own.modes[2:] == ("planned",) * 4
    assert sum(own.fetched_bytes.values()) > 0
    other, said = child.run(compare_under_plan_in, "dropout", str(plan), env=SMALLEST)
    assert (other.differences, said) == ((), 2)  # when it was refused, and at the end
    assert other.modes[2:] == ("demand",) * 4
    assert sum(other.fetched_bytes.values()) > 0


def test_a_better_plan_is_taken_up_at_a_border_while_steps_follow_the_first() -> None:
    found = a_better_plan_later(9, True)
    assert found.verdict.differences == ()
    assert found.verdict.modes[2:] == ("planned",) * 7
    assert found.efforts == (1, 8)  # once, and no more
    assert found.forecasts[1] < found.forecasts[0]
    first, later = found.loaded_after
    assert first == 2
    assert first < later < 9
    assert all(nbytes > 0 for nbytes in found.moved[first:])
    assert sum(found.moved[later + 1 :]) / len(found.moved[later + 1 :]) < found.moved[first]  # more room, fewer moves
    assert [text for text in found.said if "steps follow a new plan" in text] != []


def test_a_plan_that_is_not_predicted_to_be_faster_changes_nothing() -> None:
    found = a_better_plan_later(8, False)
    assert found.verdict.differences == ()
    assert found.efforts == (1, 8)
    assert len(found.loaded_after) == 1
    assert sum(found.verdict.fetched_bytes.values()) > 0
