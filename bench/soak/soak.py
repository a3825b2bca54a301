"""A hunt without an end: random training within random budgets, against plain PyTorch in a fresh process.

    python -m bench.soak --minutes 60           # or: make soak SOAK_MINUTES=60
    python -m bench.soak --seed 17 --jobs 1     # one job again; every line that is printed names its seed
    python -m bench.soak --kind whole-numbers   # of one kind alone
    python -m bench.soak --summary build/soak   # what all jobs that were logged in this folder came to

Each job (``job.py`` draws it from its seed) is trained twice, each time by a process of its own: plainly, and in
a session with its budget, policy, chaos, threads, I/O threads, checkpoints, workers and a disk that errs for a while
(``tests/helpers/faulty_disk.cpp``). Every sixth job is operators of PyTorch's own database in place of training
(``tests/training/operators.py``). Another is whole numbers on a system whose calls are slow and short
(``tests/training/whole_numbers.py``). The hashes of the losses and of all weights, gradients and optimizer states must
be the same. A line of JSON for each is appended to ``soak.jsonl``. It ends with exit status 1 at the first job that
differs, crashes or hangs, and keeps what that left behind. A budget that is refused as too small is asked for once
more, doubled, then with all that a step needs, and one that is refused then is a defect; a disk that errs may
end a job, if it says so.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from bench.soak.job import Job
from tests.helpers import faulty_disk, unkind_system

ROOT = Path(__file__).resolve().parents[2]

HUNG_AFTER_S = 900
KINDS = ("training", "operators", "whole-numbers")
GOOD = ("same", "nothing moved", "ended by the disk", "not deterministic")
REFUSED = ("BudgetError", "StepTooLargeError")
DISK_SAID = ("writing to the spill directory", "what came back from the spill directory", "from the spill directory")


class Soak:
    """Runs jobs in a folder, one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.library = faulty_disk.build(folder)
        self.unkind = unkind_system.build(folder)
        self.build = build()

    def run(self, seed: int) -> dict[str, object]:
        """The line of the log for this seed."""
        began = time.monotonic()
        work = self.folder / f"seed-{seed}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        found = {
            "training": self.training,
            "operators": self.operators,
            "whole-numbers": self.whole_numbers,
        }[kind_of(seed)](seed, work)
        if found["outcome"] in GOOD:
            shutil.rmtree(work)
        return {"seed": seed, "build": self.build, "seconds": round(time.monotonic() - began, 1)} | found

    def operators(self, seed: int, work: Path) -> dict[str, object]:
        """A fiftieth of the database."""
        command = [sys.executable, str(ROOT / "tests/training/operators.py"), "--seed", str(seed), "--share", "0.02"]
        status = self.process(work / "operators", command, dict(os.environ))
        said = self.said(work, "operators").splitlines()
        counts = {name: json.loads(said[-1])[name] for name in ("cases", "calls", "unstable")} if status == 0 else {}
        different = any(line.startswith("DIFFERENT") for line in said)
        outcome = "same" if status == 0 else "DIFFERENT" if different else self.ended(status)
        return {"kind": "operators", "outcome": outcome} | counts

    def whole_numbers(self, seed: int, work: Path) -> dict[str, object]:
        """Some minutes of operations, and two trainings."""
        command = [sys.executable, "-m", "tests.training.whole_numbers", f"--seed={seed}", "--operations=2000"]
        variables = unkind_system.environment(self.unkind, seed, chance=seed % 40, most_us=50 * (1 + seed % 20))
        status = self.process(work / "whole-numbers", command, dict(os.environ) | variables)
        said = self.said(work, "whole-numbers").splitlines()
        line = {"kind": "whole-numbers"}
        if not said or not said[-1].startswith("{"):
            return line | {"outcome": self.ended(status)}
        found = json.loads(said[-1])
        counts = {name: found[name] for name in ("operations", "forks", "trainings", "evicted_bytes", "fetched_bytes")}
        outcome = "DIFFERENT" if found["different"] else "same" if status == 0 else self.ended(status)
        return line | {"outcome": outcome} | counts

    def training(self, seed: int, work: Path) -> dict[str, object]:
        job = Job.of(seed)
        (work / "job.json").write_text(json.dumps(asdict(job), indent=1))
        directories = [work / f"spill-{number}" for number in range(job.directories)]
        for directory in directories:
            directory.mkdir()
        variables = job.variables | {"EBBTIDE_SPILL": os.pathsep.join(map(str, directories))}
        faulty = faulty_disk.environment(self.library, job.fault) if job.fault else {}
        line = {"kind": "training", "net": job.net, "policy": job.policy, "fault": job.fault, "steps": job.steps}
        status = self.job(work, "plain", seed, {}, "--plain")
        if status != 0:
            return line | {"outcome": f"plain PyTorch {self.ended(status)}"}
        for percent in (job.fast_percent, min(100, 2 * job.fast_percent), 100):
            status = self.job(work, "ours", seed, variables | faulty, f"--fast-percent={percent}")
            if status == 0 or not any(error in self.said(work, "ours") for error in REFUSED):
                break
        if status != 0:
            said = self.said(work, "ours")
            by_disk = bool(job.fault) and any(words in said for words in DISK_SAID)
            refused = any(error in said for error in REFUSED)
            ended = "REFUSED WITH ALL THAT A STEP NEEDS" if refused else self.ended(status)
            return line | {"outcome": "ended by the disk" if by_disk else ended}
        plain, ours = (json.loads((work / f"{name}.json").read_text()) for name in ("plain", "ours"))
        line |= {name: ours[name] for name in ("modes", "moved_bytes", "over_budget")} | {"fast_percent": percent}
        if all(plain[key] == ours[key] for key in ("losses", "sha256")):
            return line | {"outcome": "same" if ours["moved_bytes"] else "nothing moved"}
        self.job(work, "plain-again", seed, {}, "--plain")
        again = json.loads((work / "plain-again.json").read_text())
        deterministic = all(plain[key] == again[key] for key in ("losses", "sha256"))
        return line | {"outcome": "DIFFERENT" if deterministic else "not deterministic"}

    def job(self, work: Path, name: str, seed: int, variables: dict[str, str], option: str) -> int:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("EBBTIDE_")}
        result = f"--result={work / name}.json"
        command = [sys.executable, "-m", "bench.soak.train", f"--seed={seed}", result, option]
        return self.process(work / name, command, kept | variables)

    def process(self, stem: Path, command: list[str], environment: dict[str, str]) -> int:
        """Its status; -SIGALRM if it hung. What it says goes to ``stem``.txt."""
        with stem.with_suffix(".txt").open("w") as output:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
            try:
                return process.wait(HUNG_AFTER_S)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGUSR1)
                time.sleep(2.0)
                process.kill()
                process.wait()
                return -signal.SIGALRM
            except BaseException:
                process.kill()
                process.wait()
                raise

    @staticmethod
    def said(work: Path, name: str) -> str:
        return (work / f"{name}.txt").read_text(errors="replace")

    @staticmethod
    def ended(status: int) -> str:
        if status == -signal.SIGALRM:
            return "HUNG"
        return f"KILLED BY SIGNAL {-status}" if status < 0 else f"ENDED WITH STATUS {status}"


def kind_of(seed: int) -> str:
    return {5: "operators", 2: "whole-numbers"}.get(seed % 6, "training")


def build() -> str:
    """The commit that runs, where there is one."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def moved_bytes(line: dict[str, int]) -> int:
    return line.get("evicted_bytes", 0) + line.get("fetched_bytes", 0)


def summary(folder: Path) -> str:
    """What all jobs that were logged in this folder came to, as a page."""
    lines = [json.loads(line) for line in (folder / "soak.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["kind"] == "training"]
    same = [line for line in trained if line["outcome"] == "same"]
    outcomes = Counter(line["outcome"] for line in lines)
    seeds = [line["seed"] for line in lines]
    rows = {
        "builds": ", ".join(sorted({line.get("build", "unknown") for line in lines})),
        "seeds": f"{min(seeds)} to {max(seeds)}",
        "hours": f"{sum(line['seconds'] for line in lines) / 3600:.2f}",
        "jobs": f"{len(lines)}: " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()),
        "of which training, the same bits after bytes moved": f"{len(same)}, {sum(x['steps'] for x in same):,} steps",
        "moved out and in": f"{sum(line['moved_bytes'] for line in same) / 1e9:,.1f} GB",
        "with planned steps": str(sum("planned" in line["modes"] for line in same)),
        "on a disk that erred for a while": str(sum(bool(line["fault"]) for line in same)),
        "over budget": str(sum(line["over_budget"] for line in same)),
        "calls of operators compared": f"{sum(line.get('calls', 0) for line in lines):,}",
        "operations on whole numbers": f"{sum(line.get('operations', 0) for line in lines):,}",
        "of which out and in": f"{sum(map(moved_bytes, lines)) / 1e9:,.1f} GB",
    }
    for name in ("net", "policy"):
        counts = Counter(line[name] for line in same).most_common()
        rows[f"by {name}"] = ", ".join(f"{what} {count}" for what, count in counts)
    table = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(["# Soak", "", "By `python -m bench.soak --summary`.", "", "| | |", "|---|---|", *table])


def main() -> int:
    parser = argparse.ArgumentParser(description="Random training under random budgets against plain PyTorch.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, help="no more than so many")
    parser.add_argument("--seed", type=int, help="of the first job; each next one has the next (default: by the clock)")
    parser.add_argument("--kind", choices=KINDS, help="only jobs of this kind")
    parser.add_argument("--out", type=Path, default=Path("build/soak"))
    parser.add_argument("--summary", type=Path, metavar="FOLDER", help="only say what the runs in it came to")
    args = parser.parse_args()
    if args.summary:
        print(summary(args.summary))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the job under way ends, too
    soak, until = Soak(args.out.resolve()), time.monotonic() + 60 * args.minutes
    seed, made = args.seed if args.seed is not None else time.time_ns() // 10**6 % 10**9, 0
    while time.monotonic() < until and made != args.jobs:
        if args.kind not in (None, kind_of(seed)):
            seed += 1
            continue
        line = soak.run(seed)
        with (args.out / "soak.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
        if line["outcome"] not in GOOD:
            print(f"error: seed {seed}: {line['outcome']}; see {args.out / f'seed-{seed}'}", file=sys.stderr)
            print(f"again: python -m bench.soak --seed {seed} --jobs 1", file=sys.stderr)
            return 1
        seed, made = seed + 1, made + 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
