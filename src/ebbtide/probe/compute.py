"""Measures how fast operators compute: PyTorch's matrix products by type of element, and the cost of calling one.

Threads are PyTorch's own, as many as a script gets that sets none. The slowest types take seconds for a product of a
thousand a side, so the side grows only while there is time.
"""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import torch

from ebbtide.ir.machine import Compute, Machine

SECONDS = 0.9
"""The time that all measurements take together, about."""
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_SIDES = (256, 640, 1280, 1920)
_CALLS = 64


def with_compute(machine: Machine, seconds: float = SECONDS) -> Machine:
    """Return the machine with its compute measured on this computer, for a roofline. The rule for times stays."""
    slice_s = seconds / (len(_TYPES) + 1)
    with torch.no_grad():
        single, bfloat16, float16 = (_flops_per_s(dtype, slice_s) for dtype in _TYPES)
    measured = replace(
        machine.compute,
        flops_per_s=single,
        bfloat16_flops_per_s=bfloat16,
        float16_flops_per_s=float16,
        operator_ns=_operator_ns(slice_s),
    )
    return replace(machine, compute=measured)


def render_compute(compute: Compute) -> str:
    """Return the figures in a line."""
    rates = (
        ("float32", compute.flops_per_s),
        ("bfloat16", compute.bfloat16_flops_per_s),
        ("float16", compute.float16_flops_per_s),
    )
    products = ", ".join(f"{name} {rate / 1e9:,.0f}" for name, rate in rates if rate is not None)
    return f"{'matrix products':<21}{products} GFLOP/s; calling an operator {compute.operator_ns / 1e3:.1f} us"


def _flops_per_s(dtype: torch.dtype, seconds: float) -> int:
    """Return the best rate of any side. A larger side is tried if the last one's rate lets three products fit."""
    deadline = perf_counter() + seconds
    best = 0.0
    for side in _SIDES:
        if best and 3 * 2 * side**3 / best > deadline - perf_counter():
            break
        left, right = torch.full((2, side, side), 0.5).to(dtype)
        product = left @ right  # also starts threads, and makes the kernel
        share = (deadline - perf_counter()) / 2

        def call(left: torch.Tensor = left, right: torch.Tensor = right, product: torch.Tensor = product) -> None:
            torch.mm(left, right, out=product)

        best = max(best, 2 * side**3 / _best_s(call, share))
    return max(round(best), 1)


def _operator_ns(seconds: float) -> int:
    """Return the time of an operator that computes nearly nothing, in a forward and a backward pass."""
    one = torch.ones(1, requires_grad=True)

    def call() -> None:
        value = one
        for _ in range(_CALLS):
            value = value * one
        value.backward()  # type: ignore[no-untyped-call]  # two products for each
        one.grad = None

    with torch.enable_grad():
        return round(_best_s(call, seconds) / (3 * _CALLS) * 1e9)


def _best_s(call: Callable[[], object], seconds: float) -> float:
    """Return the shortest time of a call, over ``seconds`` and at least twice: others may disturb, and none helps."""
    best, end, calls = float("inf"), perf_counter() + seconds, 0
    while calls < 2 or perf_counter() < end:
        began = perf_counter()
        call()
        best, calls = min(best, perf_counter() - began), calls + 1
    return best
