"""Learning rates and weight decay are those of the recipe."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from study.config.recipe import Recipe
from study.counting.architecture import Architecture
from study.model.masked_language_model import MaskedLanguageModel
from study.model.optimization import adamw, clip_gradients, learning_rate_factor, schedule


def recipe(**changes: Any) -> Recipe:
    return Recipe.parse({"budget": {"steps": 100}} | changes)


def factors(steps: int = 100, **changes: Any) -> list[float]:
    return [learning_rate_factor(step, steps, recipe(**changes)) for step in range(steps)]


def test_linear_rises_and_falls_to_zero_after_the_last_step() -> None:
    values = factors(schedule="linear", warmup_fraction=0.1)
    assert values[0] == pytest.approx(1 / 11)
    assert values[10] == 1.0
    assert values[99] == pytest.approx(1 / 90)
    assert learning_rate_factor(100, 100, recipe()) == 0.0


def test_cosine_is_half_way_down_half_way_through() -> None:
    values = factors(schedule="cosine", warmup_fraction=0.0, final_learning_rate_fraction=0.1)
    assert values[50] == pytest.approx(0.55)
    assert min(values) > 0.1


def test_wsd_stays_and_then_falls() -> None:
    values = factors(schedule="wsd", warmup_fraction=0.1, decay_fraction=0.2)
    assert values[10:81] == [1.0] * 71
    assert values[90] == pytest.approx(0.5)
    assert values[99] == pytest.approx(0.05)


@given(
    st.sampled_from(["linear", "cosine", "wsd"]),
    st.integers(1, 300),
    st.floats(0, 0.5, width=16),
    st.floats(0, 0.5, width=16),
    st.floats(0, 1, width=16),
)
def test_factors_stay_between_floor_and_peak(kind: str, steps: int, warmup: float, decay: float, final: float) -> None:
    changes = {"schedule": kind, "warmup_fraction": warmup, "decay_fraction": decay, "final_learning_rate_fraction": final}
    values = factors(steps, **changes)
    assert all(0 < value <= 1 + 1e-12 for value in values)
    peak = values.index(max(values))
    assert all(later <= earlier + 1e-12 for earlier, later in zip(values[peak:], values[peak + 1 :], strict=False))


def test_norms_and_biases_do_not_decay() -> None:
    architecture = Architecture(depth=1, width=8, heads=2, ffn=16, vocabulary=64, positions=8)
    model = MaskedLanguageModel(architecture)
    optimizer = adamw(model, recipe(weight_decay=0.3))
    decaying = {id(parameter) for parameter in optimizer.param_groups[0]["params"]}
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    for name, parameter in model.named_parameters():
        assert (id(parameter) in decaying) == (not ("norm" in name or name.endswith("bias"))), name


def test_scheduler_follows_the_factors() -> None:
    model = MaskedLanguageModel(Architecture(depth=1, width=8, heads=2, ffn=16, vocabulary=64, positions=8))
    optimizer = adamw(model, recipe(learning_rate=0.5))
    scheduler = schedule(optimizer, 20, recipe(learning_rate=0.5))
    rates = []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.5 * factor for factor in factors(20)])


@pytest.mark.parametrize("limit", [0.5, 5.0, 1e3, float("inf")])
@pytest.mark.parametrize("broken", [False, True])
def test_gradients_are_clipped_as_torch_clips_them_to_the_bit(limit: float, broken: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(size, generator=generator) for size in [(7, 5), (5,), (3, 2)]]
    if broken:
        values[1][2] = float("nan")
    ours, theirs = ([torch.nn.Parameter(torch.zeros_like(value)) for value in values] for _ in range(2))
    for parameter, other, value in zip(ours, theirs, values, strict=True):
        parameter.grad, other.grad = value.clone(), value.clone()
    ours.append(torch.nn.Parameter(torch.zeros(3)))  # without a gradient
    actual, expected = clip_gradients(ours, limit), torch.nn.utils.clip_grad_norm_(theirs, limit)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    for parameter, other in zip(ours, theirs, strict=False):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, other.grad, rtol=0, atol=0, equal_nan=True)
