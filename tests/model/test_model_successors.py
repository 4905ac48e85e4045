"""What BERT's successors changed is built as they have it: parity with transformers, and the equations of their papers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from study.base.errors import InputError
from study.counting.architecture import Architecture
from study.model import layers
from study.model.encoder import FeedForward, at_positions
from study.model.layers import norm
from study.model.masked_language_model import MaskedLanguageModel
from tests.model.test_model import assert_transformers_agrees, randomised, small
from tests.transformers_models import DEBERTA, DEBERTA_V3, MOBILEBERT, MODERN, NEOBERT, WINDOWS, theirs_of

KINDS: dict[str, dict[str, Any]] = {
    "factorised embeddings": {"embedding_width": 8},
    "embeddings wider than the blocks": {"embedding_width": 40, "tied_decoder": False},
    "one block for all layers": {"layer_groups": 1},
    "two blocks, factorised": {"layer_groups": 2, "embedding_width": 8, "norm": "pre"},
    "ReLU": {"activation": "relu"},
    "GeGLU": {"activation": "geglu"},
    "SwiGLU, RMSNorm, no biases": {"activation": "swiglu", "norm_kind": "rms", "biases": "none", "norm": "pre"},
    "LayerNorm without biases": {"norm_bias": False},
    "ModernBERT": MODERN | WINDOWS,
    "NeoBERT": NEOBERT,
    "DeBERTa": DEBERTA,
    "DeBERTa v3": DEBERTA_V3,
    "DeBERTa with its mask decoder": DEBERTA | {"enhanced_mask_decoder": True},
    "a mask decoder in pre-norm, windows, shared layers": MODERN
    | WINDOWS
    | {"enhanced_mask_decoder": True, "embedding_norm": False, "layer_groups": 1},
    "MobileBERT": MOBILEBERT,
    "a bottleneck with rotary positions, windows, LayerNorm": {
        "bottleneck_width": 16,
        "position_encoding": "rotary",
        "attention_window": 6,
        "query_key_norm": True,
        "distance_bias": "learned",
        "biases": "no_key",
    },
    "FFNs stacked in pre-norm, trigrams": {"ffn_stack": 2, "norm": "pre", "trigram_embedding": True, "activation": "geglu"},
    "DeBERTa v2, pre-norm, shared layers, windows": DEBERTA_V3 | {"norm": "pre", "layer_groups": 2, "attention_window": 6},
    "DeBERTa v2 with a convolution": DEBERTA_V3 | {"convolution_kernel": 3, "distance_bias": "learned"},
    "GELU by a tanh, windows in every layer": {"activation": "gelu_tanh", "mlm_activation": "relu", "attention_window": 4},
    "no positions": {"position_encoding": "none"},
    "a learned bias by distance": {"distance_bias": "learned"},
    "a learned bias in reach, rotary positions": {
        "distance_bias": "learned",
        "distance_bias_reach": 3,
        "position_encoding": "rotary",
        "norm": "pre",
    },
    "a learned bias that layers share": {"distance_bias": "learned", "layer_groups": 2, "position_encoding": "none"},
    "ALiBi": {"distance_bias": "alibi", "position_encoding": "none"},
    "normed queries and keys": {"query_key_norm": True},
    "embeddings without masks": {"token_dropout": 7, "embedding_width": 8, "segments": 0},
    "all that finds order": {
        "distance_bias": "learned",
        "position_encoding": "rotary",
        "query_key_norm": True,
        "norm": "pre",
        "norm_kind": "rms",
        "embedding_norm": True,
    },
}


GELU_TANH = partial(F.gelu, approximate="tanh")


def model(**changes: Any) -> MaskedLanguageModel:
    return randomised(MaskedLanguageModel(small(depth=4, **changes))).eval()  # type: ignore[no-any-return]


def tokens() -> Tensor:
    return torch.randint(5, 97, (3, 24), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"tied_decoder": False}, marks=pytest.mark.slow),
        pytest.param({"segments": 0}, marks=pytest.mark.slow),
        pytest.param({"segments": 2, "tied_decoder": False}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ElectraForMaskedLM", {"embedding_width": 8}),
        ("ElectraForMaskedLM", {"embedding_width": 40, "activation": "relu"}),
        ("ElectraForMaskedLM", {"activation": "relu"}),
        ("RoFormerForMaskedLM", {"embedding_width": 8, "position_encoding": "rotary"}),
        ("AlbertForMaskedLM", {"embedding_width": 8, "layer_groups": 1}),
        ("AlbertForMaskedLM", {"embedding_width": 40, "layer_groups": 2}),
        ("AlbertForMaskedLM", {"layer_groups": 2}),
        ("ModernBertForMaskedLM", MODERN),
        ("ModernBertForMaskedLM", MODERN | {"activation": "swiglu", "norm_bias": True}),
        ("ModernBertForMaskedLM", MODERN | WINDOWS),
        ("ModernBertForMaskedLM", MODERN | WINDOWS | {"global_attention_every": 1, "local_rotary_theta": "none"}),
        ("DebertaForMaskedLM", DEBERTA),
        ("DebertaForMaskedLM", DEBERTA | {"relative_positions": 64, "segments": 2}),
        ("DebertaV2ForMaskedLM", DEBERTA_V3),
        ("DebertaV2ForMaskedLM", DEBERTA_V3 | {"relative_reach": "none", "convolution_kernel": 3}),
        ("MobileBertForMaskedLM", MOBILEBERT),
        (
            "MobileBertForMaskedLM",
            MOBILEBERT | {"ffn_stack": 1, "bottleneck_width": 32, "activation": "gelu", "mlm_activation": "gelu"},
        ),
        ("BertForMaskedLM", {"activation": "gelu_tanh", "mlm_activation": "gelu_tanh", "norm_epsilon": 1e-5}),
        ("ElectraForMaskedLM", {"activation": "gelu_tanh"}),
    ],
)
def test_logits_equal_those_of_transformers(name: str, changes: dict[str, Any], more: dict[str, Any]) -> None:
    assert_transformers_agrees(model(**changes | more), name)


def test_embeddings_without_masks_are_those_of_esm() -> None:
    """Of sequences with masks: test_importing_families."""
    ours = model(norm="pre", position_encoding="rotary", token_dropout=4, segments=0)
    assert_transformers_agrees(ours, "EsmForMaskedLM")
    with pytest.raises(InputError, match="token_dropout 4 scales tokens as ESM-2 does, which has no segments; set segments 0"):
        model(token_dropout=4)
    with pytest.raises(InputError, match=r"token_dropout: 97 is no id of 97 pieces; give that of the mask piece, at most 96"):
        small(token_dropout=97, segments=0)


@pytest.mark.parametrize("more", [{}, {"convolution_kernel": 3}, {"relative_reach": "none", "segments": 2}])
def test_a_mask_decoder_runs_debertas_last_layer_twice_from_queries_that_know_positions(more: dict[str, Any]) -> None:
    """As EnhancedMaskDecoder of its authors' code does with layers that take queries.

    Those of transformers do in DeBERTa v2; in v1 its product with queries fails.
    """
    changes = DEBERTA_V3 | more
    plain, ours = small(depth=4, **changes), model(enhanced_mask_decoder=True, **changes)
    state = ours.state_dict()
    positions_PxH = state.pop("head.position.weight")
    without = MaskedLanguageModel(plain).eval()
    without.load_state_dict(state)
    theirs = theirs_of(without)
    base: Any = next(theirs.children())
    embedded = base.embeddings(input_ids=tokens(), token_type_ids=torch.zeros_like(tokens()), mask=torch.ones(3, 24))
    before = base(tokens(), output_hidden_states=True).hidden_states[-2]
    seen = base.encoder.get_attention_mask(torch.ones(3, 24))
    near = {"relative_pos": base.encoder.get_rel_pos(embedded), "rel_embeddings": base.encoder.get_rel_embedding()}
    query = before + positions_PxH[:24]
    for _ in range(2):
        query = base.encoder.layer[-1](before, seen, query_states=query, **near)[0]
    logits = without.logits(query)
    torch.testing.assert_close(ours(tokens()), logits, atol=1e-5, rtol=0)
    assert (ours(tokens()) - without(tokens())).abs().max() > 0.1
    torch.testing.assert_close(ours.encoder(tokens()), base(tokens()).last_hidden_state, atol=1e-5, rtol=0)


def test_a_mask_decoder_alone_gives_tokens_their_positions() -> None:
    ours = model(enhanced_mask_decoder=True, position_encoding="none")
    assert ours.architecture.orders_tokens
    same = torch.full((1, 24), 9)
    assert (ours(same)[0, 0] - ours(same)[0, 1]).abs().max() > 0.01
    torch.testing.assert_close(ours.encoder(same)[0, 0], ours.encoder(same)[0, 1])


def test_sequences_of_masks_alone_have_numbers() -> None:
    ours = model(token_dropout=7, segments=0)
    assert ours(torch.full((1, 24), 7)).isfinite().all()
    assert ours(torch.full((1, 24), 7), attended_BxS=torch.zeros(1, 24, dtype=torch.bool)).isfinite().all()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, "does not go with position_encoding learned, whose tokens have absolute positions; leave out one of them"),
        (DEBERTA | {"pair_head": True}, "does not go with objectives mlm_nsp and mlm_sop"),
        (DEBERTA | {"generator_share": 0.5}, "does not go with objective rtd"),
        (MOBILEBERT | {"position_encoding": "rotary"}, "does not go with bottleneck_width 16"),
    ],
)
def test_what_a_mask_decoder_does_not_go_with_is_said(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=f"enhanced_mask_decoder {problem}"):
        model(enhanced_mask_decoder=True, **changes)


@pytest.mark.parametrize(
    ("activation", "f"), [("geglu", F.gelu), ("swiglu", F.silu), ("relu", F.relu), ("gelu_tanh", GELU_TANH)]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_feed_forwards_are_those_of_shazeers_equations(activation: str, f: Any, dtype: torch.dtype) -> None:
    """And their gradients, to the bit: what is written over an incoming gradient is read by nothing else."""
    torch.manual_seed(0)
    layer = randomised(FeedForward(small(activation=activation))).to(dtype)
    x, towards = torch.randn(3, 5, 32, dtype=dtype, requires_grad=True), torch.randn(3, 5, 32, dtype=dtype)
    weights = list(layer.parameters())
    if activation in ("relu", "gelu_tanh"):
        plain = layer.outer(f(layer.inner(x)))
    else:
        inner = layer.inner(x)
        assert inner.shape[-1] == 2 * 48
        plain = layer.outer(f(inner[..., :48]) * inner[..., 48:])
    assert torch.equal(layer(x), plain)
    ours, theirs = (torch.autograd.grad(y, [x, *weights], towards, retain_graph=True) for y in (layer(x), plain))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def test_rms_norm_divides_by_the_root_of_the_mean_square_alone() -> None:
    layer, x = norm(small(norm_kind="rms"), 32), torch.randn(4, 32) + 3
    expected = x / x.square().mean(-1, keepdim=True).sqrt() * layer.weight
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer(x, x), expected)
    assert [name for name, _ in layer.named_parameters()] == ["weight"]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_the_properties_of_an_encoder(name: str) -> None:
    """What is at some positions is what is there of all; every parameter learns; padding is inert; layers are in order."""
    ours = model(**KINDS[name])
    encoder, read = ours.encoder, tokens()
    positions = torch.tensor([[0, 5], [23, 2], [7, 7]])
    everywhere = encoder(read)
    torch.testing.assert_close(encoder(read, positions_BxK=positions), at_positions(everywhere, positions), atol=1e-5, rtol=0)
    hidden = ours.hidden(read, positions_BxK=positions)
    torch.testing.assert_close(hidden, at_positions(ours.hidden(read), positions), atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder.layers(read)[-1], everywhere)
    assert len(encoder.layers(read)) == 5
    attended = (torch.arange(24) < 20).expand(3, -1)
    changed = read.masked_fill(~attended, 3)
    for states in (encoder, ours.hidden):
        torch.testing.assert_close(states(read, None, attended)[:, :20], states(changed, None, attended)[:, :20])
    torch.autograd.backward(ours.predicted_loss(hidden, torch.full((3, 2), 9)))
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in ours.parameters())


@pytest.mark.parametrize("changes", [{}, *KINDS.values()], ids=["BERT", *KINDS])
def test_a_last_layer_at_the_masked_positions_alone_teaches_what_one_at_all_tokens_does(changes: dict[str, Any]) -> None:
    ours = model(**changes).double()
    masked, labels = torch.tensor([[0, 5], [23, 2], [7, 9]]), torch.tensor([[9, 8], [7, 6], [5, 4]])
    hidden = ours.hidden(tokens(), positions_BxK=masked), at_positions(ours.hidden(tokens()), masked)
    at_masked, everywhere = (torch.autograd.grad(ours.predicted_loss(each, labels), list(ours.parameters())) for each in hidden)
    torch.testing.assert_close(at_masked, everywhere)


def test_layers_of_one_group_are_one_block_and_groups_follow_each_other() -> None:
    assert model(layer_groups=2).encoder.block_of_layer == [0, 0, 1, 1]
    assert MaskedLanguageModel(small(depth=5, layer_groups=2)).encoder.block_of_layer == [0, 0, 0, 1, 1]
    assert MaskedLanguageModel(small(depth=4)).encoder.block_of_layer == [0, 1, 2, 3]


def test_a_shared_block_computes_what_equal_blocks_do() -> None:
    shared = model(layer_groups=1)
    apart = MaskedLanguageModel(small(depth=4)).eval()
    state = shared.state_dict()
    for layer in range(1, 4):
        state |= {
            name.replace("blocks.0.", f"blocks.{layer}."): weight for name, weight in state.items() if "blocks.0." in name
        }
    apart.load_state_dict(state)
    assert torch.equal(shared(tokens()), apart(tokens()))


def test_a_norm_that_one_layer_lacks_is_shared_by_none() -> None:
    with pytest.raises(InputError, match="embedding_norm True replaces the first layer's norm, which layer_groups 1"):
        MaskedLanguageModel(small(norm="pre", embedding_norm=True, layer_groups=1))


def test_what_is_not_there_can_be_named() -> None:
    named = small(embedding_width="none", layer_groups="none", embedding_norm="none")
    assert named == small()
    assert Architecture.parse(named.model_dump()) == named
    assert small(norm_kind="rms") == small(norm_kind="rms", norm_bias=False)


def test_the_residual_stream_begins_in_fp32_under_autocast_on_a_cpu() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert model(embedding_width=8).encoder.embeddings(tokens()).dtype == torch.float32


def test_a_unit_stream_begins_with_unit_variance_and_draws_nothing_else_anew() -> None:
    """Through tables of width 48 and BERT's deviation the residual stream begins at 0.02·√48, 0.14."""
    architecture = Architecture(depth=1, width=192, heads=2, ffn=384, vocabulary=500, positions=16, embedding_width=48)
    bert, unit = MaskedLanguageModel(architecture), MaskedLanguageModel(architecture, initialisation="unit_stream")
    tokens = torch.arange(400).reshape(25, 16)
    begins = [model.encoder.embeddings(tokens).std().item() for model in (bert, unit)]
    assert begins == pytest.approx([0.02 * 48**0.5, 1], rel=0.05)
    redrawn = [name for name, weights in bert.named_parameters() if not torch.equal(weights, unit.get_parameter(name))]
    assert redrawn == ["encoder.embeddings.projection.weight"]


def test_a_unit_stream_is_that_of_bert_where_nothing_is_projected() -> None:
    architecture = Architecture(depth=1, width=16, heads=2, ffn=32, vocabulary=100, positions=16)
    bert, unit = MaskedLanguageModel(architecture), MaskedLanguageModel(architecture, initialisation="unit_stream")
    assert all(torch.equal(weights, unit.get_parameter(name)) for name, weights in bert.named_parameters())


@pytest.mark.parametrize("changes", [{}, *KINDS.values()], ids=["BERT", *KINDS])
def test_every_layer_on_a_gpu_reads_one_dtype_that_of_the_tables_in_pre_norm(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer that read another would be compiled once more; sums in bf16 over all layers would lose what late ones add."""
    monkeypatch.setattr(layers, "rounds", lambda x: torch.is_autocast_enabled(x.device.type))
    one = model(**changes)
    with torch.autocast("cpu", torch.bfloat16):
        read = {stream.dtype for stream in one.encoder.layers(tokens())[:-1]}
    assert read == {torch.float32 if one.architecture.norm == "pre" else torch.bfloat16}
