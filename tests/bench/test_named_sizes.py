"""The size that an error names works."""

import pytest

from bench.soak.named_sizes import NETS, try_named

pytestmark = [pytest.mark.starts, pytest.mark.slow]


@pytest.mark.parametrize(
    "net", ["mlp", *(pytest.param(net, marks=pytest.mark.nightly) for net in NETS if net != "mlp")]
)
def test_the_size_that_an_error_names_works_in_a_cgroup_of_that_size(net: str) -> None:
    found = try_named(net, steps=5, refused="64MiB")
    assert found.startswith("ok"), found
    assert "3 planned" in found
