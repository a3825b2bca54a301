"""The one place that hears of optimizers and backward passes, and tells subscribers of them in one order.

It puts itself in front of PyTorch with the first subscriber. Then PyTorch calls it before and after each optimizer's
step, when an optimizer takes parameters, and around each run of autograd's engine. ``Place`` is the order in which
subscribers are told:

- ``BeforeUpdates``, of a session, refuses a step that did not fit, before anything changes.
- ``deferred`` or ``in_backward``, where a session has one, changes what a step is called with. All others then see the
  step as it is carried out.
- ``OptimizerHooks``, of a session or a recorder, finds where the program's step begins and ends.
- ``Watch``, of ``ebbtide verify``, looks at the result of the step once the session has ended it.

All but the last subscribe when the session starts and go when it stops. ``Watch`` stays until the process ends. When
the last one goes, nothing of this is left in PyTorch (``in_front`` says how). An error that a subscriber raises leaves
``optimizer.step()`` or ``backward()``, and those after it are not told. A forked child tells its subscribers too. Each
of them knows the process that it belongs to.

This module knows nothing of native code. It imports torch late: a script may have something to set before that.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ebbtide.in_front import InFrontOf, Wrapper, is_ours

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""The arguments that a step is called with; the optimizer is the first."""


class Place(IntEnum):
    """The order in which subscribers hear that a step begins, and that it ends. Around a backward pass the last one is
    outermost, next to the script."""

    BUDGET = 0
    UPDATE_ORDER = 1
    STEPS = 2
    WATCH = 3


class Subscriber:
    """Hears of every optimizer and backward pass of the process, on the thread where it runs."""

    place: ClassVar[Place]

    def built(self, optimizer: "Optimizer") -> None:
        """Hear that it has just taken parameters."""

    def before_step(self, optimizer: "Optimizer", args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
        """Return other arguments for the step and for later subscribers; None leaves these."""

    def after_step(self, optimizer: "Optimizer") -> None:
        """Hear that its step has ended and raised nothing."""

    def around_backward(self, run: Callable[[], Any], roots: "Sequence[torch.Tensor]", trains: bool) -> Any:
        """Run the pass. ``trains``: it adds to the gradients of parameters, and lies in no other pass."""
        return run()


_KEY = "ebbtide"


class _Hook:
    """A hook in a table of PyTorch's, which numbers hooks as they come. A pickled net has the numbers of its own, so
    this one takes none."""

    def __init__(self, table: Any, hook: Callable[..., Any]) -> None:
        self._table = table
        table[_KEY] = hook

    def remove(self) -> None:
        self._table.pop(_KEY, None)


_subscribers: list[Subscriber] = []
_installed: list[_Hook | Wrapper] = []


def subscribe(subscriber: Subscriber) -> None:
    """Tell it, in its place, from now on."""
    _subscribers.append(subscriber)
    _subscribers.sort(key=lambda each: each.place)
    if not _installed:
        _install()


def unsubscribe(subscriber: Subscriber) -> None:
    """Tell it no more. Do nothing if it was not subscribed."""
    if subscriber in _subscribers:
        _subscribers.remove(subscriber)
    while _installed and not _subscribers:
        _installed.pop().remove()


def is_torchs_own(function: Any) -> bool:
    """Tell whether a function and all that it wraps are PyTorch's, below wrappers of ``in_front``."""
    defined_in = getattr(function, "__globals__", {}).get("__name__", "")
    if not is_ours(function) and not defined_in.startswith("torch."):
        return False
    return is_torchs_own(function.__wrapped__) if hasattr(function, "__wrapped__") else True


def hears_of_steps(optimizer: "Optimizer") -> bool:
    """Tell whether a hook of somebody else's hears of the optimizer's steps, and of what they are called with."""
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return True
    return bool(({*_global_optimizer_pre_hooks} | {*_global_optimizer_post_hooks}) - {_KEY})


def _install() -> None:
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    _installed.extend(
        (
            _Hook(_global_optimizer_pre_hooks, _uncompiled(_before_step)),
            _Hook(_global_optimizer_post_hooks, _uncompiled(_after_step)),
            *InFrontOf.OPTIMIZER_BUILT.install(_take_parameters),
            *InFrontOf.BACKWARD.install(_run_backward),
        )
    )


def _before_step(optimizer: "Optimizer", args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
    call = None
    for subscriber in tuple(_subscribers):
        call = subscriber.before_step(optimizer, *(call or (args, kwargs))) or call
    return call


def _after_step(optimizer: "Optimizer", args: object, kwargs: object) -> None:
    for subscriber in tuple(_subscribers):
        subscriber.after_step(optimizer)


def _take_parameters(original: Callable[..., None], optimizer: "Optimizer", *args: Any, **kwargs: Any) -> None:
    original(optimizer, *args, **kwargs)
    for subscriber in tuple(_subscribers):
        subscriber.built(optimizer)


def _run_backward(original: Callable[..., Any], roots: "Sequence[torch.Tensor]", *args: Any, **kwargs: Any) -> Any:
    import torch

    trains = bool(kwargs.get("accumulate_grad")) and torch._C._current_graph_task_id() == -1
    run: Callable[[], Any] = partial(original, roots, *args, **kwargs)
    for subscriber in _subscribers:
        run = partial(subscriber.around_backward, run, roots, trains)
    return run()


def _uncompiled(hook: Callable[..., Any]) -> Any:
    """Make the hook work in a compiled ``optimizer.step`` too: Dynamo calls it and does not trace into it.

    Dynamo is imported only once an optimizer exists. PyTorch wraps the optimizer's own methods in the same way.
    """
    from torch._compile import _disable_dynamo

    return _disable_dynamo(hook)
