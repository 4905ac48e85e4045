"""Dropout on a CPU: as many zeros as asked for, the mean kept, gradients where numbers were kept, draws that repeat."""

from __future__ import annotations

import math

import pytest
import torch

from study.model.layers import DRAWS, Dropout, drop


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_many_are_dropped_as_asked_for_and_the_rest_is_scaled(rate: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    n = 1_000_003
    dropped = drop(torch.ones(n, dtype=dtype), rate)
    assert dropped.dtype == dtype
    share = float((dropped == 0).double().mean())
    assert abs(share - rate) < 5 * math.sqrt(rate * (1 - rate) / n) + 1 / DRAWS
    scale = set(dropped[dropped != 0].tolist())
    assert list(scale) == pytest.approx([1 / (1 - rate)], rel=1e-4 if dtype == torch.float32 else 4e-3)


def test_neighbours_are_drawn_apart() -> None:
    """Draws that share a random word, or follow in the next, are no more alike than chance makes them."""
    torch.manual_seed(1)
    n = 1_000_000
    zero = (drop(torch.ones(n), 0.3) == 0).double() - 0.3
    for distance in range(1, 9):
        correlation = float((zero[:-distance] * zero[distance:]).mean()) / (0.3 * 0.7)
        assert abs(correlation) < 5 / math.sqrt(n), distance


@pytest.mark.parametrize("shape", [(1,), (3,), (7, 5), (2, 3, 4, 5), (0, 4)])
def test_the_gradient_passes_where_a_number_was_kept(shape: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    x = torch.full(shape, 2.0, requires_grad=True)
    kept = drop(x, 0.5)
    kept.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert torch.equal(x.grad, kept.detach() / 2)


def test_a_transposed_input_keeps_its_numbers_in_their_places() -> None:
    torch.manual_seed(3)
    x = torch.arange(1.0, 13.0).view(3, 4).t()
    dropped = drop(x, 0.25)
    assert torch.all((dropped == 0) | torch.isclose(dropped, x / 0.75))


def test_draws_repeat_with_the_seed_and_only_then() -> None:
    x = torch.ones(4097)
    torch.manual_seed(4)
    first, second = drop(x, 0.1), drop(x, 0.1)
    torch.manual_seed(4)
    assert torch.equal(drop(x, 0.1), first)
    assert not torch.equal(first, second)


def test_nothing_is_dropped_in_evaluation_or_at_rate_0() -> None:
    x = torch.ones(64)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert (Dropout(0.5)(x) == 0).any()


def test_a_rate_that_rounds_to_1_still_keeps_the_mean_finite() -> None:
    torch.manual_seed(5)
    dropped = drop(torch.ones(200_000), 1 - 1e-9)
    assert torch.isfinite(dropped).all()
    assert set(dropped.tolist()) <= {0.0, float(DRAWS)}
