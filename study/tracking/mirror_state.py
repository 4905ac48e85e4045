"""What W&B holds of each run, noted in `wandb/mirrored/<run id>.json`; needs no wandb."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from study.base.durable_files import content_of, json_value
from study.base.errors import InputError
from study.base.schema import Index, Strict
from study.store.metric_rows import size_of
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder

Tracked = Literal["online", "offline"]

logger = logging.getLogger(__name__)


class Mirrored(Strict):
    """What W&B holds of one run: metrics up to a size, its record if finished, and a person's exclusion."""

    metrics_bytes: Index
    finished: bool
    excluded: str | None = None
    mode: Tracked
    wandb_folder: str

    def covers(self, run: RunFolder, mode: Tracked) -> bool:
        """Whether W&B holds all that the run wrote; online covers offline, not the reverse."""
        if (mode == "online" and self.mode == "offline") or self.finished != run.ended:
            return False
        if self.finished:
            return self.excluded == run.excluded()
        return self.metrics_bytes == size_of(run.metrics_file)


def state_file(folder: SweepFolder, run: RunFolder) -> Path:
    """The file that notes what W&B holds of a run."""
    return folder.wandb / "mirrored" / f"{run.run_id}.json"


def read_state(folder: SweepFolder, run: RunFolder) -> Mirrored | None:
    """What W&B holds of a run; None if unknown, or its offline folder is gone."""
    file = state_file(folder, run)
    if (content := content_of(file)) is None:
        return None
    try:
        state = Mirrored.parse(json_value(content))
    except (ValueError, InputError) as error:
        logger.warning("%s is damaged; the run is mirrored again: %s", file, error)
        return None
    return state if state.mode == "online" or (folder.wandb / state.wandb_folder).is_dir() else None


def left_behind(folder: SweepFolder) -> list[str]:
    """The ids of runs that W&B does not hold completely."""
    return [run.run_id for run in folder.runs() if has_written(run) and not _is_covered(folder, run)]


def _is_covered(folder: SweepFolder, run: RunFolder) -> bool:
    state = read_state(folder, run)
    return state is not None and state.covers(run, "offline")


def has_written(run: RunFolder) -> bool:
    """Whether a run has written anything that W&B shows."""
    return run.ended or run.holds(run.metrics_file)
