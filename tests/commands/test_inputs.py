"""What commands on traces read: both formats, the machine and its changes, the budget, and errors that help."""

import json
import os
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ebbtide.cli import cli
from ebbtide.commands.inputs import budgets_of, fast_option, machine_options, read_inputs, trace_argument
from ebbtide.errors import OTHER_STORAGES, FileFormatError, SettingError
from ebbtide.ir.files import load, save
from ebbtide.ir.occupancy import arena_pages, live_bytes, peak
from ebbtide.ir.plan import Plan
from ebbtide.pipeline import reading
from ebbtide.planners import plan
from ebbtide.units import GIB, MIB, format_bytes
from tests.helpers.make_steps import disk, network
from tests.ir.test_report_format import REPORT

LINKS = (("host_to_gpu", "host", "gpu", 8 * 10**9), ("gpu_to_host", "gpu", "host", 8 * 10**9))


@pytest.fixture
def tiertrace(tmp_path: Path) -> Path:
    """Two kernels, one local of 100 bytes and one global of 50, on a GPU of 1000 bytes with a port."""
    value = {
        "format": "tiertrace/1",
        "workload": "toy",
        "machine": {
            "tiers": [{"name": "gpu", "capacity_bytes": 3 * GIB}, {"name": "host", "capacity_bytes": 64 * GIB}],
            "links": [
                {"name": name, "src": source, "dst": target, "bytes_per_s": rate, "latency_ns": 0}
                for name, source, target, rate in LINKS
            ],
            "ports": [{"name": "gpu_in", "links": ["host_to_gpu"], "bytes_per_s": 9 * 10**9}],
        },
        "tensors": [{"id": 7, "nbytes": GIB, "kind": "local"}, {"id": 9, "nbytes": GIB // 2, "kind": "global"}],
        "kernels": [
            {"index": at, "name": "k", "layer": "", "duration_ns": 10, "reads": reads, "writes": writes}
            | {"workspace_bytes": 0}
            for at, (reads, writes) in enumerate(([[9], [7]], [[7], []]))
        ],
    }
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(value))
    return path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "step.trace"
    save(network(), path)
    return path


@pytest.fixture
def machine_file(tmp_path: Path) -> Path:
    path = tmp_path / "machine.toml"
    path.write_text(disk(both=3 * 10**9).to_toml())
    return path


def test_a_tiertrace_brings_its_machine_and_its_capacity_is_the_budget(tiertrace: Path) -> None:
    trace, machine, budget_bytes = read_inputs(tiertrace, None, (), None)
    assert (trace.name, [tier.name for tier in machine.tiers], budget_bytes) == ("toy", ["gpu", "host"], 3 * GIB)


def test_figures_of_the_machine_can_be_set(tiertrace: Path) -> None:
    changes = ("gpu.capacity_bytes=2GiB", "host_to_gpu.bytes_per_s=5e9", "gpu_in.bytes_per_s=4GB")
    changes += ("host.capacity_bytes=unlimited", "gpu_to_host.latency_ns=7", "gpu_to_host.slows_compute=0.5")
    _, machine, budget_bytes = read_inputs(tiertrace, None, changes, None)
    inward, outward = machine.link("host", "gpu"), machine.link("gpu", "host")
    assert inward is not None
    assert outward is not None
    assert (inward.bytes_per_s, outward.bytes_per_s) == (5 * 10**9, 8 * 10**9)
    assert (outward.latency_ns, outward.slows_compute) == (7, 0.5)
    assert machine.groups[0].bytes_per_s == 4 * 10**9
    assert (machine.tiers[1].capacity_bytes, budget_bytes) == (None, 2 * GIB)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("gpu.bytes=1", r"gpu has no \.bytes \(did you mean gpu\..*\?\), but \.capacity_bytes, \..*, \.page_bytes"),
        ("disk.bytes=1", r"KEY is a figure of gpu, host, .*host_to_gpu, .*gpu_in, compute, cost"),
        ("speed", r"KEY is a figure of gpu, .*, such as gpu\.capacity_bytes"),
        ("gpu.capacity_byte=1", r"did you mean gpu\.capacity_bytes\?"),
        ("gpu.name=1", r"gpu has no \.name"),
        ("gpu.capacity_bytes", "write KEY=VALUE"),
        ("gpu.capacity_bytes=lots", "'lots' is not a number; accepted: a size such as"),
        ("gpu.capacity_bytes=-1", "not a number|must be an int in"),
        ("host_to_gpu.bytes_per_s=0", "bytes_per_s must be an int in"),
        ("host_to_gpu.bytes_per_s=unlimited", "not a number"),
        ("host_to_gpu.bytes_per_s=1e999", "'1e999' is not a number"),
        ("host_to_gpu.slows_compute=nan", "finite"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(tiertrace: Path, change: str, says: str) -> None:
    with pytest.raises(SettingError, match=says) as caught:
        read_inputs(tiertrace, None, (change,), None)
    assert str(caught.value).startswith(f"--set {change}")


def test_budgets_are_sizes_or_shares_of_the_peak_and_no_more_than_there_is(tiertrace: Path, own: Path) -> None:
    trace, machine, _ = read_inputs(tiertrace, None, (), None)
    most = 3 * GIB // 2
    assert [*budgets_of("50%, 700MiB,100%,8GiB", trace, machine).values()] == [most // 2, 700 * MIB, most, 3 * GIB]
    with pytest.raises(SettingError, match=r"fast=: '12 parsecs' is not a budget"):
        budgets_of("25%,12 parsecs", trace, machine)
    trace = network(width_bytes=7 * MIB + 900 * 1024)  # the arena takes 8 MiB for it
    exact, paged = peak(live_bytes(trace)), peak(live_bytes(trace, arena_pages))
    assert exact < paged
    assert budgets_of("50%,100%", trace, disk()) == {"50%": exact // 2, "100%": paged}  # as a run has them


def test_a_recorded_step_is_planned_for_the_machine_of_a_file(own: Path, machine_file: Path) -> None:
    trace, machine, budget_bytes = read_inputs(own, machine_file, ("disk.bytes_per_s=2e9",), None)
    assert (trace, machine.groups[0].bytes_per_s) == (network(), 2 * 10**9)
    assert budget_bytes == peak(live_bytes(trace, arena_pages))  # the tier is unlimited


def test_a_recorded_step_without_a_machine_is_planned_for_this_one(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "this_machine", lambda: disk(read=12345))
    assert read_inputs(own, None, (), "50%").machine == disk(read=12345)


def test_the_variable_names_this_machines_file(own: Path, machine_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_MACHINE", str(machine_file))
    assert read_inputs(own, None, (), None).machine == disk(both=3 * 10**9)


@pytest.mark.parametrize("content", [b"", b"\x00" * 99, b"hello", b"{}", b"[1]", b'{"format": "tiertrace/2"}'])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="other"):
        read_inputs(path, None, (), None)


def test_a_machine_that_is_none_is_refused(own: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match=r"bad\.toml cannot be used"):
        read_inputs(own, path, (), None)


def test_the_options_together_make_a_command(own: Path, machine_file: Path) -> None:
    @click.command()
    @trace_argument
    @machine_options
    @fast_option
    def show(trace: Path, machine: Path | None, changes: tuple[str, ...], fast: str | None) -> None:
        click.echo(read_inputs(trace, machine, changes, fast).budget_bytes)

    options = ["--machine", str(machine_file), "--set", f"dram.capacity_bytes={3 * MIB}", "--set", "disk.bytes_per_s=1"]
    done = CliRunner().invoke(show, [str(own), *options])
    assert (done.output, done.exit_code) == (f"{3 * MIB}\n", 0)
    done = CliRunner().invoke(show, [str(own.with_name("missing"))])
    assert done.exit_code == 2
    assert "does not exist" in done.output


STEERS = "\x1b]0;owned\x07"


@pytest.mark.parametrize("what", ["trace", "plan", "report"])
def test_a_file_cannot_steer_the_terminal(
    what: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "crafted"
    if what == "report":
        replace(REPORT, policy=STEERS, trouble=f"{STEERS}\nmore").write(path)
    else:
        made = network() if what == "trace" else plan("ebbtide", network(), disk(), 10**9)
        for module, name in (("ebbtide.ir.trace.Trace", "device"), ("ebbtide.ir.plan.Plan", "planner")):
            monkeypatch.setattr(f"{module}.__post_init__", lambda self: None)
            if hasattr(made, name):
                object.__setattr__(made, name, STEERS)
        save(made, path)
        monkeypatch.undo()
    simulated = ("simulate", path if what == "trace" else own, "--machine", "dram-cxl")
    words = ("report", path) if what == "report" else (*simulated, *(("--plan", path) if what == "plan" else ()))
    done = CliRunner().invoke(cli, list(map(str, words)))
    said = f"{done.output}{done.exception}"
    assert "\x1b" not in said
    assert "owned" in said if what == "report" else "must be printable" in said


def test_what_has_no_end_is_no_input(own: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for words in (("analyze", pipe), ("report", "/dev/zero"), ("plan", pipe), ("plan", own, "--machine", "/dev/zero")):
        status, said = invoked(*words)
        assert status != 0
        assert f"{words[-1]} is a pipe or a device: write it to a file first" in said


@pytest.mark.parametrize("command", ["analyze", "plan"])
def test_a_report_in_place_of_a_trace_says_what_it_is(command: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    REPORT.write(path)
    done = CliRunner().invoke(cli, [command, str(path)])
    assert f"{path} is the report of a run, not a trace: `ebbtide report {path}`" in str(done.exception)


def test_a_trace_is_read_once_and_the_machine_is_changed_before_it_is_used(
    own: Path, machine_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    read, recost = reading.read_trace, reading.recost
    monkeypatch.setattr(reading, "read_trace", lambda path: seen.append(path) or read(path))
    monkeypatch.setattr(reading, "recost", lambda step, on: seen.append(on.groups[0].bytes_per_s) or recost(step, on))
    read_inputs(own, machine_file, ("disk.bytes_per_s=2e9",), None)
    assert seen == [own, 2 * 10**9]


# ---- what a command says where it cannot do what was meant -----------------------------------------------------------


def invoked(*words: object) -> tuple[int, str]:
    """Exit status and what is said, of an error its own text."""
    result = CliRunner().invoke(cli, list(map(str, words)))
    return result.exit_code, f"{result.output}{result.exception}"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("page", ("report", "-o")),
        ("Perfetto trace", ("report", "--perfetto")),
        ("plan", ("plan", "-o")),
        ("timeline", ("simulate", "--save-timeline")),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_work_begins(
    what: str, words: tuple[str, ...], own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebbtide.pipeline.reading.read_trace", lambda path: pytest.fail("work began"))
    *command, option = words
    there = tmp_path / "nowhere" / "file"
    result = CliRunner().invoke(cli, [*command, str(own), option, str(there)])
    assert isinstance(result.exception, SettingError)
    assert str(result.exception) == (
        f"the {what} cannot be written to {there} (No such file or directory): name a file in a writable directory"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "TRACE", "-o", "TRACE"),
        ("plan", "TRACE", "-o", "LINK"),
        ("plan", "TRACE", "--machine", "MACHINE", "-o", "MACHINE"),
        ("report", "TRACE", "-o", "TRACE"),
        ("report", "TRACE", "-o", "new.html", "--perfetto", "new.html"),
        ("report", "TRACE", "--plan", "PLAN", "--perfetto", "PLAN"),
        ("simulate", "TRACE", "--plan", "PLAN", "--save-timeline", "PLAN"),
        ("simulate", "TRACE", "--policy", "lru", "--save-timeline", "TRACE"),
    ],
)
def test_no_output_replaces_an_input_or_another_output(
    words: tuple[str, ...], own: Path, machine_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"TRACE": own, "MACHINE": machine_file, "PLAN": tmp_path / "step.plan", "LINK": tmp_path / "link"}
    files["PLAN"].write_bytes(b"a plan")
    files["LINK"].symlink_to(own)
    before = {name: path.read_bytes() for name, path in files.items()}
    result = CliRunner().invoke(cli, [str(files.get(word, word)) for word in words])
    assert isinstance(result.exception, SettingError)
    assert str(result.exception).endswith(("which is read: name another file", "name two files"))
    assert {name: path.read_bytes() for name, path in files.items()} == before
    assert not (tmp_path / "new.html").exists()


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("compare", "--noise", "nan"),
        ("sweep", "--target", "nan"),
        ("sweep", "--target", "1e300"),
        ("sweep", "--fast", "-1:-8"),
        ("sweep", "--links", "nan"),
        ("analyze", "--bandwidth", str(2**63 - 1)),
        ("analyze", "--bandwidth", str(2**62 + 1)),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(command: str, option: str, value: str, own: Path) -> None:
    where = () if command == "analyze" else ("--machine", "dram-cxl")
    result = CliRunner().invoke(cli, [command, str(own), *where, option, value])
    assert result.exit_code == 2 or isinstance(result.exception, SettingError)
    assert option.lstrip("-") in f"{result.output}{result.exception}"


def test_no_time_is_nan() -> None:
    assert "nan' is not a finite number" in invoked("probe", "--seconds", "nan")[1]


@pytest.mark.parametrize("command", ["simulate", "explain", "report"])
def test_a_plan_of_another_model_is_refused_alike(command: str, own: Path, machine_file: Path, tmp_path: Path) -> None:
    other, made = tmp_path / "other.trace", tmp_path / "other.plan"
    save(network(layers=3), other)
    assert invoked("plan", other, "--machine", machine_file, "--fast", "60%", "-o", made)[0] == 0
    files = ("--plan", made, *(("-o", tmp_path / "page.html") if command == "report" else ()))
    result = CliRunner().invoke(cli, list(map(str, (command, own, "--machine", machine_file, *files))))
    assert isinstance(result.exception, SettingError)
    assert result.exception.exit_code == 2
    assert str(result.exception) == f"the plan {made} is not for the trace: {OTHER_STORAGES}"


def test_a_plan_is_simulated_within_its_own_budget_or_it_is_said(own: Path, machine_file: Path, tmp_path: Path) -> None:
    made = tmp_path / "step.plan"
    where = (own, "--machine", machine_file)
    assert invoked("plan", *where, "--fast", "60%", "-o", made)[0] == 0
    status, alone = invoked("simulate", *where, "--plan", made)
    assert status == 0
    assert "the plan was made for" not in alone
    assert invoked("simulate", *where, "--plan", made, "--fast", "60%") == (status, alone)
    planned = format_bytes(load(made, Plan).budget_bytes)
    assert f"{planned} of dram" in alone
    status, other = invoked("simulate", *where, "--plan", made, "--fast", "80%")
    assert status == 0
    assert f"the plan was made for {planned}, and has " in other
    status, refused = invoked("simulate", *where, "--plan", made, "--fast", "1MiB")
    assert status != 0
    assert "it is 1.00 MiB, one operation alone needs up to " in refused
    assert f"the plan was made for {planned}" in refused
