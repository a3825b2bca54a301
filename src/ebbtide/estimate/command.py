"""Carries out ``ebbtide estimate``: the step on fake tensors, the times of its operators here, and the budgets."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import numpy as np

from ebbtide.budget.bounds import usable_bytes
from ebbtide.errors import EbbtideError, how_it_ended
from ebbtide.estimate.budgets import SHARES, SIZES_GIB, SMALL_COST, Estimate, Rest, estimate
from ebbtide.estimate.child import ITSELF, OF_FAKES, held_file, raised_file
from ebbtide.host.free_memory import free_memory
from ebbtide.host.run_queue import waited_s
from ebbtide.ir.base import Ints
from ebbtide.ir.files import load
from ebbtide.ir.machine import Machine
from ebbtide.ir.trace import Trace

PARTS = 2 + len(SHARES) + len(SIZES_GIB)
"""The most parts that ``begin`` is told of."""
_LAST_LINES = 15
_OPERANDS_PART = 4
"""An operator's operands may take this part of the free memory."""


class ScriptFailedError(EbbtideError):
    """The script did not come to the end of its second step on fake tensors. ``said`` is the last of its output.

    ``raised`` says who raised the error that ended it: ``OF_FAKES``, others, or "" where there was none.
    """

    def __init__(self, status: int, said: str, raised: str) -> None:
        super().__init__(status, said, raised)
        self.status = status
        self.said = said
        self.raised = raised

    def __str__(self) -> str:
        ended = how_it_ended(self.status)
        if self.raised == OF_FAKES:
            why = (
                f"the script {ended} on fake tensors, which have shapes but no numbers, so nothing can be estimated. "
                "`ebbtide trace` records a step with real tensors"
            )
        elif self.raised or self.status != 1:
            why = (
                f"the script {ended} before its second step had, so nothing can be estimated. If it does not under "
                "python, it read numbers, which fake tensors do not have: `ebbtide trace` records real tensors"
            )
        else:
            why = "the script ended before it had made two steps, so nothing can be estimated"
        return f"{why}. It said last:\n{self.said}"


@dataclass(frozen=True, slots=True)
class Estimated:
    """The estimate, the machine, and the share of the step's time that calling its operators measured; None where a
    machine was named, whose roofline is taken. ``free_bytes`` are what a process can have here now, None of another
    machine. ``waited_share``: of what the CPUs could do while operators were called, threads waited so
    much for others."""

    estimate: Estimate
    machine: Machine
    share: float | None
    free_bytes: int | None = None
    waited_share: float = 0.0


def estimate_script(
    command: Sequence[str],
    machine: Machine,
    seconds: float | None,
    begin: Callable[[str], None] = lambda what: None,
    small_cost: float = SMALL_COST,
    device: str | None = None,
) -> Estimated:
    """Estimate what the script's training takes on a machine that says how fast it computes.

    Its operators are called here for about ``seconds``; None takes the machine's roofline. A budget is proposed that
    takes at most ``small_cost`` times as long as none. ``device``: the budgets are for its memory, which is the
    machine's first tier, and what leaves goes to the second. Raises ScriptFailedError.
    """
    machine.require_rates()
    with tempfile.TemporaryDirectory(prefix="ebbtide-estimate-") as name:
        begin("running the script on fake tensors")
        trace, script_bytes = _faked(command, machine, Path(name))
    if device is not None:
        there = with_host_memory(machine)
        made = estimate(repeating_there(trace), there, Rest(0, 0), begin, small_cost, device)
        return Estimated(made, there, None)
    kernel_bytes: int | Ints = 0
    share = free_bytes = None
    waited_share = 0.0
    if seconds is not None:
        from ebbtide.probe.call_times import keep_freed_memory, with_called_times

        begin("calling the step's operators")
        keep_freed_memory()
        free_bytes = usable_bytes(free_memory())
        began_s, waited_before_s = monotonic(), waited_s()
        called = with_called_times(trace, machine.compute.operator_ns, seconds, free_bytes // _OPERANDS_PART)
        cpus = len(os.sched_getaffinity(0))
        waited_share = (waited_s() - waited_before_s) / (monotonic() - began_s) / cpus
        trace, kernel_bytes, share = called.trace, called.kernel_bytes, called.share
    made = estimate(trace, machine, Rest(script_bytes, kernel_bytes), begin, small_cost)
    return Estimated(made, machine, share, free_bytes, waited_share)


def repeating_there(trace: Trace) -> Trace:
    """Return the step with those operators alone that may run again on an accelerator, fewer than on a CPU."""
    import ebbtide._torch as _torch

    *_, names = _torch.repeatable_operators()
    called = [name.removesuffix("_") for name in trace.ticks.operator.tolist()]
    return replace(trace, ticks=replace(trace.ticks, repeats=trace.ticks.repeats & np.isin(called, names)))


def with_host_memory(machine: Machine) -> Machine:
    """Return the machine of a session on a device: its first two tiers."""
    tiers = machine.tiers[:2]
    names = {tier.name for tier in tiers}
    links = tuple(replace(link, shares=None) for link in machine.links if {link.source, link.target} <= names)
    return replace(machine, tiers=tiers, links=links, groups=())


def _faked(command: Sequence[str], machine: Machine, folder: Path) -> tuple[Trace, int]:
    """Return the script's second step, and what its process held besides tensors."""
    trace, file, output = folder / "step.trace", folder / "machine.toml", folder / "output.txt"
    file.write_text(machine.to_toml())
    child = [sys.executable, *ITSELF, str(trace), str(file), *command]
    with output.open("wb") as said:
        status = subprocess.run(child, stdin=subprocess.DEVNULL, stdout=said, stderr=said).returncode
    if status or not trace.exists() or not held_file(trace).exists():
        lines = output.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        raised = raised_file(trace).read_text() if raised_file(trace).exists() else ""
        raise ScriptFailedError(status, "\n".join(f"    {line}" for line in lines), raised)
    return load(trace, Trace), int(held_file(trace).read_text())
