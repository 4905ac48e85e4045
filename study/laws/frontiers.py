"""The compute-optimal model size for a budget, by the three approaches of Hoffmann et al. 2022.

All give N* = scale·C^exponent (arXiv 2203.15556, sec. 3) with C the training FLOPs. The caller chooses how to count parameters
and FLOPs, which moves the exponent more than the approach does (arXiv 2406.12907). Approach 3, the closed form of a fitted law,
also splits a budget between width, depth and tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.interpolate import Akima1DInterpolator
from scipy.optimize import minimize_scalar
from scipy.special import stdtrit

from study.base.errors import InputError
from study.base.quantities import plural
from study.base.statistics import CONFIDENCE
from study.laws.estimation import Fit
from study.laws.law import Floats
from study.laws.uncertainty import Status

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]

Ends = tuple[float, float]

Approach = Literal["envelope", "hull", "parabola", "akima", "parametric"]

SAME_BUDGET = 0.1
"""The relative distance in FLOPs within which runs share a budget."""

ONE_LINE = 0.01
"""The relative spread within which rows lie on a line in log N and log D."""

ONE_SPLIT = 2.0
"""The size ratio that nine in ten runs of a budget must exceed."""

APART = 1.25
"""The factor from which one model counts as smaller or larger than another."""

WINDOW = 1.0
"""The scale of x in exp(−x²/2), a run's weight in a parabola, where x is its distance in log N from the best run."""

FEWEST_BEST = 3
"""The fewest best models that leave a line a degree of freedom."""

BUDGETS: tuple[float, ...] = (1e15, 1e16, 1e17, 1e18, 1e19, 1e20)
"""The budgets of FLOPs at which answers give the best sizes."""

_EDGE = 1e-6


@dataclass(frozen=True)
class Best:
    """The best number of parameters at a budget; `inside` if smaller and larger models were tried there."""

    flops: float
    parameters: float
    loss: float
    inside: bool


@dataclass(frozen=True)
class Frontier:
    """N* = exp(log_scale)·C^exponent with its best models; `compute` names the count of C.

    The 95% interval of the exponent is Student's for a line through independent runs, or from resamples; None for fewer than
    three best models, one model size, or no resamples. `reasons` explain a weakly identified frontier.
    """

    approach: Approach
    exponent: float
    log_scale: float
    interval: tuple[float, float] | None
    best: tuple[Best, ...]
    compute: str = "6·N·D"
    status: Literal["found"] | Status = "found"
    reasons: tuple[str, ...] = ()

    def parameters(self, flops: float) -> float:
        """Return the best number of parameters at a budget."""
        return float(np.exp(self.log_scale + self.exponent * np.log(flops)))


@dataclass(frozen=True)
class Optimum:
    """The best split of a budget: N*, D* = C/(6·N*), and the law's loss there, None without a law.

    `beyond` is the budget over the largest one tried. Intervals of 95% are those of the line or the law, without the scatter of
    a run; None where it has none.
    """

    flops: float
    parameters: float
    tokens: float
    loss: float | None
    beyond: float
    parameters_interval: Ends | None = None
    tokens_interval: Ends | None = None
    loss_interval: Ends | None = None


@dataclass(frozen=True)
class FlopsRule:
    """How a law's variables spend FLOPs: C = `factor` · Π xᵢ^powerᵢ; `terms` are the law's coefficient and exponent of each.

    A law that rises with the sum of its terms is least where the sum is. Exponents may be parameters over a common `divisor`.
    """

    factor: float
    powers: Mapping[str, float]
    terms: Mapping[str, tuple[str, str]]
    divisor: str | None = None

    def without(self, variable: str) -> FlopsRule:
        """Return the rule with this variable at one."""
        others = [name for name in self.terms if name != variable]
        powers = {name: self.powers[name] for name in others}
        return replace(self, powers=powers, terms={name: self.terms[name] for name in others})

    def terms_of(self, parameters: Floats, names: Sequence[str]) -> Floats:
        """Return the coefficient and exponent of each variable: draws × variables × 2, from parameters of these names."""
        terms = parameters[:, [[names.index(name) for name in pair] for pair in self.terms.values()]]
        if self.divisor is not None:
            terms[..., 1] /= parameters[:, names.index(self.divisor), None]
        return terms


CHINCHILLA = FlopsRule(6.0, {"parameters": 1, "tokens": 1}, {"parameters": ("A", "alpha"), "tokens": ("B", "beta")})

FLOPS_RULES = {
    "chinchilla": CHINCHILLA,
    "kaplan": replace(CHINCHILLA, terms={"parameters": ("A", "alpha_N"), "tokens": ("B", "alpha_D")}, divisor="alpha_D"),
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
    intervals: Mapping[str, Ends | None]
    beyond: float


def optimum(frontier: Frontier, flops: float, largest: float, fit: Fit | None = None) -> Optimum:
    """Return a frontier's split of a budget, in its own count of FLOPs."""
    parameters = frontier.parameters(flops)
    columns = _split(np.array([parameters]), flops)
    loss = None if fit is None else float(fit.predict(columns)[0])
    sizes, losses = (_of_line(frontier, flops), None) if fit is None else _of_resamples(fit, flops)
    tokens = None if sizes is None else (flops / (6 * sizes[1]), flops / (6 * sizes[0]))
    return Optimum(flops, parameters, float(columns["tokens"][0]), loss, flops / largest, sizes, tokens, losses)


def _split(parameters: Floats, flops: float) -> dict[str, Floats]:
    return {"parameters": parameters, "tokens": flops / (6 * parameters)}


def _of_line(frontier: Frontier, flops: float) -> Ends | None:
    """Return the interval of N* by a line through the best models, from that of its slope.

    A line is known at a distance x from the mean of its n points as well as its slope times √(Σ(xᵢ − mean)²/n + x²).
    """
    budgets = np.log([one.flops for one in frontier.best if one.inside])
    if frontier.interval is None or not len(budgets):
        return None
    from_mean = float(np.log(flops) - budgets.mean())
    reach = float(np.hypot(budgets.std(), from_mean))
    below, above = frontier.exponent - frontier.interval[0], frontier.interval[1] - frontier.exponent
    if from_mean < 0:
        below, above = above, below
    parameters = frontier.parameters(flops)
    return parameters * float(np.exp(-below * reach)), parameters * float(np.exp(above * reach))


def _of_resamples(fit: Fit, flops: float) -> tuple[Ends | None, Ends | None]:
    """Return the intervals of N* and of the loss there, each resample of the law at its own best split."""
    if not fit.intervals:
        return None, None
    rule = _rule_of_two(fit)
    logs = _optimal_logs(rule, _resampled_terms(fit, rule), flops)
    sizes = _interval(fit, logs[:, 0])
    if sizes is None:
        return None, None
    low, high = fit.interval(fit.law.values(fit.resampled, _split(np.exp(logs[:, 0]), flops)).diagonal())
    return sizes, (float(low), float(high))


def check_split(parameters: Floats, tokens: Floats) -> None:
    """Raise InputError if every budget has a single split, so no split can be best.

    That is so if D is constant, N is constant, or D is a power of N, such as a fixed number of tokens per parameter.
    """
    if len(tokens) < 2:
        return
    logs = np.log([parameters, tokens])
    across = _least_spread(logs)
    same_parameters, same_tokens, one_line = np.ptp([*logs, across @ logs], axis=1) <= np.log1p(ONE_LINE)
    rows = plural(len(tokens), "row")
    if same_tokens:
        message = f"all {rows} have the same tokens ({tokens[0]:.6g})"
    elif same_parameters:
        message = f"all {rows} have the same parameters ({parameters[0]:.6g})"
    elif one_line and across[0] * across[1] < 0:
        message = f"tokens go as parameters^{-across[0] / across[1]:.2f} in all {rows}, so each budget has one split"
    else:
        return
    raise InputError.at("compute", f"the best split is undetermined: {message}")


def envelope(parameters: Floats, flops: Floats, loss: Floats) -> Frontier:
    """Approach 1: a line through the Pareto front of loss and FLOPs, keeping runs with smaller and larger models tried."""
    _check_sizes(parameters, flops)
    order = np.lexsort((loss, flops))
    front = order[loss[order] < np.concatenate([[np.inf], np.minimum.accumulate(loss[order])[:-1]])]
    return _line("envelope", _front(parameters, flops, loss, front), parameters)


def hull(parameters: Floats, flops: Floats, loss: Floats) -> Frontier:
    """Approach 1 on the lower convex hull of log loss over log FLOPs, which omits noisy runs of the front.

    The hull is Andrew's monotone chain (1979), up to the run of lowest loss.
    """
    _check_sizes(parameters, flops)
    x, y = np.log(flops), np.log(loss)
    chain: list[int] = []
    for row in np.lexsort((y, x)):
        while len(chain) > 1 and _is_above_chord(x, y, chain[-2], chain[-1], row):
            chain.pop()
        chain.append(int(row))
    lowest = int(np.argmin(y[chain]))
    return _line("hull", _front(parameters, flops, loss, np.array(chain[: lowest + 1])), parameters)


def iso_flop(
    parameters: Floats, flops: Floats, loss: Floats, valley: Literal["parabola", "akima"] = "parabola", window: float = WINDOW
) -> Frontier:
    """Approach 2: a line through the minima of loss over log N at each budget.

    `parabola` weights runs by their distance from the best (an infinite window gives the paper's full parabola); `akima`
    interpolates all runs (Akima 1970). Excludes budgets with fewer than three sizes (five for `akima`) or with the best run at
    either end.
    """
    _check_sizes(parameters, flops)
    result = []
    for rows in iso_flop_groups(flops):
        sizes, losses = _by_size(np.log(parameters[rows]), loss[rows])
        if len(sizes) < (3 if valley == "parabola" else 5):
            continue
        middle = float(np.exp(np.log(flops[rows]).mean()))
        lowest, level = _parabola(sizes, losses, window) if valley == "parabola" else _akima(sizes, losses)
        run, gap = sizes[np.argmin(losses)], np.log(APART) - _EDGE
        inside = sizes[0] + gap <= run <= sizes[-1] - gap and sizes[0] + _EDGE < lowest < sizes[-1] - _EDGE
        result.append(Best(middle, float(np.exp(lowest)), level, bool(inside)))
    return _line(valley, result)


def iso_flop_groups(flops: Floats) -> Iterator[Rows]:
    """Yield the rows of each budget, smallest first."""
    rest = np.argsort(flops, kind="stable")
    while len(rest):
        together = flops[rest] <= flops[rest[0]] * (1 + SAME_BUDGET)
        yield rest[together]
        rest = rest[~together]


def parametric(fit: Fit) -> Frontier:
    """Approach 3: the minimum of a fitted law at C = 6·N·D, Chinchilla's or Kaplan's.

    N* = (alpha·A/(beta·B))^(1/(alpha + beta))·(C/6)^(beta/(alpha + beta)); in Kaplan's law alpha is alpha_N/alpha_D and beta 1.
    Raises InputError for other laws and zero terms.
    """
    rule = _rule_of_two(fit)
    if lost := [name for term in rule.terms.values() for name in term if fit.estimates[name] <= 0]:
        raise InputError.at(fit.law.name, f"has no best split: {', '.join(lost)} is zero")
    levels, slopes = _optimal_lines(rule, _estimated_terms(fit, rule))
    exponent = float(slopes[0, 0])
    log_scale = float(levels[0, 0]) - exponent * np.log(rule.factor)
    low, high = fit.interval(_optimal_lines(rule, _resampled_terms(fit, rule))[1][:, 0])
    interval = (float(low), float(high)) if fit.intervals else None
    return Frontier("parametric", exponent, float(log_scale), interval, (), status=fit.status, reasons=fit.reasons)


def _rule_of_two(fit: Fit) -> FlopsRule:
    """Return how a law of parameters and tokens spends FLOPs; raises InputError for one without a closed minimum."""
    rule = FLOPS_RULES.get(fit.law.name, CHINCHILLA)
    known = {name for term in rule.terms.values() for name in term} <= set(fit.law.parameters)
    if not known or set(fit.law.variables) != {"parameters", "tokens"}:
        raise InputError.at(fit.law.name, "has no closed frontier; fit chinchilla or kaplan")
    return rule


def best_sizes(fit: Fit, budgets: tuple[float, ...] = BUDGETS) -> list[BestSizes]:
    """Return where Σ aᵢ·xᵢ^−pᵢ is least at each budget C = k·Π xᵢ^wᵢ, in closed form; none for a law without a rule.

    No encoder has less than one layer. There is no optimum where a coefficient or exponent is zero.
    """
    rule = FLOPS_RULES.get(fit.law.name)
    if rule is None or fit.status == "failed" or not ((estimates := _estimated_terms(fit, rule)) > 0).all():
        return []
    spent = [fit.observations.columns[name] ** power for name, power in rule.powers.items()]
    largest = rule.factor * float(np.prod(spent, axis=0).max())
    resampled = _resampled_terms(fit, rule) if fit.intervals else np.empty((0, *estimates.shape[1:]))
    result = []
    for flops in budgets:
        (best,), drawn = (_of_a_layer(rule, terms, flops) for terms in (estimates, resampled))
        values = dict(zip(rule.terms, np.exp(best).tolist(), strict=True))
        intervals = {name: _interval(fit, logs) for name, logs in zip(rule.terms, drawn.T, strict=True)}
        result.append(BestSizes(flops, values, intervals, flops / largest))
    return result


def _estimated_terms(fit: Fit, rule: FlopsRule) -> Floats:
    """Return the terms of a fit's estimates: 1 × variables × coefficient and exponent."""
    return rule.terms_of(np.array([[*fit.estimates.values()]]), [*fit.estimates])


def _resampled_terms(fit: Fit, rule: FlopsRule) -> Floats:
    """Return the terms of a fit's resamples: resamples × variables × coefficient and exponent."""
    return rule.terms_of(fit.resampled, fit.law.parameters)


def _of_a_layer(rule: FlopsRule, terms: Floats, flops: float) -> Floats:
    """Return `_optimal_logs`; where the best depth is less than one layer, those of one layer."""
    logs = _optimal_logs(rule, terms, flops)
    if "depth" in rule.terms:
        depth = [*rule.terms].index("depth")
        shallow = logs[:, depth] < 0
        others = _optimal_logs(rule.without("depth"), np.delete(terms[shallow], depth, axis=1), flops)
        logs[shallow] = np.insert(others, depth, 0.0, axis=1)
    return logs


def _optimal_logs(rule: FlopsRule, terms: Floats, flops: float) -> Floats:
    """Return ln xᵢ of least loss at a budget, rows × variables; NaN where a term is zero."""
    levels, slopes = _optimal_lines(rule, terms)
    logs = levels + slopes * np.log(flops / rule.factor)
    return np.where(np.isfinite(logs).all(-1, keepdims=True), logs, np.nan)


def _optimal_lines(rule: FlopsRule, terms: Floats) -> tuple[Floats, Floats]:
    """Return the levels and slopes of ln xᵢ in ln(C/k) at the least Σ aᵢ·xᵢ^−pᵢ with C = k·Π xᵢ^wᵢ, rows × variables.

    There pᵢ·aᵢ·xᵢ^−pᵢ = λ·wᵢ for one λ, so the slope is (1/pᵢ)/Σ(wⱼ/pⱼ). Two powers of one make it β/(α + β) for N.
    """
    coefficients, exponents = terms[..., 0], terms[..., 1]
    powers = np.array([rule.powers[name] for name in rule.terms], dtype=float)
    others = np.stack([np.delete(exponents, column, axis=-1).prod(-1) for column in range(len(powers))], axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = others / (powers * others).sum(-1, keepdims=True)
        level = np.log(coefficients * exponents / powers)
        levels = (level - (powers * slopes * level).sum(-1, keepdims=True)) / exponents
    return levels, slopes


def _interval(fit: Fit, logs: Floats) -> Ends | None:
    """Return the ends in units of the variable; None where a resample has no optimum, which might lie anywhere."""
    if not len(logs) or np.isnan(logs).any():
        return None
    low, high = fit.interval(logs)
    return float(np.exp(low)), float(np.exp(high))


def _check_sizes(parameters: Floats, flops: Floats) -> None:
    """Raise InputError if nearly every budget has one split, so the line would be the design's.

    The test: sizes at equal C = N·D differ by less than ONE_SPLIT between the 5th and 95th percentiles.
    """
    if len(flops) < 2:
        return
    logs = np.log([parameters, flops / parameters])
    across = _least_spread(logs)
    low, high = np.percentile(across @ logs, (5, 95))
    at_equal_flops = abs(across[0] - across[1])
    if high - low < at_equal_flops * np.log(ONE_SPLIT):
        within = f"{np.exp((high - low) / at_equal_flops):.2f} times, and need {ONE_SPLIT:g}"
        raise InputError.at("", f"nearly every budget has one split (in nine of ten rows sizes are within {within})")


def _least_spread(logs: Floats) -> Floats:
    """Return the unit direction of least spread in log N and log D."""
    return np.asarray(np.linalg.eigh(np.cov(logs))[1][:, 0])


def _front(parameters: Floats, flops: Floats, loss: Floats, rows: Rows) -> list[Best]:
    """Return the best runs of a front, `inside` if smaller and larger models were tried, away from the extreme sizes.

    A smaller model counts if it has at least the run's FLOPs, a larger one if it has at most these. Budgets up to the last led
    by the smallest size, and from the first led by the largest, are not inside.
    """
    sizes, budgets, share = parameters[rows], flops[rows], 1 + SAME_BUDGET
    order, gap = np.argsort(parameters), APART * (1 - _EDGE)
    tried, compute = parameters[order], flops[order]
    most = np.append(0.0, np.maximum.accumulate(compute))[np.searchsorted(tried, sizes / gap, side="right")]
    fewest = np.append(np.minimum.accumulate(compute[::-1])[::-1], np.inf)[np.searchsorted(tried, sizes * gap)]
    low = budgets[sizes < tried[0] * gap].max(initial=0.0)
    high = budgets[sizes > tried[-1] / gap].min(initial=np.inf)
    inside = (most * share >= budgets) & (fewest <= budgets * share) & (low < budgets) & (budgets < high)
    result = zip(budgets.tolist(), sizes.tolist(), loss[rows].tolist(), inside.tolist(), strict=True)
    return [Best(*one) for one in result]


def _line(approach: Approach, best: Sequence[Best], sizes: Floats | None = None) -> Frontier:
    """Least squares of log N over log C through the best models inside; `sizes` are those tried.

    Student's interval uses HC3 errors, each residual from the line through the others (MacKinnon and White 1985), because
    minima of few sizes or flat valleys scatter more and lie at the ends. Parabola intervals covered 81% to 93% with one common
    scatter, 93% to 96% with HC3.

    A grid's best model lies up to half a step from the true one, invisible in residuals on one grid line, so the variance of a
    step between sizes, step²/12, is added.
    """
    used = [one for one in best if one.inside]
    x, y = np.log([[one.flops for one in used], [one.parameters for one in used]])
    if len(np.unique(x)) < 2:
        tried = f" of {len(best)}" if len(used) < len(best) else ""
        message = f"a frontier needs best models between models {APART:g} times smaller and larger at two or more budgets"
        raise InputError.at("", f"{message}, got {len(np.unique(x))}{tried}")
    away = x - x.mean()
    spread = away @ away
    slope = away @ y / spread
    line = float(slope), float(y.mean() - slope * x.mean())
    reason = _why_no_interval(y)
    buys = f"by its exponent of {slope:.2f} more compute buys {'smaller models' if slope < 0 else 'fewer tokens'}"
    if reason and not 0 <= slope <= 1:
        raise InputError.at("", f"{buys}: {reason}")
    if reason:
        return Frontier(approach, *line, None, tuple(best), status="weakly_identified", reasons=(reason,))
    of_grid = 0.0 if sizes is None else np.mean(_steps(y, sizes) ** 2) / 12 / spread
    from_others = (y - y.mean() - slope * away) / (1 - 1 / len(x) - away**2 / spread)
    half = -stdtrit(len(x) - 2, (1 - CONFIDENCE) / 2) * (np.sum((away * from_others / spread) ** 2) + of_grid) ** 0.5
    frontier = Frontier(approach, *line, (float(slope - half), float(slope + half)), tuple(best))
    if slope - half <= 1 and slope + half >= 0:
        return frontier
    return replace(frontier, status="weakly_identified", reasons=(buys,))


def _why_no_interval(sizes: Floats) -> str:
    """Why a line through these log N has no interval; empty if it has one."""
    if len(sizes) < FEWEST_BEST:
        return f"its line goes through {len(sizes)} best models, and an interval needs {FEWEST_BEST} or more"
    if np.ptp(sizes) <= np.log1p(ONE_LINE):
        return f"the {len(sizes)} best models that its line goes through are of one size"
    return ""


def _steps(logs: Floats, tried: Floats) -> Floats:
    """Return the width in log N between the midpoints to the neighbouring sizes tried."""
    grid = np.unique(np.log(tried))
    indices = np.searchsorted(grid, logs)
    below, above = grid[np.maximum(indices - 1, 0)], grid[np.minimum(indices + 1, len(grid) - 1)]
    return np.asarray((above - below) / 2)


def _by_size(sizes: Floats, losses: Floats) -> tuple[Floats, Floats]:
    unique, indices = np.unique(sizes, return_inverse=True)
    return unique, np.bincount(indices, losses) / np.bincount(indices)


def _parabola(sizes: Floats, losses: Floats, window: float) -> tuple[float, float]:
    """Return the vertex of a weighted parabola in log N; the best run if it opens downwards."""
    best = sizes[np.argmin(losses)]
    weights = np.exp(-0.25 * ((sizes - best) / window) ** 2)
    square, slope, level = np.polyfit(sizes - best, losses, 2, w=weights)
    if square <= 0:
        return float(best), float(losses.min())
    vertex = -slope / (2 * square)
    return float(np.clip(best + vertex, sizes[0], sizes[-1])), float(level + slope * vertex / 2)


def _akima(sizes: Floats, losses: Floats) -> tuple[float, float]:
    """Return the minimum of Akima's interpolation beside the best run."""
    best = int(np.argmin(losses))
    between = sizes[max(0, best - 1)], sizes[min(len(sizes) - 1, best + 1)]
    curve = Akima1DInterpolator(sizes, losses)
    result = minimize_scalar(lambda size: float(curve(size)), bounds=between, method="bounded", options={"xatol": 1e-8})
    return float(result.x), float(result.fun)


def _is_above_chord(x: Floats, y: Floats, one: int, two: int, three: int) -> bool:
    """Whether the middle point is on or above the line between the others."""
    return bool((x[two] - x[one]) * (y[three] - y[one]) - (y[two] - y[one]) * (x[three] - x[one]) <= 0)
