"""CompleteP is what its paper writes out, though no factor stands in the forward pass, and steps move every size as far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from study.config.presets import PRESETS
from study.config.recipe import Recipe
from study.counting.architecture import Architecture
from study.model.encoder import Block
from study.model.masked_language_model import MaskedLanguageModel
from study.model.optimization import Muon, optimizer_of
from study.model.parametrization import CompleteP, Scale, fresh_model

WIDTH, DEPTH = 16, 2
"""The base of the encoders here."""

MODERN: dict[str, Any] = {
    "norm": "pre",
    "norm_kind": "rms",
    "norm_bias": False,
    "activation": "swiglu",
    "embedding_width": 24,
    "tied_decoder": False,
    "query_key_norm": True,
    "distance_bias": "learned",
    "position_encoding": "rotary",
}
KINDS = {
    "post": {},
    "pre": {"norm": "pre"},
    "modern": MODERN,
    "narrow FFN": {"ffn": 40},
    "no transform": {"norm": "pre", "mlm_transform": "none"},
}


def architecture(**changes: Any) -> Architecture:
    sizes = {"depth": 6, "width": 48, "heads": 4, "ffn": 240, "vocabulary": 64, "positions": 8}
    return Architecture.parse(sizes | changes)


def recipe(**changes: Any) -> Recipe:
    values = {"budget": {"steps": 10}, "learning_rate": 1e-2, "weight_decay": 0.5, "epsilon": 1e-3, "optimizer": "adamw"}
    return Recipe.parse(values | {"parametrization": "completep", "base_width": WIDTH, "base_depth": DEPTH} | changes)


def times(factor: float | Tensor) -> Callable[..., Tensor]:
    return lambda _, __, output: output * factor


def uses_fused_kernels(a: Architecture, asked: Recipe) -> tuple[MaskedLanguageModel, torch.optim.Optimizer]:
    """A model whose forward pass has the factors of the paper, and its optimiser by the rows of the paper's table.

    Muon itself multiplies a step by √max(1, outputs ÷ inputs), which for the base's outer product is twice what it should be.
    """
    model = MaskedLanguageModel(a).double()
    m, depth, table = a.width / WIDTH, a.depth / DEPTH, a.table_width / WIDTH
    inputs = {"query_key_value": m, "output": m, "inner": m, "outer": a.ffn / (4 * WIDTH), "transform": m, "projection": table}
    scores = (a.head_width / 64) ** -0.5
    for block in model.encoder.blocks:
        assert isinstance(block, Block)
        for branch in (block.attention.output, block.feed_forward.outer):
            branch.register_forward_hook(times(1 / depth))
        if block.attention.query_norm is not None:
            block.attention.query_norm.register_forward_hook(times(scores))
        else:
            of_query = torch.cat([torch.full((a.width,), scores), torch.ones(2 * a.width)]).double()
            block.attention.query_key_value.register_forward_hook(times(of_query))
    (model.head.norm or model.encoder.final_norm).register_forward_hook(times(1 / table))
    groups = []
    for name, parameter in model.named_parameters():
        *way, layer, kind = name.split(".")
        inside, rate, decay = "blocks" in way, 1.0, 1.0
        epsilon = 1 / (m * depth) if inside else 1 / m
        matrices = 0
        if kind == "weight" and layer in inputs:
            parameter.data.mul_(inputs[layer] ** -0.5)
            if inside and asked.optimizer == "muon":
                matrices = {"query_key_value": 3, "inner": 2 if a.gated else 1}.get(layer, 1)
                outputs = {"inner": a.ffn / a.width, "outer": a.width / a.ffn}.get(layer, 1.0)
                rate = asked.muon_rate_ratio * min(1.0, outputs) ** 0.5 * (2 if layer == "outer" else 1)
            else:
                rate, decay = 1 / inputs[layer], inputs[layer]
        elif layer in ("attention_norm", "feed_forward_norm") and a.norm == "post":
            rate, epsilon = 1 / depth, 1 / m
        elif name == "head.bias":
            epsilon = 1.0
        group = {"params": [parameter], "lr": asked.learning_rate * rate, "eps": asked.epsilon * epsilon}
        group["weight_decay"] = asked.weight_decay * decay if parameter.ndim == 2 else 0.0
        groups.append(group | ({"matrices": matrices} if asked.optimizer == "muon" else {}))
    betas = (asked.beta1, asked.beta2)
    if asked.optimizer == "muon":
        return model, Muon(groups, betas, bf16=False)
    return model, torch.optim.AdamW(groups, betas=betas)


def losses(model: MaskedLanguageModel, optimizer: torch.optim.Optimizer, steps: int = 6) -> list[float]:
    draw = torch.Generator().manual_seed(1)
    actual = []
    for _ in range(steps):
        tokens, labels = torch.randint(0, 64, (2, 4, 8), generator=draw)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        actual.append(loss.item())
    return actual


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("kind", KINDS)
def test_folded_factors_train_as_those_that_the_paper_writes_out(
    kind: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far from the base in width, depth, head and FFN, with an epsilon and a decay that matter.

    Muon amplifies the rounding of the first weights.
    """
    monkeypatch.setattr("study.model.optimization.multiplies_in_bf16", lambda _: False)
    a, asked = architecture(**KINDS[kind]), recipe(optimizer=optimizer)
    model = fresh_model(a, asked, 0).double()
    folded = losses(model, optimizer_of(model, asked))
    assert folded == pytest.approx(losses(*uses_fused_kernels(a, asked)), rel=1e-4 if optimizer == "muon" else 1e-5)
    assert abs(folded[-1] - folded[0]) > 1e-3


def test_a_base_encoder_is_as_every_encoder_under_the_standard() -> None:
    """Every scale is exactly one, so a recipe tuned at the base stays valid."""
    base = architecture(width=128, depth=2, heads=2, ffn=512)
    for changes in ({"norm": "post"}, {"norm": "pre"}, {"norm": "pre", "mlm_transform": "none"}):
        asked = base.model_copy(update=changes | {"pair_head": True})
        actual = [CompleteP(asked, base_width=128, base_depth=2, scaled_rates=scaled) for scaled in (True, False)]
        for name, _ in MaskedLanguageModel(asked).named_parameters():
            assert {each.scale(name, muon) for each in actual for muon in (True, False)} == {Scale()}, name


def test_scaled_rates_divide_rates_by_the_width_and_begin_as_ever() -> None:
    """Only what the depth changes begins otherwise than BERT's; tables, which are the decoder, are slowed like matrices."""
    wide = architecture(depth=6, width=64, heads=1, ffn=256)
    completep, actual = (CompleteP(wide, WIDTH, DEPTH, scaled_rates=scaled) for scaled in (False, True))
    for name, _ in MaskedLanguageModel(wide).named_parameters():
        *_, layer, kind = name.split(".")
        scale = actual.scale(name)
        assert scale.initial == (1 / 3 if layer in ("output", "outer") else 1), name
        if layer in ("token", "position", "segment"):
            assert (scale.rate, scale.decay) == (1 / 4, 4), name
        elif kind == "weight" and "norm" not in layer:
            assert (scale.rate, scale.decay) == (completep.scale(name).rate, completep.scale(name).decay), name
        elif layer == "norm":
            assert scale.rate == 1, name


def test_a_pair_heads_logits_begin_and_move_as_far_at_any_width() -> None:
    """A step of the output's row adds up over the width, and a pooler is a matrix like any other."""
    actual = CompleteP(architecture(width=512, heads=8, ffn=2048, pair_head=True), base_width=128, base_depth=2)
    assert actual.scale("pair_head.output.weight") == Scale(initial=1 / 4, rate=1 / 4, decay=4.0)
    assert actual.scale("pair_head.output.bias") == Scale()
    assert actual.scale("pair_head.pooler.weight") == actual.scale("head.transform.weight")


def test_a_pooler_undoes_what_the_final_norm_divides_without_a_transform() -> None:
    wide = architecture(width=512, heads=8, ffn=2048, norm="pre", mlm_transform="none", pair_head=True)
    actual = CompleteP(wide, base_width=128, base_depth=2)
    assert actual.scale("encoder.final_norm.weight").initial == 1 / 4
    assert actual.scale("pair_head.pooler.weight").initial == 4 * 4**-0.5


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_without_a_parametrisation_all_begins_and_steps_as_ever(optimizer: str) -> None:
    a, asked = architecture(), recipe(optimizer=optimizer, parametrization="standard")
    model, plain = fresh_model(a, asked, 3), MaskedLanguageModel(a, seed=3)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), plain.parameters(), strict=True))
    groups = optimizer_of(model, asked).param_groups
    assert {group["lr"] for group in groups} == {1e-2} | ({4e-2} if optimizer == "muon" else set())
    assert {(group["weight_decay"], group["eps"]) for group in groups} == {(0.5, 1e-3), (0.0, 1e-3)}


def moved(a: Architecture, asked: Recipe) -> tuple[float, float]:
    """How far three steps move what the last block and the decoder give, as root mean squares."""
    model = fresh_model(a, asked, 0)
    optimizer = optimizer_of(model, asked)
    stream: list[Tensor] = []
    model.encoder.blocks[-1].register_forward_hook(lambda _, __, output: stream.append(output.detach()))
    tokens = torch.randint(0, 64, (4, 8, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(tokens[0])
    for batch in tokens[1:]:
        loss = F.cross_entropy(model(batch).flatten(0, 1), batch.roll(1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        after = model(tokens[0])
    return (stream[-1] - stream[0]).square().mean().sqrt().item(), (after - before).square().mean().sqrt().item()


def widths(*given: int, **asked: Any) -> list[float]:
    """How far logits move in encoders of two layers and such widths, of heads of one width."""
    norm = asked.pop("norm")
    shapes = [architecture(depth=2, width=width, heads=width // 32, ffn=4 * width, norm=norm) for width in given]
    return [moved(shape, recipe(base_width=64, learning_rate=1e-3, **asked))[1] for shape in shapes]


def depths(*given: int, **asked: Any) -> list[float]:
    """How far the stream moves in encoders of width 64 and so many layers."""
    norm = asked.pop("norm")
    shapes = [architecture(depth=depth, width=64, heads=2, ffn=256, norm=norm) for depth in given]
    return [moved(shape, recipe(base_width=64, learning_rate=1e-3, **asked))[0] for shape in shapes]


@pytest.mark.parametrize(
    ("optimizer", "widest", "norm", "parametrization"),
    [
        ("adamw", 256, "pre", "completep"),
        pytest.param("muon", 256, "post", "scaled_rates", marks=pytest.mark.slow),
        *(
            pytest.param(optimizer, 1024, norm, parametrization, marks=pytest.mark.slow)
            for optimizer in ("adamw", "muon")
            for norm in ("pre", "post")
            for parametrization in ("completep", "scaled_rates")
        ),
    ],
)
def test_steps_move_encoders_of_every_width_and_depth_as_far(
    optimizer: str, widest: int, norm: str, parametrization: str
) -> None:
    """A coordinate check (Yang et al. 2022, arXiv:2203.03466, appendix D.1): under the standard large ones move farther.

    Muon moves the matrices of standard encoders as far at every width; there tables and head move, which are AdamW's. With
    scaled_rates the first logits grow with the root of the width, and so does what the first steps move them.
    """
    asked = {"optimizer": optimizer, "norm": norm, "parametrization": parametrization}
    by_width, by_depth = widths(64, 128, widest, **asked), depths(2, 8, 32, **asked)
    first_values = (widest / 64) ** 0.5 if parametrization == "scaled_rates" else 1
    assert max(by_width) < 2 * first_values * min(by_width), by_width
    assert max(by_depth) < 2 * min(by_depth), by_depth
    standard = asked | {"parametrization": "standard"}
    (narrow, wide), (shallow, deep) = widths(64, 512, **standard), depths(2, 32, **standard)
    assert wide > 3 * narrow
    assert deep > 3 * shallow


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_steps_move_the_modern_preset_as_far_where_width_and_depth_grow_together(optimizer: str) -> None:
    """With its rotary positions and bias by distance, up to four times the width and eight times the depth."""
    asked = recipe(base_width=64, learning_rate=1e-3, optimizer=optimizer, parametrization="completep")
    kind = {**PRESETS["modern"]["architecture"], "norm": "post"}
    shapes = [
        architecture(depth=depth, width=width, heads=width // 32, ffn=4 * width, **kind)
        for depth, width in ((2, 64), (2, 256), (16, 64), (16, 256))
    ]
    for far in zip(*(moved(shape, asked) for shape in shapes), strict=True):
        assert max(far) < 2 * min(far), far
