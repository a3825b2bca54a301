"""Messages: why a run was not bounded or planned as asked, and what to do. Pure functions of what was seen."""

from ebbtide.units import format_bytes, option

_INSIDE = (
    "If the script trains in processes that it starts, put Ebbtide inside its launcher: `accelerate launch --no_python "
    "ebbtide run ...`, `torchrun --no-python ... ebbtide run ...`"
)
_STEP = "a step ends where the steps of torch.optim's optimizers end, or is what `session.step()` encloses"
_NONE_SEEN = "no step was seen, and a process that the script started"

REFUSED = "the budget was refused, so it was never in force: the process was bounded by what there is"
BELOW_THE_REST = (
    "the budget is less than the process holds without its tensors, and no step ended that would show which one works, "
    "so it was never in force: the process was bounded by what there is. PyTorch alone takes some 200 MiB"
)
INTERRUPTED = "it was interrupted before the two steps that find the peak of a percentage had ended"
LOCKED = (
    "the script has locked its memory (mlockall), which fills gigabytes of tables that Ebbtide only reserves: drop "
    "that call, which a budget makes needless, or run without Ebbtide"
)
NOTHING_MANAGED = (
    "no storage was large enough to be managed, so the percentage bounded nothing; EBBTIDE_MIN_STORAGE names the "
    "smallest that is"
)


def no_peak(share: float, steps: int, needed: int) -> str:
    """Say that too few steps have shown the peak of a percentage."""
    seen = f"{steps} of {needed} steps that find the peak were" if steps else "no optimizer step was"
    text = f"{seen} seen, so {100 * share:g} % could not be applied: the process was bounded by what there is"
    if steps:
        return f"{text}; train for longer, or give the budget in bytes, such as {option('fast', '8GiB')}"
    in_bytes = f"give the budget in bytes, such as {option('fast', '8GiB')}"
    return f"{text}; {_STEP}. {_INSIDE}. If it has no such optimizer, {in_bytes}"


def no_step_under(share: float, steps: int) -> str:
    """Say that no step followed those that found the peak of a percentage."""
    return (
        f"{steps} steps found the peak, and none followed, so no step ran within {100 * share:g} % of it: the process "
        f"was bounded by what there is; train for longer, or give the budget in bytes, such as {option('fast', '8GiB')}"
    )


def others_unbounded(peak_bytes: int, steps: int) -> str:
    """Say that the script trained in a process that it started, and one took more than this one; "" if none did."""
    if not peak_bytes:
        return ""
    seen = "a process that the script forked trained, and one that it started" if steps else _NONE_SEEN
    return (
        f"{seen} peaked at {format_bytes(peak_bytes)}, which nothing bounded: a budget is this process's alone; "
        f"{_STEP}. {_INSIDE}"
    )


def others_large(peak_bytes: int) -> str:
    """Say that a process took more than the budget, and may have trained or not."""
    return (
        f"a process that the script started peaked at {format_bytes(peak_bytes)}, more than the budget: nothing "
        f"bounded it, since a budget is this process's alone. {_INSIDE}"
    )


def others_unlaunched(ranks: int) -> str:
    """Say that no launcher started the other ranks, so that they may be the script's own."""
    return (
        f"this process trains as one of {ranks} ranks, and no launcher has told of them: those that the script starts "
        f"itself are bounded by nothing. {_INSIDE}; Lightning's `devices=2` needs its callback. Where each rank is "
        "under Ebbtide, begin its session after the process group, so that it takes its share of the node alone"
    )


def on_gpus(nbytes: int) -> str:
    """Say that the script trains on GPUs."""
    return (
        f"tensors take {format_bytes(nbytes)} on a GPU, and this budget bounds the process's memory alone: what runs "
        f"out of a GPU's memory still does. Name it ({option('device', 'cuda')}) to bound its memory in place of that"
    )


def limit_fell(process_bytes: int, rest_bytes: int, operator: str, need_bytes: int) -> str:
    """Say that the machine or a container now allows this process less than an operation needs."""
    return (
        f"the budget was exceeded: this process can have {format_bytes(process_bytes)}, since a limit fell or others "
        f"take more; {format_bytes(rest_bytes)} of it lie outside the tensors, and {operator or 'an operation'} needs "
        f"{format_bytes(need_bytes)}. Training goes on, and the kernel may end it: raise the limit, or stop what else "
        "takes memory"
    )


def no_plan(path: str, refusal: str, steps: int) -> str:
    """Say that no step followed the plan that was named."""
    return f"no step followed the plan {path}: {refusal or f'only {steps} steps were made'}"
