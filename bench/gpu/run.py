"""Builds the probe and runs its phases, each in processes of its own with a time limit, into a folder of results.

    python bench/gpu/run.py --out RESULTS               # with an NVIDIA GPU: two halves of some minutes
    python bench/gpu/run.py --out RESULTS --half 1      # what the design hangs on most; --half 2: the rest
    python bench/gpu/run.py --out RESULTS --fake        # without a GPU: the same code over the fake driver and the CPU

Needs g++, cuda.h (from a toolkit or the package nvidia-cuda-runtime) and PyTorch, no nvcc. Left out: choosing a device.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
CRASHES = [
    "load_unmapped", "store_unmapped", "load_read_only", "store_read_only", "atomic_read_only", "copy_into_read_only",
    "copy_from_unmapped", "unmap_under_reader", "remap_under_reader",
]  # fmt: skip
PROBE_SOURCES = ["probe", "tools", "phases_memory", "phases_load", "phases_rules", "round_trip"]


@dataclass(frozen=True, slots=True)
class Phase:
    """``seconds``: after so many it is ended, and what it printed stays. ``torch``: a phase of probe.py."""

    name: str
    seconds: int
    half: int
    torch: bool = False


# In the order in which the design hangs on them.
PHASES = [
    Phase("environment", 30, 1, torch=True),
    Phase("attributes", 15, 1),
    Phase("costs", 60, 1),
    Phase("stalls", 60, 1),
    Phase("homes", 40, 1),
    Phase("reflow", 30, 1),
    *(Phase(f"crash:{which}", 10, 1) for which in CRASHES),
    Phase("tickets", 20, 1),
    Phase("round_trip", 60, 1),
    Phase("link", 100, 1),
    Phase("host_net", 20, 1),
    Phase("bits", 200, 2, torch=True),
    Phase("dispatch", 90, 2, torch=True),
    Phase("baselines", 110, 2, torch=True),
    Phase("compiled", 80, 2, torch=True),
    Phase("hook", 30, 2, torch=True),
    Phase("reach", 30, 2, torch=True),
]


def include_folders() -> list[Path]:
    """Where cuda.h lies: a toolkit, or a package of NVIDIA's beside torch."""
    named = [Path(os.environ["CUDA_HOME"]) / "include"] if "CUDA_HOME" in os.environ else []
    packages = [Path(p) / "nvidia" for p in sys.path]
    found = [*named, Path("/usr/local/cuda/include"), *(f for p in packages for f in sorted(p.glob("*/include")))]
    return [folder for folder in found if (folder / "cuda.h").exists() or (folder / "cupti.h").exists()]


def nvidia_libraries(name: str) -> Iterator[Path]:
    for folder in sys.path:
        yield from sorted((Path(folder) / "nvidia").glob(f"*/lib/{name}"))


def build(folder: Path, torch: Path | None) -> dict[str, str]:
    """What could not be built, by name: phases that need it fail with their own sentence.

    NDEBUG as in PyTorch's own builds: without it ``at::RecordFunction`` has another layout here than there.
    """
    base = ["g++", "-std=c++20", "-O1", "-DNDEBUG", *(f"-I{f}" for f in include_folders())]
    shared = [*base, "-shared", "-fPIC"]
    table = str(HERE.parents[1] / "native" / "device" / "driver.cpp")
    sources = [table, *(str(HERE / f"{name}.cpp") for name in PROBE_SOURCES)]
    commands = {
        "probe": [*base, *sources, "-o", str(folder / "probe"), "-ldl", "-pthread"],
        "libfake_cuda.so": [*shared, str(HERE / "fake_cuda.cpp"), "-o", str(folder / "libfake_cuda.so"), "-pthread"],
        "vmm_allocator.so": [
            *shared,
            table,
            str(HERE / "vmm_allocator.cpp"),
            "-o",
            str(folder / "vmm_allocator.so"),
            "-ldl",
        ],
    }
    if torch is not None:
        libraries = [f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-ltorch_cpu", "-lc10", "-ldl"]
        source = str(HERE / "hook.cpp")
        headers = f"-isystem{torch / 'include'}"
        commands["hook.so"] = [*shared, headers, source, "-o", str(folder / "hook.so"), *libraries]
    running = {name: subprocess.Popen(c, stderr=subprocess.PIPE, text=True) for name, c in commands.items()}
    failed = {}
    for name, process in running.items():
        _, errors = process.communicate()
        if process.returncode != 0:
            failed[name] = errors[-2000:]
    return failed


def commit() -> str:
    answer = subprocess.run(["git", "-C", HERE, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or os.environ.get("EBBTIDE_COMMIT", "unknown")


def installed_torch() -> Path | None:
    command = [sys.executable, "-c", "import torch; print(torch.__file__)"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return Path(answer.stdout.strip()).parent if answer.returncode == 0 else None


def carry_out(command: list[str], lines: IO[str], log: IO[str], environment: dict[str, str], limit: float) -> str:
    """With what it started itself: a phase that is stopped leaves nothing behind on the device."""
    process = subprocess.Popen(command, stdout=lines, stderr=log, env=environment, start_new_session=True)
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return "ended" if code == 0 else f"failed with {code}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for results: a file of JSON lines a phase")
    parser.add_argument("--half", type=int, choices=[1, 2])
    parser.add_argument("--only", nargs="*", help="these phases alone")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no phase starts")
    parser.add_argument("--fake", action="store_true", help="the fake driver and the CPU: no figure means anything")
    given = parser.parse_args()
    began = time.monotonic()
    given.out.mkdir(parents=True, exist_ok=True)
    binaries = given.out / "build"
    binaries.mkdir(exist_ok=True)
    phases = [p for p in PHASES if given.half in (None, p.half) and (given.only is None or p.name in given.only)]
    failed = build(binaries, installed_torch() if any(p.torch for p in phases) else None)
    for name, errors in failed.items():
        print(f"could not build {name}:\n{errors}", file=sys.stderr)
    driver = str(binaries / "libfake_cuda.so") if given.fake else "libcuda.so.1"
    cublas = next((str(p) for name in ("libcublas.so.13", "libcublas.so.12") for p in nvidia_libraries(name)), None)
    environment = os.environ | {
        "EBBTIDE_PROBE_ALLOCATOR": str(binaries / "vmm_allocator.so"),
        "EBBTIDE_PROBE_HOOK": str(binaries / "hook.so"),
        "EBBTIDE_PROBE_DRIVER": driver,
    }
    if given.fake:
        environment["FAKE_CUDA_LENIENT"] = "1"  # the crash phase unmaps under a reader
    whole: dict[str, object] = {
        "began": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(), "fake": given.fake,
        "cpus": os.cpu_count(), "kernel": platform.release(), "not_built": sorted(failed), "phases": {},
    }  # fmt: skip
    answers: dict[str, object] = {}
    for phase in phases:
        if time.monotonic() - began > given.limit:
            answers[phase.name] = "not started: the time was over"
            continue
        if phase.torch:
            command = [sys.executable, str(HERE / "probe.py"), phase.name]
            command += ["--device", "cpu", "--small"] if given.fake else []
        else:
            command = [str(binaries / "probe"), phase.name, "--library", driver, "--folder", str(given.out)]
            command += ["--small"] if given.fake else ["--cublas", cublas] if cublas else []
        start = time.monotonic()
        name = phase.name.replace(":", ".")
        with (given.out / f"{name}.jsonl").open("w") as lines, (given.out / f"{name}.log").open("w") as log:
            try:
                limit = min(phase.seconds, max(1.0, given.limit - (start - began)))
                answer = carry_out(command, lines, log, environment, limit)
            except subprocess.TimeoutExpired:
                answer = f"stopped after {limit:.0f} s"
            except OSError as error:
                answer = f"could not start: {error}"
        answers[phase.name] = {"answer": answer, "seconds": round(time.monotonic() - start, 1)}
        print(f"{phase.name}: {answer} in {time.monotonic() - start:.1f} s", flush=True)
        whole["phases"] = answers
        (given.out / "run.json").write_text(json.dumps(whole, indent=1))
    return 0 if all(isinstance(a, dict) and a["answer"] == "ended" for a in answers.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
