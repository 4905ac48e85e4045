"""The points of a study: what orders them, what is one run, and when they are too few for a law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from study.base.errors import InputError
from study.laws.catalogue import LAWS
from study.laws.observations import BY_CHOICE, Observations, budget_name, budget_of

SIZES = {"parameters": np.array([4.0, 1.0, 3.0, 2.0, 5.0]), "tokens": np.full(5, 10.0)}


def points() -> Observations:
    """Five rows of three runs, not in the order of their budgets."""
    return Observations.of(SIZES, np.arange(5.0), np.array([7, 7, 9, 3, 9]))


@pytest.mark.parametrize(
    ("columns", "name", "budget"),
    [
        ({"parameters": 2.0, "tokens": 3.0, "flops": 5.0}, "flops", 5.0),
        ({"parameters": 2.0, "tokens": 3.0, "unique_tokens": 7.0}, "6·N·D", 36.0),
        ({"tokens": 3.0, "epochs": 2.0}, "tokens", 3.0),
        ({"parameters": 2.0, "epochs": 2.0}, "parameters", 2.0),
        ({"loss": 4.0}, "1/loss", 0.25),
        ({"loss": 4.0, "depth": 4.0, "width": 8.0}, "depth·width", 32.0),
        ({"loss": 4.0, "learning_rate": 8.0}, "", 1.0),
    ],
)
def test_rows_are_ordered_by_the_dearest_thing_that_is_known(columns: dict[str, float], name: str, budget: float) -> None:
    assert budget_name(columns) == name
    assert budget_of({column: np.array([value]) for column, value in columns.items()}) == pytest.approx([budget])


def test_what_is_kept_stays_together_and_its_runs_are_numbered_anew() -> None:
    kept = points().where(np.array([True, False, True, False, True]))
    assert (points().n_runs, kept.n_runs, len(kept)) == (3, 2, 3)
    assert sorted(set(points().clusters.tolist())) == [0, 1, 2]
    assert kept.clusters.tolist() == [0, 1, 1]
    assert kept.labels == ("row 0", "row 2", "row 4")
    assert kept.budget == pytest.approx(6 * kept.columns["parameters"] * kept.columns["tokens"])


def test_thinned_rows_are_spread_from_the_smallest_budget_to_the_largest() -> None:
    assert sorted(points().thinned(3).columns["parameters"]) == [1, 3, 5]
    assert points().thinned(5).labels == points().labels


def test_a_law_needs_one_point_more_than_it_has_parameters_and_repeats_are_no_points() -> None:
    law = LAWS["power"]
    needed = len(law.parameters) + 1
    sizes = np.arange(1.0, needed + 1)
    enough = Observations.of({law.variables[0]: sizes}, sizes)
    enough.check(law)
    twice = Observations.of({law.variables[0]: np.repeat(sizes[1:], 2)}, np.repeat(sizes[1:], 2))
    assert (enough.settings(law), twice.settings(law)) == (needed, needed - 1)
    grid = Observations.of({"parameters": np.array([1.0, 1.0, 2.0, 2.0]), "tokens": np.array([1.0, 2.0, 1.0, 1.0])}, np.ones(4))
    assert grid.settings(LAWS["chinchilla"]) == 3, "of two variables together"
    gone = {"a": "torn", "b": f"{BY_CHOICE}where", "c": f"{BY_CHOICE}where"}
    with pytest.raises(InputError, match=rf"got {needed - 1} in {2 * (needed - 1)} rows; left out: 1 row \(torn\)$"):
        replace(twice, excluded=gone).check(law)
    gone |= {"d": "stuck", "e": "stuck"}
    with pytest.raises(InputError, match=r"; left out: 3 rows \(2 of them: stuck\)$"):
        replace(twice, excluded=gone).check(law)


def test_of_no_rows_it_is_said_that_there_are_none_and_nothing_else() -> None:
    law = LAWS["repeated-tokens"]
    with pytest.raises(InputError) as caught:
        Observations.of({name: np.array([]) for name in law.variables}, np.array([])).check(law)
    needed = len(law.parameters) + 1
    assert str(caught.value).endswith(f" parameters need {needed} or more different points, got 0")


def test_rows_are_counted_beside_their_runs_and_what_misses_a_law_together() -> None:
    assert points().counted == "5 rows of 3 runs"
    of_shapes = replace(points(), clusters=np.array([0, 0, 1, 0, 1]), cluster="shape")
    assert of_shapes.counted == "5 rows of 3 runs and 2 shapes"
