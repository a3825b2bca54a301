"""What commands show on a terminal of 80 columns: help in sections, tables that fit, and what takes long."""

import fcntl
import io
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
import threading
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import click
import pytest
from click.testing import CliRunner

from ebbtide.cli import SECTIONS, cli
from ebbtide.commands.program import ProgramCommand
from ebbtide.commands.sweep import digits
from ebbtide.commands.tables import COLUMNS, cells, show_trials, whose_times
from ebbtide.commands.trace import named_for
from ebbtide.commands.working import Work, working
from ebbtide.errors import InfeasibleBudgetError, SettingError
from ebbtide.ir.base import Origin
from ebbtide.ir.files import load, save
from ebbtide.ir.trace import Ticks, Trace
from ebbtide.machines import find_machine
from ebbtide.pipeline.trials import try_policy
from ebbtide.simulator import recost
from ebbtide.units import format_bytes
from ebbtide.verify.compare import Difference
from ebbtide.verify.text import render
from tests.helpers.make_steps import disk, network
from tests.ir.test_report_format import REPORT
from tests.report.test_page import unpack
from tests.training.test_verify import record, report, verdict_of


def on_a_terminal(*words: object, columns: int = 80, starts: tuple[str, str] = ("-m", "ebbtide")) -> str:
    """What ``ebbtide``, or what ``starts`` it, writes with standard output and error on a terminal so wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    command = [sys.executable, *starts, *map(str, words)]
    child = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env={**environment, "TERM": "xterm"})
    os.close(theirs)
    said = b""
    while True:
        try:
            said += os.read(ours, 1 << 16)
        except OSError:  # the terminal is closed
            break
    os.close(ours)
    assert child.wait() == 0, said.decode()
    return said.decode()


def lines_of(said: str) -> list[str]:
    """As they are read, without what moves the cursor or colours."""
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said)
    return [line.rsplit("\r", 1)[-1].rstrip() for line in plain.replace("\r\n", "\n").split("\n")]


def test_help_has_each_command_in_one_section_and_cuts_no_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(cli, ["--help"]).output
    places = [shown.index(f"\n{title}:") for title in SECTIONS]
    assert places == sorted(places)
    named = [command.name for commands in SECTIONS.values() for command in commands]
    assert sorted(named, key=str) == sorted(set(named), key=str) == sorted(cli.commands)
    for name in named:
        assert len(re.findall(rf"^  {name}  ", shown, re.MULTILINE)) == 1
    assert shown.count("...") == 1  # of the usage
    assert all(len(line) <= 80 for line in shown.splitlines())
    for example in re.findall(r"^ +ebbtide (\w+)", shown, re.MULTILINE):
        assert example in cli.commands


@pytest.mark.parametrize("name", ["", *cli.commands])
def test_help_has_examples_whose_options_there_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(cli, [name, "--help"] if name else ["--help"]).output
    examples = re.findall(r"^ +ebbtide .*$", shown.partition("Examples:")[2], re.MULTILINE)
    assert examples
    for example in examples:
        assert len(example) <= 80
        _, named, *words = shlex.split(example)
        assert named == name or not name
        command = cli.commands[named]
        if isinstance(command, ProgramCommand):  # what follows the program's name is its own
            at = next(at for at, word in enumerate(words) if word == "-m" or word.endswith(".py"))
            words.insert(at, "--")
        command.make_parser(click.Context(command)).parse_args(words)  # raises for an option that there is not


def test_a_script_in_place_of_a_command_is_told_of_run() -> None:
    done = CliRunner().invoke(cli, ["train.py", "--steps", "3"])
    assert done.exit_code == 2
    assert "`ebbtide run train.py ...` trains with it" in done.output
    assert "No such command 'tarin'" in CliRunner().invoke(cli, ["tarin"]).output


def test_policies_are_a_list_or_an_option_each(tmp_path: Path) -> None:
    save(network(layers=3), tmp_path / "step.trace")
    words = ["compare", str(tmp_path / "step.trace"), "--machine", "dram-cxl", "--fast", "50%", "--json"]
    for policies in (("--policy", "lru,demand"), ("--policy", "lru", "--policy", "demand")):
        rows = json.loads(CliRunner().invoke(cli, [*words, *policies]).stdout)
        assert sorted(row["policy"] for row in rows) == ["demand", "lru"]


def test_a_budget_that_cannot_work_says_which_can(tmp_path: Path) -> None:
    """With the same status in `plan` and `simulate`."""
    save(network(), tmp_path / "step.trace")
    (tmp_path / "disk.toml").write_text(disk().to_toml())
    where = [str(tmp_path / "step.trace"), "--machine", str(tmp_path / "disk.toml")]
    for command in ("plan", "simulate"):
        done = CliRunner().invoke(cli, [command, *where, "--fast", "5%"])
        assert isinstance(done.exception, InfeasibleBudgetError)
        assert done.exception.exit_code == 3
    least = format_bytes(done.exception.minimum_bytes)
    compared = CliRunner().invoke(cli, ["compare", *where, "--fast", "5%", "--policy", "ebbtide"]).stdout
    assert f"no plan within it: ebbtide; the smallest budget that can work is {least}" in compared
    assert f"10% no plan (it needs {least})" in " ".join(CliRunner().invoke(cli, ["analyze", *where]).stdout.split())


@pytest.mark.starts
def test_an_explanation_fits_a_terminal(tmp_path: Path) -> None:
    save(network(), tmp_path / "step.trace")
    words = ("explain", tmp_path / "step.trace", "--machine", "dram-cxl")
    lines = lines_of(on_a_terminal(*words))
    assert all(len(line) <= 80 for line in lines), lines
    assert any(line.startswith("    ") for line in lines)  # what went on


@pytest.mark.starts
def test_a_plan_says_what_it_is_at_and_fits_a_terminal(tmp_path: Path) -> None:
    save(network(layers=3), tmp_path / "step.trace")
    said = on_a_terminal("plan", tmp_path / "step.trace", "--machine", "dram-cxl", "--fast", "50%")
    assert "planning" in said  # on the line that goes
    assert all(len(line) <= 80 for line in lines_of(said))


@pytest.mark.starts
def test_reports_of_runs_fit_a_terminal(tmp_path: Path) -> None:
    for rank in range(6):
        replace(REPORT, trouble="one operator needs more at once than the budget holds, as far as it was seen").write(
            tmp_path / f"out.{rank}.json"
        )
    one, several = (lines_of(on_a_terminal("report", tmp_path / name)) for name in ("out.0.json", "out.json"))
    assert all(len(line) <= 80 for line in (*one, *several)), (one, several)
    assert [len(line.split("rank ")) - 1 for line in several if line.startswith("      ") and "rank" in line] == [5, 1]
    assert any(line.startswith(" " * 21) for line in one)  # what went on


def test_a_verdict_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    good = verdict_of(record(("1", "2", "9")), report())
    unsteady = replace(good, unsteady=Difference(1, "loss", "1" * 30, "2" * 30))
    monkeypatch.setattr("ebbtide.terminal.terminal_columns", lambda stream: 80)
    for verdict, goes_on in ((good, " " * 21), (unsteady, " " * 4)):
        monkeypatch.setattr("ebbtide.verify.command.verify_script", lambda *_, verdict=verdict: verdict)
        done = CliRunner().invoke(cli, ["verify", "train.py"])
        assert done.exit_code == 1
        lines = done.stdout.splitlines()
        assert all(len(line) <= 80 for line in lines), lines
        assert any(re.match(goes_on + r"\S", line) for line in lines)
        assert " ".join(done.stdout.split()) == " ".join(render(verdict).split())


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (("net/train.py", "--steps", "3"), "train.trace"),
        (("train",), "train.trace"),
        (("-m", "package.train", "x"), "train.trace"),
        (("-mtrain",), "train.trace"),
    ],
)
def test_a_trace_is_named_for_its_program(program: tuple[str, ...], name: str) -> None:
    assert named_for(program) == Path(name)


@pytest.mark.starts
def test_compare_fits_a_terminal_and_says_what_it_is_at(tmp_path: Path) -> None:
    save(network(layers=3), tmp_path / "step.trace")
    where = ("compare", tmp_path / "step.trace", "--machine", "dram-cxl", "--fast", "50%")
    said = on_a_terminal(*where, "--policy", "lru,demand,resident")
    assert "demand at " in said  # on the line that goes
    lines = lines_of(said)
    assert all(len(line) <= 80 for line in lines), lines
    (header,) = (line for line in lines if line.startswith("policy"))
    assert header.split()[1] == "step"
    (hidden,) = (line for line in lines if line.startswith("(no room here for: use of fast"))
    assert "no plan within it: resident" in lines
    assert all(name in " ".join(lines) for name in COLUMNS[:3]), hidden
    wide = lines_of(on_a_terminal(*where, "--policy", "lru,demand", columns=170))
    (header,) = (line for line in wide if line.startswith("policy"))
    assert "use of fast" in header
    assert not any("no room here" in line for line in wide)
    both = lines_of(on_a_terminal(*where[:-1], "50%,75%", "--policy", "lru,demand"))
    assert len([line for line in both if line.startswith("policy")]) == 2


def test_columns_that_say_nothing_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    trace, machine = network(layers=3), find_machine("g10")
    row = try_policy("lru", trace, machine, 1 << 40)
    shown_cells = dict(zip(COLUMNS, cells(row, trace.step_ns, machine.tiers[0].name), strict=True))
    silent = [name for name, cell in shown_cells.items() if cell == "-"]
    assert "in place" in silent
    show_trials("title", [row], trace.step_ns, machine.tiers[0].name)
    shown = capsys.readouterr().out
    assert not [name for name in silent if name in shown]
    assert "use of fast" in shown


def test_a_plan_is_told_to_programs(tmp_path: Path) -> None:
    save(network(layers=3), tmp_path / "step.trace")
    words = ["plan", str(tmp_path / "step.trace"), "--machine", "dram-cxl", "--fast", "50%"]
    figures = json.loads(CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False).stdout)
    assert figures["planner"] == "ebbtide"
    assert figures["resident_ns"] <= figures["lower_bound_ns"] <= figures["predicted_ns"]
    shown = CliRunner().invoke(cli, words).stdout
    assert f"{figures['operations']} operations, {figures['storages']} storages" in shown


def test_an_analysis_on_a_machine_begins_with_what_budgets_cost(tmp_path: Path) -> None:
    save(network(), tmp_path / "step.trace")
    words = ["analyze", str(tmp_path / "step.trace")]
    first = " ".join(CliRunner().invoke(cli, [*words, "--machine", "h200"]).stdout.split("\n\n")[0].split())
    assert re.match(r"In short: tensors peak at .* times as long: 75% 1\.\d\d, 50% 1\.\d\d, 25% ", first)
    assert "(simulated on one H200: HBM3E, host memory, NVMe, with operations' times as they were recorded)" in first
    here = " ".join(CliRunner().invoke(cli, words).stdout.split("\n\n")[0].split())
    assert here.startswith("In short: tensors peak at ")
    assert "spilling to" in here
    assert "In short" not in CliRunner().invoke(cli, [*words, "--bandwidth", "1GB"]).stdout


def test_what_work_says_stays_and_what_it_is_at_is_for_terminals(capfd: pytest.CaptureFixture[str]) -> None:
    with working(2) as work:
        work("first [part]")
        work.say("done [1 of 2] " + "word " * 40)
    told = capfd.readouterr()
    assert told.err == "done [1 of 2] " + "word " * 40 + "\n"
    assert told.out == ""


class Log(io.StringIO):
    """Standard error that is no terminal; ``told`` is set by a line that says how long it took so far."""

    def __init__(self) -> None:
        super().__init__()
        self.told = Event()

    def write(self, text: str) -> int:
        size = super().write(text)
        if "so far" in text:
            self.told.set()
        return size


def test_one_part_more_than_was_foreseen_is_one_of_as_many() -> None:
    work = Work(1)
    work("first")
    work("once more")
    assert work.told() == "2 of 2, once more"


def test_long_work_is_told_in_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.commands.working._EVERY_S", 0.01)
    monkeypatch.setattr(sys, "stderr", log := Log())
    with working(3) as work:
        work("first")
        work("second at 25%")
        assert log.told.wait(60)  # amid a part
    told = log.getvalue()
    assert re.fullmatch(r"(ebbtide: [0-2] of 3, .*\d s so far\n)+", told)
    assert re.match(r"ebbtide: 2 of 3, second at 25%, \d+ s so far", told.splitlines()[-1])
    assert "ebbtide-work" not in [thread.name for thread in threading.enumerate()]  # so nothing follows


def test_work_that_is_soon_done_tells_nothing(tmp_path: Path) -> None:
    save(network(layers=3), tmp_path / "step.trace")
    words = ["compare", str(tmp_path / "step.trace"), "--machine", "dram-cxl", "--policy", "lru,demand"]
    assert CliRunner().invoke(cli, words).stderr == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1670.4, "1670"), (12345.6, "12350"), (-3.14159, "-3.142"), (2.5e-5, "0.000025"), (-1e-12, "0")],
)
def test_figures_of_a_sweep_have_four_digits_and_no_exponent(value: float, text: str) -> None:
    assert digits(value) == text


def test_a_misspelt_name_has_its_nearest(tmp_path: Path) -> None:
    save(network(), tmp_path / "step.trace")
    for words, question in (
        (("simulate", "--policy", "lur"), "no policy 'lur' (did you mean lru?); there are demand, lru,"),
        (("plan", "--policy", "g11", "--machine", "g10"), "no planner 'g11' (did you mean g10?); there are"),
        (("plan", "--machine", "dram-cx1"), "no machine 'dram-cx1' (did you mean dram-cxl?); there are"),
        (("simulate", "--policy", "zzz"), "no policy 'zzz'; there are"),
    ):
        with pytest.raises(SettingError) as caught:
            CliRunner().invoke(cli, [words[0], str(tmp_path / "step.trace"), *words[1:]], catch_exceptions=False)
        assert question in str(caught.value)


def test_whose_times_an_operation_has_is_said_where_a_machine_is_named(tmp_path: Path) -> None:
    save(network(), tmp_path / "step.trace")
    for command in ("simulate", "compare", "sweep"):
        words = [command, str(tmp_path / "step.trace"), "--machine", "h200", "--fast", "50%", "--policy", "lru"]
        shown = CliRunner().invoke(cli, words).stdout
        assert "simulated, with operations' times as they were recorded" in shown
    assert whose_times(find_machine("h200"), None, network()) == ""
    modelled = replace(network(), origin=Origin.MODELLED)
    assert whose_times(find_machine("h200"), None, modelled) == ", with operations' times as they were modelled"
    words = [str(tmp_path / "step.trace"), "--machine", "h200"]
    recorded = "with operations' times as they were recorded"
    predicted = CliRunner().invoke(cli, ["plan", *words, "--fast", "50%"]).stdout.splitlines()[2]
    assert predicted.startswith("predicted")
    assert predicted.endswith(f"of the speed with everything resident, {recorded}")
    first = " ".join(CliRunner().invoke(cli, ["analyze", *words]).stdout.split("\n\n")[0].split())
    assert first.endswith(f"(simulated on one H200: HBM3E, host memory, NVMe, {recorded}).")
    assert CliRunner().invoke(cli, ["report", *words, "-o", str(tmp_path / "page.html")]).exit_code == 0
    shown = data_of(tmp_path / "page.html")
    assert shown["answers"]["times"] == f", {recorded}"
    assert shown["source"].endswith(f"(assumed), {recorded}.")


def data_of(page: Path) -> Any:
    return unpack(re.findall(r'id="data">([^<]*)<', page.read_text())[0])


def test_all_commands_have_the_times_of_a_machine_that_models_them(tmp_path: Path) -> None:
    trace = network()
    ticks = tuple(replace(tick, flops=(1 + place % 4) * 10**8) for place, tick in enumerate(trace.ticks))
    save(replace(trace, ticks=Ticks.from_rows(ticks)), tmp_path / "step.trace")
    words = [str(tmp_path / "step.trace"), "--machine", "npu-flash"]

    def said(*command: str) -> str:
        return CliRunner().invoke(cli, [command[0], *words, *command[1:]], catch_exceptions=False).stdout

    first = " ".join(said("analyze").split("\n\n")[0].split())
    assert first.endswith("(TM-Training's setting), operations' times modelled).")
    said("report", "-o", str(tmp_path / "page.html"))
    shown = data_of(tmp_path / "page.html")
    resident_ns = recost(load(tmp_path / "step.trace", Trace), find_machine("npu-flash")).step_ns
    assert resident_ns != trace.step_ns
    assert shown["trace"]["step_ns"] == json.loads(said("analyze", "--json"))["step_ns"] == resident_ns
    for row in shown["answers"]["budgets"][:2]:
        planned = json.loads(said("plan", "--fast", row["name"], "--json"))
        compared = json.loads(said("compare", "--fast", row["name"], "--policy", "ebbtide", "--json"))
        assert (planned["predicted_ns"], planned["resident_ns"]) == (row["step_ns"], resident_ns)
        assert compared[0]["step_ns"] == row["step_ns"]
        assert f"{row['name']} {row['step_ns'] / resident_ns:.2f}" in first
    explained = said("explain", "--at-peak").splitlines()
    assert explained[-1].startswith("all times are those of an NPU with HBM and flash")
    assert explained[-1].endswith("operations' times modelled")


@pytest.mark.starts
def test_sweep_fits_a_terminal(tmp_path: Path) -> None:
    save(network(layers=3), tmp_path / "step.trace")
    where = ("sweep", tmp_path / "step.trace", "--machine", "dram-cxl", "--fast", "50%,25%", "--policy", "lru")
    lines = lines_of(on_a_terminal(*where))
    assert all(len(line) <= 80 for line in lines), lines
    (header,) = (line for line in lines if line.startswith("fast"))
    assert "x resident" in header
    assert "…" not in "".join(lines)
