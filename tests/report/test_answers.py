"""What stands first on the page: what is in the peak, what smaller budgets cost, and what could be changed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ebbtide.analysis.memory import peak_of
from ebbtide.cli import cli
from ebbtide.commands import budgets as trying
from ebbtide.commands.budgets import SHARES, try_budgets
from ebbtide.ir.files import save
from ebbtide.ir.trace import StorageKind
from ebbtide.planners.base import budget_of
from ebbtide.report.answers import TriedBudget, advice, peak_tree
from ebbtide.report.page import render_page
from ebbtide.report.page_data import page_data
from ebbtide.report.subject import Subject
from ebbtide.trials import try_policy
from ebbtide.units import MIB
from tests.helpers.make_page import IMAGE, SCRIPT, snapshot, step, subject
from tests.helpers.make_steps import disk, network


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
    tree = peak_tree(peak_of(replace(trace, storages=(*trace.storages, tiny, other))))
    (small,) = (node for node in tree if node["label"] == "smaller ones")
    assert small["nbytes"] == 2000
    assert not [node for node in tree if node["label"] in ("a", "b", "c", "d")]


def test_budgets_are_what_the_planner_says_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, machine = network(layers=3), disk()
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
    assert try_budgets(trace, machine) == ()


def test_faster_links_are_tried_where_steps_are_dear() -> None:
    trace = network(layers=3)
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
    heavy = replace(trace, storages=(replace(trace.storages[0], nbytes=24 * MIB), *trace.storages[1:]))
    (wide,) = advice(heavy, peak_of(heavy), ())
    assert wide.startswith("Parameters, gradients and optimizer state are 24.0 MiB of the peak: in a type half as wide")


def test_storages_go_by_the_module_that_owns_them() -> None:
    trace = step()
    nameless = replace(trace.storages[0], module="")  # a parameter, which h.1.mlp reads
    data = page_data(Subject(replace(trace, storages=(nameless, *trace.storages[1:]))))
    module = data["trace"]["strings"][data["trace"]["storages"]["module"][0]]
    assert module == "h.1.mlp"


def test_the_command_tries_budgets_on_the_named_machine(tmp_path: Path) -> None:
    save(network(layers=3), tmp_path / "step.trace")
    command = ["report", str(tmp_path / "step.trace"), "--machine", "dram-optane", "-o", str(tmp_path / "page.html")]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "page.html").stat().st_size > 10**6


# ---- in a browser ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1400, 800, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_answers_are_seen(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    tried = (TriedBudget("50%", 14 * MIB, 10_400_000, 5 * MIB), TriedBudget("10%", 2 * MIB, None, why_not=SCRIPT))
    (tmp_path / "page.html").write_text(render_page(replace(subject(), budgets=tried)))
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("[data-ready]", timeout=60_000)
    assert page.locator("main section").first.get_attribute("id") == "answers"
    assert "28.0 MiB of tensors, at 30\u00a0% of the step" in page.locator("#peak-said").inner_text()
    rows = [row.inner_text().split("\t") for row in page.locator("#leave tr").all()]
    assert [row[0] for row in rows[1:]] == ["100%", "50%", "10%"]
    assert rows[2][1:] == ["14.0 MiB", "10.4 ms", "1.04", "5.00 MiB"]
    assert rows[3][2] == "no plan"
    assert page.locator("#change li").count() == 2
    sections = [part.get_attribute("id") for part in page.locator("main section").all()]
    assert sections[:2] == ["answers", "figures"]  # single figures stand below what people come for
    shown = page.locator("#tree .slicetext").all_text_contents()
    assert any("activation" in text for text in shown)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("window.harm") is None
    assert not wrong
    page.close()


def test_without_accesses_no_budget_is_tried(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(render_page(Subject(snapshot())))
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("[data-ready]", timeout=60_000)
    assert "was not recorded" in page.locator("#leave").inner_text()
    page.close()
