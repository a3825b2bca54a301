"""Files with one thing wrong in them and the right checksum: every command ends with a clear error, or does its work.

`EBBTIDE_FUZZ=4000 pytest tests/commands/test_fuzz_files.py` tries so many; by default a budgeted share, always the
same ones.
"""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ebbtide.cli import cli
from ebbtide.errors import EbbtideError
from ebbtide.ir.files import decode, encode
from ebbtide.ir.machine import Machine
from ebbtide.ir.plan import Plan
from ebbtide.ir.timeline import Timeline
from ebbtide.ir.trace import Trace
from ebbtide.planners import plan
from ebbtide.planners.base import PAGES
from ebbtide.simulator import simulate
from ebbtide.simulator.lowering import lower
from ebbtide.units import MIB
from tests.helpers.make_steps import disk, network
from tests.ir.test_ir_files import packed, unpacked

SEED = int(os.environ.get("EBBTIDE_FUZZ_SEED", "1"))
HOW_MANY = int(os.environ.get("EBBTIDE_FUZZ", "30"))
STEP = network()
BUDGET = 10 * MIB

NUMBERS = [0, 1, -1, 2, 3, 255, 2**31, 2**32, 2**61, 2**62, 2**63 - 1, -(2**63), -(2**62), 10**6, 4096, 10**12]
VALUES: list[Any] = [*NUMBERS, None, True, "", "x" * 99, "\x1b[2J", "dram", [], {}, [[]], 0.5, 1e300, 2**80]


def ended(*arguments: object) -> str:
    """What a command said; it must do its work or end with an error of ours."""
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, EbbtideError | SystemExit):
        raise done.exception
    return str(done.exception or "")


def one_thing_wrong(data: bytes, chance: random.Random) -> bytes:
    """A value of a column, of the header, or of both, that is another."""
    header, arrays = unpacked(data)
    columns = [array for array in arrays.values() if len(array)]
    for _ in range(chance.choice((1, 1, 2, 3))):
        if columns and chance.random() < 0.75:
            column = chance.choice(columns)
            at = chance.randrange(len(column))
            old = int(column[at])
            column[at] = chance.choice((*NUMBERS, old + 1, old - 1, chance.randrange(-50, 50)))
        else:
            place = header
            while place:
                key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
                if isinstance(place[key], dict | list) and place[key] and chance.random() < 0.9:
                    place = place[key]
                else:
                    place[key] = chance.choice(VALUES)
                    break
    return packed(json.dumps(header).encode(), arrays)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A step, its plan, a timeline of it and the machine, each in a file that is right."""
    folder = tmp_path_factory.mktemp("whole")
    trace, machine = STEP, disk()
    kept = machine.with_budget(BUDGET)
    made = plan("ebbtide", trace, machine, BUDGET)
    timeline = simulate(lower(made, trace, kept), trace, kept, PAGES, record=True).timeline("ebbtide")
    files: dict[str, Trace | Plan | Timeline] = {"step.trace": trace, "step.plan": made, "step.timeline": timeline}
    for name, value in files.items():
        (folder / name).write_bytes(encode(value))
    (folder / "machine.toml").write_text(machine.to_toml())
    return {path.name: path for path in folder.iterdir()}


def test_the_files_are_right_before_anything_is_wrong(whole: dict[str, Path], tmp_path: Path) -> None:
    for arguments in commands(whole, tmp_path):
        assert ended(*arguments) in ("", "0"), arguments


def commands(files: dict[str, Path], folder: Path) -> list[tuple[object, ...]]:
    trace, machine = files["step.trace"], files["machine.toml"]
    with_plan = ("--plan", files["step.plan"], "--machine", machine, "--fast", BUDGET)
    page = ("-o", folder / "page.html", "--perfetto", folder / "trace.json", "--machine", machine)
    return [
        ("analyze", trace, "--machine", machine),
        ("explain", trace, "--at-peak", "--machine", machine),
        ("explain", trace, "--storage", 3, "--machine", machine),
        ("plan", trace, "--machine", machine, "--fast", "60%", "-o", folder / "out.plan"),
        ("simulate", trace, *with_plan),
        ("report", trace, files["step.plan"], files["step.timeline"], *page),
    ]


TOUCHES = {"step.trace": (0, 1, 2, 3, 4, 5), "step.plan": (4, 5), "step.timeline": (5,), "machine.toml": (0, 3, 4)}


@pytest.mark.parametrize("name", ["step.trace", "step.plan", "step.timeline"])
@pytest.mark.slow
def test_one_thing_wrong_is_an_error_of_ours_or_nothing(name: str, whole: dict[str, Path], tmp_path: Path) -> None:
    chance = random.Random(f"{SEED} {name}")
    for _ in range(HOW_MANY):
        wrong = tmp_path / name
        wrong.write_bytes(one_thing_wrong(whole[name].read_bytes(), chance))
        which = chance.choice(TOUCHES[name])
        ended(*commands({**whole, name: wrong}, tmp_path)[which])


@pytest.mark.slow
def test_a_machine_with_one_thing_wrong_is_an_error_of_ours_or_nothing(whole: dict[str, Path], tmp_path: Path) -> None:
    chance = random.Random(f"{SEED} machine")
    lines = whole["machine.toml"].read_text().splitlines()
    wrong = tmp_path / "machine.toml"
    for _ in range(HOW_MANY):
        changed = list(lines)
        at = chance.choice([number for number, line in enumerate(lines) if "=" in line])
        key = changed[at].split("=")[0]
        values = ("0", "-1", "1", "nan", "inf", "-inf", "1e308", "1e-308", str(2**62), str(2**70), '"x"', "true", "[]")
        changed[at] = f"{key}= {chance.choice(values)}"
        if chance.random() < 0.2:
            del changed[chance.randrange(len(changed))]
        wrong.write_text("\n".join(changed))
        which = chance.choice(TOUCHES["machine.toml"])
        ended(*commands({**whole, "machine.toml": wrong}, tmp_path)[which])


def test_a_machine_is_read_as_written(whole: dict[str, Path]) -> None:
    assert Machine.from_toml(whole["machine.toml"].read_text()) == disk()


def test_accesses_out_of_order_are_refused() -> None:
    """Only their first and last storage exist."""
    header, arrays = unpacked(encode(STEP))
    storages = arrays["accesses.storage"]
    storages[1:-1:2] = storages[-1] + 1
    with pytest.raises(EbbtideError, match="sorted"):
        decode(packed(json.dumps(header).encode(), arrays), Trace)
