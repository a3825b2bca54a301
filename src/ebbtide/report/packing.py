"""Packs plain values and numpy columns into text that is safe in an HTML page. ``page/shared/data.js`` reads it.

The bytes are compressed with zlib, then written in base64, whose letters are never markup. They hold the lengths of the
directory and of the JSON (32 bits each), the directory (type and length of each column), and the JSON. The columns
follow, each padded with zeros to 8 bytes. In the JSON, {"$column": n} stands for the n-th column. Integers that exceed
32 bits become floats, so past 2**53 they are rounded. That is enough, since the page only draws them.
"""

import base64
import json
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt


def pack(value: Any) -> str:
    """Pack a value of JSON that may hold one-dimensional numpy arrays. Raises ValueError for a float that is no
    number."""
    columns: list[tuple[str, npt.NDArray[Any]]] = []

    def column(found: object) -> dict[str, int]:
        if not isinstance(found, np.ndarray):
            raise TypeError(f"a {type(found).__name__} cannot be packed")
        columns.append(_typed(found))
        return {"$column": len(columns) - 1}

    text = json.dumps(value, default=column, separators=(",", ":"), allow_nan=False).encode()
    directory = json.dumps([(kind, len(array)) for kind, array in columns], separators=(",", ":")).encode()
    parts = [directory, text, *(array.tobytes() for _, array in columns)]
    whole = struct.pack("<II", len(directory), len(text)) + b"".join(part + bytes(-len(part) % 8) for part in parts)
    return pack_bytes(whole)


def pack_bytes(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def _typed(array: npt.NDArray[Any]) -> tuple[str, npt.NDArray[Any]]:
    """Return the array in the smallest of JavaScript's typed arrays that holds it, little-endian as in every
    browser."""
    if array.dtype == np.bool_:
        return "u1", array.astype(np.uint8)
    if array.dtype.kind in "iu" and (not array.size or -(2**31) <= array.min() <= array.max() < 2**31):
        return "i4", array.astype("<i4")
    return "f8", array.astype("<f8")
