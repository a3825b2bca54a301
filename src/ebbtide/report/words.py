"""The page's words and their meanings, for its foot. The project's glossary has more of them."""

from ebbtide.analysis.columns import has_lines
from ebbtide.report.subject import Subject

_WORDS = (
    ("storage", "One allocation, with all tensors and views in it: the smallest thing that moves."),
    ("step", "One iteration of training, from an optimizer's step to the next."),
    ("operation", "One operator with a kernel, such as aten::mm."),
    ("a step that never waits", "The sum of its operations' times, as if all storages stayed in memory."),
    ("in use, idle", "A storage is in use while an operation reads or writes it. All other time it lies idle."),
    ("access-time interval", "From one use of a storage to its next; also ATI."),
    ("bytes \u00d7 idle", "A storage's bytes times how long it lies idle: what there is to win by moving it."),
    ("tier", "A place for storages: memory (dram), or what stands behind it, such as a file on a disk."),
    ("moves in time", "It can be copied to the slower tier and back before its next use."),
)
_OF_LINES = (
    (
        "line",
        "The line of a library that made a storage, and the program's that called it; in the backward pass, the "
        "forward operator's.",
    ),
)
_OF_PLANS = (
    ("stall", "An operation stands still: for room in memory, for a copy that is late, or for one that nobody began."),
    (
        "plan",
        "Which storages leave memory when. Its budget is a little less than the run's: the rest is kept for what no "
        "recorded step shows, so measured bytes may lie between the two.",
    ),
    ("no plan is faster than", "A bound: by the model of the machine, no plan within its budget takes less time."),
)


def words_data(subject: Subject) -> list[tuple[str, str]]:
    """Return the words that this page uses."""
    trace = subject.trace
    words = [*_WORDS]
    words += _OF_LINES if trace is not None and has_lines(trace) else ()
    words += _OF_PLANS if subject.plan is not None or subject.timelines else ()
    return words
