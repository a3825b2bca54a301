"""What ranks tell one another through a store, and that nothing depends on one that is gone."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from ebbtide.errors import BudgetError, RankError
from ebbtide.host.place import Place
from ebbtide.runtime import ranks as module
from ebbtide.runtime.ranks import Ranks

TOO_SMALL = BudgetError(100 << 20, "aten::mm", 90 << 20, 50 << 20, "40%")


def two_ranks(store: Any = None) -> list[Ranks]:
    ranks = [Ranks(Place(rank, 2, rank, 2)) for rank in range(2)]
    for each in ranks:
        each._store = store
    return ranks


def test_all_end_with_what_the_first_one_said() -> None:
    first, second = two_ranks(dist.HashStore())
    assert (first.ask(), second.ask()) == (None, None)
    assert second.tell(TOO_SMALL) is not None
    told = first.tell(BudgetError(1 << 20, "aten::add", 1, 1, "90%"))
    assert isinstance(told, RankError)
    assert str(told) == f"rank 1: {TOO_SMALL}"
    assert (told.exit_code, told.minimum_bytes, told.minimum_fast) == (3, 100 << 20, "40%")
    assert str(first.ask()) == str(second.ask()) == str(first.heard()) == str(told)


def test_a_rank_hears_while_it_computes() -> None:
    first, second = two_ranks(dist.HashStore())
    second.tell("the budget was exceeded")
    first._watch()
    assert str(first.heard()) == "rank 1: the budget was exceeded"


def test_columns_are_gathered_once_all_have_ended() -> None:
    first, second = two_ranks(dist.HashStore())
    assert first.gather(["a"], 0.0) == {}  # the other one has not
    assert second.gather(["b"], 60.0) == {0: ["a"], 1: ["b"]}


def test_nothing_is_gathered_where_one_says_why_it_ends() -> None:
    first, second = two_ranks(dist.HashStore())
    second.tell(TOO_SMALL)
    assert first.gather(["a"], 60.0) == {}


def test_ranks_that_no_launcher_told_of_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, launched = Ranks(Place()), two_ranks()[0]
    assert alone.unlaunched() == 0
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    assert (alone.unlaunched(), launched.unlaunched()) == (2, 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    assert alone.unlaunched() == 0


def test_a_rank_alone_has_nobody_to_tell() -> None:
    alone, _ = two_ranks()
    assert not alone.together
    assert (alone.tell(TOO_SMALL), alone.ask(), alone.gather(["a"], 60.0)) == (None, None, {})


class Gone:
    """A store whose every call does the same."""

    def __init__(self, does: Callable[[], object]) -> None:
        self._does = does

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self._does()


def raises() -> None:
    raise dist.DistError("Connection reset by peer")


@pytest.mark.parametrize("answers", [True, False])
def test_a_store_that_is_gone_leaves_a_rank_as_if_alone(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 0.05)
    over = threading.Event()
    first, _ = two_ranks(Gone(raises if answers else over.wait))
    assert first.ask() is None
    assert first.gather(["a"], 0.05) == {}
    assert str(first.tell(TOO_SMALL)) == f"rank 0: {TOO_SMALL}"
    over.set()
    for thread in threading.enumerate():
        if thread.name == "ebbtide-store":
            thread.join()
