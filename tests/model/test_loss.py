"""The loss is torch's cross entropy up to rounding, with its gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from study.data.masking import IGNORED
from study.model.masked_language_model import distillation_loss, mean_cross_entropy


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
    loss = mean_cross_entropy(logits, labels)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(3 * loss, logits)[0], gradient)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_distillation_is_the_divergence_from_the_teacher_where_labels_count(temperature: float) -> None:
    """Its gradient is T·(softmax(logits/T) - softmax(taught/T)) by the mean, so of one size at every large T."""
    logits, labels = drawn()
    taught = torch.randn(19, 301, generator=torch.Generator().manual_seed(1))
    labels[[0, 7]] = IGNORED
    counts = labels != IGNORED
    target, learned = (torch.softmax(each.double() / temperature, -1) for each in (taught, logits.detach()))
    expected = temperature**2 * (target * (target / learned).log()).sum(-1)[counts].mean()
    loss = distillation_loss(logits, taught, labels, temperature)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    (gradient,) = torch.autograd.grad(loss, logits)
    wanted = torch.where(counts[:, None], temperature * (learned - target) / counts.sum(), 0)
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("compiling", [False, True])
def test_a_batch_with_nothing_to_predict_costs_and_teaches_nothing(compiling: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All masked positions may be [UNK] in a text that the tokeniser does not know."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    logits, _ = drawn()
    labels = torch.full((19,), IGNORED)
    for loss in (mean_cross_entropy(logits, labels), distillation_loss(logits, logits.detach() + 1, labels, 2.0)):
        assert loss == 0
        assert not torch.autograd.grad(loss, logits)[0].any()


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
