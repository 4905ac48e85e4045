"""The status of a fit, and the reasons for it: what was found at its answer that a reader must know."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from study.base.quantities import plural
from study.laws.law import Floats, Law
from study.laws.minimising import Objective
from study.laws.observations import Observations
from study.laws.uncertainty import Bootstrap

Intervals = Mapping[str, tuple[float, float]]
"""Low and high by parameter."""

Status = Literal["converged", "on_bound", "weakly_identified", "failed"]
"""`on_bound`: a parameter ended on its bound; `weakly_identified`: the rows hardly tell a parameter, or many
resamples do not converge; `failed`: restarting at the answer still gains."""

UNTOLD: tuple[Status, ...] = ("on_bound", "failed")
"""The statuses of fits whose constants say nothing."""

REGAIN = 1e-8
"""A restart that lowers the objective by more than this share of it shows that the fit had not converged."""

WIDEST = 10.0
"""An exponent, or a worth of repeats, whose 95% interval spans more than this factor is hardly told by the rows."""

FEWEST_CLUSTERS_OF_ROWS = 6
"""Fewer clusters of many rows hardly tell how they scatter: of 3 runs intervals of 95% covered 0.78, of 4 0.85 to 0.89, of 5
0.90 to 0.95, of 6 0.93 to 0.97."""

WORST_CONDITION = 1e8
"""Beyond this condition number of the scaled normal matrix the rows hardly tell the parameters apart."""


def failures(converged: bool, regained: float) -> list[str]:
    """What shows that the minimiser had not arrived; `regained` is what a restart lowered the objective by, of itself."""
    reasons = [] if converged else ["the minimiser stopped before its last step gained nothing"]
    if regained > REGAIN:
        reasons.append(f"restarting at the answer lowered the objective by {regained:.1e} of itself")
    return reasons


def bounds_met(law: Law, resting: NDArray[np.bool_], estimates: Floats) -> list[str]:
    """The parameters that rest on a bound, which their estimates say."""
    found = zip(law.parameters, resting, estimates.tolist(), strict=True)
    return [f"{name} is on its bound of {value:g}" for name, rests, value in found if rests]


def weaknesses(
    law: Law, points: Observations, objective: Objective, condition: float, intervals: Intervals, resamples: Bootstrap
) -> list[str]:
    """What shows that the rows hardly tell the parameters; `intervals` are of those that do not rest on a bound themselves.

    Points are few where they are fewer than twice the parameters. Their intervals are nearly the whole range of the resamples:
    of nine points of chinchilla those of 95% held alpha and beta in 96% to 98% of draws, of five of power-floor in 97% to 99%,
    where plain percentiles hold them in 83% to 96% and in 78% to 93%.
    """
    reasons = []
    if condition > WORST_CONDITION:
        reasons.append(f"the condition number is {condition:.1e}")
    settings, parameters = points.settings(law), len(law.parameters)
    if (spare := settings - parameters) < parameters:
        degrees = f"{plural(spare, 'degree')} of freedom"
        reasons.append(f"{settings} different points leave {degrees} for {parameters} parameters")
    bounds = objective.surface.natural(np.array(objective.surface.bounds)).T
    for name, (lowest, highest) in zip(law.parameters, bounds.tolist(), strict=True):
        low, high = intervals.get(name, (np.nan, np.nan))
        if met := [f"{bound:g}" for end, bound in ((low, lowest), (high, highest)) if isclose(end, bound, rel_tol=1e-6)]:
            reasons.append(f"the interval of {name} ends on its bound of {' and of '.join(met)}")
        elif name in law.watched and lowest >= 0 and low * WIDEST < high:
            span = "reaches 0" if low < 1e-3 * high else f"spans a factor of {high / low:.0f}"
            reasons.append(f"the interval of {name} {span}")
    if points.n_clusters < FEWEST_CLUSTERS_OF_ROWS and points.n_clusters < len(points):
        few = plural(points.n_clusters, points.cluster)
        reasons.append(f"the rows are of {few}, too few to tell how {points.cluster}s scatter")
    drawn = resamples.failed + len(resamples.theta)
    if resamples.failed > 0.05 * drawn:
        reasons.append(f"{resamples.failed} of {drawn} resamples did not converge")
    return reasons
