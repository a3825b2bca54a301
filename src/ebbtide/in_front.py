"""Everything in PyTorch, Python and other libraries that Ebbtide replaces or hooks into.

``InFrontOf`` has a row for each reason to replace functions, and only ``install`` replaces any. ``REGISTERED`` lists
what replaces nothing: hooks, callbacks, handlers, kernels and allocators. The tests compare both with the sources. So a
new version of torch needs comparing with this page alone.

A removed wrapper gives way to the very object that was there before. If another library has wrapped it meanwhile, it
stays in place and only hands calls on. Left out: objects that a script made itself, such as the gradients that
``update_order`` takes away.
"""

import ctypes
import functools
import gc
import inspect
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import MethodDescriptorType, MethodType
from typing import Any

_INHERITED = object()


@dataclass(frozen=True, slots=True)
class Row:
    """One reason to replace something or to hook into it.

    ``by`` is the Python module or the native file that does it. ``may_lack``: some versions lack some of the names.
    ``traced``: Dynamo may compile what the function calls, so it looks into the wrapper, too.
    """

    by: str
    why: str
    names: tuple[str, ...]
    ends: str = "with the process, as managed storages do"
    may_lack: bool = False
    traced: bool = False


NEWER = frozenset({"torch._C.TensorBase.const_data_ptr"})
"""Names that older versions of torch lack, whose rows lack nothing else."""

_DLPACK = (
    *("torch._C._to_dlpack", "torch._C._to_dlpack_versioned"),
    *("torch.to_dlpack", "torch.utils.dlpack.to_dlpack", "torch.Tensor.__dlpack__"),
)
_VIEWS, _TENSORS, _EVENTS = "doors.foreign_views", "doors.tensors", "capture.optimizer_events"
_WITH_THE_LAST, _WITH_SESSION = "with the last subscriber", "with the session"


class InFrontOf(Enum):
    """The functions that are replaced. If two rows name the same function, the one installed later is called first."""

    BACKWARD = Row(
        _EVENTS,
        "subscribers act before or after a backward pass",
        # torch.compiler restores the first by the second.
        ("torch.autograd._engine_run_backward", "torch.autograd.graph._engine_run_backward"),
        ends=_WITH_THE_LAST,
        traced=True,
    )
    OPTIMIZER_BUILT = Row(
        _EVENTS,
        "an optimizer has taken parameters",
        ("torch.optim.Optimizer.add_param_group",),
        _WITH_THE_LAST,
    )
    NUMPY = Row(_VIEWS, "system calls on an array cannot wait, so its memory stays", ("torch._C.TensorBase.numpy",))
    DLPACK = Row(_VIEWS, "nobody tells when exported memory is done with, so it stays", _DLPACK)
    RPC = Row(
        _VIEWS,
        "torch.distributed.rpc has another process's kernel read tensors, and nobody tells when it has, so they stay",
        (
            "torch.distributed.rpc.internal._InternalRPCPickler.serialize",
            *(
                f"torch.distributed.rpc.api._invoke_{kind}_{what}"
                for kind in ("rpc", "remote")
                for what in ("builtin", "torchscript")
            ),
        ),
        may_lack=True,
    )
    BACKENDS = Row(
        _VIEWS,
        "a backend's own methods are no operators, and hand tensors to the kernel until their Work has ended",
        tuple(
            f"torch._C._distributed_c10d.Backend.{name}"
            for name in (
                *("_allgather_base", "_reduce_scatter_base", "allgather", "allgather_coalesced", "allreduce"),
                *("allreduce_coalesced", "alltoall", "alltoall_base", "broadcast", "gather", "recv", "recv_anysource"),
                *("reduce", "reduce_scatter", "scatter", "send"),
            )
        ),
        may_lack=True,
    )
    DATA_PTR = Row(
        _VIEWS,
        "who asks for an address finds the tensor in memory",
        ("torch._C.TensorBase.data_ptr", "torch._C.TensorBase.const_data_ptr"),
    )
    STORAGE_FILES = Row(
        _VIEWS,
        "PyTorch hands a storage to the kernel, which cannot wait",
        ("torch._C.StorageBase._write_file", "torch._C.StorageBase._set_from_file"),
    )
    RECORD_WRITER = Row(_VIEWS, "torch.save hands a storage to the kernel", ("torch.PyTorchFileWriter.write_record",))
    RECORD_READER = Row(_VIEWS, "torch.load does", ("torch._C.PyTorchFileReader.get_storage_from_record",))
    SAFETENSORS_WRITER = Row(
        "doors.safetensors_files",
        "safetensors hands all tensors of a model to the kernel",
        ("safetensors.torch.serialize_file",),
    )
    SAFETENSORS_ADDRESSES = Row(
        "doors.safetensors_files",
        "addresses are compared there, so nothing is fetched",
        ("safetensors.torch._flatten_as_ptr", "safetensors.torch._remove_duplicate_names"),
        may_lack=True,
    )
    SCRIPTED_WRITER = Row(
        "doors.scripted_files",
        "TorchScript hands tensors to the kernel that may be as large as the arena",
        ("torch.jit.RecursiveScriptModule.save",),
    )
    SCRIPTED_READER = Row("doors.scripted_files", "it does so to read, too", ("torch._C.import_ir_module",))
    TENSOR_DOORS = Row(
        _TENSORS,
        "a tensor is looked at without an operator: its deferred update is made before",
        (
            *(f"torch._C.TensorBase.{name}" for name in ("numpy", "data_ptr", "const_data_ptr", "untyped_storage")),
            *(f"torch._C.TensorBase.{name}" for name in ("apply_", "map_", "map2_")),
            *_DLPACK,
        ),
    )
    SWAPS = Row(
        _TENSORS,
        "two tensors exchange their contents: deferred updates of both are made before",
        ("torch._C._swap_tensor_impl",),
    )
    VERSIONS = Row(
        _TENSORS,
        "a version counter changes, which tells whether memory changed behind a deferred update: it is made before",
        ("torch.autograd.graph.increment_version", "torch._C._autograd._unsafe_set_version_counter"),
        may_lack=True,
    )
    STORAGE_DOORS = Row(
        _TENSORS,
        "bytes are looked at: deferred updates of them are made before",
        (
            *("torch.UntypedStorage.__getitem__", "torch.UntypedStorage.__setitem__"),
            *(
                f"torch._C.StorageBase.{name}"
                for name in (
                    *("data_ptr", "copy_", "fill_", "resize_", "_byteswap", "_write_file", "_set_from_file"),
                    *("_share_fd_cpu_", "_share_filename_cpu_", "_swap_data_ptr_", "_resize_with_addr_"),
                )
            ),
        ),
    )
    DEVICE_ADDRESSES = Row(
        "doors.device_views",
        "who asks for an address on a device finds the tensor there, until the step ends",
        ("torch._C.TensorBase.data_ptr", "torch._C.TensorBase.const_data_ptr", "torch._C.StorageBase.data_ptr"),
    )
    DEVICE_STORAGES = Row(
        "doors.device_views",
        "these look at a storage before an operator does, or without one",
        tuple(f"torch._C.StorageBase.{name}" for name in ("resize_", "copy_", "fill_", "__setitem__", "_write_file")),
    )
    DEVICE_SAVES = Row(
        "doors.device_views",
        "addresses of storages that are saved are only names, so nothing need be there for them",
        ("torch.serialization._save",),
        may_lack=True,
    )
    DEVICE_EXPORTS = Row(
        "doors.device_views",
        "nobody tells when memory that was exported is done with, so it stays",
        (
            *_DLPACK,
            "torch._C.StorageBase._share_cuda_",
            "torch.UntypedStorage.__getitem__",  # a slice has the address, and is a storage of its own
        ),
        may_lack=True,
    )
    LIST_OPTIMIZERS = Row(
        "runtime.in_groups",
        "on a device a list's parameters are updated some after the others, so that not all need be there",
        (
            "torch.optim._adafactor._multi_tensor_adafactor",
            *(
                f"torch.optim.{name}._multi_tensor_{name}"
                for name in (
                    "adadelta",
                    "adagrad",
                    "adam",
                    "adamax",
                    "asgd",
                    "nadam",
                    "radam",
                    "rmsprop",
                    "rprop",
                    "sgd",
                )
            ),
        ),
        _WITH_SESSION,
        may_lack=True,
    )
    CAPTURES = Row(
        "doors.device_views",
        "a captured graph uses addresses again, so nothing moves meanwhile",
        ("torch.cuda.CUDAGraph.capture_begin", "torch.cuda.CUDAGraph.capture_end"),
        may_lack=True,
    )
    SETTINGS = Row(
        _TENSORS,
        "what operators compute changes: what is put off, or to be made anew, is made before",
        (
            *(f"{module}.set_{name}" for module in ("torch", "torch._C") for name in ("num_threads", "flush_denormal")),
            *(f"torch._C._set_{name}" for name in ("default_dtype", "default_tensor_type", "deterministic_algorithms")),
            *(f"torch._C._set_{name}" for name in ("float32_matmul_precision", "fp32_precision_setter")),
            *(f"torch._C._set_{name}" for name in ("mkldnn_enabled", "mkldnn_deterministic", "nnpack_enabled")),
            *(f"torch._C._set_cublas_allow_{name}" for name in ("tf32", "fp16_accumulation")),
            *(f"torch._C._set_cublas_allow_{name}_reduced_precision_reduction" for name in ("fp16", "bf16")),
            "torch._C._set_blas_preferred_backend",
            "torch.backends.ContextProp.__set__",  # it has kept the functions themselves
        ),
        may_lack=True,
    )
    KERNELS = Row(
        _TENSORS,
        "operators get other kernels: what is put off, or to be made anew, is made before",
        (
            *(f"torch.library.Library.{name}" for name in ("impl", "fallback", "_impl_with_aoti_compile", "_destroy")),
            "torch._ops._Ops.load_library",
        ),
    )
    SCRIPTED_DOORS = Row(
        _TENSORS,
        "a module is written without an operator: deferred updates are made before",
        (
            *(
                f"torch._C.ScriptModule.{name}"
                for name in ("save", "save_to_buffer", "_save_for_mobile", "_save_to_buffer_for_mobile")
            ),
            *("torch._C.ScriptModuleSerializer.serialize", "torch._C.ScriptModuleSerializer.write_files"),
            *("torch._C.ScriptFunction.save", "torch._C.ScriptFunction.save_to_buffer"),
            *("torch._C._save_jit_module", "torch._C._save_jit_module_to_bytes"),
        ),
    )
    COMPILED_CODE = Row(
        _TENSORS,
        "compiled code uses addresses: deferred updates are made before",
        ("torch._dynamo.eval_frame._maybe_set_eval_frame",),
        traced=True,
    )
    COMPILED_BEFOREHAND = Row(
        _TENSORS,
        "so does what is called without Dynamo",
        (
            "torch._dynamo.aot_compile.AOTCompiledFunction.__call__",
            "torch._C._aoti.AOTIModelPackageLoader.run",
            "torch._C._aoti.AOTIModelPackageLoader.boxed_run",
            "torch._C._aoti.AOTIModelContainerRunnerCpu.run",
        ),
        may_lack=True,
    )
    COMPILED_BY_INDUCTOR = Row(
        _TENSORS,
        "the same, once it is imported",
        ("torch._inductor.output_code.CompiledFxGraph.__call__",),
        may_lack=True,
    )
    LOADER_WORKERS = Row(
        "recorders.fake",
        "fake tensors cannot be sent between processes, so a DataLoader has no workers",
        ("torch.utils.data.DataLoader._get_iterator",),
        ends="with the recorder",
    )
    FAKE_ARRAYS = Row(
        "recorders.fake",
        "a fake tensor has no memory to share, so NumPy gets ones",
        ("torch._C.TensorBase.numpy",),
        ends="with the recorder",
    )
    FAKE_FILES = Row(
        "recorders.fake",
        "a fake tensor has no bytes to save, so a checkpoint of that name stays as it is",
        ("torch.save", "torch.serialization.save"),
        ends="with the recorder",
    )
    FAKE_TEXT = Row(
        "recorders.fake",
        "a fake number is shown as the 1 that it is read as",
        ("torch.Tensor.__format__",),
        ends="with the recorder",
    )
    FAULTS = Row(
        "runtime.faults",
        "the SIGSEGV safety net goes on top again, and no thread blocks it",
        ("faulthandler.enable", "signal.signal", "signal.pthread_sigmask"),
    )
    EXIT = Row("session.leaving", "the report is written and the summary shown before", ("os._exit",), _WITH_SESSION)
    EXEC = Row(
        "session.leaving",
        "a script that starts itself anew stays within the budget",
        ("os.execv", "os.execve"),
        _WITH_SESSION,
    )
    NOTEBOOK_WARNINGS = Row(
        "screen.notebook", "Ebbtide's warnings go to the area below the cell", ("warnings.showwarning",), _WITH_SESSION
    )
    TERMINAL_WARNINGS = Row("commands.program", "Ebbtide's warnings take one line", ("warnings.formatwarning",))

    def install(self, function: Callable[..., Any]) -> "list[Wrapper]":
        """Have ``function`` called in place of each name. It gets the original function and the call's arguments."""
        row = self.value
        there = [name for name in row.names if not (row.may_lack or name in NEWER) or _is_there(name)]
        return [Wrapper(name, function, row.traced) for name in there]


REGISTERED = (
    Row(
        _VIEWS,
        "DLPack's table of C functions: a tensor is fetched, and its deferred update made, before it is exported",
        ("torch.Tensor.__dlpack_c_exchange_api__",),
    ),
    Row(
        _EVENTS,
        "an optimizer's step begins, or has ended",
        ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"),
        _WITH_THE_LAST,
    ),
    Row("estimate.child", "what ended a script that is estimated", ("sys.excepthook",), "with that process"),
    Row(
        "update_order.noted_update",
        "the collector calls no finalizer amid an update",
        ("gc.disable",),
        "with the update",
    ),
    Row(
        "update_order.early_updates",
        "a parameter's gradient is complete",
        ("_post_accumulate_grad_hooks",),
        _WITH_SESSION,
    ),
    Row(
        "update_order.signals_later",
        "no handler of a signal finds updates half made",
        ("signal.signal",),
        "with the update, or the step; the script's handlers return, and are called",
    ),
    Row(_TENSORS, "a child finds its parent's updates made", ("register_at_fork",)),
    Row("session.driven", "a child has no session", ("register_at_fork",)),
    Row("session.driven", "a session outside a block ends with the program", ("atexit.register",), _WITH_SESSION),
    Row("session.ending", "a rank stays for a moment, so that others can say why they end", ("atexit.register",)),
    Row("session.launch", "a script finds its own arguments", ("sys.argv",)),
    Row(
        "session.launch",
        "the error that ended a script is where Python leaves it",
        ("sys.last_type", "sys.last_value", "sys.last_traceback", "sys.last_exc"),
    ),
    Row("commands.interrupts", "SIGTERM ends a command's child first", ("signal.signal",), "with that child"),
    Row("session.launch", "a second Ctrl-C shows no traceback", ("signal.signal",)),
    Row(
        "cli", "Ctrl-C that was told of ends the process, and is told no more", ("sys.excepthook",), "with the process"
    ),
    Row("recorders.fake", "a step runs on fake tensors", ("FakeTensorMode", "TorchDispatchMode"), "with the recorder"),
    Row("after_import", "a module's import has ended", ("spec.loader.exec_module",), "with that import"),
    Row("verify.watch", "torch is imported", ("meta_path.insert",), "with that import"),
    Row(
        "session.library_threads",
        "a script first imports torch or numpy, with the threads that it has asked for by then",
        ("meta_path.insert",),
        "with that import",
    ),
    Row("verify.child", "a plain run is not told that Ebbtide is off", ("filterwarnings",)),
    Row("native/torch/allocator.cpp", "large storages are the arena's, all others as before", ("SetCPUAllocator",)),
    Row("native/torch/adopt.cpp", "the arena resizes an adopted storage", ("set_allocator",), "with the storage"),
    Row("native/torch/plain_recorder.cpp", "births are noted; memory comes as before", ("SetCPUAllocator",)),
    Row("native/torch/plain_recorder.cpp", "a child records nothing", ("pthread_atfork",)),
    Row("native/torch/standstill.cpp", "a child waits for no thread of its parent's", ("pthread_atfork",)),
    Row("native/torch/device_memory.cpp", "a child moves nothing on its parent's device", ("pthread_atfork",)),
    Row("native/torch/storage_access.hpp", "a write that nobody announced is noticed", ("set_materializer",)),
    Row(
        "native/torch/recorder.cpp",
        "operators begin and end; what is put off is made before TorchScript runs",
        ("addGlobalCallback",),
        "with the step, or the arena",
    ),
    Row("native/torch/collective_pins.cpp", "a collective returns what it is waited for by", ("addGlobalCallback",)),
    Row("native/torch/gathers.cpp", "index_select and index read only the pages of their rows", ("torch::Library",)),
    Row("native/torch/list_operators.cpp", "a fused optimizer runs in groups that fit memory", ("torch::Library",)),
    Row("native/core/fault.cpp", "absent pages are served; other faults go to who was there", ("sigaction",)),
    Row("native/core/fault.cpp", "a child has no training state, and no copy half made", ("pthread_atfork",)),
)
"""Everything that is registered, by the names that the sources use."""


class Wrapper:
    """Stands in front of the function of that name (``torch.Tensor.__dlpack__``) until it is removed."""

    def __init__(self, name: str, function: Callable[..., Any], traced: bool = False) -> None:
        owner, _, self._attribute = name.rpartition(".")
        self._owner = pkgutil.resolve_name(owner)
        self._before = vars(self._owner).get(self._attribute, _INHERITED)
        self._function: Callable[..., Any] | None = function
        original = getattr(self._owner, self._attribute)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            inserted = self._function
            return original(*args, **kwargs) if inserted is None else inserted(original, *args, **kwargs)

        self._wrapper: Callable[..., Any] = wrapper if traced else _Equal(name, original, wrapper)
        put(self._owner, self._attribute, self._wrapper)

    def remove(self) -> None:
        """Restore the function. If another library has wrapped this wrapper, it stays and hands calls on."""
        self._function = None
        if vars(self._owner).get(self._attribute) is not self._wrapper:
            return
        if self._before is _INHERITED:
            delattr(self._owner, self._attribute)
        else:
            put(self._owner, self._attribute, self._before)


class _Equal:
    """A wrapper that a script's tables, ``pickle`` and ``inspect`` take for the function of that name.

    PyTorch passes it to ``__torch_function__``, where a script looks it up in a table from before. Dynamo compiles
    calls of a tensor's C functions, which it knows by their type. Left out: ``is``, between a function from before and
    the one of now.
    """

    def __init__(self, name: str, original: Callable[..., Any], wrapper: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._name, self._call = name, wrapper
        kind = type(inspect.unwrap(original))
        self._binds = hasattr(kind, "__get__")
        self._kind = kind if kind is MethodDescriptorType else _Equal
        _leave_to_python(_Equal.__call__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., Any]:
        return self if instance is None or not self._binds else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self._kind

    def __eq__(self, other: object) -> bool:
        return self is other or self.__wrapped__ == other

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __reduce__(self) -> tuple[Any, ...]:
        return pkgutil.resolve_name, (self._name,)


def is_ours(function: object) -> bool:
    """Tell whether a function is one of these wrappers, ``traced`` ones excepted."""
    return type(function) is _Equal


def put(owner: Any, name: str, value: object) -> None:
    """Set an attribute, also of a type of C code, which Python calls immutable: so who calls a tensor's function by its
    base class goes through the same door. A slot (``__getitem__``) would not change."""
    try:
        setattr(owner, name, value)
    except TypeError:
        (entries,) = gc.get_referents(vars(owner))
        entries[name] = value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


def _is_there(name: str) -> bool:
    owner, _, attribute = name.rpartition(".")
    return hasattr(pkgutil.resolve_name(owner), attribute)


def _leave_to_python(function: Callable[..., Any]) -> None:
    """Have Dynamo run this function as it is. An import of Dynamo takes a second, so it is told without one."""
    if (torch := sys.modules.get("torch")) is not None:
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        dynamo = torch._C._dynamo.eval_frame
        skip = dynamo._FrameAction.SKIP
        dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))
