"""The table of repeatable operators: what its names promise by their schemas, and each of them run again.

``repeatable.py`` says how; ``make repeats`` takes all calls.
"""

import json
import re
import sys
from typing import Any

import pytest
import torch

from ebbtide import _torch
from ebbtide.host.torch_versions import DEVELOPED_WITH, minor_of
from tests.helpers import command
from tests.helpers.paths import ROOT

FRESH, IN_PLACE, ON_ACCELERATORS = _torch.repeatable_operators()
REFUSES_TO_DRAW = "aten::_scaled_dot_product_flash_attention_for_cpu"
"""Its tag says that it draws random numbers. This kernel refuses a probability of dropout other than zero."""


def operators(names: list[str]) -> dict[str, Any]:
    """Those that this PyTorch has. The one that Ebbtide is developed with has all."""
    known = set(torch._C._dispatch_get_all_op_names())
    missing = [name for name in names if name not in known]
    assert not missing or minor_of(torch.__version__) != DEVELOPED_WITH, missing
    found = {}
    for name in names:
        if name in known:
            packet, _, overload = name.removeprefix("aten::").partition(".")
            found[name] = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return found


def written_and_shared(operator: Any) -> tuple[list[str], list[str]]:
    """The arguments that it writes to, and those that its results may share memory with."""
    arguments = [argument for argument in operator._schema.arguments if argument.alias_info is not None]
    return [a.name for a in arguments if a.alias_info.is_write], [a.name for a in arguments]


def test_each_operator_allocates_its_result_and_writes_to_nothing_else() -> None:
    for name, operator in operators(FRESH).items():
        assert written_and_shared(operator) == ([], []), name
        assert all(result.alias_info is None for result in operator._schema.returns), name
        assert not _torch.touches_nothing(*name.partition(".")[::2]), name


def test_each_operator_in_place_writes_to_its_first_argument_alone() -> None:
    for name, operator in operators(IN_PLACE).items():
        assert written_and_shared(operator) == (["self"], ["self"]), name
        assert operator._schema.arguments[0].name == "self", name


def test_none_draws_random_numbers_or_says_that_it_does_not_repeat() -> None:
    bitwise = getattr(torch.Tag, "nondeterministic_bitwise", torch.Tag.nondeterministic_seeded)
    for name, operator in operators([*FRESH, *IN_PLACE]).items():
        if name != REFUSES_TO_DRAW:
            assert not {torch.Tag.nondeterministic_seeded, bitwise} & set(operator.tags), name
            assert all("Generator" not in str(argument.type) for argument in operator._schema.arguments), name


MEANT_OTHERWISE = {"bmm": "sparse", "gather": "requires grad", "index_select": "differentiate"}
"""What PyTorch's list names for another reason than the operator itself on dense tensors."""


def test_those_that_may_run_again_on_accelerators_are_not_in_the_list_of_those_that_do_not_repeat() -> None:
    known = {name.partition(".")[0].rstrip("_") for name in [*FRESH, *IN_PLACE]}
    assert set(ON_ACCELERATORS) <= known
    lines = [line.lower() for line in str(torch.use_deterministic_algorithms.__doc__).splitlines() if "* :" in line]
    assert len(lines) > 30
    for name in ON_ACCELERATORS:
        short = name.removeprefix("aten::")
        named = [line for line in lines if re.search(rf"\b{short}_?`", line)]
        assert all(MEANT_OTHERWISE.get(short, "nothing") in line for line in named), (name, named)


def test_attention_on_the_cpu_draws_nothing() -> None:
    q = torch.ones(1, 1, 4, 8)
    with pytest.raises(RuntimeError, match="not support dropout"):
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, dropout_p=0.1)


def repeated(*options: str) -> dict[str, Any]:
    """What came of it, where nothing differed."""
    run = command.run(sys.executable, "-m", "tests.training.repeatable", *options, cwd=ROOT)
    assert run.returncode == 0, "\n".join((run.stdout + run.stderr).splitlines()[-20:])[-5000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["different"] == {}
    assert set(found["comparisons"].values()) == {sum(found["calls"].values())}
    return found


@pytest.mark.nightly
@pytest.mark.starts
@pytest.mark.slow
def test_each_operator_makes_the_same_bits_again() -> None:
    found = repeated("--most=1", "--dtypes", "float32", "int64")
    assert found["untried"] == []
    assert found["result_at_same_address"] > 100
