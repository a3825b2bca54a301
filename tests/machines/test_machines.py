"""The documented machines say where each figure is from; hostile files are refused; the commands on simulations."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.errors import FileFormatError, PlanError, SettingError
from ebbtide.ir.files import load, save
from ebbtide.ir.machine import InPlace, Machine
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.ir.timeline import Timeline
from ebbtide.ir.trace import Ticks, Trace
from ebbtide.machines import find_machine, names, text_of
from ebbtide.pipeline.trials import try_policy
from ebbtide.planners.base import page_size_of
from tests.helpers.cli import call as run
from tests.helpers.make_steps import disk, network

FIGURE = re.compile(r"^(\w+) = ([\d._]+|true|false)(.*)$")
NO_SOURCE = {"version", "array", "page_bytes"}


def test_the_machines_are_these() -> None:
    assert names() == ["dram-cxl", "dram-optane", "g10", "h100", "h200", "npu-flash", "rtx4090"]


@pytest.mark.parametrize("name", names())
def test_a_documented_machine_reads_back_and_prices_everything(name: str) -> None:
    machine = find_machine(name)
    assert Machine.from_toml(machine.to_toml()) == machine
    assert machine.cost.rest_usd is not None
    for tier in machine.tiers:
        assert None not in (tier.usd_per_gb, tier.static_mw_per_gb, tier.read_pj_per_bit, tier.write_pj_per_bit)
        assert tier.capacity_bytes is not None
    fast = machine.tiers[0].name
    assert all(machine.link(fast, tier.name) and machine.link(tier.name, fast) for tier in machine.tiers[1:])
    assert any(tier.in_place is InPlace.ALL for tier in machine.tiers[1:]) == name.startswith("dram")


@pytest.mark.parametrize("name", names())
def test_each_figure_has_its_source_or_is_assumed_with_a_range(name: str) -> None:
    for line in text_of(name).splitlines():
        figure = FIGURE.match(line)
        if figure is None or figure[1] in NO_SOURCE:
            continue
        comment = figure[3].partition("#")[2].strip()
        assert comment, line
        if "assumed" in comment:
            assert re.search(r"\d.* to .*\d", comment), line


def test_a_machine_is_found_by_name_or_by_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text_of("g10").replace("128 GiB", "still 128"))
    assert find_machine(file) == find_machine("g10")
    for unknown in ("g11", tmp_path / "nowhere.toml"):
        with pytest.raises(SettingError, match="there are dram-cxl"):
            find_machine(unknown)
    file.write_text(f'format = "ebbtide-machine"\nversion = 1\nname = 0x{"f" * 6000}\norigin = "assumed"\ntiers = []')
    with pytest.raises(SettingError, match="cannot be used: not a machine that this Ebbtide reads"):
        find_machine(file)
    file.write_bytes(b"\xff\xfe")
    for unreadable, why in ((tmp_path, "Is a directory"), (file, ".*codec can't decode")):
        with pytest.raises(SettingError, match=f"^the machine {unreadable} cannot be used: {why}"):
            find_machine(unreadable)
    with pytest.raises(SettingError) as caught:
        find_machine(tmp_path)
    assert str(caught.value).count(str(tmp_path)) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('compute = { rule = "roofline" }', "needs flops_per_s"),
        ('compute = { rule = "roofline", flops_per_s = 1 }', "bytes_per_s of dram"),
        ('compute = { rule = "systolic", array = 4 }', "needs clock_hz, buffer_bytes"),
        ('compute = { rule = "guess" }', "must be one of trace, roofline, systolic"),
        ("compute = { overlap = 1.5 }", "at most 1"),
        ("compute = { overlap = nan }", "finite"),
        ("compute = { watts = 3 }", "does not know: 'watts'"),
        ("compute = 7", "must be a table"),
        ("cost = { years = 0 }", "above 0"),
        ("cost = { rest_usd = inf }", "out of range|finite"),
        ("chunk_bytes = 0", "chunk_bytes"),
        ("exclusive = 1", "must be a bool"),
        ('tiers = [{ name = "dram", in_place = "all", usd_per_gb = -1 }]', "usd_per_gb"),
        ('tiers = [{ name = "dram", in_place = "all", read_pj_per_bit = "20" }]', "must be a float"),
        ('tiers = [{ name = "dram", in_place = "all", write_bytes_per_s = 0 }]', "write_bytes_per_s"),
        ('tiers = [{ name = "dram", in_place = "all" }, { name = "pmm", in_place = "reads" }]', "it needs bytes_per_s"),
        ('tiers = [{ name = "dram", in_place = "all", load_ns = 9.5 }]', r"tiers\[0\] .* does not know: 'load_ns'"),
        ('groups = [{ name = "bus", bytes_per_s = 1, sharing = "never" }]', "fair, in_order"),
    ],
)
def test_hostile_machines_are_refused(change: str, message: str) -> None:
    tiers = "" if change.startswith("tiers") else 'tiers = [{ name = "dram", in_place = "all" }]'
    text = f'format = "ebbtide-machine"\nversion = 1\nname = "m"\norigin = "assumed"\n{tiers}\n{change}\n'
    assert tomllib.loads(text)
    with pytest.raises(FileFormatError, match=message):
        Machine.from_toml(text)


# ---- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trace = network(6, 2**20, 1_000_000)
    trace = replace(trace, ticks=Ticks.from_rows(replace(tick, flops=10**9) for tick in trace.ticks))
    path = tmp_path_factory.mktemp("traces") / "step.trace"
    save(trace, path)
    return path


def test_machines_lists_and_shows() -> None:
    assert [line.split()[0] for line in run("machines").output.splitlines()] == names()
    assert run("machines", "h200").output == text_of("h200")
    assert isinstance(run("machines", "h300").exception, SettingError)


def test_simulate_writes_figures_and_a_timeline(trace_file: Path, tmp_path: Path) -> None:
    line = tmp_path / "out.timeline"
    files = ("--json", "--save-timeline", line)
    done = run("simulate", trace_file, "--machine", "dram-optane", "--fast", "40%", "--policy", "lru", *files)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["policy"], found["origin"], found["compute"]) == ("lru", "simulated", "assumed")
    assert found["step_ns"] > found["resident_ns"]
    assert sum(found["stalls_ns"].values()) == pytest.approx(found["exposed_share"] * found["step_ns"])
    assert found["energy_j"]["all"] == pytest.approx(
        sum(part for key, part in found["energy_j"].items() if key != "all")
    )
    timeline = load(line, Timeline)
    assert timeline.step_ns == found["step_ns"]
    assert timeline.moved_bytes() == {name: row["moved_bytes"] for name, row in found["links"].items()}


def test_simulate_follows_a_plan(trace_file: Path, tmp_path: Path) -> None:
    plan = tmp_path / "p.plan"
    where = ("--machine", "h200", "--fast", "50%")
    assert run("plan", trace_file, *where, "--policy", "tiertrain", "-o", plan).exit_code == 0
    done = run("simulate", trace_file, *where, "--plan", plan, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["policy"] == "tiertrain"
    assert found["step_ns"] >= found["lower_bound_ns"]
    both = run("simulate", trace_file, *where, "--plan", plan, "--policy", "lru")
    assert isinstance(both.exception, SettingError)


def test_a_plan_of_another_machine_says_which_tiers_it_wants(trace_file: Path, tmp_path: Path) -> None:
    plan = tmp_path / "p.plan"
    assert run("plan", trace_file, "--machine", "h200", "--fast", "50%", "-o", plan).exit_code == 0
    error = run("simulate", trace_file, "--machine", "dram-cxl", "--fast", "50%", "--plan", plan).exception
    assert isinstance(error, PlanError)
    assert re.search(r"made for a machine with .*, and .* has dram, .*Name the --tier .*or the --machine", str(error))


def test_times_of_another_kind_of_machine_are_marked_modelled(trace_file: Path) -> None:
    command = ("simulate", trace_file, "--machine", "npu-flash", "--policy", "lru")
    assert "modelled" in run(*command).stdout
    assert json.loads(run(*command, "--json").stdout)["compute"] == "modelled"


def test_compare_ranks_the_policies_and_says_which_cannot(trace_file: Path) -> None:
    some = ("--fast", "30%,100%", "--policy", "lru,evict-all,tiertrain,resident")
    shown = run("compare", trace_file, "--machine", "h200", *some)
    assert shown.exit_code == 0, shown.output
    assert "no plan within it: resident" in shown.stdout
    rows = json.loads(run("compare", trace_file, "--machine", "h200", *some, "--json").stdout)
    assert len(rows) == 8
    tight, roomy = rows[:4], rows[4:]
    assert [row["policy"] for row in tight if not row["feasible"]] == ["resident"]
    assert "no plan keeps" in next(row["why_not"] for row in tight if not row["feasible"])
    times = [row["step_ns"] for row in tight if row["feasible"]]
    assert times == sorted(times)
    assert all(row["step_ns"] >= row["lower_bound_ns"] for row in rows if row["feasible"])
    assert next(row for row in roomy if row["policy"] == "resident")["gap"] == 0
    assert isinstance(run("compare", trace_file, "--policy", "lru,mru").exception, SettingError)


def test_a_budget_above_the_tiers_capacity_gives_no_more_room(trace_file: Path) -> None:
    trace, machine = load(trace_file, Trace), disk(10**8, 10**8)
    most = peak(live_bytes(trace, page_size_of(machine)))
    small = replace(machine, tiers=(replace(machine.tiers[0], capacity_bytes=most // 2), *machine.tiers[1:]))
    roomy, above, within = (
        try_policy("lru", trace, on, nbytes).bound_ns
        for on, nbytes in ((machine, most), (small, most), (small, most // 2))
    )
    assert roomy < above == within


def test_sweep_finds_the_frontier_and_the_cheapest(trace_file: Path) -> None:
    grid = ("--fast", "1:1,1:0", "--links", "1,2", "--policy", "lru-next-use")
    command = ("sweep", trace_file, "--machine", "dram-optane", *grid, "--target", 1.0)
    half, half_faster, whole, _ = json.loads(run(*command, "--json").stdout)
    assert half["step_ns"] > half_faster["step_ns"] > whole["step_ns"]
    assert half["memory_usd"] < whole["memory_usd"]
    difference = half["step_ns"] - whole["step_ns"]
    assert half["ns_per_gb"] == pytest.approx(difference / (whole["fast_bytes"] - half["fast_bytes"]) * 1e9)
    assert half["ns_per_gb_per_s"] == pytest.approx((half["step_ns"] - half_faster["step_ns"]) / 41)
    assert (half["frontier"], half_faster["frontier"], whole["frontier"]) == ("", "m", "mt")
    assert run(*command).stdout.count("links x 1") == 2  # the cheapest at the resident step's time, by both prices
    unpriced = run("sweep", trace_file, *grid, "--target", 1.5).stdout
    assert "at least " in unpriced
    assert "the machine has no prices, so nothing is the cheapest" in unpriced
    for wrong in (("--fast", "1:x"), ("--links", "0"), ("--policy", "lru,resident")):
        assert isinstance(run("sweep", trace_file, "--machine", "h200", *wrong).exception, SettingError)
