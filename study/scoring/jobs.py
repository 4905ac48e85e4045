"""Scores and baselines that are to be made, as the coordinator hands them to its workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from study.config.score_config import Knobs, ScoreConfig
from study.store.run_folder import RunFolder
from study.store.score_records import ScoreFolder, score_folder
from study.store.sweep_folder import SweepFolder
from study.tasks.task_spec import Kind


@dataclass(frozen=True)
class Job:
    """A score to make: which, of the run in which folder, on the task of which kind and name or file, read from which data."""

    config: ScoreConfig
    run: Path
    sweep: str
    kind: Kind
    task: str
    data: Path | None

    @cached_property
    def score_id(self) -> str:
        """The score's id."""
        return self.config.fingerprint()

    @property
    def folder(self) -> ScoreFolder:
        """Where the score lies."""
        return score_folder(RunFolder(self.run), self.score_id)

    @property
    def log_file(self) -> Path:
        """Where its output goes."""
        return self.folder.log_file


@dataclass(frozen=True)
class BaselineJob:
    """What a task gives without an encoder, to be made; word counts of minimal pairs are of the text that the run has read."""

    sweep: Path
    run: Path
    task: str
    name: str
    fingerprint: str
    data: Path | None
    knobs: Knobs

    @property
    def score_id(self) -> str:
        """What tells the job from others."""
        return f"baselines of {self.name} {self.fingerprint}"

    @property
    def log_file(self) -> Path:
        """Where its output goes."""
        return SweepFolder(self.sweep).baselines / f"{self.name}-{self.fingerprint}.txt"
