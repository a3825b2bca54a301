"""The demo's one table: a column per run, a row per figure. Printed as Markdown, so that it can stand in a README; on a
terminal that it does not fit, one for each net."""

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from demo.runs import KINDS, Outcome, gigabytes

_WIDTH = 140
TITLES = dict(zip(KINDS, ("parameters", "gradients", "optimizer state", "activations", "other"), strict=True))


def _budget(outcome: Outcome) -> str:
    fast = outcome.run.fast
    return gigabytes(int(fast)) if fast.isdigit() else fast


def _moved(direction: str, kind: str) -> Callable[[Outcome, Outcome], str]:
    return lambda outcome, _: gigabytes(outcome.moved_bytes(direction, kind)) if outcome.report else ""


def _predicted(outcome: Outcome, _: Outcome) -> str:
    plan = outcome.report["plan"] if outcome.report else None
    return f"{plan['predicted_s'] / plan['step_s']:.2f}x" if plan else ""


def _rows() -> list[tuple[str, Callable[[Outcome, Outcome], str]]]:
    """Each row's name, and its text for an outcome beside its reference."""
    rows: list[tuple[str, Callable[[Outcome, Outcome], str]]] = [
        ("parameters + gradients + state", lambda o, _: gigabytes(o.result["state_bytes"])),
        ("process peak", lambda o, _: gigabytes(o.peak_bytes)),
        ("before the budget", lambda o, _: gigabytes(o.result["peak_bytes"]) if o.peaked_before else ""),
        ("median step", lambda o, _: f"{o.step_s:.2f} s"),
        ("against plain", lambda o, reference: f"{o.step_s / reference.step_s:.2f}x"),
        ("predicted, over unlimited", _predicted),
        ("stall, a step", lambda o, _: f"{o.stall_s:.2f} s" if o.report else ""),
    ]
    for title, direction in (("out", "evicted_bytes"), ("in", "fetched_bytes")):
        rows.append((f"{title}, a step", _moved(direction, "total")))
        rows.extend((f"{title}: {TITLES[kind]}", _moved(direction, kind)) for kind in KINDS)
    rows += [
        ("of out, written", _moved("written_bytes", "total")),
        ("final loss", lambda o, _: f"{float.fromhex(o.result['losses'][-1]):.6f}"),
        ("weights the same bits", lambda o, reference: "yes" if o.same_bits(reference) else "NO"),
    ]
    return rows


def in_a_sentence(pairs: Sequence[tuple[Outcome, Outcome]]) -> str:
    """What the planned runs came to, "" where none trained."""
    told = [
        f"{outcome.run.name[0]} trained in {gigabytes(outcome.peak_bytes)} in place of "
        f"{gigabytes(reference.peak_bytes)}, at {outcome.step_s / reference.step_s:.2f} times the time"
        for outcome, reference in pairs
        if outcome.report and outcome.result and reference.result
        if outcome.run.policy == "ebbtide" and outcome.same_bits(reference)
    ]
    return f"With the same bits as plain PyTorch, GPT {', and GPT '.join(told)}." if told else ""


def show(pairs: Sequence[tuple[Outcome, Outcome]]) -> None:
    """Print the outcomes; each comes with the plain run that it is compared with (its reference)."""
    console = Console()
    if not console.is_terminal or console.width >= _WIDTH:
        Console(width=max(_WIDTH, console.width)).print(_table(pairs))
        return
    for net in sorted({outcome.run.name[0] for outcome, _ in pairs}):
        console.print(_table([pair for pair in pairs if pair[0].run.name[0] == net]))


def _table(pairs: Sequence[tuple[Outcome, Outcome]]) -> Table:
    table = Table(box=box.MARKDOWN)
    table.add_column("", no_wrap=True)
    for outcome, _ in pairs:
        table.add_column(outcome.run.name, justify="right")
    table.add_row("budget (--fast)", *(_budget(outcome) for outcome, _ in pairs))
    limits = (outcome.run.cgroup.limit_bytes if outcome.run.cgroup else None for outcome, _ in pairs)
    table.add_row("memory cgroup", *(gigabytes(limit) if limit else "" for limit in limits))
    table.add_row("outcome", *("KILLED" if outcome.killed else "trained" for outcome, _ in pairs))
    for name, text in _rows():
        table.add_row(name, *("" if outcome.killed else text(outcome, reference) for outcome, reference in pairs))
    return table
