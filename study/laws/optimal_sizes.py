"""The sizes and tokens that a fitted sum of powers of sizes and tokens makes best at a budget of FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from study.laws.estimation import Fit
from study.laws.law import Floats

BUDGETS: tuple[float, ...] = (1e15, 1e16, 1e17, 1e18, 1e19, 1e20)
"""The budgets of FLOPs at which answers give the best sizes."""


@dataclass(frozen=True)
class FlopsRule:
    """How a law's variables spend FLOPs: C = `factor` · Π xᵢ^powerᵢ; `terms` are the law's coefficient and exponent of each."""

    factor: float
    powers: Mapping[str, float]
    terms: Mapping[str, tuple[str, str]]


FLOPS_RULES = {
    "chinchilla": FlopsRule(6.0, {"parameters": 1, "tokens": 1}, {"parameters": ("A", "alpha"), "tokens": ("B", "beta")}),
    "width-depth-tokens": FlopsRule(
        72.0,
        {"width": 2, "depth": 1, "tokens": 1},
        {"width": ("A", "alpha"), "depth": ("B", "beta"), "tokens": ("C", "gamma")},
    ),
}
"""C = 6·N·D, with N = 12·L·H² for width and depth, as FLOPs of blocks are counted without attention scores and head."""


@dataclass(frozen=True)
class BestSizes:
    """The best value of each variable at a budget, with its 95% interval over resamples, None without one.

    `beyond` is the budget over the largest of the rows, as both spend FLOPs.
    """

    flops: float
    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float] | None]
    beyond: float


def best_sizes(fitted: Fit, budgets: tuple[float, ...] = BUDGETS) -> list[BestSizes]:
    """Return the least loss of E + Σ aᵢ·xᵢ^−pᵢ at each budget C = k·Π xᵢ^wᵢ, in closed form; none for another law.

    At the optimum pᵢ·aᵢ·xᵢ^−pᵢ = λ·wᵢ for one λ; no encoder has less than one layer. There is no optimum where a coefficient or
    exponent is zero.
    """
    rule = FLOPS_RULES.get(fitted.law.name)
    if rule is None or fitted.status == "failed":
        return []
    names, powers = list(rule.terms), np.array([*rule.powers.values()], dtype=float)
    estimates = np.array([[fitted.estimates[name] for name in rule.terms[variable]] for variable in names])
    if not (estimates > 0).all():
        return []
    spent = [fitted.observations.columns[name] ** rule.powers[name] for name in names]
    largest = rule.factor * float(np.prod(spent, axis=0).max())
    positions = [[fitted.law.parameters.index(name) for name in rule.terms[variable]] for variable in names]
    terms = fitted.resampled[:, positions] if fitted.intervals else np.empty((0, len(names), 2))
    result = []
    for flops in budgets:
        share = np.log(flops / rule.factor)
        best = _of_a_layer(names, estimates[None], powers, share)[0]
        drawn = _of_a_layer(names, terms, powers, share)
        intervals = {name: _interval(fitted, drawn[:, column]) for column, name in enumerate(names)}
        values = dict(zip(names, np.exp(best).tolist(), strict=True))
        result.append(BestSizes(flops, values, intervals, flops / largest))
    return result


def _of_a_layer(names: list[str], terms: Floats, powers: Floats, share: float) -> Floats:
    """Return `_logs`; where the best depth is less than one layer, those of one layer."""
    logs = _logs(terms, powers, share)
    if "depth" in names:
        others = [column for column, name in enumerate(names) if name != "depth"]
        shallow = logs[:, names.index("depth")] < 0
        of_a_layer = np.zeros((int(shallow.sum()), len(names)))
        of_a_layer[:, others] = _logs(terms[shallow][:, others], powers[others], share)
        logs[shallow] = of_a_layer
    return logs


def _logs(terms: Floats, powers: Floats, share: float) -> Floats:
    """Return ln xᵢ for terms (B × variables × coefficient and exponent) with Σ wᵢ·ln xᵢ = `share`; NaN where a term is zero."""
    coefficients, exponents = terms[..., 0], terms[..., 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.log(coefficients * exponents / powers)
        price = ((powers / exponents * level).sum(-1) - share) / (powers / exponents).sum(-1)
        logs = (level - price[..., None]) / exponents
    return np.where(np.isfinite(logs).all(-1, keepdims=True), logs, np.nan)


def _interval(fitted: Fit, logs: Floats) -> tuple[float, float] | None:
    """Return the ends in units of the variable; None where a resample has no optimum, which might lie anywhere."""
    if not len(logs) or np.isnan(logs).any():
        return None
    low, high = fitted.interval(logs)
    return float(np.exp(low)), float(np.exp(high))
