"""Laws written as formulas, such as `E + A*N**-alpha + B*D**-beta`; the text is parsed, never run as Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from scipy.stats import qmc

from study.base.errors import InputError, near, nearest
from study.base.text import joined
from study.laws.columns import SYMBOLS, SYNONYMS, find_columns, plain
from study.laws.expressions import ARITHMETIC, UNCOMPUTABLE, Jet, exp, parse
from study.laws.law import STEEPEST, Columns, CurvedSurface, Floats, Law, Pairs, scale_of

Predicted = Literal["loss", "score", "error"]

Range = tuple[float, float]

_ASCII = {"·": "*", "×": "*", "−": "-", "–": "-", "^": "**"}
_SPREADS = (0.05, 5.0)
_LEAST = 1e-3
_LARGEST_VALUE = 1e100
_EXPONENTS = (0.7, 0.2, 0.05)
_HALVINGS = 6
_FAR = 1e3
_QUOTED = re.compile("`([^`]+)`")
_COMMENT = re.compile("(`[^`]+`)|#.*")
_COLUMNS = re.compile(r"(.+) (?:is a column|are columns)")
_NAME = re.compile(r"`[^`]+`|\w+")
_LIKE_A_CONSTANT = re.compile(r"[A-Za-z]\d?|alpha|beta|gamma|delta|epsilon|kappa|lambda|sigma|tau")
_ALIKE = 0.85
_FUNCTIONS: dict[str, Any] = {
    "exp": lambda value: value.exp() if isinstance(value, Jet) else exp(value),
    "log": lambda value: value.log() if isinstance(value, Jet) else np.log(value),
    "sqrt": lambda value: value**0.5,
}


def is_formula(text: str) -> bool:
    """Whether a text is a formula and not a name."""
    return bool(re.search(r"[*+(^·]", text))


def read_formula(text: str, place: str, columns: Collection[str] = (), roles: Collection[str] = ()) -> FormulaLaw:
    """Read a law of one's own: `[loss =] FORMULA [; NAME in LOW..HIGH] … [; NAME, NAME are columns]`, or on several lines.

    A name with a range is a constant to fit. Of the others, a name of `columns`, those of the table at hand, is that column; N,
    D, F or C, L and U are parameters, tokens, FLOPs, loss and unique tokens; depth, width, learning_rate and other roles go by
    their names; every other name is a constant to fit. A column with other signs than letters stands in backticks. `roles` are
    those that have a column already. Raises InputError at `place` for text outside the grammar, and for a formula without
    variables or constants.
    """
    lines = [_COMMENT.sub(r"\1", line) for line in text.splitlines()]
    first, *rest = [part.strip() for line in lines for part in line.split(";") if part.strip()]
    listed = [_NAME.findall(match[1]) for part in rest if (match := _COLUMNS.fullmatch(part))]
    declared = [name.strip("`") for names in listed for name in names]
    response, equals, formula = first.rpartition("=")
    predicts, source = _response(response.strip().strip("`") if equals else "loss", [*columns, *declared], place)
    law = FormulaLaw(formula.strip(), formula.strip(), "As in the caller's formula and columns.", "The caller's own", predicts)
    law = replace(law, reads_columns=tuple(declared), response=source)
    if problems := law.unparsable():
        raise InputError.at(place, f"{formula.strip()!r} {problems}")
    ranges = dict(_range(part, law, place) for part in rest if not _COLUMNS.fullmatch(part))
    named = [name for name in law.names if name not in ranges and law.quoted(name) not in declared]
    undeclared = [name for name in map(law.quoted, named) if name in columns and not _is_its_role(name, columns, roles)]
    undeclared += [source] if source and source not in declared else []
    words = ", ".join(name if name.isidentifier() else f"`{name}`" for name in dict.fromkeys(undeclared))
    noted = [f"{words} {'are columns' if len({*undeclared}) > 1 else 'is a column'}"] if undeclared else []
    own = "; ".join([first, *rest, *noted])
    law = replace(law, written=own, ranges=tuple(ranges.items()), reads_columns=(*declared, *undeclared))
    if problems := law.refusals():
        raise InputError.at(place, f"{formula.strip()!r} {problems}")
    if own_response := [name for name, variable in law.reads.items() if variable in (law.predicts, law.response)]:
        name, means = own_response[0], "" if own_response[0] == law.predicts else f" as {own_response[0]}"
        remedy = f"as a constant to fit it needs a range, as in '{name} in 0..10', or another name"
        raise InputError.at(place, f"{formula.strip()!r} reads the {law.predicts} that it predicts{means}; {remedy}")
    return law


def _response(name: str, columns: Collection[str], place: str) -> tuple[Predicted, str | None]:
    """Return what a law predicts, and the column that the formula names for it, if it is no role's name."""
    role = SYMBOLS.get(name, name)
    predicts: Predicted | None = next((one for one in get_args(Predicted) if one == role), None)
    if predicts is not None and (name == role or name not in columns):
        return predicts, None
    if name in columns:
        return next((one for one in get_args(Predicted) if one == role_of(name)), "loss"), name
    raise InputError.at(place, f"{name!r} is not what a law predicts; write loss, score, error or a column before the =")


def _is_its_role(name: str, columns: Collection[str], roles: Collection[str]) -> bool:
    """Whether a column is found by the role that its name stands for, so that it has this role's meaning and unit."""
    role = role_of(name)
    return role is not None and (role in roles or find_columns(role, columns) == [name])


def _range(text: str, law: FormulaLaw, place: str) -> tuple[str, Range]:
    number = r"(-?[0-9.]+(?:e[+-]?[0-9]+)?)"
    match = re.fullmatch(rf"(\w+) in {number}\.\.{number}", text)
    low, high = (float(match[2]), float(match[3])) if match else (0.0, 0.0)
    if match is None or not low < high:
        raise InputError.at(place, f"{text!r} is not a range; write one as alpha in 0..2")
    if match[1] not in law.names:
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
    reads_columns: tuple[str, ...] = ()
    """The names that stand for the column of that name."""
    response: str | None = None
    """The column that is predicted, if the formula names it."""
    written: str | None = None
    """The text of a law of one's own, with its ranges and columns; None for a law of the catalogue."""

    @property
    def definition(self) -> str:
        """The text by which the law is found or read again."""
        return self.written or self.name

    @property
    def title(self) -> str:
        """The name and the formula, or the text of a law of one's own."""
        return self.written or super().title

    @cached_property
    def tree(self) -> ast.expr:
        """The parsed formula, with a name of its own for each column in backticks."""
        text = _QUOTED.sub(lambda match: f"_column_{self._in_backticks.index(match[1])}", self.formula)
        for sign, plain_sign in _ASCII.items():
            text = text.replace(sign, plain_sign)
        return parse(text.strip())

    @cached_property
    def _in_backticks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_QUOTED.findall(self.formula)))

    def quoted(self, name: str) -> str:
        """Return a name of the tree as in the formula."""
        return self._in_backticks[int(name.removeprefix("_column_"))] if name.startswith("_column_") else name

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names of the tree, in the order of the formula."""
        return tuple(dict.fromkeys(_names(self.tree)))

    @cached_property
    def reads(self) -> Mapping[str, str]:
        """The variable of each name that is not a constant to fit."""
        variables = {name: self._variable(name) for name in self.names}
        return {name: variable for name, variable in variables.items() if variable is not None}

    def _variable(self, name: str) -> str | None:
        if name in dict(self.ranges):
            return None
        return written if (written := self.quoted(name)) in self.reads_columns else role_of(written)

    def unparsable(self) -> str:
        """Why the text cannot be read as a formula; empty if it can."""
        try:
            return "" if self.names else "names nothing"
        except UNCOMPUTABLE as error:
            return f"cannot be read: {error.msg if isinstance(error, SyntaxError) else error}"

    def refusals(self) -> str:
        """Why a formula that can be read cannot be a law; empty if it can."""
        if constants := [part for part in _parts(self.tree) if not [*_names(part)] and not _is_finite(part)]:
            return f"has no value, because {ast.unparse(constants[-1]).replace('**', '^')} is no finite number"
        if missing := [self.quoted(name) for name in self.parameters if self.quoted(name) != name]:
            return f"names {missing[0]!r}, which is no column of the table"
        if not self.variables:
            known = f"{', '.join(SYMBOLS)}, depth, width, …, or a column of the table"
            return f"names no variable ({known}), only {joined(sorted(self.names))}"
        return "" if self.parameters else "has no parameter to fit"

    def notes_on(self, columns: Collection[str]) -> tuple[str, ...]:
        """How names were read that may be meant otherwise: columns named like constants, and constants like columns."""
        if self.written is None:
            return ()
        taken = [name for name in self.reads_columns if name in self.variables and _LIKE_A_CONSTANT.fullmatch(name)]
        notes = [f"{name} is the table's column; a range makes it a constant to fit: '{name} in 0..10'" for name in taken]
        open_ = [name for name in self.parameters if name not in dict(self.ranges)]
        meant = {name: near(name, [*columns], _ALIKE) for name in open_ if len(name) > 3}
        notes += [
            f"{name} is taken as a parameter; did you mean the column {column}?" for name, column in meant.items() if column
        ]
        bases = {power.node.left.id for power in self.powers if isinstance(power.node.left, ast.Name)}
        lost = [name for name in open_ if name in bases and not meant.get(name)]
        known = joined([column if column.isidentifier() else f"`{column}`" for column in columns])
        notes += [
            f"{name} is taken as a parameter, and raised to a power; as a column it would be one of {known}" for name in lost
        ]
        if any(meant.values()) or lost:
            notes.append(f"{joined(self.parameters)} are taken as parameters, {joined(self.variables)} as columns")
        return tuple(notes)

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The input columns, in the order of the formula."""
        return tuple(dict.fromkeys(self.reads.values()))

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names that are no variable, in the order of the formula."""
        return tuple(name for name in self.names if name not in self.reads)

    def _constants(self, node: ast.expr) -> list[str]:
        return [name for name in _names(node) if name not in self.reads]

    def by_name(self, columns: Columns) -> dict[str, Floats]:
        """Return the columns by the names that the formula gives them."""
        return {name: np.asarray(columns[variable], dtype=float) for name, variable in self.reads.items()}

    @cached_property
    def powers(self) -> tuple[Power, ...]:
        """Every power whose exponent has a parameter."""
        powers = (part for part in _parts(self.tree) if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Pow))
        return tuple(Power(power) for power in powers if self._constants(power.right))

    @cached_property
    def exponents(self) -> tuple[str, ...]:
        """The parameters in exponents."""
        inside = {name for power in self.powers for name in self._constants(power.node.right)}
        return tuple(name for name in self.parameters if name in inside)

    @property
    def watched(self) -> tuple[str, ...]:
        """The exponents whose sign is known."""
        return tuple(name for name in self.exponents if self.limits[name][0] >= 0)

    @cached_property
    def coefficients(self) -> Mapping[str, tuple[Power, ...]]:
        """The powers that each coefficient multiplies."""
        every, powers_of = [*_names(self.tree)], {}
        for factors in _products(self.tree):
            names = [one.node.id for one in factors if isinstance(one.node, ast.Name) and one.node.id not in self.reads]
            powers = [Power(one.node, one.sign) for one in factors if isinstance(one.node, ast.BinOp)]
            scaled = tuple(power for power in powers if self._scalable(power))
            if len(names) == 1 and scaled and every.count(names[0]) == 1:
                powers_of[names[0]] = scaled
        return powers_of

    @cached_property
    def inner_coefficients(self) -> frozenset[str]:
        """The coefficients inside exp, log or sqrt, as s in exp(s·N^q): sizes of an argument, not of what is predicted."""
        inside = {name for part in _parts(self.tree) if isinstance(part, ast.Call) for name in _names(part)}
        return frozenset(inside & self.coefficients.keys())

    def _scalable(self, power: Power) -> bool:
        """Whether the base of a power has a variable and the exponent only parameters and numbers."""
        of_base, of_exponent = (set(_names(part)) for part in (power.node.left, power.node.right))
        known = self.reads.keys()
        return isinstance(power.node.op, ast.Pow) and bool(of_base & known and of_exponent) and not of_exponent & known

    @property
    def any_sign(self) -> tuple[str, ...]:
        """The variables of a law of one's own; those of the catalogue are sizes."""
        return () if self.written is None else self.variables

    @property
    def positive_without_range(self) -> tuple[str, ...]:
        """The parameters of a law of one's own without a range."""
        return () if self.written is None else tuple(name for name in self.parameters if name not in dict(self.ranges))

    def suited_to(self, response: Floats) -> FormulaLaw:
        """Return the law with a range of both signs for each constant that it adds, where the response is zero or below."""
        summands = [part.id for part in _summands(self.tree) if isinstance(part, ast.Name)]
        given = dict(self.ranges)
        free = [name for name in self.parameters if name in summands and name not in given]
        if self.written is None or (response > 0).all() or not free:
            return self
        most = 10.0 ** (1 + np.ceil(np.log10(np.abs(response).max())))
        ranges = dict.fromkeys(free, (-most, most))
        written = "; ".join([self.written, *(f"{name} in {-most:g}..{most:g}" for name in free)])
        return replace(self, written=written, ranges=(*self.ranges, *ranges.items()))

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
        users = [power for power in self.powers if variable in map(self.reads.get, _names(power.node.left))]
        floor = any(isinstance(one, ast.Name) and one.id not in self.reads for one in _summands(self.tree))
        return 3 if floor and len(users) == 1 else 2

    def at(self, columns: Columns) -> _FormulaSurface:
        """Return the law at the rows of a table."""
        return _FormulaSurface(self, columns)

    def values(self, parameters: Floats, columns: Columns) -> Floats:
        """Evaluate parameters B × p at all rows, B × n."""
        named = {name: parameters[:, index, None] for index, name in enumerate(self.parameters)}
        rows = len(next(iter(columns.values())))
        with np.errstate(all="ignore"):
            value = _evaluate(self.tree, self.by_name(columns), named, {})
        return np.asarray(np.broadcast_to(value, (len(parameters), rows)))

    def undefined(self, columns: Columns) -> NDArray[np.bool_]:
        """Return the rows in which the law or a derivative has no value, whatever its constants.

        Exponents are tried from steep to gentle, since exp(N^0.7) has none for any size and exp(N^0.05) has.
        """
        return np.asarray(np.all([self._beyond(columns, exponent) for exponent in _EXPONENTS], axis=0))

    def _beyond(self, columns: Columns, exponent: float) -> NDArray[np.bool_]:
        """Return the rows in which the law or a derivative is too large where its exponents are as given."""
        tried = {name: exponent if name in self.exponents else _EXPONENTS[0] for name in self.parameters}
        usual = {name: np.clip(tried[name], *limits) for name, limits in self.limits.items()}
        jets = {name: Jet(np.array([[usual[name]]]), {index: np.ones((1, 1))}, None) for index, name in enumerate(usual)}
        with np.errstate(all="ignore"):
            jet: Jet = _evaluate(self.tree, self.by_name(columns), jets, {})
        rows = len(next(iter(columns.values())))
        parts = [np.broadcast_to(part, (1, rows))[0] for part in (jet.value, *jet.slopes.values())]
        return np.asarray(~(np.abs(parts) < _LARGEST_VALUE ** (exponent / _EXPONENTS[0])).all(axis=0))

    def added_to(self, name: str) -> str | None:
        """Return the name of the variable that a parameter is added to, as B in F + B."""
        for node in _parts(self.tree):
            names = [part.id for part in _summands(node) if isinstance(part, ast.Name)]
            if name in names and (variables := [one for one in names if one in self.reads]):
                return variables[0]
        return None

    def multiplied_by(self, name: str) -> tuple[tuple[str, float], ...]:
        """Return the variables that a parameter multiplies, with their powers over its own.

        As N in A·N with the power 1, in A/N with −1, and in A²·N with 1/2.
        """
        for factors in _products(self.tree):
            powers = [(*part, one.sign) for one in factors if (part := _power_of(one.node)) is not None]
            own = next((sign * power for base, power, sign in powers if base == name), 0)
            if own and (variables := tuple((base, sign * power / own) for base, power, sign in powers if base in self.reads)):
                return variables
        return ()


@dataclass(frozen=True)
class Power:
    """base^exponent in a product; `sign` is −1 below a fraction line."""

    node: ast.BinOp
    sign: int = 1


@dataclass(frozen=True)
class _Factor:
    """A factor of a product; `sign` is −1 below the fraction line."""

    node: ast.expr
    sign: int


class _FormulaSurface(CurvedSurface):
    """θ has the parameters in order: coefficients at the geometric means of their variables, others in the units of `_unit`."""

    of_rows = ("columns",)

    def __init__(self, law: FormulaLaw, columns: Columns) -> None:
        self.law = law
        self.columns = law.by_name(columns)
        self.units = np.array([self._unit(name) for name in law.parameters])
        scaled = [power.node for powers in law.coefficients.values() for power in powers]
        self.scales = {id(node): self._scale(node.left) for node in scaled}

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values())))

    def _unit(self, name: str) -> float:
        """Return the size at which a parameter matters beside variables at their geometric means, 1 without any.

        As B in F + B it is that of F, and as A in A/N that of N: otherwise counts would be a billion times other parameters.
        """
        if (variable := self.law.added_to(name)) is not None:
            return _geometric_mean(self.columns[variable])
        powers = () if name in self.law.exponents else self.law.multiplied_by(name)
        return float(np.prod([_geometric_mean(self.columns[variable]) ** -power for variable, power in powers]))

    def _scale(self, base: ast.expr) -> float:
        """Return the geometric mean of a base whose parameters are 1."""
        return _geometric_mean(self._base(base))

    def _base(self, base: ast.expr) -> Floats:
        ones = dict.fromkeys(self.law.parameters, np.ones((1, 1)))
        with np.errstate(all="ignore"):
            return np.asarray(np.broadcast_to(_evaluate(base, self.columns, ones, {}), (1, self.rows)))

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        low, high = np.array([self.law.limits[name] for name in self.law.parameters]).T / self.units
        return low, high

    def jet(self, theta: Floats, twice: bool = True) -> Jet:
        """Return the law with its derivatives, or its first ones alone."""
        named = self._named(theta, twice)
        with np.errstate(all="ignore"):
            result: Jet = _evaluate(self.law.tree, self.columns, named, self.scales)
        return result

    def _named(self, theta: Floats, twice: bool = True) -> dict[str, Jet]:
        """Return the parameters at θ, B × 1, with their derivatives in it."""
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
        it, and of a law of one's own are halved where its value is beyond the response; coefficients inside a function are
        around 1, others around the size of the response. Source: Golub and Pereyra 1973.
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
        theta = self._within_reach(theta, response) if law.written is not None else theta
        return self._projected(theta, response) if law.linear else theta

    def _within_reach(self, theta: Floats, response: Floats) -> Floats:
        """Halve the parameters with a range where the law lies far beyond the response, as exp(s·N^q) does in a wide range."""
        ranged = np.isin(self.law.parameters, [*dict(self.law.ranges)])
        low, high = self.bounds
        for _ in range(_HALVINGS if ranged.any() else 0):
            far = ~(np.abs(self.value(theta)) < _FAR * np.abs(response).max()).all(axis=1)
            theta = np.where(far[:, None] & ranged, np.clip(theta / 2, low, high), theta)
        return theta

    def _spread(self, index: int, unit: Floats, response: Floats) -> Floats:
        name = self.law.parameters[index]
        low, high = (float(bound[index]) for bound in self.bounds)
        if name in dict(self.law.ranges):
            return np.asarray(low * (high / low) ** unit if low > 0 else low + (high - low) * unit)
        if name in self.law.exponents and name not in self.law.inner_coefficients:
            power = next(power for power in self.law.powers if name in _names(power.node.right))
            bases = np.abs(self._base(power.node.left))
            spread = float(np.std(np.log(bases[bases > 0])))
            first, last = _SPREADS
            return np.clip(
                first * (last / first) ** unit / (spread if np.isfinite(spread) and spread > 0 else 1.0), _LEAST, 0.9 * high
            )
        if (variable := self.law.added_to(name)) is not None and (self.columns[variable] > 0).all():
            low, high = self.columns[variable].min(), self.columns[variable].max()
            return np.asarray(low * (high / low) ** unit / self.units[index])
        of_response = name in self.law.coefficients and name not in self.law.inner_coefficients
        size = float(np.median(np.abs(scale_of(response)))) if of_response else 1.0
        return np.asarray(size * 10 ** (2 * unit - 1))

    def _projected(self, theta: Floats, response: Floats) -> Floats:
        linear = [*self.law.linear]
        theta[:, linear] = 1.0
        value, gradients = self.gradients(theta)
        low, high = (bound[linear] for bound in self.bounds)
        scale = scale_of(response)
        least = _LEAST * float(np.median(scale))
        for row, (whole, basis) in enumerate(zip(value, gradients[:, :, linear], strict=True)):
            left = response - whole + basis.sum(axis=1)
            if np.isfinite(basis).all() and np.isfinite(left).all():
                best = lsq_linear(basis / scale[:, None], left / scale, bounds=(low, high)).x
                theta[row, linear] = np.clip(np.where(low == 0, np.maximum(best, least), best), low, high)
        return theta


def _geometric_mean(values: Floats) -> float:
    """Return the geometric mean of the values above zero, 1 without any."""
    positive = values[np.isfinite(values) & (values > 0)]
    return float(np.exp(np.mean(np.log(positive)))) if len(positive) else 1.0


def role_of(name: str) -> str | None:
    """Return the variable that a name of a formula stands for, None for a parameter."""
    if name in SYMBOLS:
        return SYMBOLS[name]
    roles = (role for role, words in SYNONYMS.items() if role != "run" and len(name) > 1 and plain(name) in words.split())
    return name if name in SYNONYMS and name != "run" else next(roles, None)


def _evaluate(node: ast.expr, columns: Columns, named: Mapping[str, Any], scales: Mapping[int, float]) -> Any:
    """Return the value of a parsed formula, as arrays or jets; a base named in `scales` is divided by its scale."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Name():
            return named[node.id] if node.id in named else columns[node.id]
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
    """Yield the names in a formula, in its order; raises ValueError for anything outside the grammar."""
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


def _summands(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield from _summands(node.left)
        yield from _summands(node.right)
    else:
        yield node


def _products(tree: ast.expr) -> Iterator[list[_Factor]]:
    inside = {id(part) for node in _parts(tree) if _is_product(node) for part in (node.left, node.right) if _is_product(part)}
    for node in _parts(tree):
        if _is_product(node) and id(node) not in inside:
            yield [*_factors(node, 1)]


def _power_of(node: ast.expr) -> tuple[str, float] | None:
    """Return a name and the number that it is raised to, as x^2 or x itself."""
    match node:
        case ast.Name(id=name):
            return name, 1.0
        case ast.BinOp(left=ast.Name(id=name), op=ast.Pow(), right=power) if not [*_names(power)]:
            return name, float(_evaluate(power, {}, {}, {}))
    return None


def _is_finite(constant: ast.expr) -> bool:
    """Whether arithmetic of numbers alone gives a finite one."""
    try:
        with np.errstate(all="ignore"):
            return bool(np.isfinite(float(_evaluate(constant, {}, {}, {}))))
    except (ArithmeticError, TypeError):
        return False


def _is_product(node: ast.expr) -> TypeGuard[ast.BinOp]:
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div))


def _factors(node: ast.expr, sign: int) -> Iterator[_Factor]:
    if _is_product(node):
        yield from _factors(node.left, sign)
        yield from _factors(node.right, sign if isinstance(node.op, ast.Mult) else -sign)
    elif isinstance(node, ast.UnaryOp):
        yield from _factors(node.operand, sign)
    else:
        yield _Factor(node, sign)
