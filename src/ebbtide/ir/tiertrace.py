"""Reads and writes traces in the format ``tiertrace/1`` (G10's networks, MICRO 2023, in neutral form).

A kernel is a tick. A ``global`` tensor is a persistent storage. A ``local`` one lives from its first use to the end of
the last kernel that reads it; a later write to it is scratch of that kernel. A kernel's workspace is scratch of its
own. Storages 0 .. n-1 are the tensors in the file's order, so a tensor's id is its place if ids count from 0. Scratch
comes after them. As in the format's own checker, a port's first link goes before the others, and copies take space by
16 MiB. Left out: the page-fault times, and which tensor starts on which tier.

A step of ours is written with its storages' numbers as ids. What the next step still uses is ``global``. The last use
of a ``local`` tensor is a read as well, since the format ends its life with the last kernel that reads it. What the
format cannot say is lost: that a storage lives on after its last use, its kind, whether an operation repeats, and all
of a machine but its tiers' capacities, its links' rates and latencies, and its groups.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ebbtide.errors import FileFormatError
from ebbtide.ir.base import Origin, check_range
from ebbtide.ir.machine import InPlace, Link, LinkGroup, Machine, Sharing, Tier
from ebbtide.ir.occupancy import levels
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
        raise FileFormatError(f"{path} is not a file of format {FORMAT}: `ebbtide export` writes a step as one")
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


# ---- writing ---------------------------------------------------------------------------------------------------------


def to_tiertrace(trace: Trace, machine: Machine) -> str:
    """Write a step and its machine as a file's text. Globals begin on the slowest tier."""
    storages, ticks = trace.storages, trace.ticks
    reads: list[list[int]] = [[] for _ in range(len(ticks))]
    writes: list[list[int]] = [[] for _ in range(len(ticks))]
    tensors = []
    for number in np.flatnonzero(~storages.scratch).tolist():
        uses, is_global = _uses(trace, number)
        for tick, mode in uses:
            if mode & Access.READ:
                reads[tick].append(number)
            if mode & Access.WRITE:
                writes[tick].append(number)
        kind, nbytes, label = "global" if is_global else "local", int(storages.nbytes[number]), storages.module[number]
        tensors.append({"id": number, "nbytes": nbytes, "kind": kind, "label": label})
    own = storages.scratch & (storages.room_of == -1)
    workspaces = levels(storages.birth[own], storages.death[own], storages.nbytes[own], len(ticks)).tolist()
    columns = (ticks.operator.tolist(), ticks.module.tolist(), ticks.time_ns.tolist(), reads, writes, workspaces)
    fields = ("name", "layer", "duration_ns", "reads", "writes", "workspace_bytes")
    kernels = [
        {"index": tick, **dict(zip(fields, row, strict=True))} for tick, row in enumerate(zip(*columns, strict=True))
    ]
    file = {
        "format": FORMAT,
        "workload": trace.name,
        "machine": _machine_fields(machine),
        "initial": {"global": machine.tiers[-1].name, "local": "absent"},
        "measured_iteration": "any but the first",
        "tensors": tensors,
        "kernels": kernels,
    }
    return json.dumps(file, separators=(",", ":")) + "\n"


def _uses(trace: Trace, number: int) -> tuple[list[tuple[int, int]], bool]:
    """Return a storage's uses as ticks of one step and modes, and whether it is ``global``. Uses of an elder ([Note:
    elders] in ``planners.search.idle_table``) are left out."""
    storages, n_ticks, rows = trace.storages, len(trace.ticks), trace.accesses.of(number)
    uses = dict(zip(trace.accesses.tick[rows].tolist(), trace.accesses.mode[rows].tolist(), strict=True))
    if storages.persistent[number]:
        return list(uses.items()), True
    birth = int(storages.birth[number])
    uses[birth] = uses.get(birth, 0) | Access.WRITE
    uses = {tick: mode for tick, mode in uses.items() if tick < birth + n_ticks}
    last = max(uses)
    if birth < last < n_ticks:
        uses[last] |= Access.READ
    return [(tick % n_ticks, mode) for tick, mode in uses.items()], last >= n_ticks


def _machine_fields(machine: Machine) -> dict[str, Any]:
    def name_of(link: Link) -> str:
        return f"{link.source}_to_{link.target}"

    ports = {group: [name_of(link) for link in machine.links if link.shares == group.name] for group in machine.groups}
    return {
        "tiers": [{"name": tier.name, "capacity_bytes": tier.capacity_bytes} for tier in machine.tiers],
        "links": [
            {"name": name_of(link), "src": link.source, "dst": link.target}
            | {"bytes_per_s": link.bytes_per_s, "latency_ns": link.latency_ns}
            for link in machine.links
        ],
        "ports": [
            {"name": group.name, "links": links, "bytes_per_s": group.bytes_per_s}
            for group, links in ports.items()
            if links
        ],
        "port_rule": "a port's first link goes before the others",
    }
