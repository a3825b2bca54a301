"""The layer rules of CONTRIBUTING, read from the sources: who may import whom, and what starts without torch."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ebbtide
from tests.helpers.paths import ROOT

PACKAGE = Path(ebbtide.__file__).parent
BASE = {"errors", "terminal", "units", "whole_file"}
IR = BASE | {"ir"}

# component -> the components of ebbtide that it may import (and itself); "torch" stands for torch and native code
MAY_IMPORT: dict[str, set[str]] = {
    "units": set(),
    "errors": {"units"},
    "whole_file": set(),
    "terminal": {"errors"},
    "after_import": set(),
    "in_front": set(),
    "settings": BASE,
    "ir": BASE,
    "_planning": set(),  # native code without torch
    "_objects": set(),  # as well
    "host": {"errors", "terminal", "units", "_planning", "torch"},  # torch to see whether it can be loaded
    "planners": IR | {"simulator", "_planning"},
    "simulator": IR | {"_planning"},
    "machines": IR,
    "analysis": IR,
    "report": IR | {"analysis"},
    "capture": IR | {"in_front", "torch", "_objects"},
    "recorders": IR | {"capture", "in_front", "torch"},
    "doors": BASE | {"host", "in_front", "torch"},
    "screen": IR | {"host", "in_front", "settings"},
    "budget": BASE | {"host", "torch"},
    "update_order": IR | {"capture", "doors", "in_front", "torch"},
    "planning": IR
    | {"budget", "capture", "host", "machines", "planners", "probe", "screen", "settings", "simulator", "torch"},
    "runtime": IR
    | {
        *("after_import", "budget", "capture", "doors", "host", "in_front", "planning", "screen", "settings"),
        *("torch", "update_order"),
    },
    "probe": IR | {"host", "settings", "torch"},  # calls operators
    "pipeline": IR | {"analysis", "host", "machines", "planners", "probe", "settings", "simulator"},
    "session": IR
    | {
        "budget",
        "capture",
        "host",
        "in_front",
        "machines",
        "planning",
        "probe",
        "recorders",
        "report",
        "runtime",
        "screen",
        "settings",
    },
    "estimate": IR
    | {
        *("budget", "capture", "host", "pipeline", "planners", "planning", "probe", "recorders", "session", "settings"),
        "torch",
    },  # runs scripts
    "doctor": BASE | {"host", "torch"},  # torch to see whether it can be loaded
    "verify": IR
    | {"after_import", "capture", "host", "planning", "session", "settings", "torch", "update_order"},  # runs scripts
}
FRONTS = {"api", "cli", "commands", "integrations", "__main__"}  # import everything; only they import each other
NATIVE = {"torch", "_torch"}


def sources() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path


def imported(path: Path) -> Iterator[str]:
    """Components of ebbtide, and "torch", that a file imports anywhere but for type checking."""
    tree = ast.parse(path.read_text())
    for_types = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "torch":
                yield "torch"
            elif parts[0] == "ebbtide" and len(parts) > 1:
                yield "torch" if parts[1] in NATIVE else parts[1]


def test_every_component_is_in_the_table() -> None:
    assert {component for component, _ in sources()} <= set(MAY_IMPORT) | FRONTS | {"__init__"}


@pytest.mark.parametrize(
    ("component", "path"), [pytest.param(*row, id=str(row[1].relative_to(PACKAGE))) for row in sources()]
)
def test_imports_point_one_way(component: str, path: Path) -> None:
    if component == "__init__":
        return  # loads names when they are used
    found = set(imported(path)) - {component, "__version__"}
    if component in FRONTS:
        assert found <= set(MAY_IMPORT) | FRONTS
    else:
        assert found <= MAY_IMPORT[component]


def test_contributing_has_the_same_table() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().split("| component | is | may import |")[1].split("\n\n")[0]
    rows = [line.strip("| ").split(" |") for line in table.splitlines()[2:]]
    listed = {}
    for components, _, imports in ([cell.strip() for cell in row[:2]] + [" ".join(row[2:])] for row in rows):
        if components == "fronts":
            continue
        names = set(re.findall(r"`(\w+)`", imports)) | ({"torch"} if "torch" in imports else set())
        for component in re.findall(r"`(\w+)`", components):
            listed[component] = names | (IR if "what `ir` may" in imports else set())
    assert listed == MAY_IMPORT


def test_what_ours_is_made_of_knows_no_published_planner() -> None:
    for path in sorted((PACKAGE / "planners/search").glob("*.py")):
        assert "ebbtide.planners.published" not in path.read_text(), path


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(PACKAGE))) for _, path in sources()])
def test_only_units_knows_what_a_gibibyte_is(path: Path) -> None:
    if path.name == "units.py":
        return
    binary = {2 ** (10 * power) for power in range(1, 5)}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
            exponent = node.right.value if isinstance(node.right, ast.Constant) else None
            assert exponent not in (10, 20, 30, 40), f"{path}: {ast.unparse(node)}"
        if isinstance(node, ast.Constant) and type(node.value) is int:
            assert node.value not in binary, f"{path}: {node.value}"


def test_exported_names_are_these() -> None:
    assert ebbtide.__all__ == [
        "BudgetError",
        "EbbtideError",
        "EbbtideWarning",
        "PlatformError",
        "ReportError",
        "RunReport",
        "Session",
        "SessionError",
        "SettingError",
        "SpillError",
        "StepReport",
        "__version__",
        "active",
        "load",
        "plan",
        "record",
        "run",
        "save",
        "simulate",
    ]
    for name in ebbtide.__all__:
        assert getattr(ebbtide, name) is not None
    assert set(ebbtide.__all__) <= set(dir(ebbtide))
    with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
        ebbtide.Sesion  # noqa: B018


SLOW = ("torch", "numpy", "rich", "transformers", "asyncio", "ebbtide.runtime")


@pytest.mark.parametrize(
    "program",
    [
        "import ebbtide",
        "import ebbtide; ebbtide.BudgetError; ebbtide.RunReport",
        "import ebbtide.report.summary, ebbtide.settings",
        "import ebbtide.cli",
        "from ebbtide.cli import cli; cli(['--help'], standalone_mode=False)",
        "from ebbtide.cli import cli; cli(['--version'], standalone_mode=False)",
        "from ebbtide.cli import cli; cli(['run', '--help'], standalone_mode=False)",
        "from ebbtide.cli import cli; cli(['probe', '--help'], standalone_mode=False)",
        "from ebbtide.cli import cli; cli(['trace', '--help'], standalone_mode=False)",
        "from ebbtide.cli import cli; cli(['plan', '--help'], standalone_mode=False)",
        "from ebbtide.cli import cli; cli(['verify', '--help'], standalone_mode=False)",
        "from ebbtide.cli import cli; cli(['doctor', '--help'], standalone_mode=False)",
    ],
)
@pytest.mark.starts
def test_what_needs_no_torch_does_not_load_it(program: str) -> None:
    listing = f"{program}\nimport sys; print('|'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    loaded = done.stderr.strip().splitlines()[-1].split("|")
    assert "ebbtide" in loaded
    assert [name for name in loaded if name.startswith(SLOW)] == []
    assert len(loaded) < 250


@pytest.mark.starts
def test_the_session_class_can_be_had_without_torch() -> None:
    program = "import ebbtide, sys; ebbtide.Session; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
