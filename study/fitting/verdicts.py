"""The status of a fit, and the reasons for it: what was found at its answer that a reader must know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from study.fitting.laws import Law
from study.fitting.minimising import Objective
from study.fitting.uncertainty import Bootstrap
from study.wording import plural

Status = Literal["converged", "on_bound", "weakly_identified", "failed"]
"""`on_bound`: a parameter ended on its bound; `weakly_identified`: the rows hardly tell a parameter, or many
resamples do not converge; `failed`: restarting at the answer still gains."""

REGAIN = 1e-8
"""A restart that lowers the objective by more than this share of it shows that the fit had not converged."""

WORST_CONDITION = 1e8
"""Beyond this condition number of the scaled normal matrix the rows hardly tell the parameters apart."""


def failures(converged: bool, regained: float) -> list[str]:
    """What shows that the minimiser had not arrived; `regained` is what a restart lowered the objective by, of itself."""
    reasons = [] if converged else ["the minimiser stopped before its last step gained nothing"]
    if regained > REGAIN:
        reasons.append(f"restarting at the answer lowered the objective by {regained:.1e} of itself")
    return reasons


def bounds_met(law: Law, resting: NDArray[np.bool_]) -> list[str]:
    """The parameters that rest on a bound."""
    return [f"{name} is on its bound" for name, rests in zip(law.parameters, resting, strict=True) if rests]


def weaknesses(
    law: Law, objective: Objective, condition: float, intervals: Mapping[str, tuple[float, float]], resamples: Bootstrap
) -> list[str]:
    """What shows that the rows hardly tell the parameters."""
    reasons = []
    if condition > WORST_CONDITION:
        reasons.append(f"the condition number is {condition:.1e}")
    spare = len(objective.response) - len(law.parameters)
    if spare < 2:
        reasons.append(
            f"{len(objective.response)} points leave {plural(spare, 'degree')} of freedom for {len(law.parameters)} parameters"
        )
    floor = dict(zip(law.parameters, objective.surface.bounds[0], strict=True))
    for name in law.exponents:
        if name in intervals and floor[name] >= 0 and intervals[name][0] < 1e-3 * intervals[name][1]:
            reasons.append(f"the interval of {name} reaches 0")
    drawn = resamples.failed + len(resamples.theta)
    if resamples.failed > 0.05 * drawn:
        reasons.append(f"{resamples.failed} of {drawn} resamples did not converge")
    return reasons
