"""The corpus is made by one command, of small files, and one line ranks a package's policy on it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.papers.steps import XEON, resnet
from bench.planning import corpus
from ebbtide.cli import cli
from ebbtide.ir.files import load, save
from ebbtide.ir.occupancy import live_bytes, needed_bytes, peak
from ebbtide.ir.trace import Trace
from tests.helpers import forked


def test_its_shapes_make_small_files_of_steps_that_have_something_to_move(tmp_path: Path) -> None:
    for name, make in corpus.SHAPES.items():
        save(make(), tmp_path / name)
        trace = load(tmp_path / name, Trace)
        assert (tmp_path / name).stat().st_size < 100_000
        assert peak(live_bytes(trace)) > 4 * peak(needed_bytes(trace))


@pytest.mark.starts
def test_it_is_made_once_and_compared_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(subprocess, "Popen", forked.popen(forked.pythons(), forked.pythons(), forked.planners()))
    shape = ("--layers", "2", "--hidden", "64", "--inner", "128", "--heads", "8", "--length", "16")
    tiny = (*corpus.RECORDED["llama-8b-fake"][: len(corpus.FAKE)], *shape)
    monkeypatch.setattr(corpus, "RECORDED", {"tiny-fake": tiny})
    monkeypatch.setattr(corpus, "SHAPES", {"resnet": lambda: resnet((1, 1, 1, 1), 8, XEON)})
    monkeypatch.setattr(sys, "argv", ["corpus", str(tmp_path / "made")])
    corpus.main()
    made = sorted((tmp_path / "made").iterdir())
    assert [path.name for path in made] == ["resnet.trace", "tiny-fake.trace"]
    before = [path.stat().st_mtime_ns for path in made]
    corpus.main()
    assert [path.stat().st_mtime_ns for path in made] == before
    words = ["compare", *map(str, made), "--machine", "h200", "--fast", "50%", "--policy", "lru,ebbtide", "--json"]
    found = json.loads(CliRunner().invoke(cli, words).stdout)
    assert [one["plans"] for one in found["standings"]] == [2, 2]
    assert found["standings"][0]["policy"] == "ebbtide"
