"""Builds the native modules: ``ebbtide._torch`` against the torch of the interpreter that is installed into, and
``ebbtide._decider``, for the simulator (whom to evict, and its engine), which loads no torch (it is compiled with the
pybind11 that torch brings).

torch is never imported and never a build requirement: under an isolated build its files are found through the target
interpreter's own paths, so ``pip install .`` neither fetches a second torch nor links against the wrong one.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import site
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
TORCH_VERSION = "2.13"
JOBS = 2
COMMON = ("-fvisibility=hidden", "-pthread", "-Wall", "-Wextra")


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
    if platform.machine() not in ("x86_64", "aarch64"):
        raise stop(
            f"it supports x86-64 and arm64 and this machine is {platform.machine()}",
            "use an x86-64 or arm64 machine with a 64-bit Python",
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


def site_directories() -> list[Path]:
    """Where the target interpreter keeps packages, best first; an isolated build hides all of them from sys.path."""
    base = {"base": sys.base_prefix, "platbase": sys.base_prefix}
    found = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path]
    found += [*site.getsitepackages(), site.getusersitepackages()]
    found += [sysconfig.get_path("purelib", vars=base), sysconfig.get_path("platlib", vars=base)]
    return [Path(directory) for directory in dict.fromkeys(found) if directory]


def find_torch() -> Path:
    """The directory of the installed torch, of the one version that the native module is written for."""
    for directory in site_directories():
        version_file = directory / "torch" / "version.py"
        if not version_file.is_file():
            continue
        match = re.search(r"^__version__ = '([^']+)'", version_file.read_text(), re.MULTILINE)
        version = match.group(1) if match else "unknown"
        if not version.startswith(f"{TORCH_VERSION}."):
            raise stop(
                f"it needs torch {TORCH_VERSION} and {directory} holds torch {version}",
                f'pip install "torch=={TORCH_VERSION}.*", then install Ebbtide again',
            )
        return directory / "torch"
    raise stop(
        f"torch is not installed for {sys.executable}",
        f'pip install "torch=={TORCH_VERSION}.*" first (if it is installed elsewhere, build with --no-build-isolation)',
    )


class BuildNative(build_ext):
    """Compiles stale objects only, JOBS at a time, and links against the torch that is there."""

    def run(self) -> None:
        check_platform()
        self.stays_in_clone = bool(self.inplace or getattr(self, "editable_mode", False))
        # Editable and in-place builds, which pip would do in a temporary directory, share their objects.
        self.build_temp = str(ROOT / "build" / f"native.{self.plat_name}-{sys.implementation.cache_tag}")
        if self.inplace:  # linked for the clone: a wheel must not pick it up as its own
            self.build_lib = str(Path(self.build_temp) / "in-place")
        super().run()

    def build_extension(self, ext: Extension) -> None:
        torch = find_torch()
        for headers in ("include", "include/torch/csrc/api/include"):
            ext.extra_compile_args += ["-isystem", str(torch / headers)]  # whose warnings are not ours
        if ext.libraries:
            ext.library_dirs.append(str(torch / "lib"))
            ext.extra_link_args.append(f"-Wl,-rpath,$ORIGIN/{self.libraries_from_module(torch)}")
        self.compiler.compile = self.compile_stale
        super().build_extension(ext)

    def libraries_from_module(self, torch: Path) -> str:
        """torch's libraries relative to the module: next door when installed, in the environment when in a clone."""
        return os.path.relpath(torch / "lib", ROOT / "src/ebbtide") if self.stays_in_clone else "../torch/lib"

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

        def compile_one(item: tuple[str, tuple[str, str]]) -> None:
            target, (source, extension) = item
            newest = max(newest_shared, os.path.getmtime(source))
            if self.force or not os.path.exists(target) or os.path.getmtime(target) < newest:
                compiler._compile(target, source, extension, preargs, postargs, options)

        with ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(compile_one, build.items()))
        return list(objects)


def extension(name: str, sources: list[str], *parts: str, libraries: tuple[str, ...] = ()) -> Extension:
    """All are compiled alike, since they share objects.

    Without contraction of a product and a sum, the simulator's times are those of Python's floats on every processor.
    """
    return Extension(
        f"ebbtide.{name}",
        sources=sources,
        depends=native_files("*.h*", "core", *parts),
        include_dirs=["native"],
        define_macros=[("TORCH_EXTENSION_NAME", "_torch"), ("_GLIBCXX_USE_CXX11_ABI", "1"), ("NDEBUG", None)],
        libraries=list(libraries),
        extra_compile_args=["-std=c++20", "-O2", "-g1", "-ffp-contract=off", *COMMON],
        extra_link_args=["-pthread"],
        language="c++",
    )


setup(
    ext_modules=[
        extension(
            "_torch",
            native_files("*.cpp", "core", "torch"),
            "torch",
            libraries=("c10", "torch_cpu", "torch_python"),
        ),
        extension("_decider", ["native/core/decider.cpp", *native_files("*.cpp", "simulate")], "simulate"),
    ],
    cmdclass={"build_ext": BuildNative},
)
