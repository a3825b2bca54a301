"""Keeps PyTorch's threads from spinning, random examples from changing, and processes out of ``make quick``.

PyTorch's threads wait for one another by spinning, which on a busy machine with few cores makes a step ten times
slower. Told to sleep instead, they run the same code. Set here, before anything imports torch, it holds for children.
"""

import os
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from ebbtide import units
from tests.helpers import forked

if TYPE_CHECKING:
    from tests.helpers.fake_native import FakeNative

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")  # else it compiles for each kind of vectors to see that it can
os.environ.pop("COLUMNS", None)  # those of pytest's own workers
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, as their children do
sys.dont_write_bytecode = False  # else each process that is started compiles all that it imports
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# No new examples at each run, and no limit for slow machines. The constants of the modules that are loaded take part in
# what Hypothesis draws, so a file alone and all files together may see others: what is said of a share of random cases
# draws them from a seed by itself.
settings.register_profile("ebbtide", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ebbtide")

AT_EACH_CHANGE = 8
"""``make test`` tries one of so many random examples: those that Hypothesis makes first. It also tries one of so many
cases of a test that is marked ``alike``, always the same ones. ``make nightly`` tries all."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also what is marked nightly, all cases and random examples")


def share_of(cases: list[pytest.Item]) -> list[pytest.Item]:
    """The first of so many cases, the second of the next, and so on: where there are many of each, no value of several
    parameters is left out."""
    last = len(cases) - 1
    return [cases[min(at + at // AT_EACH_CHANGE % AT_EACH_CHANGE, last)] for at in range(0, len(cases), AT_EACH_CHANGE)]


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--all"):
        os.environ["TESTS_START_PLANNERS"] = "1"  # as tests.helpers.forked says
    if config.getoption("numprocesses", None) and "not starts" not in config.option.markexpr:
        forked.share()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):  # a process
            item.add_marker(pytest.mark.starts)
    if config.getoption("--all"):
        return
    nightly = {item for item in items if item.get_closest_marker("nightly")}
    alike: dict[object, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("alike") and item not in nightly:
            alike[item.obj].append(item)
    for cases in alike.values():
        nightly |= set(cases) - set(share_of(cases))
    config.hook.pytest_deselected(items=list(nightly))
    items[:] = [item for item in items if item not in nightly]
    for test in {item.obj for item in items if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)}:
        own = test._hypothesis_internal_use_settings or settings.default
        share = settings(own, max_examples=-(-own.max_examples // AT_EACH_CHANGE))
        test._hypothesis_internal_use_settings = share


STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "socket.connect"}
"""What only a test that is marked ``starts`` may do: start a process, or connect (also to a server of processes)."""
_alone = ""
"""The test under way, if it is not marked."""


def _watch(event: str, _: tuple[object, ...]) -> None:
    if _alone and event in STARTS:
        raise RuntimeError(f"{event} in {_alone}, which is not marked: pytest.mark.starts keeps it out of `make quick`")


sys.addaudithook(_watch)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """With its fixtures: what a test asks for counts as what it does."""
    global _alone
    _alone = "" if item.get_closest_marker("starts") else item.nodeid
    try:
        return (yield)
    finally:
        _alone = ""


@pytest.fixture(autouse=True)
def _named_as_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that calls the command in this process leaves options named as the command's to none that comes after."""
    monkeypatch.setattr(units, "_by_command", False)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> "Iterator[FakeNative]":
    """A native module that only records, under a session; imported here, since it loads torch."""
    from tests.helpers.fake_native import put_in_place

    yield from put_in_place(monkeypatch)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser to show pages in."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium here to show the page in: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright: pip install playwright")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found)
        yield opened
        opened.close()
