"""Which torch the native module is for, and what is said where another, none or a newer one is there."""

import sys
import warnings
from types import ModuleType

import pytest
import torch

from ebbtide import _planning
from ebbtide.errors import EbbtideWarning, PlatformError
from ebbtide.host import native, torch_versions
from ebbtide.host.native import require_native
from ebbtide.host.torch_versions import is_newer, is_older, minor_of


def test_the_native_module_is_for_the_torch_that_is_here() -> None:
    assert minor_of(torch.__version__) == _planning.BUILT_FOR_TORCH
    require_native()


def test_another_minor_version_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.99.1+cpu")
    with pytest.raises(PlatformError, match=r"found torch 2\.99\.1\+cpu: build it again") as refused:
        require_native()
    assert f"built for torch {_planning.BUILT_FOR_TORCH}" in str(refused.value)
    assert f'pip install "torch=={_planning.BUILT_FOR_TORCH}.*"' in str(refused.value)


def test_another_patch_or_build_of_the_same_minor_version_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", f"{_planning.BUILT_FOR_TORCH}.7+cu132")
    require_native()


def test_without_torch_the_one_it_was_built_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "find_spec", lambda name: None)
    with pytest.raises(PlatformError, match=rf'pip install "torch=={_planning.BUILT_FOR_TORCH}\.\*"'):
        require_native()


def test_a_module_of_an_older_ebbtide_is_to_be_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ebbtide._planning", ModuleType("ebbtide._planning"))
    with pytest.raises(PlatformError, match=r"cannot be loaded .*install Ebbtide again"):
        require_native()


def test_a_newer_torch_than_those_tried_is_taken_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_planning, "BUILT_FOR_TORCH", "2.99")
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.warns(EbbtideWarning, match=r"not tried with torch 2\.99\.0; tried: 2\.11 to 2\.15"):
        require_native()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_native()  # it is printed


def test_versions_are_compared_as_numbers() -> None:
    numbers = [int(minor.split(".")[1]) for minor in torch_versions.TRIED]
    assert numbers == sorted(numbers)
    assert torch_versions.DEVELOPED_WITH in torch_versions.TRIED
    assert [minor for minor in ("1.13", "2.9", "2.10", "2.11", "2.15", "2.16", "3.0") if is_older(minor)] == [
        "1.13",
        "2.9",
        "2.10",
    ]
    assert [minor for minor in ("2.9", "2.11", "2.15", "2.16", "2.100", "3.0") if is_newer(minor)] == [
        "2.16",
        "2.100",
        "3.0",
    ]
    assert minor_of("2.16.0a0+git1234") == "2.16"
