"""A race that is looked at after every seed errs as seldom as it says, and spends less than all seeds.

So do the intervals of every look, and they err hardly seldomer than they say.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm, t

from study.designing.racing import FIRST, SPENDING, boundaries, measure, race, simulate_races, valid_interval, write
from study.laws.law import Floats

SWEEPS = 300

SEQUENCES, MOST = 1000, 12


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
    assert len(rows) == 45
    assert {row["seeds"] for row in rows} == {3, 6, 12}
    text = write(rows, tmp_path).read_text()
    assert text.count("\n| ") == 2 + len(rows)


@pytest.mark.slow
def test_the_table_of_a_thousand_sweeps_errs_as_seldom_as_it_says() -> None:
    assert all(row["wrong"] <= allowed(1000) for row in measure())


def test_one_look_is_the_t_test() -> None:
    assert boundaries(FIRST, 0.05) == pytest.approx([t.ppf(0.975, FIRST - 1)])
    differences = np.array([1.0, 1.1, 0.9])
    error = differences.std(ddof=1) / 3**0.5
    assert valid_interval(differences, 0.0, 3) == pytest.approx(t.interval(0.95, 2, loc=1.0, scale=error))


@pytest.mark.parametrize(("most", "error"), [(6, 0.05), (12, 0.05), pytest.param(12, 0.05 / 6, marks=pytest.mark.slow)])
def test_null_sequences_exceed_the_boundaries_as_often_as_planned_at_each_look(most: int, error: float) -> None:
    """Of 200,000 sequences; t does not depend on their scatter."""
    many = 200_000
    values = np.random.default_rng(most).normal(size=(many, most))
    counts = np.arange(1, most + 1)
    means = np.cumsum(values, axis=1) / counts
    squares = np.cumsum(values**2, axis=1) - counts * means**2
    statistic = np.abs(means[:, FIRST - 1 :]) / np.sqrt(squares / counts / np.maximum(counts - 1, 1))[:, FIRST - 1 :]
    exceeded = np.logical_or.accumulate(statistic > boundaries(most, error), axis=1).mean(axis=0)
    planned = error * (np.arange(FIRST, most + 1) / most) ** SPENDING
    assert (np.abs(exceeded - planned) < 4 * np.sqrt(planned / many)).all()


def test_boundaries_fall_to_little_more_than_that_of_one_look() -> None:
    bounds = boundaries(MOST, 0.05)
    assert all(later < before for before, later in pairwise(bounds))
    assert 1.0 < bounds[-1] / t.ppf(0.975, MOST - 1) < 1.25


def test_few_seeds_decide_nothing_and_shared_noise_widens() -> None:
    assert valid_interval(np.array([1.0, 1.01]), 0.0, MOST) == (-np.inf, np.inf)
    differences = np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.0])
    alone, beside = valid_interval(differences, 0.0, MOST), valid_interval(differences, 0.1, MOST)
    assert (beside[1] - beside[0]) / 2 > norm.ppf(0.975) * 0.1
    assert sum(beside) == pytest.approx(sum(alone))


def sweeps(effect: float, shared: float, seed: int) -> Floats:
    """Differences of two variants with unequal scatter over seeds, on one validation set whose noise all share."""
    random = np.random.default_rng(seed)
    scatter = random.uniform(0.2, 1.0, (2, SEQUENCES, 1))
    of_seeds = random.normal(size=(2, SEQUENCES, MOST)) * scatter
    return np.asarray(effect + of_seeds[0] - of_seeds[1] + shared * random.normal(size=(SEQUENCES, 1)))


def seeds_until_decided(differences: Floats, shared: float, most: int) -> int | None:
    """After how many seeds, looked at one by one, the interval first excludes 0; None if it never does."""
    for count in range(FIRST, most + 1):
        low, high = valid_interval(differences[:count], shared, most)
        if low > 0 or high < 0:
            return count
    return None


@pytest.mark.parametrize("shared", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("most", [3, 6, 12])
def test_null_sweeps_are_decided_in_at_most_five_percent(most: int, shared: float) -> None:
    """Looked at after each of 3 to `most` seeds; the bound leaves three standard errors of 1,000 sweeps."""
    wrong = sum(seeds_until_decided(one, shared, most) is not None for one in sweeps(0.0, shared, seed=most))
    assert wrong <= SEQUENCES * 0.05 + 3 * (SEQUENCES * 0.05 * 0.95) ** 0.5
    if not shared:
        assert wrong >= SEQUENCES * 0.05 - 3 * (SEQUENCES * 0.05 * 0.95) ** 0.5


def test_a_large_effect_is_decided_before_the_last_seed() -> None:
    looks = [seeds_until_decided(one, 0.5, MOST) for one in sweeps(5.0, 0.5, seed=4)]
    decided = [count for count in looks if count is not None]
    assert len(decided) > 0.99 * SEQUENCES
    assert np.mean(decided) < 0.5 * MOST
