"""Sizes and times as text. Only this module knows 2**30; inside, a size is an integer number of bytes.

The module also knows how options are written: as the command's (``--fast 8GiB``) or as Python's (``fast=``).

``GB`` is 10**9 and ``GiB`` is 2**30. A bare letter is binary, as in Docker, systemd and Slurm: ``1.5G`` is 1.5 GiB.
Unreadable input raises ValueError, whose text says what is accepted.
"""

import re
from dataclasses import dataclass
from math import floor
from operator import index

KIB = 2**10
MIB = 2**20
GIB = 2**30
TIB = 2**40

_BYTES_OF = {"": 1, "b": 1}
_BYTES_OF |= dict(zip("kmgt", (KIB, MIB, GIB, TIB), strict=True))
_BYTES_OF |= {f"{letter}ib": _BYTES_OF[letter] for letter in "kmgt"}
_BYTES_OF |= {f"{letter}b": 10 ** (3 * power) for power, letter in enumerate("kmgt", start=1)}

_NUMBER = r"(?P<number>\d+(?:\.\d*)?|\.\d+)"
_SIZE = re.compile(rf"\s*{_NUMBER}\s*(?P<unit>[a-z]*)\s*", re.IGNORECASE | re.ASCII)
_PERCENT = re.compile(rf"\s*{_NUMBER}\s*%\s*", re.ASCII)

SIZES_ACCEPTED = "a size such as 8GiB, 1.5G (binary), 800MB (decimal) or a number of bytes"
FRACTIONS_ACCEPTED = "a percentage above 0 and at most 100, such as 25%"
_SHARE = re.compile(r"0?\.\d*[1-9]\d*")
_LARGEST = 2**62
_by_command = False


@dataclass(frozen=True, slots=True)
class Budget:
    """The fast memory that a run may use: bytes for the process, or a share of the step's peak of live bytes.

    Exactly one of the two is set. ``fraction`` lies in (0, 1].
    """

    nbytes: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        if (self.nbytes is None) == (self.fraction is None):
            raise ValueError("a budget is either a number of bytes or a fraction")
        if self.nbytes is not None and self.nbytes <= 0:
            raise ValueError(f"a budget must be above zero; accepted: {SIZES_ACCEPTED}")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise ValueError(f"accepted: {FRACTIONS_ACCEPTED}")

    def __str__(self) -> str:
        return format_bytes(self.nbytes) if self.nbytes is not None else f"{100 * (self.fraction or 0):g}%"


def parse_size(text: str | int) -> int:
    """Return bytes; an integer is already a number of bytes. ``parse_size("1.5G") == 1_610_612_736``."""
    if not isinstance(text, str | bool) and hasattr(text, "__index__"):  # NumPy's integers, too
        nbytes = index(text)
    else:
        match = _SIZE.fullmatch(text) if isinstance(text, str) else None
        unit = _BYTES_OF.get(match["unit"].lower()) if match else None
        if match is None or unit is None:
            raise ValueError(f"{text!r} is not a size; accepted: {SIZES_ACCEPTED}")
        number = match["number"]
        nbytes = int(number) * unit if number.isdigit() else round(float(number) * unit)
    if not 0 <= nbytes <= _LARGEST:
        raise ValueError(f"{text!r} is out of range; accepted: {SIZES_ACCEPTED}")
    return nbytes


def parse_fraction(text: str) -> float:
    """Parse a share of the whole: ``parse_fraction("25%") == 0.25``."""
    match = _PERCENT.fullmatch(text)
    if match is None or not 0 < (fraction := float(match["number"]) / 100) <= 1:
        raise ValueError(f"{text!r} is not a share of the tensors' memory; accepted: {FRACTIONS_ACCEPTED}")
    return fraction


def parse_percentage(text: str) -> float:
    """Parse a percentage, which may be above 100: ``parse_percentage("150%") == 1.5``."""
    match = _PERCENT.fullmatch(text)
    if match is None or not (fraction := float(match["number"]) / 100) > 0:
        raise ValueError(f"{text!r} is not a percentage above 0, such as 25%")
    return fraction


def _is_budget(text: str) -> bool:
    try:
        return bool(parse_budget(text.strip()))
    except ValueError:
        return False


def parse_budget(text: "str | int | Budget") -> Budget:
    """Parse a budget. A size bounds the process, a percentage the tensors. An obvious slip of the pen is refused."""
    if isinstance(text, Budget):
        return text
    if isinstance(text, str) and "," in text and all(map(_is_budget, text.split(","))):
        raise ValueError(f"{text!r} names several budgets: name one")
    if isinstance(text, str) and "%" in text:
        return Budget(fraction=parse_fraction(text))
    try:
        nbytes = parse_size(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a budget; accepted: {SIZES_ACCEPTED}, or {FRACTIONS_ACCEPTED}") from None
    if isinstance(text, str) and _SHARE.fullmatch(text):
        raise ValueError(f"a bare number means bytes; a share is a percentage, so write {100 * float(text):g}%?")
    if nbytes == 0:
        raise ValueError(f"a budget must be above zero; accepted: {SIZES_ACCEPTED}, or {FRACTIONS_ACCEPTED}")
    if nbytes < MIB:
        raise ValueError(f"a budget of {nbytes} bytes holds nothing; a bare number means bytes, so write {nbytes}GiB?")
    return Budget(nbytes=nbytes)


def name_options_as_the_command() -> None:
    """Write options as the command's from here on, in this process."""
    global _by_command
    _by_command = True


def option(name: str, value: str = "") -> str:
    """Return an option as the user writes it: ``--fast 8GiB`` on a command line, else ``fast="8GiB"``."""
    if _by_command:
        return f"--{name} {value}".rstrip()
    keyword = name.replace("-", "_")
    return f'{keyword}="{value}"' if value else f"{keyword}="


def flag(name: str) -> str:
    """Return an option without a value as the user writes it: ``--wait-for-plan``, else ``wait_for_plan=True``."""
    return f"--{name}" if _by_command else f"{name.replace('-', '_')}=True"


def round_up(nbytes: int, unit: int) -> int:
    """Round up to a multiple of ``unit``."""
    return -(-nbytes // unit) * unit


def format_bytes(nbytes: int | float) -> str:
    """Return three digits and a binary unit: ``1.50 GiB``."""
    if abs(nbytes) < 1000:
        return f"{round(nbytes)} B"
    for name, unit in (("KiB", KIB), ("MiB", MIB), ("GiB", GIB)):
        if abs(nbytes) < 999.5 * unit:
            return f"{_three_digits(nbytes / unit)} {name}"
    return f"{_three_digits(nbytes / TIB)} TiB"


def format_count(number: int) -> str:
    """Return three digits and thousands, millions or billions: ``34.1 M``."""
    for name, unit in (("", 1), (" K", 10**3), (" M", 10**6)):
        if number < 999.5 * unit:
            return f"{number if unit == 1 else _three_digits(number / unit)}{name}"
    return f"{_three_digits(number / 10**9)} B"


def seconds(ns: float) -> float:
    """Convert nanoseconds to seconds."""
    return ns / 1e9


def format_time(seconds: float) -> str:
    """Return three digits and a unit: ``1.23 s``. Long times are in minutes or hours."""
    if abs(seconds) >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02} min"
    if abs(seconds) >= 100:
        return f"{int(seconds // 60)} min {int(seconds % 60):02} s"
    for name, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= 0.9995 * scale:
            return f"{_three_digits(seconds / scale)} {name}"
    return "0 s" if abs(seconds) < 1e-9 else f"{seconds * 1e9:.0f} ns"


def _three_digits(value: float) -> str:
    if abs(value) >= 99.95:
        return str(floor(value + 0.5))  # 232.5 becomes 233, as in the scripts of a page
    return f"{value:.{2 if abs(value) < 9.995 else 1}f}"
