"""The loss is torch's cross entropy up to rounding, with its gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from study.data.masking import IGNORED
from study.model.loss import mean_cross_entropy


def drawn(spread: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = spread * torch.randn(19, 301, generator=generator)
    return logits.requires_grad_(), torch.randint(0, 301, (19,), generator=generator)


@pytest.mark.parametrize("ignored", [(), (0, 7, 18)])
@pytest.mark.parametrize("spread", [0.01, 3.0, 100.0])
def test_the_loss_and_its_gradient_are_those_of_cross_entropy(spread: float, ignored: tuple[int, ...]) -> None:
    """With a spread of 100 labels have probabilities that fp32 does not hold."""
    logits, labels = drawn(spread)
    labels[list(ignored)] = IGNORED
    expected = F.cross_entropy(logits, labels, ignore_index=IGNORED)
    (gradient,) = torch.autograd.grad(3 * expected, logits)
    found = mean_cross_entropy(logits, labels)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(3 * found, logits)[0], gradient)


def test_a_logit_that_is_not_finite_makes_the_loss_so() -> None:
    for value in (float("nan"), float("inf")):
        logits, labels = drawn()
        with torch.no_grad():
            logits[3, 5] = value
        assert not torch.isfinite(mean_cross_entropy(logits, labels))


def test_the_gradient_is_taken_once() -> None:
    logits, labels = drawn()
    loss = mean_cross_entropy(logits, labels)
    torch.autograd.grad(loss, logits, retain_graph=True)
    with pytest.raises(RuntimeError, match="was taken already"):
        torch.autograd.grad(loss, logits)
