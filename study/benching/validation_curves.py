"""Loss against seconds of training, without validation."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch

EVALUATIONS = 12
"""Validations per training."""


class LossPoint(NamedTuple):
    """A validation during training."""

    seconds: float
    tokens: int
    loss: float


Curve = list[LossPoint]


class TrainingClock:
    """A pausable clock of training seconds."""

    def __init__(self) -> None:
        self._seconds, self._since = 0.0, math.nan

    def start(self) -> None:
        """Start or resume."""
        self._since = perf_counter()

    def pause(self) -> float:
        """Pause and return the seconds so far."""
        if not math.isnan(self._since):
            self._seconds, self._since = self._seconds + perf_counter() - self._since, math.nan
        return self._seconds


class CurveRecorder(pl.Callback):
    """Records each validation of a run with the training seconds before it."""

    def __init__(self) -> None:
        self.curve: Curve = []
        self._watch = TrainingClock()

    def on_train_start(self, *_: Any) -> None:
        """Start the clock."""
        self._watch.start()

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Pause the clock once the device is done."""
        if module.device.type == "cuda":
            torch.cuda.synchronize()
        self._watch.pause()

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Record the loss and resume."""
        tokens = module.steps_done * module.config.recipe.batch_tokens
        self.curve.append(LossPoint(self._watch.pause(), tokens, module.validation.loss))
        self._watch.start()

    def on_train_end(self, *_: Any) -> None:
        """Stop the clock before the final validation."""
        self._watch.pause()
