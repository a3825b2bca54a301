"""A stand-in for the native module that moves nothing: it records what it is told and counts what a test says."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ebbtide.ir.native import WORDS

NOTHING = (0, 0, 0, 0, 0)


class FakeNative(ModuleType):
    """Every call is appended to ``calls``; ``level`` holds the counters, which a test or ``at_step_end`` may set."""

    KINDS, PHASES, LANES, VERBS, ACCESSES = WORDS.values()

    def __init__(self) -> None:
        super().__init__("ebbtide._torch")
        self.calls: list[str] = []
        self.started: dict[str, Any] = {}
        self.limits: dict[str, int] = {}
        self.classified: dict[int, list[int]] = {}
        self.at_step_end: Callable[[], None] = lambda: None
        self.level: dict[str, Any] = dict.fromkeys(
            (  # noqa: SIM905 (a list of words)
                "live_bytes resident_bytes clean_bytes dirty_bytes reserved_bytes arena_limit_bytes "
                "process_limit_bytes unmanaged_bytes spill_bytes blocks live_peak_bytes reserved_peak_bytes "
                "resident_peak_bytes reserved_byte_ns resident_byte_ns measured_ns stall_capacity_ns stall_late_ns "
                "stall_fetch_ns fetching_ns evicting_ns faults cancelled looked_at memory_areas "
                "largest_operator_bytes largest_operator_used largest_operand_bytes stuck_at_bytes"
            ).split(),
            0,
        )
        self.level |= {"evicted_bytes": NOTHING, "fetched_bytes": NOTHING, "written_bytes": NOTHING}
        self.level |= {"over_budget": False, "message": "", "largest_operator": ""}

    def counters(self) -> dict[str, Any]:
        return dict(self.level)

    def start(self, **settings: Any) -> None:
        self.calls.append("start")
        self.started = settings
        self._limit(settings["arena_bytes"], settings["process_bytes"])

    def serves_system_calls(self) -> bool:
        return False

    def set_checksum(self, on: bool) -> None:
        self.started["checksum"] = on

    def set_limits(self, *, arena_bytes: int, process_bytes: int) -> None:
        self.calls.append("set_limits")
        self._limit(arena_bytes, process_bytes)

    def _limit(self, arena_bytes: int, process_bytes: int) -> None:
        self.limits = {"arena_bytes": arena_bytes, "process_bytes": process_bytes}
        self.level["arena_limit_bytes"] = arena_bytes or process_bytes
        self.level["process_limit_bytes"] = process_bytes

    def stop(self) -> None:
        self.calls.append("stop")

    def begin_step(self, *, record: bool = False) -> dict[str, Any]:
        self.calls.append("begin_step")
        return self.counters()

    def end_step(self, *, completed: bool = True) -> dict[str, Any]:
        self.calls.append("end_step")
        self.at_step_end()
        return self.counters()

    def watch(self) -> None:
        self.calls.append("watch")

    def unwatch(self) -> None:
        self.calls.append("unwatch")

    def notice(self, tensors: Sequence[Any]) -> None:
        pass

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

    def reset_peaks(self) -> None:
        self.calls.append("reset_peaks")

    def classify(self, tensors: Sequence[Any], kind: int) -> None:
        self.classified.setdefault(kind, []).extend(id(tensor) for tensor in tensors)

    def is_managed(self, tensor: object) -> bool:
        return False

    def pin(self, address: int) -> bool:
        return False

    def adopt_all(self, objects: Any, owners: Any, held_by_functions: Any) -> tuple[int, list[tuple[int, str]]]:
        return 0, []

    def install_fault_handler(self) -> bool:
        return False
