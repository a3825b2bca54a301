"""Whoever looks at memory past the operators after a deferred step sees what the step changed.

Each returns what it saw, which is what is seen without a session. And what comes of an update that fails.
"""

import io
import os
import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.package.package_exporter
from torch import Tensor, nn

import ebbtide
from ebbtide.errors import OrderError
from tests.helpers import dlpack_table
from tests.helpers.at_once import at_once
from tests.training.cases_deferred import clipped, session
from tests.training.cases_in_backward import WIDTH, Training, adamw, loss_of, plain_step, tokens, train

QUIET = {"EBBTIDE_PROGRESS": "off"}
pytestmark = pytest.mark.in_child(QUIET)


def as_bytes(tensor: Tensor) -> bytes:
    return tensor.detach().clone().reshape(-1).view(torch.uint8).numpy().tobytes()


def saved_bytes(save: Callable[[str], None]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        save(f"{folder}/file")
        with open(f"{folder}/file", "rb") as file:
            return file.read()


def in_a_child(look: Callable[[], bytes]) -> bytes:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, look()[:4096])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        seen = pipe.read()
    os.waitpid(child, 0)
    return seen


def of_a_storage(storage: Any) -> bytes:
    return bytes(storage[i] for i in range(0, 4096, 7))


def safetensors_file(tensor: Tensor) -> bytes:
    from safetensors.torch import save_file

    return saved_bytes(lambda path: save_file({"weight": tensor.data}, path))


def scripted_file(tensor: Tensor) -> bytes:
    layer = nn.Linear(WIDTH, WIDTH, bias=False)
    layer.weight = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)
    loaded = torch.jit.load(io.BytesIO(torch.jit.script(layer).save_to_buffer()))
    return as_bytes(loaded.weight)


def through_dlpack(tensor: Tensor) -> bytes:
    return as_bytes(torch.from_dlpack(tensor.data))


def through_old_dlpack(tensor: Tensor) -> bytes:
    return as_bytes(torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(tensor.data)))


def through_dlpacks_table(tensor: Tensor) -> bytes:
    import ctypes

    return ctypes.string_at(dlpack_table.address_of(tensor.data), 4096)


def packaged_script(tensor: Tensor) -> bytes:
    layer = nn.Linear(WIDTH, WIDTH, bias=False)
    layer.weight = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)
    file, scripted = io.BytesIO(), torch.jit.script(layer)
    allowed = mock.patch.object(torch.package.package_exporter, "_gate_torchscript_serialization", False)
    with allowed, torch.package.PackageExporter(file) as exporter:
        exporter.save_pickle("layer", "layer.pkl", scripted)
    file.seek(0)
    return as_bytes(torch.package.PackageImporter(file).load_pickle("layer", "layer.pkl").weight)


def scripted_list(tensor: Tensor) -> bytes:
    script = "def listed(x):\n  found: List[List[float]] = x.tolist()\n  return found\n"
    return repr(torch.jit.CompilationUnit(script).listed(tensor.data)).encode()


def through_ctypes(tensor: Tensor) -> bytes:
    import ctypes

    return ctypes.string_at(tensor.data_ptr(), 4096)


def through_the_base_class(tensor: Tensor) -> bytes:
    import ctypes

    return ctypes.string_at(torch._C.TensorBase.data_ptr(tensor), 4096)


def through_a_read_only_address(tensor: Tensor) -> bytes:
    import ctypes

    address_of = getattr(tensor, "const_data_ptr", tensor.data_ptr)  # not in every version
    return ctypes.string_at(address_of(), 4096)


def mapped(change: Callable[[Tensor, Tensor], object]) -> Callable[[Tensor], bytes]:
    """Look at what a Python function makes of each element, in place: PyTorch calls it without an operator."""

    def look(tensor: Tensor) -> bytes:
        change(tensor.data, torch.ones(tensor.shape))
        return as_bytes(tensor)

    return look


LOOKS: dict[str, Callable[[Tensor], bytes]] = {
    "operator": as_bytes,
    "data": lambda tensor: as_bytes(tensor.data),
    "element": lambda tensor: repr(tensor[3, 4].item()).encode(),
    "printed": lambda tensor: repr(tensor).encode(),
    "list": lambda tensor: repr(tensor.data.tolist()).encode(),
    "numpy": lambda tensor: tensor.data.numpy().tobytes(),
    "dlpack": through_dlpack,
    "to_dlpack": through_old_dlpack,
    "dlpack's table": through_dlpacks_table,
    "address": through_ctypes,
    "base class's address": through_the_base_class,
    "address to read": through_a_read_only_address,
    "apply_": mapped(lambda one, ones: one.apply_(lambda value: value / 2)),
    "map_": mapped(lambda one, ones: one.map_(ones, lambda value, one: value / 2 + one)),  # type: ignore[attr-defined]
    "map2_": mapped(lambda one, ones: one.map2_(ones, ones, lambda value, *two: value / 2)),  # type: ignore[attr-defined]
    "map2_ by name": lambda tensor: as_bytes(
        torch.ones(tensor.shape).map2_(x=tensor.data, y=tensor.data, callable=lambda _, one, same: one / 2)  # type: ignore[attr-defined]
    ),
    "base class's array": lambda tensor: torch._C.TensorBase.numpy(tensor.data).tobytes(),  # type: ignore[attr-defined]
    "storage": lambda tensor: of_a_storage(tensor.data.untyped_storage()),
    "saved": lambda tensor: as_bytes(torch.load(io.BytesIO(saved_bytes(lambda path: torch.save(tensor.data, path))))),
    "safetensors": safetensors_file,
    "scripted file": scripted_file,
    "packaged script": packaged_script,
    "scripted list": scripted_list,
    "foreach": lambda tensor: as_bytes(torch._foreach_mul([tensor.data], 1.0)[0]),
    "out": lambda tensor: as_bytes(torch.mul(tensor.data, 1.0, out=torch.empty_like(tensor))),
    "view": lambda tensor: as_bytes(tensor.data.view(-1)[7:]),
    "slice of a storage": lambda tensor: as_bytes(
        torch.empty(0).set_(tensor.data.untyped_storage()[:4096])  # type: ignore[call-overload]
    ),
    "thread": lambda tensor: at_once(lambda: as_bytes(tensor), 1)[0],
    "sparse": lambda tensor: as_bytes(torch.sparse_coo_tensor([[0]], tensor.data[:1]).to_dense()),
}


@pytest.mark.alike
@pytest.mark.parametrize("name", LOOKS)
@pytest.mark.parametrize("what", ["parameter", "state", "gradient"])
def test_whoever_looks_after_a_step_sees_what_it_changed(what: str, name: str) -> None:
    """Right after a step, one look at one of the tensors that it changed."""

    def seen(training: Training, own: Callable[[], None] = lambda: None) -> bytes:
        for number in range(4):
            plain_step(training.net, training.optimizer, number)
        weight = training.net.layers[2].weight
        tensor = {"parameter": weight, "gradient": weight.grad}.get(what)
        if what == "state":
            tensor = training.optimizer.state[weight]["exp_avg_sq"]
        own()
        assert tensor is not None
        return LOOKS[name](tensor)

    plain = seen(Training(adamw))
    with session():
        assert seen(Training(adamw), all_is_deferred) == plain


def all_is_deferred() -> None:
    """And nothing has been looked at."""
    from ebbtide import _torch

    assert _torch.deferred_count() >= 4


@pytest.mark.parametrize("name", ["storage", "alias", "view", "fork", "swapped", "array"])
def test_what_was_there_before_the_step_shows_what_it_changed(name: str) -> None:
    """A storage, an array, a child of ``fork``."""

    def seen(training: Training, own: Callable[[], None] = lambda: None) -> bytes:
        net, optimizer = training.net, training.optimizer
        for number in range(3):
            plain_step(net, optimizer, number)
        weight = net.layers[2].weight
        storage, alias, view = weight.untyped_storage(), weight.data, weight.detach()[3:5]
        array = weight.detach().numpy() if name == "array" else None
        plain_step(net, optimizer, 3)
        own()
        if name == "array":
            assert array is not None
            return array.tobytes()
        looks: dict[str, Callable[[], bytes]] = {
            "storage": lambda: of_a_storage(storage),
            "alias": lambda: as_bytes(alias),
            "view": lambda: as_bytes(view),
            "fork": lambda: in_a_child(
                lambda: as_bytes(optimizer.state[weight]["step"])
            ),  # as much as a child inherits
            "swapped": lambda: swapped(weight),
        }
        return looks[name]()

    def swapped(weight: Tensor) -> bytes:
        other = nn.Parameter(torch.zeros_like(weight))
        torch.utils.swap_tensors(weight, other)
        return as_bytes(other)

    plain = seen(Training(adamw))
    with session():
        assert seen(Training(adamw), all_is_deferred) == plain


@pytest.mark.alike
@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_between_steps_finds_what_it_would(seed: int) -> None:
    """Looks and changes at random between steps, and evictions at random, with a plan and without."""
    import random

    looks = [
        name for name in LOOKS if name not in ("dlpack", "to_dlpack", "printed", "scripted file", "packaged script")
    ]

    def seen(training: Training) -> list[bytes]:
        chance, net, optimizer = random.Random(seed), training.net, training.optimizer
        helpers: list[Any] = [torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)]
        found = []
        for number in range(25):
            if chance.random() < 0.5:
                clipped(net, optimizer, number, helpers[0])
            else:
                plain_step(net, optimizer, number)
            for _ in range(chance.choice((0, 0, 1, 3))):
                weight = chance.choice([p for p in net.layers.parameters() if p.ndim == 2])
                state = optimizer.state[weight]
                tensor = chance.choice([weight, weight.grad, state["exp_avg"], state["exp_avg_sq"]])
                found.append(LOOKS[chance.choice(looks)](tensor))
            with torch.no_grad():
                change = chance.randrange(8)
                if change == 0:
                    chance.choice(list(net.layers)).weight.mul_(0.99)
                elif change == 1:
                    optimizer.param_groups[0]["lr"] *= 0.97
                elif change == 2:
                    optimizer.load_state_dict(optimizer.state_dict())
                elif change == 3:
                    optimizer.zero_grad(set_to_none=False)
                elif change == 4:
                    net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()})
                elif change == 5:
                    found.append(as_bytes(loss_of(net, number)))
        return [*found, *training.bits().values()]

    plain = seen(Training(adamw))
    for policy in ("demand", "ebbtide"):
        with session(policy, chaos_rate=0.02, chaos_seed=seed) as ours:
            assert seen(Training(adamw)) == plain
        assert sum(step.fetched_bytes.total for step in ours.report().steps) > 0


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_an_update_that_fails_is_an_error_where_it_is_looked_at_and_ends_training(when: str) -> None:
    """Somebody changed the memory of its parameter and told nobody."""
    with session():
        training = Training(adamw)
        for number in range(3):
            plain_step(training.net, training.optimizer, number)
        torch._C._increment_version((training.net.layers[2].weight,))
        passes: list[Callable[[], object]] = [
            lambda: (
                loss_of(training.net, 3) if when == "forward" else training.net.embedding(tokens(3)).mean().backward()
            ),
            lambda: plain_step(training.net, training.optimizer, 3),
        ]
        said = []
        for make in passes:
            try:
                make()
            except OrderError as error:
                said.append(str(error))
    assert "without PyTorch's knowledge" in said[0]
    assert "--optimizer as-written" in said[0]
    assert said[0] == said[1]


def test_an_update_rounds_as_the_thread_of_its_step() -> None:
    """A thread that flushes denormal numbers, and has threads of its own for its operators, looks at an optimizer's
    state."""

    def seen() -> bytes:
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(1024, 1024))
        optimizer = torch.optim.SGD([weight], lr=1e-3, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            weight.grad = torch.full_like(weight, 1e-40)
            optimizer.step()
        momentum = optimizer.state[weight]["momentum_buffer"]

        def look() -> bytes:
            flush = torch._C.set_flush_denormal
            getattr(flush, "__wrapped__", flush)(True)
            torch.ones(1 << 20).add_(1)  # its other threads begin
            return as_bytes(momentum)

        return at_once(look, 1)[0]

    plain = seen()
    assert any(plain)
    with ebbtide.Session(fast="1GiB", optimizer="deferred"):
        assert seen() == plain


def test_ctrl_c_does_not_leave_an_update_half_made() -> None:
    """It is made to its end, and the script gets its exception then."""
    import signal

    plain = train(plain_step, adamw, 4).bits()
    with session():
        training = train(plain_step, adamw, 4)
        state = training.optimizer.state[training.net.layers[2].weight]
        original = type(training.optimizer).step.__wrapped__  # type: ignore[attr-defined]

        def strikes(*args: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return original(*args)

        type(training.optimizer).step.__wrapped__ = strikes  # type: ignore[attr-defined]
        came = False
        try:
            state["exp_avg"].sum()
            came = False
            for _ in range(1000):
                pass
        except KeyboardInterrupt:
            came = True
        type(training.optimizer).step.__wrapped__ = original  # type: ignore[attr-defined]
        assert came
        assert training.bits() == plain
