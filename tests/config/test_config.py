"""A run's configuration: budgets, YAML, what is refused, and a fingerprint that names a run for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel

from study.base.errors import InputError
from study.base.schema import deep_merge, flatten, set_path
from study.base.yaml_files import read_yaml
from study.config.recipe import Budget, Recipe, TrainingMasking
from study.config.run_config import DataConfig, Masking, RunConfig, TokenizerConfig
from study.counting.architecture import BUILT_AS_BERT, NOT_IN_MLM, Architecture
from study.counting.parameters import flops_per_token, parameters
from study.store.records import cell_of, counts_of, validation_of
from tests.small import config, config_values

CORPUS = Path("corpus.txt")


def problems(**changes: Any) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        config(CORPUS, **changes)
    return {problem.place: problem.message for problem in caught.value.problems}


def with_budget(**budget: float) -> RunConfig:
    return RunConfig.parse(config_values(CORPUS) | {"recipe": {"batch_tokens": 128, "budget": budget}})


def test_a_fingerprint_stays_the_same_for_ever() -> None:
    """Where this fails, a change renames all runs that people have: undo it, or raise NUMERICS_VERSION and say why."""
    assert config(CORPUS).fingerprint("data") == "89cc1d13b682131c"


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"corpus": "elsewhere/corpus.parquet", "text_column": "body"}},
        {"data": {"tokenizer": {"kind": "file", "path": "vocab.txt"}}},
        {"recipe": {"weight_decay": 0.01, "schedule": "linear"}, "masking": {"rate": 0.15}, "seed": 0},
        {"recipe": {"learning_rate": "3e-3", "dropout": 0, "budget": {"steps": 30.0}}},
        {"architecture": {"norm": "post", "segments": 2}},
        {"recipe": {"masking": {"rate": 0.15, "mask_share": 0.8, "random_share": 0.1, "whole_words": False}}},
    ],
)
def test_places_defaults_and_spellings_rename_no_run(changes: dict[str, Any]) -> None:
    assert config(CORPUS, **changes).fingerprint("data") == config(CORPUS).fingerprint("data")


def knobs(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The dotted paths of all fields of a model, those of models inside it included."""
    for name, field in model.model_fields.items():
        below: Any = field.annotation
        if isinstance(below, type) and issubclass(below, BaseModel):
            yield from knobs(below, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


OTHER_VALUES: dict[str, object] = {
    "architecture.depth": 3,
    "architecture.width": 32,
    "architecture.heads": 4,
    "architecture.ffn": 33,
    "architecture.vocabulary": 201,
    "architecture.positions": 17,
    "architecture.segments": 1,
    "architecture.norm": "pre",
    "architecture.position_encoding": "rotary",
    "architecture.tied_decoder": False,
    "architecture.embedding_width": 8,
    "architecture.layer_groups": 1,
    "architecture.activation": "geglu",
    "architecture.biases": "none",
    "architecture.norm_kind": "rms",
    "architecture.norm_bias": False,
    "architecture.distance_bias": "alibi",
    "architecture.query_key_norm": True,
    "architecture.trigram_embedding": True,
    "architecture.bottleneck_width": 8,
    "architecture.ffn_stack": 2,
    "architecture.norm_epsilon": 1e-5,
    "architecture.attention_window": 4,
    "architecture.convolution_kernel": 3,
    "architecture.rotary_theta": 160_000.0,
    "architecture.mlm_transform": "none",
    "architecture.mlm_activation": "relu",
    "recipe.learning_rate": 0.004,
    "recipe.schedule": "cosine",
    "recipe.warmup_fraction": 0.2,
    "recipe.warmup_tokens": 384,
    "recipe.decay_fraction": 0.3,
    "recipe.final_learning_rate_fraction": 0.1,
    "recipe.weight_decay": 0.1,
    "recipe.beta1": 0.8,
    "recipe.beta2": 0.99,
    "recipe.epsilon": 1e-8,
    "recipe.gradient_clip_norm": 2.0,
    "recipe.dropout": 0.1,
    "recipe.batch_tokens": 256,
    "recipe.precision": "bf16",
    "recipe.start": "a/0123456789abcdef",
    "recipe.teacher": "a/0123456789abcdef",
    "recipe.initialisation": "unit_stream",
    "recipe.residual_initialisation": "zero",
    "recipe.parametrization": "completep",
    "recipe.base_width": 64,
    "recipe.base_depth": 4,
    "recipe.optimizer": "muon",
    "recipe.muon_rate_ratio": 2,
    "recipe.objective": "mlm_nsp",
    "recipe.generator_share": 0.5,
    "recipe.packing": "doc_sentences",
    "recipe.unique_tokens": 1000,
    "recipe.masking.rate": 0.3,
    "recipe.masking.mask_share": 0.7,
    "recipe.masking.random_share": 0.2,
    "recipe.masking.whole_words": True,
    "recipe.masking.static_copies": 10,
    "recipe.budget.steps": 31,
    "masking.rate": 0.2,
    "masking.mask_share": 0.7,
    "masking.random_share": 0.2,
    "data.validation_sequences": 33,
    "seed": 1,
}


def test_every_knob_that_moves_numbers_renames_the_run() -> None:
    ids = {"": config(CORPUS).fingerprint("data"), "data": config(CORPUS).fingerprint("other data")}
    for path, value in OTHER_VALUES.items():
        values = config_values(CORPUS)
        set_path(values, path, value)
        if path == "architecture.vocabulary":
            set_path(values, "data.tokenizer.vocabulary", value)
        ids[path] = RunConfig.parse(values).fingerprint("data")
    assert len(set(ids.values())) == len(ids)


def test_every_knob_is_known_to_move_numbers_or_not_to() -> None:
    of_the_data = {path for path in knobs(RunConfig) if path.startswith("data.")} - {"data.validation_sequences"}
    other_units = {f"recipe.budget.{unit}" for unit in Budget.model_fields} - {"recipe.budget.steps"}
    only_counted = {f"architecture.{name}" for name in (*BUILT_AS_BERT, *NOT_IN_MLM)}
    with_another = {"architecture.embedding_norm", "architecture.distance_bias_reach"}  # pre-norm, and a learned bias
    with_another |= {"architecture.global_attention_every", "architecture.local_rotary_theta"}  # a window
    with_another |= {"architecture.relative_positions", "architecture.relative_reach"}  # disentangled attention
    with_another |= {"architecture.enhanced_mask_decoder", "architecture.token_dropout"}  # no positions, or segments, in tables
    with_another |= {"recipe.weights"}  # a run of no steps
    assert set(knobs(RunConfig)) - of_the_data - other_units - only_counted - with_another == set(OTHER_VALUES)


def test_what_may_be_none_is_none_where_it_is_not_given() -> None:
    """YAML and records leave None out, so that it must be what reads back."""
    models = (Architecture, DataConfig, TokenizerConfig, Masking, TrainingMasking, Recipe, Budget, RunConfig)
    fields = [field for model in models for field in model.model_fields.values() if type(None) in get_args(field.annotation)]
    assert {field.default for field in fields} == {None}


@given(
    st.sampled_from(sorted(OTHER_VALUES)), st.sampled_from(["tokens", "flops", "tokens_per_parameter"]), st.floats(1e4, 1e12)
)
def test_what_yaml_holds_reads_back(path: str, unit: str, amount: float) -> None:
    assume((path, unit) != ("recipe.teacher", "flops"))  # it is refused, since the teacher's are not counted beforehand
    values = config_values(CORPUS)
    if path not in ("recipe.budget.steps", "architecture.vocabulary"):
        set_path(values, path, OTHER_VALUES[path])
    values["recipe"]["budget"] = {unit: amount * 1e6 if unit == "flops" else amount}
    original = RunConfig.parse(values)
    assert RunConfig.parse(yaml.safe_load(original.to_yaml())) == original


def test_a_budget_in_any_unit_pays_for_whole_steps() -> None:
    one = with_budget(steps=1)
    for budget in ({"steps": 7}, {"tokens": 7 * 128 + 127}, {"flops": 7.99 * 128 * one.flops_per_token["train_flops"]}):
        run = with_budget(**budget)
        assert (run.steps, run.tokens) == (7, 7 * 128)
    assert with_budget(tokens_per_parameter=20).steps == 20 * parameters(one.architecture).parameters // 128


@given(st.integers(1, 64), st.integers(8, 128), st.integers(1, 10**6))
def test_the_flops_of_some_steps_pay_for_as_many(depth: int, length: int, steps: int) -> None:
    """Division by FLOPs per token must not round a step away."""
    sizes = {"depth": depth, "positions": length}
    recipe = {"batch_tokens": 10 * length, "budget": {"steps": steps}}
    values = config_values(CORPUS, architecture=sizes, data={"sequence_length": length}, recipe=recipe)
    run = RunConfig.parse(values)
    flops = counts_of(run, steps)["train_flops"]
    assert RunConfig.parse(deep_merge(values, {"recipe": {"budget": {"steps": None, "flops": flops}}})).steps == steps


def test_a_batch_is_whole_sequences_with_a_fixed_number_of_masks() -> None:
    run = config(CORPUS)
    assert (run.batch_sequences, run.predictions) == (8, 2)


def test_training_masks_are_those_of_validation_but_for_what_the_recipe_says() -> None:
    both, own = config(CORPUS, masking={"rate": 0.25}), config(CORPUS, recipe={"masking": {"rate": 0.4, "random_share": 0}})
    assert (both.predictions, both.validation_predictions) == (4, 4)
    assert (own.predictions, own.validation_predictions) == (6, 2)
    assert (own.training_masking.rate, own.training_masking.mask_share, own.training_masking.random_share) == (0.4, 0.8, 0)
    plain = config(CORPUS)
    assert validation_of(own, "data") == validation_of(plain, "data") != validation_of(both, "data")
    assert own.flops_per_token["train_flops"] == flops_per_token(plain.architecture, 16, 6)["train_flops"]
    knobs = ["recipe.masking.rate", "recipe.masking.mask_share"]
    assert own.values_of(knobs) == {"recipe.masking.rate": 0.4, "recipe.masking.mask_share": 0.8}
    assert both.values_of(knobs)["recipe.masking.rate"] == 0.25
    assert own.variant(knobs[:1]) == "masking.rate=0.4"


def test_training_masks_said_as_those_of_validation_rename_no_run() -> None:
    one, other = config(CORPUS, masking={"rate": 0.4}), config(CORPUS, masking={"rate": 0.4}, recipe={"masking": {"rate": 0.4}})
    assert one == other
    assert one.key == other.key
    assert one.to_dict() == other.to_dict()


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"architecture": {"vocabulary": 300}}, "", "architecture.vocabulary 300 differs from the tokenizer's, 200"),
        ({"architecture": {"positions": 8}}, "", "architecture.positions 8 is below data.sequence_length 16"),
        (
            {"architecture": {"position_encoding": "rotary", "heads": 16}},
            "",
            "architecture.position_encoding rotary rotates pairs of numbers, but width 16 in 16 heads gives 1 each",
        ),
        ({"recipe": {"batch_tokens": 100}}, "", "is not a multiple of data.sequence_length 16; give 96 or 112"),
        ({"recipe": {"budget": {"steps": None, "tokens": 100}}}, "", "pays for 100 tokens, less than one batch of 128"),
        ({"recipe": {"budget": {"tokens": 1e6}}}, "recipe.budget", "needs exactly one of tokens, steps, flops"),
        ({"recipe": {"budget": {"steps": None}}}, "recipe.budget", "not none"),
        ({"recipe": {"warmup_fraction": 0.9, "schedule": "wsd"}}, "recipe", "add up to more than 1"),
        ({"recipe": {"warmup_tokens": 512, "warmup_fraction": 0.2}}, "recipe", "give one of them"),
        (
            {"recipe": {"warmup_tokens": 4000}},
            "",
            "recipe.warmup_tokens 4000 are 31 steps, more than the 30 of recipe.budget.steps 30",
        ),
        (
            {"recipe": {"warmup_tokens": 3600, "schedule": "wsd"}},
            "",
            "28 steps and the decay 6, more than the 30 of recipe.budget.steps 30",
        ),
        ({"masking": {"rate": 0.01}}, "", "masking.rate 0.01 masks no position of 16"),
        ({"recipe": {"unique_tokens": 31}}, "", "recipe.unique_tokens 31 are less than two sequences of 16"),
        (
            {"recipe": {"parametrization": "completep", "initialisation": "unit_stream"}},
            "recipe",
            "both initialise the projection of narrower tables",
        ),
        (
            {"recipe": {"parametrization": "scaled_rates"}, "architecture": {"tied_decoder": False}},
            "",
            "slows tables that are the decoder, too; set architecture.tied_decoder true",
        ),
        (
            {"recipe": {"parametrization": "completep"}, "architecture": {"mlm_transform": "none"}},
            "",
            "which architecture.mlm_transform none and norm post lack; set norm pre",
        ),
        ({"masking": {"mask_share": 0.95}}, "masking", "add up to more than 1"),
        ({"recipe": {"masking": {"rate": 0.01}}}, "", "recipe.masking.rate 0.01 masks no position of 16"),
        ({"recipe": {"masking": {"mask_share": 0.95}}}, "", "recipe.masking has mask_share 0.95 and random_share 0.1, which"),
        ({"architecture": {"heads": 3}}, "architecture.heads", "3 heads do not divide width 16; 2 would"),
        ({"data": {"tokenizer": {"path": "vocab.txt"}}}, "data.tokenizer", "needs a path exactly when its kind is 'file'"),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_both_numbers(changes: dict[str, Any], place: str, message: str) -> None:
    reported = problems(**changes)
    assert list(reported) == [place]
    assert message in reported[place]


def test_all_problems_are_reported_at_once() -> None:
    reported = problems(architecture={"depth": 0, "heads": 3}, recipe={"learning_rate": -1, "dropuot": 0.1}, sede=1)
    assert reported == {
        "architecture.depth": "0 is below the least allowed, 1",
        "architecture.heads": "3 heads do not divide width 16; 2 would",
        "recipe.learning_rate": "-1 must be above 0",
        "recipe.dropuot": "is not a known key; did you mean 'dropout'?",
        "sede": "is not a known key; did you mean 'seed'?",
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: [", r"x\.yaml:2:\d+: is not valid YAML"),
        (b"a: 1\na: 2\n", r"x\.yaml:2:1: is not valid YAML: the key 'a' appears twice"),
        (b"a: \xff\n", r"x\.yaml: is not UTF-8 text \(byte 3\)"),
        (b"", r"x\.yaml: is empty"),
        (b"- 1\n", r"x\.yaml: does not hold keys and values"),
        (b"a: !!python/object/apply:os.getcwd []\n", r"x\.yaml:1:4: is not valid YAML"),
    ],
)
def test_a_file_that_is_not_yaml_is_reported_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_yaml(tmp_path / "x.yaml")


@pytest.mark.parametrize(("name", "message"), [("none.yaml", "does not exist"), ("", "cannot be read")])
def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_yaml(tmp_path / name)


def test_a_number_written_with_an_exponent_is_a_number(tmp_path: Path) -> None:
    text = config(CORPUS).to_yaml().replace("learning_rate: 0.003", "learning_rate: 3e-3")
    (tmp_path / "x.yaml").write_text(text)
    assert "3e-3" in text
    assert RunConfig.from_yaml(tmp_path / "x.yaml") == config(CORPUS)


def test_resolved_values_hold_every_default() -> None:
    values = flatten(config(CORPUS).to_dict())
    assert values["recipe.weight_decay"] == 0.01
    assert values["masking.rate"] == 0.15
    assert deep_merge(config(CORPUS).to_dict(), config_values(CORPUS)) == config(CORPUS).to_dict()


def test_the_place_of_a_vocabulary_distinguishes_no_runs(tmp_path: Path) -> None:
    one, other = (
        config(tmp_path / "text.txt", data={"tokenizer": {"kind": "file", "path": f"{place}/vocab.txt"}}) for place in "ab"
    )
    assert one.key == other.key
    assert cell_of(one, (), "data") == cell_of(other, (), "data")
    assert validation_of(one, "data") == validation_of(other, "data")


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"corpus": "elsewhere/corpus.txt", "text_column": "body"}},
        {"architecture": {"pooler": False, "second_output_bias": False}},
    ],
)
def test_what_renames_no_run_distinguishes_none(changes: dict[str, Any]) -> None:
    one, other = config(CORPUS), config(CORPUS, **changes)
    assert one != other
    assert one.fingerprint("data") == other.fingerprint("data")
    assert one.key == other.key
    assert cell_of(one, (), "data") == cell_of(other, (), "data")
    assert validation_of(one, "data") == validation_of(other, "data")


@pytest.mark.parametrize(
    "changes",
    [
        {"architecture": {"norm": "pre"}},
        {"architecture": {"position_encoding": "rotary"}},
        {"data": {"validation_sequences": 7}},
        {"recipe": {"start": "x/runs/0123456789abcdef"}},
        {"recipe": {"teacher": "x/runs/0123456789abcdef"}},
        {"recipe": {"warmup_tokens": 1024}},
        {"recipe": {"masking": {"rate": 0.4}}},
        {"masking": {"rate": 0.2}},
        {"seed": 7},
    ],
)
def test_what_renames_a_run_distinguishes_it(changes: dict[str, Any]) -> None:
    one, other = config(CORPUS), config(CORPUS, **changes)
    assert one.fingerprint("data") != other.fingerprint("data")
    assert one.key != other.key


@pytest.mark.parametrize("knob", ["dropout", "weight_decay", "gradient_clip_norm", "final_learning_rate_fraction"])
def test_there_is_one_zero(knob: str) -> None:
    one, other = (config(CORPUS, recipe={knob: zero}) for zero in (0.0, -0.0))
    assert one.fingerprint("data") == other.fingerprint("data")
    assert one.key == other.key


def test_runs_are_distinguished_by_all_knobs_but_some() -> None:
    one, other = config(CORPUS), config(CORPUS, recipe={"learning_rate": 1.0, "budget": {"steps": 7}}, seed=7)
    aside = ("recipe.learning_rate", "recipe.budget", "seed")
    assert one.identity(but=aside) == other.identity(but=aside)
    for knob in aside:
        assert one.identity(but={*aside} - {knob}) != other.identity(but={*aside} - {knob})


@pytest.mark.parametrize(("tokens", "steps"), [(700, 1), (800, 2), (511, 1), (255, 0)])
def test_a_warmup_in_tokens_is_rounded_to_steps(tokens: int, steps: int) -> None:
    recipe = Recipe.parse({"budget": {"steps": 100}, "batch_tokens": 512, "warmup_tokens": tokens})
    assert recipe.warmup_steps(100) == steps


@pytest.mark.parametrize(("steps", "warmup", "decay"), [(17, 2, 3), (18, 2, 4), (26, 3, 5)])
def test_fractions_are_rounded_to_steps(steps: int, warmup: int, decay: int) -> None:
    recipe = Recipe.parse({"budget": {"steps": steps}, "schedule": "wsd"})
    assert (recipe.warmup_steps(steps), recipe.decay_steps(steps)) == (warmup, decay)
