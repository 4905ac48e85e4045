"""A trained model that gives lessons to one that is trained (see MaskedLanguageModel.predicted_loss)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from study.data.masking import MaskedBatch
from study.model.masked_language_model import Lesson, MaskedLanguageModel


@dataclass(frozen=True)
class Tutor:
    """A trained model, the share of its predictions in the student's loss, and their temperature.

    It is no module, so that no optimiser, checkpoint or count of the student's parameters ever sees its weights.
    """

    model: MaskedLanguageModel
    weight: float
    temperature: float

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(False)

    @torch.no_grad()
    def lesson(self, masked: MaskedBatch) -> Lesson:
        """What the model predicts at the masked positions, which it sees masked as the student does."""
        return Lesson(self.model(masked.tokens, masked.positions), self.weight, self.temperature)
