"""SciPy is timed on the problem that we solve."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad, minimize

from study.laws.catalogue import LAWS
from study.laws.estimation import Settings, fit
from study.laws.observations import Observations
from study.replicating.fit_times import NAMES, drawn, objective


def test_scipy_is_given_our_objective_and_its_gradient_and_gains_nothing_from_our_optimum() -> None:
    points = Observations.of(*drawn(60))
    ours = fit(LAWS["chinchilla"], points, Settings(bootstrap=0))
    estimates = np.array([ours.estimates[name] for name in NAMES])
    theta = np.concatenate([np.log(estimates[:3]), estimates[3:]])
    sizes = points.columns["parameters"], points.columns["tokens"]
    assert objective(theta, sizes, points.response)[0] == pytest.approx(ours.objective, rel=1e-9)
    off = theta + 0.01
    parts = (lambda at: objective(at, sizes, points.response)[0]), (lambda at: objective(at, sizes, points.response)[1])
    assert check_grad(*parts, off) < 1e-5 * np.linalg.norm(parts[1](off))
    best = minimize(objective, theta, (sizes, points.response), jac=True, method="BFGS")
    assert best.fun > ours.objective * (1 - 1e-3)
