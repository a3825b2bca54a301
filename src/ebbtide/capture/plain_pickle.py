"""Reads a pickle of plain data: dicts, lists, tuples, texts, bytes and numbers.

A pickle is a program for a machine with a stack, and Python's own reader carries out whatever it says: it calls what
the file names, makes room for the memo index that the file claims, and hashes tuples of tuples of tuples that a few
bytes make exponentially deep. This one knows the instructions that plain data is written with, and refuses a file at
any other. No step takes room that the file's own bytes do not justify: memo indices count up by one, texts are cut out
of what is there, and keys are texts or integers. So time and memory are linear in the file's size.

Left out: protocols 0 and 1, which write numbers as text; sets; integers of more than 255 bytes; objects that hold
themselves within a tuple.
"""

import re
import struct
from typing import Any

from ebbtide.errors import FileFormatError

_REFUSED = {
    **dict.fromkeys(b"Robo\x81\x92\x82\x83\x84", "it would make or call an object, and plain data has none: refused"),
    **dict.fromkeys(b"PQ\x97\x98", "it refers to objects outside of it, and plain data has none: refused"),
}
_TUPLES = {0x29: 0, 0x85: 1, 0x86: 2, 0x87: 3}
_TEXTS = {0x8C: 1, 0x58: 4, 0x8D: 8}  # instruction: bytes of its length
_BYTES = {0x43: 1, 0x42: 4, 0x8E: 8}
_INTEGERS = {0x4B: 1, 0x4D: 2}  # without a sign
_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}
_PROTOCOLS = range(2, 6)
_KEYS = {str, int}
_NAME = re.compile(r"[\w.<>]+", re.ASCII)


def read_plain(data: bytes) -> object:
    """Raises FileFormatError for anything but a whole pickle of plain data."""
    try:
        return _carried_out(data)
    except FileFormatError:
        raise
    except (LookupError, ValueError, TypeError, struct.error) as error:
        raise FileFormatError("not a pickle, or a damaged one") from error


def _carried_out(data: bytes) -> object:
    """The instructions in the order of how often a memory snapshot has them."""
    number, at = int.from_bytes, 0
    stack: list[Any] = []
    below: list[list[Any]] = []  # the stacks under the marks
    memo: list[Any] = []
    while True:
        code = data[at]  # what goes on past the end was cut out short, and ends here
        at += 1
        if code == 0x68:  # BINGET
            stack.append(memo[data[at]])
            at += 1
        elif code == 0x6A:  # LONG_BINGET
            stack.append(memo[number(data[at : at + 4], "little")])
            at += 4
        elif code == 0x94:  # MEMOIZE
            memo.append(stack[-1])
        elif code in _INTEGERS:
            stack.append(number(data[at : at + _INTEGERS[code]], "little"))
            at += _INTEGERS[code]
        elif code == 0x4A:  # BININT
            stack.append(number(data[at : at + 4], "little", signed=True))
            at += 4
        elif code == 0x8A:  # LONG1
            start = at + 1
            at = start + data[at]
            stack.append(number(data[start:at], "little", signed=True))
        elif code == 0x28:  # MARK
            below.append(stack)
            stack = []
        elif code == 0x75:  # SETITEMS
            items, stack = stack, below.pop()
            _set(stack[-1], items)
        elif code == 0x7D:  # EMPTY_DICT
            stack.append({})
        elif code == 0x5D:  # EMPTY_LIST
            stack.append([])
        elif code in _TEXTS or code in _BYTES:
            wide = _TEXTS.get(code) or _BYTES[code]
            start = at + wide
            at = start + number(data[at:start], "little")
            text = data[start:at]
            stack.append(text.decode("utf-8", "surrogatepass") if code in _TEXTS else text)
        elif code == 0x65:  # APPENDS
            items, stack = stack, below.pop()
            _list(stack[-1]).extend(items)
        elif code == 0x61:  # APPEND
            item = stack.pop()
            _list(stack[-1]).append(item)
        elif code == 0x73:  # SETITEM
            items = [stack.pop(-2), stack.pop()]
            _set(stack[-1], items)
        elif code in _TUPLES:
            first = len(stack) - _TUPLES[code]
            if first < 0:
                raise ValueError("a tuple of more than there is")
            stack[first:] = [tuple(stack[first:])]
        elif code == 0x74:  # TUPLE
            items, stack = stack, below.pop()
            stack.append(tuple(items))
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code == 0x47:  # BINFLOAT
            stack.append(struct.unpack(">d", data[at : at + 8])[0])
            at += 8
        elif code in b"qr":  # BINPUT, LONG_BINPUT
            wide = 1 if code == 0x71 else 4
            _put(memo, number(data[at : at + wide], "little"), stack[-1])
            at += wide
        elif code == 0x95:  # FRAME
            at += 8
        elif code == 0x80:  # PROTO
            if data[at] not in _PROTOCOLS:
                raise ValueError(f"protocol {data[at]}, and read are {_PROTOCOLS[0]} to {_PROTOCOLS[-1]}")
            at += 1
        elif code == 0x2E:  # STOP
            if below or len(stack) != 1:
                raise ValueError("it ends in the middle")
            return stack[0]
        else:
            raise FileFormatError(_refusal(data, code, at, stack))


def _set(target: object, items: list[Any]) -> None:
    keys = items[::2]
    if type(target) is not dict or len(items) % 2 or not _KEYS.issuperset(map(type, keys)):
        raise TypeError("the keys of a dict are texts or integers, and each has a value")
    target.update(zip(keys, items[1::2], strict=True))


def _list(target: object) -> list[Any]:
    if type(target) is not list:
        raise TypeError("what is added to is no list")
    return target


def _put(memo: list[Any], index: int, value: object) -> None:
    if index > len(memo):
        raise ValueError(f"a memo index of {index} after {len(memo)} values")
    memo[index : index + 1] = [value]


def _refusal(data: bytes, code: int, at: int, stack: list[Any]) -> str:
    names: list[Any] = []
    if code in b"ci":  # GLOBAL, INST: two lines say what
        names = [part.decode("latin-1") for part in data[at : at + 200].split(b"\n")[:2]]
        if not all(map(_NAME.fullmatch, names)):  # a script, say, which begins with "import"
            return "no memory snapshot: it is not a pickle, or a damaged one"
    elif code == 0x93:  # STACK_GLOBAL: two texts do
        names = [name for name in stack[-2:] if type(name) is str]
    if names:
        return f"it would call {ascii('.'.join(names))[1:-1]:.200}, and plain data calls nothing: refused"
    return _REFUSED.get(code) or (
        f"not a pickle, or a damaged one: instruction {code:#04x} at {at - 1} is none that plain data is written with"
    )
