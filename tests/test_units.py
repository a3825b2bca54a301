"""Sizes, budgets and times: what is read, what is refused, and that what is printed can be read again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide import units
from ebbtide.units import (
    Budget,
    format_bytes,
    format_count,
    format_time,
    option,
    parse_budget,
    parse_fraction,
    parse_size,
    round_up,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("1234", 1234),
        (1234, 1234),
        ("10B", 10),
        ("4k", 4096),
        ("64KiB", 65_536),
        ("64 kib", 65_536),
        ("800MB", 800_000_000),
        ("1.5G", 1_610_612_736),
        (".5MiB", 524_288),
        ("8GiB", 8_589_934_592),
        (" 2TB ", 2_000_000_000_000),
        ("1T", 1_099_511_627_776),
        (np.int64(8_589_934_592), 8_589_934_592),
    ],
)
def test_sizes_are_read_in_binary_and_decimal_units(text: str | int, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "1e9", "8 G i B", "8GiBs", "1.2.3M", "25%", "nan", "٣G", -1, True, "9999999T"]
)
def test_what_is_no_size_is_refused_with_what_is_accepted(text: str | int) -> None:
    with pytest.raises(ValueError, match="accepted: a size such as 8GiB"):
        parse_size(text)


@pytest.mark.parametrize(("text", "fraction"), [("25%", 0.25), (" 12.5 % ", 0.125), ("100%", 1.0)])
def test_fractions_are_read(text: str, fraction: float) -> None:
    assert parse_fraction(text) == fraction


@pytest.mark.parametrize("text", ["0%", "101%", "%", "25", "-5%", "25%%"])
def test_what_is_no_fraction_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(ValueError, match="accepted: a percentage above 0 and at most 100"):
        parse_fraction(text)


def test_a_budget_is_bytes_or_a_fraction() -> None:
    assert parse_budget("8GiB") == Budget(nbytes=8_589_934_592)
    assert parse_budget("25%") == Budget(fraction=0.25)
    assert parse_budget(Budget(fraction=0.5)) == Budget(fraction=0.5)
    assert (str(parse_budget("8GiB")), str(parse_budget("12.5%"))) == ("8.00 GiB", "12.5%")
    for wrong in ({}, {"nbytes": 1, "fraction": 0.5}, {"nbytes": 0}, {"fraction": 1.5}):
        with pytest.raises(ValueError, match=r"budget|accepted"):
            Budget(**wrong)  # type: ignore[arg-type]


def test_a_share_that_is_no_percentage_is_a_slip() -> None:
    for text, share in (("0.4", "40%"), (".25", "25%"), ("0.125", "12.5%")):
        with pytest.raises(ValueError, match=f"write {share}"):
            parse_budget(text)
    with pytest.raises(ValueError, match="must be above zero"):
        parse_budget("0.0")


def test_a_tie_is_rounded_as_the_pages_scripts_round_it() -> None:
    assert (format_bytes(465 << 19), format_bytes(467 << 19)) == ("233 MiB", "234 MiB")  # 232.5 and 233.5


def test_a_budget_of_a_few_bytes_is_a_slip() -> None:
    with pytest.raises(ValueError, match="write 8GiB"):
        parse_budget("8")
    with pytest.raises(ValueError, match=r"8GiB.*25%"):
        parse_budget("lots")


@given(st.integers(0, 2**62))
def test_bytes_are_printed_to_three_digits(nbytes: int) -> None:
    text = format_bytes(nbytes)
    assert abs(parse_size(text.replace(" ", "")) - nbytes) <= 0.0051 * nbytes
    assert len(text.split()[0].replace(".", "")) <= 3 or text.endswith("TiB")


@given(st.integers(0, 2**62))
def test_sizes_survive_every_exact_spelling(nbytes: int) -> None:
    assert parse_size(str(nbytes)) == parse_size(f"{nbytes}B") == parse_size(nbytes) == nbytes


@given(st.text(max_size=12))
def test_no_text_makes_a_budget_fail_otherwise(text: str) -> None:
    try:
        assert isinstance(parse_budget(text), Budget)
    except ValueError as error:
        complaint = str(error)
        assert "accepted" in complaint or "write" in complaint


@given(st.integers(0, 2**50), st.integers(1, 2**30))
def test_rounding_up_is_the_next_multiple(nbytes: int, unit: int) -> None:
    rounded = round_up(nbytes, unit)
    assert rounded % unit == 0
    assert nbytes <= rounded < nbytes + unit


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (4_870, "4.87 K"),
        (34_123_456, "34.1 M"),
        (999_600_000, "1.00 B"),
        (7 * 10**10, "70.0 B"),
    ],
)
def test_counts_are_printed_in_a_unit_that_fits(number: int, text: str) -> None:
    assert format_count(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (4e-7, "400 ns"),
        (1.5e-5, "15.0 us"),
        (0.0123, "12.3 ms"),
        (0.99999, "1.00 s"),
        (1.234, "1.23 s"),
        (99.9, "99.9 s"),
        (125, "2 min 05 s"),
        (7260, "2 h 01 min"),
    ],
)
def test_times_are_printed_in_a_unit_that_fits(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


def test_an_option_is_named_as_whoever_started_this_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "_by_command", False)
    assert (option("fast", "8GiB"), option("spill")) == ('fast="8GiB"', "spill=")
    units.name_options_as_the_command()
    assert (option("fast", "8GiB"), option("spill")) == ("--fast 8GiB", "--spill")
