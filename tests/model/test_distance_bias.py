"""Biases by distance and normed queries and keys are what their papers say, at any queries and however they are computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from study.base.errors import InputError
from study.config.recipe import Recipe
from study.counting.parameters import formulas, parameters
from study.model.encoder import Attention, attended
from study.model.layers import padding_mask
from study.model.masked_language_model import MaskedLanguageModel
from study.model.optimization import adamw
from study.model.relative_attention import DistanceBias, linear_bias, local_bias
from tests.model.test_model import randomised, small

LEARNED: dict[str, Any] = {"distance_bias": "learned", "position_encoding": "none"}
NUMBERS = "encoder.blocks.0.attention.distance_bias.numbers"


def learned(**changes: Any) -> DistanceBias:
    return randomised(DistanceBias(small(**LEARNED, **changes)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("reach", [None, 1, 5])
def test_a_score_gets_the_number_of_its_head_and_distance(reach: int | None) -> None:
    bias = learned(distance_bias_reach=reach)
    most = 23 if reach is None else reach
    numbers = bias.numbers.view(4, 2 * most + 1)
    everywhere, queries = bias(12), torch.tensor([[0, 11, 3], [5, 5, 7]])
    chosen = bias(12, queries)
    assert (everywhere.shape, chosen.shape) == ((1, 4, 12, 12), (2, 4, 3, 12))
    for head, query, key in ((head, query, key) for head in range(4) for query in range(12) for key in range(12)):
        distance = max(-most, min(most, key - query))
        assert everywhere[0, head, query, key] == numbers[head, distance + most]
    for sequence, row in enumerate(queries.tolist()):
        assert torch.equal(chosen[sequence], everywhere[0, :, row])


def test_without_buckets_a_learned_bias_is_t5s() -> None:
    """T5's buckets hold one distance each up to a quarter of their number, to either side."""
    theirs = T5Attention(T5Config(num_heads=4, relative_attention_num_buckets=64), has_relative_attention_bias=True)
    bias = learned(positions=16)
    distances = torch.arange(-15, 16)
    with torch.no_grad():
        theirs.relative_attention_bias.weight[distances.abs() + 32 * (distances > 0)] = bias.numbers.view(4, 31).t()
    torch.testing.assert_close(bias(16), theirs.compute_bias(16, 16))


@pytest.mark.parametrize("heads", [1, 2, 8, 12, 16])
def test_the_slopes_of_alibi_are_blooms(heads: int) -> None:
    theirs = build_alibi_tensor(torch.ones(1, 5), heads, torch.float32).view(heads, 5)
    torch.testing.assert_close(linear_bias(heads, torch.arange(5)), -theirs)
    torch.testing.assert_close(linear_bias(heads, -torch.arange(5)), -theirs)


def test_eight_slopes_are_the_papers() -> None:
    assert linear_bias(8, torch.tensor([1])).flatten().tolist() == [-(0.5**power) for power in range(1, 9)]


def test_every_head_begins_at_a_neighbour_of_its_own() -> None:
    begun = torch.softmax(local_bias(6, torch.arange(-63, 64)), -1)
    assert (begun.argmax(-1) - 63).tolist() == [-1, 1, -2, 2, -3, 3]
    torch.testing.assert_close(begun.max(-1).values, torch.full((6,), 0.711), atol=0.005, rtol=0)


def exact(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5 + bias
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, -1) @ value


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.06)])
@pytest.mark.parametrize("queries", [None, torch.tensor([[0, 17], [3, 3], [23, 5]])])
def test_attention_with_a_bias_has_the_values_and_gradients_of_its_equation(
    padded: bool, dtype: torch.dtype, tolerance: float, queries: Tensor | None
) -> None:
    """In training, where the bias learns, and without gradients, where torch's fused kernel may add it."""
    torch.manual_seed(0)
    bias, rows = learned(), 24 if queries is None else 2
    inputs = [torch.randn(3, 4, length, 8, dtype=torch.float64) for length in (rows, 24, 24)]
    mask = padding_mask(torch.arange(24).expand(3, 24) < 17) if padded else None
    reference = [tensor.clone().requires_grad_() for tensor in inputs]
    expected = exact(reference[0], reference[1], reference[2], bias(24, queries), mask)
    towards = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, [*reference, bias.numbers], towards)
    given = query, key, value = tuple(tensor.to(dtype).requires_grad_() for tensor in inputs)
    mixed = attended(query, key, value, mask, 0.0, bias(24, queries))
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed.double(), expected, atol=tolerance, rtol=0)
    for one, other in zip(torch.autograd.grad(mixed, [*given, bias.numbers], towards.to(dtype)), wanted, strict=True):
        torch.testing.assert_close(one.double(), other.double(), atol=5 * tolerance, rtol=0.05)
    with torch.no_grad():
        fused = attended(query, key, value, mask, 0.0, bias(24, queries))
    torch.testing.assert_close(fused.double(), expected, atol=tolerance, rtol=0)


def test_attention_with_a_bias_and_dropout_keeps_the_mean_of_the_values() -> None:
    query, key, value = torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 4096, 8), torch.ones(1, 1, 4096, 8)
    torch.manual_seed(0)
    bias = torch.randn(1, 1, 1, 4096, requires_grad=True)
    assert attended(query, key, value, None, 0.25, bias).mean().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("kind", [LEARNED, {"distance_bias": "alibi", "position_encoding": "none"}])
def test_biases_tell_distances_alone(kind: dict[str, Any]) -> None:
    """Words that lie three places further on attend to each other as before, and words in another order do not."""
    torch.manual_seed(0)
    attention = randomised(Attention(small(**kind), 0.0)).double().eval()
    x = torch.randn(2, 20, 32, dtype=torch.float64)
    alone = attention(x[:, :10], None)
    mask = (torch.arange(13) >= 3).expand(2, 13)[:, None, None, :]
    torch.testing.assert_close(attention(torch.cat((x[:, 10:13], x[:, :10]), 1), mask)[:, 3:], alone, atol=1e-6, rtol=0)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
    assert not torch.allclose(attention(x[:, :10][:, order], None), alone[:, order], atol=1e-3)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_an_encoder_without_positions_is_a_bag_of_words(norm: str) -> None:
    bag = randomised(MaskedLanguageModel(small(norm=norm, position_encoding="none"))).double().eval()
    tokens = torch.randint(0, 97, (3, 24), generator=torch.Generator().manual_seed(0))
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(bag(tokens[:, order]), bag(tokens)[:, order])


def test_a_bias_is_counted_by_head_layer_and_distance() -> None:
    """508 numbers in a layer of four heads at 64 positions; the formula is as exact as the live module."""
    one = small(depth=1, positions=64, **LEARNED)
    assert {each.name: each.count for each in parameters(one).components}["distance bias"] == 508
    assert formulas(one)["distance bias"] == "L·A·(2·P − 1)"
    assert parameters(one).parameters_non_embedding == parameters(small(depth=1, positions=64)).parameters_non_embedding
    near = small(depth=3, layer_groups=2, query_key_norm=True, distance_bias_reach=8, **LEARNED)
    assert formulas(near)["distance bias"] == "G·A·(2·M + 1)"
    assert formulas(near)["query and key norms"] == "G·4·D"
    counted = {each.name: each.count for each in parameters(near).components}
    assert (counted["distance bias"], counted["query and key norms"]) == (2 * 4 * 17, 2 * 4 * 8)
    assert parameters(small(distance_bias="alibi")) == parameters(small())


def test_a_bias_does_not_decay() -> None:
    model = MaskedLanguageModel(small(**LEARNED))
    plain = adamw(model, Recipe.parse({"budget": {"steps": 1}})).param_groups[1]
    assert plain["weight_decay"] == 0
    assert any(parameter is model.get_parameter(NUMBERS) for parameter in plain["params"])


def test_a_reach_goes_with_a_learned_bias_and_is_below_all_distances() -> None:
    assert small(distance_bias_reach=23, **LEARNED) == small(distance_bias_reach="none", **LEARNED) == small(**LEARNED)
    for bias in ("none", "alibi"):
        with pytest.raises(InputError, match=f"8 does not go with distance_bias {bias}; set distance_bias: learned"):
            small(distance_bias=bias, distance_bias_reach=8)


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("encoding", ["learned", "rotary"])
def test_normed_queries_and_keys_forget_how_long_they_were(kind: str, encoding: str) -> None:
    model = randomised(MaskedLanguageModel(small(norm_kind=kind, position_encoding=encoding, query_key_norm=True))).eval()
    tokens = torch.randint(0, 97, (3, 24), generator=torch.Generator().manual_seed(0))
    before = model(tokens)
    for block in model.encoder.blocks:
        joint = block.attention.query_key_value
        with torch.no_grad():
            for each in (joint.weight, joint.bias):
                each[:64] *= 10
    torch.testing.assert_close(model(tokens), before, atol=1e-4, rtol=0)


def test_normed_queries_and_keys_are_those_of_dehghanis_equation() -> None:
    """softmax(LN(X·W_Q)·LN(X·W_K)ᵀ ÷ √D), section 2 of arXiv:2302.05442."""
    torch.manual_seed(0)
    attention, x = randomised(Attention(small(query_key_norm=True), 0.0)).eval(), torch.randn(2, 12, 32)
    query, key, value = attention.query_key_value(x).view(2, 12, 3, 4, 8).permute(2, 0, 3, 1, 4)
    query, key = (
        F.layer_norm(each, (8,), norm.weight, norm.bias, norm.eps)
        for each, norm in ((query, attention.query_norm), (key, attention.key_norm))
    )
    mixed = torch.softmax(query @ key.transpose(-1, -2) / 8**0.5, -1) @ value
    torch.testing.assert_close(attention(x, None), attention.output(mixed.transpose(1, 2).flatten(2)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_blocks_whose_residuals_begin_at_zero_hand_on_what_they_read(norm: str) -> None:
    """In post-norm what is normed is normed once more, which changes nothing. All that learns from them begins to learn."""
    model = MaskedLanguageModel(small(depth=3, norm=norm, segments=0), residual_initialisation="zero")
    tokens = torch.randint(0, 97, (3, 24), generator=torch.Generator().manual_seed(0))
    first, *others = model.encoder.layers(tokens)
    assert all(torch.allclose(each, first, atol=1e-4) for each in (others[:-1] if norm == "pre" else others))
    torch.autograd.backward(model.predicted_loss(model.encoder(tokens), tokens))
    weights = dict(model.encoder.blocks.named_parameters())
    last = {name: each for name, each in weights.items() if name.endswith(("attention.output.weight", "outer.weight"))}
    assert len(last) == 6
    for weight in last.values():
        assert not weight.any()
        assert weight.grad is not None
        assert weight.grad.any()
