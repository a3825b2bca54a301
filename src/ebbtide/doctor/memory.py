"""Examines how the kernel hands out memory here: pages, areas, limits, and the C library's heap."""

from ebbtide.doctor.finding import Finding, Level
from ebbtide.doctor.view import View
from ebbtide.host.process import memory_limit
from ebbtide.units import KIB, MIB, format_bytes

_HUGE = "sys/kernel/mm/transparent_hugepage"
_HUGE_PAGE_BYTES = 2 * MIB
_AREAS_A_PAGE = 2  # a huge page that moved is one area where it lies, and another where it came from
_COMFORTABLE_AREAS = 1_000_000
_OWN_AREAS = 4096  # libraries, heaps and stacks have some hundreds
_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")


def memory(view: View) -> Finding:
    limit = memory_limit(view.proc)
    found = f"{format_bytes(limit.nbytes)}, the limit of {limit.source}"
    free = available(view)
    if free is not None:
        found += f"; {format_bytes(free)} of the machine's are free now"
    means = "--fast 8GiB bounds the whole process; a budget above the limit is brought down to a little below it"
    return Finding("memory", Level.OK, found, means)


def huge_pages(view: View) -> Finding:
    means = "storages of 2 MiB and more move in huge pages: several times faster than in pages of 4 KiB"
    chosen = _chosen(view.read(f"{_HUGE}/enabled"))
    if chosen not in ("always", "madvise"):
        found = "switched off" if chosen == "never" else "this kernel has none"
        cure = f"as root, on the host of a container: echo madvise > /{_HUGE}/enabled"
        return Finding("huge pages", Level.HINT, found, means, cure)
    if "THP_enabled:\t0" in view.read("proc/self/status"):
        cure = "start it without PR_SET_THP_DISABLE (a parent process or a service manager set it)"
        return Finding("huge pages", Level.HINT, "switched off for this process", means, cure)
    defrag = _chosen(view.read(f"{_HUGE}/defrag"))
    if defrag == "never":
        cure = f"as root: echo madvise > /{_HUGE}/defrag"
        found = "on, but none are made when memory is fragmented (defrag: never)"
        return Finding("huge pages", Level.HINT, found, means, cure)
    return Finding("huge pages", Level.OK, f"on ({chosen}, defrag {defrag or 'unknown'})", means)


def page_moves(view: View) -> Finding:
    means = "evicting and fetching moves pages from one address to another (mremap with MREMAP_DONTUNMAP, Linux 5.7)"
    error = view.try_page_move()
    if error:
        cure = "use a newer kernel; sandboxes that imitate one (gVisor) may lack it: use another runtime there"
        return Finding("page moves", Level.PROBLEM, f"refused: {error}", means, cure)
    return Finding("page moves", Level.OK, "work", means)


def overcommit(view: View) -> Finding:
    means = "the arena reserves far more address space than it ever fills"
    mode = view.number("proc/sys/vm/overcommit_memory")
    if mode == 2:
        cure = "as root: sysctl vm.overcommit_memory=0 (or 1)"
        found = "strict (2): what is reserved counts as if it were used, moved out or not"
        return Finding("overcommit", Level.HINT, found, means, cure)
    found = {0: "by rule of thumb (0)", 1: "always (1)"}.get(-1 if mode is None else mode, "unknown")
    return Finding("overcommit", Level.OK, found, means)


def memory_areas(view: View) -> Finding:
    """Examine the limit of memory areas, against the need of a process that fills memory with huge pages that moved."""
    limit = view.number("proc/sys/vm/max_map_count")
    needed = _OWN_AREAS + _AREAS_A_PAGE * (memory_limit(view.proc).nbytes // _HUGE_PAGE_BYTES)
    means = (
        "each huge page that moved is a memory area of its own, as are scattered small storages; where they run short "
        "the smallest stay in memory, or whole stretches of them leave"
    )
    if limit is None:
        return Finding("memory areas", Level.OK, "the limit is unknown", means)
    found = f"vm.max_map_count is {limit}, and {needed} may be needed to use all the memory there is"
    if limit < needed:
        cure = f"as root: sysctl vm.max_map_count={max(needed, _COMFORTABLE_AREAS)}, or a budget below "
        cure += format_bytes((limit - _OWN_AREAS) // _AREAS_A_PAGE * _HUGE_PAGE_BYTES)
        return Finding("memory areas", Level.HINT, found, means, cure)
    return Finding("memory areas", Level.OK, found, means)


def resource_limits(view: View) -> Finding:
    means = "limits on address space or private memory stop a run, and so does a spill file as large as a file may be"
    options = {"RLIMIT_AS": "-v", "RLIMIT_DATA": "-d", "RLIMIT_FSIZE": "-f"}
    limited = [name for name in options if name in view.soft_limits]
    if not limited:
        return Finding("resource limits", Level.OK, "none that matters", means)
    found = ", ".join(f"{name} is {format_bytes(view.soft_limits[name])}" for name in limited)
    cure = "; ".join(f"ulimit {options[name]} unlimited" for name in limited) + " (a batch system sets such limits too)"
    level = Level.HINT if limited == ["RLIMIT_FSIZE"] else Level.PROBLEM
    return Finding("resource limits", level, found, means, cure)


def heap(view: View) -> Finding:
    means = (
        "tensors of 64 KiB and more come from the arena, which keeps its pages; plain PyTorch gives them back and "
        "faults them in anew each step, so a fair comparison is with a plain run whose heap keeps them: docs/guide.md "
        "has the variable"
    )
    preloaded = [name for name in _ALLOCATORS if name in view.environment.get("LD_PRELOAD", "")]
    slow = [name for name in ("MALLOC_CHECK_", "MALLOC_PERTURB_") if view.environment.get(name, "0") != "0"]
    if slow:
        return Finding("heap", Level.HINT, f"{' and '.join(slow)} set: every allocation is slow", means, "unset them")
    if preloaded:
        return Finding("heap", Level.OK, f"{' and '.join(preloaded)} in place of the C library's", means)
    if "glibc.malloc" in view.environment.get("GLIBC_TUNABLES", ""):
        return Finding("heap", Level.OK, "the C library's, tuned (GLIBC_TUNABLES)", means)
    return Finding("heap", Level.OK, "the C library's, as it comes", means)


def available(view: View) -> int | None:
    """Return what the machine has free, None where it does not say."""
    for line in view.read("proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * KIB
    return None


def _chosen(text: str) -> str:
    """Return the word in brackets."""
    return text.partition("[")[2].partition("]")[0]
