"""A race that is looked at after every seed errs as seldom as it says, and spends less than all seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from study.designing.racing import measure, race, simulate_races, valid_interval, write

SWEEPS = 300


def allowed(sweeps: int) -> float:
    """5% and three standard errors of so many sweeps."""
    return float(0.05 + 3 * (0.05 * 0.95 / sweeps) ** 0.5)


@pytest.mark.parametrize("variants", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shared", [0.0, 0.5])
def test_null_races_err_in_at_most_five_percent(variants: int, shared: float) -> None:
    """12 seeds, scatter that differs fivefold between variants, and noise of the validation set that all seeds share."""
    odds = simulate_races(0.0, (0.2, 1.0), 12, variants=variants, shared=shared, difference=0.1, sweeps=SWEEPS, seed=variants)
    assert odds.wrong <= allowed(SWEEPS)
    assert odds.decided <= odds.wrong


def test_a_clear_best_is_found_for_fewer_runs_and_rarely_dropped() -> None:
    odds = simulate_races(5.0, (0.2, 1.0), 12, variants=3, shared=0.3, difference=0.1, sweeps=100)
    assert odds.decided > 0.95
    assert odds.wrong <= allowed(100)
    assert odds.spent < 0.55
    assert odds.fixed >= odds.decided


def test_two_variants_are_decided_at_the_seed_at_which_their_interval_excludes_zero() -> None:
    losses = np.random.default_rng(0).normal(size=(2, 12)) * 0.1 + np.array([[0.0], [0.3]])
    looks = race(losses, difference=0.01)
    ends = [valid_interval(losses[0, :count] - losses[1, :count], 0.0, 12) for count in range(1, 13)]
    first = next(count for count, (low, high) in enumerate(ends, 1) if low > 0 or high < 0)
    assert looks[-1].seeds == first
    assert looks[-1].outcome == "best"
    assert looks[-1].standing == (0,)


def test_equal_variants_end_within_the_difference_that_matters_and_lacking_ones_stop_the_race() -> None:
    losses = np.random.default_rng(0).normal(size=(3, 40)) * 1e-3
    assert race(losses, difference=0.5)[-1].outcome == "equal"
    losses[1, 3:] = np.nan
    assert [look.seeds for look in race(losses, difference=1e-9)] == [1, 2, 3]


def test_a_variant_that_dropped_out_needs_no_more_seeds() -> None:
    losses = np.random.default_rng(1).normal(size=(3, 30)) * 0.1 + np.array([[0.0], [0.02], [5.0]])
    until = next(look.seeds for look in race(losses, difference=1e-9) if 2 not in look.standing)
    losses[2, until:] = np.nan
    looks = race(losses, difference=1e-9)
    assert len(looks) > until
    assert all(later.half_width <= before.half_width for before, later in zip(looks[until:], looks[until + 1 :], strict=False))


def test_the_table_has_a_row_for_each_race(tmp_path: Path) -> None:
    rows = measure(sweeps=2)
    assert len(rows) == 15
    text = write(rows, tmp_path).read_text()
    assert text.count("\n| ") == 2 + len(rows)


@pytest.mark.slow
def test_the_table_of_a_thousand_sweeps_errs_as_seldom_as_it_says() -> None:
    assert all(row["wrong"] <= allowed(1000) for row in measure())
