"""The soak: a seed is a job; one that differs, or is refused with all that it needs, ends it and leaves its files."""

import json
from pathlib import Path

import pytest

from bench.soak import soak
from bench.soak.job import NETS, Job

pytestmark = pytest.mark.starts

TRAINING = 6  # a seed of training
WHOLE_NUMBERS = 2


def test_a_seed_stands_for_one_job_and_seeds_for_all_kinds() -> None:
    jobs = [Job.of(seed) for seed in range(300)]
    assert jobs == [Job.of(seed) for seed in range(300)]
    assert {job.net for job in jobs} == set(NETS)
    assert any(job.fault for job in jobs)
    assert any(not job.fault for job in jobs)


class Fake(soak.Soak):
    """Its processes write what they are told, or end with a status and a last word."""

    def __init__(self, folder: Path, **told: object) -> None:
        self.folder, self.library, self.unkind, self.build, self.told = folder, folder, folder, "a build", told

    def process(self, stem: Path, command: list[str], environment: dict[str, str]) -> int:
        told = self.told.get(stem.name.replace("-", "_"), {"sha256": "a"})
        stem.with_suffix(".txt").write_text(told if isinstance(told, str) else "")
        if isinstance(told, str):
            return 1
        found = {"losses": [], "modes": ["planned"], "moved_bytes": 5, "over_budget": False}
        stem.with_suffix(".json").write_text(json.dumps(found | told))
        return 0


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        ({}, "same"),
        ({"ours": {"sha256": "a", "moved_bytes": 0}}, "nothing moved"),
        ({"ours": {"sha256": "b"}}, "DIFFERENT"),
        ({"ours": {"sha256": "b"}, "plain_again": {"sha256": "c"}}, "not deterministic"),
        ({"ours": "ebbtide.errors.BudgetError: too small"}, "REFUSED WITH ALL THAT A STEP NEEDS"),
        ({"ours": "IndexError"}, "ENDED WITH STATUS 1"),
        ({"plain": "IndexError"}, "plain PyTorch ENDED WITH STATUS 1"),
    ],
)
def test_what_a_job_came_to(told: dict[str, object], outcome: str, tmp_path: Path) -> None:
    line = Fake(tmp_path, **told).run(TRAINING)
    assert line["outcome"] == outcome
    assert (tmp_path / f"seed-{TRAINING}").exists() == (outcome not in soak.GOOD)
    (tmp_path / "soak.jsonl").write_text(json.dumps(line) + "\n")
    assert f"1: 1 {outcome}" in soak.summary(tmp_path)


@pytest.mark.parametrize(("different", "outcome"), [([], "same"), (["operation 5"], "DIFFERENT")])
def test_what_a_job_on_whole_numbers_came_to(different: list[str], outcome: str, tmp_path: Path) -> None:
    counts = {"operations": 7, "forks": 1, "trainings": 2, "evicted_bytes": 5 * 10**9, "fetched_bytes": 10**9}
    fake = Fake(tmp_path)
    text = json.dumps(counts | {"different": different})
    fake.process = lambda stem, *_: stem.with_suffix(".txt").write_text(text) * 0  # type: ignore[method-assign]
    line = fake.run(WHOLE_NUMBERS)
    assert (line["kind"], line["outcome"], line["operations"]) == ("whole-numbers", outcome, 7)
    (tmp_path / "soak.jsonl").write_text(json.dumps(line) + "\n")
    assert "| of which out and in | 6.0 GB |" in soak.summary(tmp_path)


def test_only_a_disk_that_errs_may_end_a_job(tmp_path: Path) -> None:
    faulty = next(seed for seed in range(100) if Job.of(seed).fault and soak.kind_of(seed) == "training")
    sound = next(seed for seed in range(100) if not Job.of(seed).fault and soak.kind_of(seed) == "training")
    fake = Fake(tmp_path, ours="writing to the spill directory failed")
    assert fake.run(faulty)["outcome"] == "ended by the disk"
    assert fake.run(sound)["outcome"] == "ENDED WITH STATUS 1"


@pytest.mark.nightly
def test_a_job_trains_twice_and_gives_the_same_bits(tmp_path: Path) -> None:
    seeds = (seed for seed in range(200) if soak.kind_of(seed) == "training")
    seed = min(seeds, key=lambda s: Job.of(s).width * Job.of(s).depth * Job.of(s).steps)
    line = soak.Soak(tmp_path).run(seed)
    assert line["outcome"] == "same", line
    assert line["moved_bytes"] > 0
