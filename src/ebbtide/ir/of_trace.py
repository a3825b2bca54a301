"""Costly answers about a trace: each is computed once, and the trace keeps it as long as it lives.

A search and its planners need the same tables of the same step, and these cost more than the search itself. Left out:
what the trace's own columns say.
"""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from ebbtide.ir.trace import Trace

_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


def once_for_a_trace(
    ask: Callable[Concatenate[Trace, _Asked], _Answer],
) -> Callable[Concatenate[Trace, _Asked], _Answer]:
    """Make a function share its answers. Callers MUST NOT change them; an array is made read-only."""

    @functools.wraps(ask)
    def asked(trace: Trace, /, *args: _Asked.args, **kwargs: _Asked.kwargs) -> _Answer:
        key = (ask, args, tuple(kwargs.items()))
        if key not in trace.answers:
            answer = trace.answers[key] = ask(trace, *args, **kwargs)
            if isinstance(answer, np.ndarray):
                answer.flags.writeable = False
        return trace.answers[key]  # type: ignore[return-value]

    return asked
