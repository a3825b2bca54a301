"""Typed face of the native module that finds Python's objects. It loads no torch."""

from types import FrameType
from typing import Any, TypeVar

_Kind = TypeVar("_Kind")

def instances(kind: type[_Kind], roots: list[Any]) -> list[_Kind]:
    """Return the objects of a kind and of its subclasses, each once.

    ``roots`` is what leads to objects that the collector was told to forget.
    """

def variables_of(frame: FrameType, of_all: bool) -> list[Any]:
    """Return the values of the local variables of a running function, with ``of_all`` also of those that it shares with
    inner functions. It leaves no trace in the frame, as ``frame.f_locals`` does up to Python 3.12."""
