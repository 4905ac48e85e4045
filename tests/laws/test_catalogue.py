"""Every law: its derivatives agree with differences, and its own made-up data give it back."""

from __future__ import annotations

import numpy as np
import pytest

from study.base.errors import InputError
from study.laws.catalogue import LAWS, find_law
from study.laws.estimation import Settings, fit
from study.laws.law import Law
from study.replicating.studies import MUENNIGHOFF
from tests.points import TRUTHS, columns_of, observed

EVERY_LAW = pytest.mark.parametrize("law", LAWS.values(), ids=list(LAWS))


@EVERY_LAW
def test_gradient_and_curvature_agree_with_differences(law: Law) -> None:
    columns = columns_of(law, 7)
    surface = law.at(columns)
    theta = surface.starts(law.predict(TRUTHS[law.name], columns), 4)[2]
    steps = 1e-5 * np.eye(len(theta))
    gradients = surface.derivatives(theta[None])
    np.testing.assert_allclose(gradients.value, surface.value(theta[None]), rtol=1e-12)
    differences = (surface.value(theta + steps) - surface.value(theta - steps)) / 2e-5
    np.testing.assert_allclose(gradients.jacobian[0], differences.T, rtol=1e-6, atol=1e-7)
    weights = np.random.default_rng(0).normal(size=(1, 7))
    slopes = [surface.derivatives(np.stack([theta + step, theta - step])).jacobian for step in steps]
    bends = np.array([weights[0] @ (up - down) / 2e-5 for up, down in slopes])
    np.testing.assert_allclose(gradients.curvature(weights)[0], bends, rtol=1e-5, atol=1e-5 * np.abs(bends).max())


@EVERY_LAW
def test_parameters_of_the_literature_give_the_same_values(law: Law) -> None:
    columns = columns_of(law, 7)
    surface = law.at(columns)
    theta = surface.starts(law.predict(TRUTHS[law.name], columns), 4)
    np.testing.assert_allclose(law.values(surface.natural(theta), columns), surface.value(theta), rtol=1e-10)
    steps = 1e-6 * np.eye(theta.shape[1])
    differences = (surface.natural(theta[0] + steps) - surface.natural(theta[0] - steps)) / 2e-6
    np.testing.assert_allclose(surface.natural_slopes(theta[0]), differences.T, rtol=1e-5, atol=1e-9)


@EVERY_LAW
def test_a_part_of_a_surface_has_the_values_and_gradients_of_its_rows(law: Law) -> None:
    columns = columns_of(law, 7)
    surface, rows = law.at(columns), np.array([5, 0, 3])
    theta = surface.starts(law.predict(TRUTHS[law.name], columns), 4)[:2]
    value, gradients = surface.gradients(theta)
    part = surface.part(rows)
    np.testing.assert_allclose(part.value(theta), value[:, rows], rtol=1e-12)
    np.testing.assert_allclose(part.gradients(theta)[1], gradients[:, rows], rtol=1e-12)
    np.testing.assert_allclose(gradients, surface.derivatives(theta).jacobian, rtol=1e-12)


LONG = ("chinchilla-power", "data-constrained", "farseer", "gemstones", "learning-rate-batch", "score-of-sizes")
"""Laws that take seconds to fit."""

SHORT_LAWS_FAST = pytest.mark.parametrize(
    "law", [pytest.param(law, id=name, marks=pytest.mark.slow if name in LONG else []) for name, law in LAWS.items()]
)


@SHORT_LAWS_FAST
def test_law_is_recovered_to_the_noise(law: Law) -> None:
    settings = Settings(huber_delta=1e-3, bootstrap=100)
    fitted = fit(law, observed(law), settings)
    assert fitted.status == "converged", fitted.reasons
    errors = np.sqrt(np.diag(fitted.covariance))
    truth = np.array([TRUTHS[law.name][name] for name in law.parameters])
    away = np.abs(np.array(list(fitted.estimates.values())) - truth) / errors
    assert away.max() < 4, dict(zip(law.parameters, away.tolist(), strict=True))
    assert fitted.predict(fitted.observations.columns) == pytest.approx(
        law.predict(TRUTHS[law.name], fitted.observations.columns), rel=0.005
    )


@SHORT_LAWS_FAST
def test_law_is_recovered_exactly_without_noise(law: Law) -> None:
    fitted = fit(law, observed(law, noise=0.0), Settings(bootstrap=0))
    assert fitted.status == "converged", fitted.reasons
    assert fitted.estimates == pytest.approx(TRUTHS[law.name], rel=1e-5)


@EVERY_LAW
def test_law_says_what_it_is(law: Law) -> None:
    assert all(name in law.formula for name in law.parameters)
    assert law.source
    assert law.conventions


def test_kaplans_law_of_both_becomes_its_laws_of_either_where_the_other_is_plentiful() -> None:
    """Kaplan et al. 2020, table 2 (eq. 1.5): α_N 0.076, α_D 0.103, N_c 6.4e13, D_c 1.8e13; eq. 1.1 and 1.2 are its ends."""
    alpha_n, alpha_d, n_c, d_c = 0.076, 0.103, 6.4e13, 1.8e13
    published = {"A": n_c ** (alpha_n / alpha_d), "alpha_N": alpha_n, "alpha_D": alpha_d, "B": d_c}
    some, endless = np.array([1e6, 1e9]), np.full(2, 1e40)
    by_size = LAWS["kaplan"].predict(published, {"parameters": some, "tokens": endless})
    np.testing.assert_allclose(by_size, LAWS["power"].predict({"A": n_c**alpha_n, "alpha": alpha_n}, {"parameters": some}))
    by_tokens = LAWS["kaplan"].predict(published, {"parameters": endless, "tokens": some})
    np.testing.assert_allclose(by_tokens, LAWS["tokens"].predict({"B": d_c**alpha_d, "beta": alpha_d}, {"tokens": some}))


def test_data_constrained_is_chinchilla_without_repeats_or_excess() -> None:
    columns = {"parameters": np.full(3, 1e9), "tokens": np.geomspace(1e11, 1e12, 3), "unique_tokens": np.full(3, 2e12)}
    chinchilla = {name: MUENNIGHOFF[name] for name in ("E", "A", "B", "alpha", "beta")}
    for name in ("data-constrained", "repeated-tokens"):
        actual = LAWS[name].predict(MUENNIGHOFF, columns)
        np.testing.assert_allclose(actual, LAWS["chinchilla"].predict(chinchilla, columns), rtol=1e-12)


def test_derivatives_hold_on_both_sides_of_the_most_useful_parameters() -> None:
    law = LAWS["data-constrained"]
    columns = {"parameters": np.array([1e7, 1e8, 4e9, 5e10]), "tokens": np.full(4, 4e10), "unique_tokens": np.full(4, 1e10)}
    surface = law.at(columns)
    theta = np.array([1.5, 0.1, -0.3, 0.35, 0.3, 2.0, 1.0])
    natural = surface.natural(theta[None])[0]
    effective = law.values(natural[None], columns)[0]
    plain = natural[0] + natural[1] * columns["parameters"] ** -natural[3]
    beyond = effective - plain - (effective - plain)[0] > 1e-9
    assert beyond.tolist() == [False, False, True, True]
    steps = 1e-6 * np.eye(7)
    differences = (surface.value(theta + steps) - surface.value(theta - steps)) / 2e-6
    np.testing.assert_allclose(surface.derivatives(theta[None]).jacobian[0], differences.T, rtol=1e-6, atol=1e-8)


def test_unknown_law_names_the_nearest_or_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"^--law: 'Chinchila' is not a known law; did you mean 'chinchilla'\?$"):
        find_law("Chinchila")
    with pytest.raises(InputError, match=r"'x' is not a known law; known: chinchilla, .*power-floor"):
        find_law("x")
    with pytest.raises(InputError, match=r"is missing; known: power, .*chinchilla"):
        find_law(None)
    assert find_law("Chinchilla") is LAWS["chinchilla"]
