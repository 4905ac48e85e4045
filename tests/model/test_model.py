"""The encoder is BERT's: parity with transformers, and the properties that an encoder must have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from study.counting.architecture import Architecture
from study.counting.parameters import parameters
from study.model.distillation import relations
from study.model.encoder import Attention, AttentionInputs, FeedForward, attended, rotary_table, rotated
from study.model.layers import padding_mask
from study.model.masked_language_model import MaskedLanguageModel
from tests.transformers_models import BERTS, theirs_of

SHAPES = [(2, 128, 2, 512), (1, 64, 4, 100), (4, 48, 3, 192), (3, 96, 12, 32)]


def small(**changes: Any) -> Architecture:
    return Architecture.parse({"depth": 2, "width": 32, "heads": 4, "ffn": 48, "vocabulary": 97, "positions": 24} | changes)


def randomised(model: torch.nn.Module) -> Any:
    """Weights far from their initial values, so that norms and biases matter too."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("padded", [False, True])
def test_attention_in_bf16_on_cpu_is_the_fused_one_up_to_rounding(padded: bool) -> None:
    torch.manual_seed(0)
    exact = [torch.randn(3, 4, 24, 8, requires_grad=True) for _ in range(3)]
    rounded = [tensor.detach().bfloat16().requires_grad_() for tensor in exact]
    mask = padding_mask(torch.arange(24).expand(3, 24) < 17) if padded else None
    query, key, value = exact
    theirs = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    ours = attended(rounded[0], rounded[1], rounded[2], mask, 0.0)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.float(), theirs, rtol=0, atol=0.02)
    upstream = torch.randn_like(theirs)
    torch.autograd.backward(theirs, upstream)
    torch.autograd.backward(ours, upstream.bfloat16())
    for own, other in zip(rounded, exact, strict=True):
        assert own.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(own.grad.float(), other.grad, rtol=0, atol=0.05)


def test_dropout_of_attention_in_bf16_on_cpu_keeps_the_mean() -> None:
    query, key = torch.zeros(1, 1, 1, 8).bfloat16(), torch.zeros(1, 1, 4096, 8).bfloat16()
    torch.manual_seed(0)
    mixed = attended(query, key, torch.ones(1, 1, 4096, 8).bfloat16(), None, 0.25)
    assert mixed.float().mean().item() == pytest.approx(1, abs=0.03)
    assert len(set(mixed.flatten().tolist())) == 1
    assert mixed[0, 0, 0, 0] != 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_feed_forward_has_the_gradients_of_plain_gelu_to_the_bit(dtype: torch.dtype) -> None:
    layer = randomised(FeedForward(small())).to(dtype)
    x, weights = torch.randn(3, 5, 32, dtype=dtype, requires_grad=True), list(layer.parameters())
    towards = torch.randn(3, 5, 32, dtype=dtype)
    gradients = torch.autograd.grad(layer(x), [x, *weights], towards)
    plain = layer.outer(torch.nn.functional.gelu(layer.inner(x)))
    for one, other in zip(gradients, torch.autograd.grad(plain, [x, *weights], towards), strict=True):
        assert torch.equal(one, other)


def assert_transformers_agrees(ours: MaskedLanguageModel, name: str) -> None:
    """The logits are those of a class of transformers, with padding and segments too."""
    theirs = theirs_of(ours)
    assert type(theirs).__name__ == name
    tokens = torch.randint(5, 97, (3, 24), generator=torch.Generator().manual_seed(1))
    attended = (torch.arange(24) < 20).expand(3, -1)
    torch.testing.assert_close(ours(tokens), theirs(input_ids=tokens).logits, atol=1e-4, rtol=0)
    alone = tokens[:, :20]
    expected = (
        theirs(input_ids=alone).logits
        if ours.architecture.trigram_embedding
        else (theirs(input_ids=tokens, attention_mask=attended.long()).logits[:, :20])
    )  # MobileBERT reads padding beside the last token
    torch.testing.assert_close(ours(tokens, None, None, attended)[:, :20], expected, atol=1e-4, rtol=0)
    if ours.architecture.segments and hasattr(theirs.config, "type_vocab_size"):
        segments = (torch.arange(24) > 10).long().expand(3, -1)
        expected = theirs(input_ids=tokens, token_type_ids=segments).logits
        torch.testing.assert_close(ours(tokens, None, segments), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", BERTS)
@pytest.mark.parametrize(("depth", "width", "heads", "ffn"), SHAPES)
@pytest.mark.parametrize("more", [{}, {"tied_decoder": False}, {"segments": 0}, {"segments": 0, "tied_decoder": False}])
def test_logits_equal_those_of_transformers(
    depth: int, width: int, heads: int, ffn: int, name: str, more: dict[str, Any]
) -> None:
    sizes = {"depth": depth, "width": width, "heads": heads, "ffn": ffn}
    ours = randomised(MaskedLanguageModel(small(**sizes, **BERTS[name], **more), dropout=0.1)).eval()
    assert_transformers_agrees(ours, name)


def test_rotary_positions_tell_distances_alone() -> None:
    """Words that lie three places further on attend to each other as before, and words in another order do not."""
    torch.manual_seed(0)
    attention, rotary = randomised(Attention(small(), 0.0)).double().eval(), rotary_table(24, 8)
    x = torch.randn(2, 20, 32, dtype=torch.float64)
    alone = attention(x[:, :10], None, rotary[:, :10])
    mask = (torch.arange(13) >= 3).expand(2, 13)[:, None, None, :]
    later = attention(torch.cat((x[:, 10:13], x[:, :10]), 1), mask, rotary[:, :13])[:, 3:]
    torch.testing.assert_close(later, alone, atol=1e-6, rtol=0)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
    assert not torch.allclose(attention(x[:, :10][:, order], None, rotary[:, :10]), alone[:, order], atol=1e-3)
    torch.testing.assert_close(attention(x[:, :10][:, order], None), attention(x[:, :10], None)[:, order])


@pytest.mark.parametrize("by_heads", [False, True])
def test_rotation_multiplies_pairs_as_complex_numbers_and_its_gradient_turns_back(by_heads: bool) -> None:
    torch.manual_seed(0)
    x, gradient = torch.randn(2, 3, 20, 4, 8)
    inputs, angles = x.clone().requires_grad_(), torch.complex(*rotary_table(20, 8)[:, :, None])
    turned = rotated(inputs, rotary_table(20, 8), by_heads)
    assert (turned.transpose(1, 2) if by_heads else turned).is_contiguous()
    torch.autograd.backward(turned, gradient)
    assert inputs.grad is not None
    torch.testing.assert_close(torch.complex(*turned.chunk(2, -1)), torch.complex(*x.chunk(2, -1)) * angles)
    torch.testing.assert_close(torch.complex(*inputs.grad.chunk(2, -1)), torch.complex(*gradient.chunk(2, -1)) * angles.conj())


def test_rotation_keeps_its_angles_alone_in_the_precision_of_what_it_rotates() -> None:
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        rotated(torch.randn(2, 20, 4, 8, dtype=torch.bfloat16, requires_grad=True), rotary_table(20, 8))
    assert [(tensor.dtype, tensor.numel()) for tensor in kept] == [(torch.bfloat16, 2 * 20 * 4)]


def test_rotated_queries_and_keys_have_the_products_of_those_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which have pairs side by side, as compiled code on any device."""
    torch.manual_seed(0)
    pair = torch.randn(2, 3, 20, 4, 8)

    def products(by_heads: bool) -> torch.Tensor:
        query, key = (rotated(x, rotary_table(20, 8), by_heads) for x in pair)
        return torch.einsum("bqad,bkad->baqk", query, key)

    plain, by_heads = products(by_heads=False), products(by_heads=True)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(plain, products(by_heads=False))
    torch.testing.assert_close(by_heads, products(by_heads=False))


def test_relations_over_parts_of_rotated_heads_are_those_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    attention, rotary, x = Attention(small(), 0.0).eval(), rotary_table(10, 8), torch.randn(2, 10, 32)

    def relations_of_queries() -> torch.Tensor:
        kept: list[AttentionInputs] = []
        attention(x, None, rotary, kept=kept)
        return relations(kept[0].query, kept[0].query, 2 * attention.heads)

    plain = relations_of_queries()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(plain, relations_of_queries())


def test_a_pre_norm_block_is_torchs_and_the_last_norm_follows_the_last_block() -> None:
    torch.manual_seed(0)
    encoder = randomised(MaskedLanguageModel(small(norm="pre", depth=1))).encoder.eval()
    block, x = encoder.blocks[0], torch.randn(3, 7, 32)
    layer = torch.nn.TransformerEncoderLayer(
        32, 4, 48, 0.0, "gelu", batch_first=True, norm_first=True, layer_norm_eps=block.attention_norm.eps
    )
    parts = {"self_attn.in_proj_": block.attention.query_key_value, "self_attn.out_proj.": block.attention.output,
             "linear1.": block.feed_forward.inner, "linear2.": block.feed_forward.outer,
             "norm1.": block.attention_norm, "norm2.": block.feed_forward_norm}  # fmt: skip
    layer.load_state_dict({f"{name}{kind}": getattr(part, kind) for name, part in parts.items() for kind in ("weight", "bias")})
    torch.testing.assert_close(block(x, None), layer(x), atol=1e-5, rtol=0)
    tokens = torch.randint(0, 97, (3, 7))
    last = encoder.final_norm(block(encoder.embeddings(tokens), None))
    torch.testing.assert_close(encoder(tokens), last)
    torch.testing.assert_close(encoder.layers(tokens)[-1], last)


def test_a_decoder_of_its_own_takes_the_place_of_the_token_table() -> None:
    model = randomised(MaskedLanguageModel(small(tied_decoder=False))).eval()
    torch.nn.init.zeros_(model.head.decoder.weight)
    logits = model(torch.randint(0, 97, (2, 5)))
    assert torch.equal(logits, model.head.bias.expand_as(logits))


def test_weights_begin_as_berts_do() -> None:
    for name, parameter in MaskedLanguageModel(small(width=64, ffn=256, tied_decoder=False)).named_parameters():
        if parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.25), name
        else:
            assert set(parameter.tolist()) == {float("norm.weight" in name)}, name


def test_dropout_is_on_embeddings_attention_and_both_sublayers() -> None:
    torch.manual_seed(0)
    encoder = randomised(MaskedLanguageModel(small(), dropout=0.5)).encoder
    embedded = encoder.embeddings(torch.randint(0, 97, (8, 24)))
    assert (embedded == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    attention = encoder.blocks[0].attention
    assert not torch.equal(attention(embedded, None), attention(embedded, None))
    block, passed = encoder.blocks[0], list[torch.Tensor]()
    block.dropout.register_forward_hook(lambda _module, _inputs, output: passed.append(output))
    block(embedded, None)
    shares = [(output == 0).float().mean().item() for output in passed]
    assert shares == pytest.approx([0.5, 0.5], abs=0.05)


def test_positions_give_the_same_logits_as_all_positions() -> None:
    model = MaskedLanguageModel(small()).eval()
    tokens = torch.randint(0, 97, (2, 24))
    positions = torch.tensor([[0, 5, 23], [1, 2, 3]])
    everywhere = model(tokens)
    chosen = torch.stack([everywhere[row, positions[row]] for row in range(2)])
    torch.testing.assert_close(model(tokens, positions), chosen)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_every_output_depends_on_every_input(norm: str) -> None:
    model = randomised(MaskedLanguageModel(small(norm=norm))).double().eval()
    tokens = torch.randint(0, 97, (1, 12))
    seen: list[torch.Tensor] = []
    model.encoder.embeddings.token.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    hidden = model.encoder(tokens)
    for position in range(12):
        (gradient,) = torch.autograd.grad(hidden[0, position].sum(), seen[0], retain_graph=True)
        assert (gradient[0].abs().sum(-1) > 0).all(), f"output {position} ignores an input"


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_padding_is_inert(norm: str) -> None:
    model = MaskedLanguageModel(small(norm=norm)).eval()
    tokens = torch.randint(0, 97, (2, 10))
    padded = torch.cat([tokens, torch.randint(0, 97, (2, 6))], dim=1)
    attended = (torch.arange(16) < 10).expand(2, -1)
    torch.testing.assert_close(model(padded, None, None, attended)[:, :10], model(tokens), atol=1e-5, rtol=0)


def test_order_of_tokens_matters() -> None:
    model = MaskedLanguageModel(small()).eval()
    tokens = torch.arange(10)[None]
    assert not torch.allclose(model.encoder(tokens)[0, 0], model.encoder(tokens.roll(1, 1))[0, 1], atol=1e-4)


@pytest.mark.parametrize(
    "changes", [{}, {"norm": "pre"}, {"tied_decoder": False}, {"segments": 0}, {"depth": 5, "ffn": 1, "heads": 1}]
)
def test_closed_form_counts_the_live_module(changes: dict[str, Any]) -> None:
    architecture = small(**changes)
    model = MaskedLanguageModel(architecture)
    assert parameters(architecture).parameters == sum(parameter.numel() for parameter in model.parameters())
    head = sum(parameter.numel() for parameter in model.head.parameters())
    assert parameters(architecture).parameters_encoder == parameters(architecture).parameters - head


def test_a_seed_fixes_the_weights_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    first, again, other = (MaskedLanguageModel(small(), seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["encoder.embeddings.token.weight"], other["encoder.embeddings.token.weight"])
