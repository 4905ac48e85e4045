"""Arithmetic over table columns, parsed from untrusted text and never evaluated as Python; and jets, which carry derivatives.

The grammar has numbers, strings, columns, + − * / ** %, log, log2, log10, exp and sqrt, comparisons (also chained, and `in` a
tuple), `and`, `or`, `not` (or & | ~) and brackets. Logic has three values, as in SQL: a comparison with a missing value is
neither true nor false. Names may hold dots (recipe.learning_rate) and blanks (Model Size/1e6); other names need backticks
(`loss-c4`). A jet is a value with its first and second derivatives (forward mode), for which the same arithmetic holds.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from study.base.errors import InputError
from study.base.quantities import read_count
from study.laws.law import Floats

Columns = Callable[[str], "pd.Series[Any]"]
"""Look up a column by name; raises InputError if it does not exist."""

ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.Mod: operator.mod,
}
"""The arithmetic of two operands."""

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda left, right: left.isin(right),
    ast.NotIn: lambda left, right: ~left.isin(right),
}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "exp": np.exp,
    "sqrt": np.sqrt,
}
_LONGEST = 1000

UNCOMPUTABLE = (SyntaxError, ValueError, TypeError, RecursionError, OverflowError, ZeroDivisionError)
"""What a text outside the grammar raises."""


def evaluate(text: str, columns: Columns, place: str, names: Iterable[str] = ()) -> Any:
    """Evaluate an expression to a series, or to a number if it names no column.

    Columns in `names` need no backticks for blanks. Raises InputError at `place` if the text is outside the grammar, names an
    unknown column, or mixes text with numbers.
    """
    known, quoted = list(names), dict[str, str]()

    def stand_in(match: re.Match[str]) -> str:
        if match[0][0] in "'\"":
            return match[0]
        name = f"_column_{len(quoted)}"
        quoted[name] = match[0].strip("`")
        return name

    def result(name: str) -> pd.Series[Any]:
        try:
            return columns(quoted.get(name, name))
        except InputError as error:
            bare = re.sub("`[^`]+`", "", text)
            unmarked = [one for one in known if re.search(r"[^\w. ]", one) and one in bare]
            raise (InputError.at(place, f"{text!r} needs backticks: `{unmarked[0]}`") if unmarked else error) from None

    spaced = sorted((name for name in known if " " in name), key=len, reverse=True)
    pattern = "|".join(["`[^`]+`", "'[^']*'", '"[^"]*"', *map(re.escape, spaced)])

    try:
        tree = parse(re.sub(pattern, stand_in, text.strip()))
        with np.errstate(all="ignore"):
            return _value(tree, result)
    except UNCOMPUTABLE as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        if isinstance(error, SyntaxError) and re.search(r"(?<![<>=!])=(?!=)", text):
            reason += "; equality is written =="
        raise InputError.at(place, f"{text!r} cannot be computed: {reason}") from None


def parse(text: str) -> ast.expr:
    """Parse a text as an expression, without evaluating it; raises one of UNCOMPUTABLE."""
    if len(text) > _LONGEST:
        raise ValueError(f"it is longer than {_LONGEST} characters")
    return ast.parse(text, mode="eval").body


def _value(node: ast.expr, columns: Columns) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return float(node.value) if type(node.value) is int else node.value
        case ast.Name() | ast.Attribute():
            return columns(_dotted(node))
        case ast.Tuple() | ast.List():
            return [_value(part, columns) for part in node.elts]
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, columns)
        case ast.UnaryOp(op=ast.Not() | ast.Invert()):
            return ~_truth(_value(node.operand, columns))
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            return ARITHMETIC[type(node.op)](_number(_value(node.left, columns)), _number(_value(node.right, columns)))
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
            return _joined(isinstance(node.op, ast.BitAnd), [node.left, node.right], columns)
        case ast.BoolOp():
            return _joined(isinstance(node.op, ast.And), node.values, columns)
        case ast.Compare():
            return _compare(node, columns)
        case ast.Call(func=ast.Name(id=name), args=[part], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_number(_value(part, columns)))
    raise ValueError(f"{ast.unparse(node)!r} is not arithmetic or a comparison of columns")


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise ValueError(f"{ast.unparse(node)!r} is not a column")


def _number(value: Any) -> Any:
    if isinstance(value, pd.Series):
        if value.dtype == object or pd.api.types.is_string_dtype(value):
            raise ValueError(f"column {value.name!r} holds text")
        return pd.Series(value.to_numpy(dtype=float, na_value=np.nan), index=value.index, name=value.name)
    if isinstance(value, (bool, int, float)):
        return float(value)
    raise ValueError(f"{value!r} is not a number")


def _joined(all_of: bool, conditions: list[ast.expr], columns: Columns) -> Any:
    return reduce(operator.and_ if all_of else operator.or_, [_truth(_value(each, columns)) for each in conditions])


def _truth(value: Any) -> pd.Series[Any]:
    if isinstance(value, pd.Series) and pd.api.types.is_bool_dtype(value):
        return value.astype("boolean")
    raise ValueError("`and`, `or` and `not` join comparisons, which need brackets beside & and |")


def _compare(node: ast.Compare, columns: Columns) -> Any:
    operands = [_value(part, columns) for part in (node.left, *node.comparators)]
    parts = []
    for left, kind, right in zip(operands, node.ops, operands[1:], strict=False):
        if type(kind) not in _COMPARISONS:
            raise ValueError("`is` does not compare columns")
        left, right = _alike(left, right), _alike(right, left)
        if isinstance(kind, (ast.In, ast.NotIn)) and not (isinstance(left, pd.Series) and isinstance(right, list)):
            raise ValueError("`in` needs a column and a list of values")
        result = _COMPARISONS[type(kind)](left, right)
        known = [one.notna() for one in (left, right) if isinstance(one, pd.Series)]
        parts.append(result.astype("boolean").where(reduce(operator.and_, known)) if known else result)
    return reduce(operator.and_, parts)


def _alike(value: Any, other: Any) -> Any:
    """Return text beside a column of numbers as the number that it stands for, as 70e6 for '70M', which tables are read by."""
    if isinstance(value, list):
        return [_alike(each, other) for each in value]
    of_numbers = isinstance(other, pd.Series) and pd.api.types.is_numeric_dtype(other) and not pd.api.types.is_bool_dtype(other)
    if not isinstance(value, str) or not of_numbers:
        return value
    try:
        return float(value)
    except ValueError:
        with suppress(InputError):
            return read_count("", value)
    return value


LARGEST_EXPONENT = 600.0
"""Exponentials are taken of at most this, so that their squares are finite."""

_NEXT_TO_ZERO = 1e-300
"""Stands for 0 as a base: its powers and their derivatives go to zero, those with negative exponents beyond all bounds."""

Number = float | Floats

KeyT = TypeVar("KeyT")


@dataclass(frozen=True)
class Jet:
    """A value with its derivatives in the parameters that it depends on; absent ones are zero.

    `slopes` has ∂/∂θᵢ by i, `bends` has ∂²/∂θᵢ∂θⱼ by (i, j) with i ≤ j, or is None where slopes are enough. All arrays
    broadcast to B × n. Which entries exist depends on the formula alone: a missing second derivative proves a parameter linear.
    Source: second-order forward mode, Griewank and Walther 2008, Evaluating Derivatives, ch. 13.
    """

    value: Floats
    slopes: Mapping[int, Floats] = field(default_factory=dict)
    bends: Mapping[tuple[int, int], Floats] | None = field(default_factory=dict)

    __array_ufunc__ = None
    """Leaves `array * jet` and the like to the jet."""

    def of(self, value: Floats, slope: Floats, bend: Floats) -> Jet:
        """Return the jet of a function of this value, from its value, derivative and second derivative here."""
        slopes = {index: slope * first for index, first in self.slopes.items()}
        if self.bends is None:
            return Jet(value, slopes, None)
        bends = {pair: slope * second for pair, second in self.bends.items()}
        for one, first in self.slopes.items():
            for other, second in self.slopes.items():
                if one <= other:
                    bends[one, other] = bends.get((one, other), 0.0) + bend * first * second
        return Jet(value, slopes, bends)

    def __neg__(self) -> Jet:
        return self * -1.0

    def __add__(self, other: Jet | Number) -> Jet:
        if not isinstance(other, Jet):
            return Jet(self.value + other, self.slopes, self.bends)
        bends = None if self.bends is None or other.bends is None else _summed(self.bends, other.bends)
        return Jet(self.value + other.value, _summed(self.slopes, other.slopes), bends)

    def __radd__(self, other: Number) -> Jet:
        return self + other

    def __sub__(self, other: Jet | Number) -> Jet:
        return self + -other

    def __rsub__(self, other: Number) -> Jet:
        return -self + other

    def __mul__(self, other: Jet | Number) -> Jet:
        if not isinstance(other, Jet):
            bends = None if self.bends is None else _scaled(self.bends, other)
            return Jet(self.value * other, _scaled(self.slopes, other), bends)
        slopes = _summed(_scaled(self.slopes, other.value), _scaled(other.slopes, self.value))
        if self.bends is None or other.bends is None:
            return Jet(self.value * other.value, slopes, None)
        bends = _summed(_scaled(self.bends, other.value), _scaled(other.bends, self.value))
        for one, left in self.slopes.items():
            for two, right in other.slopes.items():
                pair = (min(one, two), max(one, two))
                bends[pair] = bends.get(pair, 0.0) + left * right * (2.0 if one == two else 1.0)
        return Jet(self.value * other.value, slopes, bends)

    def __rmul__(self, other: Number) -> Jet:
        return self * other

    def __truediv__(self, other: Jet | Number) -> Jet:
        return self * other**-1.0

    def __rtruediv__(self, other: Number) -> Jet:
        return self**-1.0 * other

    def __pow__(self, exponent: Jet | Number) -> Jet:
        if isinstance(exponent, Jet):
            return (exponent * self.log()).exp()
        if isinstance(exponent, float) and exponent == 2.0:
            return self * self
        slope = exponent * self.value ** (exponent - 1.0)
        return self.of(self.value**exponent, slope, exponent * (exponent - 1.0) * self.value ** (exponent - 2.0))

    def __rpow__(self, base: Number) -> Jet:
        return (self * np.log(np.where(base == 0, _NEXT_TO_ZERO, base))).exp()

    def exp(self) -> Jet:
        """Return the exponential."""
        value = exp(self.value)
        return self.of(value, value, value)

    def log(self) -> Jet:
        """Return the natural logarithm."""
        inverse = 1.0 / self.value
        return self.of(np.log(self.value), inverse, -(inverse**2))


def exp(value: Floats) -> Floats:
    """Return the exponential of at most LARGEST_EXPONENT."""
    return np.asarray(np.exp(np.clip(value, -LARGEST_EXPONENT, LARGEST_EXPONENT)))


def _scaled(parts: Mapping[KeyT, Floats], factor: Number) -> dict[KeyT, Floats]:
    return {key: part * factor for key, part in parts.items()}


def _summed(one: Mapping[KeyT, Floats], other: Mapping[KeyT, Floats]) -> dict[KeyT, Floats]:
    summed = dict(one)
    for key, part in other.items():
        summed[key] = summed[key] + part if key in summed else part
    return summed
