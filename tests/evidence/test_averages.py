"""A pair's mean over several places: its value, what a seed is worth in it, and what it hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from study.config.recipe import Budget
from study.counting.architecture import Architecture
from study.evidence.cells import CellResult
from study.evidence.comparisons import Average, Comparison, _add_remedies, averages_of, compare, why_left_out
from study.evidence.families import families_of, variant_families
from study.evidence.learning_rates import RateSearch
from study.evidence.paired import Difference, seeds_that_would_decide, sequences_that_would_decide
from study.evidence.seed_scatter import SeedVariance
from study.report.pair_sentences import MOST_FAMILIES
from study.report.pair_sentences import average_sentences as sentences

SEQUENCES = 400


def cell(norm: str, millions: int, losses: NDArray[np.float64], seeds: Sequence[int] | None = None) -> CellResult:
    """A cell of one shape at a budget, under one norm."""
    sizes = {"depth": 2, "width": 64, "heads": 2, "ffn": 256, "vocabulary": 9, "positions": 8, "norm": norm}
    seeds = tuple(range(len(losses)) if seeds is None else seeds)
    return CellResult(
        name=f"{norm} {millions}",
        settings={"architecture.norm": norm},
        budget=Budget(tokens=millions * 1e6),
        architecture=Architecture.parse(sizes),
        parameters=10**5,
        parameters_encoder=10**5,
        parameters_non_embedding=10**5,
        tokens=millions * 10**6,
        budget_share=1.0,
        train_flops=1e12,
        validation="same",
        unigram_entropy_nats=None,
        rates=RateSearch((), "only_tried", chosen=1e-3),
        runs=tuple(f"run {seed}" for seed in seeds),
        seeds=seeds,
        losses=losses,
    )


def losses(mean: float, of_seeds: ArrayLike, noise: float = 0.0, draw: int = 0) -> NDArray[np.float64]:
    """Seeds × sequences around a mean, each seed off by what it is off by; the sequences differ alike in all cells."""
    rng = np.random.default_rng(draw)
    hardness = np.random.default_rng(99).normal(0, 0.5, SEQUENCES)
    return mean + np.array(of_seeds)[:, None] + hardness + rng.normal(0, noise, (np.size(of_seeds), SEQUENCES))


def averaged(cells: Sequence[CellResult]) -> tuple[tuple[Comparison, ...], tuple[Average, ...]]:
    """The pairs of cells of one shape, and their averages."""
    pairs = compare(families_of(tuple(cells)), variant_families(cells, {}), include_unbracketed=True).pairs
    return pairs, averages_of(pairs, cells)


def test_an_average_is_the_mean_of_its_pairs_and_is_decided_where_none_of_them_is() -> None:
    """Each place has noise of its own over seeds, too much for a verdict there and less in the mean of six."""
    rng = np.random.default_rng(3)
    cells = [
        cell(norm, place, losses(4 - 0.3 * place - effect, rng.normal(0, 0.08, 3), 0.02, 10 * place))
        for place in range(1, 7)
        for norm, effect in (("post", 0.0), ("pre", 0.15))
    ]
    pairs, (average,) = averaged(cells)
    estimates = [pair.difference.estimate_nats for pair in pairs]
    assert len(estimates) == len(average.places) == 6
    assert not any(pair.status == "decided" for pair in pairs)
    assert average.difference.estimate_nats == pytest.approx(np.mean(estimates))
    assert (average.least_nats, average.most_nats) == (min(estimates), max(estimates))
    assert (average.first, average.second, average.status) == ("norm=pre", "norm=post", "decided")
    low, high = average.difference.low_nats, average.difference.high_nats
    assert low is not None
    assert high is not None
    assert low < -0.15 < high < 0


def test_a_seed_is_one_draw_however_many_places_it_is_in() -> None:
    """Where a seed is off by the same at every budget, as of one trunk, more budgets make the interval no narrower."""
    off = {"post": (-0.05, 0.0, 0.06), "pre": (0.04, -0.06, 0.01)}

    def of(places: int) -> Average:
        cells = [cell(norm, place, losses(4.0, off[norm])) for place in range(1, places + 1) for norm in off]
        (average,) = averaged(cells)[1]
        return average

    two, eight = of(2), of(8)
    assert two.difference.standard_error_nats == pytest.approx(eight.difference.standard_error_nats)
    assert two.difference.degrees_of_freedom == pytest.approx(eight.difference.degrees_of_freedom)
    (alone,), _ = averaged([cell(norm, 1, losses(4.0, off[norm])) for norm in off])
    assert two.difference.standard_error_nats == pytest.approx(alone.difference.standard_error_nats)


def test_only_seeds_that_all_cells_of_both_sides_have_are_averaged() -> None:
    """Else a seed that one place lacks, such as the one that chose the rates, would weigh on one side alone."""
    cells = [
        cell("post", 1, losses(4.0, (0.0, 0.1, 0.2))),
        cell("pre", 1, losses(3.9, (0.0, 0.1, 0.2))),
        cell("post", 2, losses(3.0, (0.0, 0.2)), seeds=(0, 2)),
        cell("pre", 2, losses(2.9, (0.0, 0.1, 0.2))),
    ]
    (average,) = averaged(cells)[1]
    assert average.difference.n_seeds == (2, 2)
    assert average.difference.estimate_nats == pytest.approx(-0.1)
    without = [
        replace(each, runs=("run 1",), seeds=(1,), losses=each.losses[:1]) if each.name == "post 2" else each for each in cells
    ]
    assert averaged(without)[1][0].difference.n_seeds == (1, 1)
    uneven = [
        replace(each, losses=losses(3.9, (0.0, 0.3, 0.0))) if each.name == "pre 1" else each
        for each in cells  # of the seed that is left out alone they differ otherwise
    ]
    (average,) = averaged(uneven)[1]
    assert (average.least_nats, average.most_nats) == pytest.approx((-0.2, -0.1))
    assert average.difference.estimate_nats == pytest.approx(-0.15)
    none = [replace(each, seeds=(7, 8)) if each.name == "post 2" else each for each in cells]
    assert averaged(none)[1] == ()


def test_places_of_one_seed_are_left_out_of_an_average_if_two_have_several() -> None:
    """Such as the largest budgets of `one_seed_above`, where nothing shows what chance does."""
    cells = [
        cell(norm, place, losses(4.0 - effect * place, (0.0, 0.01, 0.02) if place < 3 else (0.0,), 0.01, place))
        for place in (1, 2, 3)
        for norm, effect in (("post", 0.0), ("pre", 0.1))
    ]
    (average,) = averaged(cells)[1]
    assert (len(average.places), average.unreplicated, average.difference.n_seeds) == (2, 1, (3, 3))
    assert average.difference.estimate_nats == pytest.approx(-0.15, abs=0.01)
    assert average.status == "decided"
    assert average.sides.endswith("where they have several seeds")
    (average,) = averaged(cells[2:])[1]
    assert (len(average.places), average.unreplicated, average.status) == (2, 0, "no_seed_replicates")


def test_places_of_one_seed_stay_where_the_others_have_one_in_common() -> None:
    """To leave them out would gain no interval, and lose what they measured."""
    seeds = {1: (0, 1), 2: (1, 2), 3: (1,)}
    cells = [
        cell(norm, place, losses(4.0 - effect, (0.0,) * len(of_place)), seeds=of_place)
        for place, of_place in seeds.items()
        for norm, effect in (("post", 0.0), ("pre", 0.1))
    ]
    (average,) = averaged(cells)[1]
    assert (len(average.places), average.unreplicated, average.difference.n_seeds) == (3, 0, (1, 1))


def test_one_place_or_other_masks_have_no_average() -> None:
    one = [cell(norm, 1, losses(4.0, (0.0, 0.1))) for norm in ("post", "pre")]
    assert averaged(one)[1] == ()
    two = [replace(cell(norm, 2, losses(4.0, (0.0, 0.1))), validation="other") for norm in ("post", "pre")]
    assert len(averaged([*one, *two])[0]) == 2
    assert averaged([*one, *two])[1] == ()


def test_an_average_of_places_that_are_decided_either_way_says_so() -> None:
    off = (-0.01, 0.0, 0.01)
    effects = {1: -0.5, 2: 0.3}
    cells = [
        cell(norm, place, losses(4.0 + (norm == "pre") * effects[place], off)) for place in effects for norm in ("post", "pre")
    ]
    (average,) = averaged(cells)[1]
    assert average.opposed
    (sentence,) = sentences([average])
    assert sentence.startswith("Averaged over 2 conditions, norm=pre minus norm=post: -0.1000 nats (95% interval ")
    assert sentence.endswith(
        "-0.5000 to +0.3000 at its 2 conditions, decided either way, so the average hides what it depends on (Holm, 5%)."
    )
    assert average.reversed.reversed == average


def test_what_lets_an_encoder_read_is_averaged_apart_from_what_helps_one_that_reads() -> None:
    """One norm gains 0.8 nats in the two places where the other reads no word order, and 0.2 in the three where both read."""
    off = (-0.01, 0.0, 0.01)
    cells = [
        replace(cell(norm, place, losses(4.0 - (norm == "pre") * gain, off)), reads_order=norm == "pre" or gain < 0.5)
        for place, gain in enumerate((0.8, 0.2, 0.8, 0.2, 0.2), 1)
        for norm in ("post", "pre")
    ]
    both, one = averaged(cells)[1]
    assert (both.one_reads, len(both.places), both.apart) == (False, 3, 2)
    assert (one.one_reads, len(one.places), one.apart) == (True, 2, 3)
    assert both.difference.estimate_nats == pytest.approx(-0.2)
    assert one.difference.estimate_nats == pytest.approx(-0.8)
    assert both.sides == "norm=pre − norm=post, where both read word order"
    assert one.sides == "norm=pre − norm=post, where only the encoder with norm=pre reads word order"
    first, second = sentences([both, one])
    assert first.startswith("Averaged over 3 conditions where both read word order, norm=pre minus norm=post: -0.2000 nats")
    assert second.startswith(
        "Averaged over 2 conditions where only the encoder with norm=pre reads word order, norm=pre minus norm=post: -0.8000"
    )
    (everywhere,) = averaged([each for each in cells if each.name.rpartition(" ")[2] in "245"])[1]
    assert everywhere.sides == "norm=pre − norm=post"
    ((alone,),) = [averaged([each for each in cells if each.name.rpartition(" ")[2] in "123"])[1]]
    assert (alone.one_reads, alone.apart) == (True, 1), "the place where both read has no average of its own"
    assert alone.reversed.sides == "norm=post − norm=pre, where only the encoder with norm=pre reads word order"
    unknown = [replace(each, reads_order=None) if each.name.rpartition(" ")[2] in "245" else each for each in cells]
    assert averaged(unknown)[1][0].sides == "norm=pre − norm=post, where reading was not measured"
    either = [replace(each, reads_order=not each.reads_order) if each.name.endswith("3") else each for each in cells]
    assert [average.reads for average in averaged(either)[1]] == [(True, True)], "who reads is another in two places"


def test_of_several_settings_the_lowest_is_reported_and_what_the_others_are_above_it() -> None:
    off = (-0.01, 0.0, 0.01)
    effects = {"post": 0.0, "pre": -0.2, "sandwich": 0.1}
    cells = [
        replace(cell("post", place, losses(4.0 + effect, off)), name=f"{name} {place}", settings={"architecture.norm": name})
        for place in (1, 2)
        for name, effect in effects.items()
    ]
    (sentence,) = sentences(averaged(cells)[1])
    assert sentence.startswith(
        "Averaged over 2 conditions, norm=pre has the lowest mean. The others minus it, decided: norm=post +0.2000 nats (95% "
    )
    assert ", norm=sandwich +0.3000 nats (95% interval +0.2" in sentence
    unsure = [
        replace(average, p_value_holm=0.06 if "norm=post" in (average.first, average.second) else average.p_value_holm)
        for average in averaged(cells)[1]
    ]
    (sentence,) = sentences(unsure)
    assert "minus it, decided: norm=sandwich +0.3000 nats (95% interval" in sentence
    assert "; undecided: norm=post +0.2000 nats (95% interval" in sentence


def test_none_of_several_settings_is_reported_as_the_lowest_that_was_not_compared_with_all_others() -> None:
    """Of three, each lower than the one before, the first and the last meet at no place."""
    off, means = (-0.01, 0.0, 0.01), {"post": 4.0, "pre": 3.9, "sandwich": 3.8}
    cells = [
        replace(cell("post", place, losses(means[name], off)), name=f"{name} {place}", settings={"architecture.norm": name})
        for place, names in ((1, "post pre"), (2, "post pre"), (3, "pre sandwich"), (4, "pre sandwich"))
        for name in names.split()
    ]
    (sentence,) = sentences(averaged(cells)[1])
    assert "lowest" not in sentence
    assert sentence.startswith("Averaged over 2 conditions, norm=pre minus norm=post: -0.1000 nats (95% interval ")
    assert "; norm=sandwich minus norm=pre: -0.1000 nats (95% interval " in sentence


def test_shapes_of_other_sizes_are_distinguished() -> None:
    """Of two sizes of two shapes each, neither is the lowest of the other."""
    off = (-0.01, 0.0, 0.01)
    cells = [cell(norm, place, losses(4.0 - 0.1 * (norm == "pre"), off)) for place in (1, 2) for norm in ("post", "pre")]
    (average,) = averaged(cells)[1]
    small, large = (replace(average, weighs="depth", first=f"L2-{size}", second=f"L1-{size}") for size in ("small", "large"))
    actual = list(sentences([small, large]))
    assert [sentence.split(":")[0] for sentence in actual] == [
        "Averaged over 2 conditions, L2-small minus L1-small",
        "Averaged over 2 conditions, L2-large minus L1-large",
    ]


def test_of_many_groups_of_averages_the_answer_says_how_many_it_leaves_to_the_table() -> None:
    cells = [cell(norm, place, losses(4.0, (-0.01, 0.01))) for place in (1, 2) for norm in ("post", "pre")]
    (average,) = averaged(cells)[1]
    sizes = [replace(average, weighs="depth", first=f"L2-{size}", second=f"L1-{size}") for size in range(10)]
    assert len(list(sentences(sizes[:MOST_FAMILIES]))) == MOST_FAMILIES
    *_, last = sentences(sizes)
    assert last == "The averages of 7 more groups of shapes are in the table of averages over conditions."


def test_the_verdicts_of_all_averages_are_adjusted_together() -> None:
    """Of three pairs the least p-value counts thrice, the next twice or as much as that, as Holm has it."""
    effects = {"post": 0.0, "pre": -0.02, "sandwich": 0.01}
    random = np.random.default_rng(0)
    cells = [
        replace(
            cell("post", place, losses(4.0 + effect, random.normal(0, 0.02, 3))),
            name=f"{name} {place}",
            settings={"architecture.norm": name},
        )
        for place in (1, 2)
        for name, effect in effects.items()
    ]
    actual = averaged(cells)[1]
    plain = sorted(average.difference.p_value or 0 for average in actual)
    first, second, third = (times * p_value for times, p_value in zip((3, 2, 1), plain, strict=True))
    expected = [first, max(first, second), max(first, second, third)]
    assert sorted(average.p_value_holm or 0 for average in actual) == pytest.approx(np.minimum(expected, 1))
    assert all((average.status == "decided") == ((average.p_value_holm or 0) < 0.05) for average in actual)


def test_pairs_of_shapes_and_of_settings_are_adjusted_together_and_those_without_a_p_value_do_not_count() -> None:
    """Of two shapes under two norms four pairs are known; a third shape has one seed, and so no variance."""
    random = np.random.default_rng(1)
    cells = [
        replace(
            of := cell(norm, 1, losses(4.0 + 0.01 * depth, random.normal(0, scatter, seeds), 0.01, depth)),
            name=f"{norm} {depth}",
            architecture=of.architecture.model_copy(update={"depth": depth}),
            reads_order=True,
        )
        for depth, scatter, seeds in ((1, 0.3, 3), (2, 0.003, 3), (3, 0.1, 1))
        for norm in ("post", "pre")
    ]
    comparisons = compare(families_of(tuple(cells)), variant_families(cells, {}), include_unbracketed=True)
    known = [pair for pair in comparisons.pairs if pair.difference.p_value is not None]
    assert (len(known), len(comparisons.pairs)) == (4, 9)
    assert {pair.of_shapes for pair in known} == {True, False}
    running, expected = 0.0, []
    for place, p_value in enumerate(sorted(pair.difference.p_value or 0 for pair in known)):
        running = max(running, (4 - place) * p_value)
        expected.append(min(running, 1.0))
    assert sorted(pair.p_value_holm or 0 for pair in known) == pytest.approx(expected)
    undecided = [pair for pair in known if pair.status == "undecided"]
    assert undecided
    for pair in undecided:
        seeds = [comparisons.seed_variances[name] for name in (pair.first_cell, pair.second_cell)]
        assert pair.seeds_that_would_decide == seeds_that_would_decide(pair.difference, seeds, 4)
        assert pair.sequences_that_would_decide == sequences_that_would_decide(pair.difference, seeds, 4)
    assert comparisons.compared == {each.name for each in cells}


def test_each_side_of_a_pair_is_reckoned_with_its_own_seeds() -> None:
    """The second scatters widely and has six seeds; were it the first, of two, no sequences would decide."""
    (pair, *_), _ = averaged([cell(norm, 1, losses(4.0, (0.0, 0.1))) for norm in ("post", "pre")])
    quiet, wide = SeedVariance(1e-12, 5, 1), SeedVariance(1.5e-4, 5, 1)
    pair = replace(pair, difference=Difference(0.02, 0.01, 1000, (2, 6), p_value=0.9))
    actual = _add_remedies(pair, {pair.first_cell: quiet, pair.second_cell: wide}, 1)
    assert actual.sequences_that_would_decide is not None
    assert sequences_that_would_decide(pair.difference, [wide, quiet], 1) is None


def test_places_that_are_not_decided_do_not_oppose_each_other() -> None:
    off, effects = (-0.3, 0.0, 0.3), {1: -0.1, 2: 0.1}
    cells = [
        cell(norm, place, losses(4.0 + (norm == "pre") * effects[place], off)) for place in effects for norm in ("post", "pre")
    ]
    pairs, (average,) = averaged(cells)
    assert {pair.first_is_lower for pair in pairs} == {True, False}
    assert not average.opposed


def test_settings_on_other_validation_sets_are_no_pair() -> None:
    post, pre = (cell(norm, 1, losses(4.0, (0.0, 0.1))) for norm in ("post", "pre"))
    assert len(variant_families([post, pre], {})) == 1
    assert not variant_families([post, replace(pre, validation="other")], {})


def test_a_single_validation_sequence_is_left_out() -> None:
    one = cell("post", 1, losses(4.0, (0.0, 0.1))[:, :1])
    assert why_left_out(one, True) == "a single validation sequence gives no interval"


def test_the_error_of_a_cell_is_that_of_the_mean_of_its_sequences() -> None:
    assert cell("post", 1, np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])).standard_error_nats == pytest.approx(3**-0.5)
