"""A loss spike is a training loss far above those just before; a falling or a noisy loss has none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from study.model.lightning import MaskedLanguageModelling
from study.training.run import DEVIATIONS, ROWS_BEFORE, loss_spikes
from tests.small import config, trained, write_corpus


def curve(noise: float = 0.02, rows: int = 50, seed: int = 0) -> list[float]:
    """A loss that falls fast and then slowly, with the noise of rows that are means of many steps."""
    steps = np.arange(1, rows + 1)
    falling = 3 + 5 * steps**-0.5 + np.random.default_rng(seed).normal(0, noise, rows)
    return [float(loss) for loss in falling]


def test_a_loss_that_falls_with_the_noise_of_its_rows_has_no_spike() -> None:
    assert sum(loss_spikes(curve(seed=seed)) > 0 for seed in range(200)) <= 2


@pytest.mark.parametrize("row", [20, 25, 49])
def test_a_row_far_above_those_before_it_is_a_spike_and_so_is_one_among_several(row: int) -> None:
    losses = curve()
    losses[row] += 1.5
    assert loss_spikes(losses) == 1
    losses[row] -= 3.0
    assert loss_spikes(losses) == 0, "a fall is none"


def test_a_spike_begins_at_seven_deviations() -> None:
    before = [4.0, 4.2] * (ROWS_BEFORE // 2)
    edge = float(np.mean(before) + DEVIATIONS * np.std(before, ddof=1))
    assert loss_spikes([*before, edge + 1e-6]) == 1
    assert loss_spikes([*before, edge - 1e-6]) == 0
    assert loss_spikes([*before[1:], 9.0]) == 0, "too few rows to say"


def test_a_loss_that_hardly_moves_has_no_spike_and_a_missing_one_hides_none() -> None:
    assert loss_spikes([*[5.0] * 20, 5.01, *[5.0] * 20]) == 0
    assert loss_spikes([*[5.0] * 20, 5.1]) == 1, "in the last row, too"
    losses = curve()
    losses[30], losses[33] = float("nan"), 8.0
    assert loss_spikes(losses) == 1
    losses[33] = float("inf")
    assert loss_spikes(losses) == 0


@pytest.mark.slow
def test_a_run_whose_loss_spikes_says_so_in_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = config(write_corpus(tmp_path / "text.txt"), recipe={"budget": {"steps": 40}, "learning_rate": 1e-4})
    quiet = trained(tmp_path / "quiet", wanted).record()
    original = MaskedLanguageModelling.training_step

    def disturbed(self: MaskedLanguageModelling, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = original(self, batch, batch_idx)
        if self.trainer.global_step == 30:
            self._loss_sum += 4.0
        return loss

    monkeypatch.setattr(MaskedLanguageModelling, "training_step", disturbed)
    spiked = trained(tmp_path / "spiked", wanted).record()
    assert quiet is not None
    assert spiked is not None
    assert (quiet.loss_spikes, quiet.spike_note) == (0, None)
    assert (spiked.loss_spikes, spiked.spike_note) == (1, "its training loss spiked 1 time")
    assert spiked.exclusion is None, "a person decides what to make of it"
