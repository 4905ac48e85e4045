"""The interval of a paired difference covers the truth as often as it says, and Holm's correction is Holm's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from study.evidence.paired import (
    Difference,
    TestedDifference,
    adjust_by_holm,
    half_width,
    holm,
    holm_levels,
    paired_difference,
    seeds_that_would_decide,
    sequences_that_would_decide,
    variances_of_sum,
)
from study.evidence.seed_scatter import SeedVariance, pooled_seed_variance


def simulated(
    random: np.random.Generator, means: list[float], seeds: int, sequences: int, seed_deviation: float
) -> list[NDArray[np.float64]]:
    """Cells that share hard and easy sequences, with a seed effect on each run and noise on each sequence of a run."""
    shared = random.normal(0, 0.5, sequences)
    return [
        mean
        + shared
        + random.normal(0, 0.04, sequences)
        + random.normal(0, seed_deviation, (seeds, 1))
        + random.normal(0, 0.02, (seeds, sequences))
        for mean in means
    ]


def shared(cells: list[NDArray[np.float64]]) -> tuple[SeedVariance, SeedVariance]:
    """The variance over seeds of all cells, for each of two."""
    pooled = pooled_seed_variance(cells)
    assert pooled is not None
    return pooled, pooled


@pytest.mark.parametrize(
    ("seeds", "seed_deviation"),
    [(2, 0.01), pytest.param(2, 0.001, marks=pytest.mark.slow), pytest.param(3, 0.03, marks=pytest.mark.slow)],
)
def test_interval_covers_truth_at_its_nominal_rate(seeds: int, seed_deviation: float) -> None:
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        cells = simulated(random, [4.0, 4.02, 4.1, 4.2], seeds, 100, seed_deviation)
        difference = paired_difference(cells[1], cells[0], shared(cells))
        assert difference.low_nats is not None
        assert difference.high_nats is not None
        covered += difference.low_nats <= 0.02 <= difference.high_nats
    assert 0.92 <= covered / 400 <= 0.99


@pytest.mark.slow
def test_intervals_that_cluster_cover_the_truth_where_documents_differ_and_others_do_not() -> None:
    """Between documents of 1 to 12 sequences, the difference of two cells varies as much as between sequences of one."""
    random, truth = np.random.default_rng(0), 0.02
    covered = {"clustered": 0, "naive": 0}
    for _ in range(400):
        documents = np.repeat(np.arange(60), random.integers(1, 13, 60))
        shared_by_all = random.normal(0, 0.5, len(documents))
        of_documents = random.normal(0, 0.04, (2, 60))[:, documents]
        first, second = (
            mean + shared_by_all + effect + random.normal(0, 0.04, len(documents)) + random.normal(0, 0.001, (3, 1))
            for mean, effect in zip((4 + truth, 4.0), of_documents, strict=True)
        )
        order = random.permutation(len(documents))
        seeds = shared([first, second])
        for name, known in {"clustered": documents[order], "naive": None}.items():
            difference = paired_difference(first[:, order], second[:, order], seeds, known)
            assert difference.low_nats is not None
            assert difference.high_nats is not None
            covered[name] += difference.low_nats <= truth <= difference.high_nats
    assert 0.92 <= covered["clustered"] / 400 <= 0.98
    assert covered["naive"] / 400 < 0.75


def test_documents_of_one_sequence_each_are_the_sequences() -> None:
    first, second = simulated(np.random.default_rng(6), [4.1, 4.0], 2, 50, 0.01)
    seeds = shared([first, second])
    alone, clustered = paired_difference(first, second, seeds), paired_difference(first, second, seeds, np.arange(50)[::-1])
    assert clustered.low_nats == pytest.approx(alone.low_nats)
    assert clustered.p_value == pytest.approx(alone.p_value)
    assert (clustered.n_sequences, clustered.n_independent) == (50, 50)


def test_pairing_takes_out_what_sequences_share() -> None:
    first, second = simulated(np.random.default_rng(1), [4.1, 4.0], 2, 400, 0.0)
    difference = paired_difference(first, second, None)
    unpaired = (first.mean(axis=0).var(ddof=1) / 400 + second.mean(axis=0).var(ddof=1) / 400) ** 0.5
    assert difference.standard_error_sequences_nats < unpaired / 5


def test_difference_is_that_of_the_means_and_its_sign_follows_the_order() -> None:
    first, second = simulated(np.random.default_rng(2), [4.1, 4.0], 3, 50, 0.01)
    seeds = shared([first, second])
    one, other = paired_difference(first, second, seeds), paired_difference(second, first, seeds)
    assert one.estimate_nats == pytest.approx(first.mean() - second.mean())
    assert other.estimate_nats == pytest.approx(-one.estimate_nats)
    assert other.p_value == pytest.approx(one.p_value)


def test_each_source_of_noise_has_its_error() -> None:
    """One variance for each cell, 0.1/2 and 0.2/3, and that over sequences as of the paired t-test."""
    random = np.random.default_rng(0)
    first, second = random.normal(size=(2, 9)), random.normal(size=(3, 9))
    difference = paired_difference(first, second, [SeedVariance(0.1, 1, 1), SeedVariance(0.2, 2, 1)])
    over_sequences = stats.sem(first.mean(axis=0) - second.mean(axis=0))
    assert (difference.n_sequences, difference.n_seeds) == (9, (2, 3))
    assert difference.standard_error_sequences_nats == pytest.approx(over_sequences)
    assert difference.standard_error_seeds_nats == pytest.approx((0.1 / 2 + 0.2 / 3) ** 0.5)
    assert difference.standard_error_nats == pytest.approx((over_sequences**2 + 0.1 / 2 + 0.2 / 3) ** 0.5)
    assert difference.degrees_of_freedom == pytest.approx((0.1 / 2 + 0.2 / 3) ** 2 / ((0.1 / 2) ** 2 / 1 + (0.2 / 3) ** 2 / 2))
    alone = paired_difference(first, second, None)
    assert (alone.estimate_nats, alone.standard_error_sequences_nats) == pytest.approx(
        (difference.estimate_nats, over_sequences)
    )
    assert alone.n_seeds == (2, 3)


def test_a_difference_in_words_has_its_interval_where_there_is_one() -> None:
    alone = Difference(estimate_nats=-0.25, standard_error_sequences_nats=0.01, n_sequences=1024, n_seeds=(1, 3))
    assert alone.to_text() == "-0.2500 nats (no interval)"
    assert replace(alone, low_nats=-0.3, high_nats=-0.2).to_text() == "-0.2500 nats (95% interval -0.3000 to -0.2000)"


@pytest.mark.parametrize(
    ("p_values", "statuses"),
    [
        ((0.049,), ["decided"]),
        ((0.051,), ["undecided"]),
        ((0.026, 0.9), ["undecided", "undecided"]),  # 0.052 among two
        ((0.024, 0.9, None), ["decided", "undecided", "no_seed_replicates"]),  # what has no p-value counts for nothing
    ],
)
def test_differences_are_judged_among_their_kind(p_values: tuple[float | None, ...], statuses: list[str]) -> None:
    tested = [TestedDifference(difference=Difference(0.1, 0.01, 9, (2, 2), p_value=p_value)) for p_value in p_values]
    actual = adjust_by_holm(tested)
    assert [one.status for one in actual] == statuses
    assert [one.to_dict()["status"] for one in actual] == statuses


def test_without_replicates_there_is_no_interval() -> None:
    cells = simulated(np.random.default_rng(3), [4.1, 4.0], 1, 50, 0.01)
    assert pooled_seed_variance(cells) is None
    difference = paired_difference(cells[0], cells[1], None)
    assert (difference.low_nats, difference.high_nats, difference.p_value, difference.degrees_of_freedom) == (
        None,
        None,
        None,
        None,
    )


def test_holm_against_a_worked_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([None, 0.04, None, 0.01]) == [None, pytest.approx(0.04), None, pytest.approx(0.02)], "of those known"


def test_plan_to_decide_names_what_limits() -> None:
    random = np.random.default_rng(4)
    noisy_seeds = simulated(random, [4.02, 4.0, 4.0, 4.0], 2, 400, 0.02)
    seeds = shared(noisy_seeds)
    limited = paired_difference(
        noisy_seeds[0] - noisy_seeds[0].mean() + 4.02, noisy_seeds[1] - noisy_seeds[1].mean() + 4.0, seeds
    )
    wanted = seeds_that_would_decide(limited, seeds, comparisons=1)
    assert wanted is not None
    assert wanted > 2
    assert sequences_that_would_decide(limited, seeds, comparisons=1) is None
    stricter = seeds_that_would_decide(limited, seeds, comparisons=12)
    assert stricter is not None
    assert stricter > wanted


@pytest.mark.parametrize(("cells", "gap"), [(4, 0.02), (1, 0.03), (1, 0.035), (1, 0.04), (1, 0.045)])
def test_as_many_seeds_as_would_decide_decide_and_one_less_does_not(cells: int, gap: float) -> None:
    first, second = (
        cell - cell.mean() + mean
        for cell, mean in zip(simulated(np.random.default_rng(4), [4.0, 4.0], 2, 400, 0.0), (4 + gap, 4.0), strict=True)
    )
    seeds = SeedVariance(variance=0.02**2, degrees_of_freedom=cells, cells=cells)
    both = (seeds, seeds)
    wanted = seeds_that_would_decide(paired_difference(first, second, both), both, comparisons=1)
    assert wanted is not None
    assert wanted > 3

    def p_value(count: int) -> float:
        of_count = SeedVariance(seeds.variance, seeds.cells * (count - 1), seeds.cells)
        one, other = (np.tile(cell.mean(axis=0), (count, 1)) for cell in (first, second))
        actual = paired_difference(one, other, (of_count, of_count)).p_value
        assert actual is not None
        return actual

    assert p_value(wanted) < 0.05 <= p_value(wanted - 1)


def test_more_sequences_decide_where_sequences_are_the_limit() -> None:
    cells = simulated(np.random.default_rng(5), [4.004, 4.0, 4.0, 4.0], 3, 50, 1e-5)
    first, second = (cell - cell.mean() + mean for cell, mean in zip(cells, (4.004, 4.0), strict=False))
    of_all = SeedVariance(variance=1e-10, degrees_of_freedom=8, cells=4)
    seeds = (of_all, of_all)
    difference = paired_difference(first, second, seeds)
    assert seeds_that_would_decide(difference, seeds, comparisons=1) is None
    sequences = sequences_that_would_decide(difference, seeds, comparisons=1)
    assert sequences is not None
    assert sequences > 50


@pytest.mark.parametrize(("needed", "expected"), [(3, 3), (33, 33), (64, 64), (65, None)])
@pytest.mark.parametrize("sign", [1, -1])
def test_of_a_known_variance_the_seeds_that_would_decide_are_those_of_the_normal_law(
    needed: int, expected: int | None, sign: int
) -> None:
    """1.96·√(2s²/k) is below the estimate from k = needed on, without noise of the sequences."""
    known = SeedVariance(variance=0.01, degrees_of_freedom=10**6, cells=2)
    estimate = sign * stats.norm.isf(0.025) * (2 * 0.01 / (needed - 0.5)) ** 0.5
    difference = Difference(estimate, 1e-9, 1000, (2, 2))
    assert seeds_that_would_decide(difference, (known, known), comparisons=1) == expected
    assert seeds_that_would_decide(replace(difference, n_seeds=(1, 40)), (known, known), comparisons=1) == (
        expected and max(41, expected)
    )


@pytest.mark.parametrize(("needed", "expected"), [(2, 2), (4, 4), (64, 64), (128, None)])
@pytest.mark.parametrize("sign", [1, -1])
def test_of_still_seeds_the_sequences_that_would_decide_are_those_of_the_normal_law(
    needed: int, expected: int | None, sign: int
) -> None:
    """1.96·s/√times is below the estimate from times = 0.9·needed on."""
    still = SeedVariance(variance=0.0, degrees_of_freedom=2, cells=2)
    difference = Difference(sign * stats.norm.isf(0.025) * 0.01 / (0.9 * needed) ** 0.5, 0.01, 1000, (2, 2))
    sequences = sequences_that_would_decide(difference, (still, still), comparisons=1)
    assert sequences == (None if expected is None else 1000 * expected)


def test_the_half_width_is_students() -> None:
    assert half_width(SeedVariance(0.04, 3, 1), 4) == pytest.approx(3.182446 * 0.1, rel=1e-5)


def test_variances_of_a_weighted_sum_go_by_the_squares_of_its_weights() -> None:
    """0.01·0.5²/2 twice of one estimate and 0.04·1²/4 of another, which Satterthwaite's freedom joins."""
    of_two, of_one = SeedVariance(0.01, 3, 2), SeedVariance(0.04, 2, 1)
    variances, freedoms = variances_of_sum(
        np.array([1.0, 3.0, 2.0]), np.array([0.5, 0.5, -1.0]), (2, 2, 4), (of_two, of_two, of_one)
    )
    assert variances == pytest.approx((1 / 3, 0.0125))
    assert freedoms == pytest.approx((2, 0.0125**2 / (0.0025**2 / 3 + 0.01**2 / 2)))


def test_a_reversed_difference_swaps_its_seeds() -> None:
    random = np.random.default_rng(0)
    one, two = random.normal(size=(2, 9)), random.normal(size=(3, 9))
    seeds = [SeedVariance(0.1, 1, 1), SeedVariance(0.2, 2, 1)]
    there, back = paired_difference(one, two, seeds), paired_difference(two, one, seeds[::-1])
    for name in Difference.__dataclass_fields__:
        assert getattr(there.reversed, name) == pytest.approx(getattr(back, name)), name


def test_freedoms_of_sequences_are_one_less() -> None:
    """Where seeds do not scatter the interval is that of the paired t-test."""
    random = np.random.default_rng(0)
    one, two = random.normal(size=(1, 5)), random.normal(size=(1, 5))
    still = SeedVariance(0.0, 2, 2)
    difference = paired_difference(one, two, (still, still))
    theirs = stats.ttest_rel(one[0], two[0])
    assert (difference.p_value, difference.low_nats) == pytest.approx((theirs.pvalue, theirs.confidence_interval().low))


@pytest.mark.parametrize("effect", [pytest.param(0.0, marks=pytest.mark.slow), 0.03, pytest.param(0.1, marks=pytest.mark.slow)])
def test_an_interval_excludes_zero_exactly_where_its_difference_is_decided(effect: float) -> None:
    """Of all pairs of four cells, whose intervals all hold the truth in 95% of draws or more if nothing differs."""
    random, missed, decided = np.random.default_rng(1), 0, 0
    for _ in range(25):
        cells = simulated(random, [4.0, 4.0, 4.0 + effect / 3, 4.0 + effect], 3, 30, 0.015)
        pairs = [(first, second) for first in range(4) for second in range(first)]
        tested = [TestedDifference(difference=paired_difference(cells[one], cells[two], shared(cells))) for one, two in pairs]
        adjusted = adjust_by_holm(tested)
        for before, after in zip(tested, adjusted, strict=True):
            low, high = after.difference.low_nats, after.difference.high_nats
            assert low is not None
            assert high is not None
            assert before.difference.low_nats is not None
            assert low <= before.difference.low_nats + 1e-7, "no interval becomes narrower"
            assert (not low <= 0 <= high) == (after.status == "decided")
        missed += any(one.status == "decided" for one in adjusted)
        decided += sum(one.status == "decided" for one in adjusted)
    assert missed <= 4 if not effect else decided > 0


def test_each_level_of_holm_decides_as_its_adjusted_p_value_does() -> None:
    random = np.random.default_rng(2)
    for count in (1, 2, 5, 30):
        for _ in range(50):
            p_values: list[float | None] = [*(random.uniform(size=count) ** random.integers(1, 9)), None]
            for p_value, adjusted, level in zip(p_values, holm(p_values), holm_levels(p_values), strict=True):
                if p_value is None or adjusted is None or level is None:
                    assert level is None
                    continue
                assert 0.05 / count <= level * (1 + 1e-9)
                assert level <= 0.05 * (1 + 1e-9)
                assert (p_value < level) == (adjusted < 0.05)
    assert holm_levels([0.0, 0.0]) == pytest.approx([0.025, 0.05])
