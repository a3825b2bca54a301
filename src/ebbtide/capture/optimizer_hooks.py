"""Finds from what optimizers do where steps end, and which storages are parameters, gradients and optimizer state.

``optimizer_events`` tells of every optimizer, even of one built before the session. ``iterations`` says where a
program's step ends.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

import ebbtide._torch as _torch
from ebbtide.capture.iterations import Iterations, is_outermost, steps_on_stack
from ebbtide.capture.objects import instances
from ebbtide.capture.optimizer_events import Call, Place, Subscriber, hears_of_steps, is_torchs_own
from ebbtide.capture.storage_parts import layout_of, storage_parts, tensors_in
from ebbtide.ir.run_report import KINDS

_PARAMETER = KINDS.index("parameter")
_GRADIENT = KINDS.index("gradient")
_OPTIMIZER_STATE = KINDS.index("optimizer_state")
_REST = 20
"""Looking for all parameters takes at most this part of the time where a program makes an optimizer for each task."""


class OptimizerHooks(Subscriber):
    """Tells a session about optimizers and classifies what they hold, while it is subscribed.

    ``on_built`` is called when an optimizer took parameters, before they are classified. ``on_begin`` is called after
    that, and when an optimizer starts to step. ``on_end`` is called when the program's step ended. All run on the
    optimizer's thread. ``native``, or what stands in for it, hears of kinds and of where optimizers run.
    """

    place = Place.STEPS

    def __init__(
        self,
        on_built: Callable[[], None],
        on_begin: Callable[[], None],
        on_end: Callable[[], None],
        native: Any = _torch,
    ) -> None:
        self._native = native
        self._on_built = on_built
        self._on_begin = on_begin
        self._on_end = on_end
        self._iterations = Iterations()
        self._has_news = True  # parameters that no optimizer has were not looked for since one was built
        self._looks_again_at = 0.0
        self._updated: dict[int, int] = {}  # in this step: the numbers in each parameter, by id
        self._updated_before: dict[int, int] = {}  # in the step before
        self.backward_ran = False

    @property
    def trained_parameters(self) -> int:
        """The numbers that optimizers updated in the last step that ended: a program may train many models in turn. In
        the first step, so far."""
        return sum((self._updated_before or self._updated).values())

    def built(self, optimizer: Optimizer) -> None:
        self._on_built()
        self._iterations.built(optimizer)
        self._classify(_parameters(optimizer), _PARAMETER)
        self._has_news = True
        self._on_begin()  # last, so that earlier moves of parameters do not count for this step

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
        self._on_begin()
        if self._has_news and (begun := monotonic()) >= self._looks_again_at:
            self._has_news = False
            every = (tensor for tensor in instances(torch.Tensor) if _is_parameter(tensor))
            self._classify(every, _PARAMETER)  # frozen ones, too
            ended = monotonic()
            self._looks_again_at = ended + _REST * (ended - begun)
        self._classify(_parameters(optimizer), _PARAMETER)
        self._classify(_gradients(optimizer), _GRADIENT)
        with torch._C.DisableTorchFunction():
            trained = (each for each in _parameters(optimizer) if _requires_grad(each) and not is_lazy(each))
            self._updated.update((id(each), torch.Tensor.numel(each)) for each in trained)
        self._native.enter_optimizer(True)
        return _with_closure(optimizer, args, kwargs, lambda closure: self._apart(optimizer, closure))

    def _apart(self, optimizer: Optimizer, closure: Callable[..., object]) -> Callable[..., object]:
        """Wrap a closure, which makes the gradients. Its passes are no part of the optimizer. PyTorch's own steps only
        call it, and an object of the script's may not like to be asked for a name."""

        def computing(*args: object, **kwargs: object) -> object:
            self._native.enter_optimizer(False)
            result = closure(*args, **kwargs)  # where it raises, the optimizer's step ends
            self._native.enter_optimizer(True)
            self._classify(_gradients(optimizer), _GRADIENT)
            return result

        return computing

    def after_step(self, optimizer: Optimizer) -> None:
        self._classify(tensors_in(optimizer.state), _OPTIMIZER_STATE)  # the keys are parameters
        if is_outermost():
            self._native.enter_optimizer(False)
        if self._iterations.stepped(optimizer):
            self._updated_before, self._updated = self._updated, {}
            self._on_end()

    def around_backward(self, run: Callable[[], Any], roots: Sequence[torch.Tensor], trains: bool) -> Any:
        self.backward_ran = True
        return run()

    def _classify(self, tensors: Iterable[torch.Tensor], kind: int) -> None:
        """Classify tensors. It looks at hundreds in microseconds, so nothing is remembered that could grow stale.

        A function mode of the script's, and its own types of tensors, hear of nothing that Ebbtide looks at."""
        with torch._C.DisableTorchFunction():
            parts = (part for tensor in tensors for part in storage_parts(tensor))
            self._native.classify([tensor for tensor in parts if layout_of(tensor) is torch.strided], kind)


class BeforeUpdates(Subscriber):
    """Tells a session that an iteration has made nothing but gradients so far: when a backward pass has ended, when the
    first outermost step begins, and when its closure has ended for the first time. The session may raise: nothing has
    changed yet, and a pass is where PyTorch's own error of memory leaves it. Callers MUST call ``begin`` where an
    iteration begins. Left out: what an optimizer of the script's own does within its step."""

    place = Place.BUDGET

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._has_updated = False

    def begin(self) -> None:
        self._has_updated = False

    def around_backward(self, run: Callable[[], Any], roots: Sequence[torch.Tensor], trains: bool) -> Any:
        result = run()
        if trains and not self._has_updated and not steps_on_stack():
            self._look()
        return result

    def after_step(self, optimizer: Optimizer) -> None:
        self._has_updated = True

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call | None:
        if self._has_updated or not is_outermost():
            return None
        self._look()
        return _with_closure(optimizer, args, kwargs, self._followed_by_a_look)

    def _followed_by_a_look(self, closure: Callable[..., object]) -> Callable[..., object]:
        is_first = True

        def computing(*args: object, **kwargs: object) -> object:
            nonlocal is_first
            result = closure(*args, **kwargs)
            if is_first:
                is_first = False
                self._look()
            return result

        return computing


def largest_parameter_bytes() -> int:
    """Return the size of the largest parameter of any optimizer. It looks through all objects."""
    optimizers = [each for each in instances(Optimizer) if hasattr(each, "param_groups")]
    with torch._C.DisableTorchFunction():
        return max((_nbytes_of(parameter) for each in optimizers for parameter in _parameters(each)), default=0)


def _with_closure(
    optimizer: Optimizer,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    wrap: Callable[[Callable[..., object]], Callable[..., object]],
) -> Call | None:
    """Return a step's arguments with a stand-in for its closure; None where it has none.

    PyTorch's own steps do nothing with a closure but call it. One of the script's, or a hook, may look at it, and take
    what it likes (a net can be called, too), so it gets what it was given. What such a closure does counts as the
    optimizer's.
    """
    if not is_torchs_own(type(optimizer).step) or hears_of_steps(optimizer):
        return None
    if callable(closure := kwargs.get("closure")):
        return args, {**kwargs, "closure": wrap(closure)}
    if len(args) > 1 and callable(args[1]):
        return (args[0], wrap(args[1]), *args[2:]), kwargs
    return None


_gradient_of, _requires_grad = (getattr(torch.Tensor, name).__get__ for name in ("grad", "requires_grad"))
"""As ``layout_of``."""


def _nbytes_of(tensor: torch.Tensor) -> int:
    """Return a strided tensor's bytes, and 0 of another's."""
    return torch.Tensor.nbytes.__get__(tensor) if layout_of(tensor) is torch.strided else 0  # type: ignore[attr-defined]


def _is_parameter(tensor: torch.Tensor) -> bool:
    """Tell whether it is one. PyTorch marks those of other classes."""
    if type(tensor) is torch.Tensor:
        return False
    return issubclass(type(tensor), torch.nn.Parameter) or bool(
        object.__getattribute__(tensor, "__dict__").get("_is_param")
    )


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _gradients(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    yield from (grad for grad in map(_gradient_of, _parameters(optimizer)) if grad is not None)
