"""Looking after every seed and stopping at a decision errs as seldom as it says, and hardly seldomer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import norm, t

from study.designing.racing import FIRST, SPENDING, boundaries, valid_interval
from study.laws.law import Floats

SWEEPS, MOST = 1000, 12


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
    found = boundaries(MOST, 0.05)
    assert all(later < before for before, later in pairwise(found))
    assert 1.0 < found[-1] / t.ppf(0.975, MOST - 1) < 1.25


def test_few_seeds_decide_nothing_and_shared_noise_widens() -> None:
    assert valid_interval(np.array([1.0, 1.01]), 0.0, MOST) == (-np.inf, np.inf)
    differences = np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.0])
    alone, beside = valid_interval(differences, 0.0, MOST), valid_interval(differences, 0.1, MOST)
    assert (beside[1] - beside[0]) / 2 > norm.ppf(0.975) * 0.1
    assert sum(beside) == pytest.approx(sum(alone))


def sweeps(effect: float, shared: float, seed: int) -> Floats:
    """Differences of two variants with unequal scatter over seeds, on one validation set whose noise all share."""
    random = np.random.default_rng(seed)
    scatter = random.uniform(0.2, 1.0, (2, SWEEPS, 1))
    of_seeds = random.normal(size=(2, SWEEPS, MOST)) * scatter
    return np.asarray(effect + of_seeds[0] - of_seeds[1] + shared * random.normal(size=(SWEEPS, 1)))


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
    assert wrong <= SWEEPS * 0.05 + 3 * (SWEEPS * 0.05 * 0.95) ** 0.5
    if not shared:
        assert wrong >= SWEEPS * 0.05 - 3 * (SWEEPS * 0.05 * 0.95) ** 0.5


def test_a_large_effect_is_decided_before_the_last_seed() -> None:
    looks = [seeds_until_decided(one, 0.5, MOST) for one in sweeps(5.0, 0.5, seed=4)]
    decided = [count for count in looks if count is not None]
    assert len(decided) > 0.99 * SWEEPS
    assert np.mean(decided) < 0.5 * MOST
