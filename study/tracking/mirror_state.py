"""What W&B holds of a sweep, noted in `wandb/mirrored/`; needs no wandb."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import quote

from pydantic import Field

from study.base.durable_files import content_of, files_below, is_there, json_value, names_in, stays_in
from study.base.errors import UNREADABLE, InputError
from study.base.quantities import plural
from study.base.schema import Index, Strict
from study.base.text import joined
from study.store.named_files import parsed
from study.store.run_folder import RunFolder
from study.store.score_records import scores_by_run
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import size_of

Tracked = Literal["online", "offline"]

Scores = Mapping[str, float]
"""The downstream scores of a run by name (study.store.score_records.scores_by_run)."""

NO_SCORES: Scores = {}

logger = logging.getLogger(__name__)


class InWandb(Strict):
    """A W&B run: in what mode it was written, its folder, and the address of its project if it is on a server."""

    mode: Tracked
    wandb_folder: str
    project_url: str | None = None


class Mirrored(InWandb):
    """What W&B holds of one run.

    Metrics up to a size, its record if finished, a person's exclusion, its downstream scores, and whether its weights.
    """

    metrics_bytes: Index
    finished: bool
    excluded: str | None = None
    scores: dict[str, float] = Field(default_factory=dict)
    weights: bool = False

    def covers(self, run: RunFolder, mode: Tracked, scores: Scores, weights: bool = False) -> bool:
        """Whether W&B holds all that the run wrote, these scores, and requested weights.

        Online covers offline, not the reverse.
        """
        if (mode == "online" and self.mode == "offline") or self.finished != run.ended:
            return False
        if self.finished:
            lacks_weights = weights and not self.weights and has_weights(run)
            whole = size_of(run.metrics_file) in (0, self.metrics_bytes)  # 0: the rows are packed
            return self.excluded == run.excluded() and self.scores == scores and whole and not lacks_weights
        return self.metrics_bytes == size_of(run.metrics_file)


class MirroredAnswer(InWandb):
    """What W&B holds of a sweep's answer: the SHA-256 of its text and images."""

    sha256: str


StateT = TypeVar("StateT", bound=InWandb)

ANSWER = "answer"
"""The name of the answer's state, and the job type of its W&B run."""


def state_file(folder: SweepFolder, name: str) -> Path:
    """Return the file that notes what W&B holds of a run, by its id, or of the ANSWER."""
    return folder.wandb / "mirrored" / f"{name}.json"


def read_state(folder: SweepFolder, name: str, kind: type[StateT]) -> StateT | None:
    """Return what W&B holds of a run or the answer, if known and there."""
    file = state_file(folder, name)
    if (content := content_of(file)) is None:
        return None
    try:
        state = kind.parse(json_value(content))
    except (ValueError, InputError) as error:
        logger.warning("%s is damaged; what it describes is mirrored again: %s", file, error)
        return None
    return state if state.mode == "online" or (folder.wandb / state.wandb_folder).is_dir() else None


def own_files(files: Iterable[Path], folder: Path) -> list[Path]:
    """Return the files without links out of a folder."""
    return [file for file in files if is_there(file) and stays_in(file, folder)]


def has_weights(run: RunFolder) -> bool:
    """Whether a run has weights of its own."""
    return bool(own_files([run.weights_file], run.path))


def images(folder: SweepFolder) -> list[Path]:
    """Return the figures that W&B shows: those drawn as PNG."""
    drawn = (folder.figures / name for name in names_in(folder.figures) if name.endswith(".png"))
    return [file for file in drawn if stays_in(file, folder.path)]


def answer_files(folder: SweepFolder) -> list[Path]:
    """Return the files of an answer, without links out of the sweep's folder."""
    tables = (folder.ledger_file, folder.scores_file)
    files = [folder.answer_file, folder.sweep_file, *tables, *(file.with_suffix(".csv") for file in tables)]
    files += [file for part in (folder.figures, folder.fits) if is_there(part) for file in files_below(part)]
    return own_files(files, folder.path)


def answer_sha256(folder: SweepFolder) -> str | None:
    """Return the SHA-256 of a sweep's answer and its images, if any."""
    if not stays_in(folder.answer_file, folder.path) or (text := content_of(folder.answer_file)) is None:
        return None
    digest = hashlib.sha256(text)
    for image in images(folder):
        digest.update(image.name.encode() + image.read_bytes())
    return digest.hexdigest()


def answer_is_held(folder: SweepFolder, mode: Tracked) -> bool:
    """Whether W&B holds the answer, if any."""
    if (sha256 := answer_sha256(folder)) is None:
        return True
    state = read_state(folder, ANSWER, MirroredAnswer)
    return state is not None and state.sha256 == sha256 and not (mode == "online" and state.mode == "offline")


def left_behind(folder: SweepFolder) -> list[str]:
    """Return the ids of runs, and ANSWER, that W&B does not hold completely."""
    try:
        scores = scores_by_run(folder)
    except UNREADABLE:
        scores = {}  # whoever reads the scores reports it
    runs = [run.run_id for run in folder.runs() if has_written(run) and not _is_covered(folder, run, scores)]
    return [*runs, *([] if answer_is_held(folder, "offline") else [ANSWER])]


def _is_covered(folder: SweepFolder, run: RunFolder, scores: Mapping[str, Scores]) -> bool:
    state = read_state(folder, run.run_id, Mirrored)
    return state is not None and state.covers(run, "offline", scores.get(run.run_id, NO_SCORES))


def left_in_words(left: list[str]) -> str:
    """Return what `left_behind` names, in words."""
    runs = sum(name != ANSWER for name in left)
    return joined([*([plural(runs, "run")] if runs else []), *(["the answer"] if ANSWER in left else [])])


def has_written(run: RunFolder) -> bool:
    """Whether a run has written anything that W&B shows."""
    return run.ended or run.holds(run.metrics_file)


class Views(Strict):
    """The addresses of the workspace and the report of a sweep."""

    workspace: str
    report: str


VIEWS = "views"
"""The name of the state that holds them."""


def read_views(folder: SweepFolder) -> Views | None:
    """Return a sweep's workspace and report, if saved; raises InputError."""
    return parsed(content_of(file := state_file(folder, VIEWS)), str(file), Views, "remove it to save new ones")


def page_of(folder: SweepFolder) -> str | None:
    """Return the address of a sweep's group on W&B's server, if there."""
    project_url = project_of(folder)
    return None if project_url is None else f"{project_url}/groups/{quote(wandb_group(folder), safe='')}/workspace"


def project_of(folder: SweepFolder) -> str | None:
    """Return the address of a sweep's project on W&B's server, if there."""
    runs = (read_state(folder, run.run_id, Mirrored) for run in folder.runs())
    for state in chain([read_state(folder, ANSWER, MirroredAnswer)], runs):
        if state is not None and state.mode == "online" and state.project_url is not None:
            return state.project_url
    return None


MOST_CHARACTERS = 128
"""The longest name of a run or group in W&B."""


def wandb_group(folder: SweepFolder) -> str:
    """Return the W&B group of a sweep's runs."""
    return folder.name[:MOST_CHARACTERS]
