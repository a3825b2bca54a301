"""What an installation finds, refuses and makes: which torch is built against, what a wheel and its source hold."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from types import ModuleType

import pytest
import setuptools

import ebbtide
from ebbtide._planning import BUILT_FOR_TORCH
from ebbtide.host.torch_versions import DEVELOPED_WITH, TRIED
from tests.helpers.paths import ROOT
from tests.versions.try_them import HEADINGS, SUITE, Tried, outcome, pairs

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TAG = f"--tag-build=+torch{BUILT_FOR_TORCH}"
PAGE = ROOT / "bench" / "results" / "2026-11-25_torch-versions.md"


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """setup.py as a module; nothing is set up."""
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    spec = importlib.util.spec_from_file_location("the_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install(folder: Path, version: str) -> Path:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "version.py").write_text(f"__all__ = []\n__version__ = '{version}'\ndebug = False\n")
    return folder


@pytest.mark.parametrize("version", ["2.10.2+cu128", "1.13.1", "2.9.0"])
def test_an_older_torch_is_refused(
    version: str, setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(setup, "site_directories", lambda: [install(tmp_path, version)])
    with pytest.raises(SystemExit, match=r"needs torch 2\.11 or newer(.|\n)*pip install \"torch==2\.13\.\*\""):
        setup.find_torch()


@pytest.mark.parametrize("version", ["2.11.0", "2.15.0+cu132", "2.16.0a0+git1"])
def test_others_are_taken_and_the_nearest_is(
    version: str, setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        setup,
        "site_directories",
        lambda: [tmp_path, install(tmp_path / "one", version), install(tmp_path / "two", "1.0")],
    )
    assert setup.find_torch() == (tmp_path / "one" / "torch", version, ".".join(version.split(".")[:2]))


def test_without_torch_the_remedy_has_the_flag_of_each_front_end(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(setup, "site_directories", lambda: [tmp_path])
    with pytest.raises(SystemExit) as stopped:
        setup.find_torch()
    assert "--no-build-isolation (pip, uv)" in str(stopped.value)
    assert "--no-isolation (python -m build)" in str(stopped.value)


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_activated_environment_is_looked_into_last(
    variable: str, setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    without = setup.site_directories()
    monkeypatch.setenv(variable, str(tmp_path))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert setup.site_directories() == [*without, tmp_path / "lib" / version / "site-packages"]


def test_the_oldest_torch_is_the_one_that_pip_asks_for_and_there_is_no_newest() -> None:
    """With a bound above, pip would change the torch of whoever has a newer one."""
    (asked,) = (named for named in PROJECT["dependencies"] if named.startswith("torch"))
    assert asked == f"torch>={TRIED[0]}"
    assert f'"torch=={DEVELOPED_WITH}.0"' in (ROOT / "Makefile").read_text()
    assert f"torch {TRIED[0]}-{TRIED[-1]}" in (ROOT / "README.md").read_text()


def test_the_page_has_a_row_for_each_torch() -> None:
    table = PAGE.read_text().split(f"| {' | '.join(HEADINGS)} |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (\d+\.\d+)\.\S* \|", table, re.MULTILINE)
    assert sorted(set(rows)) == list(TRIED)


def test_the_citation_has_the_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {ebbtide.__version__}\n" in citation
    assert f"## {ebbtide.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_suite_of_make_versions_is_there() -> None:
    for each in SUITE:
        path, _, name = each.partition("::")
        assert (ROOT / path).exists(), each
        assert not name or f"def {name}(" in (ROOT / path).read_text(), each


def test_what_make_versions_says_of_a_suite() -> None:
    assert outcome("....\n12 passed, 1 skipped in 3.20s\n") == "12 passed, 1 skipped"
    assert outcome("==== 1 failed, 12 passed, 2 warnings in 63.20s (0:01:03) ====") == "1 failed, 12 passed, 2 warnings"
    assert outcome("Traceback: no such file") == "none ran"
    for tests, passed in {"12 passed": True, "1 failed, 12 passed": False, "12 passed, 1 error": False}.items():
        assert Tried("2.15.0", "3.11.7", True, tests).passed is passed
    assert not Tried("2.15.0", "3.11.7", True, "none ran").passed
    assert not Tried("2.15.0", "3.11.7", False, "none").passed
    assert list(pairs(["2.11", "2.15"], ["a", "b"])) == [("2.11", "a"), ("2.15", "a"), ("2.15", "b")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and a source distribution of this clone; objects that are up to date are just linked."""
    folder = tmp_path_factory.mktemp("made")
    dist = ["--dist-dir", str(folder)]
    wheel = ["egg_info", "--egg-base", str(folder), TAG, "bdist_wheel", "--bdist-dir", str(folder / "unpacked"), *dist]
    for command in (["sdist", *dist], wheel):
        setup = [sys.executable, "setup.py", "--quiet", *command]
        finished = subprocess.run(setup, cwd=ROOT, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stderr
    return folder


@pytest.mark.starts
@pytest.mark.slow
def test_a_wheel_asks_for_its_torch_and_holds_no_debug_information(made: Path, tmp_path: Path) -> None:
    (wheel,) = made.glob("*.whl")
    version = f"{ebbtide.__version__}+torch{BUILT_FOR_TORCH}"
    assert wheel.name.startswith(f"ebbtide-{version}-cp3")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        native = [name for name in names if name.endswith(".so")]
        modules = ["ebbtide/_objects", "ebbtide/_planning", "ebbtide/_torch"]
        assert sorted(name.split(".")[0] for name in native) == modules
        for name in native:
            sections = said(["readelf", "--section-headers", archive.extract(name, tmp_path)])
            assert ".text" in sections
            assert ".debug" not in sections
        (path,) = (name for name in native if "_torch" in name)
        assert "$ORIGIN/../torch/lib" in said(["readelf", "--dynamic", str(tmp_path / path)])
        metadata = archive.read(f"ebbtide-{version}.dist-info/METADATA").decode()
    check_metadata(metadata, version, f"torch=={BUILT_FOR_TORCH}.*")
    licences = {name.rsplit("/", 1)[1] for name in names if "/licenses/" in name}
    assert licences == {"LICENSE", "THIRD_PARTY.md", "plotly-license.txt", "pybind11.txt", "pytorch.txt"}
    assert "ebbtide/report/page/plotly-license.txt" in names


@pytest.mark.starts
@pytest.mark.slow
def test_of_wheels_for_all_torches_pip_takes_the_one_for_the_torch_that_is_asked_for(
    made: Path, tmp_path: Path
) -> None:
    (wheel,) = made.glob("*.whl")
    for minor in TRIED:
        copy_for(minor, wheel, tmp_path)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--upgrade",
        "--no-index",
        "--find-links",
        str(tmp_path),
    ]
    would = said([*pip, "ebbtide", f"torch=={BUILT_FOR_TORCH}.*"])
    assert f"Would install ebbtide-{ebbtide.__version__}+torch{BUILT_FOR_TORCH}\n" in would


def copy_for(minor: str, wheel: Path, folder: Path) -> None:
    """What pip reads of a wheel, as if it were for another torch."""

    def changed(text: str) -> str:
        return re.sub(rf"torch(==)?{re.escape(BUILT_FOR_TORCH)}", rf"torch\g<1>{minor}", text)

    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(folder / changed(wheel.name), "w") as copy:
        for name in source.namelist():
            if ".dist-info/" in name:
                copy.writestr(changed(name), changed(source.read(name).decode()))


@pytest.mark.starts
@pytest.mark.slow
def test_a_source_distribution_is_the_clone(made: Path) -> None:
    with tarfile.open(made / f"ebbtide-{ebbtide.__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        metadata = archive.extractfile(f"ebbtide-{ebbtide.__version__}/PKG-INFO")
        assert metadata is not None
        check_metadata(metadata.read().decode(), ebbtide.__version__, f"torch>={TRIED[0]}")
    for folder in ("src", "native", "tests", "docs", "bench", "demo", "examples", "licenses"):
        wanted = {
            str(path.relative_to(ROOT))
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix not in (".so", ".pyc") and ".egg-info" not in str(path)
        }
        assert wanted
        assert wanted <= names, folder
    assert {"README.md", "LICENSE", "Makefile", "pyproject.toml", "setup.py", "biome.json"} <= names
    assert {".ci/run", ".clang-format"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc", ".o"))]


def check_metadata(text: str, version: str, torch: str) -> None:
    metadata = Parser().parsestr(text)
    assert metadata["Version"] == version
    assert [name for name in metadata.get_all("Requires-Dist") if re.match(r"torch\W", name)] == [torch]
    assert metadata["Author"] == "The Ebbtide authors"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# Ebbtide")


def said(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} here")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
