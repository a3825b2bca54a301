"""Watches a training script from inside its process: the roots of its backward calls, and its state after steps.

It hears of both from ``capture.optimizer_events``, and touches nothing else of PyTorch. Reading a loss takes no
operator, so a watched run makes the same operations as another. A digest reads all of the state, which would move many
bytes under a budget. So it is taken only in the steps that are asked for.
"""

import gc
import hashlib
import io
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ebbtide.after_import import AfterImport
from ebbtide.capture.objects import instances
from ebbtide.capture.optimizer_events import Place, Subscriber, subscribe
from ebbtide.verify.record import GONE, Loss, Recorder, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from ebbtide.capture.iterations import Iterations

_DIGEST_BYTES = 16
_AT_ONCE = 1_000_000
"""So many elements are read at once: a tensor may be larger than the budget."""


class Watch(Subscriber):
    """Writes events to a recorder. ``state_after`` is the step whose state is wanted, or None for every step."""

    place = Place.WATCH

    def __init__(self, recorder: Recorder, state_after: int | None) -> None:
        self._recorder = recorder
        self._state_after = state_after
        self._optimizers: list[weakref.ref[Optimizer]] = []  # in the order of their first steps
        self._iterations: Iterations | None = None
        self.steps = 0
        self.largest_bytes: dict[str, int] = {}

    def install_with_torch(self) -> None:
        """Subscribe now if torch is there, or else once it is imported: the script may have to set something before
        that."""
        if "torch" in sys.modules:
            self._install()
        else:
            sys.meta_path.insert(0, AfterImport("torch", self._install))

    def _install(self) -> None:
        from ebbtide.capture.iterations import Iterations

        self._iterations = Iterations()
        subscribe(self)

    def built(self, optimizer: "Optimizer") -> None:
        assert self._iterations is not None
        self._iterations.built(optimizer)

    def around_backward(self, run: Callable[[], Any], roots: "Sequence[torch.Tensor]", trains: bool) -> Any:
        import torch

        if trains:
            with torch._C.DisableTorchFunction():
                for root in roots:
                    if isinstance(root, torch.Tensor):  # it may be an edge of the graph
                        self._recorder.write(Loss(self.steps, digest_of(root), _value_of(root)))
        return run()

    def before_step(self, optimizer: "Optimizer", args: object, kwargs: object) -> None:
        import torch

        if not any(known() is optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))
            with torch._C.DisableTorchFunction():
                self._note_sizes(optimizer)
                self._note_frozen(optimizer)

    def after_step(self, optimizer: "Optimizer") -> None:
        """Record the state. With several optimizers, each one's step records it, and the last record of a step is
        kept. What is garbage by then is none."""
        import torch

        from ebbtide.capture.iterations import is_outermost

        assert self._iterations is not None
        ends = self._iterations.stepped(optimizer)
        self.steps += ends
        if not is_outermost():
            return
        number = self.steps if ends else self.steps + 1
        if self._state_after is None or number >= self._state_after:
            gc.collect()
            optimizers = [living for known in self._optimizers if (living := known()) is not None]
            with torch._C.DisableTorchFunction():
                self._recorder.write(State(number, dict(state_digests(optimizers))))
        with torch._C.DisableTorchFunction():
            self._note_sizes(optimizer)

    def _note_sizes(self, optimizer: "Optimizer") -> None:
        """Note the largest sizes by kind. Gradients are as large as their parameters."""
        for parameter in _parameters([optimizer]):
            self._note("parameter", _nbytes_of(parameter))
            if parameter.requires_grad:
                self._note("gradient", _nbytes_of(parameter))
        for _, value in _leaves("", list(_state_of(optimizer).values())):
            self._note("optimizer_state", _nbytes_of(value))

    def _note_frozen(self, optimizer: "Optimizer") -> None:
        """Note the largest of the parameters that lie beside the optimizer's, such as the weights that LoRA freezes."""
        for _, part in _frozen([optimizer], _outermost_modules([optimizer])):
            self._note("parameter", _nbytes_of(part))

    def device_peak_bytes(self) -> int:
        """Return the most that PyTorch's tensors took of an accelerator; 0 where it was not used."""
        torch = sys.modules.get("torch")
        return torch.accelerator.max_memory_allocated() if torch is not None and torch.accelerator.is_available() else 0

    def _note(self, kind: str, nbytes: int) -> None:
        self.largest_bytes[kind] = max(self.largest_bytes.get(kind, 0), nbytes)


def state_digests(optimizers: "Sequence[Optimizer]") -> Iterator[tuple[str, str]]:
    """Digest all state that optimizers and the modules of their parameters reach, and the random generators.

    This covers parameters, gradients, buffers, and the optimizers' state and settings. Names are unique and the same in
    every run.
    """
    import torch

    from ebbtide.update_order.gone_gradient import GoneGradient

    modules = _outermost_modules(optimizers)
    names = _parameter_names(optimizers, modules)
    for parameter in _parameters(optimizers):
        yield f"parameter {names[id(parameter)]}", digest_of(parameter)
        if parameter.grad is not None:
            gone = isinstance(parameter.grad, GoneGradient)
            yield f"gradient {names[id(parameter)]}", GONE if gone else digest_of(parameter.grad)
    for name, part in _frozen(optimizers, modules):
        yield f"frozen parameter {name}", digest_of(part)
    for number, module in enumerate(modules):
        for name, buffer in _named(module, "_buffers"):
            yield f"buffer {_prefix(modules, number)}{name}", digest_of(buffer)
    for number, optimizer in enumerate(optimizers):
        title = f"{type(optimizer).__name__} {number}" if len(optimizers) > 1 else type(optimizer).__name__
        for at, (key, state) in enumerate(_state_of(optimizer).items()):
            of = names.get(id(key), f"entry {at}") if isinstance(key, torch.Tensor) else repr(key)
            for name, value in _leaves("", state):
                yield f"optimizer state{name} of {of} ({title})", digest_of(value)
        for at, group in enumerate(optimizer.param_groups):
            for name, value in _leaves("", {key: value for key, value in group.items() if key != "params"}):
                yield f"setting{name} of group {at} ({title})", digest_of(value)
    yield "random generator", digest_of(torch.get_rng_state())
    devices = {parameter.device for parameter in _parameters(optimizers)}
    for device in sorted((device for device in devices if device.type not in ("cpu", "meta")), key=str):
        state = torch.get_device_module(device).get_rng_state(device)
        yield f"random generator of {device}", digest_of(state)


def digest_of(value: object) -> str:
    """Digest a tensor's type, shape and elements (of what has none, such as meta tensors, no elements), or a number's
    text."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.nn.parameter import is_lazy

    if not isinstance(value, torch.Tensor) or is_lazy(value):
        return hashlib.sha256(repr(value).encode()).hexdigest()[: 2 * _DIGEST_BYTES]
    tensor = value.detach()
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    if tensor.layout is torch.strided and not tensor.is_quantized and type(tensor) is torch.Tensor:
        flat = tensor.reshape(-1)
        for at in () if tensor.is_meta else range(0, flat.numel(), _AT_ONCE):
            part = flat[at : at + _AT_ONCE].cpu().resolve_conj().resolve_neg()
            digest.update(part.view(torch.uint8).numpy().data)
    elif parts := _inner_parts(tensor):
        digest.update("".join(map(digest_of, parts)).encode())
    elif not isinstance(tensor, FakeTensor):
        stored = io.BytesIO()
        torch.save(tensor, stored)
        digest.update(stored.getvalue())
    return digest.hexdigest()[: 2 * _DIGEST_BYTES]


def _inner_parts(tensor: "torch.Tensor") -> "list[torch.Tensor]":
    """Return the tensors that a sparse tensor or one of another class consists of; none of any other."""
    import torch

    from ebbtide.capture.storage_parts import storage_parts

    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    parts = [*storage_parts(tensor)]
    return [] if parts[0] is tensor else parts


def _value_of(root: "torch.Tensor") -> str:
    """Return the root's number as text, through NumPy, since ``item`` is an operator. On a device, so is the copy here.

    Returns "" for types that NumPy lacks, such as bfloat16, and for other classes of tensors.
    """
    import torch

    if type(root) is not torch.Tensor or root.numel() != 1 or root.layout is not torch.strided or root.is_meta:
        return ""
    try:
        return str(root.detach().cpu().reshape(-1).numpy()[0])
    except TypeError:
        return ""


def _nbytes_of(value: object) -> int:
    """Return a strided tensor's bytes, and 0 for anything else."""
    import torch

    return value.nbytes if isinstance(value, torch.Tensor) and value.layout is torch.strided else 0


def _modules_in(root: "nn.Module") -> "Iterator[tuple[str, nn.Module]]":
    """Yield it and its modules, each once, with a prefix. A class of the script's may have no hash."""
    ahead, seen = [("", root)], set[int]()
    while ahead:
        prefix, module = ahead.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield prefix, module
            inner = [(f"{prefix}{name}.", part) for name, part in module._modules.items() if part is not None]
            ahead += reversed(inner)


def _named(root: "nn.Module", kind: str) -> "Iterator[tuple[str, Any]]":
    """Yield its "_parameters" or "_buffers" by name, each once."""
    seen: set[int] = set()
    for prefix, module in _modules_in(root):
        for name, tensor in getattr(module, kind).items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield prefix + name, tensor


def _parameters(optimizers: "Sequence[Optimizer]") -> "Iterator[nn.Parameter]":
    seen: set[int] = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter


def _outermost_modules(optimizers: "Sequence[Optimizer]") -> "list[nn.Module]":
    """Return the modules that hold an optimizer's parameter and lie in no other such module, by the first one they
    hold."""
    from torch import nn

    place = {id(parameter): at for at, parameter in enumerate(_parameters(optimizers))}
    first: dict[int, int] = {}
    holding: list[nn.Module] = []
    for found in instances(nn.Module):
        if hasattr(found, "_modules"):  # one may be half built
            places = [place[id(each)] for _, each in _named(found, "_parameters") if id(each) in place]
            if places:
                first[id(found)] = min(places)
                holding.append(found)
    inner = {id(part) for module in holding for _, part in _modules_in(module) if part is not module}
    return sorted((module for module in holding if id(module) not in inner), key=lambda module: first[id(module)])


def _frozen(optimizers: "Sequence[Optimizer]", modules: "Sequence[nn.Module]") -> "Iterator[tuple[str, torch.Tensor]]":
    """Return the parts with a storage of each parameter in the modules that no optimizer has, by name."""
    import torch
    from torch.nn.parameter import is_lazy

    from ebbtide.capture.storage_parts import storage_parts

    optimized = {id(parameter) for parameter in _parameters(optimizers)}
    for number, module in enumerate(modules):
        for name, parameter in _named(module, "_parameters"):
            if id(parameter) in optimized or is_lazy(parameter) or parameter.is_meta:
                continue
            for at, part in enumerate(storage_parts(parameter)):
                which = f" part {at}" if at else ""
                yield f"{_prefix(modules, number)}{name}{which}", part.detach().as_subclass(torch.Tensor)


def _parameter_names(optimizers: "Sequence[Optimizer]", modules: "Sequence[nn.Module]") -> dict[int, str]:
    names: dict[int, str] = {}
    for number, module in enumerate(modules):
        for name, parameter in _named(module, "_parameters"):
            names.setdefault(id(parameter), f"{_prefix(modules, number)}{name}")
    for at, parameter in enumerate(_parameters(optimizers)):
        names.setdefault(id(parameter), f"number {at}")
    return names


def _prefix(modules: "Sequence[nn.Module]", number: int) -> str:
    """Return a prefix where there are several modules, since two may hold parameters of the same names."""
    return "" if len(modules) == 1 else f"{type(modules[number]).__name__} {number}."


def _state_of(optimizer: "Optimizer") -> Mapping[object, object]:
    """Return its state. An optimizer of the script's own may keep anything there."""
    state: object = optimizer.state
    return state if isinstance(state, dict) else {"all": state}


def _leaves(name: str, value: object, within: frozenset[int] = frozenset()) -> Iterator[tuple[str, object]]:
    """Return the tensors and plain values in nested state. Anything else, such as a closure or an object, is left
    out, and so is a container ``within`` itself."""
    import torch

    if isinstance(value, torch.Tensor | int | float | complex | str | None):
        yield name, value
    elif isinstance(value, dict | list | tuple) and id(value) not in within:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            named = f"{name} {key}" if isinstance(value, dict) else f"{name}[{key}]"
            yield from _leaves(named, item, within | {id(value)})
