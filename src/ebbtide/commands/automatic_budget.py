"""``--fast auto``: the smallest budget that costs little, by what ``ebbtide estimate`` says of the script.

The estimate runs in a process of its own: it calls operators, and lets the C library keep what they free, which would
count against the budget here.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from ebbtide.errors import SettingError
from ebbtide.host.process import end_with_parent
from ebbtide.terminal import tell
from ebbtide.units import parse_percentage

WITHIN = "10%"
"""A budget may cost so much time."""


def is_automatic(fast: str) -> bool:
    return fast.partition(":")[0].strip().lower() == "auto"


def within(fast: str) -> str:
    """Return the share of ``auto:25%``. Raises SettingError."""
    share = fast.partition(":")[2].strip() or WITHIN
    try:
        parse_percentage(share)
    except ValueError as error:
        raise SettingError(f"--fast {fast}: write how much slower steps may be as in auto:25%") from error
    return share


def budget_for(fast: str, program: Sequence[str], ranks: int, spill: Sequence[str] = ()) -> str:
    """Return what ``--fast`` is to be for the program, whose run spills there. Raises SettingError where nothing can be
    proposed."""
    share = within(fast)
    if ranks > 1:
        raise SettingError(
            f"--fast {fast} estimates for one process, and this is one of {ranks} ranks: `ebbtide estimate` a single "
            "one and name its budget"
        )
    command = [sys.executable, "-m", "ebbtide", "estimate", "--json", "--within", share, "--", *program]
    done = subprocess.run(
        command,
        env=os.environ | ({"EBBTIDE_SPILL": os.pathsep.join(spill)} if spill else {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_parent,
    )
    if done.returncode:
        raise SettingError(f"--fast {fast} needs an estimate, which failed: name a budget, such as --fast 50%")
    found = json.loads(done.stdout)
    chosen = next((row for row in found["budgets"] if row["fast"] == found["proposed_fast"]), None)
    if chosen is None:
        raise SettingError(f"--fast {fast}: by the estimate no budget fits this machine")
    times = chosen["step_ns"] / max(found["step_ns"], 1)
    none = f"; none is within {share} of full speed" if times > 1 + parse_percentage(share) else ""
    tell(f"ebbtide: --fast {fast} is --fast {chosen['fast']}: by the estimate {times:.2f} times as long{none}")
    return str(chosen["fast"])
