"""A stand-in for the native module that moves nothing: it records what it is told and counts what a test says."""

import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch._dynamo  # noqa: F401 (the first optimizer imports it, which a session would hear of)
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import ebbtide
from ebbtide.in_front import InFrontOf
from ebbtide.ir.native import WORDS
from ebbtide.settings import ProgressMode, Settings
from tests.helpers.own_threads import own_threads

QUIET = Settings(progress=ProgressMode.OFF, spill=("/var/tmp",), policy="demand")
OVER_NATIVE = [
    "ebbtide.capture.lines",
    "ebbtide.capture.optimizer_hooks",
    *(f"ebbtide.budget.{name}" for name in ("budget_in_force", "limits")),
    *(f"ebbtide.runtime.{name}" for name in ("adopt", "arena_engine", "engine", "faults", "start_arena")),
]
NOTHING = (0, 0, 0, 0, 0)


class FakeNative(ModuleType):
    """Every call is appended to ``calls``; ``level`` holds the counters, which a test or ``at_step_end`` may set."""

    KINDS, PHASES, LANES, VERBS, ACCESSES = WORDS.values()
    ArenaSettings = AskedTier = SimpleNamespace

    def __init__(self) -> None:
        super().__init__("ebbtide._torch")
        self.calls: list[str] = []
        self.noted: list[bool] = []
        self.started: dict[str, Any] = {}
        self.limits: dict[str, int] = {}
        self.classified: dict[int, list[int]] = {}
        self.at_step_end: Callable[[], None] = lambda: None
        self.level: dict[str, Any] = dict.fromkeys(
            (  # noqa: SIM905 (a list of words)
                "live_bytes resident_bytes reserved_bytes arena_limit_bytes unmanaged_bytes "
                "elsewhere_bytes elsewhere_peak_bytes process_peak_bytes blocks live_peak_bytes step_live_peak_bytes "
                "reserved_peak_bytes resident_peak_bytes reserved_byte_ns resident_byte_ns measured_ns "
                "stall_room_ns stall_late_ns stall_fetch_ns fetching_ns evicting_ns "
                "operators faults made_anew_bytes made_anew_ns ingredient_bytes looked_at stuck_at_bytes held_bytes "
                "largest_operator_bytes largest_operator_used largest_operand_bytes refused"
            ).split(),
            0,
        )
        self.level |= {"evicted_bytes": NOTHING, "fetched_bytes": NOTHING, "written_bytes": NOTHING}
        self.level["resident_bytes_by_kind"] = NOTHING
        self.level |= {"over_budget": False, "message": "", "largest_operator": "", "tier_bytes": (0,)}
        self.level["tables_filled"] = False

    def counters(self) -> dict[str, Any]:
        return dict(self.level)

    def start(self, asked: SimpleNamespace) -> None:
        self.calls.append("start")
        self.started = vars(asked)
        self._limit(asked.arena_bytes, asked.process_bytes)

    def set_checksum(self, on: bool, pages: bool = False) -> None:
        self.started |= {"checksum": on, "checksum_pages": pages}

    def check_what_is_made(self, check: bool) -> None:
        self.started |= {"check_what_is_made": check}

    def want_all_recipes(self, all: bool) -> None:
        self.started |= {"want_all_recipes": all}

    def make_all(self) -> None:
        pass

    def enter_backend(self, tensors: Any) -> None:
        pass

    def exit_backend(self, work: object) -> None:
        pass

    def set_machine(self, nbytes: int) -> None:
        self.calls.append("set_machine")

    def set_limits(self, *, arena_bytes: int, process_bytes: int) -> None:
        if self.calls[-1:] == ["stop"]:
            return  # the session has ended
        self.calls.append("set_limits")
        self._limit(arena_bytes, process_bytes)

    def _limit(self, arena_bytes: int, process_bytes: int) -> None:
        self.limits = {"arena_bytes": arena_bytes, "process_bytes": process_bytes}
        self.level["arena_limit_bytes"] = arena_bytes or process_bytes

    def stop(self) -> None:
        self.calls.append("stop")

    def begin_step(self, *, record: bool = False, modules: bool = False) -> dict[str, Any]:
        self.calls.append("begin_step")
        return self.counters()

    def end_step(self, *, completed: bool = True) -> dict[str, Any]:
        self.calls.append("end_step")
        self.at_step_end()
        return self.counters()

    def watch(self, *, piece_bytes: int) -> None:
        self.calls.append("watch")

    def unwatch(self) -> None:
        self.calls.append("unwatch")

    def notice(self, tensors: Sequence[Any]) -> None:
        pass

    def note_lines(self, rules: Sequence[tuple[str, bool, int, str]]) -> None:
        self.noted.append(bool(rules))

    def enter_optimizer(self, enters: bool) -> None:
        pass

    def unload_schedules(self) -> None:
        pass

    def remeasure_unmanaged(self) -> None:
        self.calls.append("remeasure_unmanaged")

    def set_aside(self, bytes: int, process: int = 0) -> None:
        self.calls.append("set_aside")

    def reset_needs(self) -> None:
        self.level |= {"largest_operator_bytes": 0, "largest_operator": "", "stuck_at_bytes": 0}

    def reset_trouble(self) -> None:
        self.reset_needs()
        self.level["over_budget"] = False

    def reset_peaks(self) -> None:
        self.calls.append("reset_peaks")

    def classify(self, tensors: Sequence[Any], kind: int) -> None:
        self.classified.setdefault(kind, []).extend(id(tensor) for tensor in tensors)

    def is_managed(self, tensor: object) -> bool:
        return False

    def pin(self, address: int, nbytes: int = 0) -> bool:
        return False

    def adopt_all(self, attributes: Any, held_by_functions: Any, roots: Any) -> tuple[int, list[tuple[int, str]]]:
        return 0, []

    def change_repeatable(self, without: set[str], added: set[str]) -> None:
        pass

    def all_have_rounded_as_usual(self) -> None:
        pass

    def carry_out_all(self) -> None:
        pass

    def install_fault_handler(self) -> bool:
        return False

    def let_faults_into_pool(self) -> None:
        pass


def put_in_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNative]:
    """The fake in the place of the real one, for the modules that are above it; and what must be gone afterwards."""
    fake = FakeNative()
    # Their wrappers stay for good, so they are imported with the real module. Nothing is large enough for them, or
    # tensors of later tests would be read by the fake.
    monkeypatch.setattr("ebbtide.doors.tensors.guard_settings", lambda: None)
    monkeypatch.setattr("ebbtide.doors.foreign_views.sizes", lambda *_: None)
    monkeypatch.setitem(sys.modules, "ebbtide._torch", fake)
    monkeypatch.setattr(ebbtide, "_torch", fake, raising=False)
    for name in InFrontOf.FAULTS.value.names:
        monkeypatch.setattr(name, pkgutil.resolve_name(name))
    for name in OVER_NATIVE:
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = (Optimizer.add_param_group, dict(_global_optimizer_pre_hooks), dict(_global_optimizer_post_hooks))
    yield fake
    assert (Optimizer.add_param_group, _global_optimizer_pre_hooks, _global_optimizer_post_hooks) == before
    assert own_threads() == []
    for name in OVER_NATIVE:
        sys.modules.pop(name, None)
