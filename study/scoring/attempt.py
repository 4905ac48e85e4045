"""What an attempt at a score works with, by whichever protocol it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from study.config.score_config import ScoreConfig
from study.counting.memory import Precision
from study.scoring.pretrained import Pretrained
from study.store.score_records import ScoreFolder
from study.training.execution import Execution
from study.training.stopping import StopSignal
from study.training.watchdog import Watchdog


@dataclass(frozen=True)
class ScoreAttempt:
    """What an attempt scores: a run, its folder, how it executes, the checkpoint that it goes on from, and what may stop it.

    `check` is asked before every write, and raises where the score is no longer this process's to make; `watchdog` sees that a
    training takes steps.
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
