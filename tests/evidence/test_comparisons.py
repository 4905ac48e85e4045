"""Cells, families of equal parameters, verdicts, exclusions and rankings of a synthetic sweep."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from itertools import product
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.base.errors import InputError
from study.base.quantities import compact, signed
from study.config.run_config import RunConfig
from study.config.shape_spec import Shapes
from study.config.tuned_values import trial_seeds
from study.evidence.cells import CellResult, cells_of, variant_columns
from study.evidence.comparisons import compare
from study.evidence.evidence import Evidence, gather, save_fits
from study.evidence.families import Family, families_of
from study.evidence.gains import gains_of
from study.evidence.learning_rates import RateSearch, Trial, TriedRate
from study.evidence.ledgers import open_ledger
from study.evidence.paired import MOST_SEEDS, MOST_SEQUENCES, seeds_that_would_decide, sequences_that_would_decide
from study.evidence.seed_scatter import SeedScatter, SeedVariance
from study.laws.reading import TableQuery, read_columns
from study.plotting import loss_by_shape
from study.report.answer_tables import cells as cells_table
from study.report.findings import loss_findings
from study.report.open_questions import undecided
from study.report.pair_sentences import verdict
from study.store.sweep_folder import SweepFolder
from tests.synthetic import (
    SEQUENCES,
    SWEEP,
    Law,
    add_run,
    depth_or_width,
    in_setting,
    reshaped,
    run_config,
    sweep_folder,
    with_facts,
)


def shared(scatter: SeedScatter) -> SeedVariance:
    """The one variance of cells that scatter alike."""
    assert scatter.alike
    (variance,) = set(scatter.variances.values())
    return variance


def evidence_of(folder: SweepFolder, include_unbracketed: bool = False) -> Evidence:
    folder.write_ledger()
    return gather(folder, include_unbracketed)


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return evidence_of(depth_or_width(tmp_path_factory.mktemp("results") / "depth_or_width"))


def test_cells_hold_the_chosen_runs_of_all_seeds(evidence: Evidence) -> None:
    assert len(evidence.cells) == 12
    for cell in evidence.cells:
        assert cell.losses.shape == (2, SEQUENCES)
        rows = evidence.ledger[evidence.ledger["run_id"].isin(cell.runs)]
        assert cell.loss_nats == pytest.approx(rows["loss_nats"].mean())
        assert cell.train_flops == pytest.approx(rows["train_flops"].iloc[0])
        assert set(rows["recipe.learning_rate"]) == {cell.rates.chosen}
        assert sorted(rows["seed"]) == [0, 1]


def test_families_are_of_equal_parameters_and_tokens(evidence: Evidence) -> None:
    assert [len(family.cells) for family in evidence.families] == [3, 3, 3, 3]
    for family in evidence.families:
        sizes = [cell.parameters_non_embedding for cell in family.cells]
        assert max(sizes) / min(sizes) < 1.11
        assert len({cell.tokens for cell in family.cells}) == 1


TOTAL = {"shapes": {"list": [{"depth": 1, "width": 128}], "count": "total"}}


def test_shapes_are_compared_at_the_count_of_parameters_that_the_sweep_names(tmp_path: Path) -> None:
    """1×128, 2×104 and 4×80 have 0.49M parameters in all, of which 0.2M to 0.31M are no embeddings."""
    shapes, by_count = ((1, 128), (2, 104), (4, 80)), {}
    for name, changes in {"total": TOTAL, "non_embedding": {}}.items():
        folder = sweep_folder(tmp_path / name, SWEEP | changes)
        for (depth, width), seed in product(shapes, (0, 1)):
            add_run(folder, run_config(depth, width, seed=seed))
        by_count[name] = evidence_of(folder, include_unbracketed=True)
    assert str(by_count["non_embedding"].comparisons.reason).startswith(
        "no two shapes that ran have equal non-embedding parameters"
    )
    (family,) = by_count["total"].families
    sizes = [cell.parameters for cell in family.cells]
    assert family.label == f"{compact(sorted(sizes)[1])} total parameters, 1M tokens"
    assert max(sizes) / min(sizes) < 1.05
    assert [cell.architecture.shape_name[:2] for cell in family.cells] == ["L1", "L2", "L4"]
    assert {pair.equal for pair in by_count["total"].comparisons.pairs} == {"total parameters"}
    sentence, *_ = loss_findings(by_count["total"])
    assert "at equal total parameters" in sentence
    assert any("Whether the same holds at equal non-embedding parameters" in line for line in undecided(by_count["total"]))
    drawn = loss_by_shape.frame(by_count["total"])
    contour = drawn[drawn["kind"] == "contour"]
    assert set(drawn["counted"].dropna()) == {"total parameters"}
    assert contour["parameters"].iloc[0] == pytest.approx(4.9e5, rel=0.03)


def test_known_differences_are_recovered_and_decided(evidence: Evidence) -> None:
    pairs = evidence.comparisons.pairs
    assert len(pairs) == 12
    for pair in pairs:
        doublings = {("L2", "L1"): 1, ("L4", "L2"): 1, ("L4", "L1"): 2}[pair.first[:2], pair.second[:2]]
        assert pair.status == "decided"
        assert pair.lower == pair.second
        assert pair.difference.estimate_nats == pytest.approx(0.08 * doublings, abs=0.025)
        assert pair.difference.n_seeds == (2, 2)
    assert [shared(scatter).degrees_of_freedom for scatter in evidence.comparisons.seed_scatter] == [6, 6]


def test_seeds_that_scatter_more_at_one_budget_say_nothing_of_another(tmp_path: Path) -> None:
    """Runs scatter while they leave the plateau; those of a budget before it still differ significantly."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for tokens, (depth, width), seed in product((1e6, 2e6), ((1, 128), (2, 92)), (0, 2, 3)):
        law = Law(depth_effect=0.08, seed_deviation=0.004 if tokens == 1e6 else 0.3)
        add_run(folder, run_config(depth, width, seed=seed, tokens=tokens), law)
    actual = evidence_of(folder, include_unbracketed=True)
    quiet, loud = (shared(scatter) for scatter in actual.comparisons.seed_scatter)
    assert loud.variance > 100 * quiet.variance
    assert [pair.status for pair in actual.comparisons.pairs] == ["decided", "undecided"]
    for gain in actual.token_gains:
        low, high = gain.difference.low_nats, gain.difference.high_nats
        assert low is not None
        assert high is not None
        assert gain.difference.standard_error_seeds_nats == pytest.approx(((quiet.variance + loud.variance) / 3) ** 0.5)
        assert gain.difference.degrees_of_freedom == pytest.approx(4, rel=0.05), "those of the loud budget"
    for run in folder.runs():
        if run.config().seed and run.config().recipe.budget.tokens == 2e6:
            shutil.rmtree(run.path)
    single = evidence_of(folder, include_unbracketed=True)
    assert [pair.status for pair in single.comparisons.pairs] == ["decided", "no_seed_replicates"]
    assert all(gain.difference.low_nats is None for gain in single.token_gains)


@pytest.mark.slow
def test_decided_pairs_of_two_seeds_say_what_two_seeds_hide(tmp_path: Path) -> None:
    hidden = "Whether cells of two seeds scatter alike, which so few seldom show"
    for seeds, expected in ((2, 1), (3, 0)):
        actual = evidence_of(depth_or_width(tmp_path / f"s{seeds}", seeds=seeds, budgets=(1e6,)))
        assert any(pair.status == "decided" for pair in actual.comparisons.pairs)
        assert sum(line.startswith(hidden) for line in undecided(actual)) == expected
    null = depth_or_width(tmp_path / "null", Law(depth_effect=0), seeds=2, shapes=((1, 128), (2, 92)), budgets=(1e6,))
    assert not any(line.startswith(hidden) for line in undecided(evidence_of(null)))


def test_a_setting_whose_seeds_scatter_widely_lends_its_scatter_to_no_other(tmp_path: Path) -> None:
    """With post-norm some seeds have left the plateau and others have not; shapes with pre-norm still differ significantly."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"architecture.norm": ["post", "pre"]}})
    for norm, (depth, width), seed in product(("post", "pre"), ((1, 128), (2, 92)), (0, 1, 2)):
        law = Law(depth_effect=0.08, seed_deviation=0.004 if norm == "pre" else 0.5)
        add_run(folder, in_setting(run_config(depth, width, seed=seed), norm=norm), law)
    actual = evidence_of(folder, include_unbracketed=True)
    (scatter,) = actual.comparisons.seed_scatter
    assert not scatter.alike
    assert {variance.cells for variance in scatter.variances.values()} == {1}
    by_family = {pair.family: pair for pair in actual.comparisons.pairs if pair.of_shapes}
    assert {family.partition("norm=")[2][:4].rstrip(","): pair.status for family, pair in by_family.items()} == {
        "post": "undecided",
        "pre": "decided",
    }
    sentence = next(line for line in undecided(actual) if "scatters" in line)
    assert sentence.startswith("How widely each cell scatters over seeds: unevenly, so that intervals take each cell's own")
    assert "at 1M tokens 0.0" in sentence
    assert "(norm=pre) to 0." in sentence
    assert "(norm=post) (Bartlett's p = " in sentence
    assert actual.differences()["seed_scatter"][0]["alike"] is False
    (kept,) = actual.differences()["seed_scatter"]
    assert (len(kept["variances"]), kept["tokens_near"]) == (4, 2**20)
    assert "or so" not in sentence
    larger = replace(scatter, pool=replace(scatter.pool, doublings=21))
    several = replace(actual, comparisons=replace(actual.comparisons, seed_scatter=(scatter, larger)))
    sentence = next(line for line in undecided(several) if "scatters" in line)
    assert "at 1M tokens (1.05M tokens or so) 0.0" in sentence
    assert "; at 1M tokens (2.1M tokens or so) 0.0" in sentence
    other = replace(scatter, pool=replace(scatter.pool, validation="other"))
    of_two = replace(actual, comparisons=replace(actual.comparisons, seed_scatter=(scatter, other)))
    assert "or so" not in next(line for line in undecided(of_two) if "scatters" in line), "as many tokens, other losses"


def test_what_would_decide_is_reckoned_with_each_cells_own_seeds(tmp_path: Path) -> None:
    """One shape has six seeds that scatter widely, the other two that hardly do; the remedy takes each for its own."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for (depth, width), seeds, deviation in (((1, 128), 6, 0.4), ((2, 92), 2, 0.002)):
        for seed in range(seeds):
            add_run(folder, run_config(depth, width, seed=seed), Law(depth_effect=0.02, seed_deviation=deviation))
    actual = evidence_of(folder, include_unbracketed=True).comparisons
    (pair,) = actual.pairs
    assert pair.difference.n_seeds == (2, 6)
    of_pair = [actual.seed_variances[name] for name in (pair.first_cell, pair.second_cell)]
    assert of_pair[1].variance > 1000 * of_pair[0].variance
    assert pair.difference.standard_error_seeds_nats == pytest.approx(
        (of_pair[0].variance / 2 + of_pair[1].variance / 6) ** 0.5
    )
    assert pair.sequences_that_would_decide == sequences_that_would_decide(pair.difference, of_pair, 1)
    assert pair.seeds_that_would_decide == seeds_that_would_decide(pair.difference, of_pair, 1)


def test_cells_of_one_seed_beside_uneven_ones_are_said_to_need_another(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for (depth, width), seeds, deviation in (((1, 128), 3, 0.4), ((2, 92), 1, 0.1), ((4, 64), 3, 0.002)):
        for seed in range(seeds):
            add_run(folder, run_config(depth, width, seed=seed), Law(depth_effect=0.2, seed_deviation=deviation))
    actual = evidence_of(folder, include_unbracketed=True)
    statuses = {pair.first[:2] + pair.second[:2]: pair.status for pair in actual.comparisons.pairs}
    assert statuses["L2L1"] == statuses["L4L2"] == "no_seed_replicates"
    assert any(line.startswith("Whether 2 pairs with a cell of one seed") for line in undecided(actual))
    alone = [pair for pair in actual.comparisons.pairs if pair.status == "no_seed_replicates"]
    assert "each has a cell of one seed, beside others that scatter unevenly" in verdict(alone, ())


def test_cells_of_an_earlier_launch_are_no_cells_of_the_sweep(tmp_path: Path) -> None:
    """A sweep was launched with pre-norm before; its runs stand in the ledger, and nothing is asked of their cells."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for width, seed in product((64, 96), (0, 1)):
        add_run(folder, run_config(1, width, seed=seed))
    for seed in (0, 1):
        add_run(folder, in_setting(run_config(1, 64, seed=seed), norm="pre"))
    ledger = folder.ledger()
    now = ledger.loc[ledger["architecture.norm"] == "post", "cell"]
    folder.cells_file.write_text(json.dumps(sorted(set(now))))
    actual = evidence_of(folder, include_unbracketed=True)
    assert len(actual.ledger) == 6
    assert [cell.architecture.width for cell in actual.cells] == [64, 96]
    assert {cell.setting for cell in actual.cells} == {""}
    assert not any("none of whose runs can be used" in line for line in undecided(actual))


def test_unbracketed_cells_enter_only_when_asked(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", rates=(4e-3, 8e-3), budgets=(1e6,), shapes=((1, 128), (2, 92)))
    strict = evidence_of(folder).comparisons
    assert strict.pairs == ()
    assert [cell.reason.split(",")[0] for cell in strict.left_out] == ["learning rate 0.004 is the lowest tried"] * 2
    assert strict.reason is not None
    loose = evidence_of(folder, include_unbracketed=True).comparisons
    assert len(loose.pairs) == 1
    assert loose.left_out == ()


def test_excluded_runs_count_in_no_mean(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", seeds=1, budgets=(1e6,), shapes=((1, 128), (2, 92)))
    add_run(folder, run_config(1, 128, 4e-3, seed=1), state="DIVERGED")
    add_run(folder, run_config(2, 92, 4e-3, seed=1), state="DIVERGED", reason="loss became NaN")
    actual = evidence_of(folder)
    assert [len(cell.runs) for cell in actual.cells] == [1, 1]
    assert [cell.tokens for cell in actual.cells] == [999424, 999424]
    assert len(actual.excluded) == 2
    assert [pair.status for pair in actual.comparisons.pairs] == ["no_seed_replicates"]


def test_small_differences_are_undecided_and_say_what_would_decide(tmp_path: Path) -> None:
    law = Law(depth_effect=0.01, seed_deviation=0.012)
    folder = depth_or_width(tmp_path / "s", law, budgets=(1e6,), shapes=((1, 128), (2, 92), (4, 64)))
    pairs = evidence_of(folder).comparisons.pairs
    assert "undecided" in {pair.status for pair in pairs}
    assert all(pair.seeds_that_would_decide is None for pair in pairs if pair.status == "decided")


def test_settings_keep_families_apart(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for depth, width in ((1, 128), (2, 92)):
        for schedule in ("linear", "cosine"):
            add_run(folder, run_config(depth, width, schedule=schedule))
    actual = evidence_of(folder, include_unbracketed=True)
    assert [family.cells[0].setting for family in actual.families] == ["schedule=cosine", "schedule=linear"]
    assert len([pair for pair in actual.comparisons.pairs if pair.of_shapes]) == 2


def test_settings_of_one_shape_are_compared_in_the_order_of_the_sweep(tmp_path: Path) -> None:
    """Pre-norm is made to lower the loss by 0.1 nats a layer beyond the first."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"architecture.norm": ["pre", "post"]}})
    for depth, norm, seed in product((1, 2, 4), ("pre", "post"), (0, 1)):
        law = Law(depth_effect=-0.2 if norm == "pre" else 0.0)
        add_run(folder, in_setting(run_config(depth, 64, seed=seed), norm=norm), law)
    actual = evidence_of(folder, include_unbracketed=True)
    pairs = actual.comparisons.pairs
    assert {(pair.first, pair.second, pair.weighs, pair.against) for pair in pairs} == {
        ("norm=post", "norm=pre", "architecture.norm", None)
    }
    assert [pair.family for pair in pairs] == [f"L{depth}-H64-A2-F256, 1M tokens" for depth in (1, 2, 4)]
    for pair, gap in zip(pairs, (0.0, 0.2, 0.4), strict=True):
        assert pair.difference.estimate_nats == pytest.approx(gap, abs=0.03)
    sentence, *rest = loss_findings(actual)
    assert sentence == ("At equal shape and tokens, of 3 pairs norm=post is lower in 0, norm=pre in 2, undecided 1 (Holm, 5%).")
    assert rest[0].startswith("Averaged over 3 conditions, norm=post minus norm=pre: +0.1")
    assert rest[2].startswith("L2-H64-A2-F256, 1M tokens: norm=pre is lower, norm=post minus norm=pre: +0.")
    assert "norm=post minus norm=pre" in " ".join(undecided(actual))
    assert verdict(pairs[1:], ()).startswith("norm=pre is lower in every pair: at equal shape and tokens, of 2 pairs")
    assert actual.laws.fits == ()
    assert actual.laws.reasons == (
        "No fit of power-floor: its 3 parameters need 4 or more different points, got 3 in 6 rows",
    ), "once, since it holds for both"
    assert "depth from L1-H64-A2-F256 to L2-H64-A2-F256 (norm=pre) at 1M tokens" in " ".join(loss_findings(actual))


def test_a_knob_that_some_runs_lack_is_a_setting(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for width in (64, 96):
        add_run(folder, run_config(1, width))
    ledger = folder.write_ledger()
    assert variant_columns(folder, ledger) == []
    assert variant_columns(folder, ledger.assign(**{"recipe.new": pd.Series([None, 0.5])})) == ["recipe.new"]


def test_the_bias_that_rms_norm_has_not_is_no_setting_of_its_own(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"architecture.norm_kind": ["layer", "rms"]}})
    for kind, seed in product(("layer", "rms"), (0, 1)):
        add_run(folder, in_setting(run_config(1, 64, seed=seed), norm_kind=kind, norm_bias=kind == "layer"))
    (pair,) = evidence_of(folder, include_unbracketed=True).comparisons.pairs
    assert (pair.first, pair.second, pair.weighs) == ("norm_kind=rms", "norm_kind=layer", "architecture.norm_kind")


def test_the_norm_of_the_embeddings_that_post_norm_has_anyhow_is_no_setting_of_its_own(tmp_path: Path) -> None:
    base, vary = {"architecture": {"embedding_norm": True}}, {"architecture.norm": ["post", "pre"]}
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "base": base, "vary": vary})
    for norm, seed in product(("post", "pre"), (0, 1)):
        normed = True if norm == "pre" else None  # as Architecture resolves it
        add_run(folder, in_setting(run_config(1, 64, seed=seed), norm=norm, embedding_norm=normed))
    (pair,) = evidence_of(folder, include_unbracketed=True).comparisons.pairs
    assert (pair.first, pair.second, pair.weighs) == ("norm=pre", "norm=post", "architecture.norm")


def test_the_rows_for_distances_that_rotary_has_not_are_no_setting_of_their_own(tmp_path: Path) -> None:
    vary = {"architecture.position_encoding": ["rotary", "disentangled"]}
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": vary})
    for (encoding, rows), seed in product((("rotary", 0), ("disentangled", 128)), (0, 1)):
        add_run(folder, in_setting(run_config(1, 64, seed=seed), position_encoding=encoding, relative_positions=rows))
    (pair,) = evidence_of(folder, include_unbracketed=True).comparisons.pairs
    assert (pair.first, pair.second) == ("position_encoding=disentangled", "position_encoding=rotary")


def test_what_a_search_tries_is_a_setting_also_where_it_follows_from_others_in_a_sweep(tmp_path: Path) -> None:
    dimension = {"low": 0.0, "high": 0.5}
    searched = {"trials": 2, "space": {"recipe.warmup_fraction": dimension}}
    folder = sweep_folder(
        tmp_path / "s",
        {name: SWEEP[name] for name in ("question", "data")} | {"budgets": {"tokens": [1e6]}, "search": searched},
    )
    for warmup in (0.1, 0.4):
        add_run(folder, run_config(1, 64, warmup_fraction=warmup))
    assert variant_columns(folder, folder.write_ledger()) == ["recipe.warmup_fraction"]


def test_settings_that_the_sweep_does_not_list_come_after_those_that_it_does(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"architecture.norm": ["pre"]}})
    for norm in ("post", "pre"):
        add_run(folder, in_setting(run_config(1, 64), norm=norm))
    (pair,) = evidence_of(folder, include_unbracketed=True).comparisons.pairs
    assert (pair.first, pair.second) == ("norm=post", "norm=pre")


def test_of_two_settings_a_pair_holds_one(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for norm, dropout, seed in product(("pre", "post"), (0.0, 0.1, 0.02), (0, 1)):
        add_run(folder, in_setting(run_config(1, 64, seed=seed), norm=norm, dropout=dropout), Law(depth_effect=0))
    pairs = evidence_of(folder, include_unbracketed=True).comparisons.pairs
    of_norm = [pair for pair in pairs if pair.weighs == "architecture.norm"]
    assert {pair.family for pair in of_norm} == {f"L1-H64-A2-F256, dropout={x}, 1M tokens" for x in ("0", "0.02", "0.1")}
    assert {(pair.first, pair.second) for pair in of_norm} == {("norm=pre", "norm=post")}, "unlisted words go by the alphabet"
    of_dropout = [pair for pair in pairs if pair.weighs == "recipe.dropout"]
    assert [(pair.first, pair.second) for pair in of_dropout[:3]] == [
        ("dropout=0.02", "dropout=0"),
        ("dropout=0.1", "dropout=0"),
        ("dropout=0.1", "dropout=0.02"),
    ]
    assert len(pairs) == len(of_norm) + len(of_dropout) == 9
    decided = [replace(pair, p_value_holm=0.0, difference=replace(pair.difference, estimate_nats=1.0)) for pair in of_dropout]
    assert verdict([*of_norm[1:], *decided], ()).endswith(
        "of 6 pairs 6 are decided: dropout=0 is lower than dropout=0.02 in 2 of 2 and dropout=0.1 in 2 of 2, "
        "dropout=0.02 is lower than dropout=0.1 in 2 of 2 (Holm, 5%)."
    )
    assert verdict(decided[:3], ()) == (
        "At equal shape and tokens, of 3 pairs 3 are decided: dropout=0 is lower than dropout=0.02 and dropout=0.1, "
        "dropout=0.02 is lower than dropout=0.1 (Holm, 5%)."
    ), "one place"


def test_a_donor_is_one_setting_however_its_folder_is_written(tmp_path: Path) -> None:
    run = "0123456789abcdef"
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"recipe.start": [f"here/{run}/", "fresh"]}})
    for seed, start in enumerate((f"here/{run}", f"/there/{run}/", f"./{run}:first")):
        add_run(folder, run_config(1, 64, seed=seed, start=start), Law(depth_effect=0))
        add_run(folder, run_config(1, 64, seed=seed), Law(depth_effect=0))
    actual = evidence_of(folder, include_unbracketed=True)
    (pair,) = actual.comparisons.pairs
    assert (pair.first, pair.second) == ("start=fresh", f"start={run}:first")
    assert pair.difference.n_seeds == (3, 3)
    assert any(f"3 runs began with weights of {run}, whose" in line for line in undecided(actual))


def test_settings_of_shapes_of_equal_parameters_keep_the_order_of_the_sweep(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"architecture.norm": ["pre", "post"]}})
    for (depth, width), norm in product(((1, 128), (2, 92)), ("pre", "post")):
        add_run(folder, in_setting(run_config(depth, width), norm=norm))
    pairs = evidence_of(folder, include_unbracketed=True).comparisons.pairs
    assert {(pair.first, pair.second) for pair in pairs if not pair.of_shapes} == {("norm=post", "norm=pre")}


def test_settings_that_cost_parameters_are_compared_at_an_equal_shape_and_at_equal_parameters(tmp_path: Path) -> None:
    """Four layers of width 128 that share their weights have as many of these as four of width 64 that do not."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"architecture.layer_groups": ["none", 1]}})
    for width, groups, seed in product((64, 128), (None, 1), (0, 1)):
        law = Law(seed_deviation=0.001, depth_effect=0 if groups is None else 0.05)
        add_run(folder, in_setting(run_config(4, width, seed=seed), layer_groups=groups), law)
    actual = evidence_of(folder, include_unbracketed=True)
    sides = {(pair.equal, pair.family): (pair.first, pair.second) for pair in actual.comparisons.pairs if not pair.of_shapes}
    assert {*sides.values()} == {("layer_groups=1", "layer_groups=none")}
    assert {*sides} == {
        ("shape", "L4-H64-A2-F256 (191.7k to 341.7k parameters), 1M tokens"),
        ("shape", "L4-H128-A2-F512 (487.9k to 1.1M parameters), 1M tokens"),
        ("depth, FFN ratio and parameters", "depth 4, 199.3k non-embedding parameters, 1M tokens"),
    }
    text = "\n".join(loss_findings(actual))
    assert "at equal shape and tokens, of 2 pairs layer_groups=1 is lower in" in text
    assert "at equal depth, FFN ratio, parameters and tokens, of 1 pair" in text
    assert [average.equal for average in actual.averages] == ["shape"]
    assert actual.laws.fits or actual.laws.reasons
    ledger = folder.read_ledger()
    assert {*ledger["architecture.layer_groups"]} == {"none", "1"}


WIDTH, RATIO, DEPTH = "depth, width and parameters", "depth, FFN ratio and parameters", "depth and parameters"


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([("gelu", 128, 512), ("geglu", 112, 448)], {(RATIO, 128, 112)}),  # one a setting
        ([("gelu", 128, 512), ("geglu", 140, 280)], {(DEPTH, 128, 140)}),
        (
            [("gelu", 128, 512), ("gelu", 156, 312), ("geglu", 128, 341), ("geglu", 112, 448)],
            {(WIDTH, 128, 128), (RATIO, 128, 112)},
        ),
        (
            [("gelu", 128, 512), ("gelu", 156, 312), ("geglu", 112, 448), ("geglu", 140, 280)],
            {(RATIO, 128, 112), (RATIO, 156, 140)},
        ),
        ([("gelu", 128, 512), ("geglu", 128, 512)], set()),  # at one shape alone, with other parameters
        ([("gelu", 128, 512), ("geglu", 128, 341), ("swiglu", 128, 341)], {(WIDTH, 128, 128)}),  # twice; these at one shape
    ],
)
def test_equal_parameters_are_matched_by_the_width_and_by_the_ffn_ratio(
    tmp_path: Path, sizes: list[tuple[str, int, int]], expected: set[tuple[str, int, int]]
) -> None:
    folder = sweep_folder(
        tmp_path / "s", SWEEP | {"tune": {}, "vary": {"architecture.activation": ["gelu", "geglu", "swiglu"]}}
    )
    for activation, width, ffn in sizes:
        add_run(folder, in_setting(reshaped(run_config(2, width), ffn=ffn), activation=activation))
    actual = evidence_of(folder, include_unbracketed=True)
    widths = {cell.name: cell.architecture.width for cell in actual.cells}
    pairs = [pair for pair in actual.comparisons.pairs if pair.equal.startswith("depth")]
    assert {pair.second for pair in pairs} <= {"activation=gelu"}
    assert {(pair.equal, widths[pair.second_cell], widths[pair.first_cell]) for pair in pairs} == expected


def test_a_setting_that_is_lower_for_its_smaller_ffn_alone_is_not_called_lower_at_one_ratio(tmp_path: Path) -> None:
    """Where a smaller FFN is lower whatever the activation, GeGLU is lower than GELU at one width, and not at one FFN ratio."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"architecture.activation": ["gelu", "geglu"]}})
    shapes = {"gelu": ((128, 512), (144, 384)), "geglu": ((128, 341), (112, 448))}
    for activation, seed in product(shapes, range(3)):
        for width, ffn in shapes[activation]:
            law = Law(seed_deviation=0.001, depth_effect=-0.1 if ffn < 3 * width else 0)
            add_run(folder, in_setting(reshaped(run_config(2, width, seed=seed), ffn=ffn), activation=activation), law)
    actual = evidence_of(folder, include_unbracketed=True)
    pairs = sorted((pair.equal, pair.status) for pair in actual.comparisons.pairs if not pair.of_shapes)
    assert pairs == [(RATIO, "undecided"), (RATIO, "undecided"), (WIDTH, "decided")]


def test_settings_that_cannot_be_compared_are_said_to_be_so(tmp_path: Path) -> None:
    """A batch of 32,768 tokens takes 983,040 of a million, one of 1,024 takes 999,424."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"recipe.batch_tokens": [1024, 32768]}})
    for batch in (1024, 32768):
        add_run(folder, run_config(1, 64, batch_tokens=batch))
    actual = evidence_of(folder, include_unbracketed=True)
    assert loss_findings(actual)[0].startswith("Variants are not compared: no two cells")
    reasons = {cell.shape: cell.reason for cell in actual.comparisons.left_out}
    assert reasons.keys() == {"batch_tokens=1024", "batch_tokens=32768"}
    spent = "its whole steps use 983,040 tokens, 98.3% of the budget, and no other cell comes within 1% of that"
    assert reasons["batch_tokens=32768"] == spent


def test_batches_that_spend_as_much_as_each_other_are_compared_whatever_a_third_does(tmp_path: Path) -> None:
    """Batches of 32,768 and of 65,536 tokens both spend 983,040 of a million."""
    batches = [1024, 32768, 65536]
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"recipe.batch_tokens": batches}})
    for batch, seed in product(batches, (0, 1)):
        add_run(folder, run_config(1, 64, seed=seed, batch_tokens=batch))
    actual = evidence_of(folder, include_unbracketed=True).comparisons
    assert [(pair.first, pair.second) for pair in actual.pairs] == [("batch_tokens=65536", "batch_tokens=32768")]
    assert [cell.shape for cell in actual.left_out] == ["batch_tokens=1024"]


def test_batches_are_not_compared_at_equal_steps(tmp_path: Path) -> None:
    """A batch four times as large sees four times the tokens."""
    sweep = {"tune": {}, "vary": {"recipe.batch_tokens": [1024, 4096]}, "budgets": {"steps": [500]}}
    folder = sweep_folder(tmp_path / "s", SWEEP | sweep)
    for batch, seed in product((1024, 4096), (0, 1)):
        add_run(folder, run_config(1, 64, seed=seed, batch_tokens=batch, budget={"steps": 500}))
    actual = evidence_of(folder, include_unbracketed=True).comparisons
    assert actual.pairs == ()
    assert [cell.reason.split(",")[0] for cell in actual.left_out] == ["its whole steps use 512", "its whole steps use 2"]


def test_shapes_that_see_more_tokens_for_one_budget_scatter_on_their_own(tmp_path: Path) -> None:
    """Of three tokens a parameter the widest shapes see 16 times as many as the narrowest, whose runs scatter more."""
    budget = {"tokens_per_parameter": 3.0}
    folder = sweep_folder(
        tmp_path / "s",
        SWEEP | {"tune": {}, "shapes": {"grid": {"depth": [1], "width": [64, 512]}}, "budgets": {"tokens_per_parameter": [3]}},
    )
    for width, seed in product((64, 512), (0, 1, 2)):
        add_run(folder, run_config(1, width, seed=seed, budget=budget), Law(seed_deviation=0.1 if width == 64 else 0.004))
    variances = [shared(scatter) for scatter in evidence_of(folder).comparisons.seed_scatter]
    assert [variance.cells for variance in variances] == [1, 1]
    assert variances[0].variance > 20 * variances[1].variance


def test_batches_are_compared_at_equal_budgets_though_their_whole_steps_differ(tmp_path: Path) -> None:
    """Of two million tokens 3,906 steps of 512 take 1,999,872, 976 of 2,048 1,998,848; the law's depth stands for the batch."""
    batches, vary = (512, 1024, 2048), {"recipe.batch_tokens": [512, 1024, 2048], "architecture.norm": ["post", "pre"]}
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": vary})
    for tokens, batch, norm, seed in product((1e6, 2e6), batches, ("post", "pre"), (0, 1)):
        config = in_setting(run_config(2, 64, seed=seed, tokens=tokens, batch_tokens=batch), norm=norm)
        add_run(folder, config, Law(depth_effect=0.1 * log2(batch / 512)))
    actual = evidence_of(folder, include_unbracketed=True)
    assert len({cell.tokens for cell in actual.cells}) > 2
    pairs = [pair for pair in actual.comparisons.pairs if pair.weighs == "recipe.batch_tokens"]
    assert len(pairs) == 12
    assert {pair.family for pair in pairs} == {
        f"L2-H64-A2-F256, norm={norm}, {tokens} tokens" for norm in ("post", "pre") for tokens in ("1M", "2M")
    }
    sizes = {f"batch_tokens={batch}": log2(batch) for batch in batches}
    for pair in pairs:
        assert pair.difference.estimate_nats == pytest.approx(0.1 * (sizes[pair.first] - sizes[pair.second]), abs=0.02)
        assert pair.status == "decided"
    assert [shared(scatter).cells for scatter in actual.comparisons.seed_scatter] == [6, 6]
    assert (
        "batch_tokens=512 is lower than batch_tokens=1024 in 4 of 4 and batch_tokens=2048 in 4 of 4" in loss_findings(actual)[0]
    )
    fronts = [line for line in loss_findings(actual) if line.startswith("Lowest")]
    assert [line.split(":")[0] for line in fronts] == ["Lowest loss at 1M tokens", "Lowest loss at 2M tokens"]


@pytest.mark.slow
def test_of_many_families_those_of_the_largest_and_the_smallest_difference_are_reported(tmp_path: Path) -> None:
    """Nine pairs of settings, of which the post-norm one is lower by more at each; the tables have them all."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"architecture.norm": ["post", "pre"]}})
    places = list(product((64, 96, 128), (1e6, 2e6, 4e6)))
    for (place, (width, tokens)), norm, seed in product(enumerate(places), ("post", "pre"), (0, 1, 2)):
        law = Law(depth_effect=0.1 * place if norm == "pre" else 0.0)
        add_run(folder, in_setting(run_config(2, width, seed=seed, tokens=tokens), norm=norm), law)
    actual = evidence_of(folder, include_unbracketed=True)
    assert len({pair.family for pair in actual.comparisons.pairs}) == 9
    lines = [line for line in loss_findings(actual) if "norm=pre minus norm=post" in line]
    assert lines[0].startswith("Averaged over 9 conditions, norm=pre minus norm=post: +0.3")
    assert [line.partition(": norm=")[0] for line in lines[1:]] == [
        "Largest decided of 9 families: L2-H128-A2-F512, 4M tokens",
        "Smallest decided: L2-H64-A2-F256, 2M tokens",
    ]


def test_rotary_positions_are_compared_with_learned_ones(tmp_path: Path) -> None:
    """Configurations leave out that positions are learned; the ledger says it where other runs have rotary ones."""
    vary = {"architecture.position_encoding": ["rotary", "learned"]}
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": vary})
    for encoding, seed in product(("rotary", "learned"), (0, 1)):
        add_run(folder, in_setting(run_config(1, 64, seed=seed), position_encoding=encoding))
    actual = evidence_of(folder, include_unbracketed=True)
    assert sorted(folder.read_ledger()["architecture.position_encoding"]) == ["learned"] * 2 + ["rotary"] * 2
    (pair,) = actual.comparisons.pairs
    assert (pair.first, pair.second) == ("position_encoding=learned", "position_encoding=rotary")
    assert actual.laws.reasons == ("No law is fitted: the usable runs are of one size, and no shape has two budgets",)


def test_shapes_are_compared_at_equal_flops_where_budgets_are_flops(tmp_path: Path) -> None:
    """The wider of two shapes of equal parameters has dearer tokens, and so sees fewer; the verdict names what was equal."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "budgets": {"flops": [3e11, 6e11]}})
    for flops, (depth, width), seed in product((3e11, 6e11), ((1, 128), (2, 92), (4, 64)), (0, 1)):
        add_run(folder, run_config(depth, width, seed=seed, budget={"flops": flops}), Law(depth_effect=0.2))
    actual = evidence_of(folder, include_unbracketed=True)
    assert len({cell.tokens for cell in actual.cells}) == 6
    assert len(actual.comparisons.pairs) == 6
    sentence, *rest = loss_findings(actual)
    assert sentence.startswith("Width lowers loss more in every pair: at equal non-embedding parameters and FLOPs, of 6 pairs")
    assert rest[0].startswith(
        "Averaged over 2 conditions, L1-H128-A2-F512 has the lowest mean. The others minus it, decided: L2-H92-A2-F368 +0.19"
    )
    assert rest[1].startswith("200.1k non-embedding parameters, 300G FLOPs: L1-H128-A2-F512 is lower")
    assert [len(scatter.variances) for scatter in actual.comparisons.seed_scatter] == [3, 3]


def test_a_front_at_equal_flops_goes_by_parameters(tmp_path: Path) -> None:
    """At one budget of FLOPs the smaller shape sees more tokens; it is on the front however high its loss."""
    folder = sweep_folder(
        tmp_path / "s",
        SWEEP | {"tune": {}, "shapes": {"grid": {"depth": [1], "width": [32, 64, 128]}}, "budgets": {"flops": [3e11]}},
    )
    for width in (32, 64, 128):
        add_run(folder, run_config(1, width, budget={"flops": 3e11}))
    actual = evidence_of(folder)
    tokens, sizes = ([getattr(cell, name) for cell in actual.front] for name in ("tokens", "parameters"))
    assert sizes == sorted(sizes)
    assert tokens == sorted(tokens, reverse=True)
    assert actual.front[0].architecture.width == 32


def test_runs_that_are_no_more_of_the_sweep_make_no_settings(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"recipe.dropout": [0, 0.1]}})
    for dropout, beta in product((0.0, 0.1), (0.9, 0.8)):
        add_run(folder, in_setting(run_config(1, 64, beta1=beta), dropout=dropout))
    cells = {str(name) for name, runs in folder.write_ledger().groupby("cell") if runs["recipe.beta1"].iloc[0] == 0.9}
    folder.cells_file.write_text(json.dumps(sorted(cells)))
    (pair,) = evidence_of(folder, include_unbracketed=True).comparisons.pairs
    assert (pair.family, pair.first) == ("L1-H64-A2-F256, 1M tokens", "dropout=0.1")


def test_a_law_of_a_sweep_that_varies_a_knob_is_fitted_to_one_setting(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"architecture.norm": ["post", "pre"]}})
    for width, norm in product((32, 64, 96, 128), ("post", "pre")):
        add_run(folder, in_setting(run_config(1, width), norm=norm))
    folder.write_ledger()
    with pytest.raises(InputError, match=r"in architecture\.norm have laws of their own; keep those of one with .* == 'post'"):
        read_columns(TableQuery(open_ledger(folder.path)), ("parameters",), "loss")
    chosen = read_columns(TableQuery(open_ledger(folder.path), where="architecture.norm == 'pre'"), ("parameters",), "loss")
    assert len(chosen) == 4


def test_settings_and_shapes_have_verdicts_of_their_own_and_settings_come_first(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for (depth, width), norm, seed in product(((1, 128), (2, 92)), ("post", "pre"), (0, 1)):
        law = Law(depth_effect=0.5, best_rate=3e-3 if norm == "pre" else 9e-3)
        add_run(folder, in_setting(run_config(depth, width, seed=seed), norm=norm), law)
    actual = evidence_of(folder, include_unbracketed=True)
    settings, of_variants, shapes, of_shapes = loss_findings(actual)[:4]
    assert shapes.startswith("Width lowers loss more in every pair: at equal non-embedding parameters and tokens, of 2 pairs")
    assert of_shapes.startswith("Averaged over 2 conditions, L2-H92-A2-F368 minus L1-H128-A2-F512: +0.4")
    assert of_variants.startswith("Averaged over 2 conditions, norm=p")
    assert settings.startswith("norm=pre is lower in every pair: at equal shape and tokens, of 2 pairs")


def test_grid_has_no_comparisons_but_gains_and_a_front(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6,), shapes=((1, 64), (2, 64), (1, 128), (2, 128)))
    actual = evidence_of(folder)
    assert actual.comparisons.pairs == ()
    assert actual.comparisons.reason is not None
    assert "no two shapes" in actual.comparisons.reason
    assert sorted((gain.axis, gain.smaller[:6], gain.larger[:6]) for gain in actual.gains) == [
        ("depth", "L1-H12", "L2-H12"),
        ("depth", "L1-H64", "L2-H64"),
        ("width", "L1-H64", "L1-H12"),
        ("width", "L2-H64", "L2-H12"),
    ]
    ranked = [gain.nats_lowered_per_million for gain in actual.gains]
    assert ranked == sorted(ranked, reverse=True)
    losses = [cell.loss_nats for cell in actual.front]
    sizes = [cell.parameters for cell in actual.front]
    assert sizes == sorted(sizes)
    assert losses == sorted(losses, key=lambda loss: -(loss or 0))


def test_steps_that_raise_the_loss_are_reported_and_not_as_what_lowers_it(tmp_path: Path) -> None:
    """Depth is made to raise the loss by 0.5 nats a doubling, and width lowers it."""
    shapes = ((1, 64), (2, 64), (1, 128), (2, 128))
    lines = loss_findings(evidence_of(depth_or_width(tmp_path / "s", Law(depth_effect=0.5), budgets=(1e6,), shapes=shapes)))
    counts, *_, raising = [line for line in lines if "step" in line or "rais" in line.lower() or "lowered per million" in line]
    assert counts == "Of 4 steps to a larger size 2 lower the loss, 2 raise it, undecided 0 (Holm, 5%)."
    assert raising.startswith("Raising it: depth from L1-")
    assert raising.count("depth from L1-") == 2
    assert "lowered per million" not in raising
    lowering = [line for line in lines if "lowered per million" in line]
    assert len(lowering) == 2
    assert all(line.startswith("width from") for line in lowering)
    fine = loss_findings(evidence_of(depth_or_width(tmp_path / "t", budgets=(1e6,), shapes=((1, 64), (1, 128)))))
    assert "Of 1 step to a larger size 1 lowers the loss, 0 raise it, undecided 0 (Holm, 5%)." in fine
    assert not [line for line in fine if "Raising" in line]


@pytest.mark.slow
def test_of_many_steps_it_is_said_which_are_reported_in_full(tmp_path: Path) -> None:
    """Wider and wider shapes lower the loss at each of five steps; the three that buy most a parameter are listed."""
    folder = depth_or_width(tmp_path / "s", budgets=(1e6,), shapes=tuple((1, width) for width in (32, 48, 64, 96, 128, 192)))
    actual = evidence_of(folder)
    counts, *steps = [line for line in loss_findings(actual) if "steps" in line or "lowered per million" in line]
    assert counts == (
        "Of 5 steps to a larger size 5 lower the loss, 0 raise it, undecided 0 (Holm, 5%); "
        "most of the decided, per million more parameters_encoder:"
    )
    assert [step.partition(":")[0] for step in steps] == [gain.step for gain in actual.gains[:3]]


class NoEffect(Law):
    """A law by which nothing changes the loss."""

    def loss(self, config: RunConfig) -> float:
        """4 nats, whatever the run."""
        return 4.0


@pytest.mark.slow
def test_of_many_steps_the_least_likely_of_chance_is_judged_among_all(tmp_path: Path) -> None:
    """Sixteen shapes of one true loss: some steps' own p-values are below 5%, and none is said to change the loss."""
    shapes = tuple((depth, width) for depth in (1, 2, 3, 4) for width in (32, 48, 64, 96))
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for (depth, width), seed in product(shapes, range(3)):
        add_run(folder, run_config(depth, width, seed=seed), NoEffect(seed_deviation=0.02))
    actual = evidence_of(folder)
    assert any(gain.difference.p_value is not None and gain.difference.p_value < 0.05 for gain in actual.gains)
    bounds = [(gain.difference.low_nats, gain.difference.high_nats) for gain in actual.gains]
    assert all(low * high < 0 for low, high in bounds if low is not None and high is not None)
    (steps,) = [line for line in loss_findings(actual) if "steps to a larger size" in line]
    assert steps == "Not decided: none of 24 steps to a larger size changes the loss beyond chance (Holm, 5%)."


@pytest.mark.slow
def test_the_lowest_loss_is_not_reported_as_if_a_step_to_it_were_decided(tmp_path: Path) -> None:
    """Shapes of unequal size make no pair: only steps say which differ significantly."""
    for law, alike in ((Law(), False), (NoEffect(seed_deviation=0.02), True)):
        folder = sweep_folder(tmp_path / type(law).__name__, SWEEP | {"tune": {}})
        for width, seed in product((64, 128), (0, 1, 2)):
            add_run(folder, run_config(1, width, seed=seed), law)
        actual = evidence_of(folder)
        assert (len(actual.comparisons.pairs), [gain.status == "decided" for gain in actual.gains]) == (0, [not alike])
        (lowest,) = [line for line in loss_findings(actual) if line.startswith("Lowest loss")]
        assert ("parameters), not significantly different from any cell that it was compared with" in lowest) == alike


@pytest.mark.parametrize(("seeds", "interval"), [(3, "95% interval -"), (1, "no interval")])
def test_the_lowest_loss_is_reported_with_the_next_where_no_pair_or_step_compares_the_two(
    tmp_path: Path, seeds: int, interval: str
) -> None:
    """Shapes that differ in depth and in width: one of them is the lowest, though all are alike."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for (depth, width), seed in product(((1, 64), (2, 128), (4, 184)), range(seeds)):
        add_run(folder, run_config(depth, width, seed=seed), NoEffect(seed_deviation=0.02))
    actual = evidence_of(folder)
    assert (actual.comparisons.pairs, actual.gains) == ((), ())
    best, second, _ = sorted(actual.cells, key=lambda cell: float(cell.losses.mean()))
    (lowest,) = [line for line in loss_findings(actual) if line.startswith("Lowest loss")]
    assert f": {best.words}, " in lowest
    above = signed(float(second.losses.mean() - best.losses.mean()))
    assert f" parameters); the next, {second.words}, minus it {above} nats ({interval}" in lowest


def test_steps_without_seed_replicates_are_not_reported_as_findings(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6,), seeds=1, rates=(4e-3, 8e-3), shapes=((1, 64), (1, 128)))
    (steps,) = [line for line in loss_findings(evidence_of(folder)) if "to a larger size" in line]
    assert steps == (
        "Not decided: 1 step to a larger size, but no cell has two usable seeds, so chance between seeds is unknown."
    )


def test_shapes_of_one_target_that_are_no_size_are_said_not_to_be_compared(tmp_path: Path) -> None:
    evidence = evidence_of(depth_or_width(tmp_path / "s", budgets=(1e6,), shapes=((1, 64), (2, 64))))
    sizes = sorted(cell.parameters_non_embedding for cell in evidence.cells)
    shapes = {"iso_parameters": [sum(sizes) / 2], "tolerance": "5e-1"}  # as PyYAML reads it

    def asked_for(shapes: dict[str, Any]) -> list[str]:
        sweep = evidence.sweep.model_copy(update={"shapes": Shapes.parse({"depth": [1, 2], **shapes})})
        return [line for line in undecided(replace(evidence, sweep=sweep)) if "asked for" in line]

    (line,) = asked_for(shapes)
    assert line.startswith("How L1-H64-A2-F256 (")
    assert "; L2-H64-A2-F256 (" in line
    assert "are not within 5% of one size, so none is compared across a semicolon" in line
    in_words = {**shapes, "iso_parameters": [f"{sum(sizes) / 2000}k"]}  # as sweep.yaml keeps it
    assert asked_for(in_words) == [line]
    assert not asked_for({"iso_parameters": [sum(sizes) / 2]})


@pytest.mark.slow
def test_pairs_that_rates_between_those_tried_would_move_out_of_their_interval_are_reported(tmp_path: Path) -> None:
    evidence = evidence_of(depth_or_width(tmp_path / "s", Law(depth_effect=0.5), budgets=(1e6,)))
    pair = next(pair for pair in evidence.comparisons.pairs if pair.status == "decided")

    def lines_on_gains(first_gains: float) -> list[str]:
        gains = {pair.first_cell: first_gains, pair.second_cell: 0.0}
        cells = tuple(replace(c, rates=replace(c.rates, gain_left_nats=gains.get(c.name, 0.0))) for c in evidence.cells)
        return [line for line in undecided(replace(evidence, cells=cells)) if "rates between those tried" in line]

    assert pair.difference.low_nats is not None
    half = pair.difference.estimate_nats - pair.difference.low_nats
    assert not lines_on_gains(0.9 * half)
    (line,) = lines_on_gains(1.1 * half)
    assert f"{pair.first} minus {pair.second} {signed(pair.difference.low_nats - 0.1 * half)} in place of" in line
    assert line.startswith("What rates between those tried would give; by the vertices in the table of cells they move ")


def lines_on_choices(evidence: Evidence) -> list[str]:
    return [line for line in undecided(evidence) if " chose the best of the rates tried" in line]


@pytest.mark.slow
def test_decided_pairs_that_another_rate_would_leave_open_are_reported(tmp_path: Path) -> None:
    evidence = evidence_of(depth_or_width(tmp_path / "s", Law(depth_effect=0.5), budgets=(1e6,)))
    decided = [pair for pair in evidence.comparisons.pairs if pair.status == "decided"]
    pair = next(pair for pair in decided if not pair.first_is_lower)
    higher, lower = (next(c for c in evidence.cells if c.name == name) for name in (pair.first_cell, pair.second_cell))
    assert lower.loss_nats is not None
    assert pair.difference.high_nats is not None
    half = pair.difference.high_nats - pair.difference.estimate_nats

    lowest = lower.loss_nats

    def lines_on_next_rate(above: float, exclusion: str | None = None) -> list[str]:
        others = [TriedRate(rate, (Trial("", loss, exclusion),)) for rate, loss in ((1e-3, 9.0), (8e-3, lowest + above))]
        chosen = (rate for rate in higher.rates.tried if rate.learning_rate == higher.rates.chosen)
        changed = replace(higher, rates=replace(higher.rates, tried=(*chosen, *others)))
        return lines_on_choices(replace(evidence, cells=tuple(changed if c is higher else c for c in evidence.cells)))

    assert lines_on_choices(evidence) == []
    assert lines_on_next_rate(2 * half) == []
    (line,) = lines_on_next_rate(0.5 * half)  # of one seed beside two the interval is 1.22 times as wide
    assert f": 1 of {len(decided)} decided pairs would be open at the rate that it ranks next for the higher side" in line
    assert line.endswith(f": {pair.first} at 0.008 minus {pair.second} {signed(0.5 * half)} nats at {pair.family}.")
    (line,) = lines_on_next_rate(-0.5)
    assert f"minus {pair.second} -0.5000 nats" in line
    assert lines_on_next_rate(0.5 * half, exclusion="DIVERGED") == []


def test_rates_of_several_tokenisers_are_judged_in_the_unit_of_their_pairs(evidence: Evidence) -> None:
    """Four bytes a token: the next rate's loss per byte decides, and no parabola of losses per token has a say."""
    cells = tuple(replace(cell, per_byte=True, losses=cell.losses / 4) for cell in evidence.cells)
    of_bytes = replace(evidence, cells=cells, comparisons=compare(families_of(cells)))
    decided = [pair for pair in of_bytes.comparisons.pairs if pair.status == "decided"]
    pair = next(pair for pair in decided if not pair.first_is_lower)
    higher, lower = (next(c for c in cells if c.name == name) for name in (pair.first_cell, pair.second_cell))
    assert pair.difference.high_nats is not None
    assert higher.rates.next_best is not None
    lowest, half = float(lower.losses.mean()), pair.difference.high_nats - pair.difference.estimate_nats
    next_runs = [trial.run_id for trial in higher.rates.next_best.trials]

    def lines_on_next_rate(above: float) -> list[str]:
        bits = evidence.ledger["run_id"].isin(next_runs).map({True: (lowest + above) / math.log(2), False: 9.0})
        return lines_on_choices(replace(of_bytes, ledger=evidence.ledger.assign(bits_per_masked_byte=bits)))

    assert lines_on_next_rate(2 * half) == []
    (line,) = lines_on_next_rate(0.5 * half)
    assert f"minus {pair.second} {signed(0.5 * half / math.log(2))} bits per byte at {pair.family}." in line
    assert lines_on_choices(replace(of_bytes, ledger=evidence.ledger.assign(bits_per_masked_byte=np.nan))) == []
    deep = tuple(replace(cell, rates=replace(cell.rates, gain_left_nats=float(cell is higher))) for cell in cells)
    ledger = evidence.ledger.assign(bits_per_masked_byte=9.0)
    assert not [line for line in undecided(replace(of_bytes, cells=deep, ledger=ledger)) if "rates between those" in line]


@pytest.mark.slow
def test_equal_cells_are_decided_less_often_where_a_third_of_the_seeds_chose_their_rates(evidence: Evidence) -> None:
    """If one of twelve seeds chose the rates, far more than 5% of pairs are decided; few of these go without the warning."""
    random = np.random.default_rng(0)
    plain = [cell for cell in evidence.cells if cell.budget.amount == 1e6][:2]
    decided, unwarned = Counter[int](), Counter[int]()
    for chose, _ in product((1, trial_seeds(12)), range(150)):
        cells = [tuned(cell, chose, random) for cell in plain]
        comparisons = compare((Family("one size", plain[0].budget, tuple(cells)),))
        if comparisons.pairs[0].status == "decided":
            decided[chose] += 1
            unwarned[chose] += not lines_on_choices(replace(evidence, cells=tuple(cells), comparisons=comparisons))
    assert decided[1] > 0.16 * 150
    assert decided[4] < 0.12 * 150
    assert max(unwarned.values()) < 0.08 * 150


def tuned(cell: CellResult, chose: int, random: np.random.Generator) -> CellResult:
    """The cell with twelve seeds at the one of five rates that the first so many like best, of a best loss of 4 nats.

    Its curve rises by one deviation over seeds for a doubling of the rate, from an optimum anywhere.
    """
    rise = (np.arange(5) - 2 - random.uniform(-0.5, 0.5)) ** 2
    losses = 4 + 0.1 * (rise - rise.min() + random.normal(size=(12, 5)))
    means = losses[:chose].mean(axis=0)
    tried = tuple(
        TriedRate(1e-3 * 2**place, tuple(Trial("", float(loss), None) for loss in losses[:chose, place])) for place in range(5)
    )
    best = int(means.argmin())
    return replace(
        cell,
        rates=RateSearch(tried, "bracketed", tried[best].learning_rate, seeds=chose),
        runs=tuple(map(str, range(12))),
        seeds=tuple(range(12)),
        losses=losses[:, [best]] + random.normal(0, 0.1, SEQUENCES),
    )


def test_where_rates_keep_cells_from_comparisons_the_answer_says_what_lets_them_in(tmp_path: Path) -> None:
    evidence = evidence_of(depth_or_width(tmp_path / "s", budgets=(1e6,), rates=(4e-3, 8e-3)))
    fixed = replace(evidence, sweep=evidence.sweep.model_copy(update={"tune": {}}))
    for actual, remedy in ((evidence, "tune it over more values"), (fixed, "let the sweep tune it")):
        (none,) = [line for line in loss_findings(actual) if line.startswith("No comparison at equal parameters")]
        assert f"cells are left out for the learning rate: {remedy}, or give study report --include-unbracketed" in none


def test_figures_have_a_panel_a_family_and_where_these_would_be_many_one_a_variant_and_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = evidence_of(depth_or_width(tmp_path / "s", budgets=(1e6, 2e6), seeds=1, rates=(4e-3,)))
    monkeypatch.setattr("study.evidence.evidence.MOST_PANELS", len(actual.families))
    assert actual.panels() == {family.label: family.cells for family in actual.families}
    alike = tuple(replace(family, size="1.1M non-embedding parameters") for family in actual.families)
    assert Counter(cell.name for cells in replace(actual, families=alike).panels().values() for cell in cells) == Counter(
        cell.name for cell in actual.cells
    )
    monkeypatch.setattr("study.evidence.evidence.MOST_PANELS", len(actual.families) - 1)
    assert [*actual.panels()] == ["1M tokens", "2M tokens"]
    norms = {1e6: {"architecture.norm": "pre"}, 2e6: {"architecture.norm": "post"}}
    varied = tuple(replace(cell, settings=norms[cell.budget.amount]) for cell in actual.cells)
    assert [*replace(actual, cells=varied).panels()] == ["norm=pre, 1M tokens", "norm=post, 2M tokens"]
    assert {cell.name: cell.tokens for cells in actual.panels().values() for cell in cells} == {
        cell.name: cell.tokens for cell in actual.cells
    }


def test_fronts_and_steps_say_what_chance_and_the_rate_may_have_done(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6,), seeds=1, rates=(4e-3, 8e-3), shapes=((1, 64), (1, 128)))
    chance, rate, _ = undecided(evidence_of(folder))
    assert "chance between seeds" in chance
    assert rate.endswith(" in any cell.")
    alone = evidence_of(depth_or_width(tmp_path / "a", budgets=(1e6,), seeds=1, rates=(4e-3, 8e-3), shapes=((1, 64),)))
    (rate,) = [line for line in undecided(alone) if "rate" in line]
    assert rate.endswith(" in L1-H64-A2-F256 at 1M tokens.")
    tuned = evidence_of(depth_or_width(tmp_path / "t", shapes=((1, 64), (1, 128))))
    assert not [line for line in undecided(tuned) if "rate" in line]


def test_steps_that_may_change_nothing_and_cells_without_a_usable_run_are_left_open(tmp_path: Path) -> None:
    shapes = ((1, 64), (2, 64), (1, 128))
    folder = depth_or_width(tmp_path / "s", Law(depth_effect=0.08, seed_deviation=0.03), budgets=(1e6,), shapes=shapes)
    add_run(folder, run_config(1, 256), state="DIVERGED")
    actual = evidence_of(folder)
    lines = undecided(actual)
    (cells,) = [line for line in lines if "none of whose runs" in line]
    assert cells.endswith(": L1-H256-A2-F1024 at 1M tokens.")
    (steps,) = [line for line in lines if "chance may do as much" in line]
    assert {gain.status for gain in actual.gains} == {"decided", "undecided"}
    for gain in actual.gains:
        assert (f"{gain.axis} from {gain.smaller} to {gain.larger}" in steps) == (gain.status == "undecided")


def test_a_cell_without_a_usable_run_is_left_open_once(tmp_path: Path) -> None:
    """And not a second time among those that are left out of pairs."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"vary": {"architecture.norm": ["post", "pre"]}})
    for width, norm in product((64, 128), ("post", "pre")):
        add_run(
            folder,
            in_setting(run_config(1, width), norm=norm),
            state="DIVERGED" if (width, norm) == (64, "pre") else "COMPLETED",
        )
    actual = evidence_of(folder)
    assert any(left.reason == "no usable run at any learning rate" for left in actual.comparisons.left_out)
    text = "\n".join(undecided(actual))
    assert "none of whose runs can be used: L1-H64-A2-F256 (norm=pre) at 1M tokens." in text
    assert "norm=pre at L1-H64-A2-F256" not in text
    assert "norm=pre at L1-H128-A2-F512" in text, "that of one rate alone"


@pytest.mark.slow
def test_of_many_steps_that_may_change_nothing_a_few_are_named_and_none_is_said_to_lower_the_loss(tmp_path: Path) -> None:
    shapes = tuple((1, width) for width in (64, 72, 80, 88, 96, 104, 512))
    folder = depth_or_width(tmp_path / "s", Law(depth_effect=0, seed_deviation=0.12), budgets=(1e6,), shapes=shapes)
    actual = evidence_of(folder)
    holding = [gain for gain in actual.gains if gain.status == "undecided"]
    assert (len(holding), len(actual.gains)) == (5, 6)
    (steps,) = [line for line in undecided(actual) if "chance may do as much" in line]
    assert steps.startswith("Whether 5 of 6 steps change the loss at all")
    assert steps.endswith("; and 2 more, see their tables.")
    assert sum(gain.step in steps for gain in holding) == 3
    lines = [line for line in loss_findings(actual) if "lowered per million" in line]
    assert [line.partition(":")[0] for line in lines] == [gain.step for gain in actual.gains if gain not in holding]


def test_cells_that_no_pair_has_are_named_where_their_rate_is_not_bracketed(tmp_path: Path) -> None:
    """Fronts and steps rest on them too, though another cell is left out of a pair for the same reason."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for depth, width in ((1, 128), (2, 92), (1, 32), (1, 256)):
        add_run(folder, run_config(depth, width))
    lines = undecided(evidence_of(folder))
    (rates,) = [line for line in lines if line.startswith("How much is the learning rate's doing")]
    assert "L1-H32-A2-F128 at 1M tokens, L1-H256-A2-F1024 at 1M tokens" in rates
    (left,) = [line for line in lines if line.startswith("Left out of the comparisons")]
    assert "L2-H92-A2-F368" in left


def test_a_mean_without_the_seeds_that_diverged_is_reported(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6,), seeds=1, shapes=((1, 64), (1, 128)))
    assert not [line for line in undecided(evidence_of(folder)) if "seeds that diverged" in line]
    chosen = evidence_of(folder).cells[0].rates.chosen
    assert chosen is not None
    add_run(folder, run_config(1, 64, chosen, seed=1), state="DIVERGED")
    add_run(folder, run_config(1, 128, 8e-3, seed=1), state="DIVERGED")
    (line,) = [line for line in undecided(evidence_of(folder)) if "seeds that diverged" in line]
    assert line.endswith("that diverged: L1-H64-A2-F256 at 1M tokens (1 of 2).")


def test_a_run_at_another_value_of_a_tuned_knob_is_no_seed_that_diverged(tmp_path: Path) -> None:
    ranges = {"recipe.learning_rate": (2e-3, 4e-3), "recipe.beta1": (0.9, 0.99)}
    tune = {"tune": {knob: {"low": low, "high": high, "trials": 2} for knob, (low, high) in ranges.items()}}
    folder = sweep_folder(tmp_path / "s", SWEEP | tune)
    for rate, seed in ((2e-3, 0), (4e-3, 0), (2e-3, 1)):
        add_run(folder, run_config(1, 64, rate, seed=seed))
    chosen = evidence_of(folder).cells[0].rates.chosen
    assert chosen is not None
    add_run(folder, in_setting(run_config(1, 64, chosen), beta1=0.99), state="DIVERGED")
    (cell,) = evidence_of(folder).cells
    assert cell.rates.chosen == chosen
    assert not [line for line in undecided(evidence_of(folder)) if "seeds that diverged" in line]


def test_depth_that_adds_no_parameters_is_no_step(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6,), shapes=((1, 128), (2, 128)))
    actual = evidence_of(folder)
    shared = [replace(cell, parameters_encoder=actual.cells[0].parameters_encoder) for cell in actual.cells]
    assert len(gains_of(actual.cells, {})) == 1
    assert gains_of(shared, {}) == ()


def test_a_front_is_of_one_budget_and_one_validation_set(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for tokens in (2.5e5, 1e6):
        for width in (64, 128):
            add_run(folder, run_config(1, width, tokens=tokens))
    other = run_config(1, 64, tokens=1e6)
    add_run(folder, other.model_copy(update={"masking": other.masking.model_copy(update={"rate": 0.4})}))
    actual = evidence_of(folder)
    assert [cell.budget.tokens for cell in actual.front] == [2.5e5] * 2 + [1e6] * 3
    fronts = [line for line in loss_findings(actual) if "; the Pareto front below that size: L1-H64-A2-F256 " in line]
    assert [line.split(":")[0].split(" at ")[1] for line in fronts] == ["250k tokens", "1M tokens"]
    assert all(line.count("L1-") == 2 for line in fronts)
    lowest = [line for line in loss_findings(actual) if line.startswith("Lowest")]
    assert len(lowest) == 3
    assert "rate=0.4" in lowest[-1] + lowest[-2]
    assert actual.comparisons.pairs == (), "losses under other masks are not compared"


def test_settings_that_cost_other_flops_are_reported_by_what_they_reach_for_them(tmp_path: Path) -> None:
    """A teacher makes tokens dearer; it is on the front where its pupil is lower than text alone brings for as many FLOPs."""
    run = "0123456789abcdef"
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"recipe.teacher": ["none", f"here/{run}"]}})
    for tokens, teacher in product((2.5e5, 1e6), ("none", f"here/{run}")):
        add_run(folder, run_config(1, 64, tokens=tokens, teacher=teacher))
    actual = evidence_of(folder, include_unbracketed=True)
    assert [cell.setting for cell in actual.cells] == ["teacher=none", f"teacher={run}"] * 2
    assert not any("Front of loss (nats) against train_flops" in line for line in loss_findings(actual)), "none costs more here"

    def fronts(*costs_and_losses: tuple[float, float]) -> list[str]:
        cells = [
            replace(cell, train_flops=flops, losses=loss + 0 * cell.losses)
            for cell, (flops, loss) in zip(actual.cells, costs_and_losses, strict=True)
        ]
        return [line for line in loss_findings(replace(actual, cells=tuple(cells))) if "against train_flops" in line]

    (pays,) = fronts((1e9, 5.0), (2e9, 4.5), (4e9, 4.0), (8e9, 4.0))
    budgets = (f"teacher={run}, 250k tokens: 4.5000 at 2e+09", "teacher=none, 1M tokens: 4.0000 at 4e+09")
    assert pays.endswith(f": teacher=none, 250k tokens: 5.0000 at 1e+09; {'; '.join(budgets)}.")
    (pays_not,) = fronts((1e9, 5.0), (4e9, 4.5), (4e9, 4.0), (8e9, 4.1))
    assert f"teacher={run}" not in pays_not
    assert pays_not.count("teacher=none") == 2


def test_the_flops_of_a_cell_are_those_that_its_runs_took_for_a_token(tmp_path: Path) -> None:
    """Records know what a teacher took, also where no run went through the whole budget; configurations do not."""
    folder = sweep_folder(tmp_path / "s")
    add_run(folder, run_config(1, 64))
    add_run(folder, run_config(1, 128), state="DIVERGED", reason="the loss is nan")
    ledger = evidence_of(folder).ledger
    alone = {cell.name: cell.train_flops for cell in cells_of(folder, ledger)}
    taught = cells_of(folder, ledger.assign(train_flops=2 * ledger["train_flops"]))
    assert len(taught) == 2
    assert {cell.name: cell.train_flops for cell in taught} == pytest.approx({name: 2 * flops for name, flops in alone.items()})
    untrained = cells_of(folder, ledger.assign(tokens=0, train_flops=0.0))
    assert {cell.name: cell.train_flops for cell in untrained} == pytest.approx(alone)


def test_what_more_tokens_buy_is_reported_by_shape_and_per_doubling(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for tokens, depth, seed in product((2.5e5, 1e6, 2e6), (1, 2), (0, 1)):
        add_run(folder, run_config(depth, 96, tokens=tokens, seed=seed))
    actual = evidence_of(folder)
    assert [gain.shape[:2] for gain in actual.token_gains] == ["L1", "L1", "L2", "L2"]
    losses = {(cell.architecture.shape_name, cell.tokens): cell.losses.mean() for cell in actual.cells}
    for gain in actual.token_gains:
        lowered = losses[gain.shape, gain.fewer_tokens] - losses[gain.shape, gain.more_tokens]
        assert lowered > 0
        assert gain.difference.estimate_nats == pytest.approx(-lowered)
        doublings = {4: 2, 2: 1}[round(gain.more_tokens / gain.fewer_tokens)]
        assert gain.nats_lowered_per_doubling == pytest.approx(lowered / doublings, rel=1e-3)
    lines = [line for line in loss_findings(actual) if "per doubling" in line]
    last = "from 1M tokens to 2M tokens"
    assert [line.split(":")[0] for line in lines] == [f"L{depth}-H96-A2-F384 {last}" for depth in (1, 2)]
    assert not [line for line in undecided(actual) if last in line]


def test_of_many_shapes_it_is_said_how_many_gained_by_more_tokens(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for tokens, heads, seed in product((1e6, 2e6), (1, 2, 4, 8), (0, 1)):
        add_run(folder, reshaped(run_config(1, 64, tokens=tokens, seed=seed), heads=heads))
    actual = evidence_of(folder)
    counts, *most = loss_findings(actual)[-4:]
    assert counts == (
        "Of 4 last steps to a larger budget 4 lower the loss, 0 raise it, undecided 0 (Holm, 5%); "
        "most of the decided, per doubling of the tokens:"
    )
    least = {"L1-H64-A8-F256": 1.0}
    some = tuple(replace(gain, p_value_holm=least.get(gain.shape, 0.0)) for gain in actual.token_gains)
    lines = loss_findings(with_facts(actual, token_gains=some))[-4:]
    assert "undecided 1 " in lines[0]
    assert not any("undecided" in line or line.startswith(tuple(least)) for line in lines[1:])
    none = tuple(replace(gain, p_value_holm=1.0) for gain in actual.token_gains)
    assert loss_findings(with_facts(actual, token_gains=none))[-1].startswith("Not decided: none of 4 last steps")
    assert all(line.endswith("nats lowered per doubling of the tokens.") for line in most)
    lowered = {gain.shape: gain.nats_lowered_per_doubling for gain in actual.token_gains}
    assert [line.split(" from ")[0] for line in most] == sorted(lowered, key=lambda shape: -lowered[shape])[:3]


def test_a_step_in_tokens_whose_interval_holds_zero_is_open(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for tokens, seed in product((1e6, 1.1e6), (0, 1)):
        add_run(folder, run_config(1, 96, tokens=tokens, seed=seed), Law(seed_deviation=0.1))
    (line,) = (line for line in undecided(evidence_of(folder)) if line.startswith("Whether these steps"))
    assert line.endswith(": L1-H96-A2-F384 from 1M tokens to 1.1M tokens.")


@pytest.mark.parametrize(("ffn", "words"), [(512, "Width lowers loss more"), (920, "the shallower (of larger FFN) in 1")])
def test_only_a_wider_shape_speaks_for_width(tmp_path: Path, ffn: int, words: str) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for seed in (0, 1):
        add_run(folder, run_config(2, 92, seed=seed), Law(depth_effect=0.5))
        add_run(folder, reshaped(run_config(1, 128 if ffn == 512 else 92, seed=seed), ffn=ffn), Law(depth_effect=0.5))
    actual = evidence_of(folder, include_unbracketed=True)
    (pair,) = actual.comparisons.pairs
    assert pair.status == "decided"
    sentence = verdict(actual.comparisons.pairs, ())
    assert words in sentence
    assert ("wide" in sentence) == (ffn == 512)


def heads_cost(heads: int) -> Law:
    """A law by which every doubling of the heads raises the loss of two layers by 0.1 nats."""
    return Law(depth_effect=0.1 * math.log2(heads))


def test_heads_are_weighed_at_one_shape(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for heads, seed in product((2, 4, 8), (0, 1)):
        add_run(folder, reshaped(run_config(2, 64, seed=seed), heads=heads), heads_cost(heads))
    actual = evidence_of(folder, include_unbracketed=True)
    assert {(pair.weighs, pair.against) for pair in actual.comparisons.pairs} == {("heads", None)}
    assert actual.comparisons.pairs[0].first == "L2-H64-A4-F256"
    sentence, *rest = loss_findings(actual)
    assert sentence == (
        "Fewer heads lower loss more in every pair: at equal non-embedding parameters and tokens, of 3 pairs the shape of more "
        "heads is lower in 0, that of fewer in 3, undecided 0 (Holm, 5%)."
    )
    assert any(line.startswith("Lowest loss at 1M tokens: L2-H64-A2") for line in rest)


def test_cells_of_one_size_stand_in_the_order_of_their_heads_and_open_pairs_by_what_would_decide_them(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for heads, seed in product((2, 4, 16), (0, 1)):
        add_run(folder, reshaped(run_config(2, 64, seed=seed), heads=heads), Law(depth_effect=0))
    actual = evidence_of(folder, include_unbracketed=True)
    assert [cell.architecture.heads for cell in actual.cells] == [2, 4, 16]
    (line,) = [line for line in undecided(actual) if " minus " in line]
    open_pairs = [pair for pair in actual.comparisons.pairs if pair.status == "undecided"]
    assert all(f"{pair.first} minus {pair.second}" in line for pair in open_pairs)
    assert line.count("(") == len({(pair.seeds_that_would_decide, pair.sequences_that_would_decide) for pair in open_pairs})
    for seeds, sequences, remedy in (
        (7, None, "7 seeds a cell"),
        (None, 900, "900 validation sequences"),
        (7, 900, "7 seeds a cell or 900 validation sequences"),
        (None, None, f"neither {MOST_SEEDS} seeds a cell nor {MOST_SEQUENCES} times the sequences"),
    ):
        pair = replace(open_pairs[0], seeds_that_would_decide=seeds, sequences_that_would_decide=sequences)
        lines = undecided(replace(actual, comparisons=replace(actual.comparisons, pairs=(pair,))))
        assert f"{pair.family}: {pair.first} minus {pair.second} ({remedy})." in lines


def test_width_is_weighed_against_ffn_at_one_depth(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for (width, ffn), seed in product(((128, 512), (176, 176)), (0, 1)):
        add_run(folder, reshaped(run_config(2, width, seed=seed), ffn=ffn), Law(depth_effect=ffn / 1000))
    actual = evidence_of(folder, include_unbracketed=True)
    (pair,) = actual.comparisons.pairs
    assert (pair.first, pair.weighs, pair.against) == ("L2-H176-A2-F176", "width", "ffn")
    assert verdict((pair,), ()) == (
        "Width lowers loss more: at equal non-embedding parameters and tokens, of 1 pair the wider shape is lower in 1, "
        "the narrower (of larger FFN) in 0, undecided 0 (Holm, 5%)."
    )
    turned = replace(pair, difference=replace(pair.difference, estimate_nats=0.3))
    assert verdict((turned,), ()).startswith("A larger FFN lowers loss more: ")


def test_a_grid_of_heads_reports_pairs_of_heads_and_steps_in_the_other_sizes(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for depth, heads, seed in product((1, 2), (2, 4), (0, 1)):
        add_run(folder, reshaped(run_config(depth, 64, seed=seed), heads=heads), heads_cost(heads))
    actual = evidence_of(folder, include_unbracketed=True)
    assert [pair.weighs for pair in actual.comparisons.pairs] == ["heads", "heads"]
    assert [gain.axis for gain in actual.gains] == ["depth", "depth"]
    lowering = [gain for gain in actual.gains if gain.difference.estimate_nats <= 0]
    assert sum(line.startswith("depth from L1-H64-A") for line in loss_findings(actual)) == len(lowering) > 0


def test_pairs_of_unequal_depth_are_distinguished_from_those_of_unequal_heads(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for (depth, width), heads, seed in product(((1, 128), (2, 92)), (2, 4), (0, 1)):
        add_run(folder, reshaped(run_config(depth, width, seed=seed), heads=heads), Law(depth_effect=0.5))
    sentence = verdict(evidence_of(folder, include_unbracketed=True).comparisons.pairs, ())
    assert "of 4 pairs of unequal depth the deeper shape is lower in 0, the shallower (wider) in 4, undecided 0" in sentence
    assert "; of 2 pairs of unequal heads the shape of more heads is lower in 0, that of fewer in 0, undecided 2" in sentence


@pytest.mark.parametrize(
    ("heads", "steps"),
    [
        ({128: (2, 4), 256: (2, 4)}, {("L1-H128-A2-F512", "L1-H256-A2-F1024"), ("L1-H128-A4-F512", "L1-H256-A4-F1024")}),
        ({128: (2,), 256: (4,)}, {("L1-H128-A2-F512", "L1-H256-A4-F1024")}),
        ({128: (2,), 256: (2, 4)}, {("L1-H128-A2-F512", "L1-H256-A2-F1024")}),
    ],
    ids=["both at each width", "heads follow", "one width with both"],
)
def test_steps_in_width_are_between_equal_heads_where_these_vary(
    tmp_path: Path, heads: dict[int, tuple[int, ...]], steps: set[tuple[str, str]]
) -> None:
    folder = sweep_folder(tmp_path / "s")
    for width, numbers in heads.items():
        for number in numbers:
            add_run(folder, reshaped(run_config(1, width), heads=number))
    actual = evidence_of(folder)
    assert {(gain.smaller, gain.larger) for gain in actual.gains} == steps
    assert {gain.axis for gain in actual.gains} == {"width"}


def test_a_cell_without_a_usable_run_has_a_dash_for_its_other_knobs(tmp_path: Path) -> None:
    tuned = {"recipe.weight_decay": {"low": 0.01, "high": 0.1, "trials": 2}}
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": tuned})
    for width, decay in product((64, 92), (0.01, 0.1)):
        add_run(folder, run_config(1, width, weight_decay=decay), state="DIVERGED" if width == 92 else "COMPLETED")
    *_, usable, lost = cells_table(evidence_of(folder, include_unbracketed=True)).splitlines()
    assert "weight" in usable.split("|")[-2]
    assert lost.split("|")[-2] == " – "


def test_other_tuned_knobs_are_chosen_before_the_rate(tmp_path: Path) -> None:
    tune = SWEEP["tune"] | {"recipe.weight_decay": {"low": 0.01, "high": 0.1, "trials": 2}}
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": tune})
    for rate in (1e-3, 2e-3, 4e-3, 8e-3):
        add_run(folder, run_config(1, 128, rate, weight_decay=0.01), Law(depth_effect=0))
        add_run(folder, run_config(1, 128, rate, weight_decay=0.1), Law(best_rate=1e-2, curvature=0.3))
    (cell,) = (actual := evidence_of(folder)).cells
    assert len(cell.rates.tried) == 4
    assert cell.rates.bracketed
    (chosen,) = cell.runs
    assert folder.run(chosen).config().recipe.weight_decay == 0.01
    assert "| weight\\_decay=0.01 |" in cells_table(actual)
    (line,) = [line for line in undecided(actual) if "weight_decay" in line]
    assert line.startswith("How much is recipe.weight_decay's doing: the best one tried is the lowest in L1-H128")


def test_saved_fits_are_strict_json_and_the_same_twice(evidence: Evidence) -> None:
    save_fits(evidence)
    names = ("learning_rate.json", "paired_differences.json")
    first = [(evidence.folder.fits / name).read_bytes() for name in names]
    save_fits(evidence)
    assert first == [(evidence.folder.fits / name).read_bytes() for name in names]
    differences = json.loads(first[1])
    assert differences["pairs"][0]["status"] == "decided"
    assert differences["method"]
    assert json.loads(first[0])["cells"][0]["search"]["status"] == "bracketed"
