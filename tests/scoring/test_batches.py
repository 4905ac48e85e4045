"""Batches of a task hold every input once an epoch, waste little on padding, and depend on seed and step alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from study.scoring.scored_examples import Inputs, Ragged
from study.scoring.task_inputs import Collator, TrainingOrder, evaluation_batches, padding_share

LENGTHS = np.exp(np.random.default_rng(0).normal(2.4, 0.5, 3001)).round().astype(int).clip(3, 64)


def test_an_epoch_holds_every_input_once_in_another_order_than_the_last() -> None:
    order = TrainingOrder(LENGTHS, 32, seed=1)
    assert order.steps_per_epoch == 94
    epochs = [[order.at(step) for step in range(begin, begin + 94)] for begin in (0, 94)]
    for batches in epochs:
        assert sorted(np.concatenate(batches)) == list(range(3001))
        assert all(len(batch) <= 32 for batch in batches)
    assert not np.array_equal(epochs[0][0], epochs[1][0])


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    walked, jumped, other = TrainingOrder(LENGTHS, 32, 1), TrainingOrder(LENGTHS, 32, 1), TrainingOrder(LENGTHS, 32, 2)
    batches = [walked.at(step) for step in range(200)]
    for step in (150, 3, 199):
        assert np.array_equal(jumped.at(step), batches[step])
    assert not np.array_equal(other.at(3), batches[3])


def test_little_of_a_batch_is_padding() -> None:
    order = TrainingOrder(LENGTHS, 32, 0)
    ours = padding_share(LENGTHS, [order.at(step) for step in range(order.steps_per_epoch)])
    shuffled = np.random.default_rng(1).permutation(len(LENGTHS))
    theirs = padding_share(LENGTHS, [shuffled[begin : begin + 32] for begin in range(0, len(LENGTHS), 32)])
    assert ours < 0.06 < 0.4 < theirs


def test_a_batch_is_no_larger_than_the_task() -> None:
    assert len(TrainingOrder(LENGTHS[:5], 32, 0).at(0)) == 5


def test_evaluation_holds_every_input_once_the_longest_first() -> None:
    batches = evaluation_batches(LENGTHS, tokens=512)
    assert sorted(np.concatenate(batches)) == list(range(3001))
    assert all(len(batch) * LENGTHS[batch].max() <= 512 for batch in batches)
    assert LENGTHS[batches[0]].min() >= LENGTHS[batches[-1]].max()


@pytest.mark.parametrize("segments", [1, 2])
def test_a_pair_has_segments_where_the_encoder_has_them(segments: int) -> None:
    tokens = Ragged.of([[2, 7, 3, 8, 9, 3], [2, 5, 3, 6, 3]])
    inputs = Inputs(tokens, np.array([3, 3]), np.arange(2), np.array([0, 1]))
    batch = Collator(inputs, pad=0, segments=segments)(np.array([0, 1]))
    assert batch.tokens.tolist() == [[2, 7, 3, 8, 9, 3], [2, 5, 3, 6, 3, 0]]
    assert batch.attended is not None
    assert batch.attended.sum() == 11
    if segments == 1:
        assert batch.segments is None
    else:
        assert batch.segments is not None
        assert batch.segments[0].tolist() == [0, 0, 0, 1, 1, 1]


def test_nothing_is_masked_where_nothing_is_padding() -> None:
    inputs = Inputs(Ragged.of([[2, 7, 3], [2, 5, 3]]), np.array([3, 3]), np.arange(2), np.array([0, 1]))
    batch = Collator(inputs, 0, 2)(np.array([1, 0]))
    assert batch.attended is None
    assert batch.segments is None


def test_labelled_places_count_through_the_padded_batch() -> None:
    inputs = Inputs(
        *(Ragged.of([[2, 7, 8, 3], [2, 5, 3], [2, 9, 3]]), np.array([4, 3, 3]), np.arange(3), np.zeros(3, dtype=np.int64)),
        word_places=Ragged.of([[1, 2], [1], [1]]),
        word_labels=Ragged.of([[4, 5], [6], [7]]),
    )
    batch = Collator(inputs, 0, 2)(np.array([1, 0, 2]))
    assert batch.places is not None
    assert batch.tokens.flatten()[batch.places].tolist() == [5, 7, 8, 9]
    assert torch.equal(batch.labels, torch.tensor([6, 4, 5, 7]))


def test_a_batch_of_pairs_and_a_text_alone_has_segments() -> None:
    inputs = Inputs(Ragged.of([[2, 7, 3, 9, 3], [2, 5, 3]]), np.array([3, 3]), np.arange(2), np.array([0, 1]))
    batch = Collator(inputs, 0, 2)(np.array([0, 1]))
    assert batch.segments is not None
    assert batch.segments[0].tolist() == [0, 0, 0, 1, 1]


def test_an_input_longer_than_a_batch_is_evaluated_alone() -> None:
    assert [rows.tolist() for rows in evaluation_batches(np.array([3, 20, 12, 2]), tokens=8)] == [[1], [2], [0, 3]]
