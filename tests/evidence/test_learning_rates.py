"""Which knobs and which rate a cell chooses, and when its optimum counts as bracketed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.evidence.learning_rates import CellSearch, RateSearch, TunedKnob, searches


def rows(*runs: tuple[float, float | None, str | None], seed: int = 0) -> pd.DataFrame:
    """Ledger rows of one cell from (rate, loss, exclusion)."""
    values: list[dict[str, Any]] = [
        {
            "run_id": f"run{rate}-{seed}",
            "seed": seed,
            "recipe.learning_rate": rate,
            "loss_nats": loss,
            "exclusion": exclusion,
            "state": (exclusion or "COMPLETED").split(":")[0],
        }
        for rate, loss, exclusion in runs
    ]
    return pd.DataFrame(values)


def search(runs: pd.DataFrame) -> CellSearch:
    """The search of the one cell that holds all runs."""
    (actual,) = searches(runs.assign(cell="cell")).values()
    return actual


def search_rates(runs: pd.DataFrame) -> RateSearch:
    return search(runs).rates


def test_parabola_finds_the_lowest_point_of_a_parabola_in_log_rate() -> None:
    best, lowest = 2.5e-3, 4.0
    curve = [(rate, lowest + 0.2 * np.log(rate / best) ** 2, None) for rate in (1e-3, 2e-3, 4e-3, 8e-3)]
    actual = search_rates(rows(*curve[::-1]))
    assert [rate.learning_rate for rate in actual.tried] == [1e-3, 2e-3, 4e-3, 8e-3]
    assert actual.status == "bracketed"
    assert actual.chosen == 2e-3
    assert actual.optimum == pytest.approx(best)
    assert actual.gain_left_nats == pytest.approx(0.2 * np.log(2e-3 / best) ** 2)


@pytest.mark.parametrize(
    ("runs", "status", "chosen"),
    [
        ([(1e-3, 4.0, None), (2e-3, 4.1, None), (4e-3, 4.2, None)], "lowest_tried", 1e-3),
        ([(1e-3, 4.2, None), (2e-3, 4.1, None), (4e-3, 4.0, None)], "highest_tried", 4e-3),
        ([(1e-3, 4.2, None)], "only_tried", 1e-3),
        ([(1e-3, 4.2, None), (2e-3, 4.1, None), (4e-3, None, "DIVERGED: NaN")], "bracketed", 2e-3),
        ([(1e-3, 4.2, None), (2e-3, 4.1, None), (4e-3, 3.9, "DIVERGED: late")], "bracketed", 2e-3),
        ([(1e-3, 4.2, None), (2e-3, 4.1, None), (4e-3, None, "FAILED: disk full")], "highest_tried", 2e-3),
        ([(1e-3, 4.2, None), (2e-3, 4.1, None), (4e-3, None, "OOM")], "highest_tried", 2e-3),
        ([(1e-3, 5.6, "DIVERGED: late"), (2e-3, None, "DIVERGED: NaN")], "none_usable", None),
        ([(1e-3, None, "FAILED: crash")], "none_usable", None),
    ],
)
def test_status(runs: list[tuple[float, float | None, str | None]], status: str, chosen: float | None) -> None:
    actual = search_rates(rows(*runs))
    assert (actual.status, actual.chosen) == (status, chosen)
    assert actual.bracketed == (status == "bracketed")


def test_runs_that_state_no_seed_are_distinguished_by_their_rates() -> None:
    runs = rows((1e-3, 4.2, None), (2e-3, 4.1, None), (4e-3, 4.3, None))
    assert search_rates(runs.drop(columns="seed")) == search_rates(runs)


def test_where_no_rate_was_chosen_any_seed_that_learned_will_do() -> None:
    untuned = pd.concat([rows((2e-3, None, "DIVERGED: NaN")), rows((2e-3, 4.0, None), seed=1)], ignore_index=True)
    assert (search_rates(untuned).status, search_rates(untuned).chosen) == ("only_tried", 2e-3)
    tuned = pd.concat([untuned, rows((4e-3, None, "DIVERGED: NaN"))], ignore_index=True)
    assert (search_rates(tuned).status, search_rates(tuned).chosen) == ("none_usable", None)
    lost = pd.concat([rows((2e-3, None, "DIVERGED: NaN")), rows((2e-3, 5.6, "DIVERGED: late"), seed=1)], ignore_index=True)
    assert (search_rates(lost).status, search_rates(lost).chosen) == ("none_usable", None)


@pytest.mark.parametrize(
    ("reads", "vertex"), [((True, True, True), True), ((False,) * 3, True), ((None,) * 3, True), ((True, True, False), False)]
)
def test_a_neighbour_that_reads_no_order_beside_ones_that_do_brackets_but_gives_no_parabola(
    reads: tuple[bool | None, ...], vertex: bool
) -> None:
    runs = rows((1e-3, 4.2, None), (2e-3, 4.1, None), (4e-3, 5.9, None)).assign(reads_order=pd.Series(reads, dtype=object))
    actual = search_rates(runs)
    assert (actual.status, actual.chosen) == ("bracketed", 2e-3)
    assert (actual.optimum is not None) is vertex


def test_a_rate_whose_run_a_person_excluded_was_not_tried() -> None:
    runs = rows((1e-3, 4.2, None), (2e-3, 4.1, None), (4e-3, 3.9, "DIVERGED: late"))
    runs["excluded_by_hand"] = [None, None, "a bad disk"]
    actual = search_rates(runs)
    assert (actual.status, actual.chosen) == ("highest_tried", 2e-3)


def test_excluded_neighbour_brackets_but_gives_no_parabola() -> None:
    actual = search_rates(rows((1e-3, 4.2, None), (2e-3, 4.1, None), (4e-3, None, "DIVERGED: NaN")))
    assert actual.bracketed
    assert actual.optimum is None
    assert actual.gain_left_nats is None
    assert [rate.unlearned for rate in actual.tried] == [0, 0, 1]
    assert [trial.exclusion for trial in actual.tried[2].trials] == ["DIVERGED: NaN"]


def test_where_nothing_is_trained_no_rate_is_searched() -> None:
    runs = rows((1e-3, 4.2, None), (1e-3, 4.1, "DIVERGED: late")).assign(target_tokens=0)
    assert search_rates(runs) == RateSearch((), "untrained", 1e-3)
    assert search_rates(runs).bracketed
    assert search_rates(runs.iloc[1:]).status == "none_usable"
    assert search_rates(runs.iloc[:1].assign(target_tokens=10)).status == "only_tried"


def test_runs_of_others_without_seed_and_rate_choose_nothing() -> None:
    """As in a W&B project where other people's runs stand beside a sweep's."""
    theirs = rows((1e-3, None, None), (2e-3, None, None)).assign(
        **{"seed": None, "recipe.learning_rate": None, "state": "finished"}
    )
    ours = rows((1e-3, 4.2, None), (2e-3, 4.1, None))
    actual = searches(pd.concat([ours.assign(cell="ours"), theirs.assign(cell="theirs")], ignore_index=True))
    assert (actual["ours"].rates.chosen, actual["theirs"].rates.status) == (2e-3, "none_usable")


def test_only_the_first_seed_chooses() -> None:
    first = rows((1e-3, 4.2, None), (2e-3, 4.1, None), (4e-3, 4.3, None), seed=3)
    second = rows((4e-3, 3.0, None), seed=4)
    assert search_rates(pd.concat([second, first])).chosen == 2e-3


def of_seeds(*seeds: Sequence[tuple[float, float | None, str | None]]) -> pd.DataFrame:
    return pd.concat([rows(*runs, seed=seed) for seed, runs in enumerate(seeds)], ignore_index=True)


def test_rates_that_several_seeds_tried_rank_by_their_mean_and_repeats_do_not_choose() -> None:
    tried = [[(rate, level + seed, None) for rate, level in ((1e-3, 4.2), (2e-3, 4.0), (4e-3, 4.3))] for seed in (0, 1)]
    tried[0][1] = (2e-3, 4.25, None)  # the first seed alone would choose 1e-3
    actual = search_rates(of_seeds(*tried, [(4e-3, 1.0, None)], [(4e-3, 1.0, None), (1e-3, 1.5, None)]))
    assert (actual.chosen, actual.status, actual.seeds) == (2e-3, "bracketed", 2)
    assert [rate.loss_nats for rate in actual.tried] == pytest.approx([4.7, 4.625, 4.8])
    assert [trial.run_id for trial in actual.tried[1].trials] == ["run0.002-0", "run0.002-1"]
    assert actual.next_best == actual.tried[0]
    curve = search_rates(rows(*((rate.learning_rate, rate.loss_nats, None) for rate in actual.tried)))
    assert (actual.optimum, actual.gain_left_nats) == (curve.optimum, curve.gain_left_nats)


def test_of_the_seeds_that_a_sweep_asks_for_those_choose_that_tried_several_rates() -> None:
    """Those beyond its third may have tried as many before; of a version that asked the first alone, the others repeated."""
    first = [(1e-3, 4.2, None), (2e-3, 4.1, None), (4e-3, 4.3, None)]
    repeats = of_seeds(first, first[1:2], first[1:2], [(rate, 9 - 2 * loss, None) for rate, loss, _ in first])
    (actual,) = searches(repeats.assign(cell="cell"), choosing_seeds=range(3)).values()
    assert (actual.rates.chosen, actual.rates.seeds) == (2e-3, 1)
    assert (search_rates(repeats).chosen, search_rates(repeats).seeds) == (4e-3, 2)
    (of_others,) = searches(repeats.assign(cell="cell"), choosing_seeds=range(7, 9)).values()
    assert of_others.rates == search_rates(repeats), "before any run of these"


@pytest.mark.parametrize(
    ("second", "chosen", "vertex"),
    [
        ((2e-3, 3.5, None), 2e-3, True),
        ((2e-3, None, "DIVERGED: NaN"), 1e-3, False),
        ((2e-3, 5.6, "DIVERGED: late"), 1e-3, False),
        ((2e-3, None, "FAILED: disk full"), 2e-3, False),
    ],
)
def test_a_rate_at_which_a_seed_did_not_learn_ranks_below_those_at_which_all_did(
    second: tuple[float, float | None, str | None], chosen: float, vertex: bool
) -> None:
    first = [(5e-4, 4.5, None), (1e-3, 4.2, None), (2e-3, 3.5, None), (4e-3, 4.3, None)]
    actual = search_rates(of_seeds(first, [*first[:2], second, first[3]]))
    assert (actual.chosen, actual.status) == (chosen, "bracketed")
    assert (actual.optimum is not None) == vertex


def test_where_every_rate_has_a_seed_that_did_not_learn_the_one_with_fewest_is_chosen() -> None:
    lost = (None, "DIVERGED: NaN")
    seeds = [[(1e-3, *lost), (2e-3, 3.0, None), (4e-3, 3.1, None)], [(1e-3, 2.0, None), (2e-3, *lost), (4e-3, 3.1, None)],
             [(1e-3, *lost), (2e-3, 3.0, None), (4e-3, *lost)]]  # fmt: skip
    actual = search_rates(of_seeds(*seeds))
    assert (actual.chosen, actual.tried[1].loss_nats, [rate.unlearned for rate in actual.tried]) == (2e-3, 3.0, [2, 1, 1])


def test_a_rate_tried_twice_at_a_seed_counts_by_its_mean() -> None:
    actual = search_rates(rows((1e-3, 4.2, None), (2e-3, 4.0, None), (2e-3, 4.1, None), (4e-3, 4.3, None)))
    assert [rate.loss_nats for rate in actual.tried] == pytest.approx([4.2, 4.05, 4.3])
    assert actual.bracketed


def test_knobs_that_are_not_the_best_run_s_are_named() -> None:
    runs = rows((1e-3, 4.2, None), (1e-3, 4.1, None), (1e-3, 3.0, "DIVERGED: late"), (1e-3, 4.3, None), (2e-3, 4.4, None))
    decay, masking, extra = "recipe.weight_decay", "masking.rate", "architecture.embedding"
    runs[decay] = [0.01, 0.1, 0.01, 0.01, 0.1]
    runs[masking] = [0.15, 0.15, 0.15, 0.3, 0.15]
    runs[extra] = [None, None, None, 64.0, None]
    assert search(runs).off == (decay, "", decay, f"{decay} and {masking} and {extra}", "")


def test_without_a_usable_run_at_the_first_seed_no_knob_is_off() -> None:
    runs = rows((1e-3, 5.6, "DIVERGED: late"), (1e-3, None, "OOM")).assign(**{"recipe.weight_decay": [0.01, 0.1]})
    assert search(runs).off == ("", "")
    assert search(runs).knobs == ()


def test_knobs_beside_the_rate_are_reported_with_the_end_they_lie_at() -> None:
    runs = rows((1e-3, 4.2, None), (1e-3, 4.1, None), (2e-3, 4.3, None), (1e-3, 3.0, "DIVERGED: late"))
    runs = runs.assign(**{"recipe.weight_decay": [0.01, 0.1, 1.0, 0.1], "masking.rate": [0.15, 0.3, 0.15, 0.3]})
    runs["recipe.dropout"], runs["architecture.norm"] = 0.1, ["pre", "post", "pre", "pre"]
    decay, rate = TunedKnob("recipe.weight_decay", 0.1, None), TunedKnob("masking.rate", 0.3, "highest")
    assert search(runs).knobs == (decay, rate, TunedKnob("architecture.norm", "post", None))


def test_a_knob_beyond_which_runs_only_failed_is_at_its_end() -> None:
    runs = rows((1e-3, 4.2, None), (1e-3, 4.1, None), (1e-3, None, "OOM"), (1e-3, None, "DIVERGED: NaN"))
    runs = runs.assign(**{"recipe.weight_decay": [0.01, 0.1, 1.0, 0.01], "masking.rate": [0.15, 0.3, 0.15, 0.4]})
    assert search(runs).knobs == (TunedKnob("recipe.weight_decay", 0.1, "highest"), TunedKnob("masking.rate", 0.3, None))


def test_a_number_that_some_runs_lack_has_no_ends_and_a_whole_one_is_whole() -> None:
    runs = rows((1e-3, 4.2, None), (1e-3, 4.1, None), (1e-3, 4.3, None))
    runs["architecture.embedding"], runs["recipe.warmup_tokens"] = [32.0, 64.0, None], [100.0, 200.0, 100.0]
    embedding, warmup = search(runs).knobs
    assert embedding == TunedKnob("architecture.embedding", 64, None)
    assert warmup == TunedKnob("recipe.warmup_tokens", 200, "highest")
    assert isinstance(warmup.chosen, int)


def test_only_the_first_seed_chooses_other_knobs() -> None:
    first = rows((1e-3, 4.2, None), (1e-3, 4.1, None)).assign(**{"recipe.weight_decay": [0.01, 0.1]})
    second = rows((1e-3, 3.0, None), seed=1).assign(**{"recipe.weight_decay": [0.01]})
    runs = pd.concat([second, first], ignore_index=True)
    assert search(runs).off == ("recipe.weight_decay", "recipe.weight_decay", "")
    assert search(runs).knobs == (TunedKnob("recipe.weight_decay", 0.1, "highest"),)


def test_each_cell_of_a_ledger_chooses_for_itself() -> None:
    low = rows((1e-3, 4.0, None), (2e-3, 4.1, None)).assign(cell="low", **{"recipe.weight_decay": [0.1, 0.1]})
    high = rows((1e-3, 4.1, None), (2e-3, 4.0, None)).assign(cell="high", **{"recipe.weight_decay": [0.01, 0.1]})
    ledger = pd.concat([low, high]).iloc[[0, 2, 1, 3]]
    actual = searches(ledger)
    assert {cell: each.rates.chosen for cell, each in actual.items()} == {"high": 2e-3, "low": 1e-3}
    assert {cell: each.rows.tolist() for cell, each in actual.items()} == {"high": [1, 3], "low": [0, 2]}
    assert {cell: each.off for cell, each in actual.items()} == {"high": ("recipe.weight_decay", ""), "low": ("", "")}


def test_a_knob_that_the_best_run_lacks_is_reported_as_missing() -> None:
    runs = rows((1e-3, 4.1, None), (1e-3, 4.2, None))
    runs["architecture.embedding"] = [None, 64.0]
    assert search(runs).off == ("", "architecture.embedding")
    assert search(runs).knobs == (TunedKnob("architecture.embedding", None, None),)
