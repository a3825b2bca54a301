"""Recordings are refused where their columns cannot be read, and reach another process as they are."""

import pickle
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest

from ebbtide.ir.recording import Recording
from tests.helpers.make_recording import recording

COLUMNS = [field.name for field in fields(Recording)][3:]
ONE_ROW: dict[str, Any] = {"n_ticks": 2, "n_storages": 2, "use_storage": [1], "span_storage": [0], "names": ["", "op"]}


def columns_of(made: Recording) -> dict[str, Any]:
    return {field.name: getattr(made, field.name) for field in fields(Recording)}


def test_a_recording_holds_what_it_was_given() -> None:
    made = recording(**ONE_ROW)
    assert (made.n_ticks, made.n_storages, len(made.use_first), len(made.span_lane)) == (2, 2, 1, 1)
    assert recording(0).n_ticks == 0


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_a_table_are_equally_long_rows_of_integers(name: str) -> None:
    good = columns_of(recording(**ONE_ROW))
    for bad in (good[name].tolist(), good[name].astype(float), good[name].astype(np.int32), good[name].reshape(-1, 1)):
        with pytest.raises(ValueError, match=f"not a recording: {name} must be one row"):
            Recording(**good | {name: bad})
    with pytest.raises(ValueError, match=r"not a recording: there are \d (tick|storage|use|span)s, and \d rows in"):
        Recording(**good | {name: np.append(good[name], good[name][-1])})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tick_name", 2),
        ("tick_module", -1),
        ("tick_arguments", 2),
        ("tick_phase", 3),
        ("nbytes", 0),
        ("kind", 5),
        ("birth", 2),
        ("birth", -2),
        ("allocation", -2),
        ("death", 3),
        ("module", 2),
        ("line", 2),
        ("line", -1),
        ("use_storage", 2),
        ("use_storage", -1),
        ("use_first", 2),
        ("use_last", -1),
        ("use_access", 0),
        ("use_access", 4),
        ("span_storage", 2),
        ("span_storage", -1),  # of a copy
        ("span_lane", 5),
    ],
)
def test_numbers_out_of_range_are_refused(name: str, value: int) -> None:
    good = columns_of(recording(**ONE_ROW))
    bad = good[name].copy()
    bad[-1] = value
    with pytest.raises(ValueError, match=f"not a recording: .*{name}"):
        Recording(**good | {name: bad})


def test_a_stall_for_room_for_a_new_storage_is_of_none() -> None:
    assert recording(**ONE_ROW | {"span_storage": [-1], "span_lane": [2]}).span_storage.tolist() == [-1]


def test_nobody_changes_a_recording() -> None:
    made, given = recording(**ONE_ROW), np.array([1, 1])
    kept = Recording(**columns_of(made) | {"nbytes": given})
    with pytest.raises(FrozenInstanceError):
        made.nbytes = given  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        kept.nbytes[0] = 7
    given[0] = 7  # the giver's own stays writable


def test_a_pipe_carries_a_recording_for_the_bytes_of_its_columns() -> None:
    made = recording(n_ticks=1000, n_storages=500)
    said = pickle.dumps(made, protocol=5)
    found = pickle.loads(said)
    for name, column in columns_of(made).items():
        np.testing.assert_array_equal(getattr(found, name), column)
    assert len(said) - sum(getattr(made, name).nbytes for name in COLUMNS) < 4096
