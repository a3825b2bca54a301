"""A disk that errs, for a while or for good: the bits of plain PyTorch, or an end that says why; never other bits."""

import errno
import json
from pathlib import Path

import pytest

from tests.helpers import child, faulty_disk
from tests.training.test_faults import a_clean_storage_stays_in_memory

REFUSED_BY_CHECKSUM = "other bytes came back from the spill directory than were written there"

SURVIVED = {
    "EIO for ten writes": (f"pwritev:20:10:{errno.EIO}",),
    "ENOSPC for ten writes": (f"pwritev:20:10:{errno.ENOSPC}",),
    "one EIO on reading": (f"preadv:10:1:{errno.EIO}",),
    "one flipped bit on its way in": ("preadv:10:1:flip",),
    "slow calls": ("preadv:0:-1:slow5", "pwritev:0:-1:slow5"),
    "short transfers": ("preadv:0:-1:short", "pwritev:0:-1:short"),
}
"""What a run gets over without a word, or with one."""

ENDED = {
    "EIO on writing for ever": (f"pwritev:20:-1:{errno.EIO}", "writing to the spill directory"),
    "EIO on reading for ever": (f"preadv:10:-1:{errno.EIO}", "reading a storage back from the spill directory"),
    "flipped bits": ("preadv:10:-1:flip", REFUSED_BY_CHECKSUM),
    "writes that are lost": ("pwritev:10:-1:lost", REFUSED_BY_CHECKSUM),
    "writes that are torn": ("pwritev:10:-1:torn", REFUSED_BY_CHECKSUM),
    "writes that go astray": ("pwritev:10:-1:astray", REFUSED_BY_CHECKSUM),
}
"""What ends it, and what it says."""


@pytest.mark.alike
@pytest.mark.parametrize("case", SURVIVED)
def test_a_disk_that_errs_for_a_while_changes_no_bit(case: str, library: Path, plain: object, tmp_path: Path) -> None:
    result, report = tmp_path / "result.json", tmp_path / "report.json"
    env = faulty_disk.environment(library, *SURVIVED[case])
    run = faulty_disk.trains_on(result, f"--report={report}", env=env, status=0)
    assert json.loads(result.read_text()) == plain
    steps = json.loads(report.read_text())["steps"]
    assert sum(sum(step["fetched_bytes"].values()) for step in steps) > 0
    assert (REFUSED_BY_CHECKSUM in run.stderr) == ("flipped" in case)


@pytest.mark.alike
@pytest.mark.parametrize("case", ENDED)
def test_a_disk_that_errs_for_good_ends_the_run_with_the_cause(case: str, library: Path, tmp_path: Path) -> None:
    rule, said = ENDED[case]
    result = tmp_path / "result.json"
    run = faulty_disk.trains_on(result, env=faulty_disk.environment(library, rule))
    assert run.returncode != 0
    assert said in run.stderr
    assert not result.exists()


def test_without_checksums_a_flipped_bit_is_another_result(library: Path, plain: object, tmp_path: Path) -> None:
    """So the faults above do reach what training computes with."""
    result = tmp_path / "result.json"
    env = faulty_disk.environment(library, "preadv:10:-1:flip") | {"EBBTIDE_CHECKSUM": "0"}
    faulty_disk.trains_on(result, env=env, status=0)
    assert json.loads(result.read_text()) != plain


def test_a_byte_that_changes_in_a_clean_storage_is_found_in_memory() -> None:
    """Where clean pages are compared, too; nothing that is well is found."""
    with pytest.raises(child.ChildError, match="fatal: comparing a clean storage in memory with what was written"):
        child.run(a_clean_storage_stays_in_memory, True)
    assert child.run(a_clean_storage_stays_in_memory, False)
