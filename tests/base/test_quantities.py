"""Quantities are read strictly and written so that they read back."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.ticker import EngFormatter

from study.base.errors import InputError
from study.base.quantities import (
    bytes_text,
    count_text,
    engineering,
    flops_text,
    plus_minus,
    read_bytes,
    read_count,
    read_range,
    read_seconds,
    read_whole_numbers,
    rounded,
    rounded_all,
    seconds_text,
)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (read_count, "10M", 10_000_000),
        (read_count, "1.5e6", 1_500_000),
        (read_count, "250 k", 250_000),
        (read_count, "7B", 7e9),
        (read_count, "1_000,000", 1_000_000),
        (read_count, "16.1K", 16_100),
        (read_bytes, "200MB", 200_000_000),
        (read_bytes, "1.5 GiB", 3 * 2**29),
        (read_seconds, "10ms", 0.01),
        (read_seconds, "2s", 2),
    ],
)
def test_what_people_write(read: Callable[[str, str], float], text: str, value: float) -> None:
    assert read("--x", text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_count, "ten"),
        (read_count, "-5M"),
        (read_count, "0"),
        (read_count, "10MB"),
        (read_count, "1,5K"),
        (read_count, "1e999"),
        (read_count, "nan"),
        (read_count, ""),
        (read_bytes, "200"),
        (read_bytes, "200M"),
        (read_bytes, "200mb"),
        (read_seconds, "10"),
        (read_seconds, "10m"),
        (read_range, "3:1"),
        (read_range, "0:4"),
        (read_range, "a:b"),
        (read_range, "1:2:3"),
        (read_range, "1:1G"),
        (read_whole_numbers, "1,,2"),
        (read_whole_numbers, "0"),
        (read_whole_numbers, "1.5"),
    ],
)
def test_anything_else_is_refused_with_its_place_and_value(read: Callable[[str, str], object], text: str) -> None:
    with pytest.raises(InputError) as refused:
        read("--x", text)
    (problem,) = refused.value.problems
    assert problem.place == "--x"
    assert repr(text) in problem.message


def test_counts_are_in_billions_and_flops_in_si() -> None:
    numbers = (999_600, 1.25e9, 999.7e9)
    assert [count_text(number) for number in numbers] == ["1M", "1.25B", "1T"]
    assert [flops_text(number) for number in numbers] == ["1M", "1.25G", "1T"]


def test_ranges_and_lists() -> None:
    assert list(read_range("--x", "2:4")) == [2, 3, 4]
    assert list(read_range("--x", "7")) == [7]
    assert read_range("--x", "64:1K") == range(64, 1001)
    assert read_range("--x", "1,024") == range(1024, 1025)
    assert read_whole_numbers("--x", "1, 32,1") == (1, 32)
    assert read_whole_numbers("--x", "8K,30522") == (8000, 30522)


@given(st.floats(min_value=1e-6, max_value=1e15))
def test_what_is_written_reads_back_to_three_digits(number: float) -> None:
    if number >= 1:
        assert read_count("", count_text(number)) == pytest.approx(number, rel=0.006)
    if 1 <= number < 1e14:
        assert read_bytes("", bytes_text(round(number))) == pytest.approx(round(number), rel=0.006)
    if number < 999:
        assert read_seconds("", seconds_text(number)) == pytest.approx(number, rel=0.006)


@given(st.floats(-1e18, 1e18) | st.floats(-1, 1) | st.integers(-(10**18), 10**18).map(float))
def test_prefixes_of_si_are_those_of_matplotlib(number: float) -> None:
    for places, form in ((None, "g"), (1, ".1f")):
        assert engineering(number, form) == EngFormatter(places=places, sep="")(number)


@pytest.mark.parametrize("exponent", range(-24, 25))
def test_what_rounds_to_a_thousand_has_the_next_prefix_as_in_matplotlib(exponent: int) -> None:
    for digits in (1.0, 1.26, 9.99, 9.995, 9.9995, 9.999949, 9.9999951, -9.99996):
        for places, form in ((None, "g"), (1, ".1f")):
            number = digits * 10.0**exponent
            assert engineering(number, form) == EngFormatter(places=places, sep="")(number)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(None, "unknown"), (math.nan, "unknown"), (0.0, "0.0000"), (0.01, "0.0100"), (4e-5, "4e-5"), (5e-5, "0.0001")],
)
def test_an_error_that_is_unknown_or_small_is_not_zero(error: float | None, expected: str) -> None:
    assert plus_minus(4.5, error) == f"4.5000 ± {expected}"


def test_numbers_are_rounded_to_six_digits_of_their_own_or_of_their_interval_and_to_nine_at_most() -> None:
    assert rounded(2.427662913684521) == 2.42766
    assert rounded(-0.000123456789) == -0.000123457
    assert rounded(285.6052934, width=1234.5) == 285.61
    assert rounded(2.427662913684521, width=0.031) == 2.4276629
    assert rounded(2.427662913684521, width=1e-12) == 2.42766291
    assert (rounded(0.0), rounded(0.0, width=2.0)) == (0.0, 0.0)
    assert str(rounded(-3e-16, width=1e-6)) == str(rounded(-0.0)) == "0.0"
    assert math.isnan(rounded(math.nan))
    assert rounded(math.inf, width=1.0) == math.inf
    assert rounded(2.427662913684521, width=math.nan) == 2.42766


@given(st.floats(1e-12, 1e12), st.floats(-1, 1))
def test_what_processors_differ_by_is_rounded_away_but_at_boundaries(number: float, sign: float) -> None:
    other = number * (1 + 1e-14 * sign)
    apart = abs(rounded(number) - rounded(other))
    assert apart == 0 or abs(number / rounded(number) - 1) > 1e-7, "one of them lies on a boundary"
    assert rounded(rounded(number)) == rounded(number)


def test_nested_values_are_rounded_to_nine_digits_and_whole_numbers_are_left_alone() -> None:
    values = {"flops": 1538973499392.0, "rows": [{"loss": 5.070295678674119, "seeds": 3}], "ends": (0.1234567891234, None, "a")}
    expected = {"flops": 1538973499392.0, "rows": [{"loss": 5.07029568, "seeds": 3}], "ends": [0.123456789, None, "a"]}
    assert rounded_all(values) == expected
