"""Muon orthogonalises momenta as its source says, many at once, and leaves AdamW's parameters to AdamW."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim._muon import _zeropower_via_newtonschulz

from study.config.recipe import Recipe
from study.counting.architecture import Architecture
from study.model.encoder import Block
from study.model.layers import Linear
from study.model.masked_language_model import MaskedLanguageModel
from study.model.optimization import CUBIC, LINEAR, MOMENTUM, QUINTIC, Muon, adamw, optimizer_of, orthogonalised, schedule

SHAPES = [(32, 32), (32, 128), (128, 32), (32, 43), (48, 32)]


def recipe(**changes: Any) -> Recipe:
    return Recipe.parse({"budget": {"steps": 100}, "optimizer": "muon"} | changes)


def architecture(**changes: Any) -> Architecture:
    sizes = {"depth": 2, "width": 16, "heads": 2, "ffn": 64, "vocabulary": 64, "positions": 8}
    return Architecture.parse(sizes | changes)


def drawn(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def by_singular_values(matrices: Tensor) -> Tensor:
    """What five iterations make of matrices in exact arithmetic: the polynomial, five times, of their singular values."""
    u, s, v = torch.linalg.svd(matrices.double(), full_matrices=False)
    s = s / s.norm(dim=-1, keepdim=True)
    for _ in range(5):
        s = LINEAR * s + CUBIC * s**3 + QUINTIC * s**5
    exact: Tensor = u * s[..., None, :] @ v
    return exact


def apart(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


def spread(*size: int) -> Tensor:
    """Matrices whose singular values fall from 1 to 1e-4."""
    u, _, v = torch.linalg.svd(drawn(*size), full_matrices=False)
    matrices: Tensor = u * torch.logspace(0, -4, min(size[-2:])) @ v
    return matrices


@pytest.mark.parametrize("shape", SHAPES)
def test_iterations_are_the_polynomial_of_the_singular_values(shape: tuple[int, int]) -> None:
    for matrices in (drawn(3, *shape), 1e-3 * spread(3, *shape)):
        assert apart(orthogonalised(matrices.clone()), by_singular_values(matrices)) < 1e-4


@pytest.mark.parametrize("shape", SHAPES)
def test_in_bf16_matrices_are_as_near_as_those_that_torch_orthogonalises_alone(shape: tuple[int, int]) -> None:
    for matrices, margin in ((drawn(3, *shape), 0.03), (spread(3, *shape), 0.0)):
        exact = by_singular_values(matrices)
        theirs = torch.stack([_zeropower_via_newtonschulz(each, (LINEAR, CUBIC, QUINTIC), 5, 1e-7) for each in matrices])
        assert apart(orthogonalised(matrices.bfloat16()), exact) < 1.1 * apart(theirs, exact) + margin


def test_a_matrix_of_zeros_stays_one() -> None:
    assert not orthogonalised(torch.zeros(1, 4, 4)).any()


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_is_that_of_torchs_muon(shape: tuple[int, int], decay: float) -> None:
    """Momentum, Nesterov, decoupled decay and the factor of oblong matrices; torch always orthogonalises in bf16."""
    ours, theirs = (torch.nn.Parameter(drawn(*shape)) for _ in range(2))
    groups = [{"params": [ours], "matrices": 1, "lr": 0.1, "weight_decay": decay}]
    muon = Muon(groups, (0.9, 0.98), bf16=True)
    reference = torch.optim.Muon([theirs], lr=0.1, weight_decay=decay, momentum=MOMENTUM)
    for step in range(5):
        before = ours.detach().clone()
        theirs.data.copy_(before)
        ours.grad, theirs.grad = drawn(*shape, seed=step), drawn(*shape, seed=step)
        muon.step()
        reference.step()  # type: ignore[no-untyped-call]
        assert apart(ours.detach() - before, theirs.detach().double() - before) < 0.1
    assert apart(muon.state[ours]["momentum"], reference.state[theirs]["momentum_buffer"].double()) < 1e-6


@pytest.mark.parametrize("activation", ["gelu", "geglu"])
def test_joint_products_are_orthogonalised_part_by_part(activation: str) -> None:
    """Query, key and value apart, and of a gated FFN the inner product and its gate, as if each had a weight of its own."""
    block = Block(architecture(activation=activation), dropout=0.0)
    for layer, parts in ((block.attention.query_key_value, 3), (block.feed_forward.inner, 2 if activation == "geglu" else 1)):
        weight = layer.weight
        muon = Muon([{"params": [weight], "matrices": layer.matrices, "lr": 1.0}], (0.9, 0.98), bf16=False)
        before = weight.detach().clone()
        weight.grad = drawn(*weight.shape)
        muon.step()
        changes = torch.stack((before - weight.detach()).chunk(parts))
        factor = math.sqrt(max(1.0, changes.shape[1] / changes.shape[2]))
        exact = factor * by_singular_values(torch.stack(weight.grad.chunk(parts)))
        assert apart(changes, exact) < 1e-4


def test_muon_has_the_matrices_of_the_blocks_and_adamw_all_else() -> None:
    model = MaskedLanguageModel(architecture(embedding_width=8, activation="swiglu"))
    optimizer = optimizer_of(model, recipe(learning_rate=1e-3, muon_rate_ratio=5, weight_decay=0.3))
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    inside = {id(layer.weight): layer.matrices for layer in model.encoder.blocks.modules() if isinstance(layer, Linear)}
    assert sorted(inside.values()) == [1, 1, 1, 1, 2, 2, 3, 3]
    for name, parameter in model.named_parameters():
        group = groups[id(parameter)]
        assert group["matrices"] == inside.get(id(parameter), 0), name
        assert group["lr"] == pytest.approx(5e-3 if id(parameter) in inside else 1e-3), name
        assert group["weight_decay"] == (0.3 if parameter.ndim == 2 else 0.0), name
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_what_is_adamws_steps_as_under_adamw_to_the_bit() -> None:
    """And both kinds follow one schedule."""
    mine = MaskedLanguageModel(architecture(), seed=1)
    plain = copy.deepcopy(mine)
    asked = recipe(weight_decay=0.3, learning_rate=0.01)
    optimizers = optimizer_of(mine, asked), adamw(plain, asked)
    schedules = [schedule(each, 100, asked) for each in optimizers]
    for step in range(4):
        for model in (mine, plain):
            for number, parameter in enumerate(model.parameters()):
                parameter.grad = drawn(*parameter.shape, seed=100 * step + number)
        for optimizer, scheduler in zip(optimizers, schedules, strict=True):
            optimizer.step()
            scheduler.step()
    assert {group["lr"] / group["initial_lr"] for group in optimizers[0].param_groups} == {5 / 11}
    inside = {id(layer.weight) for layer in mine.encoder.blocks.modules() if isinstance(layer, Linear)}
    for (name, one), other in zip(mine.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other) == (id(one) not in inside), name


def test_a_weight_without_a_gradient_stays_as_it_is() -> None:
    model = MaskedLanguageModel(architecture())
    before = copy.deepcopy(model.state_dict())
    optimizer_of(model, recipe(weight_decay=0.3)).step()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_state_that_is_loaded_keeps_the_precision_that_it_was_made_in() -> None:
    """As on a processor that multiplies in bf16 and one that does not."""
    weight = torch.nn.Parameter(drawn(16, 16))
    made, elsewhere = (Muon([{"params": [weight], "matrices": 1}], (0.9, 0.98), bf16) for bf16 in (True, False))
    weight.grad = drawn(16, 16)
    made.step()
    elsewhere.load_state_dict(copy.deepcopy(made.state_dict()))
    before = weight.detach().clone()
    made.step()
    after = weight.detach().clone()
    weight.data.copy_(before)
    elsewhere.step()
    assert torch.equal(weight, after)
