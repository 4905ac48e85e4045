"""Laws written as formulas, such as `E + A*N**-alpha + B*D**-beta`; the text is parsed, never run as Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeGuard, get_args

import numpy as np
from scipy.optimize import lsq_linear
from scipy.stats import qmc

from study.base.errors import InputError, nearest
from study.base.text import joined
from study.laws.columns import SYMBOLS, SYNONYMS, plain
from study.laws.expressions import ARITHMETIC, UNCOMPUTABLE, parse
from study.laws.jets import Jet, exp
from study.laws.law import STEEPEST, Columns, CurvedSurface, Floats, Law, Pairs

Predicted = Literal["loss", "score", "error"]

Range = tuple[float, float]

_ASCII = {"·": "*", "×": "*", "−": "-", "–": "-", "^": "**"}
_SPREADS = (0.05, 5.0)
_LEAST = 1e-3
_FUNCTIONS: dict[str, Any] = {
    "exp": lambda value: value.exp() if isinstance(value, Jet) else exp(value),
    "log": lambda value: value.log() if isinstance(value, Jet) else np.log(value),
    "sqrt": lambda value: value**0.5,
}


def is_formula(text: str) -> bool:
    """Whether a text is a formula and not a name."""
    return bool(re.search(r"[*+(^·]", text))


def read_formula(text: str, place: str) -> FormulaLaw:
    """Read a law of one's own: `[loss =] FORMULA [; NAME in LOW..HIGH] …`; line breaks separate like semicolons.

    N, D, F or C, L and U are parameters, tokens, FLOPs, loss and unique tokens; depth, width, learning_rate and other roles go
    by their names; every other name is a parameter to be fitted. Raises InputError at `place` for text outside the grammar, and
    for a formula without variables or parameters.
    """
    first, *rest = [part.strip() for line in text.splitlines() for part in line.partition("#")[0].split(";") if part.strip()]
    response, equals, formula = first.rpartition("=")
    named = SYMBOLS.get(response.strip(), response.strip()) if equals else "loss"
    predicts: Predicted | None = next((one for one in get_args(Predicted) if one == named), None)
    if predicts is None:
        raise InputError.at(place, f"{response.strip()!r} is not what a law predicts; write loss, score or error before the =")
    own = "; ".join([first, *rest])
    law = FormulaLaw(own, formula.strip(), "As in the caller's formula and columns.", "The caller's own", predicts)
    problems = law.refusals(place)
    ranges = dict(_range(part, law, place) for part in rest) if not problems else {}
    if problems:
        raise InputError.at(place, f"{formula.strip()!r} {problems}")
    return FormulaLaw(own, law.formula, law.conventions, law.source, predicts, tuple(ranges.items()))


def _range(text: str, law: FormulaLaw, place: str) -> tuple[str, Range]:
    number = r"(-?[0-9.]+(?:e[+-]?[0-9]+)?)"
    match = re.fullmatch(rf"(\w+) in {number}\.\.{number}", text)
    low, high = (float(match[2]), float(match[3])) if match else (0.0, 0.0)
    if match is None or not low < high:
        raise InputError.at(place, f"{text!r} is not a range; write one as alpha in 0..2")
    if match[1] not in law.parameters:
        raise InputError.at(place, f"{match[1]!r} is not a parameter of the formula; {nearest(match[1], [*law.parameters])}")
    return match[1], (low, high)


@dataclass(frozen=True)
class FormulaLaw(Law):
    """A law whose formula is text; `ranges` bound parameters, others are positive, and exponents at most STEEPEST.

    A parameter that multiplies a power and stands nowhere else, as A in A·N^−alpha, is a coefficient: it is fitted, and its
    range holds, at the geometric mean of N, where it has the size of its term. This makes the fit as well conditioned as that
    of a sum of powers.
    """

    ranges: tuple[tuple[str, Range], ...] = ()

    @cached_property
    def tree(self) -> ast.expr:
        """The parsed formula."""
        text = self.formula
        for sign, plain_sign in _ASCII.items():
            text = text.replace(sign, plain_sign)
        return parse(text.strip())

    def refusals(self, place: str) -> str:
        """Why the formula cannot be a law; empty if it can."""
        try:
            names = [*_names(self.tree)]
        except UNCOMPUTABLE as error:
            return f"cannot be read: {error.msg if isinstance(error, SyntaxError) else error}"
        if not self.variables:
            return f"names no variable ({', '.join(SYMBOLS)}, depth, width, …), only {joined(sorted(set(names)))}"
        return "" if self.parameters else "has no parameter to fit"

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The input columns, in the order of the formula."""
        return tuple(dict.fromkeys(role for name in _names(self.tree) if (role := role_of(name))))

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names that are no variable, in the order of the formula."""
        return tuple(dict.fromkeys(name for name in _names(self.tree) if role_of(name) is None))

    @cached_property
    def powers(self) -> tuple[Power, ...]:
        """Every power whose exponent has a parameter."""
        return tuple(_powers(self.tree))

    @cached_property
    def exponents(self) -> tuple[str, ...]:
        """The parameters in exponents."""
        inside = {name for power in self.powers for name in _names(power.node.right) if role_of(name) is None}
        return tuple(name for name in self.parameters if name in inside)

    @property
    def watched(self) -> tuple[str, ...]:
        """The exponents whose sign is known."""
        return tuple(name for name in self.exponents if self.limits[name][0] >= 0)

    @cached_property
    def coefficients(self) -> Mapping[str, tuple[Power, ...]]:
        """The powers that each coefficient multiplies."""
        every, found = [*_names(self.tree)], {}
        for factors in _products(self.tree):
            names = [one.node.id for one in factors if isinstance(one.node, ast.Name) and role_of(one.node.id) is None]
            powers = [Power(one.node, one.sign) for one in factors if isinstance(one.node, ast.BinOp)]
            scaled = tuple(power for power in powers if power.scalable)
            if len(names) == 1 and scaled and every.count(names[0]) == 1:
                found[names[0]] = scaled
        return found

    @cached_property
    def limits(self) -> Mapping[str, Range]:
        """The lowest and highest value of each parameter."""
        usual = {name: (0.0, STEEPEST if name in self.exponents else np.inf) for name in self.parameters}
        return usual | dict(self.ranges)

    @cached_property
    def linear(self) -> tuple[int, ...]:
        """Indices of parameters in which the formula is linear together, given the others."""
        point = {name: np.full(1, 1.5 + 0.1 * index) for index, name in enumerate(self.variables)}
        bends = self.at(point).jet(np.full((1, len(self.parameters)), 0.7)).bends or {}
        chosen: list[int] = []
        for index in range(len(self.parameters)):
            if not any((min(index, other), max(index, other)) in bends for other in (*chosen, index)):
                chosen.append(index)
        return tuple(chosen)

    def fewest_values(self, variable: str) -> int:
        """Three for a variable in one power beside a constant, because any constant fits two; else two."""
        users = [power for power in self.powers if variable in map(role_of, _names(power.node.left))]
        floor = any(isinstance(one, ast.Name) and role_of(one.id) is None for one in _summands(self.tree))
        return 3 if floor and len(users) == 1 else 2

    def at(self, columns: Columns) -> _FormulaSurface:
        """The law at the rows of a table."""
        return _FormulaSurface(self, columns)

    def values(self, parameters: Floats, columns: Columns) -> Floats:
        """Evaluate parameters B × p at all rows, B × n."""
        named = {name: parameters[:, index, None] for index, name in enumerate(self.parameters)}
        rows = len(next(iter(columns.values())))
        with np.errstate(all="ignore"):
            return np.asarray(np.broadcast_to(_evaluate(self.tree, columns, named, {}), (len(parameters), rows)))


@dataclass(frozen=True)
class Power:
    """base^exponent in a product; `sign` is −1 below a fraction line."""

    node: ast.BinOp
    sign: int = 1

    @property
    def scalable(self) -> bool:
        """Whether the base has a variable and the exponent only parameters and numbers."""
        return (
            isinstance(self.node.op, ast.Pow)
            and any(role_of(name) for name in _names(self.node.left))
            and not any(role_of(name) for name in _names(self.node.right))
            and any(True for _ in _names(self.node.right))
        )


@dataclass(frozen=True)
class _Factor:
    """A factor of a product; `sign` is −1 below the fraction line."""

    node: ast.expr
    sign: int


class _FormulaSurface(CurvedSurface):
    """θ has the parameters in order: coefficients at the geometric means of their variables, shifts of a variable in units of
    its geometric mean.
    """

    of_rows = ("columns",)

    def __init__(self, law: FormulaLaw, columns: Columns) -> None:
        self.law = law
        self.columns = {name: np.asarray(columns[name], dtype=float) for name in law.variables}
        self.units = np.array([self._unit(name) for name in law.parameters])
        scaled = [power.node for powers in law.coefficients.values() for power in powers]
        self.scales = {id(node): self._scale(node.left) for node in scaled}

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values())))

    def _unit(self, name: str) -> float:
        """The geometric mean of the variable that a parameter is added to, as B in F + B; else 1."""
        variable = _added_to(self.law.tree, name)
        return 1.0 if variable is None else float(np.exp(np.mean(np.log(self.columns[variable]))))

    def _scale(self, base: ast.expr) -> float:
        """The geometric mean of a base whose parameters are 1."""
        with np.errstate(all="ignore"):
            middle = np.exp(np.mean(np.log(self._base(base))))
        return float(middle) if np.isfinite(middle) and middle > 0 else 1.0

    def _base(self, base: ast.expr) -> Floats:
        ones = dict.fromkeys(self.law.parameters, np.ones((1, 1)))
        return np.asarray(np.broadcast_to(_evaluate(base, self.columns, ones, {}), (1, self.rows)))

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        low, high = np.array([self.law.limits[name] for name in self.law.parameters]).T / self.units
        return low, high

    def jet(self, theta: Floats, twice: bool = True) -> Jet:
        """The law with its derivatives, or its first ones alone."""
        named = self._named(theta, twice)
        with np.errstate(all="ignore"):
            result: Jet = _evaluate(self.law.tree, self.columns, named, self.scales)
        return result

    def _named(self, theta: Floats, twice: bool = True) -> dict[str, Jet]:
        """The parameters at θ, B × 1, with their derivatives in it."""
        units = zip(self.law.parameters, self.units, strict=True)
        return {
            name: Jet(theta[:, index, None] * unit, {index: np.full((len(theta), 1), unit)}, {} if twice else None)
            for index, (name, unit) in enumerate(units)
        }

    def value(self, theta: Floats) -> Floats:
        named = {name: jet.value for name, jet in self._named(theta).items()}
        with np.errstate(all="ignore"):
            result = _evaluate(self.law.tree, self.columns, named, self.scales)
        return np.asarray(np.broadcast_to(result, (len(theta), self.rows)))

    def expand(self, theta: Floats) -> tuple[Floats, Floats, Pairs]:
        jet, shape = self.jet(theta), (len(theta), self.rows)
        bends = {pair: np.broadcast_to(bend, shape) for pair, bend in (jet.bends or {}).items()}
        return *self._slopes(jet, theta), bends

    def gradients(self, theta: Floats) -> tuple[Floats, Floats]:
        return self._slopes(self.jet(theta, twice=False), theta)

    def _slopes(self, jet: Jet, theta: Floats) -> tuple[Floats, Floats]:
        shape = len(theta), self.rows
        gradients = np.zeros((*shape, theta.shape[1]))
        for index, slope in jet.slopes.items():
            gradients[:, :, index] = slope
        return np.asarray(np.broadcast_to(jet.value, shape)), gradients

    def natural(self, theta: Floats) -> Floats:
        result = np.asarray(theta * self.units)
        for name, jet in self._natural_jets(theta).items():
            result[:, self.law.parameters.index(name)] = np.broadcast_to(jet.value, (len(theta), 1))[:, 0]
        return result

    def natural_slopes(self, theta: Floats) -> Floats:
        slopes = np.diag(self.units)
        for name, jet in self._natural_jets(theta[None]).items():
            for index, slope in jet.slopes.items():
                slopes[self.law.parameters.index(name), index] = float(np.broadcast_to(slope, (1, 1))[0, 0])
        return slopes

    def _natural_jets(self, theta: Floats) -> dict[str, Jet]:
        """Each coefficient as in the formula, from its value at the geometric means."""
        named, result = self._named(theta), {}
        with np.errstate(all="ignore"):
            for name, powers in self.law.coefficients.items():
                logarithm = sum(
                    (_evaluate(power.node.right, {}, named, {}) * (-power.sign * np.log(self.scales[id(power.node)])))
                    for power in powers
                )
                result[name] = named[name] * logarithm.exp()
        return result

    def starts(self, response: Floats, count: int) -> Floats:
        """Sobol points of the parameters that are not linear, each with the best linear ones (variable projection).

        Exponents change their power e^0.05 to e^5 times over a standard deviation of its base; parameters with a range lie in
        it; others are around the size of the response. Source: Golub and Pereyra 1973.
        """
        law = self.law
        free = [index for index in range(len(law.parameters)) if index not in law.linear]
        theta = np.ones((count if free else 1, len(law.parameters)))
        if free:
            steps = 1 << max(0, count - 1).bit_length()
            units = qmc.Sobol(len(free), seed=0).random(steps)[:count]
            theta[:, free] = np.column_stack(
                [self._spread(index, unit, response) for index, unit in zip(free, units.T, strict=True)]
            )
        return self._projected(theta, response) if law.linear else theta

    def _spread(self, index: int, unit: Floats, response: Floats) -> Floats:
        name = self.law.parameters[index]
        low, high = (float(bound[index]) for bound in self.bounds)
        if name in dict(self.law.ranges):
            return np.asarray(low * (high / low) ** unit if low > 0 else low + (high - low) * unit)
        if name in self.law.exponents:
            power = next(power for power in self.law.powers if name in _names(power.node.right))
            with np.errstate(all="ignore"):
                spread = float(np.std(np.log(np.abs(self._base(power.node.left)))))
            first, last = _SPREADS
            return np.clip(
                first * (last / first) ** unit / (spread if np.isfinite(spread) and spread > 0 else 1.0), _LEAST, 0.9 * high
            )
        if (variable := _added_to(self.law.tree, name)) is not None:
            low, high = self.columns[variable].min(), self.columns[variable].max()
            return np.asarray(low * (high / low) ** unit / self.units[index])
        size = float(np.median(np.abs(response))) if name in self.law.coefficients else 1.0
        return np.asarray(size * 10 ** (2 * unit - 1))

    def _projected(self, theta: Floats, response: Floats) -> Floats:
        linear = [*self.law.linear]
        theta[:, linear] = 1.0
        value, gradients = self.gradients(theta)
        low, high = (bound[linear] for bound in self.bounds)
        least = _LEAST * float(np.median(np.abs(response)))
        for row, (whole, basis) in enumerate(zip(value, gradients[:, :, linear], strict=True)):
            left = response - whole + basis.sum(axis=1)
            if np.isfinite(basis).all() and np.isfinite(left).all():
                best = lsq_linear(basis / np.abs(response)[:, None], left / np.abs(response), bounds=(low, high)).x
                theta[row, linear] = np.clip(np.where(low == 0, np.maximum(best, least), best), low, high)
        return theta


def role_of(name: str) -> str | None:
    """The variable that a name of a formula stands for, None for a parameter."""
    if name in SYMBOLS:
        return SYMBOLS[name]
    roles = (role for role, words in SYNONYMS.items() if role != "run" and len(name) > 1 and plain(name) in words.split())
    return name if name in SYNONYMS and name != "run" else next(roles, None)


def _evaluate(node: ast.expr, columns: Columns, named: Mapping[str, Any], scales: Mapping[int, float]) -> Any:
    """The value of a parsed formula, as arrays or jets; a base named in `scales` is divided by its scale."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Name():
            role = role_of(node.id)
            return named[node.id] if role is None else columns[role]
        case ast.UnaryOp(op=ast.USub()):
            return -_evaluate(node.operand, columns, named, scales)
        case ast.BinOp() if type(node.op) in ARITHMETIC and not isinstance(node.op, ast.Mod):
            left, right = (_evaluate(part, columns, named, scales) for part in (node.left, node.right))
            if id(node) in scales:
                left = left / scales[id(node)]
            return ARITHMETIC[type(node.op)](left, right)
        case ast.Call(func=ast.Name(id=name), args=[part], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_evaluate(part, columns, named, scales))
    raise ValueError(f"{ast.unparse(node)!r} is not arithmetic of names and numbers with {joined([*_FUNCTIONS])}")


def _names(node: ast.expr) -> Iterator[str]:
    """The names in a formula, in its order; raises ValueError for anything outside the grammar."""
    match node:
        case ast.Name():
            yield node.id
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return
        case ast.UnaryOp(op=ast.USub()):
            yield from _names(node.operand)
        case ast.BinOp() if type(node.op) in ARITHMETIC and not isinstance(node.op, ast.Mod):
            yield from _names(node.left)
            yield from _names(node.right)
        case ast.Call(func=ast.Name(id=name), args=[part], keywords=[]) if name in _FUNCTIONS:
            yield from _names(part)
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not arithmetic of names and numbers with {joined([*_FUNCTIONS])}")


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    return (part for part in ast.walk(node) if isinstance(part, ast.expr))


def _powers(tree: ast.expr) -> Iterator[Power]:
    for node in _parts(tree):
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Pow)
            and any(role_of(name) is None for name in _names(node.right))
        ):
            yield Power(node)


def _summands(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield from _summands(node.left)
        yield from _summands(node.right)
    else:
        yield node


def _added_to(tree: ast.expr, name: str) -> str | None:
    """The variable that a parameter is added to, as B in F + B."""
    for node in _parts(tree):
        names = [part.id for part in _summands(node) if isinstance(part, ast.Name)]
        if name in names and (roles := [role for one in names if (role := role_of(one)) is not None]):
            return roles[0]
    return None


def _products(tree: ast.expr) -> Iterator[list[_Factor]]:
    """The factors of every product that is not part of another."""
    inside = {id(part) for node in _parts(tree) if _is_product(node) for part in (node.left, node.right) if _is_product(part)}
    for node in _parts(tree):
        if _is_product(node) and id(node) not in inside:
            yield [*_factors(node, 1)]


def _is_product(node: ast.expr) -> TypeGuard[ast.BinOp]:
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div))


def _factors(node: ast.expr, sign: int) -> Iterator[_Factor]:
    if _is_product(node):
        yield from _factors(node.left, sign)
        yield from _factors(node.right, sign if isinstance(node.op, ast.Mult) else -sign)
    else:
        yield _Factor(node, sign)
