"""The context of one attempt at a score, shared by all protocols."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from study.config.score_config import ScoreConfig
from study.counting.memory import Precision
from study.scoring.pretrained import Pretrained
from study.store.score_records import ScoreFolder
from study.training.attempts import StopSignal
from study.training.callbacks import Watchdog
from study.training.execution import Execution


@dataclass(frozen=True)
class ScoreAttempt:
    """The run to score, the score's folder, the execution, the checkpoint to resume from, and what may stop it.

    `check` is called before every write and raises where another process owns the score; `watchdog` requires that a training
    takes steps.
    """

    config: ScoreConfig
    run: Pretrained
    folder: ScoreFolder
    execution: Execution
    precision: Precision
    checkpoint: Path | None
    stop: StopSignal
    check: Callable[[], None]
    watchdog: Watchdog

    @property
    def in_int8(self) -> bool:
        """Whether the encoder is evaluated in int8; random weights are not."""
        return self.run.in_int8 and self.config.protocol != "random_init"
