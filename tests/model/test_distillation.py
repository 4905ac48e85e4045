"""Losses between layers are the formulas of their papers, vanish for a copy, and draw a student to its teacher."""

from __future__ import annotations

import copy
import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from study.counting.architecture import Architecture
from study.counting.layer_losses import LayerLosses, layers_as_text
from study.data.masking import MaskedBatch
from study.model.distillation import (
    LayerMatching,
    attention_loss,
    attention_scores,
    hidden_cosine_loss,
    hidden_mse_loss,
    relation_loss,
    relations,
)
from study.model.encoder import Block
from study.model.masked_language_model import MaskedLanguageModel, TeacherModel
from tests.transformers_models import DEBERTA, MODERN

SIZES: dict[str, Any] = {"depth": 3, "width": 16, "heads": 2, "ffn": 32, "vocabulary": 50, "positions": 8}
KINDS: dict[str, dict[str, Any]] = {
    "BERT": {},
    "modern": MODERN,
    "DeBERTa": DEBERTA,
    "bias by distance": {"distance_bias": "learned", "position_encoding": "rotary", "norm": "pre"},
    "shared layers": {"layer_groups": 1, "embedding_width": 8},
}
EVERY = {
    "cosine": LayerLosses(hidden_cosine=1.0, layers="uniform"),
    "MSE": LayerLosses(hidden_mse=1.0, layers="uniform"),
    "attention": LayerLosses(attention=1.0, layers="uniform"),
    "MiniLM": LayerLosses(relations=1.0),
    "MiniLMv2": LayerLosses(relations=1.0, relation_heads=4, layers="2-2"),
}


def model(seed: int = 0, **changes: Any) -> MaskedLanguageModel:
    return MaskedLanguageModel(Architecture.parse(SIZES | changes), seed=seed)


def drawn(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def batch() -> MaskedBatch:
    tokens = torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(3))
    return MaskedBatch(tokens, torch.tensor([[1, 5], [2, 3]]), torch.tensor([[7, 8], [9, 9]]))


def matched(losses: LayerLosses, student: MaskedLanguageModel, teacher: MaskedLanguageModel, padded: bool = False) -> Tensor:
    matching = LayerMatching(losses, student.architecture, teacher.architecture)
    return loss_by(matching, student, teacher, padded)


def loss_by(
    matching: LayerMatching, student: MaskedLanguageModel, teacher: MaskedLanguageModel, padded: bool = False
) -> Tensor:
    attended = torch.arange(8).expand(2, 8) < torch.tensor([[8], [5]]) if padded else None
    taught = TeacherModel(teacher, 0.0, 1.0, matching.losses).observe(batch(), matching.of_teacher, None, attended)[1]
    inputs = (batch().tokens, None, attended, matching.of_student, matching.losses.of_attention)
    loss: Tensor = matching(student.encoder.observe(*inputs)[1], taught, attended)
    return loss


def test_worked_numbers() -> None:
    """By hand: cos((3, 4), (4, 3)) = 24/25; and KL((¾, ¼) ‖ (½, ½)) = ¾·ln 1.5 + ¼·ln 0.5."""
    assert hidden_cosine_loss(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[4.0, 3.0]]]), None).item() == pytest.approx(0.04)
    assert hidden_mse_loss(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 2.0]]]), None).item() == pytest.approx(2.0)
    scores = torch.tensor([[[[1.0, 2.0], [0.0, 1.0]]]])
    assert attention_loss(scores, scores + 0.5, None).item() == pytest.approx(0.25)
    even, skewed = torch.zeros(1, 1, 2, 2), torch.tensor([[[[math.log(3), 0.0]] * 2]])
    assert relation_loss(even, skewed, None).item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    one, other = torch.tensor([[[[1.0, 1.0, 0.0, 2.0]]]]), torch.tensor([[[[2.0, 0.0, 1.0, 1.0]]]])
    assert relations(one, other).item() == pytest.approx((2 + 2) / 2), "a head of four numbers: 4 ÷ √4"
    halves = relations(one, other, heads=2).flatten().tolist()
    assert halves == pytest.approx([2 / math.sqrt(2), 2 / math.sqrt(2)]), "MiniLMv2's heads of two"


@pytest.mark.parametrize("padded", [False, True])
def test_losses_are_means_over_attended_tokens(padded: bool) -> None:
    """Token by token, head by head, in float64; padding counts neither as a query nor as a key."""
    lengths = (8, 5) if padded else (8, 8)
    attended = torch.arange(8).expand(2, 8) < torch.tensor(lengths)[:, None] if padded else None
    one, other = drawn(2, 8, 16), drawn(2, 8, 16, seed=1)
    tokens = [(row, place) for row, length in enumerate(lengths) for place in range(length)]
    cosines = [1 - torch.nn.functional.cosine_similarity(one[t].double(), other[t].double(), 0) for t in tokens]
    assert hidden_cosine_loss(one, other, attended).item() == pytest.approx(torch.stack(cosines).mean().item(), rel=1e-5)
    squares = [(one[t] - other[t]).double().square().mean() for t in tokens]
    assert hidden_mse_loss(one, other, attended).item() == pytest.approx(torch.stack(squares).mean().item(), rel=1e-5)
    scores, taught = drawn(2, 3, 8, 8), drawn(2, 3, 8, 8, seed=1)
    of_pairs, divergences = [], []
    for row, place in tokens:
        seen = slice(lengths[row])
        learned, target = (each[row, :, place, seen].double() for each in (scores, taught))
        of_pairs.append((learned - target).square().flatten())
        share = torch.softmax(target, -1)
        divergences.append((share * (share / torch.softmax(learned, -1)).log()).sum(-1).mean())
    assert attention_loss(scores, taught, attended).item() == pytest.approx(torch.cat(of_pairs).mean().item(), rel=1e-5)
    assert relation_loss(scores, taught, attended).item() == pytest.approx(torch.stack(divergences).mean().item(), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_observed_attention_is_what_a_layer_weighs(kind: str) -> None:
    """Softmax of the observed scores, times the values, through the output product, is the output of attention."""
    encoder = model(**KINDS[kind]).eval().encoder
    outputs: list[Tensor] = []
    block = encoder.blocks[encoder.block_of_layer[1]]
    assert isinstance(block, Block)
    block.attention.register_forward_hook(lambda *called: outputs.append(called[2]))
    tokens = batch().tokens
    last, states = encoder.observe(tokens, layers=range(4), attentions=True)
    torch.testing.assert_close(last, encoder(tokens))
    assert states[0].attention is None
    assert all(torch.equal(states[layer].hidden, hidden) for layer, hidden in enumerate(encoder.layers(tokens)))
    kept = states[2].attention
    assert kept is not None
    mixed = torch.softmax(attention_scores(kept), -1) @ kept.value
    expected = block.attention.output(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(outputs[1 if kind == "shared layers" else 0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "padded", "kind"),
    [
        pytest.param(name, padded, kind, marks=() if padded and (kind == "BERT" or name == "MSE") else pytest.mark.slow)
        for name, padded, kind in product(EVERY, (False, True), KINDS)
    ],
)
def test_a_copy_of_the_teacher_has_nothing_to_learn(name: str, padded: bool, kind: str) -> None:
    teacher = model(seed=1, **KINDS[kind])
    student = copy.deepcopy(teacher).train()
    assert matched(EVERY[name], student, teacher, padded).item() == pytest.approx(0, abs=1e-6)
    assert matched(EVERY[name], model(seed=2, **KINDS[kind]), teacher, padded).item() > 1e-6


@pytest.mark.parametrize("name", EVERY)
def test_gradients_reach_the_layers_up_to_the_matched_one_and_no_teacher(name: str) -> None:
    student, teacher = model(seed=2, depth=2), model(seed=1)
    losses = EVERY[name]
    matched(losses, student, teacher).backward()  # type: ignore[no-untyped-call]
    reached = {int(key.split(".")[2]) for key, each in student.named_parameters() if "blocks" in key and each.grad is not None}
    assert reached == {0, 1}
    assert all(parameter.grad is None for parameter in teacher.parameters())
    block = student.encoder.blocks[1]
    assert isinstance(block, Block)
    gradient = block.attention.query_key_value.weight.grad
    assert gradient is not None
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.slow) for name in EVERY), "projected"])
def test_a_student_gets_closer(name: str) -> None:
    """Also one of another width, whose states pass through a learned matrix, which learns too."""
    losses = EVERY.get(name, LayerLosses(hidden_mse=1.0, layers="uniform"))
    teacher, student = model(seed=1), model(seed=2, depth=2, **({"width": 8} if name == "projected" else {}))
    matching = LayerMatching(losses, student.architecture, teacher.architecture)
    assert (matching.projection is not None) == (name == "projected")
    before = copy.deepcopy(matching.state_dict())
    optimizer = torch.optim.AdamW([*student.parameters(), *matching.parameters()], lr=1e-2)
    actual = []
    for _ in range(12):
        loss = loss_by(matching, student, teacher)
        actual.append(loss.item())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert actual[-1] < 0.7 * actual[0]
    assert all(not torch.equal(tensor, before[key]) for key, tensor in matching.state_dict().items())


def test_layers_are_matched_as_the_literature_matches_them() -> None:
    uniform, scores = LayerLosses(hidden_mse=1.0, layers="uniform"), LayerLosses(attention=1.0, layers="uniform")
    assert uniform.pairs(4, 12) == ((0, 0), (1, 3), (2, 6), (3, 9), (4, 12)), "TinyBERT's g(m) = 3m"
    assert scores.pairs(4, 12) == uniform.pairs(4, 12)[1:], "embeddings have no attention"
    assert uniform.pairs(2, 5) == ((0, 0), (1, 3), (2, 5))
    assert LayerLosses(hidden_cosine=1.0).pairs(6, 12) == ((6, 12),), "DistilBERT's"
    assert LayerLosses(relations=1.0, layers="6-21").pairs(6, 24) == ((6, 21),), "MiniLMv2's of BERT-Large"
    assert layers_as_text({1: 2, 3: 6}) == "1-2,3-6"


@pytest.mark.parametrize(
    ("losses", "student", "teacher", "problem"),
    [
        ({"hidden_cosine": 1.0}, {"width": 8}, {}, "has width 16, not 8; hidden_cosine needs equal widths"),
        ({"attention": 1.0}, {"heads": 4}, {}, "has 2 heads, not 4; attention and relations compare head with head"),
        ({"relations": 1.0}, {"heads": 4}, {}, "has 2 heads, not 4"),
        ({"relations": 1.0, "relation_heads": 3}, {}, {}, "need widths that relation_heads 3 divide, but one is 16"),
        ({"relations": 1.0, "layers": "3-4"}, {}, {}, "has 3 layers and its student 3; layers 3-4 go beyond"),
        ({"attention": 1.0, "layers": "0-0"}, {}, {}, "has no attention in its embeddings"),
        ({"attention": 1.0}, {"attention_window": 4}, {}, "compare pairs that a window hides"),
        (
            {"hidden_mse": 1.0},
            {"enhanced_mask_decoder": True, "position_encoding": "rotary"},
            {},
            "compares layers with its student's, the last of which enhanced_mask_decoder runs otherwise",
        ),
    ],
)
def test_what_does_not_compose_is_said_in_a_sentence(losses: Any, student: Any, teacher: Any, problem: str) -> None:
    one, other = (Architecture.parse(SIZES | sizes) for sizes in (student, teacher))
    assert problem in str(LayerLosses(**losses).problem(one, other))
    assert LayerLosses(hidden_mse=1.0, relations=1.0, relation_heads=4).problem(one, other) in (None, problem) or student


@pytest.mark.parametrize(
    "losses",
    [
        LayerLosses(hidden_mse=1.0, layers="uniform"),
        LayerLosses(hidden_cosine=1.0, hidden_mse=1.0, attention=1.0, relations=1.0, layers="uniform"),
        LayerLosses(relations=1.0, relation_heads=4, layers="1-1,2-3"),
    ],
)
@pytest.mark.parametrize("width", [16, 32])
def test_the_products_that_the_losses_add_are_those_counted(losses: LayerLosses, width: int) -> None:
    """Of a batch of two sequences of eight tokens, forward and backward, beside what the encoders compute anyhow."""
    student, teacher = model(seed=2, depth=2, width=width), model(seed=1)
    if losses.hidden_cosine and width != 16:
        losses = LayerLosses(hidden_mse=1.0, attention=1.0, layers="uniform")
    matching = LayerMatching(losses, student.architecture, teacher.architecture)
    taught = TeacherModel(teacher, 0.0, 1.0, losses).observe(batch(), matching.of_teacher)[1]
    states = student.encoder.observe(batch().tokens, None, None, matching.of_student, losses.of_attention)[1]
    # cut the graph at the states, so that only the losses' own products run
    cut = {
        layer: state._replace(
            hidden=state.hidden.detach().requires_grad_(),
            attention=state.attention
            and state.attention._replace(
                **{name: getattr(state.attention, name).detach().requires_grad_() for name in ("query", "key", "value")}
            ),
        )
        for layer, state in states.items()
    }
    with FlopCounterMode(display=False) as counter:
        matching(cut, taught).backward()
    counted = losses.flops_per_token(student.architecture, teacher.architecture, 8)
    assert counter.get_total_flops() == counted * 16
