"""The compute-optimal model: the parameters that a budget should buy, by the three approaches of Hoffmann et al. 2022.

All give N* = scale·C^exponent (arXiv 2203.15556, sec. 3) over C training FLOPs. Which parameters and FLOPs are counted is up to
the caller, and moves the exponent more than the approach does (arXiv 2406.12907).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

Approach = Literal["envelope", "hull", "parabola", "akima", "parametric"]

SAME_BUDGET = 0.1
"""The relative distance in FLOPs up to which runs share a budget."""

ONE_LINE = 0.01
"""The relative spread up to which rows lie on a line in log N and log D."""

ONE_SPLIT = 2.0
"""Runs of a budget are compared where the sizes of nine in ten differ by a larger factor."""

APART = 1.25
"""The factor from which on a model is smaller or larger than another."""

WINDOW = 1.0
"""Runs count in a parabola by exp(−x²/2) of their distance in log N from the best run, in units of this."""

FEWEST_BEST = 3
"""Fewer best models leave a line no degree of freedom."""

_EDGE = 1e-6


@dataclass(frozen=True)
class Best:
    """The best number of parameters at a budget; `inside` says whether smaller and larger models were tried there."""

    flops: float
    parameters: float
    loss: float
    inside: bool


@dataclass(frozen=True)
class Frontier:
    """N* = exp(log_scale)·C^exponent and the best models on it; `compute` says how C was counted.

    The 95% interval of the exponent is Student's for a line through independent runs, or from resamples; None for fewer than
    three best models, for models of one size, and without resamples. `reasons` say why it is weakly identified.
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
        """The best number of parameters at a budget."""
        return float(np.exp(self.log_scale + self.exponent * np.log(flops)))


def check_split(parameters: Floats, tokens: Floats) -> None:
    """Raise InputError where every budget was split in one way only, so that no split can be best.

    That is where D is the same in all rows, or N, or where D is a power of N, such as a fixed number of tokens a parameter.
    """
    if len(tokens) < 2:
        return
    logs = np.log([parameters, tokens])
    across = _across(logs)
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
    raise InputError.at("compute", f"how to split it cannot be asked: {message}")


def envelope(parameters: Floats, flops: Floats, loss: Floats) -> Frontier:
    """Approach 1: a line through the runs that no run of as few FLOPs beats, where smaller and larger ones were tried."""
    _check_sizes(parameters, flops)
    order = np.lexsort((loss, flops))
    front = order[loss[order] < np.concatenate([[np.inf], np.minimum.accumulate(loss[order])[:-1]])]
    return _line("envelope", _front(parameters, flops, loss, front), parameters)


def hull(parameters: Floats, flops: Floats, loss: Floats) -> Frontier:
    """Approach 1 on the lower convex hull of log loss over log FLOPs, which omits runs on the front by noise.

    The hull is Andrew's monotone chain (1979), up to the run of the lowest loss.
    """
    _check_sizes(parameters, flops)
    x, y = np.log(flops), np.log(loss)
    chain: list[int] = []
    for row in np.lexsort((y, x)):
        while len(chain) > 1 and _turns_right(x, y, chain[-2], chain[-1], row):
            chain.pop()
        chain.append(int(row))
    lowest = int(np.argmin(y[chain]))
    return _line("hull", _front(parameters, flops, loss, np.array(chain[: lowest + 1])), parameters)


def iso_flop(
    parameters: Floats, flops: Floats, loss: Floats, valley: Literal["parabola", "akima"] = "parabola", window: float = WINDOW
) -> Frontier:
    """Approach 2: at each budget the lowest point of a curve of loss over log N, and a line through these points.

    `parabola` weighs runs by their distance from the best (an infinite window gives the full parabola of the paper); `akima`
    interpolates all runs (Akima 1970). Budgets with fewer than three sizes (five for `akima`), or whose best run has no smaller
    and larger one beside it, are left out.
    """
    _check_sizes(parameters, flops)
    result = []
    for rows in iso_flop_groups(flops):
        sizes, losses = _by_size(np.log(parameters[rows]), loss[rows])
        if len(sizes) < (3 if valley == "parabola" else 5):
            continue
        middle = float(np.exp(np.log(flops[rows]).mean()))
        lowest, level = _parabola(sizes, losses, window) if valley == "parabola" else _akima(sizes, losses)
        run, apart = sizes[np.argmin(losses)], np.log(APART) - _EDGE
        inside = sizes[0] + apart <= run <= sizes[-1] - apart and sizes[0] + _EDGE < lowest < sizes[-1] - _EDGE
        result.append(Best(middle, float(np.exp(lowest)), level, bool(inside)))
    return _line(valley, result)


def iso_flop_groups(flops: Floats) -> Iterator[Rows]:
    """The rows of each budget, smallest first."""
    rest = np.argsort(flops, kind="stable")
    while len(rest):
        together = flops[rest] <= flops[rest[0]] * (1 + SAME_BUDGET)
        yield rest[together]
        rest = rest[~together]


def parametric(fit: Fit) -> Frontier:
    """Approach 3: the minimum of a fitted Chinchilla law at C = 6·N·D.

    N* = (alpha·A/(beta·B))^(1/(alpha + beta))·(C/6)^(beta/(alpha + beta)). Raises InputError for any other law, and where a
    term is zero.
    """
    if not {"A", "B", "alpha", "beta"} <= set(fit.law.parameters) or set(fit.law.variables) != {"parameters", "tokens"}:
        raise InputError.at(fit.law.name, "has no closed frontier; fit chinchilla")
    a, b, alpha, beta = (fit.estimates[name] for name in ("A", "B", "alpha", "beta"))
    if lost := [name for name in ("A", "B", "alpha", "beta") if fit.estimates[name] <= 0]:
        raise InputError.at(fit.law.name, f"has no best split: {', '.join(lost)} is zero")
    exponent = beta / (alpha + beta)
    places = [fit.law.parameters.index(name) for name in ("alpha", "beta")]
    of_size, of_data = fit.resampled[:, places].T
    low, high = fit.interval(of_data / (of_size + of_data))
    interval = (float(low), float(high)) if fit.intervals else None
    log_scale = np.log(alpha * a / (beta * b)) / (alpha + beta) - exponent * np.log(6)
    return Frontier("parametric", float(exponent), float(log_scale), interval, (), status=fit.status, reasons=fit.reasons)


def _check_sizes(parameters: Floats, flops: Floats) -> None:
    """Raise InputError where nearly every budget was split in one way, so that the line would be the design's.

    That is where sizes at equal C = N·D differ by less than ONE_SPLIT between the 5th and the 95th percentile of the rows.
    """
    if len(flops) < 2:
        return
    logs = np.log([parameters, flops / parameters])
    across = _across(logs)
    low, high = np.percentile(across @ logs, (5, 95))
    at_equal_flops = abs(across[0] - across[1])
    if high - low < at_equal_flops * np.log(ONE_SPLIT):
        within = f"{np.exp((high - low) / at_equal_flops):.2f} times, and need {ONE_SPLIT:g}"
        raise InputError.at("", f"nearly every budget has one split (in nine of ten rows sizes are within {within})")


def _across(logs: Floats) -> Floats:
    """The direction in log N and log D, of length 1, of the least spread."""
    return np.asarray(np.linalg.eigh(np.cov(logs))[1][:, 0])


def _front(parameters: Floats, flops: Floats, loss: Floats, rows: Rows) -> list[Best]:
    """The best runs of a front, inside where smaller and larger models were tried between the two ends of the sizes.

    At a run's budget a smaller model was tried where one has as many FLOPs or more, and a larger one where one has as few or
    fewer. Up to the last budget at which the smallest size leads, and from the first at which the largest does, others lead
    only between the FLOPs of its runs.
    """
    sizes, budgets, share = parameters[rows], flops[rows], 1 + SAME_BUDGET
    order, apart = np.argsort(parameters), APART * (1 - _EDGE)
    tried, spent = parameters[order], flops[order]
    most = np.append(0.0, np.maximum.accumulate(spent))[np.searchsorted(tried, sizes / apart, side="right")]
    fewest = np.append(np.minimum.accumulate(spent[::-1])[::-1], np.inf)[np.searchsorted(tried, sizes * apart)]
    low = budgets[sizes < tried[0] * apart].max(initial=0.0)
    high = budgets[sizes > tried[-1] / apart].min(initial=np.inf)
    inside = (most * share >= budgets) & (fewest <= budgets * share) & (low < budgets) & (budgets < high)
    result = zip(budgets.tolist(), sizes.tolist(), loss[rows].tolist(), inside.tolist(), strict=True)
    return [Best(*one) for one in result]


def _line(approach: Approach, best: Sequence[Best], sizes: Floats | None = None) -> Frontier:
    """Least squares of log N over log C through the best models inside, chosen from these `sizes`.

    Student's interval uses the error HC3, each residual from the line through the others (MacKinnon and White 1985): lowest
    points of few sizes or flat valleys scatter more and lie at the ends. With one scatter for all, intervals of the parabolas
    held the truth in 81% to 93% of draws, with this in 93% to 96%.

    A best model of a grid lies up to half a step beside the true one, which residuals do not show where all lie on one line of
    the grid: the variance of a step between sizes, step²/12, is added.
    """
    used = [one for one in best if one.inside]
    x, y = np.log([[one.flops for one in used], [one.parameters for one in used]])
    if len(np.unique(x)) < 2:
        tried = f" of {len(best)}" if len(used) < len(best) else ""
        message = f"a frontier needs best models between ones {APART:g} times smaller and larger at two budgets or more"
        raise InputError.at("", f"{message}, here are {len(np.unique(x))}{tried}")
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
    """Why a line through best models of these log N has no interval; empty where it has."""
    if len(sizes) < FEWEST_BEST:
        return f"its line goes through {len(sizes)} best models, and an interval needs {FEWEST_BEST} or more"
    if np.ptp(sizes) <= np.log1p(ONE_LINE):
        return f"the {len(sizes)} best models that its line goes through are of one size"
    return ""


def _steps(logs: Floats, tried: Floats) -> Floats:
    """The width in log N from half way to the next smaller to half way to the next larger size tried."""
    grid = np.unique(np.log(tried))
    places = np.searchsorted(grid, logs)
    below, above = grid[np.maximum(places - 1, 0)], grid[np.minimum(places + 1, len(grid) - 1)]
    return np.asarray((above - below) / 2)


def _by_size(sizes: Floats, losses: Floats) -> tuple[Floats, Floats]:
    """The sizes in order, with the mean loss of each."""
    unique, places = np.unique(sizes, return_inverse=True)
    return unique, np.bincount(places, losses) / np.bincount(places)


def _parabola(sizes: Floats, losses: Floats, window: float) -> tuple[float, float]:
    """The vertex of a weighted parabola in log N; the best run where it opens downwards."""
    best = sizes[np.argmin(losses)]
    weights = np.exp(-0.25 * ((sizes - best) / window) ** 2)
    square, slope, level = np.polyfit(sizes - best, losses, 2, w=weights)
    if square <= 0:
        return float(best), float(losses.min())
    vertex = -slope / (2 * square)
    return float(np.clip(best + vertex, sizes[0], sizes[-1])), float(level + slope * vertex / 2)


def _akima(sizes: Floats, losses: Floats) -> tuple[float, float]:
    """The lowest point of Akima's interpolation between the neighbours of the best run."""
    best = int(np.argmin(losses))
    between = sizes[max(0, best - 1)], sizes[min(len(sizes) - 1, best + 1)]
    curve = Akima1DInterpolator(sizes, losses)
    result = minimize_scalar(lambda size: float(curve(size)), bounds=between, method="bounded", options={"xatol": 1e-8})
    return float(result.x), float(result.fun)


def _turns_right(x: Floats, y: Floats, one: int, two: int, three: int) -> bool:
    """Whether the middle of three points lies on or above the line between the others."""
    return bool((x[two] - x[one]) * (y[three] - y[one]) - (y[two] - y[one]) * (x[three] - x[one]) <= 0)
