"""What a fit must show to be called converged, and what a reader is told where it does not."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from study.base.errors import InputError
from study.laws import estimation
from study.laws.catalogue import LAWS
from study.laws.estimation import Settings, fit
from study.laws.law import Floats, Law
from study.laws.minimising import Minima, Objective, minimise
from study.laws.observations import Observations
from study.laws.uncertainty import Bootstrap, failures, weaknesses
from tests.points import TRUTHS, observed

LAW = LAWS["power-floor"]


def test_a_restart_that_gains_a_hundred_millionth_shows_a_failed_fit() -> None:
    assert failures(True, 0.9e-8) == []
    assert failures(True, 1.1e-8) == ["a restart at the estimate lowered the objective by a relative 1.1e-08"]
    assert failures(False, 0.0) == ["the minimiser stopped before its last step gained nothing"]


@pytest.mark.parametrize(
    ("sound", "weak", "weakness"),
    [
        ({"condition": 0.9e8}, {"condition": 1.1e8}, "the condition number is 1.1e+08"),
        ({"rows": 6}, {"rows": 5}, "5 different points leave 2 degrees of freedom for 3 parameters"),
        ({"alpha": (0.1, 0.9)}, {"alpha": (0.1, 1.1)}, "the interval of alpha spans a factor of 11"),
        ({}, {"alpha": (1e-4, 0.5)}, "the interval of alpha reaches 0"),
        ({"alpha": (1.5, 9.99)}, {"alpha": (1.5, 10.0)}, "the interval of alpha ends on its bound of 10"),
        ({}, {"alpha": (0.0, 10.0)}, "the interval of alpha ends on its bound of 0 and of 10"),
        ({"floor": (0.01, 2.0)}, {"floor": (0.0, 2.0)}, "the interval of E ends on its bound of 0"),
        ({"failed": 5}, {"failed": 6}, "more than 5% of 100 resamples did not converge"),
        ({"runs": 6}, {"runs": 5}, "the rows are of 5 runs, too few to show how runs scatter"),
    ],
)
def test_rows_that_hardly_determine_the_parameters_are_named(
    sound: dict[str, Any], weak: dict[str, Any], weakness: str
) -> None:
    assert weaknesses_of(**sound) == []
    assert weaknesses_of(**weak) == [weakness]


def weaknesses_of(
    condition: float = 1.0,
    rows: int = 20,
    alpha: tuple[float, float] = (0.2, 0.4),
    floor: tuple[float, float] = (1.5, 2.0),
    failed: int = 0,
    runs: int | None = None,
) -> list[str]:
    points = observed(LAW, rows=rows)
    points = replace(points, clusters=np.arange(rows) % (runs or rows))
    objective = Objective(LAW.at(points.columns), points.response, 1e-3, "log")
    resamples = Bootstrap("refit", np.ones((100 - failed, 3)), np.arange(100 - failed), failed=failed)
    return weaknesses(LAW, points, objective, condition, {"E": floor, "alpha": alpha}, resamples)


def test_rows_that_repeat_little_do_not_show_what_repeats_are_worth() -> None:
    law = LAWS["repeated-tokens"]
    fits = {epochs: fit(law, repeated(law, epochs), Settings(bootstrap=200)) for epochs in (1.3, 40.0)}
    low, high = fits[40.0].intervals["R_D"]
    assert (fits[40.0].status, low < TRUTHS[law.name]["R_D"] < high) == ("converged", True)
    assert fits[1.3].status == "weakly_identified"
    assert any(reason == "the interval of R_D ends on its bound of 1096.63" for reason in fits[1.3].reasons)
    with pytest.raises(InputError) as caught:
        fit(law, repeated(law, 1.0))
    assert str(caught.value) == (
        "unique_tokens: is no less than tokens in all 36 rows: nothing repeats, but repeated-tokens "
        "measures the value of repeats; use chinchilla"
    )


def repeated(law: Law, most_epochs: float) -> Observations:
    sizes, tokens, epochs = np.meshgrid(
        np.geomspace(1e7, 1e9, 3), np.geomspace(1e8, 1e10, 4), np.linspace(1, most_epochs, 3), indexing="ij"
    )
    columns = {"parameters": sizes.ravel(), "tokens": (tokens * epochs).ravel(), "unique_tokens": tokens.ravel()}
    noise = np.exp(np.random.default_rng(0).normal(0, 0.002, 36))
    return Observations.of(columns, law.predict(TRUTHS[law.name], columns) * noise)


def test_a_fit_that_did_not_converge_has_failed_whatever_else_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    points, settings = observed(LAWS["power"], noise=0.0), Settings(bootstrap=0)
    assert fit(LAW, points, settings).status == "on_bound"
    best = estimation._best

    def unfinished(*of: Any) -> tuple[Minima, float, Floats]:
        fitted, regained, flat = best(*of)
        return replace(fitted, converged=~fitted.converged), regained, flat

    monkeypatch.setattr(estimation, "_best", unfinished)
    fitted = fit(LAW, points, settings)
    assert fitted.status == "failed"
    assert fitted.reasons[:2] == ("the minimiser stopped before its last step gained nothing", "E is on its bound of 0")


def test_a_fit_that_a_restart_improves_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two of three passes leave the starts where they are."""
    passes = count()

    def late(objective: Objective, theta: Floats, weights: Floats) -> Minima:
        if next(passes) < 2:
            return Minima(theta, objective.value(theta, weights), np.full(len(theta), True))
        return minimise(objective, theta, weights)

    points, settings = observed(LAWS["power"]), Settings(bootstrap=0)
    estimates = fit(LAWS["power"], points, settings).estimates
    monkeypatch.setattr(estimation, "minimise", late)
    fitted = fit(LAWS["power"], points, settings)
    assert fitted.status == "failed"
    assert fitted.reasons[0].startswith("a restart at the estimate lowered the objective by ")
    assert fitted.estimates == pytest.approx(estimates)
