"""What a shell is offered as one types. ``bash_complete`` prints a kind and a value on each line."""

import pytest
from click.shell_completion import BashComplete

from ebbtide.cli import cli
from ebbtide.machines import names
from ebbtide.pipeline.trials import policies
from ebbtide.settings import UpdateOrder


def offered(*words: str) -> list[tuple[str, str]]:
    """The last word is the one that is not finished."""
    found = BashComplete(cli, {}, "ebbtide", "_EBBTIDE_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [(item.type, item.value) for item in found]


@pytest.mark.parametrize("command", ["run", "verify", "trace", "estimate"])
def test_a_script_and_its_arguments_are_files(command: str) -> None:
    assert offered(command, "fine") == [("file", "fine")]
    assert offered(command, "finetune.py", "da") == [("file", "da")]
    if command in ("run", "verify"):
        assert offered(command, "--fast", "25%", "fine") == [("file", "fine")]


@pytest.mark.parametrize("command", ["run", "verify", "plan", "simulate", "sweep", "compare"])
def test_policies_are_those_that_there_are(command: str) -> None:
    assert offered(command, "--policy", "") == [("plain", name) for name in policies()]
    assert ("plain", "ebbtide") in offered(command, "--policy", "eb")


def test_of_a_list_the_last_policy_is_completed() -> None:
    assert offered("compare", "--policy", "lru,ebb") == [("plain", "lru,ebbtide")]


@pytest.mark.parametrize("command", ["run", "trace", "plan", "sweep", "analyze", "explain", "report", "estimate"])
def test_a_machine_is_a_name_or_a_file(command: str) -> None:
    """The file comes first: a shell that hears of one forgets what it has so far."""
    assert offered(command, "--machine", "") == [("file", ""), *(("plain", name) for name in names())]
    assert offered(command, "--machine", "mine.t") == [("file", "mine.t")]


def test_orders_directories_files_and_machines_are_completed() -> None:
    assert offered("run", "--optimizer", "") == [("plain", str(order)) for order in UpdateOrder]
    assert offered("verify", "--spill", "/va") == [("dir", "/va")]
    assert offered("run", "--plan", "st") == offered("run", "--report", "st") == [("file", "st")]
    assert offered("machines", "dram-") == [("plain", "dram-cxl"), ("plain", "dram-optane")]
