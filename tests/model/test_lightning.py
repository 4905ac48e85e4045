"""Standard errors of a validation are those of ratios of sums over documents."""

import numpy as np
import pytest
import torch

from study.model.lightning import ValidationResult


def result(nats: np.ndarray, tokens: np.ndarray, permuted: np.ndarray, documents: np.ndarray | None) -> ValidationResult:
    given = None if documents is None else torch.from_numpy(documents)
    return ValidationResult(0, torch.from_numpy(nats), torch.from_numpy(tokens), 0, torch.from_numpy(permuted), given)


def drawn(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Nats, masked tokens, nats permuted and document of the sequences of 80 documents, whose losses differ."""
    documents = np.repeat(np.arange(80), random.integers(1, 6, 80))
    tokens = random.integers(5, 12, len(documents)).astype(float)
    of_document, of_gain = random.normal(4, 0.5, 80)[documents], random.normal(0.2, 0.1, 80)[documents]
    nats = tokens * (of_document + random.normal(0, 0.3, len(documents)))
    return nats, tokens, nats + tokens * (of_gain + random.normal(0, 0.05, len(documents))), documents


def test_errors_of_loss_and_order_gain_are_how_far_these_scatter_over_draws_of_documents() -> None:
    """Over sequences alone they are too small."""
    random = np.random.default_rng(0)
    actual: dict[str, list[tuple[float, float, float]]] = {"loss": [], "order_gain": []}
    for _ in range(400):
        nats, tokens, permuted, documents = drawn(random)
        clustered, alone = result(nats, tokens, permuted, documents), result(nats, tokens, permuted, None)
        for name, value in (("loss", clustered.loss), ("order_gain", clustered.order_gain)):
            error = "standard_error" if name == "loss" else "order_gain_standard_error"
            actual[name].append((value, getattr(clustered, error), getattr(alone, error)))
    for draws in actual.values():
        values, clustered_errors, errors = np.array(draws).T
        assert clustered_errors.mean() == pytest.approx(values.std(), rel=0.1)
        assert errors.mean() < 0.75 * values.std()


def test_without_documents_the_error_is_that_of_a_ratio_over_sequences() -> None:
    nats, tokens, permuted, _ = drawn(np.random.default_rng(1))
    actual, count = result(nats, tokens, permuted, None), len(nats)
    residuals = nats - nats.sum() / tokens.sum() * tokens
    assert actual.standard_error == pytest.approx(np.sqrt((residuals**2).sum() * count / (count - 1)) / tokens.sum())
    assert actual.document_count is None


def test_one_document_and_one_sequence_have_no_error() -> None:
    nats, tokens, permuted, documents = drawn(np.random.default_rng(2))
    actual = result(nats, tokens, permuted, np.zeros_like(documents))
    assert (actual.standard_error, actual.order_gain_standard_error, actual.document_count) == (None, None, 1)
    assert result(nats[:1], tokens[:1], permuted[:1], None).standard_error is None


def test_the_order_gain_of_the_first_sequences_clusters_by_theirs() -> None:
    nats, tokens, permuted, documents = drawn(np.random.default_rng(3))
    first = result(nats, tokens, permuted[:40], documents)
    alone = result(nats[:40], tokens[:40], permuted[:40], documents[:40])
    assert first.order_gain_standard_error == alone.order_gain_standard_error
