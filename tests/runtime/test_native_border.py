"""The words and constants that Python and native code share: native code's own, not the stand-in's."""

from types import SimpleNamespace

import pytest
import torch  # noqa: F401 (loads the libraries that native code needs)

from ebbtide import _torch
from ebbtide.ir import native
from ebbtide.ir.run_report import KINDS
from ebbtide.ir.trace import Access, StorageKind
from ebbtide.report.stalls import STALLS
from ebbtide.settings import Settings


def test_native_code_has_the_same_words() -> None:
    assert native.disagreement(_torch) == ""
    assert {"KINDS", "PHASES", "LANES", "VERBS", "ACCESSES"} == set(native.WORDS)


@pytest.mark.parametrize("name", native.WORDS)
def test_another_order_is_seen(name: str) -> None:
    found = SimpleNamespace(**native.WORDS | {name: native.WORDS[name][::-1]})
    assert f"native module's {name} are" in native.disagreement(found)
    assert f"{name} are None" in native.disagreement(SimpleNamespace(**{**vars(found), name: None}))


def test_kinds_and_accesses_are_those_of_the_trace() -> None:
    assert tuple(kind.value for kind in StorageKind)[: len(KINDS)] == KINDS == _torch.KINDS
    for value, name in enumerate(_torch.ACCESSES):
        assert "_".join(str(bit.name).lower() for bit in Access(value)) == name


def test_stalls_are_called_as_a_timeline_calls_them() -> None:
    assert [name for name in _torch.LANES if name.startswith("stall")] == [str(kind) for kind in STALLS]


def test_what_is_managed_by_default_is_what_groups_are_cut_for() -> None:
    assert Settings().min_storage_bytes == _torch.MANAGED_BYTES
