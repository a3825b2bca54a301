"""Online policies of other packages. One says who leaves the first tier; all else is as under ``demand``.

A policy is a function of the candidates at one moment. It knows the past: how long each has been idle. Left out: other
settings of the decider, births in place, and the arena, which asks native code alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ebbtide.errors import SettingError
from ebbtide.ir.base import Flags, Floats, Ints
from ebbtide.simulator.registry import Registry

GROUP = "ebbtide.policies"


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What may leave the first tier, in columns: the storage's number in the trace, the bytes that it takes there, the
    ticks since its last use, and whether a slower tier has its contents, so that it leaves without a write."""

    storage: Ints
    nbytes: Ints
    idle_ticks: Ints
    is_clean: Flags


Score: TypeAlias = Callable[[Candidates], npt.ArrayLike]
"""A function that gives each candidate a number: the highest leaves first, and of equals the first. It is called
whenever room is short."""

SCORES: Mapping[str, Score] = Registry(GROUP, "policy", {})
"""The policies of other packages."""


def checked(name: str, score: Score, storage_of: Ints) -> Callable[[dict[str, Ints]], Floats]:
    """Return the score as the engine calls it. ``storage_of`` has the storages of its pieces. Raises SettingError,
    which names the policy, for whatever goes wrong in it."""

    def scores(columns: dict[str, Ints]) -> Floats:
        clean = columns["is_clean"].astype(np.bool_)
        given = Candidates(storage_of[columns["piece"]], columns["nbytes"], columns["age"], clean)
        try:
            found = np.asarray(score(given), dtype=np.float64)
        except SettingError:  # it says whose policy failed
            raise
        except Exception as error:  # any error of another package
            raise SettingError(f"the policy {name!r} failed: {type(error).__name__}: {error}") from error
        if found.shape != clean.shape or np.isnan(found).any():
            raise SettingError(f"the policy {name!r} must return one number for each of {len(clean)} candidates")
        return found

    return scores
