"""Knobs without effect: runs that are said to train alike end in the same weights, bit for bit, and others do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from study.config.knobs import KNOBS, MAY_COINCIDE, RULES, training_key, without_effect
from study.config.run_config import RunConfig
from study.store.run_folder import RunFolder
from tests.small import config, trained, write_corpus

STEPS = 10
BASE = {"architecture": {"width": 64, "heads": 1, "ffn": 256, "depth": 1}}
SCALED = {"parametrization": "completep", "base_width": 64, "base_depth": 1}
ALIBI = {"position_encoding": "none", "distance_bias": "alibi"}
LEARNED_BIAS = {"position_encoding": "none", "distance_bias": "learned"}
NARROW = {"architecture": {"embedding_width": 8}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.txt")


@pytest.fixture(scope="module")
def source(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("source"), config(corpus, recipe={"budget": {"steps": STEPS}}, **NARROW))


def of(
    corpus: Path, budget: dict[str, Any] | None = None, architecture: dict[str, Any] | None = None, **recipe: Any
) -> RunConfig:
    """A run of a few steps with another budget, architecture or recipe."""
    lasting = {"steps": None} | (budget or {"steps": STEPS})
    return config(corpus, architecture=architecture or {}, recipe={**recipe, "budget": lasting})


Weights = Callable[[RunConfig], str]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """The hash of what a run ends with; each run is trained once, though many are compared with it."""
    actual: dict[str, str] = {}

    def weights_of(run: RunConfig) -> str:
        if run.key not in actual:
            record = trained(tmp_path_factory.mktemp("run"), run, validations=1).record()
            assert record is not None
            assert record.weights_sha256 is not None
            actual[run.key] = record.weights_sha256
        return actual[run.key]

    return weights_of


Pairs = list[tuple[dict[str, Any], dict[str, Any]]]

ALIKE: Pairs = [
    ({}, {"decay_fraction": 0.5}),
    ({"schedule": "cosine"}, {"schedule": "cosine", "decay_fraction": 0.5}),
    ({"warmup_fraction": 1.0}, {"warmup_fraction": 1.0, "final_learning_rate_fraction": 0.5}),
    ({"warmup_fraction": 0.9}, {"warmup_fraction": 0.9, "schedule": "cosine"}),
    ({}, {"schedule": "wsd", "decay_fraction": 0.9}),
    ({}, {"warmup_tokens": 128}),
    ({}, {"warmup_fraction": 0.12}),
    ({"schedule": "wsd", "decay_fraction": 0.3}, {"schedule": "wsd", "decay_fraction": 0.31}),
    ({}, {"budget": {"tokens": 128 * STEPS + 100}}),
    ({}, {"initialisation": "unit_stream"}),
    ({}, {"muon_rate_ratio": 2.0}),
    ({}, {"generator_share": 0.5}),
    ({"objective": "rtd"}, {"objective": "rtd", "generator_share": 0.26}),
    ({"objective": "rtd"}, {"objective": "rtd", "architecture": {"mlm_transform": "none"}}),
    ({}, {"base_width": 64}),
    ({**BASE, **SCALED, "parametrization": "standard"}, {**BASE, **SCALED}),
    ({**BASE, **SCALED, "base_depth": 2}, {**BASE, **SCALED, "base_depth": 2, "parametrization": "scaled_rates"}),
    ({"masking": {"rate": 0.18}}, {"masking": {"rate": 0.2}}),
    ({"objective": "mlm_nsp"}, {"objective": "mlm_nsp", "packing": "segment_pairs"}),
    ({"architecture": ALIBI}, {"architecture": ALIBI | {"positions": 32}}),
    (
        {"architecture": {"position_encoding": "rotary"}},
        {"architecture": {"position_encoding": "rotary", "positions": 32}},
    ),
    ({}, {"architecture": {"rotary_theta": 5_000.0}}),
    ({}, {"architecture": {"attention_window": 30}}),
    (
        {"architecture": {"attention_window": 8, "global_attention_every": 2}},
        {"architecture": {"attention_window": 9, "global_attention_every": 3}},
    ),
    ({"architecture": {"depth": 1}}, {"architecture": {"depth": 1, "attention_window": 8, "global_attention_every": 2}}),
]

APART: Pairs = [
    ({"schedule": "wsd"}, {"schedule": "wsd", "decay_fraction": 0.5}),
    ({}, {"schedule": "cosine"}),
    ({}, {"final_learning_rate_fraction": 0.5}),
    ({}, {"warmup_tokens": 256}),
    ({}, {"budget": {"steps": STEPS + 1}}),
    (NARROW, {**NARROW, "initialisation": "unit_stream"}),
    ({"objective": "rtd"}, {"objective": "rtd", "initialisation": "unit_stream"}),
    ({"objective": "rtd"}, {"objective": "rtd", "generator_share": 0.5}),
    ({}, SCALED),
    ({**BASE, **SCALED}, {**BASE, **SCALED, "base_depth": 2}),
    (SCALED, {**SCALED, "parametrization": "scaled_rates"}),
    ({"optimizer": "muon"}, {"optimizer": "muon", "muon_rate_ratio": 2.0}),
    ({}, {"masking": {"rate": 0.2}}),
    ({"packing": "segment_pairs"}, {"packing": "segment_pairs", "objective": "mlm_nsp"}),
    ({}, {"residual_initialisation": "zero"}),
    ({"architecture": LEARNED_BIAS}, {"architecture": LEARNED_BIAS | {"positions": 32}}),
    ({}, {"architecture": {"positions": 32}}),
    ({}, {"architecture": {"attention_window": 28}}),
    ({"architecture": {"attention_window": 8}}, {"architecture": {"attention_window": 8, "global_attention_every": 2}}),
]


def test_what_trains_alike_has_one_key_and_what_trains_unlike_has_two(corpus: Path) -> None:
    """The pairs that the next tests train, of which the fast tests train every twelfth."""
    for pairs, alike in ((ALIKE, True), (APART, False)):
        for one, other in pairs:
            assert (training_key(of(corpus, **one)) == training_key(of(corpus, **other))) == alike, (one, other)


def some_slow(pairs: Pairs) -> list[Any]:
    """The pairs as parameters of a test, all but every twelfth marked slow."""
    return [
        pytest.param(*pair, id=f"{pair[0]}-{pair[1]}", marks=pytest.mark.slow if n % 12 else ()) for n, pair in enumerate(pairs)
    ]


@pytest.mark.parametrize(("one", "other"), some_slow(ALIKE))
def test_runs_that_are_said_to_train_alike_do(
    one: dict[str, Any], other: dict[str, Any], corpus: Path, weights: Weights
) -> None:
    first, second = of(corpus, **one), of(corpus, **other)
    assert first.key != second.key, "they have two names"
    assert training_key(first) == training_key(second)
    assert weights(first) == weights(second)


@pytest.mark.parametrize(("one", "other"), some_slow(APART))
def test_runs_that_train_unlike_are_said_to(one: dict[str, Any], other: dict[str, Any], corpus: Path, weights: Weights) -> None:
    first, second = of(corpus, **one), of(corpus, **other)
    assert training_key(first) != training_key(second)
    assert weights(first) != weights(second)


@pytest.mark.slow
def test_a_run_that_begins_with_trained_weights_has_no_initialisation(
    corpus: Path, source: RunFolder, weights: Weights
) -> None:
    given: dict[str, Any] = {**NARROW, "start": str(source.path)}
    first, second = of(corpus, **given), of(corpus, **given, initialisation="unit_stream", residual_initialisation="zero")
    assert without_effect(second)["recipe.initialisation"] == "all weights come from the run that recipe.start names"
    assert training_key(first) == training_key(second)
    assert weights(first) == weights(second)


def test_where_no_step_is_trained_the_recipe_has_no_effect_but_for_the_start(
    corpus: Path, source: RunFolder, weights: Weights
) -> None:
    given: dict[str, Any] = {**NARROW, "start": str(source.path), "budget": {"steps": 0}}
    first, second = (
        of(corpus, **given),
        of(corpus, **given, learning_rate=1e-2, dropout=0.5, optimizer="muon", masking={"rate": 0.5}),
    )
    assert training_key(first) == training_key(second)
    assert weights(first) == weights(second)
    assert {"recipe.start", "recipe.batch_tokens", "recipe.precision", "recipe.weights"}.isdisjoint(without_effect(first))
    rounded = of(corpus, **given, weights="int8")
    assert training_key(rounded) != training_key(first)
    assert weights(rounded) != weights(first)


def test_rules_name_knobs_of_a_run_and_how_they_are_found_out_goes_by_them() -> None:
    assert {knob for rule in RULES for knob in rule.knobs} <= {*KNOBS}
    assert {*KNOBS} >= MAY_COINCIDE


def test_seeds_and_learning_rates_always_tell_runs_apart(corpus: Path) -> None:
    keys = {training_key(config(corpus, seed=seed, recipe={"learning_rate": rate})) for seed in (0, 1) for rate in (1e-3, 2e-3)}
    assert len(keys) == 4
