"""Reads traces in the format ``tiertrace/1`` (G10's networks, MICRO 2023, in neutral form).

A kernel is a tick. A ``global`` tensor is a persistent storage. A ``local`` one lives from its first use to the end of
the last kernel that reads it; a later write to it is scratch of that kernel. A kernel's workspace is scratch of its
own. Storages 0 .. n-1 are the tensors in the file's order, so a tensor's id is its place if ids count from 0. Scratch
comes after them. As in the format's own checker, a port's first link goes before the others, and copies take space by
16 MiB. Left out: the page-fault times, and which tensor starts on which tier.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ebbtide.errors import FileFormatError
from ebbtide.ir.base import Origin, check_range
from ebbtide.ir.machine import InPlace, Link, LinkGroup, Machine, Sharing, Tier
from ebbtide.ir.records import read_record, refusing_damage
from ebbtide.ir.trace import Access, Accesses, Storage, StorageKind, Storages, Tick, Ticks, Trace
from ebbtide.units import MIB

FORMAT = "tiertrace/1"
_MOST_FILE_BYTES = 256 * MIB
_CHUNK_BYTES = 16 * MIB


@dataclass(frozen=True, slots=True)
class _Tensor:
    id: int
    nbytes: int
    kind: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class _Kernel:
    index: int
    name: str
    layer: str
    duration_ns: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    workspace_bytes: int
    uvm_input_fault_ns: int | None = None
    uvm_all_fault_ns: int | None = None

    def __post_init__(self) -> None:
        check_range(self, "duration_ns workspace_bytes")


@dataclass(frozen=True, slots=True)
class _Tier:
    name: str
    capacity_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Link:
    name: str
    src: str
    dst: str
    bytes_per_s: int
    latency_ns: int
    nominal_latency_ns: int | None = None


@dataclass(frozen=True, slots=True)
class _Port:
    name: str
    links: tuple[str, ...]
    bytes_per_s: int


@dataclass(frozen=True, slots=True)
class _Machine:
    tiers: tuple[_Tier, ...]
    links: tuple[_Link, ...]
    ports: tuple[_Port, ...] = ()
    port_rule: str = ""


@dataclass(frozen=True, slots=True)
class _File:
    format: str
    tensors: tuple[_Tensor, ...]
    kernels: tuple[_Kernel, ...]
    machine: _Machine | None = None
    workload: str = ""
    batch: int | None = None
    page_bytes: int | None = None
    credit: str = ""
    measured_iteration: str = ""
    unused_tensor_ids: tuple[int, ...] = ()


def load_tiertrace(path: Path) -> tuple[Trace, Machine | None]:
    """Raise FileFormatError unless it is a whole file of this format, and OSError if it cannot be read."""
    with path.open("rb") as file:
        data = file.read(_MOST_FILE_BYTES + 1)
    try:
        return read_tiertrace(data)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error


def read_tiertrace(data: bytes) -> tuple[Trace, Machine | None]:
    """Read a file's text: the step, and its machine, None where the file has none."""
    if len(data) > _MOST_FILE_BYTES:
        raise FileFormatError("the file is too large")
    with refusing_damage("not JSON"):
        value = json.loads(data)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise FileFormatError(f"not a file of format {FORMAT}")
    value.pop("initial", None)  # the places of tensors before the first iteration; a steady step does not know them
    file = read_record(_File, value, "trace")
    try:
        return _trace(file), None if file.machine is None else _machine(file.machine, file.workload)
    except ValueError as error:
        raise FileFormatError(str(error)) from error


def read_tensor_ids(path: Path) -> tuple[int, ...]:
    """Read the tensors' ids: storage n of the trace is the tensor with id ``ids[n]``.

    Raises FileFormatError for a file of another format.
    """
    data = path.read_bytes()
    if not data.lstrip().startswith(b"{"):
        raise FileFormatError(f"{path} is not a file of format {FORMAT}")
    return tuple(tensor["id"] for tensor in json.loads(data)["tensors"])


def _trace(file: _File) -> Trace:
    place = {tensor.id: number for number, tensor in enumerate(file.tensors)}
    if len(place) != len(file.tensors):
        raise ValueError("two tensors have one id")
    modes: dict[int, dict[int, int]] = {tensor.id: {} for tensor in file.tensors}  # tensor -> tick -> mode
    for tick, kernel in enumerate(file.kernels):
        for ids, mode in ((kernel.reads, Access.READ), (kernel.writes, Access.WRITE)):
            for used in ids:
                if used not in modes:
                    raise ValueError(f"kernel {tick} uses tensor {used}, which is not there")
                modes[used][tick] = modes[used].get(tick, 0) | mode
    storages, scratch, rows = [], list(_workspaces(file)), []
    for tensor in file.tensors:
        storage, late = _storage(tensor, modes[tensor.id], len(file.kernels))
        storages.append(storage)
        scratch += late
        rows += [(place[tensor.id], tick, mode) for tick, mode in modes[tensor.id].items() if tick < storage.death]
    columns = np.array(sorted(rows), dtype=np.int64).reshape(-1, 3).T
    ticks = Ticks.from_rows(Tick(kernel.duration_ns, kernel.name, kernel.layer) for kernel in file.kernels)
    return Trace(file.workload, Origin.ASSUMED, ticks, Storages.from_rows([*storages, *scratch]), Accesses(*columns))


def _storage(tensor: _Tensor, modes: dict[int, int], n_ticks: int) -> tuple[Storage, list[Storage]]:
    """Make a tensor's storage, and scratch for the writes that nobody reads any more."""
    if tensor.kind == "global":
        return Storage(tensor.nbytes, StorageKind.PARAMETER, 0, n_ticks, tensor.label, persistent=True), []
    if tensor.kind != "local":
        raise ValueError(f"tensor {tensor.id} is neither global nor local but {tensor.kind!r:.40}")
    if not modes:
        raise ValueError(f"no kernel uses tensor {tensor.id}")
    birth = min(modes)
    last = max((tick for tick, mode in modes.items() if mode & Access.READ), default=birth)
    storage = Storage(tensor.nbytes, StorageKind.ACTIVATION, birth, last + 1, tensor.label)
    late = [_scratch(tensor.nbytes, tick, tensor.label) for tick in modes if tick > last]
    return storage, late


def _workspaces(file: _File) -> Iterator[Storage]:
    for tick, kernel in enumerate(file.kernels):
        if kernel.workspace_bytes:
            yield _scratch(kernel.workspace_bytes, tick, kernel.layer)


def _scratch(nbytes: int, tick: int, module: str) -> Storage:
    return Storage(nbytes, StorageKind.OTHER, tick, tick + 1, module, scratch=True)


def _machine(machine: _Machine, name: str) -> Machine:
    """Make the machine: a GPU's operations use its own memory alone, and contents lie in one place, without pages."""
    groups = tuple(LinkGroup(port.name, port.bytes_per_s, sharing=Sharing.IN_ORDER) for port in machine.ports)
    port_of: dict[str, str] = {link: port.name for port in machine.ports for link in port.links}
    tiers = tuple(
        Tier(tier.name, InPlace.NOTHING if rank else InPlace.ALL, tier.capacity_bytes, page_bytes=1)
        for rank, tier in enumerate(machine.tiers)
    )
    links = tuple(
        Link(link.src, link.dst, link.bytes_per_s, link.latency_ns, port_of.get(link.name)) for link in machine.links
    )
    # The first link named by a port goes first: links stand in the order of the ports that they share.
    order = {name: place for place, name in enumerate(name for port in machine.ports for name in port.links)}
    named = sorted(zip(machine.links, links, strict=True), key=lambda pair: order.get(pair[0].name, len(order)))
    ordered = tuple(link for _, link in named)
    return Machine(
        f"{FORMAT}, {name}", Origin.ASSUMED, tiers, ordered, groups, chunk_bytes=_CHUNK_BYTES, exclusive=True
    )
