"""TM-Training's findings in the simulator: `python -m bench.papers.findings tm-training` prints them."""

from dataclasses import replace

from bench.papers.common import GB, outcome_of, show
from bench.papers.steps import BERT_LARGE, XEON, resnet, transformer
from ebbtide.ir.machine import Machine
from ebbtide.ir.occupancy import arena_pages, live_bytes, needed_bytes, peak
from ebbtide.ir.plan import Plan
from ebbtide.machines import find_machine
from ebbtide.planners import BUILT_IN
from ebbtide.simulator.costs import costs_of
from ebbtide.simulator.modelled_times import recost


def energies(machine: Machine) -> dict[str, Machine]:
    """The file's, the public skeleton's (1 pJ/bit everywhere), flash at twice and at half of the file's, and the file's
    with links four times as fast."""

    def flash(factor: float) -> Machine:
        hbm, slow = machine.tiers
        read, write = slow.read_pj_per_bit, slow.write_pj_per_bit
        assert read is not None
        assert write is not None
        changed = replace(slow, read_pj_per_bit=read * factor, write_pj_per_bit=write * factor)
        return replace(machine, tiers=(hbm, changed))

    ones = {"read_pj_per_bit": 1.0, "write_pj_per_bit": 1.0, "static_mw_per_gb": 10.0}
    skeleton = replace(machine, tiers=tuple(replace(tier, **ones) for tier in machine.tiers))  # type: ignore[arg-type]
    links = tuple(replace(link, bytes_per_s=4 * link.bytes_per_s) for link in machine.links)
    return {
        "machine file": machine,
        "flash x 2": flash(2.0),
        "flash / 2": flash(0.5),
        "skeleton, 1 pJ/bit": skeleton,
        "links x 4": replace(machine, links=links),
    }


def tm_training() -> None:
    """Traffic between tiers and throughput per watt at 12.5 % of the peak in HBM."""
    npu = find_machine("npu-flash")
    rows = []
    names = ("tm-training", "sentinel", "autotm-sync", "autotm-async")
    for step in (
        resnet((3, 4, 6, 3), 64, XEON),
        resnet((3, 8, 36, 3), 32, XEON),
        transformer(BERT_LARGE, 16, 384, XEON),
    ):
        trace = recost(step, npu)
        most = peak(live_bytes(trace, arena_pages))
        budget = max(most // 8, peak(needed_bytes(trace, arena_pages)))
        made: dict[str, Plan] = {}
        for label, machine in energies(npu).items():
            cells, traffic, efficiency = [], {}, {}
            if machine.links != npu.links or not made:  # the others know no energies
                made = {name: BUILT_IN[name](trace, machine, budget) for name in names[1:]}
            made["tm-training"] = BUILT_IN["tm-training"](trace, machine, budget)
            for name in names:
                outcome = outcome_of(made[name], trace, machine)
                costs = costs_of(outcome, machine.with_budget(budget))
                assert costs.steps_per_j is not None
                traffic[name], efficiency[name] = sum(outcome.moved_bytes.values()), costs.steps_per_j
                cells.append(f"{traffic[name] / GB:.2f} / {outcome.step_ns / trace.step_ns:.2f}")
            others = names[1:]
            rows.append([
                step.name,
                f"{budget / most:.1%}",
                label,
                *cells,
                " ".join(f"{traffic['tm-training'] / max(traffic[name], 1) - 1:+.0%}" for name in others),
                " ".join(f"{efficiency['tm-training'] / efficiency[name] - 1:+.0%}" for name in others),
            ])  # fmt: skip
    show(
        "TM-Training: GB between HBM and flash / time over all-HBM time",
        ["step", "HBM", "energies", *names, "traffic against the others", "throughput per watt"],
        rows,
        "Source (its own simulator, HBM of 12.5 %): -64 % traffic, +55 % throughput per watt over prior work; its "
        "split rule and energies are not public. The others' columns are in the order of the table.",
        "The direction against sentinel is the source's, the size is not: the others here drop what is dead and do not "
        "write what is clean, so little traffic is left for a split to save.",
    )
