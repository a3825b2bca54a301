"""Shows findings as text: medians with their quartiles, for people and for a machine file's comments."""

from ebbtide.probe.figures import CHUNK_BYTES, Direction, Figure, Findings
from ebbtide.units import format_bytes, format_time, seconds

_TITLES = {Direction.OUT: "out (write)", Direction.BACK: "back (read)", Direction.BOTH: "both at once"}
_LABEL = 21


def render_table(findings: Findings) -> str:
    """Return several lines, without a newline at the end. Each figure is a median with its quartiles in brackets."""
    lines = [
        findings.machine,
        f"{findings.directory}: {format_bytes(findings.file_bytes)}, space that was written before",
        *(f"note: {note}" for note in findings.notes),
        f"median [quartiles]; moves of {format_bytes(CHUNK_BYTES)} by {findings.io_threads} threads, as in a run",
        "",
        *(_line(title, _speed(findings.moves[direction])) for direction, title in _TITLES.items()),
        _line("first write", f"{_speed(findings.first_write)}, of space that was reserved and never written"),
        _line("latency of 4 KiB", ", ".join(f"{way} {_time(figure)}" for way, figure in findings.latency_ns.items())),
        _line("memory", f"{_speed(findings.memory)} read and written, {findings.memory_threads} threads copying"),
    ]
    for way, slowdown in findings.slowdown.items():
        text = f"matmul by {_percent(slowdown.matmul)}, copying by {_percent(slowdown.copying)}"
        lines.append(_line(f"{way} slows", text))
    return "\n".join(lines)


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def _speed(figure: Figure) -> str:
    return f"{figure.median / 1e9:.2f} [{figure.low / 1e9:.2f}-{figure.high / 1e9:.2f}] GB/s"


def _time(figure: Figure) -> str:
    low, high = (format_time(seconds(nanoseconds)) for nanoseconds in (figure.low, figure.high))
    return f"{format_time(seconds(figure.median))} [{low}-{high}]"


def _percent(figure: Figure) -> str:
    if figure.median < 0:  # nothing is faster beside a busy link: the machine drifted between the two of a pair
        return "0 % (noise)"
    return f"{100 * figure.median:.0f} % [{100 * figure.low:.0f} to {100 * figure.high:.0f}]"
