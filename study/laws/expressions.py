"""Arithmetic over table columns, parsed from untrusted text and never evaluated as Python.

The grammar has numbers, strings, columns, + − * / ** %, log, log2, log10, exp and sqrt, comparisons (also chained, and `in` a
tuple), `and`, `or`, `not` (or & | ~) and brackets. Logic has three values, as in SQL: a comparison with a missing value is
neither true nor false. Names may hold dots (recipe.learning_rate) and blanks (Model Size/1e6); other names need backticks
(`loss-c4`).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from study.base.errors import InputError

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
        if isinstance(kind, (ast.In, ast.NotIn)) and not (isinstance(left, pd.Series) and isinstance(right, list)):
            raise ValueError("`in` needs a column and a list of values")
        result = _COMPARISONS[type(kind)](left, right)
        known = [one.notna() for one in (left, right) if isinstance(one, pd.Series)]
        parts.append(result.astype("boolean").where(reduce(operator.and_, known)) if known else result)
    return reduce(operator.and_, parts)
