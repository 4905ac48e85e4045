"""Counts equal the published ones, the closed forms behave as forms must, and FLOPs are those that really run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from study.architecture import Architecture
from study.counting import account, flops_per_sequence, flops_per_token, parameters, what_doubling_adds
from study.errors import InputError
from study.model.masked_language_model import MaskedLanguageModel
from study.named_models import named

LIKE_BERT = ("BERT", "BERT miniature", "TinyBERT", "MiniLM", "24hBERT")
"""The families of the published table whose encoders and heads are BERT's."""

COLUMNS = {
    "layers": "depth",
    "hidden": "width",
    "heads": "heads",
    "ffn": "ffn",
    "vocab": "vocabulary",
    "positions": "positions",
    "type_vocab": "segments",
}
"""The columns of the published table that are sizes of an architecture."""


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    heads = draw(st.integers(1, 8))
    return Architecture(
        depth=draw(st.integers(1, 24)),
        width=heads * draw(st.integers(1, 64)),
        heads=heads,
        ffn=draw(st.integers(1, 2048)),
        vocabulary=draw(st.integers(1, 50_000)),
        positions=draw(st.integers(1, 1024)),
        segments=draw(st.integers(0, 2)),
        norm=draw(st.sampled_from(["post", "pre"])),
        tied_decoder=draw(st.booleans()),
    )


def test_bert_base_has_its_published_parameters() -> None:
    count = parameters(named("bert-base"))
    assert count.parameters_encoder == 108_891_648
    assert count.parameters_encoder + count.parameters_pooler == 109_482_240
    assert count.parameters == count.parameters_mlm_tied == 109_514_298
    assert count.parameters_mlm_untied == 132_985_716
    assert count.parameters_non_embedding == 85_056_000


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert-tiny", 4_416_698),
        ("bert-mini", 11_201_594),
        ("bert-small", 28_795_194),
        ("bert-medium", 41_404_730),
        ("bert-base", 109_514_298),
        ("bert-large", 335_174_458),
    ],
)
def test_named_models_have_their_published_parameters(name: str, expected: int) -> None:
    assert parameters(named(name)).parameters == expected


def test_counts_equal_the_published_table(shared_data: Path) -> None:
    with (shared_data / "published" / "encoders" / "named_models.csv").open() as table:
        rows = [row for row in csv.DictReader(table) if row["family"] in LIKE_BERT]
    assert len(rows) > 30
    for row in rows:
        sizes = {ours: int(row[theirs]) for theirs, ours in COLUMNS.items()}
        count = parameters(Architecture.parse(sizes))
        component = {part.name: part.count for part in count.components}
        blocks = component["attention"] + component["ffn"] + component["block norms"]
        counted = {
            "base_no_pooler": count.parameters_encoder,
            "pooler": count.parameters_pooler,
            "base_with_pooler": count.parameters_encoder + count.parameters_pooler,
            "mlm_tied": count.parameters_mlm_tied,
            "mlm_untied": count.parameters_mlm_untied,
            "non_embedding": count.parameters_non_embedding,
            "word_emb": component["token embeddings"],
            "pos_emb": component["position embeddings"],
            "type_emb": component["segment embeddings"],
            "other_emb_ln_proj": component["embedding norm"],
            "blocks_total": blocks,
            "per_layer": blocks // int(row["layers"]),
        }
        assert counted == {name: int(row[name]) for name in counted}, row["model"]


def test_doubling_the_width_of_bert_base_adds_three_times_what_doubling_its_depth_adds() -> None:
    assert what_doubling_adds(named("bert-base")) == {
        "depth": 85_054_464,
        "width": 278_760_960,
        "ffn": 56_659_968,
        "heads": 0,
    }


@given(architectures())
def test_totals_are_sums_of_components(architecture: Architecture) -> None:
    count = parameters(architecture)
    head = sum(part.count for part in count.components if part.name.startswith("MLM"))
    tables = sum(part.count for part in count.components if part.name.endswith("embeddings"))
    assert count.parameters == sum(part.count for part in count.components)
    assert count.parameters_encoder == count.parameters - head
    assert count.parameters_non_embedding == count.parameters_encoder - tables
    assert len({part.name for part in count.components}) == len(count.components)


@given(architectures())
def test_every_layer_costs_the_same(architecture: Architecture) -> None:
    one, two, three = (parameters(architecture.model_copy(update={"depth": depth})).parameters for depth in (1, 2, 3))
    assert three - two == two - one > 0


@given(architectures())
def test_heads_cost_nothing(architecture: Architecture) -> None:
    single = architecture.model_copy(update={"heads": 1})
    assert parameters(single) == parameters(architecture)
    assert flops_per_sequence(single, 8, 1) == flops_per_sequence(architecture, 8, 1)


@given(architectures(), st.sampled_from(["depth", "width", "ffn", "vocabulary"]), st.integers(1, 64))
def test_more_of_a_size_costs_more(architecture: Architecture, size: str, more: int) -> None:
    larger = architecture.model_copy(update={size: getattr(architecture, size) + more})
    assert parameters(larger).parameters > parameters(architecture).parameters
    assert flops_per_sequence(larger, 64, 10).train_flops > flops_per_sequence(architecture, 64, 10).train_flops


@pytest.mark.parametrize(
    ("changes", "batch", "length", "predictions"),
    [
        ({}, 2, 24, 4),
        ({"depth": 1, "width": 64, "heads": 1, "ffn": 100}, 1, 17, 3),
        ({"depth": 5, "width": 48, "heads": 12, "ffn": 1}, 3, 8, 1),
        ({"norm": "pre", "tied_decoder": False, "segments": 0}, 2, 10, 10),
    ],
)
def test_train_flops_are_those_of_the_live_model(changes: dict[str, Any], batch: int, length: int, predictions: int) -> None:
    sizes = {"depth": 2, "width": 32, "heads": 4, "ffn": 48, "vocabulary": 97, "positions": 24}
    architecture = Architecture.parse(sizes | changes)
    model = MaskedLanguageModel(architecture)
    tokens = torch.randint(0, 97, (batch, length))
    positions = torch.arange(predictions).expand(batch, -1)
    # The counter knows the plain products, not the fused attention of the CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens, positions).sum().backward()
    assert counter.get_total_flops() == batch * flops_per_sequence(architecture, length, predictions).train_flops


def test_a_head_on_every_position_costs_the_dense_head() -> None:
    flops = flops_per_sequence(named("bert-tiny"), 128, 128)
    assert flops.train_flops == flops.train_flops_dense_head


@pytest.mark.parametrize(("name", "apart"), [("bert-tiny", 11), ("bert-large", 1.1)])
def test_conventions_differ_most_at_small_scale(name: str, apart: float) -> None:
    flops = flops_per_token(named(name), 128, 19).values()
    assert max(flops) / min(flops) == pytest.approx(apart, rel=0.1)


def test_an_account_needs_positions_for_its_sequence() -> None:
    assert account(named("bert-base"), 512).predictions == 77
    for length in (0, 513):
        with pytest.raises(InputError, match="--sequence-length"):
            account(named("bert-base"), length)
