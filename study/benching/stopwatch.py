"""The speed of a training whose batches differ in tokens, timed from its own callback."""

from __future__ import annotations

from time import perf_counter

import torch
from torch import Tensor

from study.counting.memory import Device

WARM_UP = 5
"""Steps of each training that are not timed."""

STEPS: dict[Device, int] = {"cpu": 25, "cuda": 100}
"""Steps of each training that are, up to its end."""


class Stopwatch:
    """Counts the tokens and the seconds of the steps after WARM_UP."""

    def __init__(self, device: Device) -> None:
        self.device, self._tokens, self._seconds = device, 0, 0.0

    def step(self, number: int, tokens: int | Tensor) -> None:
        """Step `number`, from 1, is done, and `tokens` were read so far; a tensor is waited for only where it counts."""
        sign = {WARM_UP: -1, WARM_UP + STEPS[self.device]: 1}.get(number)
        if sign is not None:
            if self.device == "cuda":
                torch.cuda.synchronize()
            self._seconds += sign * perf_counter()
            self._tokens += sign * int(tokens)

    @property
    def tokens_per_second(self) -> float:
        """The speed, once the training has ended."""
        return self._tokens / self._seconds
