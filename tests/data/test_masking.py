"""Masking is BERT's 80/10/10 at a fixed number of positions, by (seed, step); the loss counts masked tokens only."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from study.base.randomness import Stream, stream_seed
from study.config.run_config import Masking
from study.data.masking import IGNORED, MaskedBatch, Masker, StaticMasks

SPECIAL = (0, 1, 2, 3, 4)


def masker(predictions: int = 19, **changes: float) -> Masker:
    return Masker(Masking(**changes), predictions, mask_token=4, special_tokens=SPECIAL, vocabulary=1000)


def generator(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(stream_seed(Stream.MASKS, *numbers))


def text(batch: int = 64, length: int = 128) -> torch.Tensor:
    tokens = torch.randint(5, 1000, (batch, length), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = 2
    tokens[::3, 50] = 3
    return tokens


def test_a_fixed_number_of_ordinary_positions_is_chosen_in_order() -> None:
    tokens = text()
    masked = masker()(tokens, generator(0, 0))
    assert masked.positions.shape == masked.labels.shape == (64, 19)
    assert (masked.positions.diff(dim=1) > 0).all()
    assert torch.equal(masked.labels, tokens.gather(1, masked.positions))
    assert not torch.isin(masked.labels, torch.tensor(SPECIAL)).any()
    untouched = torch.ones_like(tokens, dtype=torch.bool).scatter(1, masked.positions, False)
    assert torch.equal(masked.tokens[untouched], tokens[untouched])


@pytest.mark.parametrize(("mask", "random"), [(0.8, 0.1), (0.5, 0.3), (0.0, 1.0)])
def test_shares_are_those_asked_for(mask: float, random: float) -> None:
    """By default 80/10/10; random tokens come from all pieces alike."""
    assert (Masking().mask_share, Masking().random_share) == (0.8, 0.1)
    tokens = text(batch=2000)
    masked = masker(mask_share=mask, random_share=random)(tokens, generator(0, 0))
    now = masked.tokens.gather(1, masked.positions)
    n = now.numel()
    became_mask = (now == 4).float().mean().item()
    stayed = (now == masked.labels).float().mean().item()
    for actual, asked in ((became_mask, mask), (stayed, 1 - mask - random)):
        share = asked + random / 1000
        assert actual == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / n))
    replaced = now[(now != 4) & (now != masked.labels)]
    assert replaced.float().mean().item() == pytest.approx(500, abs=4 * 289 / math.sqrt(len(replaced)))
    assert (replaced.min().item(), replaced.max().item()) == (0, 999)


def test_every_ordinary_position_is_equally_likely() -> None:
    tokens = torch.full((20_000, 16), 7)
    counts = torch.bincount(masker(predictions=2)(tokens, generator(3, 1)).positions.flatten(), minlength=16)
    expected = 20_000 * 2 / 16
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < 37.7  # 0.999 quantile at 15 degrees of freedom


def test_masks_are_a_function_of_seed_and_step() -> None:
    tokens = text()
    first, again, next_step, other_seed = (masker()(tokens, generator(*at)) for at in ((1, 5), (1, 5), (1, 6), (2, 5)))
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not torch.equal(first.positions, next_step.positions)
    assert not torch.equal(first.positions, other_seed.positions)


CONTINUING = torch.arange(1000) >= 600
"""Of the pieces here those that continue a word."""

KINDS = {
    "dynamic": masker(),
    "static": replace(masker(), static=StaticMasks(3, seed=1)),
    "whole words": replace(masker(), continuing=CONTINUING),
}


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_mask_as_one_rank_does(kind: str) -> None:
    tokens = text()
    whole = KINDS[kind](tokens, generator(0, 9))
    halves = [KINDS[kind](half, generator(0, 9), rank, 2) for rank, half in enumerate(tokens.chunk(2))]
    for part, joined in zip(whole, map(torch.cat, zip(*halves, strict=True)), strict=True):
        assert torch.equal(part, joined)


def same(one: MaskedBatch, other: MaskedBatch) -> bool:
    return all(torch.equal(part, its) for part, its in zip(one, other, strict=True))


def test_a_static_mask_is_a_function_of_the_text_and_the_seed() -> None:
    """Whatever the step, and whichever sequences stand beside it in the batch."""
    tokens, (fixed, other) = text(), (replace(masker(), static=StaticMasks(1, seed)) for seed in (1, 2))
    first, later, alone = fixed(tokens, generator(1, 5)), fixed(tokens, generator(1, 6)), fixed(tokens[7:8], generator(1, 7))
    assert same(first, later)
    assert same(MaskedBatch(*(part[7:8] for part in first)), alone)
    assert not torch.equal(first.positions, other(tokens, generator(1, 5)).positions)


def test_a_sequence_has_as_many_static_masks_as_copies() -> None:
    tokens, fixed = text(batch=1), replace(masker(), static=StaticMasks(4, seed=1))
    visits = [fixed(tokens, generator(1, step)) for step in range(100)]
    seen = {tuple(masked.tokens.flatten().tolist()) for masked in visits}
    assert len(seen) == 4


@pytest.mark.parametrize("shares", [(0.8, 0.1), (0.0, 0.5)])
def test_static_masks_are_drawn_as_fairly_as_dynamic_ones(shares: tuple[float, float]) -> None:
    """Shares, positions and random tokens: chi-square of positions at 15 degrees of freedom, 0.999 quantile 37.7."""
    fixed = masker(predictions=2, mask_share=shares[0], random_share=shares[1])
    tokens = torch.randint(5, 1000, (20_000, 16), generator=torch.Generator().manual_seed(0))
    masked = replace(fixed, static=StaticMasks(10, seed=1))(tokens, generator(3, 1))
    counts = torch.bincount(masked.positions.flatten(), minlength=16)
    n = counts.sum().item()
    assert ((counts - n / 16) ** 2 / (n / 16)).sum().item() < 37.7
    now = masked.tokens.gather(1, masked.positions)
    share = shares[0] + shares[1] / 1000
    assert (now == 4).double().mean().item() == pytest.approx(share, abs=4 * math.sqrt(max(share, 1e-3) / n))
    drawn = now[(now != 4) & (now != masked.labels)].double()
    assert drawn.mean().item() == pytest.approx(500, abs=4 * 289 / math.sqrt(len(drawn)))


def words_of(tokens: torch.Tensor) -> list[list[int]]:
    """The positions of each word of one sequence, as WordPiece reads it; special pieces belong to none."""
    words: list[list[int]] = []
    for place, token in enumerate(tokens.tolist()):
        if token in SPECIAL:
            continue
        within = CONTINUING[token] and words and words[-1][-1] == place - 1
        (words[-1] if within else (words := [*words, []])[-1]).append(place)
    return words


def test_whole_words_are_masked_but_for_the_last_that_is_cut() -> None:
    tokens = text(batch=500)
    masked = KINDS["whole words"](tokens, generator(0, 0))
    cut = 0
    for sequence, positions in zip(tokens, masked.positions.tolist(), strict=True):
        chosen = [[place in positions for place in word] for word in words_of(sequence)]
        partial = [word for word in chosen if any(word) and not all(word)]
        assert len(partial) <= 1
        assert all(word == sorted(word, reverse=True) for word in partial), "a word is cut at its end"
        cut += len(partial)
    assert 0 < cut < 500
    assert not torch.isin(masked.labels, torch.tensor(SPECIAL)).any()


def test_every_word_is_equally_likely_whatever_its_length() -> None:
    """Of words of 1, 2 and 3 pieces two thirds of all pieces are masked, so that no word is first by its place."""
    row = torch.tensor([2, 7, 7, 700, 7, 700, 700, 3])
    chosen = replace(masker(predictions=1), continuing=CONTINUING)(row.repeat(30_000, 1), generator(5, 5)).positions.flatten()
    counts = torch.bincount(chosen, minlength=8)
    assert counts[[0, 3, 5, 6, 7]].sum() == 0
    expected = 30_000 / 3
    assert ((counts[[1, 2, 4]] - expected) ** 2 / expected).sum().item() < 13.8  # 0.999 quantile at 2 degrees of freedom


def test_a_sequence_with_too_few_ordinary_tokens_ignores_the_rest() -> None:
    tokens = torch.full((1, 16), 3)
    tokens[0, 4] = 9
    masked = masker(predictions=3)(tokens, generator(0, 0))
    assert (masked.labels != IGNORED).sum() == 1
    assert torch.equal(masked.tokens[tokens == 3], tokens[tokens == 3])


def test_visible_ordinary_tokens_are_permuted_and_masked_and_special_ones_stay() -> None:
    """Whatever stands at a masked place: [MASK], a random token or the token itself."""
    masked = masker()(text(), generator(0, 0))
    permuted = masker().permuted(masked, generator(0, 1))
    stays = torch.isin(masked.tokens, torch.tensor(SPECIAL)).scatter(1, masked.positions, True)
    assert torch.equal(permuted[stays], masked.tokens[stays])
    assert torch.equal(permuted.sort(dim=1).values, masked.tokens.sort(dim=1).values), "each sequence keeps its own tokens"
    assert (permuted == masked.tokens)[~stays].float().mean() < 0.02
    assert torch.equal(masker().permuted(masked, generator(0, 1)), permuted)
    assert not torch.equal(masker().permuted(masked, generator(0, 2)), permuted)


def test_a_token_comes_to_stand_at_every_visible_place_alike() -> None:
    tokens = torch.arange(5, 21).repeat(20_000, 1)
    tokens[:, 0] = 2
    masked = MaskedBatch(tokens, torch.full((20_000, 1), 15), tokens[:, 15:])
    permuted = masker(predictions=1).permuted(masked, generator(3, 1))
    counts = torch.bincount((permuted == 6).nonzero()[:, 1], minlength=16)
    assert counts[0] == counts[15] == 0
    expected = 20_000 / 14
    chi_square = ((counts[1:15] - expected) ** 2 / expected).sum().item()
    assert chi_square < 34.5  # 0.999 quantile at 13 degrees of freedom


def test_a_sequence_without_visible_tokens_stays_as_it_is() -> None:
    tokens = torch.full((1, 4), 3)
    masked = masker(predictions=2)(tokens, generator(0, 0))
    assert torch.equal(masker(predictions=2).permuted(masked, generator(0, 1)), tokens)


def test_worked_example_of_the_masked_word() -> None:
    """With 60% on the masked word the loss is −log 0.6 = 0.51."""
    logits = torch.log(torch.tensor([[0.1, 0.6, 0.3]]))
    assert F.cross_entropy(logits, torch.tensor([1])).item() == pytest.approx(0.51, abs=0.005)


def test_loss_is_the_mean_over_masked_tokens_only() -> None:
    """Two masked words at 0.6 and 0.25: (0.51 + 1.39) / 2 = 0.95; a position that is not predicted changes nothing."""
    logits = torch.log(torch.tensor([[0.1, 0.6, 0.3], [0.25, 0.5, 0.25], [0.98, 0.01, 0.01]]))
    labels = torch.tensor([1, 2, IGNORED])
    expected = (-math.log(0.6) - math.log(0.25)) / 2
    assert F.cross_entropy(logits, labels, ignore_index=IGNORED).item() == pytest.approx(expected)
    assert expected == pytest.approx(0.95, abs=0.005)
