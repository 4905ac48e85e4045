"""Column roles by name, and checks of units."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.base.errors import Problem, option_name

SYMBOLS = {
    "N": "parameters",
    "D": "tokens",
    "F": "flops",
    "C": "flops",
    "L": "loss",
    "U": "unique_tokens",
}
"""The role of each symbol in an expression such as C/(6*N), unless a column has that name."""

SYNONYMS = {
    "parameters": "parameters params nparams nparameters numparams numparameters paramcount modelsize totalparams "
    "totalparameters n",
    "tokens": "tokens ntokens numtokens traintokens trainingtokens tokensseen totaltokens d",
    "flops": "flops flop trainflops trainflop trainingflops trainingflop totalflops compute c",
    "loss": "loss lossnats finalloss valloss validationloss evalloss testloss lmloss",
    "depth": "depth layers nlayers numlayers",
    "width": "width hidden hiddensize dmodel",
    "heads": "heads nheads numheads attentionheads",
    "ffn": "ffn ffnsize dff intermediatesize",
    "unique_tokens": "uniquetokens",
    "error": "error",
    "score": "score accuracy acc",
    "learning_rate": "learningrate lr peaklr maxlr",
    "batch": "batch batchsize bsz globalbatchsize",
    "vocabulary": "vocabulary vocab vocabsize vocabularysize",
    "run": "run runid runname",
}
"""Normalised column names of each role."""

_UNITS = {"k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "b": 1e9, "g": 1e9, "billion": 1e9, "t": 1e12, "trillion": 1e12}

SHOWN = 5
"""The number of rows listed in a message."""

_SMALLEST = {"parameters": 5e4, "tokens": 5e5, "flops": 1e12, "unique_tokens": 5e5}
_UNIT_APART = 100.0
_LARGEST = 1e100
_SHARES = ("score", "error")
_UNIT_OF = {"loss": "nats", "parameters": "parameters", "tokens": "tokens", "unique_tokens": "tokens", "flops": "flops"}
_PERCENT = 100.0
_LARGEST_LOSS = 13.0
_SIZES = ("parameters", "tokens", "flops")
_FEWEST_TOKENS_A_PARAMETER = 0.1
_SURELY = 5.0
_BITS_PER_BYTE = 1.3
_CLOSE = 1e-3
_LN2 = float(np.log(2))


_OF_LOSSES = re.compile(r"loss|nll|bpb|bpc|bits?per(byte|char|token)|crossentropy")


def plain(name: str) -> str:
    """Normalise a name to lower-case letters and digits, without its final bracket."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"[(\[].*$", "", name).lower())


def find_columns(role: str, names: Iterable[str]) -> list[str]:
    """Find columns for a role: the one with its name or symbol, else all synonyms, else for a loss all that are named like one.

    A role that is no known one is a column's own name.
    """
    symbols = [symbol for symbol, meant in SYMBOLS.items() if meant == role]
    known = list(names)
    exact = [name for name in (role, *symbols) if name in known]
    matches = exact[:1] or [name for name in known if plain(name) in SYNONYMS.get(role, "").split()]
    return matches if matches or role != "loss" else [name for name in known if _OF_LOSSES.search(plain(name))]


def unit_in(name: str) -> float | None:
    """Return the unit factor in a column name, as in `Model Size (B)` or `tokens_millions`, or None."""
    words = re.findall(r"[a-z]+", name.lower())
    bracket = re.search(r"[(\[]\s*([A-Za-z]+)[^)\]]*[)\]]\s*$", name)
    last = bracket[1].lower() if bracket else (words[-1] if len(words) > 1 else "")
    return _UNITS.get(last, _UNITS.get(last.removesuffix("s")))


@dataclass(frozen=True)
class Values:
    """A role's values in the rows in use, with source column and row numbers from 1."""

    role: str
    name: str
    values: NDArray[np.float64]
    rows: NDArray[np.int64]

    def shown(self, which: NDArray[np.bool_]) -> str:
        """Return the first selected rows and their values as text."""
        rows = [f"row {row} ({value:.6g})" for row, value in zip(self.rows[which], self.values[which], strict=True)]
        return ", ".join(rows[:SHOWN]) + (f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else "")


def not_positive(column: Values, signed: Collection[str] = (), remedy: str = "") -> list[Problem]:
    """Reject sizes and losses without a logarithm; scores, error rates, columns of no known role and `signed` ones may be zero.

    A `remedy` is one more way out.
    """
    bad = column.values <= 0
    if column.role in (*_SHARES, *signed) or column.role not in (*SYNONYMS, "budget") or not bad.any():
        return []
    ways = ["correct these rows", "leave them out with --where", *([remedy] if remedy else [])]
    message = f"must be positive, but is not in {column.shown(bad)}; {', '.join(ways[:-1])} or {ways[-1]}"
    return [Problem(_label(column), message)]


def beyond_arithmetic(column: Values) -> list[Problem]:
    """Reject numbers too large or small for the product of two to have a logarithm."""
    size = np.abs(column.values)
    beyond = (size > _LARGEST) | ((size > 0) & (size < 1 / _LARGEST))
    if not beyond.any():
        return []
    range_ = f"between {1 / _LARGEST:g} and {_LARGEST:g}"
    message = f"must be {range_}, but is not in {column.shown(beyond)}; correct these rows or leave them out with --where"
    return [Problem(_label(column), message)]


def odd_counts(column: Values) -> list[Problem]:
    """Reject values too small to be counts; among larger ones, only where another unit may have made them so."""
    if (smallest := _SMALLEST.get(column.role)) is None:
        return []
    median = float(np.median(column.values))
    mixed = median >= smallest
    small = column.values < (min(smallest, median / _UNIT_APART) if mixed else smallest)
    if not small.any():
        return []
    if mixed:
        message = f"is too small to be a count in {column.shown(small)}, while the median is {median:.6g}: in different units?"
        return [Problem(_label(column), f"{message} Correct these rows, leave them out with --where, or give --any-units")]
    factors = [unit] if (unit := unit_in(column.name)) else [1e6, 1e9]
    name = column.name if "`" in column.name else f"`{column.name}`"
    option = option_name(column.role)
    ways = " or ".join(f"{option} '1e{np.log10(factor):.0f}*{name}'" for factor in factors)
    first = np.arange(len(small)) == np.argmax(small)
    message = (
        f"is too small to be a count, as in {column.shown(first)}, with a median of {median:.6g}: in millions or billions?"
    )
    return [Problem(_label(column), f"{message} Then give {ways}; if it is right, --any-units")]


def odd_losses(column: Values, table: pd.DataFrame) -> list[Problem]:
    """Reject losses that are perplexities or bits by size or another column; `table` holds the same rows."""
    if column.role != "loss":
        return []
    large = column.values > _LARGEST_LOSS
    if large.any():
        advice = "a perplexity, not nats? Correct these rows, leave them out with --where, or give --any-units"
        return [Problem(_label(column), f"is too large in {column.shown(large)}: {advice}")]
    with np.errstate(all="ignore"):
        logarithms = np.log(column.values)
    for name, other in _numeric(table):
        if _same(other, logarithms):
            said = f"is a perplexity: {name} is its logarithm, as in row {column.rows[0]}"
            return [Problem(_label(column), f"{said}; give --loss '{_quoted(name)}'")]
        if _same(other, 2.0**column.values):
            said = f"is in bits: {name} is 2 to its power, as in row {column.rows[0]}"
            return [Problem(_label(column), f"{said}; for nats give --loss '0.693147*`{column.name}`', for bits --any-units")]
        if _same(other, column.values * _LN2):
            said = f"is in bits: {name} is 0.6931 times it, as in row {column.rows[0]}"
            return [Problem(_label(column), f"{said}; for nats give --loss '{name}', for bits --any-units")]
    return []


def perplexities(column: Values) -> list[Problem]:
    """Reject a loss column named perplexity, even if its values are low."""
    if column.role != "loss" or not re.search(r"ppl|perp", column.name.lower()) or "log" in column.name.lower():
        return []
    return [
        Problem(_label(column), f"is a perplexity by its name: give --loss 'log({_quoted(column.name)})'; if not, --any-units")
    ]


def odd_units(column: Values, unit: str | None) -> list[Problem]:
    """Reject cells with a unit that their role is not read in; `unit` is None where they carry none."""
    usual = _UNIT_OF.get(column.role)
    if unit is None or usual is None or unit == usual:
        return []
    remedy = "name another column, or give --any-units"
    if column.role == "loss" and unit == "perplexity":
        remedy = f"give --loss 'log({_quoted(column.name)})'"
    elif column.role == "loss" and unit.startswith("bits"):
        remedy = f"for nats give --loss '0.693147*{_quoted(column.name)}', for bits --any-units"
    return [Problem(_label(column), f"is in {unit} by its cells, not in {usual}; {remedy}")]


def swapped_names(column: Mapping[str, str]) -> list[Problem]:
    """Reject parameters from a column named like tokens, and the reverse."""
    pairs = [(role, other) for role, other in (("parameters", "tokens"), ("tokens", "parameters")) if role in column]
    return [
        Problem(option_name(role), f"{column[role]!r} is named like {other}: are the two swapped? If not, --any-units")
        for role, other in pairs
        if find_columns(other, [column[role]]) and not find_columns(role, [column[role]])
    ]


def swapped_sizes(variables: Mapping[str, NDArray[np.float64]]) -> list[str]:
    """Why parameters and tokens appear swapped: nine in ten models have fewer tokens than parameters, most far fewer."""
    if not {"parameters", "tokens"} <= set(variables):
        return []
    shares = variables["tokens"] / variables["parameters"]
    if not len(shares) or (shares < 1).mean() < 0.9 or np.median(shares) >= _FEWEST_TOKENS_A_PARAMETER:
        return []
    return [f"models have fewer tokens than parameters ({np.median(shares):.2g} a parameter): are the two swapped?"]


def rising_response(
    role: str, name: str, response: NDArray[np.float64], variables: Mapping[str, NDArray[np.float64]]
) -> list[Problem]:
    """Reject a loss that rises, or a score that falls, with every size, by least squares in logarithms."""
    if len(response) < len(variables) + 4:
        return []
    positive = {each: values for each, values in variables.items() if each in _SIZES and (values > 0).all()}
    sizes = {each: np.log(values) for each, values in positive.items() if np.ptp(values) > 0}
    if not sizes or len(sizes) < len(variables) or np.ptp(response) == 0:
        return []
    design = np.column_stack([np.ones_like(response), *((each - each.mean()) / each.std() for each in sizes.values())])
    slopes, *_ = np.linalg.lstsq(design, response, rcond=None)
    left = response - design @ slopes
    spread = np.linalg.pinv(design.T @ design).diagonal() * (left @ left) / (len(response) - design.shape[1])
    worse = -slopes if role == "score" else slopes
    if not (worse[1:] > _SURELY * np.sqrt(spread[1:]) + 1e-9 * np.abs(response).max()).all():
        return []
    way, other = ("falls", "a loss") if role == "score" else ("rises", "a score, or is its sign reversed")
    label = role if name == role else f"{role} ({name})"
    return [Problem(label, f"{way} with {' and with '.join(sizes)}: is it {other}? If it is right, --any-units")]


def odd_shares(column: Values, table: pd.DataFrame) -> list[Problem]:
    """Reject scores and errors outside 0 to 1, such as percentages; `table` holds the source columns."""
    if column.role not in _SHARES:
        return []
    outside = (column.values < 0) | (column.values > 1)
    if not outside.any():
        return []
    message = f"must be from 0 to 1, but is not in {column.shown(outside)}"
    if np.median(column.values) <= 1 or column.values.min() < 0 or column.values.max() > _PERCENT:
        return [Problem(_label(column), f"{message}; correct these rows, leave them out with --where, or give --any-units")]
    named = column.name if column.name.isidentifier() else f"`{column.name}`"
    part = named if column.name in table.columns else f"({column.name})"
    return [Problem(_label(column), f"{message}: in percent? Then give --{column.role} '{part}/100'; if not, --any-units")]


def loss_warnings(column: Values) -> list[str]:
    """Warnings about the unit of a loss."""
    if column.role != "loss":
        return []
    base = re.search(r"bit|bpb|bpc|log_?(?:2|10)", column.name.lower())
    if base is not None and "*" not in column.name:
        unit, nats = ("decimal logarithms", "2.3026") if base[0].endswith("10") else ("bits", "0.6931")
        return [f"{column.name} looks like {unit}: E, A and B are then in {unit} too (nats are {unit} · {nats})"]
    if 0 < np.median(column.values) < _BITS_PER_BYTE:
        median = f"{column.name} has a median of {np.median(column.values):.3g}"
        return [f"{median}, as low as bits per byte: E, A and B are in its unit, whichever it is"]
    return []


def _quoted(name: str) -> str:
    return name if name.isidentifier() or "`" in name else f"`{name}`"


def _label(column: Values) -> str:
    return column.role if column.name == column.role else f"{column.role} ({column.name})"


def _numeric(table: pd.DataFrame) -> Sequence[tuple[str, NDArray[np.float64]]]:
    numbers = table.select_dtypes("number").items()
    return [(str(name), column.to_numpy(dtype=float, na_value=np.nan)) for name, column in numbers]


def _same(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Whether columns are finite, equal up to rounding and not constant."""
    return (
        len(one) > 2
        and bool(np.isfinite(other).all() and np.ptp(other) > 0)
        and bool(np.allclose(one, other, rtol=_CLOSE, atol=0))
    )
