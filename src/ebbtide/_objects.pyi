"""Typed face of the native module that finds Python's objects. It loads no torch."""

from typing import Any, TypeVar

_Kind = TypeVar("_Kind")

def instances(kind: type[_Kind], roots: list[Any]) -> list[_Kind]:
    """Return the objects of a kind and of its subclasses, each once.

    ``roots`` is what leads to objects that the collector was told to forget.
    """
