"""What an estimate says of an accelerator's memory, on a machine that is given."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ebbtide import _torch
from ebbtide.estimate.budgets import SHARES, Rest, budgets_of, estimate
from ebbtide.estimate.command import Estimated, repeating_there, with_host_memory
from ebbtide.estimate.text import ON_DEVICE, ending, heading, lines, to_figures
from ebbtide.ir.occupancy import live_bytes, needed_bytes, peak
from ebbtide.machines import find_machine
from ebbtide.planners.base import page_size_of
from ebbtide.units import GIB
from tests.estimate.test_estimate import MACHINE, a_step
from tests.helpers.command import EBBTIDE, TRAIN_MLP, run
from tests.helpers.make_steps import network

NOTHING = Rest(0, 0)
SMALL = replace(MACHINE, tiers=(replace(MACHINE.tiers[0], capacity_bytes=7 * GIB), MACHINE.tiers[1]))


def test_sizes_bound_the_tensors_alone_and_what_the_device_has_is_one() -> None:
    trace = a_step()
    rows = {fast: (tensors, process) for fast, tensors, process in budgets_of(trace, SMALL, NOTHING, on_device=True)}
    sizes = [fast for fast in rows if fast.endswith("GiB")]
    assert sizes == ["16GiB", "12GiB", "8GiB", "7GiB", "6GiB", "4GiB", "2GiB"]  # an operation needs 1.9 GiB
    for fast in sizes:
        assert rows[fast] == (int(fast.removesuffix("GiB")) * GIB,) * 2


def test_the_fastest_budget_that_fits_is_proposed() -> None:
    found = estimate(a_step(), SMALL, NOTHING, device="cuda")
    assert found.least_process_bytes == peak(needed_bytes(a_step(), page_size_of(SMALL)))
    assert found.proposed is not None
    assert found.proposed.fast == "7GiB"
    roomy = estimate(a_step(), MACHINE, NOTHING, device="cuda")
    assert roomy.proposed is not None
    assert roomy.proposed.fast == SHARES[0]
    assert estimate(a_step(), MACHINE, NOTHING).proposed != roomy.proposed


def test_the_text_tells_of_the_device_and_has_a_line_to_copy() -> None:
    found = Estimated(estimate(a_step(), SMALL, NOTHING, device="cuda"), SMALL, None)
    assert "Tensors on cuda peak at about 19.1 GiB. A step takes about 81.9 s" in heading(found)
    table = {line[0]: dict(zip(ON_DEVICE, line, strict=True)) for line in lines(found)}
    assert list(table["100%"].values()) == ["100%", "19.1 GiB", "81.9 s", "1.00 (not there)", "0 B"]
    assert table["10%"]["step"] == "too small"
    assert ending(found, ["train.py"]).endswith("\n\nebbtide run --device cuda --fast 7GiB train.py")
    roomy = Estimated(estimate(a_step(), MACHINE, NOTHING, device="cuda"), MACHINE, None)
    assert ending(roomy, ["train.py"]).endswith("\n\nebbtide run --device cuda train.py")
    tiny = replace(SMALL, tiers=(replace(SMALL.tiers[0], capacity_bytes=GIB), SMALL.tiers[1]))
    hopeless = Estimated(estimate(a_step(), tiny, NOTHING, device="cuda"), tiny, None)
    assert ending(hopeless, ["train.py"]).endswith("No budget fits that machine.")
    assert to_figures(found, ["train.py"])["device"] == "cuda"


def test_what_leaves_goes_to_host_memory_and_not_to_a_disk() -> None:
    there = with_host_memory(find_machine("h100"))
    assert [tier.name for tier in there.tiers] == ["hbm", "host"]
    assert {link.name for link in there.links} == {"hbm->host", "host->hbm"}


@pytest.mark.starts
def test_the_command_estimates_for_a_device_that_need_not_be_here(tmp_path: Path) -> None:
    machine = tmp_path / "machine.toml"
    machine.write_text(SMALL.to_toml())
    tiny = ("--width", "256", "--depth", "2", "--rows", "64")
    done = run(EBBTIDE, "estimate", "--device", "cuda", "--machine", str(machine), TRAIN_MLP, *tiny, status=0)
    assert "Tensors on cuda peak at about " in done.stdout
    assert done.stdout.strip().splitlines()[-1].startswith("ebbtide run --device cuda ")
    refused = run(EBBTIDE, "estimate", "--device", "cuda", TRAIN_MLP, status=2)
    assert "name its --machine, such as h100" in refused.stderr


def test_a_share_is_that_of_the_devices_tensors() -> None:
    trace = a_step()
    whole = peak(live_bytes(trace, page_size_of(SMALL)))
    rows = {fast: tensors for fast, tensors, _ in budgets_of(trace, SMALL, NOTHING, on_device=True)}
    assert rows["100%"] == whole
    assert 0 < whole - 2 * rows["50%"] < GIB // 100


def test_only_operators_of_accelerators_make_anything_anew() -> None:
    trace = network(2)
    names = ["aten::mm", "aten::convolution", "aten::gelu_", "aten::sum"]
    operators = np.array([names[tick % 4] for tick in range(len(trace.ticks))], dtype=object)
    every = np.ones(len(trace.ticks), dtype=bool)
    found = repeating_there(replace(trace, ticks=replace(trace.ticks, operator=operators, repeats=every)))
    assert {name for name, repeats in zip(operators, found.ticks.repeats, strict=True) if repeats} == {
        *("aten::mm", "aten::gelu_")
    }
    assert "aten::convolution" in _torch.repeatable_operators()[0]
