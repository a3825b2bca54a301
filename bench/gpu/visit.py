"""A visit to a machine with a GPU, in two parts of at most seven minutes: does it work, and how well.

    python -m bench.gpu.visit 1 --out OUT        first: bits, and GPT-2 XL within shares of its peak
    python -m bench.gpu.visit 2 --out OUT        second: what plain PyTorch cannot hold, and what else people use;
                                                 then two nets on the machine's CPUs
    python -m bench.gpu.visit 1 --out OUT --rehearse      the same on the tests' device, with tiny nets

Each run is a process with a limit of its own. OUT gets results.json (every figure), summary.txt (a line for
each run, as they end) and the runs' outputs.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from demo.runs import TUNABLES

ROOT = Path(__file__).parents[2]
_REHEARSAL = (
    "import runpy, sys; from tests.device import lagging; lagging.load(); sys.argv = sys.argv[1:]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


@dataclass
class Run:
    """One run's outcome. ``status`` is its exit status, None after its limit."""

    name: str
    command: list[str]
    status: int | None = None
    took_s: float = 0.0
    lines: list[dict[str, Any]] = field(default_factory=list)
    report: dict[str, Any] | None = None
    end: str = ""

    @property
    def done(self) -> dict[str, Any] | None:
        return next((line for line in self.lines if line.get("what") == "done"), None)

    def told(self) -> str:
        said = f"status {self.status}" if self.status is not None else "LIMIT"
        if self.done is None:
            return f"{self.name:<28} {said}, {self.took_s:.0f} s: {self.end[-300:]}"
        times = sorted(self.done["times"][-3:])
        moved = ""
        if self.report is not None:
            last = self.report["steps"][-3:] or [{"evicted_bytes": {"total": 0}, "mode": "none"}]
            moved = f", {last[-1]['mode']}, out {last[-1]['evicted_bytes']['total'] >> 20} MiB"
        return (
            f"{self.name:<28} {said}, {self.took_s:.0f} s: {times[1]:.4f} s a step, state {self.done['state']}{moved}"
        )


class Visit:
    def __init__(self, out: Path, rehearses: bool, until_s: float) -> None:
        self._out, self.rehearses = out, rehearses
        self._ends = time.monotonic() + until_s
        self._device = "lagging" if rehearses else "cuda"
        self.runs: list[Run] = []
        out.mkdir(parents=True, exist_ok=True)

    def say(self, text: str) -> None:
        print(text, flush=True)
        with (self._out / "summary.txt").open("a") as file:
            file.write(text + "\n")

    def plain(self, name: str, net: str, *args: str, limit_s: float = 90) -> Run:
        return self._wait(self._start(name, self._python("bench.gpu.train", *self._net(net, args))), limit_s)

    def bounded(self, name: str, fast: str, net: str, *args: str, limit_s: float = 120, **env: str) -> Run:
        return self._wait(self._bounded(name, fast, net, *args, **env), limit_s)

    def beside(self, starts: Sequence[tuple[Any, ...]], limit_s: float) -> list[Run]:
        """Several at once: (name, budget or None, net, arguments, environment)."""
        begun = []
        for name, fast, net, args, env in starts:
            if fast is None:
                begun.append(self._start(name, self._python("bench.gpu.train", *self._net(net, args))))
            else:
                begun.append(self._bounded(name, fast, net, *args, **env))
        return [self._wait(each, limit_s) for each in begun]

    def host_time(self) -> None:
        self._wait(self._start("host-time", self._python("bench.gpu.host_time", "--on", self._device)), limit_s=60)

    def on_cpus(self, net: str, *args: str, limit_s: float = 60) -> None:
        """In a quarter of the memory, and plainly with a C library that keeps what is freed; twice, in turn."""
        runs = []
        for n in (1, 2):
            program = ["-m", "bench.gpu.train", "tiny" if self.rehearses else net, "--on", "cpu", *args]
            program += ["--length", "64"] if self.rehearses else []
            cpus = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
            tuned = cpus | {"GLIBC_TUNABLES": ":".join(f"{key}={value}" for key, value in TUNABLES.items())}
            name = f"cpus-{net}-plain-{n}"
            runs.append(self._wait(self._start(name, [sys.executable, *program], tuned), limit_s))
            name = f"cpus-{net}-25-{n}"
            options = ["--fast", "25%", "--report", str(self._out / f"{name}.json"), "--wait-for-plan"]
            command = [sys.executable, "-m", "ebbtide", "run", *options, *program]
            runs.append(self._wait(self._start(name, command, cpus), limit_s))
        self.same(runs)

    def same(self, runs: Sequence[Run]) -> None:
        """Say which of them have the first one's losses and state."""
        first = runs[0]
        for run in runs[1:]:
            if first.done is None or run.done is None:
                said = "NOT COMPARED, since one has no result"
            else:
                same = all(run.done[key] == first.done[key] for key in ("losses", "state"))
                said = "SAME" if same else "DIFFERENT"
            self.say(f"  {said}: {run.name} and {first.name}")

    def write(self, facts: dict[str, Any]) -> None:
        content = {"device": self._device, "facts": facts, "runs": [asdict(run) for run in self.runs]}
        (self._out / "results.json").write_text(json.dumps(content, indent=1))

    def _net(self, net: str, args: Sequence[str]) -> list[str]:
        if not self.rehearses:
            return [net, "--on", "cuda", *args]
        small = net if net == "mlp" else "tiny"
        sizes = ["--batch", "2", "--length", "32", "--dtype", "float32"]  # the last ones count
        return [small, "--on", "lagging", *args, *sizes]

    def _python(self, module: str, *args: str) -> list[str]:
        start = ["-c", _REHEARSAL, module] if self.rehearses else ["-m", module]
        return [sys.executable, *start, *args]

    def _bounded(self, name: str, fast: str, net: str, *args: str, **env: str) -> tuple[Run, Any, float]:
        options = ["run", "--device", self._device, "--fast", fast, "--report", str(self._out / f"{name}.json")]
        program = ["-m", "bench.gpu.train", *self._net(net, args)]
        return self._start(name, self._python("ebbtide", *options, "--wait-for-plan", *program), env)

    def _start(self, name: str, command: list[str], env: dict[str, str] | None = None) -> tuple[Run, Any, float]:
        small = {"EBBTIDE_MIN_STORAGE": "4096"} if self.rehearses else {"EBBTIDE_MIN_STORAGE": "1MiB"}
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        own = {"PYTHONPATH": paths, "EBBTIDE_PROGRESS": "off", "PYTHONFAULTHANDLER": "1", "OMP_NUM_THREADS": "2"}
        output = (self._out / f"{name}.out").open("wb")
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | own | small | (env or {})
        )
        return Run(name, command), process, time.monotonic()

    def _wait(self, started: tuple[Run, Any, float], limit_s: float) -> Run:
        run, process, began = started
        left_s = min(began + limit_s, self._ends) - time.monotonic()
        try:
            run.status = process.wait(max(left_s, 1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        run.took_s = round(time.monotonic() - began, 1)
        text = (self._out / f"{run.name}.out").read_text(errors="replace")
        run.lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"what"')]
        run.end = "\n".join(line for line in text.splitlines() if not line.startswith("{"))[-2000:]
        report = self._out / f"{run.name}.json"
        run.report = json.loads(report.read_text()) if report.exists() else None
        self.runs.append(run)
        self.say(run.told())
        return run


def first(visit: Visit) -> None:
    """Bits: plain twice, managed and still, by demand, by plan, by a file, under chaos. Then GPT-2 XL in shares."""
    for net, args in (("mlp", ("--dtype", "float32")), ("gpt", ())):
        more = ("--steps", "8", *args)
        chaos = {"EBBTIDE_CHAOS_RATE": "0.05", "EBBTIDE_CHAOS_SEED": "3", "EBBTIDE_POLICY": "demand"}
        host = "256KiB" if visit.rehearses else "256MiB"
        file = {"EBBTIDE_HOST": host, "EBBTIDE_SPILL": "/var/tmp", "EBBTIDE_POLICY": "demand"}
        runs = visit.beside(
            [
                (f"{net}-plain", None, net, more, {}),
                (f"{net}-again", None, net, more, {}),
                (f"{net}-still", "100%", net, more, {}),
                (f"{net}-demand", "50%", net, more, {"EBBTIDE_POLICY": "demand"}),
                (f"{net}-planned", "50%", net, more, {}),
                (f"{net}-file", "50%", net, more, file),
                (f"{net}-chaos", "100%", net, more, chaos),
            ],
            limit_s=100,
        )
        visit.same(runs)
    visit.host_time()
    runs = [visit.plain("xl-plain", "gpt2-xl", "--steps", "12")]
    for share in ("100%", "80%", "60%"):
        runs.append(visit.bounded(f"xl-{share.rstrip('%')}", share, "gpt2-xl", "--steps", "12"))
    visit.same([runs[0], *(run for run in runs[1:] if run.done)])


def second(visit: Visit) -> None:
    """Llama-8B, 4 x 4,096, float32 with autocast and checkpointing, in 70 GiB; then GPT-2 XL as people do it today."""
    llama = ("--amp", "--way", "checkpoint", "--batch", "4", "--length", "4096")
    rehearsed = visit.rehearses
    visit.bounded("llama-70", "60%" if rehearsed else "70GiB", "llama-8b", *llama, "--steps", "7", limit_s=240)
    for way in ("checkpoint", "save_on_cpu"):
        visit.plain(f"xl-{way}", "gpt2-xl", "--way", way, "--steps", "6")
    visit.plain("llama-plain", "llama-8b", *llama, "--steps", "2")
    visit.on_cpus("gpt2", "--batch", "8", "--length", "512", "--steps", "10")
    visit.on_cpus("resnet50", "--dtype", "float32", "--batch", "24", "--length", "224", "--steps", "10")


def facts() -> dict[str, Any]:
    import torch

    import ebbtide._planning
    import ebbtide._torch

    found = {"torch": torch.__version__, "python": sys.version, "module": ebbtide._torch.__file__}
    found["planning"] = ebbtide._planning.__file__
    if torch.cuda.is_available():
        found |= {"gpu": torch.cuda.get_device_name(), "memory": torch.cuda.mem_get_info(), "cuda": torch.version.cuda}
    found["cpus"] = torch.backends.cpu.get_cpu_capability()
    found["amx"] = str("amx_tile" in Path("/proc/cpuinfo").read_text())
    found["smi"] = subprocess.run("nvidia-smi; free -g; nproc", shell=True, capture_output=True, text=True).stdout
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["1", "2"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--within", type=float, default=400, help="seconds, for all of it")
    given = parser.parse_args()
    visit = Visit(given.out, given.rehearse, given.within)
    here = facts()
    visit.say("\n".join(f"{name}: {value}" for name, value in here.items()))
    try:
        {"1": first, "2": second}[given.part](visit)
    finally:
        visit.write(here)


if __name__ == "__main__":
    main()
