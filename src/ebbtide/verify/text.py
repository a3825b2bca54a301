"""Shows a verdict as text for people, and as JSON."""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from ebbtide.units import format_bytes, format_time
from ebbtide.verify.compare import Difference
from ebbtide.verify.verdict import FORMAT, VERSION, Verdict

_LABEL = 19
_EVICTED = "(evict-all)"
_AT_RANDOM = "(chaos)"
_MOST_NAMED = 6
_STEADY = """\
Without a budget the script already ends differently from run to run, so nothing can be compared. Usual reasons:
  - no seed: call torch.manual_seed(0) before the model is built, and seed `random` and `numpy.random` too
  - order: PYTHONHASHSEED=0 where a set or its hash decides; sorted() around os.listdir and glob
  - data: DataLoader(generator=torch.Generator().manual_seed(0)), and a worker_init_fn that seeds what workers draw from
  - algorithms: torch.use_deterministic_algorithms(True); on CUDA CUBLAS_WORKSPACE_CONFIG=:4096:8, too
  - threads: the same number in every run (OMP_NUM_THREADS), and none that update tensors without order
  - matrix products: MKL repeats itself for certain only with MKL_CBWR=AUTO MKL_DYNAMIC=FALSE
  - a first call: MKL's first, made by two threads, may be imprecise (pytorch/pytorch#188792): torch.ones(2).exp() first
  - clocks, process ids and the network in what is computed
  - files: what the runs share, so that a later one goes on where an earlier one stopped; write to {out}"""


def render(verdict: Verdict) -> str:
    """Return several lines, without a newline at the end."""
    return "\n".join(_lines(verdict))


def to_json(verdict: Verdict) -> str:
    """Return everything in the verdict, and what follows from it."""
    derived = {name: getattr(verdict, name) for name in ("same_bits", "every_kind_moved", "proven")}
    fields = asdict(verdict)
    if verdict.moved is not None:
        fields["moved"] = {kind: asdict(bytes_) | {"proven": bytes_.proven} for kind, bytes_ in verdict.moved.items()}
    head = {"format": FORMAT, "version": VERSION, "deterministic": verdict.unsteady is None}
    return json.dumps(head | derived | fields, indent=2, allow_nan=False)


def _lines(verdict: Verdict) -> Iterator[str]:
    command = shlex.join(verdict.command)
    if verdict.unsteady is not None:
        yield f"NOT DETERMINISTIC: {command}"
        yield _line("plain, twice", _where(verdict.unsteady))
        if verdict.unrepeated:
            yield _line("not repeated", f"{len(verdict.unrepeated)} results of that step: {_named(verdict.unrepeated)}")
        yield _STEADY
        return
    on = f" --device {verdict.device}" if verdict.device is not None else ""
    yield f"{_headline(verdict)}: {command},{on} --fast {verdict.fast}"
    compared = f"{verdict.losses} losses of {verdict.steps} steps, {verdict.tensors} tensors and numbers after the last"
    if verdict.difference is None:
        yield _line("the same bits", f"yes: {compared}; two plain runs agree")
    else:
        yield _line("the same bits", f"NO: {_where(verdict.difference)}")
        yield _line("", _traced(verdict))
    yield _line("budget held", _budget(verdict))
    if verdict.trouble:
        yield _line("", verdict.trouble)
    yield from _moved(verdict)
    peaks = f"plain {format_bytes(verdict.plain_peak_bytes)}, bounded {format_bytes(verdict.process_peak_bytes)}"
    yield _line("process peak", peaks)
    if verdict.device is not None:
        yield _line(f"peak on {verdict.device}", f"plain {format_bytes(verdict.plain_device_bytes)}, of all tensors")
    seconds = f"plain {format_time(verdict.plain_seconds)}, bounded {format_time(verdict.bounded_seconds)}"
    yield _line("took", f"{seconds} (with the comparison's own reading: no measure of speed)")


def _headline(verdict: Verdict) -> str:
    if verdict.proven:
        return "VERIFIED"
    if verdict.same_bits and verdict.budget_held:
        return "THE SAME BITS, NOT SHOWN FOR ALL THAT CAN MOVE"
    return "NOT VERIFIED"


def _traced(verdict: Verdict) -> str:
    if not verdict.traced:
        return "where it begins was not looked for"
    if verdict.traced_difference is None:
        return "a second run within the budget ended like plain PyTorch: it does not always happen"
    return f"with every step looked at, it begins so: {_where(verdict.traced_difference)}"


def _where(difference: Difference) -> str:
    return f"in step {difference.step}, {difference.what}: {difference.one} against {difference.other}"


def _budget(verdict: Verdict) -> str:
    if verdict.arena_budget_bytes is None:
        return "NO: none was ever in force"
    answer = "yes" if verdict.budget_held else "NO"
    if verdict.device is not None:
        held, budget = format_bytes(verdict.arena_peak_bytes), format_bytes(verdict.arena_budget_bytes)
        return f"{answer}: managed tensors on {verdict.device} {held} of {budget}"
    if verdict.fast_bytes is None:
        tensors = f"{format_bytes(verdict.arena_peak_bytes)} of {format_bytes(verdict.arena_budget_bytes)}"
        return f"{answer}: tensors {tensors}, which is all that a percentage bounds"
    process = f"process {format_bytes(verdict.process_peak_bytes)} of {format_bytes(verdict.fast_bytes)}"
    return f"{answer}: {process} (2 % more is tolerated)"


def _moved(verdict: Verdict) -> Iterator[str]:
    assert verdict.moved is not None
    answer = "yes" if verdict.every_kind_moved else "NO: what stayed in memory proves nothing"
    how = _EVICTED if verdict.device is None else _AT_RANDOM
    yield _line("every kind moved", answer + (f"; {how} in a further run" if verdict.evicted else ""))
    for kind, moved in verdict.moved.items():
        text = f"out {format_bytes(moved.evicted_bytes)}, in {format_bytes(moved.fetched_bytes)}"
        if not moved.exists:
            text = "none is large enough to be moved"
        elif not moved.proven:
            text += "   <- it stayed"
        elif kind in verdict.evicted:
            text += f" {how}"
        yield _line(f"  {kind.replace('_', ' ')}", text)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}"
