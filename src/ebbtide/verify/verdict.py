"""The verdict of ``ebbtide verify`` as data. Every question is answered, or shown to be open."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ebbtide.verify.compare import Difference, Moved, budget_held, differences, first_difference, moved
from ebbtide.verify.runs import Run

FORMAT = "ebbtide-verdict"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The results of all runs. All figures are measured.

    ``unsteady`` is the difference between the two plain runs, and ``unrepeated`` names all results of its step that
    differ. If there is one, nothing was compared with the bounded run. ``device``: its memory was bounded, and plain
    PyTorch's tensors took ``plain_device_bytes`` there.
    ``difference`` is that of the bounded run from them. ``traced`` says that the bounded run was repeated with the
    state recorded after every step. ``traced_difference`` is where that run begins to differ, or None if it did not.
    ``evicted`` are the kinds that moved only in a further run, in which everything was evicted after each use.
    ``losses`` and ``tensors`` were compared. Peaks are the processes' VmHWM, the bounded one since its budget was set.
    """

    command: tuple[str, ...]
    fast: str
    steps: int
    losses: int
    tensors: int
    plain_peak_bytes: int
    plain_seconds: float
    device: str | None = None
    plain_device_bytes: int = 0
    unsteady: Difference | None = None
    unrepeated: tuple[str, ...] = ()
    difference: Difference | None = None
    traced: bool = False
    traced_difference: Difference | None = None
    budget_held: bool = False
    trouble: str = ""
    fast_bytes: int | None = None
    arena_budget_bytes: int | None = None
    arena_peak_bytes: int = 0
    process_peak_bytes: int = 0
    bounded_seconds: float = 0.0
    moved: Mapping[str, Moved] | None = None
    evicted: tuple[str, ...] = ()

    @property
    def same_bits(self) -> bool:
        return self.unsteady is None and self.difference is None

    @property
    def every_kind_moved(self) -> bool:
        return self.moved is not None and all(kind.proven for kind in self.moved.values())

    @property
    def proven(self) -> bool:
        return self.same_bits and self.budget_held and self.every_kind_moved

    def with_evicting(self, evicting: "Verdict") -> "Verdict":
        """Add the verdict of the run in which everything was evicted: its bits and its budget count, too."""
        assert self.moved is not None
        assert evicting.moved is not None
        evicted = tuple(kind for kind, moved in self.moved.items() if not moved.proven and evicting.moved[kind].proven)
        return replace(
            self,
            difference=evicting.difference,
            budget_held=self.budget_held and evicting.budget_held,
            trouble=self.trouble or evicting.trouble,
            moved=dict(self.moved) | {kind: evicting.moved[kind] for kind in evicted},
            evicted=evicted,
        )

    def with_trace(self, found: Difference | None) -> "Verdict":
        return replace(self, traced=True, traced_difference=found)


def judge_plain(command: tuple[str, ...], fast: str, plain: Run, again: Run, device: str | None = None) -> Verdict:
    """Return the verdict of the plain runs alone. Nothing is proven yet."""
    last = plain.record.states.get(plain.steps)
    unsteady = first_difference(plain.record, again.record)
    return Verdict(
        command=command,
        fast=fast,
        steps=plain.steps,
        losses=len(plain.record.losses),
        tensors=len(last.digests) if last is not None else 0,
        plain_peak_bytes=plain.ending.peak_bytes,
        plain_seconds=plain.ending.seconds,
        device=device,
        plain_device_bytes=plain.ending.device_peak_bytes,
        unsteady=unsteady,
        unrepeated=differences(unsteady.step, plain.record, again.record) if unsteady is not None else (),
    )


def judge_bounded(verdict: Verdict, plain: Run, bounded: Run, min_storage_bytes: int) -> Verdict:
    """Return the verdict of the plain runs, which are alike, and of the bounded one."""
    report = bounded.report
    assert report is not None, "a session that ends writes its report"
    return replace(
        verdict,
        difference=first_difference(plain.record, bounded.record),
        budget_held=budget_held(report),
        trouble=report.trouble,
        fast_bytes=report.fast_bytes,
        arena_budget_bytes=report.arena_budget_bytes,
        arena_peak_bytes=report.arena_peak_bytes,
        process_peak_bytes=report.process_peak_bytes,
        bounded_seconds=bounded.ending.seconds,
        moved=moved(report, plain.ending.largest_bytes, min_storage_bytes),
    )
