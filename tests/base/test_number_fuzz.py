"""Whatever text stands where a number is needed, it is read as what it spells, or refused on a line."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from study.base.quantities import (
    compact,
    count_text,
    engineering,
    read_bytes,
    read_count,
    read_range,
    read_seconds,
    read_shape,
    read_whole,
    read_whole_numbers,
)
from study.base.schema import number_in
from tests.malice import outcome

pytestmark = pytest.mark.fuzz

READERS: tuple[Callable[[str, str], Any], ...] = (
    *(read_bytes, read_count, read_range, read_seconds, read_shape, read_whole, read_whole_numbers),
)

PIECES = st.sampled_from(
    [
        *("0123456789.,_:x+-eE \t\n\0%٣１²½−\u00a0"),
        *("10", "1e", "1e400", "1e-400", "nan", "inf", "0x1f", "9" * 400, "0" * 5000),
        *("k", "K", "M", "G", "T", "B", "MB", "MiB", "ms", "µs", "us", "min", "h"),
    ]
)
TEXTS = st.lists(PIECES, max_size=6).map("".join) | st.text(max_size=10)


@given(TEXTS)
@example("1" * 5000)
@example("1e999999999999")
@example("0." + "0" * 400 + "1")
def test_a_number_is_read_or_refused(text: str) -> None:
    for read in READERS:
        value, problems = outcome(partial(read, "--option", text))
        assert [problem.place for problem in problems] == ["--option"] * (value is None)
        if isinstance(value, float):
            assert 0 < value < math.inf, read
        elif isinstance(value, int):
            assert value >= (read is read_whole), read
    if isinstance(number := number_in(text), int | float):
        assert math.isfinite(number)


@given(st.floats(1e-20, 1e20, allow_nan=False) | st.integers(1, 10**18))
def test_a_number_that_is_written_is_read_back(number: float) -> None:
    """To the digits that are written."""
    assert read_count("", count_text(number).replace("e+", "e")) == pytest.approx(number, rel=6e-3)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_can_be_written(number: float) -> None:
    assert all(write(number).isprintable() for write in (compact, count_text, engineering))
