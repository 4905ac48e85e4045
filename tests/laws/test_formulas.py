"""A law written as a formula is the same law, and its text is never run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from study.base.errors import InputError
from study.laws.catalogue import LAWS, find_law
from study.laws.estimation import Settings, fit
from study.laws.jets import Jet
from study.laws.observations import Observations
from tests.points import TRUTHS, columns_of

WRITTEN = {
    "power": "A*N**-alpha",
    "power-floor": "E + A·N^−alpha",
    "tokens-floor": "E + B/D**beta",
    "flops": "K*C**-gamma",
    "chinchilla": "E + A*N**-alpha + B*D**-beta",
    "chinchilla-tied": "loss = E + A/N**alpha + B/D**alpha",
    "error-of-loss": "error = ceiling - k*exp(-gamma*L); gamma in 0..100",
    "repeated-tokens": "E + A*N**-alpha + B*(U*(1 + R_D*(1 - exp(-(D/U - 1)/R_D))))**-beta",
    "score-of-loss": "score = chance + (ceiling - chance)/(1 + exp(k*(L - L0)))",
}
"""Laws of the catalogue as their users would write them."""


@pytest.mark.parametrize("name", WRITTEN)
def test_a_law_of_the_catalogue_written_as_a_formula_gives_the_same_fit(name: str) -> None:
    known, own = LAWS[name], find_law(WRITTEN[name])
    columns = columns_of(known, 60)
    if "unique_tokens" in columns:
        columns["unique_tokens"] = np.minimum(columns["unique_tokens"], columns["tokens"])
    exact = known.predict(TRUTHS[name], columns)
    points = Observations.of(columns, exact * np.exp(np.random.default_rng(1).normal(0, 0.002, 60)))
    settings = Settings(bootstrap=40, starts=32, space="linear" if known.predicts == "score" else "log")
    usual, written = fit(known, points, settings), fit(own, points, settings)
    assert (own.predicts, set(own.variables)) == (known.predicts, set(known.variables))
    spelled = {"C": "K"} if name == "flops" else {}
    found = {given: written.estimates[spelled.get(given, given)] for given in usual.estimates}
    assert found == pytest.approx(usual.estimates, rel=1e-8)
    assert written.objective == pytest.approx(usual.objective, rel=1e-10)
    assert written.status == usual.status
    for given, interval in usual.intervals.items():
        assert written.intervals[spelled.get(given, given)] == pytest.approx(interval, rel=1e-6)


def test_derivatives_of_every_operation_agree_with_differences() -> None:
    def expression(a: Jet, b: Jet) -> Jet:
        return (1.5 - a * b) ** 2.0 / (a + 2.0).log() + b**a - 2.0 ** -(a / b) + (3.0 / a) ** 0.5 * (a * 0.3 - b).exp()

    point = np.array([1.3, 0.7])
    seeds = [Jet(np.array([value]), {index: np.ones(1)}) for index, value in enumerate(point)]
    found = expression(*seeds)

    def at(a: float, b: float) -> float:
        return float(expression(Jet(np.array([a])), Jet(np.array([b]))).value[0])

    step = 1e-4 * np.eye(2)
    assert found.bends is not None
    for one in range(2):
        slope = (at(*(point + step[one])) - at(*(point - step[one]))) / 2e-4
        assert found.slopes[one][0] == pytest.approx(slope, rel=1e-6)
        for two in range(one, 2):
            ends = [at(*(point + s * step[one] + t * step[two])) for s, t in ((1, 1), (1, -1), (-1, 1), (-1, -1))]
            assert found.bends[one, two][0] == pytest.approx((ends[0] - ends[1] - ends[2] + ends[3]) / 4e-8, rel=1e-4)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("E + __import__('os').system('true')*N", "not arithmetic of names and numbers with exp, log and sqrt"),
        ("E + A*N[0]", "not arithmetic"),
        ("E + A*(N if N else 1)", "not arithmetic"),
        ("E + A*(lambda: 1)()", "not arithmetic"),
        ("E + A*N.real", "not arithmetic"),
        ("E + A*(", "cannot be read"),
        ("E + A*B**-alpha", "names no variable (N, D, F, C, L, U, depth, width, …), only A, B, E and alpha"),
        ("2*N**-1", "has no parameter to fit"),
        ("E + A*N**-alpha; alpha 0..1", "'alpha 0..1' is not a range; write one as alpha in 0..2"),
        ("E + A*N**-alpha; alpha in 1..1", "is not a range"),
        ("E + A*N**-alpha; alhpa in 0..1", "did you mean 'alpha'?"),
        ("speed = E + A*N**-alpha", "'speed' is not what a law predicts"),
        ("+".join(["A*N"] * 400), "longer than 1000 characters"),
    ],
)
def test_text_outside_the_grammar_is_refused(text: str, told: str) -> None:
    with pytest.raises(InputError, match=r"^--law: ") as refused:
        find_law(text)
    assert told in str(refused.value)


def test_a_formula_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.law"
    file.write_text("loss = E + A*N**-alpha   # saturates\nalpha in 0..2\n# no more\n")
    law = find_law(str(file))
    assert law.formula == "E + A*N**-alpha"
    assert law.at({"parameters": np.array([1e6, 1e9])}).bounds[1].tolist() == [np.inf, np.inf, 2.0]
    assert find_law(law.name) == law
