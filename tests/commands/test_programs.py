"""How ``ebbtide run`` runs a program: faithfully, in this process."""

import json
import subprocess
import sys
import zipapp
from pathlib import Path
from textwrap import dedent

import pytest

from tests.helpers.cli import DISABLED, run, script

pytestmark = pytest.mark.starts

SEEN = """
    import json, os, sys
    import beside
    print(json.dumps({
        "argv": sys.argv, "name": __name__, "file": __file__, "spec": getattr(__spec__, "name", None),
        "path": sys.path[0], "main": sys.modules["__main__"].__dict__ is globals(), "package": __package__,
        "beside": beside.__file__, "doc": __doc__, "keys": sorted(k for k in globals() if k.startswith("__")),
    }))
"""


@pytest.mark.parametrize("arguments", [["--lr", "1", "-m", "x", "--fast", "2"], ["--", "--help", "-h"], []])
def test_a_script_sees_what_python_would_show_it(tmp_path: Path, arguments: list[str]) -> None:
    path = script(tmp_path / "project", SEEN)
    script(tmp_path / "project", "", "beside.py")
    (tmp_path / "linked.py").symlink_to(path)
    for name in (path, "project/train.py", "linked.py"):
        ours = run("run", "--fast", "1GiB", "--quiet", name, *arguments, cwd=tmp_path, **DISABLED)
        plain = subprocess.run(
            [sys.executable, name, *arguments], capture_output=True, text=True, cwd=tmp_path, check=True
        )
        assert ours.returncode == 0, ours.stderr
        seen, expected = json.loads(ours.stdout), json.loads(plain.stdout)
        assert seen == expected


@pytest.mark.parametrize("module", ["project.train", "project"])
@pytest.mark.parametrize("spelling", [["-m"], []])
def test_a_module_sees_what_python_would_show_it(tmp_path: Path, module: str, spelling: list[str]) -> None:
    script(tmp_path / "project", SEEN)
    script(tmp_path / "project", SEEN, "__main__.py")
    script(tmp_path / "project", "", "__init__.py")
    script(tmp_path, "", "beside.py")
    command = [*spelling, module] if spelling else [f"-m{module}"]
    ours = run("run", "--fast", "1GiB", *command, "--steps", "3", cwd=tmp_path, **DISABLED)
    plain = subprocess.run(
        [sys.executable, *command, "--steps", "3"], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert ours.returncode == 0, ours.stderr
    assert json.loads(ours.stdout) == json.loads(plain.stdout)


@pytest.mark.parametrize("options", [[], ["-P"]])
@pytest.mark.parametrize("packed", ["project", "project/", "project.pyz"])
def test_a_directory_or_a_zip_file_sees_what_python_would_show_it(
    tmp_path: Path, packed: str, options: list[str]
) -> None:
    script(tmp_path / "project", SEEN, "__main__.py")
    script(tmp_path / "project", "", "beside.py")
    zipapp.create_archive(tmp_path / "project")
    command, environment = [packed, "--steps", "3"], DISABLED | ({"PYTHONSAFEPATH": "1"} if options else {})
    ours = run("run", "--fast", "1GiB", *command, cwd=tmp_path, **environment)
    plain = subprocess.run(
        [sys.executable, *options, *command], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert ours.returncode == 0, ours.stderr
    assert json.loads(ours.stdout) == json.loads(plain.stdout)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no data')", 1, "no data"),
        ("raise SystemExit(True)", 1, ""),
        ("raise KeyError('x')", 1, "KeyError: 'x'"),
        ("raise KeyboardInterrupt", -2, "KeyboardInterrupt"),
        ("import sys; sys.exit(130)", 130, ""),
        ("class Stop(KeyboardInterrupt): pass\nraise Stop", 1, "Stop"),
        ("def broken(:", 1, "SyntaxError"),
    ],
)
def test_the_exit_status_is_the_scripts(tmp_path: Path, body: str, status: int, message: str) -> None:
    done = run("run", "--fast", "1GiB", "--quiet", script(tmp_path, body), **DISABLED)
    assert done.returncode == status
    assert message in done.stderr


@pytest.mark.parametrize("body", ["def f():\n    return 1 / 0\n\nf()\n", "x = (\n", "import missing_here\n"])
def test_a_traceback_is_what_python_would_print(tmp_path: Path, body: str) -> None:
    path = script(tmp_path, body)
    ours = run("run", "--fast", "1GiB", "--quiet", path, **DISABLED)
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    shown = [line for line in ours.stderr.splitlines() if not line.startswith("ebbtide: ")]
    assert shown == plain.stderr.splitlines()


def test_the_scripts_own_excepthook_is_asked(tmp_path: Path) -> None:
    body = "import sys\nsys.excepthook = lambda kind, error, trace: print('hooked', kind.__name__)\nraise ValueError\n"
    done = run("run", "--fast", "1GiB", script(tmp_path, body), **DISABLED)
    assert (done.returncode, done.stdout) == (1, "hooked ValueError\n")


HOOKS = {
    "fails": "def fails(*_): raise KeyError('in the hook')\nsys.excepthook = fails",
    "is none": "sys.excepthook = None",
    "is gone": "del sys.excepthook",
    "exits": "sys.excepthook = lambda *_: sys.exit(7)",
    "exits with a text": "sys.excepthook = lambda *_: sys.exit('told')",
    "is Python's": "",
}


@pytest.mark.parametrize("hook", HOOKS)
def test_an_error_ends_a_script_as_under_python_whatever_its_excepthook_does(tmp_path: Path, hook: str) -> None:
    lasts = "atexit.register(lambda: print(sys.last_type, sys.last_value))"
    path = script(tmp_path, f"import atexit, sys\n{HOOKS[hook]}\n{lasts}\n1 / 0\n")
    ours = run("run", "--fast", "1GiB", "--quiet", path, **DISABLED)
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    assert [line for line in ours.stderr.splitlines() if not line.startswith("ebbtide: ")] == plain.stderr.splitlines()
    assert "division by zero" in plain.stdout


@pytest.mark.parametrize("command", [["-m", "ebbtide"], [str(Path(sys.executable).with_name("ebbtide"))]])
def test_a_script_finds_its_own_modules_by_names_that_ebbtide_knows_others_by(
    tmp_path: Path, command: list[str]
) -> None:
    for name in ("html", "resource", "click", "tomllib/__init__"):
        script(tmp_path, "x = __name__ + ', the script\\'s'", f"{name}.py")
    names = ("html", "resource", "click", "tomllib")
    imports = "".join(f"import {name}\nprint({name}.x)\n" for name in names)
    path = script(tmp_path, f"import torch\n{imports}torch.ones(2)\n")
    words = [sys.executable, *command, "run", "--fast", "1GiB", "--quiet", path]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout) == (0, "".join(f"{name}, the script's\n" for name in names)), done.stderr


def test_a_script_is_found_as_the_kernel_finds_it(tmp_path: Path) -> None:
    for folder in ("here", "other/sub"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "here/link").symlink_to("../other/sub")
    script(tmp_path / "here", "print('here')")
    script(tmp_path / "other", "print('other', __file__)")
    ours = run("run", "--fast", "1GiB", "--quiet", "link/../train.py", cwd=tmp_path / "here", **DISABLED)
    words = [sys.executable, "link/../train.py"]
    plain = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path / "here", check=True)
    assert (ours.stdout, ours.returncode) == (plain.stdout, 0)
    assert plain.stdout.startswith("other")


def test_multiprocessing_spawn_finds_the_scripts_functions(tmp_path: Path) -> None:
    body = """
        import multiprocessing

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(pool.map(double, [1, 2, 3]))
    """
    path = script(tmp_path, body)
    for command in ([path], ["-m", "train"]):
        done = run("run", "--fast", "1GiB", *command, cwd=tmp_path, **DISABLED)
        assert (done.returncode, done.stdout) == (0, "[2, 4, 6]\n"), done.stderr


ODD_ENDS = {
    "a text that fails": """
        class Odd:
            def __str__(self):
                raise RuntimeError
        sys.exit(Odd())
    """,
    "no standard error": "sys.stderr = None; sys.exit('told')",
    "a status that is none": """
        for wrong in ((), ("x",), (2**40,), (1, 2)):
            try:
                os._exit(*wrong)
            except (TypeError, OverflowError) as error:
                assert "leave" not in str(error)
                print(type(error).__name__, flush=True)
        os._exit(status=5)
    """,
}


@pytest.mark.parametrize("odd", sorted(ODD_ENDS))
def test_an_odd_end_is_as_in_python(odd: str, tmp_path: Path) -> None:
    train = script(tmp_path, "import os, sys\n" + dedent(ODD_ENDS[odd]))
    plain = subprocess.run([sys.executable, train], capture_output=True, text=True, check=False)
    done = run("run", "-q", "--report", "out.json", train, cwd=tmp_path, **DISABLED)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert done.stderr.rstrip("\n").endswith(plain.stderr.rstrip("\n"))
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out.json").exists()
