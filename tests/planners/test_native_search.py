"""What the search computes natively, against its definition: prices bound every choice, windows are all windows."""

from collections.abc import Sequence
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ebbtide._planning as _planning

N_TICKS = 6
ROWS = st.lists(
    st.tuples(
        st.integers(0, N_TICKS - 1), st.integers(0, N_TICKS), st.integers(1, 9), st.integers(0, 9), st.integers(0, 2)
    ),
    min_size=1,
    max_size=7,
)


DEFICIT = st.lists(st.integers(-5, 12), min_size=N_TICKS, max_size=N_TICKS)
WRITE_COST = st.lists(st.integers(0, 9), min_size=3, max_size=3)
Rows = list[tuple[int, int, int, int, int]]


def covers(rows: Rows, gone: Sequence[int], deficit: list[int]) -> bool:
    """Whether those that are gone leave the room that is lacking."""
    room = [0] * N_TICKS
    for (first, ticks, nbytes, *_), is_gone in zip(rows, gone, strict=True):
        for tick in range(first, first + ticks):
            room[tick % N_TICKS] += nbytes * is_gone
    return all(there >= lacks for there, lacks in zip(room, deficit, strict=True))


@given(
    rows=ROWS,
    deficit=DEFICIT,
    write_cost=WRITE_COST,
    anew=st.none() | st.lists(st.sampled_from([0, 1, 3, 7, np.inf]), min_size=5, max_size=5),
)
@settings(max_examples=600, deadline=None)
def test_prices_bound_every_choice_that_covers(
    rows: Rows, deficit: list[int], write_cost: list[int], anew: list[float] | None
) -> None:
    """Each interval stays, costs what its copies do, or what it takes to make it anew: that writes nothing."""
    ways, more = ["stays", "moves"], {}
    if anew is not None:
        rows = rows[:5]
        ways, more = [*ways, "anew"], {"anew": np.array(anew[: len(rows)], dtype=float)}
    low, length, paged, cost, group = np.array(rows).T
    covering = {"low": low, "high": low + length, "paged": paged, "cost": cost.astype(float), "group": group}
    covering |= {"write_cost": np.array(write_cost, dtype=float), "deficit": np.array(deficit)}
    price, bound = _planning.find_prices(**covering, **more)
    costs = []
    for chosen in product(ways, repeat=len(rows)):
        if covers(rows, [what != "stays" for what in chosen], deficit):
            written = {row[4] for row, what in zip(rows, chosen, strict=True) if what == "moves"}
            paid = [row[3] if what == "moves" else again if what == "anew" else 0
                    for row, again, what in zip(rows, anew or [0] * len(rows), chosen, strict=False)]  # fmt: skip
            costs.append(sum(paid) + sum(write_cost[group] for group in written))
    assert price.shape == (N_TICKS,)
    assert (price >= 0).all()
    assert (price[np.array(deficit) <= 0] == 0).all()
    assert bound >= 0
    if costs:
        assert bound <= min(costs) * (1 + 1e-9)


def test_prices_find_the_best_bound_there_is() -> None:
    """Two intervals that each cover both ticks: one of cost 3 is enough, whole or in parts."""
    _, bound = _planning.find_prices(
        low=np.array([0, 0]),
        high=np.array([2, 2]),
        paged=np.array([4, 4]),
        cost=np.array([3.0, 5.0]),
        group=np.array([0, 1]),
        write_cost=np.zeros(2),
        deficit=np.array([4, 2]),
    )
    assert bound == pytest.approx(3.0, rel=0.02)


def test_prices_find_the_best_bound_where_one_is_made_anew() -> None:
    """Both have to go. One is moved at 3 and 4 for its write; the other, of the same group, for 2 less than it."""
    covering = {"low": np.array([0, 0]), "high": np.array([2, 2]), "paged": np.array([4, 4])}
    covering |= {"cost": np.array([3.0, 5.0]), "group": np.array([0, 0]), "deficit": np.array([8, 8])}
    for anew, least in (([np.inf, 3.0], 10), ([np.inf, 6.0], 12), ([6.0, 1.0], 7), ([0.0, 0.0], 0)):
        _, bound = _planning.find_prices(**covering, write_cost=np.array([4.0]), anew=np.array(anew))
        assert bound == pytest.approx(least, rel=0.02, abs=1e-6)


@given(rows=ROWS, deficit=DEFICIT, write_cost=WRITE_COST)
@settings(max_examples=300, deadline=None)
def test_a_choice_covers_if_any_does_and_takes_nothing_in_vain(
    rows: Rows, deficit: list[int], write_cost: list[int]
) -> None:
    low, length, paged, cost, group = np.array(rows).T
    demand = (low, low + length, np.array(deficit))
    costs = {"cost": cost.astype(float), "group": group, "write_cost": np.array(write_cost, dtype=float)}
    found = _planning.choose(must=demand, wish=demand, paged=paged, **costs)
    assert (found is not None) == covers(rows, [1] * len(rows), deficit)
    if found is None:
        return
    taken = found.tolist()
    assert covers(rows, taken, deficit)
    for row in np.flatnonzero(found).tolist():
        assert not covers(rows, [*taken[:row], 0, *taken[row + 1 :]], deficit)


N_LONG = 12


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, N_LONG - 1), st.integers(1, N_LONG - 1), st.integers(1, 9), st.booleans(), st.booleans()
        ),
        min_size=1,
        max_size=8,
    ),
    free=st.lists(st.integers(0, 20), min_size=N_LONG, max_size=N_LONG),
    tick_ns=st.lists(st.integers(0, 30), min_size=N_LONG, max_size=N_LONG),
    lead_ns=st.sampled_from([0.0, 20.0, 1000.0]),
    lazy=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_copies_take_only_room_that_is_free_and_stay_within_their_interval(
    rows: list[tuple[int, int, int, bool, bool]], free: list[int], tick_ns: list[int], lead_ns: float, lazy: bool
) -> None:
    after, length, paged, pays, returns = np.array(rows, dtype=np.int64).T
    until = after + 1 + length
    starts = np.concatenate(([0], np.cumsum(tick_ns)))
    step_ns = max(float(starts[-1]), 1.0)
    out, done, gone, back = _planning.time_moves(
        after=after,
        until=until,
        ready=np.maximum(after - 1, 0),
        paged=paged,
        tier=np.ones(len(rows), dtype=np.int64),
        pays=pays > 0,
        returns=returns > 0,
        in_ns=paged * 10.0,
        out_ns=paged * 7.0,
        free=np.array(free),
        reached=np.concatenate([starts[:-1] + step_ns * step for step in range(-1, 4)]),
        step_ns=step_ns,
        lead_ns=lead_ns,
        lazy=lazy,
    )
    left = list(free)
    for at, (first, last) in enumerate(zip(after + 1, until, strict=True)):
        assert out[at] <= done[at] <= max(gone[at], done[at])
        assert first <= gone[at] <= last
        assert first <= back[at] <= last
        here = {*range(first, gone[at]), *range(back[at], last)}
        for tick in here:
            left[tick % N_LONG] -= paged[at]
        assert pays[at] or gone[at] == first
        assert returns[at] or back[at] == last
    assert min(left) >= 0


EVENTS = st.lists(st.tuples(st.integers(-3, N_TICKS), st.integers(0, N_TICKS + 3), st.integers(1, 20)), max_size=8)
HELD = st.lists(st.integers(0, 20), min_size=4, max_size=4)


@given(
    events=st.tuples(EVENTS, EVENTS, EVENTS, EVENTS),
    holds=st.tuples(st.lists(st.integers(0, 5), min_size=4, max_size=4), HELD, HELD),
    room=st.integers(0, 30),
)
@settings(max_examples=300, deadline=None)
def test_windows_are_all_rows_of_windows(
    events: tuple[list[tuple[int, int, int]], ...], holds: tuple[list[int], ...], room: int
) -> None:
    uses, rests, used, outlived = events
    fresh, held, held_before = holds
    uses = [(before, max(before + 1, use), nbytes) for before, use, nbytes in uses]
    rests = [(max(made, 0), max(made, last, 0), nbytes) for made, last, nbytes in rests]
    cuts, begins = [0, 2, 3, N_TICKS], [0.0, 10.0, 11.0, 30.0]
    walls = [(room, [(1.0, 2.0), (3.0, 0.5)], 0.25, 0.5), (room + 7, [(4.0, 4.0)], 0.0, 0.0)]
    found = _planning.longest_windows(
        cuts=np.array(cuts),
        begins_ns=np.array(begins),
        fresh=np.array(fresh),
        held=np.array(held),
        held_before=np.array(held_before),
        uses=columns(uses),
        rests=columns(rests),
        used=columns(used),
        outlived=columns(outlived),
        walls=walls,
    )

    def length(window: tuple[tuple[int, bool], tuple[int, bool]]) -> float:
        """From cut ``i`` to cut ``j``, each as its operation begins, or as the one before ends."""
        (i, ended_i), (j, ended_j) = window
        into = sum(nbytes for before, use, nbytes in uses if before < cuts[i] <= use < cuts[j])
        kept = sum(nbytes for before, use, nbytes in uses if before == cuts[i] - 1 and cuts[i] <= use < cuts[j])
        out = sum(nbytes for made, last, nbytes in rests if cuts[i] <= made < cuts[j] <= last)
        own = sum(nbytes for made, at, nbytes in (outlived if ended_j else used) if cuts[i] <= made and at == cuts[j])
        into += held_before[i] - kept if ended_i else fresh[i]
        out += (held_before if ended_j else held)[j] - own
        longest = compute = begins[j] - begins[i]
        for nbytes, ways, lost_in, lost_out in walls:
            over_in, over_out = max(into - nbytes, 0), max(out - nbytes, 0)
            times = [over_in * in_ns + over_out * out_ns for in_ns, out_ns in ways]
            longest = max(longest, compute + over_in * lost_in + over_out * lost_out, *times)
        return longest

    inner = range(1, len(cuts) - 1)
    rows = [(0, *middle, len(cuts) - 1) for n in range(len(cuts) - 1) for middle in combinations(inner, n)]

    def longest(row: tuple[int, ...]) -> float:
        """Each window begins as the one before it ended, or as its own operation begins."""
        ends = {(0, False): 0.0}
        for cut in row[1:]:
            ends = {
                (cut, ended): max(
                    time + length(((begin, moment), (cut, ended)))
                    for (begin, before), time in ends.items()
                    for moment in {before, False}
                )
                for ended in (True, False)
            }
        return max(ends.values())

    assert found == max(map(longest, rows))


@pytest.mark.parametrize("wrong", [{"low": np.array([-1])}, {"high": np.array([99])}, {"group": np.array([4])}])
def test_columns_that_do_not_belong_together_are_refused(wrong: dict[str, np.ndarray]) -> None:
    columns = {"low": np.array([0]), "high": np.array([1]), "group": np.array([0])} | wrong
    with pytest.raises(ValueError, match="out of range"):
        _planning.find_prices(
            **columns,
            paged=np.array([1]),
            cost=np.ones(1),
            write_cost=np.zeros(1),
            deficit=np.array([1, 1]),
        )


def columns(events: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    first, second, nbytes = np.array(events, dtype=np.int64).reshape(-1, 3).T
    return first, second, nbytes
