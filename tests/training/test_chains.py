"""What is made anew of ingredients that have gone has the same bits, and so many bytes of these were really made."""

from pathlib import Path

import pytest

from tests.helpers import child
from tests.training.cases_chains import CASES, NETS
from tests.training.test_making_anew import SLOW

ENV = {"EBBTIDE_REMAKE": "check", "EBBTIDE_POLICY": "demand", "EBBTIDE_MIN_STORAGE": "4096"}


@pytest.mark.alike
@pytest.mark.parametrize("name", CASES)
def test_what_was_made_of_what_has_died_or_changed_is_made_anew(name: str) -> None:
    found = child.run("cases_chains:chain", name, 1, env=ENV)
    assert found.same
    _, nbytes = CASES[name]
    assert found.ingredient_bytes >= nbytes if name == "from-another-thread" else found.ingredient_bytes == nbytes
    assert found.remade_bytes > 0 or name == "with-another-number-of-threads"


@pytest.mark.alike
@pytest.mark.parametrize("name", CASES)
def test_some_of_it_may_be_held(name: str) -> None:
    assert child.run("cases_chains:chain", name, 2, env=ENV).same


@pytest.mark.alike
@pytest.mark.parametrize("name", [name for name, (_, nbytes) in CASES.items() if nbytes > 0])
def test_so_is_what_is_in_pieces(name: str) -> None:
    found = child.run("cases_chains:chain_in_pieces", name, env=ENV | {"EBBTIDE_PIECE": "2MiB"})
    assert found.same
    assert found.ingredient_bytes >= 9 << 20
    assert found.remade_bytes >= 9 << 19  # in bf16


def test_an_ingredient_that_loses_its_recipe_while_it_is_read_is_none() -> None:
    found = child.run("cases_chains:loses_its_recipe", env=ENV)
    assert found.same
    assert found.remade_bytes == found.ingredient_bytes > 0  # of the one that was made in peace


def test_an_ingredient_that_does_not_repeat_is_an_error_with_its_name() -> None:
    chain = r"making a storage anew by aten::tanh: aten::sigmoid: other bytes come out .*EBBTIDE_REMAKE=0"
    with pytest.raises(child.ChildError, match=chain):
        child.run("cases_chains:does_not_repeat", env=ENV)


@pytest.mark.alike
@pytest.mark.parametrize("how", ["operators", "foreign", "nobody's"])
@pytest.mark.parametrize("one_in", [0, 1])
def test_thousands_that_are_made_of_each_other_overflow_no_stack(how: str, one_in: int) -> None:
    found = child.run("cases_chains:row", how, one_in, env=ENV)
    assert found.same
    assert found.remade_bytes > 0
    assert (found.ingredient_bytes > 0) == (one_in > 0)


@pytest.mark.parametrize("name", NETS)
def test_a_plan_has_what_has_died_made_for_what_it_makes_anew(name: str, tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(SLOW)
    env = {"EBBTIDE_REMAKE": "check", "EBBTIDE_MACHINE": str(file)}
    found = child.run("cases_chains:planned", name, "25%", env=env)
    assert found.same
    assert set(found.modes[2:]) == {"planned"}
    assert max(found.remade) > 0
    assert found.ingredient_bytes > 0
