"""A law written as a formula is the same law, and its text is never run."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest

from study.base.errors import InputError
from study.laws.catalogue import LAWS, find_law
from study.laws.estimation import Settings, fit
from study.laws.expressions import Jet
from study.laws.law_fits import fit_table
from study.laws.minimising import Space
from study.laws.observations import Observations
from study.laws.reading import TableQuery, read_observations
from study.laws.tables import RunTable
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
    actual = {given: written.estimates[spelled.get(given, given)] for given in usual.estimates}
    assert actual == pytest.approx(usual.estimates, rel=1e-8)
    assert written.objective == pytest.approx(usual.objective, rel=1e-10)
    assert written.status == usual.status
    for given, interval in usual.intervals.items():
        assert written.intervals[spelled.get(given, given)] == pytest.approx(interval, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "exp(s*N^q + S) + exp(B*N^b + Q)*D^-exp(A*N^a + E); s in -5..0; S in -3..5; b in -0.6..0; Q in -10..10; "
        "A in -10..0; E in -5..10",
        "exp(S - s*N^q) + exp(B/N^b + Q)/D^exp(E - A*N^a); S in -5..5; Q in -10..10; E in -5..10",
    ],
)
def test_farseer_written_in_other_signs_and_wider_ranges_gives_the_fit_of_the_catalogue(text: str) -> None:
    known, own = LAWS["farseer"], find_law(text)
    columns = {name: values.ravel() for name, values in zip(known.variables, _grid_of_farseer(), strict=True)}
    noise = np.random.default_rng(1).normal(0, 0.002, len(columns["tokens"]))
    points = Observations.of(columns, known.predict(TRUTHS["farseer"], columns) * np.exp(noise))
    usual, written = (fit(law, points, Settings(bootstrap=0)) for law in (known, own))
    assert written.status != "failed"
    assert written.objective == pytest.approx(usual.objective, rel=1e-4)
    assert written.predict(columns) == pytest.approx(usual.predict(columns), rel=1e-3)


@pytest.mark.filterwarnings("error")
def test_a_law_that_overflows_at_some_starts_is_fitted_without_a_warning() -> None:
    law = find_law("exp(s*N^q + S) + exp(B*N^b + Q)*D^-exp(A*N^a + E); s in -10..10; q in -1..1; A in -10..10; a in -1..1")
    names = ("parameters", "tokens")
    columns = {name: values.ravel() for name, values in zip(names, _grid_of_farseer(), strict=True)}
    points = Observations.of(columns, LAWS["chinchilla"].predict(TRUTHS["chinchilla"], columns))
    for space in get_args(Space):
        assert fit(law, points, Settings(bootstrap=0, space=space, starts=32)).residuals == pytest.approx(0, abs=0.5)


def _grid_of_farseer() -> tuple[np.ndarray, ...]:
    return np.meshgrid(np.geomspace(1e8, 6e9, 14), np.geomspace(1e9, 5e11, 10))


def test_a_wide_range_of_exponents_leaves_rows_their_value_and_zero_none() -> None:
    law = find_law("exp(s*N^q + S) + exp(B*N^b + Q)*D^-exp(A*N^a + E); s in -10..10; q in -1..1; A in -10..10; a in -1..1")
    columns = {"parameters": np.array([1e7, 1e9, 1e12]), "tokens": np.array([1e9, 1e12, 1e6])}
    assert not law.undefined(columns).any()
    assert law.undefined(columns | {"tokens": np.array([0.0, 1e9, -1.0])}).tolist() == [True, False, True]


def test_derivatives_of_every_operation_agree_with_differences() -> None:
    def expression(a: Jet, b: Jet) -> Jet:
        return (1.5 - a * b) ** 2.0 / (a + 2.0).log() + b**a - 2.0 ** -(a / b) + (3.0 / a) ** 0.5 * (a * 0.3 - b).exp()

    point = np.array([1.3, 0.7])
    seeds = [Jet(np.array([value]), {index: np.ones(1)}) for index, value in enumerate(point)]
    actual = expression(*seeds)

    def at(a: float, b: float) -> float:
        return float(expression(Jet(np.array([a])), Jet(np.array([b]))).value[0])

    step = 1e-4 * np.eye(2)
    assert actual.bends is not None
    for one in range(2):
        slope = (at(*(point + step[one])) - at(*(point - step[one]))) / 2e-4
        assert actual.slopes[one][0] == pytest.approx(slope, rel=1e-6)
        for two in range(one, 2):
            ends = [at(*(point + s * step[one] + t * step[two])) for s, t in ((1, 1), (1, -1), (-1, 1), (-1, -1))]
            assert actual.bends[one, two][0] == pytest.approx((ends[0] - ends[1] - ends[2] + ends[3]) / 4e-8, rel=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("E + __import__('os').system('true')*N", "not arithmetic of names and numbers with exp, log and sqrt"),
        ("E + A*N[0]", "not arithmetic"),
        ("E + A*(N if N else 1)", "not arithmetic"),
        ("E + A*(lambda: 1)()", "not arithmetic"),
        ("E + A*N.real", "not arithmetic"),
        ("E + A*(", "cannot be read"),
        ("E + A*B**-alpha", "depth, width, …, or a column of the table), only A, B, E and alpha"),
        ("2*N**-1", "has no parameter to fit"),
        ("E + A/N^(1/0)", "has no value, because 1 / 0 is no finite number"),
        ("E + A*N^-a + B*log(2 - 3)", "has no value, because log(2 - 3) is no finite number"),
        ("E + A*N^-a + B*(-1)^0.5", "is no finite number"),
        ("E + A*N^-a + 9^9^9", "is no finite number"),
        ("E + A*N**-alpha; alpha 0..1", "'alpha 0..1' is not a range; write one as alpha in 0..2"),
        ("E + A*N**-alpha; alpha in 1..1", "is not a range"),
        ("E + A*`Model Size`**-alpha*`n-experts`**-g", "names 'n-experts', which is no column of the table"),
        ("E + A*N**-alpha; alhpa in 0..1", "did you mean 'alpha'?"),
        ("L + A*N**-alpha", "reads the loss that it predicts as L; as a constant to fit it needs a range, as in 'L in 0..10'"),
        ("speed = E + A*N**-alpha", "'speed' is not what a law predicts"),
        ("+".join(["A*N"] * 400), "longer than 1000 characters"),
    ],
)
def test_text_outside_the_grammar_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=r"^--law: ") as refused:
        find_law(text)
    assert message in str(refused.value)


def test_a_formula_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.law"
    file.write_text("loss = E + A*N**-alpha   # saturates\nalpha in 0..2\n# no more\n")
    law = find_law(str(file))
    assert law.formula == "E + A*N**-alpha"
    assert law.at({"parameters": np.array([1e6, 1e9])}).bounds[1].tolist() == [np.inf, np.inf, 2.0]
    assert find_law(law.definition) == law


MIXED = pd.DataFrame(
    {"num_experts": [1.0], "E": [8.0], "lr": [1e-3], "params": [1e8], "n d": [1.0], "lm_loss": [3.0], "code": [3.0]}
)


@pytest.mark.parametrize(
    ("text", "variables", "constants"),
    [
        ("F0 + A*N^-a*num_experts^-g", ("parameters", "num_experts"), ("F0", "A", "a", "g")),
        ("E + A*params^-a", ("E", "parameters"), ("A", "a")),
        ("E + A*N^-a; E in 0..9", ("parameters",), ("E", "A", "a")),
        ("K*(log(lr) - l)^2 + Num_Experts", ("learning_rate",), ("K", "l", "Num_Experts")),
        ("code = F0 + A*`n d`", ("n d",), ("F0", "A")),
        ("F0 + C*N^-a; C in 0..9", ("parameters",), ("F0", "C", "a")),
    ],
)
def test_a_column_named_in_a_formula_is_a_variable_and_a_range_makes_a_constant(
    text: str, variables: tuple[str, ...], constants: tuple[str, ...]
) -> None:
    law = find_law(text, table=RunTable(Path("t.csv"), MIXED))
    assert (law.variables, law.parameters) == (variables, constants)
    again = find_law(law.definition)
    assert (again.variables, again.parameters, again.definition) == (variables, constants, law.definition)


def test_names_that_may_be_meant_otherwise_are_reported() -> None:
    table = RunTable(Path("t.csv"), MIXED)
    columns = [*map(str, MIXED)]
    (clash,) = find_law("E + A*num_experts^-g", table=table).notes_on(columns)
    typo, taken = find_law("B0 + A*params^-a*num_expert^-g", table=table).notes_on(columns)
    lost, _ = find_law("B0 + A*params^-a*Q^-g", table=table).notes_on(columns)
    assert find_law("B0 + A*params^-a", table=table).notes_on(columns) == ()
    assert find_law("B0 + A*params^-a*Q^-g; Q in 1..9", table=table).notes_on(columns) == ()
    assert clash == "E is the table's column; a range makes it a constant to fit: 'E in 0..10'"
    assert typo == "num_expert is taken as a parameter; did you mean the column num_experts?"
    assert taken == "B0, A, a, num_expert and g are taken as parameters, parameters as columns"
    assert lost.startswith(
        "Q is taken as a parameter, and raised to a power; as a column it would be one of num_experts, E, lr"
    )
    assert LAWS["chinchilla-power"].notes_on([*columns, "alpha"]) == ()


def test_a_response_below_zero_is_fitted_where_residuals_are_linear_and_refused_with_the_remedy_elsewhere() -> None:
    random = np.random.default_rng(0)
    size, loss = 10 ** random.uniform(7, 9, 40), random.normal(0, 0.01, 40)
    for floor in (-6.0, -1.5):  # all below zero, and of both signs
        frame = pd.DataFrame({"n_dense": size, "unigram_loss": floor + 60 * size**-0.25 + loss})
        table = RunTable(Path("t.csv"), frame)
        for written in ("unigram_loss = E + A*n_dense^-a", "E + A*n_dense^-a"):
            fitted = fit_table(TableQuery(table), written, Settings(bootstrap=40, space="linear", starts=16), 0.1).fit
            assert fitted.law.definition.endswith(" in -100..100") or floor == -1.5
            assert fitted.estimates["E"] == pytest.approx(floor, abs=0.1)
            assert find_law(fitted.law.definition, table=table) == fitted.law
        message = r"loss \(unigram_loss\): must be positive, but is not in row \d+ .* or give --space linear$"
        with pytest.raises(InputError, match=message):
            fit_table(TableQuery(table), "E + A*n_dense^-a", Settings(bootstrap=0))


def test_a_parameter_on_zero_for_lack_of_a_range_is_reported_with_the_range() -> None:
    size = np.geomspace(1e7, 1e9, 20)
    points = Observations.of({"parameters": size}, 2 - 0.05 * np.log(size / 1e8))
    (reason,) = [reason for reason in fit(find_law("E + k*log(N)"), points, Settings(bootstrap=0)).reasons if "bound" in reason]
    assert reason == "k is on its bound of 0; a range lets it be lower, as in 'k in -10..10'"
    free = fit(find_law("E + k*log(N); k in -10..10"), points, Settings(bootstrap=0))
    assert free.estimates["k"] == pytest.approx(-0.05, rel=1e-6)


def test_a_size_may_be_zero_where_a_law_of_one_s_own_has_a_value_there() -> None:
    tokens = np.tile([0.0, 2e2, 4e2, 8e2, 1.6e3, 3.2e3, 6.4e3, 1.3e4], 3)
    loss = (1 + 20 / (8 + tokens**0.4)) * np.exp(np.random.default_rng(0).normal(0, 1e-3, 24))
    query = TableQuery(RunTable(Path("t.csv"), pd.DataFrame({"tokens": tokens, "loss": loss})), any_units=True)
    fitted = fit_table(query, "E + B/(d + D^b)", Settings(bootstrap=0, starts=16), 0.1).fit
    assert fitted.estimates == pytest.approx({"E": 1.0, "B": 20.0, "d": 8.0, "b": 0.4}, rel=0.1)
    with pytest.raises(InputError, match=r"has no value in row 1, .* where tokens is 0; leave these rows out"):
        fit_table(query, "E + B*D^-b", Settings(bootstrap=0))
    with pytest.raises(InputError, match=r"tokens: must be positive, but is not in row 1 \(0\)"):
        fit_table(query, "tokens-floor", Settings(bootstrap=0))


def test_shares_of_zero_are_fitted_where_the_law_has_a_value_there_and_refused_elsewhere() -> None:
    random = np.random.default_rng(0)
    shares = np.maximum(random.uniform(-0.2, 1, 40), 0.0)
    frame = pd.DataFrame({"share": shares, "loss": 2 + 0.7 * shares**0.6 * np.exp(-0.5 * shares)})
    table = RunTable(Path("t.csv"), frame)
    law = find_law("c + A*share^a*exp(-k*share)", table=table)
    fitted = fit(law, read_observations(TableQuery(table), law), Settings(bootstrap=0, starts=16))
    assert fitted.estimates == pytest.approx({"c": 2.0, "A": 0.7, "a": 0.6, "k": 0.5}, rel=1e-3)
    outside = find_law("c + A*share^-a", table=table)
    with pytest.raises(InputError, match=r"has no value in row \d+.*, where share is 0; leave these rows out"):
        read_observations(TableQuery(table), outside)


def test_letters_that_stand_for_columns_are_told_where_the_table_has_none() -> None:
    table = RunTable(Path("t.csv"), pd.DataFrame({"size": [1e6, 2e6, 4e6], "loss": [3.0, 2.9, 2.8]}))
    law = find_law("A*size^alpha + C*size^b + D", table=table)
    with pytest.raises(InputError) as refused:
        read_observations(TableQuery(table), law)
    assert "--law: in a formula C stands for flops and D for tokens; a range makes a constant" in str(refused.value)
    ranged = find_law("A*size^alpha + C*size^b + D; C in 0..10; D in 0..10", table=table)
    assert ranged.variables == ("size",)


@pytest.mark.parametrize(
    ("text", "unit"),
    [("E + (k*N)^-a", 1e-9), ("E + (k^2*N)^-a", 1e9**-0.5), ("E + (N/k^3)^-a", 1e3), ("E + (N^2/sqrt(D)*k^-1)^-a", 1e18)],
)
def test_the_unit_of_a_parameter_minds_its_own_power(text: str, unit: float) -> None:
    law = find_law(text)
    surface = law.at({name: np.array([1e8, 1e10]) for name in law.variables})
    assert surface.natural(np.ones((1, 3)))[0, law.parameters.index("k")] == pytest.approx(unit)


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("E + (A/(N*(k*log(streams) + 1)))^a", {"E": 1.3, "A": 2e8, "k": 0.33, "a": 0.2}),
        ("E + K*exp(-g*N)*streams^-s", {"E": 1.3, "K": 0.9, "g": 1e-9, "s": 0.1}),
    ],
)
def test_a_parameter_is_found_however_large_the_counts_that_it_multiplies(text: str, truth: dict[str, float]) -> None:
    """As A in A/N is of the size of N: as a number among others, it moves residuals by a billionth of what they move."""
    sizes, streams = (axis.ravel() for axis in np.meshgrid(np.geomspace(5e8, 5e9, 8), [1.0, 2.0, 4.0]))
    columns = {"parameters": sizes, "streams": streams}
    law = find_law(f"{text}; streams is a column")
    noise = np.random.default_rng(0).normal(0, 0.0005, len(sizes))
    fitted = fit(law, Observations.of(columns, law.predict(truth, columns) * np.exp(noise)), Settings(bootstrap=40))
    assert fitted.status == "converged"
    for name, value in truth.items():
        low, high = fitted.intervals[name]
        assert low < value < high
        assert high - low > 0.001 * value
