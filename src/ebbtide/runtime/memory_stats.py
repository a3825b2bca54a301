"""The native counters by the names of ``torch.cuda.memory_stats``, where it has one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ebbtide._torch import Counters


def memory_stats(counters: "Counters") -> dict[str, int]:
    """Return bytes. "peak" is since the budget came into force."""
    levels = {
        "allocated_bytes.all": (counters["live_bytes"], counters["live_peak_bytes"]),
        "active_bytes.all": (counters["resident_bytes"], counters["resident_peak_bytes"]),
        "reserved_bytes.all": (counters["reserved_bytes"], counters["reserved_peak_bytes"]),
    }
    found = {}
    for name, (current, peak) in levels.items():
        found[f"{name}.current"] = current
        found[f"{name}.peak"] = peak
    return found | {
        "active.all.current": counters["blocks"],
        "reserved_bytes.limit": counters["arena_limit_bytes"],
        "evicted_bytes": sum(counters["evicted_bytes"]),
        "fetched_bytes": sum(counters["fetched_bytes"]),
        "written_bytes": sum(counters["written_bytes"]),
        "num_faults": counters["faults"],
    }
