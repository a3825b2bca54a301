"""Which storages of a step are its inputs: a batch, its labels, and what a program makes of them before the network.

The network is parameters, gradients, optimizer state, and whatever is made in a module, in the backward pass, or from
any of these. An input is made from none of it, and the network uses it, or another input is made from it. It is used by
an operator in a module, or together with something of the network, as labels are by a loss. After Pinpointing
(ISPASS'21), which tells inputs, parameters and intermediate results apart. Left out: what lasts from step to step, as a
batch that is used again.
"""

from dataclasses import replace

import numpy as np

from ebbtide.ir.base import Flags
from ebbtide.ir.trace import Access, Phase, StorageKind, Trace

_MAY_BE = (StorageKind.OTHER, StorageKind.ACTIVATION)


def with_inputs(trace: Trace) -> Trace:
    """Return the step with the kind INPUT where it belongs."""
    kinds = trace.storages.kind.copy()
    kinds[inputs_of(trace)] = StorageKind.INPUT
    return replace(trace, storages=replace(trace.storages, kind=kinds))


def inputs_of(trace: Trace) -> Flags:
    """Say of each storage whether it is an input."""
    ticks, rows, storages, n_ticks = trace.ticks, trace.accesses, trace.storages, len(trace.ticks)
    kinds, storage, tick = storages.kind, rows.storage, rows.tick % n_ticks
    reads, writes = (rows.mode & Access.READ) > 0, (rows.mode & Access.WRITE) > 0
    outside = (ticks.module == "") & np.isin(ticks.phase, (Phase.FORWARD, Phase.OTHER))
    may_be = ~storages.persistent & np.isin(kinds, _MAY_BE) & outside[storages.birth]
    of_network = ~may_be & ~(storages.persistent & (kinds == StorageKind.OTHER))  # a data set is not of the network
    of_network[storage[writes & ~outside[tick]]] = True
    uses_network = ~outside
    at = np.flatnonzero(outside[tick])
    at = at[np.argsort(tick[at], kind="stable")]
    operators = np.split(at, np.flatnonzero(np.diff(tick[at])) + 1) if len(at) else []
    for here in operators:
        if of_network[storage[here[reads[here]]]].any():
            uses_network[tick[here[0]]] = True
            of_network[storage[here[writes[here]]]] = True
    used = np.zeros(len(storages), dtype=bool)
    used[storage[reads & (uses_network & (ticks.phase != Phase.OPTIMIZER))[tick]]] = True
    may_be &= ~of_network
    found: Flags = may_be & used
    for here in reversed(operators):
        if found[storage[here[writes[here]]]].any():
            source = storage[here[reads[here]]]
            found[source] |= may_be[source]
    return found
