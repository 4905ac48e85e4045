"""Counts equal the live model's, the closed forms behave as forms must, and FLOPs are those of the products that they name."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from study.counting.architecture import Architecture, changed
from study.counting.components import LETTERS, Letters
from study.counting.named_models import catalogue, named
from study.counting.parameters import (
    flops_per_sequence,
    flops_per_token,
    formulas,
    masked_positions,
    pairs_within,
    parameters,
    spared_flops_per_token,
    what_doubling_adds,
)
from study.model.encoder import at_positions
from study.model.masked_language_model import MaskedLanguageModel
from tests.small import SHARED
from tests.transformers_models import DEBERTA, DEBERTA_V3, MOBILEBERT, MODERN, NEOBERT, WINDOWS, live_model

BERT_BASE_ADDS = {"depth": 85_054_464, "width": 278_760_960, "ffn": 56_659_968, "heads": 0}


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    """Encoders as study.model builds them."""
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


families = st.sampled_from([model.architecture for model in catalogue()])
"""Encoders of every family."""


def test_bert_base_has_its_published_parameters() -> None:
    count = parameters(named("bert-base"))
    assert count.parameters_encoder == 108_891_648
    assert count.parameters_encoder + count.parameters_pooler == 109_482_240
    assert count.parameters == count.parameters_mlm_tied == 109_514_298
    assert count.parameters_mlm_untied == 132_985_716
    assert count.parameters_non_embedding == 85_056_000


def test_the_decoder_and_its_biases_are_counted_as_transformers_has_them() -> None:
    tied = named("bert-base")
    untied, single = (changed(tied, {name: False}) for name in ("tied_decoder", "second_output_bias"))
    assert parameters(untied).parameters_mlm_tied == 109_514_298
    assert parameters(untied).parameters == 132_985_716 - 30_522
    assert parameters(single).parameters_mlm_untied == 132_985_716 - 30_522


def test_a_pooler_without_biases_is_a_matrix() -> None:
    assert parameters(changed(named("bert-base"), {"biases": "none"})).parameters_pooler == 768**2


def test_masked_positions_are_rounded() -> None:
    assert [masked_positions(length, 0.15) for length in (64, 128, 512)] == [10, 19, 77]


def test_doubling_the_width_of_bert_base_adds_three_times_what_doubling_its_depth_adds() -> None:
    assert what_doubling_adds(named("bert-base")) == BERT_BASE_ADDS


@given(architectures() | families)
def test_totals_are_sums_of_components(architecture: Architecture) -> None:
    count = parameters(architecture)
    of = {part: sum(c.count for c in count.components if c.part == part) for part in ("tables", "encoder", "head")}
    assert count.parameters == sum(of.values())
    assert count.parameters_encoder == of["tables"] + of["encoder"]
    assert count.parameters_non_embedding == of["encoder"]
    assert count.parameters_mlm_tied == count.parameters or not architecture.tied_decoder
    assert len({component.name for component in count.components}) == len(count.components)
    assert all(component.count > 0 for component in count.components)


@given(architectures() | families)
def test_a_formula_evaluates_to_its_count(architecture: Architecture) -> None:
    letters = Letters.numbers(architecture)
    written = formulas(architecture)
    for component in parameters(architecture).components:
        python = written[component.name].replace("·", "*").replace("²", "**2").replace("−", "-")
        assert eval(python, {}, vars(letters)) == component.count, (component.name, written[component.name])


def test_formulas_of_bert_are_those_of_the_textbook() -> None:
    assert formulas(named("bert-base")) == {
        "token embeddings": "V·H",
        "position embeddings": "P·H",
        "segment embeddings": "T·H",
        "embedding norm": "2·H",
        "attention": "L·(4·H² + 4·H)",
        "ffn": "L·(2·H·F + F + H)",
        "block norms": "L·4·H",
        "MLM transform": "H² + H",
        "MLM norm": "2·H",
        "MLM output bias": "V",
    }


@given(architectures() | families)
def test_every_layer_costs_the_same(architecture: Architecture) -> None:
    sizes = [architecture.model_copy(update={"depth": depth}) for depth in (1, 2, 3)]
    one, two, three = (parameters(size).parameters for size in sizes)
    assert three - two == two - one
    assert (two > one) == (architecture.layer_groups is None or architecture.contact_head)


@given(architectures())
def test_heads_cost_nothing(architecture: Architecture) -> None:
    single = architecture.model_copy(update={"heads": 1})
    assert parameters(single) == parameters(architecture)
    assert flops_per_sequence(single, 8, 1) == flops_per_sequence(architecture, 8, 1)


@given(architectures() | families, st.sampled_from(["depth", "width", "ffn", "vocabulary"]), st.integers(1, 64))
def test_more_of_a_size_costs_more(architecture: Architecture, size: str, more: int) -> None:
    larger = architecture.model_copy(update={size: getattr(architecture, size) + more})
    shared = size == "depth" and architecture.layer_groups is not None
    assert shared or parameters(larger).parameters > parameters(architecture).parameters
    assert flops_per_sequence(larger, 64, 10).train_flops > flops_per_sequence(architecture, 64, 10).train_flops


SHAPES: list[tuple[dict[str, Any], int, int, int]] = [
    ({}, 2, 24, 4),
    ({"depth": 1, "width": 64, "heads": 1, "ffn": 100}, 1, 17, 3),
    ({"depth": 5, "width": 48, "heads": 12, "ffn": 1}, 3, 8, 1),
    ({"norm": "pre", "tied_decoder": False, "segments": 0}, 2, 10, 10),
    ({"depth": 3, "width": 128, "heads": 2, "ffn": 512}, 1, 24, 24),
    ({"depth": 1, "width": 8, "heads": 8, "ffn": 200, "norm": "pre"}, 4, 1, 1),
    ({"position_encoding": "rotary"}, 2, 24, 4),
    ({"position_encoding": "none", "distance_bias": "learned", "distance_bias_reach": 5}, 2, 24, 4),
    ({"position_encoding": "rotary", "distance_bias": "learned", "query_key_norm": True}, 3, 24, 4),
    ({"distance_bias": "alibi"}, 2, 24, 4),
    (SHARED, 2, 24, 4),
    (MODERN, 2, 24, 4),
    ({"pair_head": True}, 3, 24, 4),
    ({"generator_share": 0.25}, 3, 24, 4),
    (MODERN | WINDOWS | {"attention_window": 46, "generator_share": 0.5}, 2, 24, 4),
    (DEBERTA | {"generator_share": 1.0}, 1, 24, 4),
    (NEOBERT, 2, 24, 4),
    (MOBILEBERT, 2, 24, 4),
    ({"bottleneck_width": 16, "position_encoding": "rotary", "activation": "geglu"}, 2, 24, 4),
    ({"ffn_stack": 3, "norm": "pre", "trigram_embedding": True}, 2, 24, 4),
    (DEBERTA, 1, 24, 4),
    (DEBERTA | {"relative_positions": 64}, 1, 24, 4),
    (DEBERTA_V3 | {"convolution_kernel": 3}, 1, 24, 4),
    (MODERN | WINDOWS | {"attention_window": 46}, 2, 24, 4),
]
"""Changes of a small shape, sequences, tokens a sequence, predictions a sequence."""


@pytest.mark.parametrize(("changes", "batch", "length", "predictions"), SHAPES)
def test_flops_are_those_of_the_live_model(changes: dict[str, Any], batch: int, length: int, predictions: int) -> None:
    """With every layer at every token train_flops, with the last where something is predicted less what that spares."""
    sizes = {"depth": 2, "width": 32, "heads": 4, "ffn": 48, "vocabulary": 97, "positions": 24}
    architecture = Architecture.parse(sizes | changes)
    model = MaskedLanguageModel(architecture)
    tokens = torch.randint(0, 97, (batch, length))
    positions, first = torch.arange(predictions).expand(batch, -1), int(architecture.pair_head)

    def detected() -> torch.Tensor | int:
        return 0 if model.detector is None else model.detection_logits(tokens).sum()

    # The counter knows the plain products, not the fused attention of the CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as everywhere:
        hidden = model.predictor(tokens)
        judged = model.judged(hidden[:, 0]).sum() if first else detected()
        torch.autograd.backward(model.logits(at_positions(hidden, positions)).sum() + judged)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as here:
        hidden = model.predictor(tokens, positions_BxK=torch.nn.functional.pad(positions, (first, 0)))
        judged = model.judged(hidden[:, 0]).sum() if first else detected()
        torch.autograd.backward(model.logits(hidden[:, first:]).sum() + judged)
    train_flops = batch * flops_per_sequence(architecture, length, predictions).train_flops
    spared = batch * length * spared_flops_per_token(architecture, length, predictions)
    assert everywhere.get_total_flops() == train_flops
    assert here.get_total_flops() == pytest.approx(train_flops - spared, rel=1e-12)


@pytest.mark.parametrize(
    "changes", [DEBERTA, DEBERTA_V3, MODERN | WINDOWS | {"attention_window": 46}, {"position_encoding": "rotary", "depth": 1}]
)
def test_flops_of_a_mask_decoder_are_those_of_its_two_passes(changes: dict[str, Any]) -> None:
    sizes = {"depth": 2, "width": 32, "heads": 4, "ffn": 48, "vocabulary": 97, "positions": 24, "enhanced_mask_decoder": True}
    architecture = Architecture.parse(sizes | changes)
    model, tokens = MaskedLanguageModel(architecture), torch.randint(0, 97, (1, 24))
    flops = flops_per_sequence(architecture, 24, 4)
    for predictions, expected in (
        (4, flops.train_flops - 24 * spared_flops_per_token(architecture, 24, 4)),
        (24, flops.train_flops_dense_head),
    ):
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            torch.autograd.backward(model(tokens, torch.arange(predictions)[None]).sum())
        assert counter.get_total_flops() == pytest.approx(expected, rel=1e-12)


FAMILIES = [
    "bert-tiny",
    "roberta-base",
    "distilbert",
    "albert-base",
    "electra-small",
    "mobilebert",
    "deberta-base",
    "deberta-v2-xlarge",
    "deberta-v3-base",
    "modernbert-base",
    "esm2-8m",
]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("length", [5, pytest.param(24, marks=pytest.mark.slow)])
def test_flops_of_a_family_are_those_of_transformers(name: str, length: int) -> None:
    """Every product of forward and backward, in a batch of one; transformers runs the head on every position."""
    model = next(model for model in catalogue() if name in model.aliases)
    small = {"depth": 4, "width": 256, "heads": 4, "ffn": 96, "vocabulary": 97}
    architecture = changed(model.architecture, small)
    live = live_model(model.family, architecture, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter:
        live(input_ids=torch.full((1, length), 5)).logits.sum().backward()
    expected = flops_per_sequence(architecture, length, length).train_flops_dense_head
    assert counter.get_total_flops() == expected


@given(st.integers(1, 300), st.integers(1, 60))
def test_pairs_within_a_window_are_those_a_loop_finds(window: int, length: int) -> None:
    near = sum(abs(i - j) <= window // 2 for i in range(length) for j in range(length))
    assert pairs_within(window, length) == near


def test_windows_save_flops_only_beyond_their_reach() -> None:
    windowed = named("modernbert-base")
    full = windowed.model_copy(update={"attention_window": None, "global_attention_every": 1})
    assert flops_per_sequence(windowed, 65, 10) == flops_per_sequence(full, 65, 10)
    long, plain = flops_per_sequence(windowed, 8192, 1229), flops_per_sequence(full, 8192, 1229)
    saved = 12 * 768 * (8192**2 - pairs_within(128, 8192))
    assert plain.train_flops - long.train_flops == 14 * saved
    everywhere = windowed.model_copy(update={"global_attention_every": 1})
    assert plain.train_flops - flops_per_sequence(everywhere, 8192, 1229).train_flops == 22 * saved


def test_a_head_on_every_position_costs_the_dense_head() -> None:
    flops = flops_per_sequence(named("bert-tiny"), 128, 128)
    assert flops.train_flops == flops.train_flops_dense_head


def test_flops_of_6n_are_six_per_published_parameter_and_token() -> None:
    flops = flops_per_sequence(named("bert-base"), 128, 19)
    assert flops.train_flops_6n == 6 * 128 * 109_514_298
    assert flops.train_flops_6n_non_embedding == 6 * 128 * 85_056_000


@pytest.mark.parametrize(("name", "apart"), [("bert-tiny", 11), ("bert-large", 1.1)])
def test_conventions_differ_most_at_small_scale(name: str, apart: float) -> None:
    flops = flops_per_token(named(name), 128, 19).values()
    assert max(flops) / min(flops) == pytest.approx(apart, rel=0.1)


def test_the_live_model_has_the_counted_parameters() -> None:
    model: nn.Module = MaskedLanguageModel(named("bert-tiny"))
    assert sum(parameter.numel() for parameter in model.parameters()) == 4_416_698


def test_no_letter_of_a_formula_is_unexplained() -> None:
    for model in catalogue():
        written = " ".join(formulas(model.architecture).values())
        assert set(re.findall(r"[A-Z]", written)) <= LETTERS.keys()


def test_disentangled_attention_has_a_row_for_every_distance_if_none_are_named() -> None:
    sizes = {
        "depth": 1,
        "width": 8,
        "heads": 2,
        "ffn": 16,
        "vocabulary": 32,
        "positions": 24,
        "position_encoding": "disentangled",
    }
    assert Architecture.parse(sizes).relative_positions == 48
    assert Architecture.parse(sizes) == Architecture.parse(sizes | {"relative_positions": 48})
