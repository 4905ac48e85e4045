"""Read and write quantities with units, such as 10M, 200MB and 10ms."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Protocol

from study.base.errors import InputError, shown

COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15}
"""Prefixes of counts, in steps of a thousand: 16K is 16,000, and B is a billion, as in a 7B model."""

BYTES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
"""Units of memory in bytes; MB is a million, MiB 2²⁰."""

SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
"""Units of time in seconds."""

_PREFIXES = ("q", "r", "y", "z", "a", "f", "p", "n", "µ", "m", "", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q")
"""The SI prefixes by powers of a thousand, from −10 to 10."""

_UP_TO = 1e15
"""Numbers above this get no SI prefix: few readers know P, E and Z."""

_RANGES_UP_TO = 1_000_000_000
"""No range of sizes reaches as far, so that one without an end is refused and not walked."""

RESAMPLES = 400
"""The resamples behind the intervals of a fit, unless others are asked for; ten lie beyond either end of a 95% interval."""

EQUAL_WITHIN = 0.05
"""Sizes are equal if all lie within this share of one size."""

EQUAL_SPAN = (1 + EQUAL_WITHIN) / (1 - EQUAL_WITHIN)
"""The largest ratio of equal sizes."""

DIGITS = 6
"""The number of meaningful digits of a computed number, or of its interval.

Processors differ in the last bits of exponentials, logarithms and sums. That moves a fit by about 1e-13 of its interval, and
other numbers by 1e-15 of themselves. Neighbouring numbers of this many digits are ten million such errors apart, so another
processor writes one or two of ten million numbers differently. No rounding avoids all differences.
"""

DIGITS_OF_ENDS = 3
"""The number of digits, of its width, to which an interval from resamples is known.

Its ends rest on a few of some hundred resamples. Another seed moves them by several percent of the width, and a resample that
hardly determines a parameter ends elsewhere, by up to 1e-4 of its value, on another processor.
"""

MOST_DIGITS = 9
"""The most digits saved of any number that is not whole."""

_NUMBER = re.compile(r"([0-9][0-9_]*(?:,[0-9]{3})*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+) ?([A-Za-zµ]*)")


def read_count(place: str, text: str) -> float:
    """Parse a count, such as 10M; raises InputError at `place`."""
    return _read(place, text, COUNTS, "a count such as 10M, 250k or 1.5e6")


def read_whole(place: str, text: str) -> int:
    """Parse a whole count, such as 16K."""
    number = read_count(place, text)
    if not number.is_integer():
        raise InputError.at(place, f"{shown(text)} is not a whole number")
    return int(number)


def read_bytes(place: str, text: str) -> int:
    """Parse memory in bytes, such as 200MB, with its unit."""
    return round(_read(place, text, BYTES, "an amount of memory with its unit, such as 200MB or 1.5GiB"))


def read_seconds(place: str, text: str) -> float:
    """Parse a time in seconds, such as 10ms, with its unit."""
    return _read(place, text, SECONDS, "a time with its unit, such as 10ms or 0.5s")


def read_range(place: str, text: str) -> range:
    """Parse a range of whole numbers, such as `2:12`, `64:2K` or `3`."""
    first, colon, last = text.partition(":")
    try:
        low = read_whole(place, first)
        high = read_whole(place, last) if colon else low
    except InputError:
        raise InputError.at(place, f"{shown(text)} is not a range of whole numbers above zero; write one as 2:12") from None
    if high >= _RANGES_UP_TO:
        raise InputError.at(place, f"{shown(text)} reaches {_RANGES_UP_TO:,} or more; give a smaller range")
    if low > high:
        raise InputError.at(place, f"{shown(text)} is empty; write the smaller number first, as in 2:12")
    return range(low, high + 1)


def listed(text: str) -> list[str]:
    """Split at commas, without empty parts."""
    return [part.strip() for part in text.split(",") if part.strip()]


def read_whole_numbers(place: str, text: str) -> tuple[int, ...]:
    """Parse distinct positive whole numbers, such as `1,32` or `8K,30522`."""
    try:
        return tuple(dict.fromkeys(read_whole(place, part) for part in text.split(",")))
    except InputError:
        raise InputError.at(place, f"{shown(text)} is not a list of whole numbers above zero; write it as 1,32") from None


def read_shape(place: str, text: str) -> tuple[int, int]:
    """Parse depth and width, such as `2x128`."""
    if not (match := re.fullmatch(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,5})", text)):
        raise InputError.at(place, f"{shown(text)} is not depth x width; write shapes as 2x128,4x256")
    return int(match[1]), int(match[2])


def count_text(number: float) -> str:
    """Return a count with three digits, 10.4M."""
    return in_billions(flops_text(number))


def flops_text(number: float) -> str:
    """FLOPs with three digits, 1.25G."""
    return _written(number, {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}, "")


def in_billions(words: str) -> str:
    """Replace G by B, as for parameters and tokens: 1.25B."""
    return words.replace("G", "B")


def bytes_text(number: float) -> str:
    """Memory with three digits, 203 MB."""
    return _written(number, {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}, " ")


def seconds_text(number: float) -> str:
    """Return a time with three digits, 9.84 ms."""
    return _written(number, {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}, " ")


def _read(place: str, text: str, units: dict[str, float] | dict[str, int], needed: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise InputError.at(place, f"{shown(text)} is not {needed}")
    digits, unit = re.sub("[_,]", "", match[1]), units[match[2]]
    number = float(digits) * unit
    if not 0 < number < float("inf"):
        raise InputError.at(place, f"{shown(text)} must be above zero and finite")
    return float(Decimal(digits) * Decimal(str(unit)))  # exact: 16.1K is 16,100, unlike the product of floats


def _written(number: float, units: dict[str, float], gap: str) -> str:
    unit = max((name for name in units if units[name] <= abs(number)), key=lambda name: units[name], default=next(iter(units)))
    return f"{number / units[unit]:.3g}{gap}{unit}" if abs(number) / units[unit] < 999.5 else _next(number, units, gap, unit)


def _next(number: float, units: dict[str, float], gap: str, unit: str) -> str:
    """Return a number that rounds to a thousand in the next unit."""
    larger = [name for name in units if units[name] > units[unit]]
    return f"{number / units[larger[0]]:.3g}{gap}{larger[0]}" if larger else f"{number / units[unit]:,.0f}{gap}{unit}"


def plural(count: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """Return a readable time: 45 s, 12 min, 3.4 h, 2.1 d."""
    for size, unit in ((86400, "d"), (3600, "h")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def compact(number: float) -> str:
    """Return a count to one decimal, 85.1M for 85,054,464; beyond T 1.0e18."""
    return in_billions(compact_flops(number))


def compact_flops(number: float) -> str:
    """FLOPs as in `compact`, but 1.5G."""
    if abs(number) < 1000 and number == round(number):
        return f"{number:.0f}"
    return engineering(number, ".1f") if abs(number) < _UP_TO else _power(f"{number:.1e}")


def tick(number: float, largest: float) -> str:
    """Return an axis label, 200k or 3T, or 2e14 if the axis ends beyond T."""
    return engineering(number) if largest < _UP_TO else _power(f"{number:.1e}").replace(".0e", "e")


def of_flops(title: str) -> bool:
    """Whether an axis shows FLOPs, which keep SI prefixes."""
    return "flop" in title.lower() or "6·N·D" in title


def _power(words: str) -> str:
    return re.sub(r"e\+0*", "e", words)


class UnitAmount(Protocol):
    """An amount of a unit."""

    @property
    def amount(self) -> float:
        """The number of units."""

    @property
    def unit(self) -> str:
        """The unit in words."""


def budget_words(budget: UnitAmount) -> str:
    """Return a budget with all digits: 1.25M tokens, 12.25 tokens per parameter, 3e15 FLOPs."""
    words = _exact(budget.amount)
    return f"{words if of_flops(budget.unit) else in_billions(words)} {budget.unit}"


def _exact(number: float) -> str:
    """All digits, with an SI prefix from 1,000 to T if there are at most six."""
    few = 1000 <= number < _UP_TO and number == float(f"{number:.6g}")  # the digits that engineering writes
    return engineering(number) if few else _power(f"{number:,.15g}")


def span(low: float, high: float) -> str:
    """`1.0M to 2.0M`, or `1.0M` if both round to it."""
    return compact(low) if compact(low) == compact(high) else f"{compact(low)} to {compact(high)}"


def signed(nats: float) -> str:
    """Return a signed difference in nats, to four decimals."""
    return f"{nats:+.4f}"


def plus_minus(value: float, error: float | None, digits: int = 4, form: str = "") -> str:
    """Return a value with its error, None or NaN if unknown."""
    return f"{value:{form}.{digits}f} ± {error_text(error, digits)}"


def error_text(error: float | None, digits: int = 4) -> str:
    """Return an error to `digits` decimals, or as 4e-5 where these would show a zero."""
    if error is None or math.isnan(error):
        return "unknown"
    return f"{error:.0e}".replace("e-0", "e-") if 0 < error < 0.5 * 10**-digits else f"{error:.{digits}f}"


def engineering(number: float, form: str = "g") -> str:
    """Return a number as matplotlib's EngFormatter writes it, 12.5k or 300µ."""
    power = min(max(math.floor(math.log10(abs(number)) / 3), -10), 10) if number else 0
    digits = (number or 0.0) / 10.0 ** (3 * power)
    if abs(float(f"{digits:{form}}")) >= 1000 and power < 10:
        digits, power = digits / 1000, power + 1
    return f"{digits:{form}}{_PREFIXES[power + 10]}".replace("-", "−")


def rounded(number: float, width: float = 0.0, digits: int = DIGITS) -> float:
    """Round to `digits` digits of the number, or of its interval's `width`, at most MOST_DIGITS; −0.0 becomes 0.0."""
    scale = max(width, abs(number) * 10.0 ** (digits - MOST_DIGITS)) if width > 0 else abs(number)
    if not math.isfinite(number) or not math.isfinite(scale) or scale == 0:
        return number + 0.0
    return round(number, digits - 1 - math.floor(math.log10(scale))) + 0.0


def rounded_ends(low: float, high: float) -> list[float]:
    """Round the ends of an interval from resamples to the digits that they know; see DIGITS_OF_ENDS."""
    return [rounded(end, high - low, DIGITS_OF_ENDS) for end in (low, high)]


def rounded_all(values: Any, digits: int = MOST_DIGITS) -> Any:
    """Round all fractional numbers in nested lists and mappings."""
    if isinstance(values, float):
        return values if values.is_integer() else rounded(values, digits=digits)
    if isinstance(values, Mapping):
        return {name: rounded_all(value, digits) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [rounded_all(value, digits) for value in values]
    return values
