"""Named models are found by any of their names, and their closed forms equal the published table and transformers' modules."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from study.base.errors import InputError
from study.counting.architecture import Architecture, unbuildable
from study.counting.named_models import NamedModel, architecture_of, catalogue, find, named, trained_values
from study.counting.parameters import ParameterCount, parameters
from tests.transformers_models import live_model

EXCEPTIONS: dict[str, str] = {}
"""Rows of the published table that the closed forms do not reproduce, each with the reason; at most three may stand here."""

TRANSFORMERS_HAS = [model for model in catalogue() if model.family != "NeoBERT"]


def published_rows(shared_data: Path) -> list[dict[str, str]]:
    with (shared_data / "published" / "encoders" / "named_models.csv").open(encoding="utf-8") as table:
        return list(csv.DictReader(table))


def sizes_of(row: dict[str, str]) -> dict[str, int]:
    """The sizes that the published table states."""
    columns = {"layers": "depth", "hidden": "width", "heads": "heads", "ffn": "ffn", "vocab": "vocabulary"}
    columns |= {"positions": "positions", "type_vocab": "segments"}
    return {ours: int(row[theirs]) for theirs, ours in columns.items()}


def counted(architecture: Architecture) -> dict[str, int]:
    """The columns of the published table, from the closed forms."""
    count = parameters(architecture)
    component = Counter({part.name: part.count for part in count.components})
    in_blocks = ("bottlenecks", "attention", "relative position projections", "ffn", "block norms")
    blocks = sum(component[name] for name in in_blocks)
    return {
        "base_no_pooler": count.parameters_encoder,
        "pooler": count.parameters_pooler,
        "base_with_pooler": count.parameters_encoder + count.parameters_pooler,
        "mlm_tied": count.parameters_mlm_tied,
        "mlm_untied": count.parameters_mlm_untied,
        "non_embedding": count.parameters_non_embedding,
        "word_emb": component["token embeddings"],
        "pos_emb": component["position embeddings"],
        "type_emb": component["segment embeddings"],
        "relpos": component["relative position embeddings"],
        "blocks_total": blocks,
        "other_emb_ln_proj": count.parameters_non_embedding - blocks,
        "pretraining_mlm_plus_nsp": count.parameters_mlm_tied + count.parameters_pooler + 2 * architecture.width + 2,
    }


def test_every_row_of_the_published_table_is_counted_exactly(shared_data: Path) -> None:
    rows = published_rows(shared_data)
    assert [row["model"] for row in rows] == [model.name for model in catalogue()]
    assert len(rows) == 77
    assert len(EXCEPTIONS) <= 3
    for row in rows:
        ours = counted(named(row["model"]))
        published = {column: int(row[column]) for column in ours if row[column]}
        assert row["model"] in EXCEPTIONS or published == {column: ours[column] for column in published}, row["model"]
        assert named(row["model"]).model_dump(include=set(sizes_of(row))) == sizes_of(row)
        assert ours["pooler"] == int(row["pooler"] or 0)


FIRST_OF_FAMILY = {model.family: model.name for model in reversed(TRANSFORMERS_HAS)}


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, id=model.short_name, marks=() if model.name in FIRST_OF_FAMILY.values() else pytest.mark.slow)
        for model in TRANSFORMERS_HAS
    ],
)
def test_transformers_builds_what_is_counted(model: NamedModel) -> None:
    architecture = model.architecture
    count = parameters(architecture)
    with torch.device("meta"):
        tied = live_model(model.family, architecture, tie_word_embeddings=True)
        assert unique_parameters(tied) == count.parameters_mlm_tied
        assert unique_parameters(tied.base_model) == count.parameters_encoder
        untied = live_model(model.family, architecture, tie_word_embeddings=False)
        assert unique_parameters(untied) == count.parameters_mlm_untied


def unique_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_every_named_model_can_be_trained() -> None:
    for model in catalogue():
        given = model.architecture
        trained = Architecture.parse(
            trained_values(model.name) | {"vocabulary": given.vocabulary, "positions": given.positions}
        )
        plain = {"contact_head": False, "pooler": True, "second_output_bias": True}
        assert trained == given.model_copy(update=plain)
        assert unbuildable(trained) is None


def test_every_row_has_its_sources_and_its_own_names() -> None:
    names = Counter(name for model in catalogue() for name in {alias.lower() for alias in (model.name, *model.aliases)})
    assert [name for name, times in names.items() if times > 1] == []
    assert all(model.published and model.source and model.aliases for model in catalogue())


@pytest.mark.parametrize("name", ["BERT-Base", "bert-base", "BERT-BASE", "bert-base-uncased", "google-bert/bert-base-uncased"])
def test_a_model_answers_to_its_aliases_in_any_case(name: str) -> None:
    (model,) = [model for model in catalogue() if model.name == "bert-base-uncased"]
    assert named(name) == model.architecture


@pytest.mark.parametrize(
    ("short", "name"),
    [
        ("bert-tiny", "bert_uncased_L-2_H-128_A-2 [BERT-Tiny]"),
        ("roberta-base", "roberta-base"),
        ("albert-xxlarge", "albert-xxlarge-v2"),
        ("deberta-v3-base", "deberta-v3-base"),
        ("modernbert-base", "ModernBERT-base"),
        ("esm2-650m", "esm2_t33_650M"),
        ("facebook/esm2_t33_650M_UR50D", "esm2_t33_650M"),
        ("neobert", "NeoBERT (250M-opt)"),
    ],
)
def test_short_and_hugging_face_names_find_the_row(short: str, name: str) -> None:
    model = find(short)
    assert model is not None
    assert model.name == name


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"bert-bsae: is not a known model; did you mean 'bert-base'\?"):
        named("bert-bsae")
    with pytest.raises(InputError, match=r"qqq: is not a known model; known: bert-tiny, "):
        named("qqq")


def test_sizes_change_a_named_model() -> None:
    assert architecture_of("bert-base", {"depth": 6}) == named("bert-base").model_copy(update={"depth": 6})


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"depth": 12, "width": 768}, {"heads": 12, "ffn": 3072}),
        ({"depth": 1, "width": 100}, {"heads": 2, "ffn": 400}),
        ({"depth": 1, "width": 128, "heads": 8, "ffn": 100}, {"heads": 8, "ffn": 100}),
    ],
)
def test_sizes_alone_follow_the_rules_of_bert(sizes: dict[str, int], expected: dict[str, int]) -> None:
    assert architecture_of(None, sizes) == Architecture.parse({"vocabulary": 30522} | sizes | expected)


@pytest.mark.parametrize(
    ("name", "sizes", "problem"),
    [
        (None, {}, "--depth: is missing"),
        (None, {"depth": 2}, "--width: is missing"),
        (None, {"depth": 2, "width": -8}, "width: -8 is below the least allowed, 1"),
        ("bert-base", {"heads": 7}, "bert-base.heads: 7 heads do not divide width 768; 6 would"),
    ],
)
def test_impossible_sizes_are_refused(name: str | None, sizes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        architecture_of(name, sizes)


def test_counts_are_plain_integers() -> None:
    count: ParameterCount = parameters(named("esm2-15b"))
    assert all(type(component.count) is int for component in count.components)
