"""Whatever lies here starts processes."""

import json
import sys
from pathlib import Path

import pytest

from tests.helpers import child, command, faulty_disk

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.starts)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is marked ``in_child`` runs in a process of its own, with what it asks for: the marker has the
    process's variables, and functions to call first."""
    mark = pyfuncitem.get_closest_marker("in_child")
    if mark is None or pyfuncitem.get_closest_marker("here"):
        return None
    env, *first = mark.args or [None]
    values = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    try:
        child.run(pyfuncitem.obj, env=env, first=first, **values)
    except child.ChildError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    return True


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faulty_disk.build(tmp_path_factory.mktemp("faulty_disk"))


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the script of trainings on failing disks ends with."""
    result = tmp_path_factory.mktemp("plain") / "result.json"
    assert command.run(sys.executable, *faulty_disk.SCRIPT, f"--result={result}").returncode == 0
    return json.loads(result.read_text())
