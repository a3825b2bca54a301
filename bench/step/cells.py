"""What is measured: a cell is one network trained in one way. Most important first.

A cell's name is ``network/way``. Ways:

``stock``        plain PyTorch
``tuned``        with glibc told to keep its freed memory: what all others are compared with
``control``      tuned once more: how far two equal runs lie apart
``25%``          Ebbtide, planned
``moves-25%``    the same, with nothing made anew
``state/3``      Ebbtide, the whole process in a third of what parameters, gradients and optimizer state take
``in-backward-state/3``  the same, each parameter updated in the backward pass
``deferred-state/3``  the same, each parameter updated before its next use
``lru-25%``      Ebbtide under another policy of `ebbtide run`: an online one, ``demand`` among them, or another planner
``checkpoint``, ``hooks``, ``compile-0.5``: the techniques of ``techniques.py``, with tuned glibc
``swap-25%``     plain, in a memory cgroup a little larger than Ebbtide's process at 25%, with the kernel's swap
``deepspeed``    ZeRO-3 with the optimizer on NVMe
``zero-offload``, ``zero-offload-state/3``: ZeRO-3 with the optimizer in host memory, alone and within Ebbtide
"""

from dataclasses import dataclass
from enum import Enum

from bench.step.nets import NETS, Net
from ebbtide.planners import PLANNERS
from ebbtide.planning.policies import is_planned
from ebbtide.simulator import POLICIES

ORDERS = ("in-backward", "deferred")
DEEPSPEED = {"deepspeed": "nvme", "zero-offload": "cpu"}  # where each has its optimizer
TECHNIQUES = ("checkpoint", "hooks", "compile-0.5")  # of techniques.py, which imports torch
BUDGETS = ("100%", "75%", "50%", "35%", "25%", "15%", "10%")
STEADY_STEPS = 4


class Door(Enum):
    """How a child is started. All but EBBTIDE and DEEPSPEED are ``python train.py``."""

    STOCK = "stock"
    TUNED = "tuned"
    EBBTIDE = "ebbtide"
    SWAP = "swap"
    DEEPSPEED = "deepspeed"


@dataclass(frozen=True, slots=True)
class Cell:
    """``fast`` is Ebbtide's budget, for SWAP the budget of the Ebbtide cell whose peak is the limit.

    ``order`` is when parameters are updated; ``settle_steps`` run before the ``STEADY_STEPS`` that count.
    """

    net: Net
    way: str
    door: Door
    fast: str = ""
    policy: str = "ebbtide"
    order: str = "as-written"
    technique: str = "plain"
    remake: bool = True
    settle_steps: int = 1

    @property
    def name(self) -> str:
        return f"{self.net.name}/{self.way}"

    @property
    def fast_argument(self) -> str:
        """What ``--fast`` is given: a percentage of the step's peak, or bytes for the process."""
        if self.fast.startswith("state/"):
            return str(self.net.shape.state_bytes // int(self.fast.removeprefix("state/")))
        return self.fast

    @property
    def needed_bytes(self) -> int:
        """About what the process peaks at; a budget in percent begins with two unbounded steps."""
        return int(self.fast_argument) if self.fast_argument.isdigit() else self.net.peak_bytes

    @property
    def steps(self) -> int:
        return self.settle_steps + self.net.more_steps + STEADY_STEPS


EBBTIDE_SETTLE_STEPS = 10  # two unbounded, one into the budget, and looks after which steps are planned anew
DEMAND_SETTLE_STEPS = 3
COMPILE_SETTLE_STEPS = 2


def cell(name: str) -> Cell:
    """Raises ValueError for a name that means nothing."""
    net_name, _, way = name.partition("/")
    if net_name not in NETS:
        raise ValueError(f"there is no network {net_name!r}; there are {', '.join(NETS)}")
    net = NETS[net_name]
    kind, _, budget = way.rpartition("-")
    if way == "stock":
        return Cell(net, way, Door.STOCK)
    if way in ("tuned", "control"):
        return Cell(net, way, Door.TUNED)
    if way in DEEPSPEED:
        return Cell(net, way, Door.DEEPSPEED, technique=DEEPSPEED[way])
    if kind == "zero-offload" and _is_budget(budget):
        technique = DEEPSPEED[kind]
        return Cell(net, way, Door.DEEPSPEED, budget, technique=technique, settle_steps=EBBTIDE_SETTLE_STEPS)
    if way in TECHNIQUES:
        settle = COMPILE_SETTLE_STEPS if way.startswith("compile") else 1
        return Cell(net, way, Door.TUNED, technique=way, settle_steps=settle)
    if kind == "swap" and _is_budget(budget):
        return Cell(net, way, Door.SWAP, fast=budget)
    if kind == "moves" and _is_budget(budget):
        return Cell(net, way, Door.EBBTIDE, fast=budget, remake=False, settle_steps=EBBTIDE_SETTLE_STEPS)
    if kind in ORDERS and _is_budget(budget):
        return Cell(net, way, Door.EBBTIDE, fast=budget, order=kind, settle_steps=EBBTIDE_SETTLE_STEPS)
    if kind in (*POLICIES, *PLANNERS) and _is_budget(budget):
        settle = EBBTIDE_SETTLE_STEPS if is_planned(kind) else DEMAND_SETTLE_STEPS
        return Cell(net, way, Door.EBBTIDE, fast=budget, policy=kind, settle_steps=settle)
    if _is_budget(way):
        return Cell(net, way, Door.EBBTIDE, fast=way, settle_steps=EBBTIDE_SETTLE_STEPS)
    raise ValueError(f"{name!r} names no cell; `--list` shows them all")


def _is_budget(text: str) -> bool:
    return text.removesuffix("%").isdigit() or text.removeprefix("state/").isdigit()


def _names() -> list[str]:
    """The most important first; `tuned` is run beside each."""
    headline, state = ("gpt2-bf16", "resnet50"), ("gpt-210M", "gpt-400M")
    peers = ("checkpoint", "hooks", "compile-0.5", "swap-25%")
    names = [f"{net}/{way}" for net in headline for way in ("25%", "50%", "100%", "stock")]
    orders = [f"{order}-state/3" for order in ORDERS]
    names += [f"{net}/{way}" for net in state for way in ("state/3", *orders, "stock")]
    names += [f"{net}/{way}" for net in headline for way in (*peers, "demand-25%", "control")]
    names += [f"gpt-210M/{way}" for way in ("checkpoint", "hooks", "compile-0.5", "swap-state/3", *DEEPSPEED)]
    names += ["gpt-210M/zero-offload-state/3", "gpt-210M/demand-state/3"]
    names += ["gpt-1B/state/3", *(f"gpt-1B/{way}" for way in orders), "gpt-1B/stock"]
    names += [f"gpt-400M/{order}-state/10" for order in ORDERS]
    names += [f"{net}/{budget}" for net in headline for budget in ("15%", "10%", "35%", "75%")]
    names += [f"gpt2-fp32/{way}" for way in (*BUDGETS, "stock", *peers)]
    names += [f"{net}/{budget}" for net in state for budget in BUDGETS]
    names += [f"gpt-400M/{way}" for way in ("checkpoint", "swap-state/3")]
    many = ("gpt2-bf16", "gpt2-fp32", "llama", "resnet50", "resnet50-96px-20")
    names += [f"{net}/{way}" for net in many for way in ("25%", "moves-25%", "checkpoint")]
    return list(dict.fromkeys(names))


CELLS = tuple(cell(name) for name in _names())
