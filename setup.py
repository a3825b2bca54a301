"""Builds the native modules: ``ebbtide._torch`` against the torch of the interpreter that is installed into, and two
that load no torch (they are compiled with the pybind11 that it brings). These are ``ebbtide._planning``, for the
simulator and the search, and ``ebbtide._objects``, which finds Python's objects.

torch is never imported and never a build requirement: under an isolated build its files are found through the target
interpreter's own paths, so ``pip install .`` neither fetches a second torch nor links against the wrong one. Front ends
that build with an interpreter of their own (``python -m build``, uv) leave the activated environment's name alone: its
torch is taken where the interpreter has none.

Objects and links are of one torch, which a wheel asks for. It holds no debug information.
"""

from __future__ import annotations

import os
import platform
import re
import runpy
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.egg_info import egg_info

ROOT = Path(__file__).resolve().parent
TORCH = runpy.run_path(str(ROOT / "src/ebbtide/host/torch_versions.py"))
JOBS = min(len(os.sched_getaffinity(0)), 4)  # each takes up to 2 GiB
TOGETHER = 12  # files of a folder that are compiled as one: most of a file's time goes into torch's headers
COMMON = ("-fvisibility=hidden", "-pthread", "-Wall", "-Wextra")


def batched(items: list[str], size: int) -> Iterator[list[str]]:
    return (items[i : i + size] for i in range(0, len(items), size))


def native_files(pattern: str, *parts: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for part in parts for path in (ROOT / "native" / part).glob(pattern))


def stop(problem: str, remedy: str) -> SystemExit:
    return SystemExit(f"\nEbbtide cannot be built here: {problem}.\nWhat to do: {remedy}.\n")


def check_platform() -> None:
    if not sys.platform.startswith("linux"):
        raise stop(
            f"it runs on Linux only and this is {platform.system()}",
            "use a Linux machine, a Linux container or WSL 2",
        )
    if platform.machine() != "x86_64":
        raise stop(
            f"it supports x86-64 and this machine is {platform.machine()}",
            "use an x86-64 machine with a 64-bit Python",
        )
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if not headers.is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise stop(
            f"the C headers of Python {version} are missing ({headers})",
            f"install them (Debian and Ubuntu: python{version}-dev, Fedora: python{version}-devel)",
        )
    compiler = os.environ.get("CXX", "g++").split()[0]
    if shutil.which(compiler) is None:
        raise stop(
            f"there is no C++ compiler ({compiler} is not on the PATH)",
            "install g++ 10 or newer (Debian and Ubuntu: g++, Fedora: gcc-c++), or name another one in CXX",
        )


class Torch(NamedTuple):
    """An installed torch: its directory, its version (2.13.0+cpu), and the minor one of that (2.13)."""

    folder: Path
    version: str
    minor: str


def site_directories() -> list[Path]:
    """Where the target interpreter keeps packages, best first; an isolated build hides all of them from sys.path.

    Then the activated environment, if its Python is of this version.
    """
    base = {"base": sys.base_prefix, "platbase": sys.base_prefix}
    found = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path]
    found += [*site.getsitepackages(), site.getusersitepackages()]
    found += [sysconfig.get_path("purelib", vars=base), sysconfig.get_path("platlib", vars=base)]
    for active in filter(None, (os.environ.get("VIRTUAL_ENV"), os.environ.get("CONDA_PREFIX"))):
        paths = {"base": active, "platbase": active}
        found += [sysconfig.get_path("purelib", "venv", paths), sysconfig.get_path("platlib", "venv", paths)]
    return [Path(directory) for directory in dict.fromkeys(found) if directory]


def find_torch() -> Torch:
    """The first that is installed; stops where it is none that Ebbtide is for."""
    oldest, developed_with = TORCH["TRIED"][0], TORCH["DEVELOPED_WITH"]
    for directory in site_directories():
        version_file = directory / "torch" / "version.py"
        if not version_file.is_file():
            continue
        match = re.search(r"^__version__ = '([^']+)'", version_file.read_text(), re.MULTILINE)
        version = match.group(1) if match else "unknown"
        minor = TORCH["minor_of"](version)
        if TORCH["is_older"](minor):
            raise stop(
                f"it needs torch {oldest} or newer and {directory} holds torch {version}",
                f'pip install "torch=={developed_with}.*", then install Ebbtide again',
            )
        return Torch(directory / "torch", version, minor)
    raise stop(
        f"torch is not installed for {sys.executable}",
        f'pip install "torch=={developed_with}.*" first. If it is installed in the environment that you build in, this'
        " build does not see that: build with --no-build-isolation (pip, uv) or --no-isolation (python -m build), or"
        " activate the environment",
    )


class BuildNative(build_ext):
    """Compiles stale objects only, JOBS at a time, and links against the torch that is there."""

    def run(self) -> None:
        check_platform()
        self.torch = find_torch()
        if TORCH["is_newer"](self.torch.minor):
            self.warn(TORCH["not_tried"](self.torch.version))
        self.compiles_all, self.force = self.force, True  # a link is of one torch, and of a clone or a wheel
        self.stays_in_clone = bool(self.inplace or getattr(self, "editable_mode", False))
        # Editable and in-place builds, which pip would do in a temporary directory, share their objects. Another torch
        # has others, even of _planning: it brings another pybind11, and objects of two of its versions do not mix.
        name = f"native.{self.plat_name}-{sys.implementation.cache_tag}-torch{self.torch.version}"
        self.build_temp = str(ROOT / "build" / name)
        if self.inplace:  # linked for the clone: a wheel must not pick it up as its own
            self.build_lib = str(Path(self.build_temp) / "in-place")
        super().run()

    def build_extension(self, ext: Extension) -> None:
        for headers in ("include", "include/torch/csrc/api/include"):
            ext.extra_compile_args += ["-isystem", str(self.torch.folder / headers)]  # whose warnings are not ours
        ext.define_macros.append(("EBBTIDE_BUILT_FOR_TORCH", f'"{self.torch.minor}"'))
        if ext.libraries:
            ext.library_dirs.append(str(self.torch.folder / "lib"))
            ext.extra_link_args.append(f"-Wl,-rpath,$ORIGIN/{self.libraries_from_module()}")
        if not self.stays_in_clone:
            ext.extra_link_args.append("-Wl,--strip-debug")
        self.parts = dict(self.units(ext))
        ext.sources = list(self.parts)
        self.compiler.compile = self.compile_stale
        super().build_extension(ext)

    def libraries_from_module(self) -> str:
        """torch's libraries relative to the module: next door when installed, in the environment when in a clone."""
        if not self.stays_in_clone:
            return "../torch/lib"
        return os.path.relpath(self.torch.folder / "lib", ROOT / "src/ebbtide")

    def units(self, ext: Extension) -> Iterator[tuple[str, list[str]]]:
        """What is compiled, each with the files that it includes: a folder's files by name, TOGETHER at a time."""
        for folder, files in groupby(ext.sources, os.path.dirname):
            for number, part in enumerate(batched(list(files), TOGETHER)):
                unit = Path(self.build_temp) / "units" / ext.name / f"{Path(folder).name}.{number}.cpp"
                text = "".join(f'#include "{os.path.relpath(path, "native")}"\n' for path in part)
                if not unit.exists() or unit.read_text() != text:
                    unit.parent.mkdir(parents=True, exist_ok=True)
                    unit.write_text(text)
                yield os.path.relpath(unit, ROOT), part

    def compile_stale(
        self,
        sources: list[str],
        output_dir: str | None = None,
        macros: list[tuple[str, str | None]] | None = None,
        include_dirs: list[str] | None = None,
        debug: bool = False,
        extra_preargs: list[str] | None = None,
        extra_postargs: list[str] | None = None,
        depends: list[str] | None = None,
    ) -> list[str]:
        """Stands in for the compiler's own ``compile``, which builds everything, one file after another."""
        compiler = self.compiler
        macros, objects, postargs, options, build = compiler._setup_compile(
            output_dir, macros, include_dirs, sources, depends, extra_postargs
        )
        preargs = compiler._get_cc_args(options, debug, extra_preargs)
        newest_shared = max(os.path.getmtime(path) for path in [__file__, *(depends or [])])

        def is_stale(target: str, source: str) -> bool:
            newest = max(newest_shared, *map(os.path.getmtime, [source, *self.parts[source]]))
            return self.compiles_all or not os.path.exists(target) or os.path.getmtime(target) < newest

        stale = [(target, *item) for target, item in build.items() if is_stale(target, item[0])]

        def compile_one(numbered: tuple[int, tuple[str, str, str]]) -> None:
            number, (target, source, extension) = numbered
            print(f"compiling {source} ({number} of {len(stale)})", flush=True)
            compiler._compile(target, source, extension, preargs, postargs, options)

        with ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(compile_one, enumerate(stale, 1)))
        return list(objects)


class Metadata(egg_info):
    """What is installed asks for the torch that it was built for, so that pip neither changes that nor takes another.

    Whoever asks for metadata alone comes here, too, so that without torch pip stops before it downloads anything. A
    source distribution is for any torch.
    """

    def finalize_options(self) -> None:
        here = self.distribution
        if "sdist" not in here.commands and here.commands != ["egg_info"]:
            only = f"torch=={find_torch().minor}.*"
            asked = [only if name.startswith("torch>") else name for name in here.install_requires]
            here.install_requires = here.metadata.install_requires = asked
        super().finalize_options()


def extension(name: str, sources: list[str], *parts: str, libraries: tuple[str, ...] = ()) -> Extension:
    """All are compiled alike, since they share objects.

    Without contraction of a product and a sum, the simulator's times are those of Python's floats on every processor.
    """
    return Extension(
        f"ebbtide.{name}",
        sources=sources,
        depends=native_files("*.h*", "core", *parts),
        include_dirs=["native"],
        define_macros=[
            ("TORCH_EXTENSION_NAME", "_torch"),
            ("_GLIBCXX_USE_CXX11_ABI", "1"),
            ("NDEBUG", None),
        ],
        libraries=list(libraries),
        extra_compile_args=["-std=c++20", "-O2", "-g1", "-ffp-contract=off", *COMMON],
        extra_link_args=["-pthread"],
        language="c++",
    )


setup(
    ext_modules=[
        extension(
            "_torch",
            [*native_files("[ov]*.cpp", "objects"), *native_files("*.cpp", "core", "torch")],
            "objects",
            "torch",
            "simulate",
            libraries=("c10", "torch_cpu", "torch_python"),
        ),
        extension(
            "_planning",
            ["native/core/decider.cpp", *native_files("*.cpp", "search", "simulate")],
            "search",
            "simulate",
        ),
        extension("_objects", native_files("*.cpp", "objects"), "objects"),
    ],
    cmdclass={"build_ext": BuildNative, "egg_info": Metadata},
)
