"""What stands first on the page: what is in the peak, what smaller budgets cost, and what could be changed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ebbtide.analysis.memory import peak_of
from ebbtide.commands import budgets as trying
from ebbtide.commands.budgets import SHARES, as_figures, try_budgets
from ebbtide.ir.base import Origin
from ebbtide.ir.plan import Stay
from ebbtide.ir.trace import Accesses, Storage, StorageKind, Storages
from ebbtide.pipeline.trials import try_policy
from ebbtide.planners.base import budget_of
from ebbtide.report.answers import TriedBudget, advice, in_short, leaving, peak_tree
from ebbtide.report.page import render_page
from ebbtide.report.page_data import page_data
from ebbtide.report.subject import Subject
from ebbtide.units import MIB
from tests.helpers.make_page import IMAGE, MS, SCRIPT, plan, step, subject, timeline
from tests.helpers.make_steps import disk, network
from tests.ir.test_report_format import REPORT

RECORDED = ", with operations' times as they were recorded"


def test_the_tree_of_the_peak_holds_every_byte_once() -> None:
    peak = peak_of(step())
    tree = peak_tree(peak)
    by_id = {node["id"]: node for node in tree}
    assert len(by_id) == len(tree)
    (whole,) = (node for node in tree if node["parent"] is None)
    assert whole["nbytes"] == peak.nbytes == 28 * MIB
    for node in tree:
        inside = [other["nbytes"] for other in tree if other["parent"] == node["id"]]
        assert bool(inside) is (node["kind"] == "")
        assert not inside or sum(inside) == node["nbytes"]
        assert node["parent"] is None or node["parent"] in by_id
    leaves = {(by_id[node["parent"]]["label"], node["kind"]): node["nbytes"] for node in tree if node["kind"]}
    assert (IMAGE.split(".")[-1], "activation") in leaves
    assert sorted(leaves.values()) == [4 * MIB, 8 * MIB, 16 * MIB]


def test_layers_that_are_alike_are_one_box() -> None:
    trace = step()
    peak = peak_of(trace)
    row = max(peak.residents, key=lambda row: row.nbytes)
    modules = ("net.h.0.mlp", "net.h.1.mlp", "net.h.1.mlp", "net.head.0", "net.head.1", "")
    alike = replace(peak, nbytes=6 * row.nbytes, residents=tuple(replace(row, module=name) for name in modules))
    by_id = {node["id"]: node for node in peak_tree(alike)}
    inside = {
        (by_id[node["parent"]]["label"], node["label"]): node["nbytes"]
        for node in by_id.values()
        if node["parent"] is not None
    }
    assert inside["net", "h.*"] == inside["h.*", "mlp"] == 3 * row.nbytes
    assert inside["net", "head"] == 2 * row.nbytes
    assert inside["head", "0"] == inside["head", "1"] == inside["net", "no module"] == row.nbytes


def test_small_boxes_are_put_together() -> None:
    trace = step()
    tiny = replace(trace.storages[2], nbytes=1000, module="a.b", birth=2, death=4, kind=StorageKind.OTHER, allocation=1)
    other = replace(tiny, module="c.d", allocation=2)
    tree = peak_tree(peak_of(replace(trace, storages=Storages.from_rows([*trace.storages, tiny, other]))))
    (small,) = (node for node in tree if node["label"] == "smaller ones")
    assert small["nbytes"] == 2000
    assert not [node for node in tree if node["label"] in ("a", "b", "c", "d")]


def test_budgets_are_what_the_planner_says_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, machine = network(layers=6), disk()
    tried = try_budgets(trace, machine)
    assert tuple(row.name for row in tried) == SHARES
    for row in tried:
        alone = try_policy("ebbtide", trace, machine, budget_of(row.name, trace, machine))
        if alone.outcome is None:
            assert (row.step_ns, row.why_not) == (None, alone.why_not)
        else:
            assert (row.step_ns, row.moved_bytes) == (alone.outcome.step_ns, sum(alone.outcome.moved_bytes.values()))
    assert any(row.step_ns is None for row in tried)
    assert any(row.moved_bytes for row in tried)
    monkeypatch.setattr(trying, "PATIENCE_S", -1.0)
    untried = try_budgets(trace, machine)
    assert [(row.name, row.nbytes) for row in untried] == [(row.name, row.nbytes) for row in tried]
    assert all(row.untried and row.step_ns is None for row in untried)
    assert {as_figures(row, machine)["feasible"] for row in untried} == {None}
    assert "75% not tried: took too long, 50% not tried: took" in in_short(trace, peak_of(trace), untried, "a disk")


def test_what_leaves_is_told_by_kind_and_module() -> None:
    # By hand: the 8 MiB of the activation have no room in memory between ticks 4 and 5.
    assert leaving(step(), plan(), "dram") == ((f"activation of {IMAGE}", 8 * MIB),)
    trace, machine = network(layers=6), disk()
    rows = {row.name: row for row in try_budgets(trace, machine)}
    made = try_policy("ebbtide", trace, machine, rows["50%"].nbytes).planned
    assert made is not None
    moved = {stay.storage for stay in made.stays if stay.tier == "file"}
    assert rows["50%"].leaves == leaving(trace, made, "dram")
    assert 0 < sum(nbytes for _, nbytes in rows["50%"].leaves) <= sum(trace.storages[at].nbytes for at in moved)


def test_layers_that_are_alike_leave_as_one_and_the_most_first() -> None:
    modules = ("net.h.0.mlp", "net.h.1.mlp", "net.h.1.attn", "net.head.0", "", "net.stays")
    rows = tuple(
        Storage((6 - place) * MIB, StorageKind.PARAMETER, 0, 10, module, persistent=True)
        for place, module in enumerate(modules)
    )
    trace = replace(step(), storages=Storages.from_rows(rows), accesses=Accesses((), (), ()))
    away = [Stay(at, "file", 0, 0, 10) for at in range(len(rows) - 1)]
    memory = Stay(len(rows) - 1, "dram", 0, 0, 10)
    found = leaving(trace, replace(plan(), signature=trace.signature(), stays=(*away, memory)), "dram")
    assert found == (("parameter of h.*", (6 + 5 + 4) * MIB), ("parameter of head.0", 3 * MIB), ("parameter", 2 * MIB))


def test_what_is_as_large_is_in_order_of_its_number() -> None:
    rows = tuple(
        Storage(MIB, StorageKind.PARAMETER, 0, 10, f"net.{number}", persistent=True) for number in (12, 0, 10, 2)
    )
    trace = replace(step(), storages=Storages.from_rows(rows), accesses=Accesses((), (), ()))
    away = tuple(Stay(at, "file", 0, 0, 10) for at in (0, 2, 3))
    memory = Stay(1, "dram", 0, 0, 10)
    found = leaving(trace, replace(plan(), signature=trace.signature(), stays=(*away, memory)), "dram")
    assert [name for name, _ in found] == ["parameter of 2", "parameter of 10", "parameter of 12"]
    data = page_data(Subject(trace))
    assert [row[0] for row in data["peak"]["modules"]] == ["net.0", "net.2", "net.10", "net.12"]
    labels = [node["label"] for node in data["answers"]["tree"]]
    assert [label for label in labels if label.isdigit()] == ["0", "2", "10", "12"]


def test_the_plan_named_with_the_step_has_a_row() -> None:
    of_plan = page_data(subject())["answers"]["own"]
    assert (of_plan["name"], of_plan["nbytes"], of_plan["step_ns"]) == ("this plan, as predicted", 29 * MIB, 12 * MS)
    assert (of_plan["moved_bytes"], of_plan["leaves"]) == (None, ((f"activation of {IMAGE}", 8 * MIB),))
    played = replace(timeline(Origin.SIMULATED, 10), policy=plan().planner)
    of_plan = page_data(replace(subject(), timelines=(timeline(), played)))["answers"]["own"]
    assert (of_plan["name"], of_plan["step_ns"]) == ("this plan, simulated", played.step_ns)
    assert of_plan["moved_bytes"] == 24 * MIB  # 8 out and back of the activation, 4 of the parameter
    run = replace(REPORT, arena_budget_bytes=30 * MIB)
    of_run = page_data(Subject(step(), None, (timeline(),), run))["answers"]["own"]
    assert (of_run["name"], of_run["nbytes"], of_run["step_ns"]) == ("this run, measured", 30 * MIB, 11 * MS)
    for nothing in (Subject(step()), Subject(step(), None, (), run), Subject(step(), None, (timeline(),))):
        assert page_data(nothing)["answers"]["own"] is None


def test_faster_links_are_tried_where_steps_are_dear() -> None:
    trace = network(layers=6)
    tried = [row for row in try_budgets(trace, disk(both=10**9)) if row.step_ns is not None]
    dear = [(row.step_ns, row.faster_ns) for row in tried if row.step_ns > 1.05 * trace.step_ns]
    assert dear
    assert all(faster_ns is not None and faster_ns < step_ns for step_ns, faster_ns in dear)


def test_advice_is_arithmetic_on_the_peak_and_on_what_was_simulated() -> None:
    trace = step()  # 10 ms; of 28 MiB at the peak 4 are parameters and 8 activations
    assert list(advice(trace, peak_of(trace), ())) == []
    cheap = TriedBudget("50%", 14 * MIB, 10_400_000, 5, None)
    dear = TriedBudget("25%", 7 * MIB, 15_000_000, 9, 12_000_000)
    none = TriedBudget("10%", 2 * MIB, None, why_not="too little")
    fast, batch, disk = advice(trace, peak_of(trace), (cheap, dear, none))
    assert fast == (
        "Train with --fast 50%: 14.0 MiB in place of 28.0 MiB for tensors, at 1.04 times the time of a step."
    )
    assert "a batch about 4.5 times as large" in batch  # a peak of 56 MiB: 20 that stay, and 36 of activations
    assert disk == "A disk twice as fast: --fast 25% would take 1.20 in place of 1.50 times the time."
    parameter, activation, *others = trace.storages
    small = replace(trace, storages=Storages.from_rows([parameter, replace(activation, nbytes=MIB), *others]))
    _, batch = advice(small, peak_of(small), (replace(cheap, nbytes=7 * MIB),))
    assert "a batch about 43 times as large" in batch  # a peak of 63 MiB: 20 that stay, and 43 of activations
    weight, *rest = trace.storages
    heavy = replace(trace, storages=Storages.from_rows([replace(weight, nbytes=24 * MIB), *rest]))
    (wide,) = advice(heavy, peak_of(heavy), ())
    assert wide.startswith("Parameters, gradients and optimizer state are 24.0 MiB of the peak: in a type half as wide")


def test_storages_go_by_the_module_that_owns_them() -> None:
    trace = step()
    nameless = replace(trace.storages[0], module="")  # a parameter, which h.1.mlp reads
    data = page_data(Subject(replace(trace, storages=Storages.from_rows([nameless, *list(trace.storages)[1:]]))))
    module = data["trace"]["strings"][data["trace"]["storages"]["module"][0]]
    assert module == "h.1.mlp"


# ---- in a browser ------------------------------------------------------------------------------------------------


@pytest.mark.alike
@pytest.mark.parametrize("width", [1400, 800, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_answers_are_seen(open_page: Callable[..., Any], width: int, scheme: str) -> None:
    leaves = ((f"optimizer state of transformer.h.* {IMAGE}", 9 * MIB), ("gradient of transformer.wte", 2 * MIB))
    tried = (
        TriedBudget("50%", 14 * MIB, 10_400_000, 5 * MIB, leaves=leaves),
        TriedBudget("25%", 7 * MIB, None, untried=True),
        TriedBudget("10%", 2 * MIB, None, why_not=SCRIPT),
    )
    page = open_page(render_page(replace(subject(), budgets=tried, times=RECORDED)), width=width, color_scheme=scheme)
    assert page.locator("main section").first.get_attribute("id") == "answers"
    assert "28.0 MiB of tensors, at 30\u00a0% of the step" in page.locator("#peak-said").inner_text()
    rows = [row.inner_text().split("\t") for row in page.locator("#leave tr").all()]
    assert rows[1:] == [
        ["this plan, as predicted", "29.0 MiB", "12.0 ms", "1.20", "unknown"],
        [f"leaves: activation of {IMAGE} (8.00 MiB)"],
        ["100%", "28.0 MiB", "10.0 ms", "1.00", "0 B"],
        ["50%", "14.0 MiB", "10.4 ms", "1.04", "5.00 MiB"],
        [f"leaves: {leaves[0][0]} (9.00 MiB), gradient of transformer.wte (2.00 MiB)"],
        ["25%", "7.00 MiB", "not tried: took too long"],
        ["10%", "2.00 MiB", "no plan"],
    ]
    table = page.locator("#leave .scroll")
    assert table.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    assert "Simulated on: a machine" in page.locator("#leave").inner_text()
    assert page.locator("#leave").inner_text().count("as they were recorded") == 1
    assert page.locator("#change li").count() == 2
    sections = [part.get_attribute("id") for part in page.locator("main section").all()]
    assert sections[:2] == ["answers", "figures"]  # single figures stand below what people come for
    shown = page.locator("#tree .slicetext").all_text_contents()
    assert any("activation" in text for text in shown)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("window.harm") is None
