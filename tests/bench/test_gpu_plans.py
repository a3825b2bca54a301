"""Nets of pictures have the shapes that they claim, and plans for GPUs make anew what GPUs may."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from bench.gpu import plans
from bench.gpu.vision import RESNETS, ResNet, UNet, pictures, unet_batch
from ebbtide.estimate.command import with_host_memory
from ebbtide.ir.occupancy import live_bytes, peak
from ebbtide.machines import find_machine
from ebbtide.planners.base import page_size_of
from tests.helpers.make_steps import network


@pytest.fixture(autouse=True)
def the_same_chance() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def test_the_nets_have_as_many_parameters_as_the_published_ones() -> None:
    with torch.device("meta"):
        nets = ResNet(RESNETS["resnet152"]), UNet()
    assert [sum(p.numel() for p in net.parameters()) for net in nets] == [60_192_808, 859_520_964]


@pytest.mark.parametrize(
    ("net", "batch"), [(lambda: ResNet((1, 1, 1, 1), 10), pictures(2, 32)), (lambda: UNet((32, 64)), unet_batch(2, 64))]
)
def test_every_parameter_of_a_small_one_gets_a_gradient(net: type[nn.Module], batch: tuple[Tensor, ...]) -> None:
    model = net()
    if isinstance(model, ResNet):
        batch = batch[0], batch[1] % 10
    loss = model(*batch)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_budgets_are_shares_that_the_machine_has_and_all_that_it_has() -> None:
    on = with_host_memory(find_machine("h100"))
    trace = network(6)
    whole = peak(live_bytes(trace, page_size_of(on)))
    assert list(plans.budgets(trace, on)) == list(plans.SHARES)
    small = replace(on, tiers=(replace(on.tiers[0], capacity_bytes=whole * 7 // 10), on.tiers[1]))
    most, *shares = plans.budgets(trace, small)
    assert most == pytest.approx(0.7, abs=1e-3)
    assert shares == [0.6, 0.4]
