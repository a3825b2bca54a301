"""About how long the demo takes: from each run's FLOPs and moved bytes at first, corrected by each run that ended."""

from collections.abc import Mapping
from dataclasses import dataclass

from demo.calibrate import Speed

_OVER_PRODUCTS = 1.5
"""Seconds of a step over those of its matrix products at the rate of large ones: what is not a product takes the rest.
Measured on two CPUs, in fp32."""

_NOTABLE = 1.5
"""From so many times the first estimate on it is worth saying that it was wrong."""


@dataclass(frozen=True, slots=True)
class Net:
    """``arguments`` are the training script's. ``moved_bytes`` are written and read in a step within the demo's budget,
    as measured once; what a machine moves is in its report."""

    arguments: str
    moved_bytes: int

    @property
    def steps(self) -> int:
        return int(self._argument("steps"))

    @property
    def dtype(self) -> str:
        return self._argument("dtype")

    @property
    def step_flops(self) -> int:
        """Forward and backward: 6 a weight and token, of 12 width^2 weights a layer; attention's own products."""
        layers, width, seq, batch = (int(self._argument(name)) for name in ("layers", "width", "seq", "batch"))
        return 12 * layers * batch * seq * width * (6 * width + seq)

    def _argument(self, name: str) -> str:
        words = self.arguments.split()
        return words[words.index(f"--{name}") + 1]


def run_s(net: Net, speed: Speed, moves: bool) -> float:
    """Of one run, which ``moves`` what its budget does not hold or runs without one."""
    step_s = _OVER_PRODUCTS * net.step_flops / speed.flops(net.dtype)
    if moves:
        step_s += net.moved_bytes / speed.spill_bytes_per_s
    return speed.start_s + net.steps * step_s


class Forecast:
    """Of runs by their names: those that ended say by how much the others were misjudged."""

    def __init__(self, expected_s: Mapping[str, float]) -> None:
        self._expected_s = dict(expected_s)
        self._ended_s = self._took_s = 0.0

    def left_s(self) -> float:
        return sum(self._expected_s.values()) * self._misjudged()

    def left(self) -> str:
        """In words, and why, where it is far from what was said at first; "" at the end."""
        if not (left_s := self.left_s()):
            return ""
        text = f"{roughly(left_s)} left"
        times = self._misjudged()
        if 1 / _NOTABLE < times < _NOTABLE:
            return text
        longer = f"{times:.1f} times as long as" if times > 1 else f"{100 * times:.0f} % of the time that"
        return f"{text}, corrected: runs take {longer} the first estimate said"

    def _misjudged(self) -> float:
        return self._took_s / self._ended_s if self._ended_s else 1.0

    def ended(self, name: str, took_s: float) -> None:
        self._ended_s += self._expected_s.pop(name)
        self._took_s += took_s

    def left_out(self, name: str) -> None:
        del self._expected_s[name]


def roughly(seconds: float) -> str:
    """Marked as what it is: ``about 4 minutes``."""
    if seconds < 90:
        return f"about {max(round(seconds, -1), 10):.0f} seconds"
    return f"about {round(seconds / 60)} minutes"
