"""Sentences name the values of knobs in words, and never as key=value."""

from __future__ import annotations

from typing import get_args

import pytest

from study.config.recipe import Objective, OptimiserName, Packing, ParametrizationName
from study.config.run_config import describe_knobs
from study.evidence.cells import shorten_run_ids
from study.report.plain_words import is_asked_of, plain_words

RUN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("knob", "value", "words"),
    [
        ("recipe.batch_tokens", 2048, "a batch of 2,048 tokens"),
        ("recipe.masking.rate", 0.15, "15% masks"),
        ("data.tokenizer.vocabulary", 4096, "4,096 pieces"),
        ("architecture.position_encoding", "rotary", "rotary positions"),
        ("recipe.optimizer", "muon", "Muon"),
        ("architecture.distance_bias", "none", "no distance bias"),
        ("architecture.embedding_norm", "True", "a norm of the embeddings"),
        ("architecture.embedding_width", "none", "a token table of full width"),
        ("architecture.embedding_width", "48", "a token table of width 48"),
        ("recipe.start", f"{RUN}:first", "a start from the first layers"),
        ("recipe.start", f"{RUN}:spread", "a start from evenly spread layers"),
        ("recipe.start", f"{RUN}:0,2,4", "a start from the layers 0, 2, 4"),
        ("recipe.start", f"{RUN}:grow=even", "a start from a grown encoder"),
        ("recipe.start", "fresh", "a fresh start"),
        ("recipe.teacher", RUN, "a teacher's predictions alone"),
        ("recipe.teacher", f"{RUN}:temperature=2.0", "a teacher's predictions alone"),
        ("recipe.teacher", f"{RUN}:weight=0.5", "a teacher's predictions beside masked words"),
        ("recipe.teacher", f"{RUN}:weight=0.5:relations=1", "a teacher's predictions and relations beside masked words"),
        ("recipe.teacher", f"{RUN}:weight=0.0:hidden_mse=1", "a teacher's hidden states beside masked words"),
        ("recipe.teacher", f"{RUN}:hidden_mse=1:attention=1", "a teacher's predictions, hidden states and attention"),
        ("recipe.depth_scale", 2.0, "depth scale 2"),
        ("architecture.pooler", True, "pooler"),
        ("architecture.pooler", False, "no pooler"),
        ("recipe.residual_initialisation", "zero", "residual initialisation zero"),
        ("recipe.masking.static_copies", 10.0, "masks written 10 times"),
    ],
)
def test_a_value_has_its_words(knob: str, value: object, words: str) -> None:
    text = f"the loss with {describe_knobs({knob: value})}: low, and {describe_knobs({knob: value})}."
    assert plain_words([{knob: value}])(text) == f"the loss with {words}: low, and {words}."


@pytest.mark.parametrize(
    ("knob", "value", "words"),
    [
        ("recipe.start", f"{RUN}:spread", "a start from evenly spread layers"),
        ("recipe.start", f"{RUN}:0,2,4", "a start from the layers 0, 2, 4"),
        ("recipe.teacher", RUN, "a teacher's predictions alone"),
    ],
)
def test_a_run_may_be_named_by_its_id_or_in_short(knob: str, value: str, words: str) -> None:
    named = describe_knobs({knob: value})
    in_short = shorten_run_ids(named, {RUN})
    assert in_short != named
    assert {plain_words([{knob: value}])(f"depth 1, {text}") for text in (named, in_short)} == {f"depth 1, {words}"}


def test_values_of_one_phrase_keep_what_distinguishes_them() -> None:
    teachers = [f"{RUN}:weight=0.5", f"{RUN}:weight=0.25"]
    words = [*map(plain_words([{"recipe.teacher": one} for one in teachers]), [f"teacher={one}" for one in teachers])]
    assert len({*words}) == 2
    assert not any("=" in text for text in words)


def test_longer_values_are_not_taken_for_shorter_ones() -> None:
    settings = [
        {"recipe.batch_tokens": 256, "recipe.masking.rate": 0.0},
        {"recipe.batch_tokens": 2560, "recipe.masking.rate": 0.4},
    ]
    text = plain_words(settings)("batch_tokens=2560, masking.rate=0.4; batch_tokens=256, masking.rate=0.")
    assert text == "a batch of 2,560 tokens, 40% masks; a batch of 256 tokens, 0% masks."


@pytest.mark.parametrize(
    ("knob", "values"),
    [
        ("recipe.objective", get_args(Objective)),
        ("recipe.optimizer", get_args(OptimiserName)),
        ("recipe.packing", get_args(Packing)),
        ("recipe.parametrization", get_args(ParametrizationName)),
    ],
)
def test_every_choice_of_a_knob_has_a_phrase(knob: str, values: tuple[str, ...]) -> None:
    name = knob.rpartition(".")[2]
    words = [*map(plain_words([{knob: value} for value in values]), [f"{name}={value}" for value in values])]
    assert len({*words}) == len(values)
    assert not {*words} & {f"{name} {value.replace('_', ' ')}" for value in values}


def test_a_question_names_a_knob_by_its_name_or_by_what_it_does() -> None:
    assert is_asked_of("recipe.initialisation", "How much is it that their projection begins narrow?")
    assert is_asked_of("architecture.norm", "Which norm?")
    assert not is_asked_of("architecture.embedding_width", "Of what narrow tables of tokens cost, how much?")
