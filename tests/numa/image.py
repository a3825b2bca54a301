"""The guest's disk: this interpreter, what Ebbtide depends on, and Ebbtide, each where it lies here, for `chroot`.

What is installed is linked, not copied, where the filesystem allows it. The libraries of the system that all this loads
come along. Left out: a compiler, so nothing is compiled in the guest.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import ebbtide

HERE = Path(__file__).parent
LEFT_OUT = {"site-packages", "test", "tests", "include", "__pycache__", "idlelib", "ensurepip"}


def stage(tree: Path) -> None:
    """The disk's files, in a folder."""
    shutil.rmtree(tree, ignore_errors=True)
    for folder in ("dev", "etc", "proc", "root", "spill", "sys", "tmp"):
        (tree / folder).mkdir(parents=True)
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    interpreter = Path(sys.executable).resolve()
    sources = [interpreter, *_files(Path(sysconfig.get_path("stdlib"))), *_files(Path(ebbtide.__file__).parent)]
    for name in sorted(_depends_on("ebbtide") - {"ebbtide"}):
        sources += [Path(str(file.locate())).resolve() for file in importlib.metadata.files(name) or ()]
    sources = [source for source in sources if source.is_file() and source.suffix not in (".a", ".h", ".pyc")]
    for source in {*sources, *_libraries(interpreter, sources)}:
        _link(source, tree / str(source).lstrip("/"))
    for name in ("train.py", "train.sh", "check.py"):
        shutil.copy(HERE / name, tree / name)
    path = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(Path(ebbtide.__file__).parents[1])]
    (tree / "environment").write_text(f"export PYTHON={interpreter} PYTHONPATH={':'.join(dict.fromkeys(path))}\n")


def _files(folder: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from (Path(at) / name for name in names)


def _depends_on(name: str) -> set[str]:
    """The installed distributions that this one needs, itself among them; extras are not asked for."""
    found: set[str] = set()
    todo = [name]
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            requires = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:  # for another system
            continue
        found.add(name)
        todo += [re.split(r"[^\w.-]", line)[0] for line in requires if "extra ==" not in line]
    return found


def _libraries(interpreter: Path, sources: list[Path]) -> set[Path]:
    programs = [interpreter, *(source for source in sources if ".so" in source.name)]
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True).stdout
    return {Path(path) for path in re.findall(r"(/\S+) \(0x", said)}


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        return
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copy2(source, target)
