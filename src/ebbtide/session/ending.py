"""The end of a run that is one rank of several: one summary, and the same error in all.

A rank that cannot hear the others ends with its own report and its own error. One that ends with an error stays for a
moment, since a launcher ends all ranks as soon as it sees the first one fail, before the others could say why. What
stays is a process that holds nothing, so the others' collectives fail at once.
"""

import atexit
import contextlib
import os
import sys
from typing import TYPE_CHECKING

from ebbtide.errors import INTERRUPTED, BudgetError, RankError
from ebbtide.ir.run_report import RunReport
from ebbtide.report.ranks import column, render_ranks
from ebbtide.report.summary import render_headline, render_summary
from ebbtide.terminal import folded_for_terminal, tell, terminal_columns

if TYPE_CHECKING:
    from ebbtide.session.session import Session

GATHER_S = 15.0
_STAY_S = 5.0
_STAY = "import signal, sys, time; signal.signal(15, 1); time.sleep(float(sys.argv[1])); sys.exit(int(sys.argv[2]))"
_stays_with: int | None = None


def end_together(
    session: "Session", report: RunReport, status: int, refusal: BudgetError | None, failed: str, quiet: bool
) -> BudgetError | None:
    """Show the summary and return the error to end with. Several ranks all return that of the first one that ended.

    ``refusal`` ended the script. ``failed`` says what was asked for and did not come about.
    """
    ranks, here = session._ranks, session._place
    told: BudgetError | None = None
    columns: dict[int, list[str]] = {}
    if refusal is not None:
        told = ranks.tell(refusal) or refusal
    elif status == 0:
        if failed:
            told = ranks.tell(f"{failed}: {report.trouble or 'see the report'}")
        columns = ranks.gather(column(report), GATHER_S) if told is None else {}
        told = told or ranks.ask()
    if not quiet:
        is_mine = not isinstance(told, RankError) or told.rank == here.rank
        if told is None or (is_mine and report.bounded_as_asked and len(report.steps) > 1):  # else it says all
            _show(report, columns, here.name(), here.local_rank, whole=told is not None or status in (0, INTERRUPTED))
    if told is not None and ranks.together:
        global _stays_with
        _stays_with = told.exit_code
    return told


def _show(report: RunReport, columns: dict[int, list[str]], name: str, local_rank: int, whole: bool) -> None:
    """Show the summary. Not ``whole``: only whether the budget was kept, so that the script's own error is seen."""
    text = render_summary(report) if whole else render_headline(report)
    if columns:
        ranks = {f"rank {rank}": cells for rank, cells in columns.items()}
        text = render_ranks(ranks, terminal_columns()) if local_rank == 0 else ""
    elif name and text:
        others = local_rank > 0 and not report.trouble
        text = f"{name}: {text.splitlines()[0] if others else text}"
    if text:
        tell(folded_for_terminal(text))


def stay_at_the_end() -> None:
    """Register the stay. Callers MUST do so once the script's own exit functions have run: nothing follows it."""
    atexit.register(_stay)


def _stay() -> None:
    if _stays_with is None or not sys.executable:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the script may have closed it, or put something else there
            stream.flush()
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.set_inheritable(int(name), False)
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", _STAY, str(_STAY_S), str(_stays_with)])
