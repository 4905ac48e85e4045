"""Looking after every seed and stopping at a decision errs as seldom as it says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import nct, norm, t

from study.designing.stopping import always_valid_interval
from study.laws.law import Floats

SWEEPS, MOST = 1000, 12


@pytest.mark.parametrize("n", [5, 8, 12])
def test_an_interval_ends_where_the_bayes_factor_of_its_t_is_one_over_alpha(n: int) -> None:
    differences = np.random.default_rng(n).normal(0.3, 1, n)
    low, high = always_valid_interval(differences)
    error = differences.std(ddof=1) / n**0.5
    statistic = (high - differences.mean()) / error
    assert statistic == pytest.approx((differences.mean() - low) / error)
    marginal, _ = quad(lambda effect: nct.pdf(statistic, n - 1, effect * n**0.5) * norm.pdf(effect), -8, 8)
    assert marginal / t.pdf(statistic, n - 1) == pytest.approx(20, rel=1e-6)


def test_few_seeds_decide_nothing_and_shared_noise_widens() -> None:
    assert always_valid_interval(np.array([1.0])) == (-np.inf, np.inf)
    assert always_valid_interval(np.array([1.0, 1.01, 0.99])) == (-np.inf, np.inf)
    differences = np.array([1.0, 1.1, 0.9, 1.05, 0.95, 1.0])
    alone, beside = always_valid_interval(differences), always_valid_interval(differences, shared=0.1)
    assert beside[1] - alone[1] > -norm.ppf(0.0125) * 0.1
    assert sum(beside) == pytest.approx(sum(alone))


def sweeps(effect: float, seed: int) -> tuple[Floats, float]:
    """Differences of two variants with unequal scatter over seeds, on one validation set whose noise all share."""
    random, shared = np.random.default_rng(seed), 0.5
    scatter = random.uniform(0.2, 1.0, (2, SWEEPS, 1))
    of_seeds = random.normal(size=(2, SWEEPS, MOST)) * scatter
    return effect + of_seeds[0] - of_seeds[1] + shared * random.normal(size=(SWEEPS, 1)), shared


def looks_until_decided(differences: Floats, shared: float = 0.0, fewest: int = 2) -> int | None:
    """After how many seeds, looked at one by one from `fewest` on, the interval first excludes 0; None if it never does."""
    for count in range(max(2, fewest), len(differences) + 1):
        low, high = always_valid_interval(differences[:count], shared)
        if low > 0 or high < 0:
            return count
    return None


def test_null_sweeps_are_decided_in_at_most_five_percent_where_repeated_t_intervals_err_more() -> None:
    """Looked at after each of 3 to 12 seeds; the bound leaves three standard errors of 1,000 sweeps."""
    differences, shared = sweeps(0.0, seed=1)
    wrong = sum(looks_until_decided(one, shared, fewest=3) is not None for one in differences)
    random = np.random.default_rng(3)
    without = random.normal(size=(SWEEPS, MOST)) * random.uniform(0.2, 1.0, (SWEEPS, 1))
    alone = sum(looks_until_decided(one, fewest=3) is not None for one in without)
    naive = 0
    for one in without:
        counts = np.arange(3, MOST + 1)
        means = np.cumsum(one)[counts - 1] / counts
        errors = np.array([one[:count].std(ddof=1) / count**0.5 for count in counts])
        naive += bool((np.abs(means) > t.ppf(0.975, counts - 1) * errors).any())
    allowed = SWEEPS * 0.05 + 3 * (SWEEPS * 0.05 * 0.95) ** 0.5
    assert wrong <= allowed
    assert alone <= allowed
    assert naive > 0.1 * SWEEPS


def test_a_large_effect_is_decided_before_the_last_seed() -> None:
    differences, shared = sweeps(5.0, seed=4)
    looks = [looks_until_decided(one, shared, fewest=3) for one in differences]
    decided = [count for count in looks if count is not None]
    assert len(decided) > 0.9 * SWEEPS
    assert np.mean(decided) < 0.75 * MOST
