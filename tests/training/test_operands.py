"""Operands that are hard to see, code that names none, what cannot come back: it ends, and is right or says so."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import child
from tests.helpers.command import run
from tests.helpers.paths import ROOT
from tests.training import cases_operands

PAGES = {"EBBTIDE_MIN_STORAGE": "4096", "EBBTIDE_POLICY": "demand", "EBBTIDE_PROGRESS": "off"}


@pytest.mark.parametrize("layout", cases_operands.LAYOUTS)
def test_every_part_of_a_tensor_is_an_operand(layout: str) -> None:
    child.run("cases_operands:every_part_is_an_operand", layout, env=PAGES)


def test_a_budget_that_sparse_operands_do_not_fit_is_refused_by_name() -> None:
    said = child.run("cases_operands:refused_for_sparse_operands", env=PAGES)
    assert "needs" in said
    assert "The smallest budget that can work with what has run so far is" in said


def test_sparse_operands_larger_than_the_arena_go_over_budget() -> None:
    child.run("cases_operands:sparse_operands_larger_than_the_arena", env=PAGES)


def test_a_fused_kernel_of_the_scripts_is_called_once_for_all() -> None:
    assert child.run("cases_operands:a_fused_kernel_of_the_scripts", env=PAGES) == [3]


@pytest.mark.parametrize("short", ["grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps"])
def test_lists_of_unequal_length_are_refused_as_plain_pytorch_refuses_them(short: str) -> None:
    child.run("cases_operands:lists_of_unequal_length", short, env=PAGES)


@pytest.mark.parametrize("case", ["a_loop_over_raw_addresses", "a_compiled_update"])
def test_a_loop_over_more_storages_than_the_budget_ends(case: str) -> None:
    child.run(f"cases_operands:{case}", env=PAGES)


@pytest.mark.parametrize("by", ["an operator", "an access"])
def test_bytes_that_cannot_be_read_back_end_the_process_with_the_reason(by: str) -> None:
    with pytest.raises(child.ChildError) as ended:
        child.run("cases_operands:reads_what_the_disk_lost", by, env=PAGES)
    said = str(ended.value)
    assert "exit code -6" in said  # 134 to a shell
    assert "ebbtide: fatal: reading a storage back from the spill directory /" in said
    assert "it computed" not in said


def test_an_array_of_bytes_that_cannot_be_read_back_is_an_error() -> None:
    child.run("cases_operands:reads_what_the_disk_lost", "numpy", env=PAGES)


FAILS_HALF_WAY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The first change of exactly the 98 pages of the tensor to read-only is made for half of them and then refused. */
int mprotect(void *address, size_t bytes, int protection) {
  static int (*real)(void *, size_t, int);
  static int failed;
  if (!real) real = dlsym(RTLD_NEXT, "mprotect");
  if (protection != PROT_READ || bytes != 98 * 4096 || failed) return real(address, bytes, protection);
  failed = 1;
  real(address, 49 * 4096, protection);
  errno = ENOMEM;
  return -1;
}
"""


def test_protection_that_fails_half_way_is_put_right(tmp_path: Path) -> None:
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(FAILS_HALF_WAY)
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    script = "from tests.training import cases_operands; cases_operands.protection_fails_half_way()"
    env = {"LD_PRELOAD": str(shim), "PYTHONPATH": f"{ROOT}:{':'.join(sys.path[1:])}"}
    done = run(sys.executable, "-c", script, env=env, status=0)
    assert done.stdout.strip() == "put right"
