"""The API's page against the code: the table of settings is the one that the code makes, the errors are all listed.

Run as a script it writes the table into the page.
"""

import inspect
import re
import sys
from dataclasses import fields
from enum import Enum

from ebbtide import api, errors, settings
from ebbtide.session.session import Session
from ebbtide.units import SIZES_ACCEPTED, format_bytes
from tests.helpers.paths import ROOT

PAGE = ROOT / "docs" / "api.md"
MARKS = re.compile(r"(<!-- settings: .*? -->\n).*?(<!-- end of settings -->)", re.DOTALL)


def settings_table() -> str:
    """Of every variable: its field, its default, what it accepts, and the comment beside the field."""
    said = dict(re.findall(r"^    (\w+): [^#\n]*?  # (.*)$", inspect.getsource(settings.Settings), re.MULTILINE))
    defaults = {field.name: field.default for field in fields(settings.Settings)}
    rows = ["| variable | field | default | accepts | means |", "|---|---|---|---|---|"]
    for variable, knob in settings.KNOBS.items():
        accepts = knob.accepts.replace(SIZES_ACCEPTED, "a size")  # what one is stands above the table
        cells = (f"`{variable}`", f"`{knob.field}`", _shown(knob.field, defaults[knob.field]), accepts)
        rows.append(f"| {' | '.join((*cells, said.get(knob.field, '')))} |".replace("  |", " |"))
    return "\n".join(rows) + "\n"


def _shown(field: str, value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, int) and field.endswith("_bytes"):
        return format_bytes(value)
    return "" if value is None or value == () else str(value)


def test_the_table_of_settings_is_the_code_s() -> None:
    shown = MARKS.search(PAGE.read_text())
    assert shown is not None
    assert shown[0] == f"{shown[1]}{settings_table()}{shown[2]}", (
        "`python -m tests.repository.test_api_page` writes the table"
    )


def test_the_errors_are_those_there_are() -> None:
    listed = re.findall(r"^\| `(\w+Error)` \| (\d) \|", PAGE.read_text(), re.MULTILINE)
    there = {
        name: value.exit_code
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.EbbtideError)
    }
    assert {name: int(status) for name, status in listed} == there


def test_the_arguments_of_a_session_are_those_it_takes() -> None:
    table = PAGE.read_text().split("| argument | means |")[1].split("\n\n")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert listed == list(inspect.signature(Session).parameters)


def test_the_members_of_a_session_and_the_functions_are_there() -> None:
    text = PAGE.read_text()
    members = re.findall(r"^\| `(\w+)[(`]", text.split("| member | does |")[1].split("\n\n")[0], re.MULTILINE)
    assert set(members) == {name for name in dir(Session) if not name.startswith("_")}
    functions = re.findall(
        r"^\| `(\w+)\(", text.split("| function | does | command |")[1].split("\n\n")[0], re.MULTILINE
    )
    assert set(functions) == {name for name, value in vars(api).items() if inspect.isfunction(value)}


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(MARKS.sub(lambda shown: f"{shown[1]}{settings_table()}{shown[2]}", text))
    sys.exit(0)
