"""Scenarios of cases_in_backward.py that an early update does not allow: from their first step on (they are left as
written), or from ``LATER`` on (an error)."""

import gc
import io
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn, optim
from torch._dynamo import compiled_autograd
from torch.nn import functional as F

from ebbtide.errors import OrderError
from tests.training.cases_in_backward import (
    WIDTH,
    Both,
    Rounded,
    adamw,
    checkpointed_step,
    compare,
    loss_of,
    plain_step,
    session,
    tokens,
    train,
)

LATER = 3
"""A step in which updates are early, if they ever are."""


Step = Callable[[Any, Any, int], None]


def before_step(act: Step) -> Step:
    """A step of training that does this between its backward pass and the optimizer's step."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        optimizer.zero_grad()
        loss_of(net, number).backward()
        act(net, optimizer, number)
        optimizer.step()

    return step


# ---- left as written ----------------------------------------------------------------------------------------------


@before_step
def accumulates(net: Any, optimizer: Any, number: int) -> None:
    loss_of(net, number + 50).backward()


@before_step
def clips(net: Any, optimizer: Any, number: int) -> None:
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)


@before_step
def reads_gradients(net: Any, optimizer: Any, number: int) -> None:
    [p.grad.sum() for p in net.parameters() if p.grad is not None]


@before_step
def reads_parameters(net: Any, optimizer: Any, number: int) -> None:
    net.layers[2].weight.detach().sum()


@before_step
def reads_state(net: Any, optimizer: Any, number: int) -> None:
    for state in optimizer.state.values():
        state["exp_avg"].sum()


def scales(net: Any, optimizer: Any, number: int) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    optimizer.zero_grad()
    scaler.scale(loss_of(net, number)).backward()
    scaler.step(optimizer)
    scaler.update()


@before_step
def schedules_before_step(net: Any, optimizer: Any, number: int) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5


@before_step
def loads_before_step(net: Any, optimizer: Any, number: int) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


def keeps_gradients(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad(set_to_none=False)
    loss_of(net, number).backward()
    optimizer.step()


def gives_a_closure(net: Any, optimizer: Any, number: int) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(net, number)
        loss.backward()
        return loss

    optimizer.step(closure)


def steps_under_autocast(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss_of(net, number).backward()
        optimizer.step()


def steps_compiled(net: Any, optimizer: Any, number: int) -> None:
    if not hasattr(optimizer, "compiled"):
        optimizer.compiled = torch.compile(optimizer.step, backend="eager")
    optimizer.zero_grad()
    loss_of(net, number).backward()
    optimizer.compiled()


def compiles_backward(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss = loss_of(net, number)
    with compiled_autograd._enable(torch.compile(backend="eager")):
        loss.backward()
    optimizer.step()


checkpoints_tied_layers = checkpointed_step((1, 2, 1), use_reentrant=True)
"""Each of its two backward passes within the backward pass completes the layer's gradient."""


@before_step
def steps_twice(net: Any, optimizer: Any, number: int) -> None:
    optimizer.step()


def halve(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


def with_a_hook_of_step(net: Any) -> optim.Optimizer:
    optimizer = adamw(net)

    def halve_all(*_: Any) -> None:
        for parameter in net.layers.parameters():
            halve(parameter)

    optimizer.register_step_pre_hook(halve_all)
    return optimizer


def with_a_hook_of_a_gradient(net: Any) -> optim.Optimizer:
    net.layers[2].weight.register_post_accumulate_grad_hook(halve)
    return adamw(net)


class Own(optim.AdamW):
    """Not one of torch.optim."""


def of_its_own(net: Any) -> optim.Optimizer:
    optimizer = Own([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    optimizer.state["calls"] = 0  # as some keep what is no parameter's
    return optimizer


def _clip(parameters: Iterable[Any]) -> None:
    nn.utils.clip_grad_norm_([parameter for parameter in parameters if parameter.grad is not None], 0.1)


def clips_in_step(net: Any) -> optim.Optimizer:
    """The program has replaced the step of a class of torch.optim, and clips all gradients together there."""
    inner: Any = optim.AdamW.step

    def step(self: Any, closure: Any = None) -> Any:
        _clip(self.param_groups[0]["params"])
        return inner(self, closure)

    if not hasattr(inner, "clips"):
        step.clips = True  # type: ignore[attr-defined]
        optim.AdamW.step = step  # type: ignore[method-assign]
    return adamw(net)


def clips_in_a_function(net: Any) -> optim.Optimizer:
    module: Any = sys.modules["torch.optim.adam"]
    inner = module.adam

    def adam(parameters: Any, *args: Any, **kwargs: Any) -> None:
        _clip(parameters)
        inner(parameters, *args, **kwargs)

    if inner.__module__.startswith("torch."):
        module.adam = adam
    return adamw(net)


def clips_as_it_collects(net: Any) -> optim.Optimizer:
    """By a method of the optimizer's own."""
    optimizer: Any = adamw(net)
    collect = optimizer._init_group

    def init_group(group: Any, *lists: Any) -> Any:
        _clip(group["params"])
        return collect(group, *lists)

    optimizer._init_group = init_group
    return cast(optim.Optimizer, optimizer)


def lbfgs(net: Any) -> optim.Optimizer:
    return optim.LBFGS([p for p in net.parameters() if p.requires_grad], lr=1e-2, max_iter=2)


def two_of_the_same(net: Any) -> Both:
    thawed = [p for p in net.parameters() if p.requires_grad]
    return Both(optim.AdamW(thawed, lr=1e-2), optim.AdamW(thawed, lr=1e-2))


def one_zeroes(net: Any, both: Both, number: int) -> None:
    both.all_of[0].zero_grad()
    loss_of(net, number).backward()
    for optimizer in both.all_of:
        optimizer.step()


def sharing_memory(net: Any) -> optim.Optimizer:
    net.layers[2].weight.data = net.layers[0].weight.data
    return adamw(net)


def with_state_that_shares_memory(net: Any) -> optim.Optimizer:
    optimizer = adamw(net)
    first, second = net.layers[0].weight, net.layers[2].weight
    for parameter in (first, second):
        optimizer.state[parameter] = {"step": torch.tensor(0.0), "exp_avg": torch.zeros(WIDTH, WIDTH)}
        optimizer.state[parameter]["exp_avg_sq"] = torch.zeros(WIDTH, WIDTH)
    optimizer.state[second]["exp_avg"].data = optimizer.state[first]["exp_avg"].data
    return optimizer


def steps_in_a_mode(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    with Rounded():
        optimizer.step()


def steps_in_inference_mode(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    with torch.inference_mode():
        optimizer.step()


def of_two_types(net: Any) -> optim.Optimizer:
    """Adafactor's epsilon for all parameters is that of the first one's type."""
    net.layers[0].bfloat16()
    return optim.Adafactor([*net.layers[0].parameters(), *net.layers[1:].parameters()], lr=1e-2)


def step_of_two_types(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(number))
    x = net.layers[0](x.bfloat16()).float()
    for _ in range(3):
        for layer in net.layers[1:]:
            x = F.gelu(layer(x))
    x.square().mean().backward()
    optimizer.step()


def with_a_sparse_gradient(net: Any) -> optim.Optimizer:
    """With which Adagrad goes through all parameters of its list one by one: in bfloat16 that rounds otherwise."""
    net.sparse = nn.Embedding(WIDTH, WIDTH, sparse=True)
    net.bfloat16()
    return optim.Adagrad([*net.layers.parameters(), net.sparse.weight], lr=1e-2, foreach=True)


def step_with_a_sparse_gradient(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    net.layers[0](net.layers[1](net.sparse(tokens(number)))).square().mean().backward()
    optimizer.step()


@before_step
def scales_by_hand(net: Any, optimizer: Any, number: int) -> None:
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(float(number == LATER))


def fused(net: Any) -> optim.Optimizer:
    return optim.AdamW(net.layers.parameters(), lr=1e-2, fused=True)


def with_a_scale_that_stays(net: Any) -> optim.Optimizer:
    optimizer: Any = fused(net)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
    return optimizer  # type: ignore[no-any-return]


def with_frozen_layers_of_another_type(net: Any) -> optim.Optimizer:
    """They have gradients, and so they are updated."""
    net.layers[0].bfloat16().requires_grad_(False)
    for parameter in net.layers[0].parameters():
        parameter.grad = torch.ones_like(parameter)
    return optim.Adafactor([*net.layers[0].parameters(), *net.layers[1:].parameters()], lr=1e-2)


def step_of_the_others(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad(set_to_none=False)
    x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(number))
    net.layers[1](net.layers[2](x)).square().mean().backward()
    optimizer.step()


def with_an_array_as_rate(net: Any) -> optim.Optimizer:
    return optim.SGD(net.layers.parameters(), lr=np.array(0.1), momentum=0.9, foreach=False)  # type: ignore[arg-type]


@before_step
def changes_the_array(net: Any, optimizer: Any, number: int) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5


class Rate:
    """A number that nobody else can keep."""

    def __init__(self) -> None:
        self.of_now = 0.1

    def __neg__(self) -> float:
        return -self.of_now


def with_an_object_as_rate(net: Any) -> optim.Optimizer:
    optimizer = optim.SGD(net.layers.parameters(), lr=0.1, momentum=0.9, foreach=False)
    optimizer.param_groups[0]["lr"] = Rate()
    return optimizer


@before_step
def changes_the_object(net: Any, optimizer: Any, number: int) -> None:
    optimizer.param_groups[0]["lr"].of_now *= 0.5


class Halved(float):
    """A number of which an optimizer takes another one."""

    def __neg__(self) -> float:
        return -0.5 * float(self)


def with_a_number_of_its_own(net: Any) -> optim.Optimizer:
    return optim.SGD(net.layers.parameters(), lr=Halved(0.1), momentum=0.9, foreach=False)


class Warm(dict[str, Any]):
    """Settings of which an optimizer reads others than there are."""

    def __getitem__(self, name: str) -> Any:
        return 0.5 * super().__getitem__(name) if name == "lr" else super().__getitem__(name)


def with_a_group_of_its_own(net: Any) -> optim.Optimizer:
    optimizer = optim.SGD(net.layers.parameters(), lr=0.1, momentum=0.9, foreach=False)
    optimizer.param_groups[0] = Warm(optimizer.param_groups[0])
    return optimizer


def with_a_rate_for_inference(net: Any) -> optim.Optimizer:
    with torch.inference_mode():
        rate = torch.tensor(0.1)
    return optim.SGD(net.layers.parameters(), lr=rate, momentum=0.9, foreach=False)


def with_nesterov_over_lists(net: Any) -> optim.Optimizer:
    """PyTorch adds the momentum to the gradients themselves."""
    return optim.SGD(net.layers.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=True)


def with_a_rate_that_requires_gradients(net: Any) -> optim.Optimizer:
    """With which PyTorch multiplies and adds in two operators."""
    rate = torch.tensor(0.1, requires_grad=True)
    return optim.SGD(net.layers.parameters(), lr=rate, momentum=0.9, foreach=False)


def with_a_layer_that_is_not_yet_made(net: Any) -> optim.Optimizer:
    return optim.AdamW([*net.layers.parameters(), *nn.LazyLinear(WIDTH).parameters()], lr=1e-2)


EITHER: dict[str, tuple[Callable[..., None], Callable[[nn.Module], Any], str]] = {
    "gives_a_closure": (gives_a_closure, adamw, "closure"),
    "with_a_hook_of_step": (plain_step, with_a_hook_of_step, "a hook of its step may change gradients"),
    "of_its_own": (plain_step, of_its_own, "only optimizers of torch.optim"),
    "clips_in_step": (plain_step, clips_in_step, "not PyTorch's own"),
    "clips_in_a_function": (plain_step, clips_in_a_function, "not PyTorch's own"),
    "clips_as_it_collects": (plain_step, clips_as_it_collects, "not PyTorch's own"),
    "lbfgs": (gives_a_closure, lbfgs, "only optimizers of torch.optim"),
    "steps_in_a_mode": (steps_in_a_mode, adamw, "within a mode"),
    "of_two_types": (step_of_two_types, of_two_types, "the parameters have several types"),
    "with_a_sparse_gradient": (
        step_with_a_sparse_gradient,
        with_a_sparse_gradient,
        "a sparse gradient changes how the other parameters",
    ),
    "with_frozen_layers_of_another_type": (
        step_of_the_others,
        with_frozen_layers_of_another_type,
        "the parameters have several types",
    ),
    "changes_the_object": (changes_the_object, with_an_object_as_rate, "its setting lr is a Rate"),
    "with_a_number_of_its_own": (plain_step, with_a_number_of_its_own, "its setting lr is a Halved"),
    "with_a_group_of_its_own": (plain_step, with_a_group_of_its_own, "of a class of the script's own"),
    "with_nesterov_over_lists": (plain_step, with_nesterov_over_lists, "SGD changes gradients"),
    "with_a_rate_that_requires_gradients": (
        plain_step,
        with_a_rate_that_requires_gradients,
        "its setting lr is a Tensor",
    ),
    "with_a_layer_that_is_not_yet_made": (
        plain_step,
        with_a_layer_that_is_not_yet_made,
        "a parameter is a UninitializedParameter",
    ),
}
"""What both other orders leave as written: the scenario, its optimizer, and what is said of it."""
REFUSALS = EITHER | {
    "accumulates": (
        accumulates,
        adamw,
        "another forward pass ran between the backward pass and step (gradient accumulation?): cases_in",
    ),
    "clips": (clips, adamw, "clip_grad_norm_"),
    "reads_gradients": (reads_gradients, adamw, "uses what its step works on"),
    "reads_parameters": (reads_parameters, adamw, "uses what its step works on"),
    "scales": (scales, adamw, "scaler.step"),
    "schedules_before_step": (schedules_before_step, adamw, "lr changed"),
    "loads_before_step": (loads_before_step, adamw, "its state changed"),
    "keeps_gradients": (keeps_gradients, adamw, "or kept"),
    "steps_under_autocast": (steps_under_autocast, adamw, "autocast"),
    "steps_compiled": (steps_compiled, adamw, "compiled"),
    "compiles_backward": (compiles_backward, adamw, "the backward pass is compiled"),
    "checkpoints_tied_layers": (checkpoints_tied_layers, adamw, "uses what its step works on"),
    "steps_twice": (steps_twice, adamw, "a gradient is changed"),
    "with_a_hook_of_a_gradient": (plain_step, with_a_hook_of_a_gradient, "waits for its gradients"),
    "two_of_the_same": (one_zeroes, two_of_the_same, "the same parameters"),
    "sharing_memory": (plain_step, sharing_memory, "share memory"),
    "with_state_that_shares_memory": (plain_step, with_state_that_shares_memory, "its state shares memory"),
    "steps_in_inference_mode": (steps_in_inference_mode, adamw, "inference mode"),
    "scales_by_hand": (scales_by_hand, fused, "found_inf changed between the backward pass and step"),
    "with_a_scale_that_stays": (plain_step, with_a_scale_that_stays, "its grad_scale is set"),
    "changes_the_array": (changes_the_array, with_an_array_as_rate, "lr changed between the backward pass and step"),
    "with_a_rate_for_inference": (plain_step, with_a_rate_for_inference, "its setting lr is a Tensor"),
}
"""What is left as written because it looks at what an early update changes, too."""


def refused(name: str) -> tuple[str, ...]:
    """What the report says of the optimizers; the bits are plain PyTorch's, and gradients stay where they were."""
    step, make, _ = REFUSALS[name]
    return compare(step, make).updates


# ---- errors -------------------------------------------------------------------------------------------------------


@before_step
def evaluates_before_step(net: Any, optimizer: Any, number: int) -> None:
    with torch.no_grad():
        loss_of(net, number)


@before_step
def saves_before_step(net: Any, optimizer: Any, number: int) -> None:
    net.state_dict()


def skips_after_backward(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    optimizer.zero_grad()


def reads_the_norm_after_step(net: Any, optimizer: Any, number: int) -> None:
    plain_step(net, optimizer, number)
    net.layers[2].weight.grad.norm()


def compiles_the_norm_after_step(net: Any, optimizer: Any, number: int) -> None:
    plain_step(net, optimizer, number)
    torch.compile(lambda gradient: gradient.norm(), backend="aot_eager")(net.layers[2].weight.grad)


def sums_two_losses(net: Any, optimizer: Any, number: int) -> None:
    """With one forward pass."""
    optimizer.zero_grad()
    logits = net(tokens(number))
    F.cross_entropy(logits, tokens(number + 100)).backward(retain_graph=True)
    logits.square().mean().backward()
    optimizer.step()


def never_zeroes(net: Any, optimizer: Any, number: int) -> None:
    loss_of(net, number).backward()
    optimizer.step()


@before_step
def changes_a_parameter(net: Any, optimizer: Any, number: int) -> None:
    with torch.no_grad():
        net.layers[2].weight.mul_(0.9)


@before_step
def changes_data(net: Any, optimizer: Any, number: int) -> None:
    net.layers[2].weight.data.mul_(0.9)


def reads_through_a_view(net: Any, optimizer: Any, number: int) -> None:
    view = net.layers[2].weight.detach()[:4]
    optimizer.zero_grad()
    loss_of(net, number).backward()
    view.sum()
    optimizer.step()


def written(storage: Any) -> None:
    with tempfile.TemporaryFile() as file:
        storage._write_file(file, False, True, 1)


STORAGE_LOOKS: dict[str, Callable[[Any], object]] = {
    "list": lambda storage: storage.tolist(),
    "element": lambda storage: storage[7],
    "clone": lambda storage: storage.clone(),
    "copy": lambda storage: torch.UntypedStorage(storage.nbytes()).copy_(storage),
    "slice": lambda storage: storage[:4096].tolist(),
    "address": lambda storage: storage.data_ptr(),
    "file": written,
    "save": lambda storage: torch.save(storage, io.BytesIO()),
    "change": lambda storage: storage.fill_(0),
}
"""What needs no tensor, of a storage that the script kept."""


def looks_at_a_storage(name: str) -> Callable[..., None]:
    """In a hook, when the parameter has been updated and others have not."""

    def step(net: Any, optimizer: Any, number: int) -> None:
        storage = net.layers[3].weight.untyped_storage()
        hook = net.layers[0].register_full_backward_hook(lambda *_: STORAGE_LOOKS[name](storage) and None)
        optimizer.zero_grad()
        loss_of(net, number).backward()
        hook.remove()
        optimizer.step()

    return step


@before_step
def reads_on_another_thread(net: Any, optimizer: Any, number: int) -> None:
    """Which gets an error of its own."""
    thread = threading.Thread(target=net.layers[2].weight.sum)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pytest's, of a thread that raised
        thread.start(), thread.join()


@before_step
def reads_below_functions(net: Any, optimizer: Any, number: int) -> None:
    with torch._C.DisableTorchFunction():
        net.layers[2].weight.sum()


@before_step
def calls_torch_func(net: Any, optimizer: Any, number: int) -> None:
    torch.func.vmap(torch.sum)(net.layers[2].weight)


def uses_data(net: Any, optimizer: Any, number: int) -> None:
    """In a formula of autograd's that runs after the parameter's update: nothing notices that ``data`` changed."""
    optimizer.zero_grad()
    x = F.linear(net.embedding(tokens(number)), net.layers[3].weight.data)
    F.cross_entropy(net.layers[3](net.layers[0](x)), tokens(number + 100)).backward()
    optimizer.step()


def keeps_what_autograd_saves(net: Any, optimizer: Any, number: int) -> None:
    """Whose versions autograd does not compare then."""
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
        sums_two_losses(net, optimizer, number)


def gives_another_parameter(net: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    loss_of(net, number).backward()
    net.layers[2].weight.data = torch.zeros(WIDTH, WIDTH)
    optimizer.step()


@before_step
def exchanges_gradients(net: Any, optimizer: Any, number: int) -> None:
    first, second = net.layers[0].weight, net.layers[2].weight
    first.grad, second.grad = second.grad, first.grad


@before_step
def reads_state_in_a_child(net: Any, optimizer: Any, number: int) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            float(optimizer.state[net.layers[2].weight]["step"])
        except OrderError:
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if status == 0:
        raise OrderError("the child had one")


@before_step
def changes_how_operators_compute(net: Any, optimizer: Any, number: int) -> None:
    torch.set_num_threads(torch.get_num_threads())


@before_step
def swallows_what_step_raises(net: Any, optimizer: Any, number: int) -> None:
    """When parameters have been updated for it."""
    net.unused.weight.grad = net.unused.weight.detach().to_sparse()
    with suppress(RuntimeError):
        optimizer.step()
    net.layers[2].weight.sum()


@before_step
def replaces_state(net: Any, optimizer: Any, number: int) -> None:
    optimizer.state.clear()


@before_step
def replaces_state_of_one(net: Any, optimizer: Any, number: int) -> None:
    optimizer.state[net.layers[2].weight]["exp_avg"] = torch.zeros(WIDTH, WIDTH)


@before_step
def swallows_what_clipping_says(net: Any, optimizer: Any, number: int) -> None:
    with suppress(Exception):
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)


class Stop(Exception):
    """The script's own."""


def raises_in_backward(net: Any, optimizer: Any, number: int) -> None:
    """And goes on, as a script does that skips what fails."""

    def stop(_: Tensor) -> None:
        raise Stop

    optimizer.zero_grad()
    x = net.embedding(tokens(number))
    x.register_hook(stop)
    loss = F.cross_entropy(net.layers[1](net.layers[0](x)), tokens(number + 100))
    try:
        loss.backward()
    except Stop:
        net.state_dict()


USES = "uses a parameter or state before step"
ERRORS: dict[str, tuple[Callable[..., None], str]] = {
    "accumulates": (accumulates, USES),
    "clips": (clips, "clip_grad_norm_(net.parameters(), 0.1)) uses a gradient"),
    "reads_parameters": (reads_parameters, USES),
    "reads_state": (reads_state, USES),
    "scales": (scales, "uses a gradient"),
    "schedules_before_step": (schedules_before_step, "lr changed between the backward pass and step"),
    "loads_before_step": (loads_before_step, USES),
    "keeps_gradients": (keeps_gradients, "uses a gradient (zero_)"),
    "gives_a_closure": (gives_a_closure, "closure"),
    "steps_under_autocast": (steps_under_autocast, "autocast"),
    "checkpoints_tied_layers": (checkpoints_tied_layers, USES),
    "steps_twice": (steps_twice, "step is called again"),
    "evaluates_before_step": (evaluates_before_step, USES),
    "saves_before_step": (saves_before_step, USES),
    "skips_after_backward": (skips_after_backward, USES),
    "reads_the_norm_after_step": (reads_the_norm_after_step, "uses a gradient (norm)"),
    "compiles_the_norm_after_step": (compiles_the_norm_after_step, "uses a gradient (norm)"),
    "sums_two_losses": (sums_two_losses, "needs parameters as they were before their updates"),
    "never_zeroes": (never_zeroes, "adds to gradients of which the update has been made"),
    "changes_a_parameter": (changes_a_parameter, USES),
    "changes_data": (changes_data, USES),
    "reads_through_a_view": (reads_through_a_view, USES),
    "raises_in_backward": (raises_in_backward, "raised Stop, when 2 parameters had been updated"),
    "replaces_state": (replaces_state, "its state changed between the backward pass and step"),
    "replaces_state_of_one": (replaces_state_of_one, "its state changed between the backward pass and step"),
    "swallows_what_clipping_says": (swallows_what_clipping_says, "uses a gradient"),
    "reads_on_another_thread": (reads_on_another_thread, USES),
    "reads_below_functions": (reads_below_functions, USES),
    "calls_torch_func": (calls_torch_func, USES),
    "uses_data": (uses_data, USES),
    "keeps_what_autograd_saves": (keeps_what_autograd_saves, USES),
    "gives_another_parameter": (gives_another_parameter, USES),
    "exchanges_gradients": (exchanges_gradients, "a gradient is changed between the backward pass and step"),
    "swallows_what_step_raises": (
        swallows_what_step_raises,
        "uses what was updated in the backward pass, and step raised an error",
    ),
    "scales_by_hand": (scales_by_hand, "found_inf changed between the backward pass and step"),
    "reads_state_in_a_child": (reads_state_in_a_child, "the child had one"),
    "steps_in_a_mode": (steps_in_a_mode, "within a mode"),
    "changes_how_operators_compute": (changes_how_operators_compute, USES),
    **{f"looks at a storage: {name}": (looks_at_a_storage(name), USES) for name in STORAGE_LOOKS},
}
"""The scenario, and what is said of it."""


def error(name: str) -> tuple[str, int]:
    """What is said when a script does this for the first time in step ``LATER``, and after it the number of steps that
    it can still make."""
    step, _ = ERRORS[name]
    with session():
        training = train(plain_step, adamw, LATER)
        try:
            step(training.net, training.optimizer, LATER)
            if name in ("never_zeroes", "skips_after_backward"):
                step(training.net, training.optimizer, LATER + 1)
        except OrderError as refused:
            said = str(refused)
        else:
            return "nothing", 0
        made = 0
        try:
            for number in range(LATER, LATER + 2):
                plain_step(training.net, training.optimizer, number)
                made += 1
        except OrderError:
            pass
    return said, made


def settings_after_an_error() -> None:
    """Of a net that somebody still has: nothing of it is used."""
    with suppress(OrderError), session():
        training = train(plain_step, adamw, LATER)
        reads_parameters(training.net, training.optimizer, LATER)
    torch.set_num_threads(torch.get_num_threads())
    with pytest.raises(OrderError, match="was updated in the backward pass for a step that was not made"):
        training.net.layers[2].weight.sum()


def a_net_that_a_cycle_keeps() -> None:
    """It was updated for a step that is not made, and nobody has it: code whose addresses nobody knows is free."""
    with session():
        training = train(plain_step, adamw, LATER)
        training.net.itself = training.net
        training.optimizer.zero_grad()
        loss_of(training.net, LATER).backward()
        gc.disable()
        del training
        torch.jit.script(nn.Linear(4, 4)).save_to_buffer()
