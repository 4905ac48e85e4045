"""The heads are the field's: parity with transformers; and what is left out changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from study.model.encoder import Encoder
from study.model.heads import HeadKind, TaskModel
from study.model.in_transformers import their_weights
from study.model.masked_language_model import MaskedLanguageModel
from tests.model.test_model import randomised, small
from tests.transformers_models import their_settings

CLASSES: dict[HeadKind, tuple[str, dict[str, str]]] = {
    "sequence": ("BertForSequenceClassification", {"bert.pooler.dense": "pooler", "classifier": "output"}),
    "tokens": ("BertForTokenClassification", {"classifier": "output"}),
    "spans": ("BertForQuestionAnswering", {"qa_outputs": "output"}),
}


def theirs(head: HeadKind, outputs: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model of transformers, and its encoder's weights under our names."""
    ours = randomised(MaskedLanguageModel(small()))
    model = randomised(getattr(transformers, CLASSES[head][0])(their_settings(small(), num_labels=outputs))).eval()
    model.load_state_dict(their_weights(ours.state_dict(), small()), strict=False)
    return model, ours.state_dict()


def batch() -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.randint(0, 97, (3, 24), generator=torch.Generator().manual_seed(1))
    segments = (torch.arange(24) > 10).long().expand(3, -1)
    attended = torch.arange(24)[None] < torch.tensor([24, 20, 9])[:, None]
    return tokens, segments, attended


@pytest.mark.parametrize(("head", "outputs"), [("sequence", 3), ("sequence", 1), ("tokens", 5), ("spans", 2)])
def test_logits_equal_those_of_transformers(head: HeadKind, outputs: int) -> None:
    reference, state = theirs(head, outputs)
    ours = TaskModel(small(), 97, head, outputs, dropout=0.1).eval()
    ours.load_encoder(state, torch.arange(97))
    names = CLASSES[head][1]
    weights = {
        f"{own}.{kind}": reference.state_dict()[f"{name}.{kind}"] for name, own in names.items() for kind in ("weight", "bias")
    }
    ours.head.load_state_dict(weights)
    tokens, segments, attended = batch()
    expected = reference(input_ids=tokens, token_type_ids=segments, attention_mask=attended.long())
    if head == "sequence":
        torch.testing.assert_close(ours(tokens, segments, attended), expected.logits, atol=1e-5, rtol=0)
        return
    logits = expected.logits if head == "tokens" else torch.stack([expected.start_logits, expected.end_logits], -1)
    torch.testing.assert_close(ours(tokens, segments, attended)[attended], logits[attended], atol=1e-5, rtol=0)


def test_a_head_on_the_first_token_begins_with_the_pooler_of_pairs() -> None:
    """As in transformers, where a classifier opens what pre-training saved."""
    trained = randomised(MaskedLanguageModel(small(pair_head=True)))
    reference = transformers.BertForSequenceClassification(their_settings(small(), num_labels=3)).eval()
    ours = TaskModel(small(), 97, "sequence", 3).eval()
    reference.load_state_dict(their_weights(trained.state_dict(), small(pair_head=True)), strict=False)
    ours.load_encoder(trained.state_dict(), torch.arange(97))
    ours.head.output.load_state_dict(reference.classifier.state_dict())
    tokens, segments, attended = batch()
    expected = reference(input_ids=tokens, token_type_ids=segments, attention_mask=attended.long()).logits
    torch.testing.assert_close(ours(tokens, segments, attended), expected, atol=1e-5, rtol=0)
    TaskModel(small(), 97, "tokens", 3).load_encoder(trained.state_dict(), torch.arange(97))


@pytest.mark.parametrize("encoding", ["learned", "rotary"])
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("depth", [1, 3])
def test_the_last_block_gives_the_same_at_some_positions(norm: str, depth: int, encoding: str) -> None:
    encoder = randomised(Encoder(small(norm=norm, depth=depth, position_encoding=encoding))).eval()
    tokens, segments, attended = batch()
    positions = torch.tensor([[0, 5], [3, 3], [8, 1]])
    everywhere = encoder(tokens, segments, attended)
    expected = torch.stack([everywhere[row, positions[row]] for row in range(3)])
    torch.testing.assert_close(encoder(tokens, segments, attended, positions), expected)
    layers = encoder.layers(tokens, segments, attended)
    assert len(layers) == depth + 1
    torch.testing.assert_close(layers[-1], everywhere)


def test_a_token_table_of_the_pieces_in_use_gives_the_same_logits_and_gradients() -> None:
    _, state = theirs("sequence", 3)
    tokens, segments, attended = batch()
    pieces, compact = torch.unique(tokens, return_inverse=True)
    assert len(pieces) < 97
    actual: dict[str, Any] = {}
    for name, kept, inputs in (("whole", torch.arange(97), tokens), ("used", pieces, compact)):
        model = TaskModel(small(), len(kept), "sequence", 3).eval()
        model.load_encoder(state, kept)
        logits = model(inputs, segments, attended)
        logits.logsumexp(1).sum().backward()
        gradient = model.encoder.embeddings.token.weight.grad
        assert gradient is not None
        actual[name] = (
            logits,
            gradient,
            dict(model.named_parameters())["encoder.blocks.0.attention.query_key_value.weight"].grad,
        )
    for whole, used in zip(actual["whole"], actual["used"], strict=True):
        torch.testing.assert_close(whole[pieces] if whole.shape[0] == 97 else whole, used)
    unused = torch.ones(97, dtype=torch.bool).index_fill(0, pieces, False)
    assert not actual["whole"][1][unused].any()


def test_seeds_change_the_head_and_the_random_encoder() -> None:
    first, same, other = (TaskModel(small(), 97, "tokens", 4, seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["head.output.weight"], other["head.output.weight"])
    assert not torch.equal(first["encoder.embeddings.token.weight"], other["encoder.embeddings.token.weight"])
