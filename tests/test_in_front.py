"""The list of what Ebbtide puts itself in front of is whole, and each goes as it came, whatever others do meanwhile."""

import ast
import copy
import functools
import inspect
import pickle
import pkgutil
import re
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

import pytest

import ebbtide
from ebbtide.in_front import NEWER, REGISTERED, InFrontOf, Wrapper, put
from tests.helpers.paths import ROOT

PACKAGE = Path(ebbtide.__file__).parent
NAMES = [pytest.param(row, name, id=f"{row.name}-{name}") for row in InFrontOf for name in row.value.names]

REGISTERING = re.compile(
    r"register_\w+_hook\b|_post_accumulate_grad_hooks|_global_(?:forward|optimizer)\w+hooks(?:_always_called)?\b"
    r"|register_at_fork|atexit\.register|meta_path\.insert|signal\.signal|filterwarnings"
    r"|warnings\.filters\.insert|sys\.setrecursionlimit|gc\.disable"
    r"|_push_on_torch_function_stack|TorchFunctionMode|TorchDispatchMode(?!TLS)|FakeTensorMode|set_allocator|set_materializer"
    r"|SetCPUAllocator|SetAllocator|addGlobalCallback|pthread_atfork(?=\()|torch::Library(?=>?\()"
    r"|sigaction(?=\(SIGSEGV, &)"
)


def place(name: str) -> tuple[Any, str]:
    owner, _, attribute = name.rpartition(".")
    return pkgutil.resolve_name(owner), attribute


def missing(name: str) -> bool:
    """In this version of a library, or the library itself."""
    try:
        return not hasattr(*place(name))
    except ImportError:
        return True


@pytest.mark.parametrize(("row", "name"), NAMES)
def test_what_comes_and_goes_leaves_the_very_same_object(row: InFrontOf, name: str) -> None:
    if missing(name):
        pytest.skip("not in this version")
    owner, attribute = place(name)
    before = dict(vars(owner))
    [wrapper] = [Wrapper(each, lambda original: None) for each in row.value.names if each == name]
    assert vars(owner)[attribute] is not before.get(attribute)
    wrapper.remove()
    after = dict(vars(owner))
    assert after.keys() == before.keys()
    assert all(after[key] is value for key, value in before.items() if key == attribute)
    wrapper.remove()
    assert dict(vars(owner)).keys() == before.keys()


@pytest.mark.parametrize(("row", "name"), [each for each in NAMES if not each.values[0].value.traced])
def test_a_script_takes_it_for_the_function_from_before(row: InFrontOf, name: str) -> None:
    """Its table for ``__torch_function__``, say, and ``pickle``."""
    if missing(name):
        pytest.skip("not in this version")
    owner, attribute = place(name)
    before = getattr(owner, attribute)
    original = inspect.unwrap(before)  # a session of another test's may have left a wrapper
    wrappers = [Wrapper(name, lambda original: None), Wrapper(name, lambda original: None)]
    now = getattr(owner, attribute)
    try:
        assert now is not before
        assert now == before == now
        if isinstance(original, Hashable):  # else no table has it
            assert {before: "found"}[now] == {now: "found"}[before] == "found"
        assert pickle.loads(pickle.dumps(now)) is copy.deepcopy(now) is now
        assert (now.__name__, now.__doc__) == (before.__name__, before.__doc__)
        bound = type("Owner", (), {"function": now})().function  # type: ignore[attr-defined]
        assert (bound is now) == isinstance(original, BuiltinFunctionType)
    finally:
        for wrapper in reversed(wrappers):
            wrapper.remove()
    assert getattr(owner, attribute) is before


@pytest.fixture
def replace() -> Iterator[Callable[[Any, str, object], None]]:
    """Set an attribute until the test has ended, of an immutable type, too."""
    changed: list[tuple[Any, str, object]] = []

    def set_until_then(owner: Any, attribute: str, value: object) -> None:
        changed.append((owner, attribute, vars(owner).get(attribute, changed)))
        put(owner, attribute, value)

    yield set_until_then
    for owner, attribute, before in reversed(changed):
        if before is changed:
            delattr(owner, attribute)
        else:
            put(owner, attribute, before)


@pytest.mark.parametrize(("row", "name"), NAMES)
def test_the_wrapper_of_another_library_outlives_ours(
    row: InFrontOf, name: str, replace: Callable[[Any, str, object], None]
) -> None:
    if missing(name):
        pytest.skip("not in this version")
    owner, attribute = place(name)
    called: list[str] = []

    def original(*args: int, **kwargs: int) -> tuple[object, object]:
        called.append("original")
        return args, kwargs

    replace(owner, attribute, staticmethod(original) if isinstance(owner, type) else original)

    def inserted(hands_on: Callable[..., Any], *args: int, **kwargs: int) -> Any:
        called.append("Ebbtide's")
        return hands_on(*args, **kwargs)

    ours = Wrapper(name, inserted, row.value.traced)
    ours_there = getattr(owner, attribute)

    @functools.wraps(ours_there)
    def theirs(*args: int, **kwargs: int) -> Any:
        called.append("theirs")
        return ours_there(*args, **kwargs)

    replace(owner, attribute, theirs)
    assert getattr(owner, attribute)(1, two=2) == ((1,), {"two": 2})
    assert called == ["theirs", "Ebbtide's", "original"]
    called.clear()
    ours.remove()
    assert getattr(owner, attribute) is theirs
    assert getattr(owner, attribute)(1, two=2) == ((1,), {"two": 2})
    assert called == ["theirs", "original"]


def test_torch_has_all_that_is_replaced_and_may_not_lack() -> None:
    names = {name for row in InFrontOf if not row.value.may_lack for name in row.value.names} - NEWER
    assert [name for name in names if name.startswith("torch") and missing(name)] == []


def sources() -> Iterator[tuple[str, str]]:
    """Each by the name that the list has for it."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if name != "in_front":
            yield name, path.read_text()
    for path in sorted((ROOT / "native").rglob("*.[ch]pp")):
        if "tests" not in path.parts:
            yield str(path.relative_to(ROOT)), path.read_text()


def test_the_list_has_every_hook_and_handler_and_nothing_else_is_replaced() -> None:
    found: set[tuple[str, str]] = set()
    for by, text in sources():
        found |= {(by, match) for match in REGISTERING.findall(words(by, text))}
        if not by.startswith("native/"):
            found |= {(by, name) for name in replaced(ast.parse(text))}
    assert found == {(row.by, name) for row in REGISTERED for name in row.names}


def words(by: str, text: str) -> str:
    """Of Python all names, without its texts."""
    if by.startswith("native/"):
        return text
    nodes = ast.walk(ast.parse(text))
    return "\n".join(ast.unparse(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute | ast.alias))


def replaced(tree: ast.Module) -> Iterator[str]:
    """What is assigned to an attribute of a module or class from elsewhere, or of one that an import hook has found."""
    outside: set[str] = {"spec"}
    nodes = sorted((node for node in ast.walk(tree) if hasattr(node, "lineno")), key=lambda node: node.lineno)
    for node in nodes:
        if isinstance(node, ast.Import):
            outside |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("ebbtide"):
            outside |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            if root(node.args[0]) in outside:
                yield ast.unparse(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Attribute) and root(target) in outside:
                    yield ast.unparse(target)
                elif isinstance(target, ast.Name) and node.value is not None and root(node.value) in outside:
                    outside.add(target.id)


def root(node: ast.expr) -> str:
    """The name at the beginning of ``a.b.c``, and of what a module was imported as by ``importlib``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
        return "importlib"
    return node.id if isinstance(node, ast.Name) else ""


def test_rows_say_who_does_it() -> None:
    known = dict(sources())
    for row in (*REGISTERED, *(each.value for each in InFrontOf)):
        assert row.by in known, row
    for each in InFrontOf:
        assert f"InFrontOf.{each.name}.install(" in known[each.value.by]


def test_clocks_are_taken_as_ebbtide_is_imported() -> None:
    """A script may put a clock of its own in their place in the module, and count who asks."""
    assert [by for by, text in sources() if re.search(r"^\s*import time\b", text, re.MULTILINE)] == []
