"""Records steps without computing them, on fake tensors: these have a shape, a type and a device, but no memory.

The program runs from its first line under PyTorch's FakeTensorMode, so its model takes no memory. The step of a model
of 70 billion parameters can be recorded on a laptop. The time of a tick is modelled (``Machine.roofline_ns``).

There are no numbers in fake tensors. Where the program reads one (``loss.item()``, ``numpy()``), it gets 1, and a
warning names the first place. Nothing is infinite or not a number (``isnan``). A DataLoader loads in this process,
whatever workers it has. Shapes that depend on data (``nonzero``, boolean masks) cannot work. Only the operators that
autograd calls are seen. Left out: operators that these call in turn, and their scratch (the reserve of an LSTM, say).
Autograd adds fake gradients up in new storages, where it adds real ones in place.
"""

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import ebbtide._torch as _torch
from ebbtide.capture.calls import describe_call
from ebbtide.capture.flops import flops_of
from ebbtide.capture.recording import KINDS
from ebbtide.in_front import InFrontOf
from ebbtide.ir.base import Origin
from ebbtide.ir.machine import Machine
from ebbtide.ir.native import NEVER, Phase
from ebbtide.ir.recording import Recording
from ebbtide.ir.trace import Access, StorageKind
from ebbtide.recorders.columns import FakeRecording, FakeRow, FakeTick
from ebbtide.recorders.operators import list_length, operands, over_lists, shapes, tensors, touches_nothing
from ebbtide.recorders.step_recorder import StepRecorder
from ebbtide.terminal import warn_user

_ACTIVATION, _OTHER = KINDS.index(StorageKind.ACTIVATION), KINDS.index(StorageKind.OTHER)
_SUMMING_UP = frozenset(
    ("any", "all", "sum", "max", "amax", "bitwise_or", "logical_or", "stack", "cat", "gt", "ne", "_to_copy", "detach")
)
"""Operators of which the result is False if all operands are."""
_NO_OPERATORS = ("prim", "profiler")
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


def fake_recorder(machine: Machine, path: Path, first: int, count: int, lines: bool) -> StepRecorder:
    """Make the recorder. Times are those of the machine, by its roofline.

    Raises SettingError for a machine that does not say how fast it computes.
    """
    machine.require_rates()
    tape = FakeTape(machine)
    return StepRecorder(tape, Origin.MODELLED, path, first, count, tape.watch, lines)


@dataclass(slots=True)
class _Live:
    """A storage, with its place among all of the process and, in a recording, among those of the step."""

    serial: int
    nbytes: int
    kind: int
    born_in_step: bool
    row: int
    end: Any = None  # the weak reference that tells when the storage is freed
    classified: bool = False


class FakeTape:
    """Stands in for the native module (``step_recorder.Tape``). Only one thread may use it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._modes = ExitStack()
        self._live: dict[int, _Live] = {}
        self._serials = 0
        self._in_step = False
        self._recorded: FakeRecording | None = None
        self._taken: FakeRecording | None = None
        self._tick = 0
        self._allocation = 0
        self._module = 0
        self._module_of_node: dict[int, int] = {}
        self._line_of_node: dict[int, str] = {}
        self._in_optimizer = False
        self._told = False

    def watch(self) -> None:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        mode.fake_tensor_converter = _Converter()
        self._modes.enter_context(mode)
        self._modes.enter_context(_Seen(self))
        for wrapper in (
            *InFrontOf.LOADER_WORKERS.install(_without_workers),
            *InFrontOf.FAKE_ARRAYS.install(self._ones),
            *InFrontOf.FAKE_FILES.install(lambda save, *args, **kwargs: None),
            *InFrontOf.FAKE_TEXT.install(_formatted),
        ):
            self._modes.callback(wrapper.remove)

    def unwatch(self) -> None:
        self._modes.close()
        self._live.clear()

    def notice(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            if is_managed(tensor):
                self._storage(tensor, known=True)

    def begin_step(self, *, record: bool = False, modules: bool = False) -> None:
        self._in_step, self._in_optimizer = True, False
        self._tick = self._allocation = self._module = 0
        self._module_of_node.clear()
        self._line_of_node.clear()
        self._taken = None
        self._recorded = FakeRecording() if record else None
        for live in self._live.values():
            live.row = self._row(live, NEVER, NEVER)

    def end_step(self, *, completed: bool = True) -> None:
        self._in_step = False
        for live in self._live.values():
            if live.born_in_step and not live.classified:
                live.kind = _OTHER
            live.born_in_step = False
            if self._recorded is not None:
                self._recorded.rows[live.row].kind = live.kind
        self._taken, self._recorded = self._recorded, None

    def take_recording(self) -> Recording:
        taken, self._taken = self._taken or FakeRecording(), None
        return taken.columns()

    def enter_optimizer(self, enters: bool) -> None:
        self._in_optimizer = enters

    def classify(self, tensors: Sequence[torch.Tensor], kind: int) -> None:
        for tensor in tensors:
            if (live := self._storage(tensor)) is not None:
                live.kind, live.classified = kind, True

    # ---- operators ------------------------------------------------------------------------------------------------

    def run(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry an operator out, as far as fake tensors allow, and note it."""
        if operator.namespace in _NO_OPERATORS:
            return operator(*args, **kwargs)
        node = torch._C._autograd._get_sequence_nr() - 1  # it exists before the operator runs
        if line := _torch.line_here(""):
            self._line_of_node.setdefault(node, line)
        self._module = self._module_now(node)
        listed = list_length(operator, args) if over_lists(operator) else 0
        if listed:
            result = operator(*args, **kwargs)
            self._note_groups(operator, args, kwargs, result, listed)
            return result
        noted = not touches_nothing(operator)
        arguments = describe_call(operator, args, kwargs) if noted and self._recorded is not None else ""
        if noted:
            self._begin_tick(operator, arguments)
            for tensor, access, overwrites in operands(operator, args, kwargs):
                self._use(tensor, access, overwrites)
        result = self._read(operator, args) if operator is torch.ops.aten._local_scalar_dense.default else None
        if result is None:
            result = _carried_out(operator, args, kwargs)
        is_false = _says_no(operator, args)
        for tensor in tensors(result):
            self._storage(tensor, written=noted)
            if is_false:
                tensor._ebbtide_is_false = True  # type: ignore[attr-defined]
        if noted:
            self._end_tick(flops_of(operator._schema.name, shapes(args)), arguments)
        return result

    def _note_groups(
        self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, length: int
    ) -> None:
        """Note a list operator. A foreach operator is the plain one on each element; a fused one runs on groups of
        elements."""
        sizes = [
            [t.untyped_storage().nbytes() for t, _, _ in operands(operator, args, kwargs, element)]
            for element in range(length)
        ]
        is_fused = operator._schema.name.startswith("aten::_fused_")
        lengths = _torch.cut_groups(sizes) if is_fused else [1] * length
        for end, count in zip(accumulate(lengths), lengths, strict=True):
            group = range(end - count, end)
            self._begin_tick(operator, "")
            for element in group:
                for tensor, access, overwrites in operands(operator, args, kwargs, element):
                    self._use(tensor, access, overwrites)
                if isinstance(result, list | tuple) and len(result) == length:
                    for tensor in tensors(result[element]):
                        self._storage(tensor, written=True)
            self._end_tick(0)

    def _read(self, operator: Any, args: tuple[Any, ...]) -> Any:
        try:
            return operator(*args)
        except DataDependentOutputException:
            self._tell()
            one = _one(args[0].dtype)
            return type(one)(0) if _is_false(args[0]) else one

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            warn_user(
                f"the program reads a number out of a tensor, first at {_place()}; fake tensors hold none, so it "
                "gets 1 wherever it does that"
            )

    def _ones(self, original: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensor, FakeTensor) or (tensor.requires_grad and not kwargs.get("force", args)):
            return original(tensor, *args, **kwargs)
        self._tell()
        return np.ones(tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))

    def _begin_tick(self, operator: Any, arguments: str) -> None:
        if not self._in_step:
            return
        self._tick, self._allocation = self._tick + 1, 0
        if self._recorded is None:
            return
        backward = torch._C._current_graph_task_id() != -1
        phase = Phase.BACKWARD if backward else Phase.OPTIMIZER if self._in_optimizer else Phase.OTHER
        name = operator._schema.name.replace("::_foreach_", "::")
        record = self._recorded
        tick = FakeTick(record.name(name), self._module, record.now_ns, record.name(arguments), phase)
        record.ticks.append(tick)

    def _module_now(self, makes: int) -> int:
        """Return the running module, as native code does (``module_of`` in native/torch/recorder.cpp). The operator
        ``makes`` the node with this sequence number."""
        if self._recorded is None:
            return 0
        in_backward = torch._C._current_graph_task_id() != -1
        if (not in_backward or torch.is_grad_enabled()) and (path := _torch.module_here()):
            module = self._recorded.name(path)
            self._module_of_node.setdefault(makes, module)
            return module
        node = torch._C._current_autograd_node() if in_backward else None
        return self._module_of_node.get(node._sequence_nr(), 0) if node is not None else 0

    def _line_now(self) -> str:
        """Return the running line. In the backward pass, it is that of the forward pass, as for ``_module_now``."""
        node = torch._C._current_autograd_node() if torch._C._current_graph_task_id() != -1 else None
        return _torch.line_here(self._line_of_node.get(node._sequence_nr(), "") if node is not None else "")

    def _end_tick(self, flops: int, arguments: str = "") -> None:
        if self._recorded is not None:
            nbytes = 0
            for _, tick, _, moved in reversed(self._recorded.uses):
                if tick != self._tick:
                    break
                nbytes += moved
            self._recorded.now_ns += self._machine.roofline_ns(flops, nbytes, arguments)

    # ---- storages -------------------------------------------------------------------------------------------------

    def _use(self, tensor: torch.Tensor, access: int, overwrites: bool) -> None:
        live = self._storage(tensor, known=True)
        if self._recorded is None or live is None:
            return
        uses = self._recorded.uses
        nbytes = min(tensor.numel() * tensor.itemsize, live.nbytes)
        moved = 2 * nbytes if access & Access.WRITE and not overwrites else nbytes
        for place in range(len(uses) - 1, -1, -1):  # an operand may come twice in a tick: x.add_(x)
            row, tick, before, moved_before = uses[place]
            if tick != self._tick:
                break
            if row == live.row:
                uses[place] = (row, tick, before | access, moved_before + moved)
                return
        uses.append((live.row, self._tick, access, moved))

    def _storage(self, tensor: torch.Tensor, *, known: bool = False, written: bool = False) -> _Live | None:
        """Return the storage behind a tensor. A new one is born now, or existed before the step if ``known``."""
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        if not nbytes:
            return None
        if (live := self._live.get(key)) is not None:
            return live
        self._serials += 1
        born = self._in_step and not known
        live = _Live(self._serials, nbytes, _ACTIVATION if born else _OTHER, born, NEVER)
        live.end = weakref.ref(storage, lambda _: self._ended(key))
        self._live[key] = live
        live.row = self._row(live, self._tick if born else NEVER, self._allocation if born else NEVER)
        if born:
            self._allocation += 1
        if self._recorded is not None and written:
            self._recorded.uses.append((live.row, self._tick, int(Access.WRITE), nbytes))
        return live

    def _row(self, live: _Live, birth: int, allocation: int) -> int:
        if self._recorded is None:
            return NEVER
        module = self._module if birth != NEVER else 0
        line = self._recorded.name(self._line_now()) if birth != NEVER else 0
        row = FakeRow(live.serial, live.nbytes, live.kind, birth, allocation, module, line=line)
        self._recorded.rows.append(row)
        return len(self._recorded.rows) - 1

    def _ended(self, key: int) -> None:
        live = self._live.pop(key, None)
        if live is not None and self._recorded is not None:
            row = self._recorded.rows[live.row]
            row.death, row.kind, row.freed_after = self._tick + 1, live.kind, self._serials


class _Converter(FakeTensorConverter):
    """Keeps no weak reference to an operator's result.

    PyTorch's own converter keeps one for as long as the tensor lives. But ``Module.to(dtype)`` exchanges a fake
    parameter in its place (``swap_tensors``), which is refused where a weak reference exists. The reference makes sure
    that a tensor is made fake only once. Only real tensors need that, and for them it still works: an operator's result
    is new.
    """

    def set_tensor_memo(self, t: torch.Tensor, v: FakeTensor) -> None:
        pass


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, tape: FakeTape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return self._tape.run(func, args, kwargs or {})


def is_managed(tensor: torch.Tensor) -> bool:
    """Say whether a run would manage the tensor's memory. A real tensor's may be NumPy's or a file's."""
    if isinstance(tensor, FakeTensor):
        return True
    return not tensor.is_meta and tensor.untyped_storage().resizable()


def _without_workers(original: Callable[[DataLoader[Any]], Any], loader: DataLoader[Any]) -> Any:
    """Return an iterator that loads in this process. The loader still says how many workers it has."""
    workers, timeout = loader.num_workers, loader.timeout
    loader.num_workers, loader.timeout = 0, 0
    try:
        return original(loader)
    finally:
        loader.num_workers, loader.timeout = workers, timeout


def _formatted(original: Callable[..., str], tensor: torch.Tensor, spec: str) -> str:
    is_number = isinstance(tensor, FakeTensor) and tensor.dim() == 0
    return format(tensor.item(), spec) if is_number else original(tensor, spec)


def _says_no(operator: Any, args: tuple[Any, ...]) -> bool:
    """Say whether the operator finds what is infinite or not a number, or sums up such findings."""
    name = operator._schema.name.removeprefix("aten::")
    if name in ("isnan", "isinf", "isposinf", "isneginf"):
        return True
    if name == "ne" and args[0] is args[1]:
        return True
    if name == "eq":
        return isinstance(args[1], float) and not math.isfinite(args[1])
    return name in _SUMMING_UP and all(_is_false(tensor) for tensor in tensors(list(args)))


def _is_false(tensor: torch.Tensor) -> bool:
    return getattr(tensor, "_ebbtide_is_false", False)


def _carried_out(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return operator(*args, **kwargs)
    except (DynamicOutputShapeException, DataDependentOutputException) as error:
        error.add_note(f"{operator} has a result whose shape depends on data, and fake tensors have no data")
        raise


def _one(dtype: torch.dtype) -> bool | int | float | complex:
    if dtype is torch.bool:
        return True
    return 1j**0 if dtype.is_complex else 1.0 if dtype.is_floating_point else 1


def _place() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
