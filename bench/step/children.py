"""One cell's child process: how it is started, what is seen of it from outside, and what came of it.

A child that fails raises CellFailed: its first line is the reason, what follows is what the child printed last.
Sizes are bytes, times seconds.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from bench.step.cells import STEADY_STEPS, Cell, Door
from demo.runs import TUNABLES
from tests.helpers.faulty_disk import build, slow_environment
from tests.helpers.memory_cgroup import MemoryCgroup, NotPermitted, memory_cgroup

ROOT = Path(__file__).resolve().parents[2]
SAMPLE_S = 0.02
SPARE_BYTES = 10**9  # what the machine must have left when a run is at its peak
SWAP_LIMIT_OVER_PEAK = 1.1  # the kernel charges page tables and the page cache too
_LAST_LINES = 30


class CellFailed(Exception):
    """A cell that cannot be measured here, or whose child did not train; the text says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where children work: ``folder`` for their files, ``spill`` a directory on a real disk.

    ``deepspeed_python`` is the interpreter that has DeepSpeed, if any. ``swap_bytes`` is how large a swap file may be
    made while a swap cell runs (0: only swap that is there already is used). ``limit_s`` bounds a child's time.
    ``disk_bytes_per_s`` bounds what Ebbtide reads and what it writes (0: the disk does).
    """

    folder: Path
    spill: Path
    deepspeed_python: Path | None
    swap_bytes: int
    limit_s: float
    disk_bytes_per_s: int = 0


def run_child(
    cell: Cell, steps: int, place: Place, peak_at_budget: int | None = None, waits: bool = True
) -> dict[str, Any]:
    """Trains ``steps`` steps, of which the last ``STEADY_STEPS`` count. ``peak_at_budget`` is what Ebbtide's process
    peaked at under ``cell.fast``: the limit of a SWAP cell. ``waits``: for plans, which a user does not.
    Raises CellFailed."""
    _check_fits(cell)
    result, report = place.folder / "result.json", place.folder / "report.json"
    for path in (result, report):
        path.unlink(missing_ok=True)
    began = time.monotonic()
    with ExitStack() as stack:
        scratch = stack.enter_context(TemporaryDirectory(dir=place.folder))  # what techniques leave behind goes with it
        command = _command(cell, steps, place, result, report, scratch)
        if cell.door is Door.SWAP:
            cgroup = stack.enter_context(_swapping_cgroup(peak_at_budget, place))
            command = cgroup.wrap(command)
        samples = _watch(command, _environment(cell, place, waits), place.limit_s)
    found = json.loads(result.read_text())
    ended = found.pop("ended_at")
    told = _shortened(json.loads(report.read_text())) if report.exists() else None
    if told is not None and cell.fast.endswith("%"):  # the whole process's has the steps that find the peak
        found["peak_bytes"] = told["process_peak_bytes"]
    steady = [resident for at, resident in samples if ended[-1 - STEADY_STEPS] <= at <= ended[-1]]
    return {
        "took_s": time.monotonic() - began,
        "mean_resident_bytes": round(mean(steady)) if steady else None,
        **found,
        "report": told,
    }


def _check_fits(cell: Cell) -> None:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    available = next(int(line[1]) * 1024 for line in lines if line[0] == "MemAvailable:")
    if cell.needed_bytes + SPARE_BYTES > available:
        raise CellFailed(
            f"needs about {cell.needed_bytes / 1e9:.1f} GB and {SPARE_BYTES / 1e9:.0f} GB to spare; "
            f"the machine has {available / 1e9:.1f} GB available"
        )


def _command(cell: Cell, steps: int, place: Place, result: Path, report: Path, scratch: str) -> list[str]:
    arguments = [cell.net.name, "--steps", str(steps), "--spill", scratch, "--result", str(result)]
    if cell.door is Door.DEEPSPEED:
        if place.deepspeed_python is None:
            raise CellFailed("no interpreter with DeepSpeed was named (--deepspeed-python)")
        python, script = place.deepspeed_python, ["-m", "bench.step.train_deepspeed", *arguments]
        script += ["--offload", cell.technique]
    else:
        python, script = Path(sys.executable), ["-m", "bench.step.train", *arguments, "--technique", cell.technique]
    if not cell.fast or cell.door is Door.SWAP:
        return [str(python), *script]
    ours = [str(python), "-m", "ebbtide", "run", "--fast", cell.fast_argument, "--policy", cell.policy]
    ours += ["--optimizer", cell.order]
    return [*ours, "--spill", str(place.spill), "--report", str(report), *script]


def _environment(cell: Cell, place: Place, waits: bool) -> Mapping[str, str]:
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES" and not k.startswith("EBBTIDE_")}
    environment["EBBTIDE_REMAKE"] = str(int(cell.remake))
    environment["EBBTIDE_WAIT_FOR_PLAN"] = str(int(waits))  # so that steps are counted from the one that is planned
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(place.folder / "inductor")  # one compilation for all pairs
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
    if cell.door is Door.EBBTIDE and place.disk_bytes_per_s:
        environment |= slow_environment(build(place.folder), place.disk_bytes_per_s)
    if cell.door is Door.TUNED:
        environment["GLIBC_TUNABLES"] = ":".join(f"{key}={value}" for key, value in TUNABLES.items())
    return environment


def _watch(command: list[str], environment: Mapping[str, str], limit_s: float) -> list[tuple[float, int]]:
    """Moments (monotonic clock) and VmRSS of the child, until it ends. Raises CellFailed when it ends badly."""
    samples: list[tuple[float, int]] = []
    log = Path(environment["TORCHINDUCTOR_CACHE_DIR"]).parent / "child.log"
    with log.open("w") as output:
        child = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        deadline = time.monotonic() + limit_s
        try:
            while child.poll() is None:
                if time.monotonic() > deadline:
                    raise CellFailed(f"not finished after {limit_s / 60:.0f} minutes: {_reason(log)}\n{_tail(log)}")
                resident = _resident_bytes(child.pid)
                if resident is not None:
                    samples.append((time.monotonic(), resident))
                time.sleep(SAMPLE_S)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if child.returncode != 0:
        raise CellFailed(f"{_how(child.returncode)}: {_reason(log)}\n{_tail(log)}")
    return samples


def _how(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"


def _reason(log: Path) -> str:
    """Its last error, which Ebbtide's summary follows, else its last line."""
    lines = [line for line in reversed(_tail(log).splitlines()) if line.strip()]
    return next((line for line in lines if "error: " in line), next(iter(lines), "it printed nothing"))


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:])


def _resident_bytes(pid: int) -> int | None:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _shortened(report: dict[str, Any]) -> dict[str, Any]:
    """Without what the figures do not need: each step's traffic by kind, and the list of storages left alone."""
    steps = [
        {key: step[key] for key in ("wall_s", "cpu_s", "mode", "minor_faults", "made_anew_bytes", "made_anew_s")}
        | {"stall_s": sum(step["stall_s"].values())}
        | {key: step[key]["total"] for key in ("evicted_bytes", "fetched_bytes", "written_bytes")}
        for step in report["steps"]
    ]
    return {key: value for key, value in report.items() if key not in ("steps", "outside")} | {"steps": steps}


# ---- the kernel's swap -----------------------------------------------------------------------------------------------


@contextmanager
def _swapping_cgroup(peak_at_budget: int | None, place: Place) -> Iterator[MemoryCgroup]:
    if peak_at_budget is None:
        raise CellFailed("its limit is the peak that Ebbtide has at the same budget: measure that cell first")
    with ExitStack() as stack:
        try:
            cgroup = stack.enter_context(memory_cgroup(int(peak_at_budget * SWAP_LIMIT_OVER_PEAK)))
        except NotPermitted as why:
            raise CellFailed(str(why)) from why
        _allow_swap(cgroup.path)
        if not _swap_free_bytes():
            stack.enter_context(_swap_file(place))
        yield cgroup


def _allow_swap(cgroup: Path) -> None:
    """Lifts the limit on swap that memory_cgroup sets (memory and swap together on cgroup v1)."""
    for name, unlimited in (("memory.swap.max", "max"), ("memory.memsw.limit_in_bytes", "-1")):
        if (cgroup / name).exists():
            (cgroup / name).write_text(unlimited)


def _swap_free_bytes() -> int:
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return next(int(line[1]) * 1024 for line in lines if line[0] == "SwapFree:")


@contextmanager
def _swap_file(place: Place) -> Iterator[None]:
    """A swap file in the spill directory, for the whole machine while this lasts; it needs root."""
    if not place.swap_bytes:
        raise CellFailed("the machine has no swap; --swap-file SIZE makes a file for it while it is needed (as root)")
    path = place.spill / f"ebbtide-bench-{os.getpid()}.swap"
    if shutil.disk_usage(place.spill).free < 2 * place.swap_bytes:
        raise CellFailed(f"{place.spill} has too little room for a swap file of {place.swap_bytes / 1e9:.0f} GB")
    try:
        with path.open("wb") as file:
            path.chmod(0o600)
            os.posix_fallocate(file.fileno(), 0, place.swap_bytes)
        for command in (["mkswap", str(path)], ["swapon", str(path)]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise CellFailed(f"{command[0]} was refused: {done.stderr.strip()}")
        try:
            yield
        finally:
            subprocess.run(["swapoff", str(path)], check=True)
    finally:
        path.unlink(missing_ok=True)
