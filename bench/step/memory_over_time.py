"""Draws docs/memory.svg: resident memory over time of the demo's state-heavy GPT, plain and under Ebbtide.

    .venv/bin/pip install -e '.[bench]' && .venv/bin/python -m bench.step.memory_over_time

Two fresh processes, one after the other; VmRSS of each is read from outside every 20 ms.
"""

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

try:
    import matplotlib
except ImportError as error:
    sys.exit(f"error: {error}; the `bench` extra has it: .venv/bin/pip install -e '.[bench]'")

matplotlib.use("svg")
import matplotlib.pyplot as plt

from demo.demo import GPT_B

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = [str(ROOT / "demo/train_gpt.py"), *shlex.split(GPT_B.arguments)]
FAST = 674_000_000
PERIOD_S = 0.02


def resident_gb(pid: int) -> float | None:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match.group(1)) * 1024 / 1e9 if match else None


def watch(command: list[str]) -> tuple[list[float], list[float]]:
    """Seconds and gigabytes of one run."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds: list[float] = []
    gigabytes: list[float] = []
    while process.poll() is None:
        value = resident_gb(process.pid)
        if value is not None:
            seconds.append(time.monotonic() - started)
            gigabytes.append(value)
        time.sleep(PERIOD_S)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return seconds, gigabytes


def main() -> None:
    plain = watch([sys.executable, *SCRIPT])
    ours = watch([sys.executable, "-m", "ebbtide", "run", "--fast", str(FAST), "--wait-for-plan", *SCRIPT])
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    axes.plot(*plain, color="#b0413e", label="python train_gpt.py")
    axes.plot(*ours, color="#1f6f8b", label=f"ebbtide run --fast {FAST / 1e6:.0f}MB train_gpt.py")
    axes.axhline(FAST / 1e9, color="#1f6f8b", linewidth=0.8, linestyle="--")
    axes.set(xlabel="seconds", ylabel="resident memory, GB", ylim=(0, None), xlim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center right")
    figure.savefig(ROOT / "docs/memory.svg")
    print(f"peaks as sampled: plain {max(plain[1]):.2f} GB, Ebbtide {max(ours[1]):.2f} GB")


if __name__ == "__main__":
    main()
