"""The mirror's use of wandb: settings, session, one W&B run a run, and one for the answer."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import wandb
from pydantic import ValidationError
from wandb.sdk.lib import wbauth

from study.base.durable_files import write_once
from study.base.errors import InputError, Problem
from study.base.schema import flatten, join_path
from study.config.run_config import RunConfig, fingerprint_of
from study.counting.parameters import parameters
from study.store.records import NO_COLUMNS, RunRecord, dotted
from study.store.run_folder import RunFolder
from study.store.score_records import DOWNSTREAM
from study.store.sweep_folder import SweepFolder
from study.tracking.code_state import CodeState, code_of
from study.tracking.mirror_state import (
    ANSWER,
    MOST_CHARACTERS,
    Mirrored,
    MirroredAnswer,
    Scores,
    StateT,
    Tracked,
    answer_files,
    answer_sha256,
    has_weights,
    images,
    own_files,
    state_file,
    wandb_group,
)

Mode = Literal["online", "offline", "disabled"]

DEFAULT_PROJECT = "scaling-study"
INIT_SECONDS = 20.0
FINISH_SECONDS = 300.0

REQUESTS_PER_MINUTE = 100
"""The most requests with rows from all open W&B runs together; W&B allows 200 a project and minute."""

BATCH_SECONDS = 15.0
"""The shortest time for which wandb collects rows before sending."""

MOST_OF_NOTES = 20_000
"""The most characters of an answer that are shown as notes."""

EXCLUDED_TAG = "excluded"
"""The W&B tag of a run that fits leave out."""

logger = logging.getLogger(__name__)


class Unreachable(ConnectionError):
    """The W&B server refused or did not answer in time."""


def tracking_mode() -> Mode:
    """Return the mode in which wandb would track here, by WANDB_MODE, settings files and login.

    Reads the environment, wandb's settings and netrc; never prompts, uses the network or prints a secret. Raises InputError for
    a setting that wandb refuses.
    """
    try:
        settings = wandb.setup(settings=_settings()).settings
    except ValidationError as error:
        details = error.errors(include_input=False)
        raise InputError(Problem(f"W&B setting {join_path(*detail['loc'])}", detail["msg"]) for detail in details) from None
    except wandb.errors.UsageError as error:
        raise InputError.at("W&B settings", str(error)) from None
    if settings.mode == "disabled":
        return "disabled"
    if settings.mode in ("offline", "dryrun"):
        return "offline"
    try:
        login = wbauth.authenticate_session(host=settings.base_url, source="study", prompt=False, update_session=False)
    except wandb.errors.AuthenticationError as error:
        logger.warning("the W&B login cannot be used, mirroring offline: %s", error)
        return "offline"
    return "online" if login else "offline"


def end_session() -> None:
    """End wandb's service process, and close the logs of runs that never began."""
    try:
        wandb.teardown()
    except ConnectionError as error:
        logger.warning("wandb's service had died: %s", error)
    of_wandb = logging.getLogger("wandb")
    for handler in [one for one in of_wandb.handlers if isinstance(one, logging.FileHandler)]:
        of_wandb.removeHandler(handler)
        handler.close()


def _settings() -> wandb.Settings:
    """Return the settings of all W&B runs: bounded waits, no console, host or system metrics, only the launch's code."""
    return wandb.Settings(
        silent=True,
        console="off",
        symlink=False,
        use_dot_wandb=False,
        disable_code=True,
        disable_git=True,
        label_disable=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        init_timeout=INIT_SECONDS,
        finish_timeout=FINISH_SECONDS,
        finish_timeout_raises=True,
    )


class _Opened:
    """A W&B run that replaces an earlier one of its id; raises Unreachable."""

    def __init__(
        self, folder: SweepFolder, noted_as: str, run_id: str, mode: Tracked, code: CodeState | None, beside: int, **facts: Any
    ) -> None:
        self._mode = mode
        self._state_file = state_file(folder, noted_as)
        self._state_file.parent.mkdir(parents=True, exist_ok=True)
        self._state_file.unlink(missing_ok=True)
        for remains in folder.wandb.glob(f"*run-*-{run_id}*"):
            shutil.rmtree(remains)
        try:
            self._run = wandb.init(
                reinit="create_new",
                id=run_id,
                project=wandb.setup(settings=_settings()).settings.project or DEFAULT_PROJECT,
                group=wandb_group(folder),
                dir=str(folder.path),
                mode=mode,
                resume="allow" if mode == "online" else None,
                settings=wandb.Settings(
                    x_file_stream_transmit_interval=batch_seconds(beside + 1),
                    git_commit=None if code is None else code.commit,
                    git_remote_url=None if code is None else code.remote,
                ),
                **facts,
            )
        except wandb.errors.CommError as error:
            server, why = wandb.setup(settings=_settings()).settings.base_url, " ".join(str(error).split())
            raise Unreachable(f"the W&B server {server} refuses or does not answer; study sync tries again: {why}") from error
        self._folder = Path(self._run.dir).parent

    def abandon(self) -> None:
        """End the W&B run without a note, so that it is rebuilt."""
        self._run.finish(exit_code=1)

    def _note(self, kind: type[StateT], exit_code: int, **held: Any) -> StateT:
        project_url = self._run.project_url if self._mode == "online" else None
        self._run.finish(exit_code=exit_code)
        if not self._folder.is_dir():
            raise FileNotFoundError(f"{self._folder} was deleted while it was written")
        state = kind(mode=self._mode, wandb_folder=self._folder.name, project_url=project_url, **held)
        write_once(self._state_file, state.model_dump_json().encode() + b"\n")  # touches no file of another run
        return state

    def _log_files(self, name: str, kind: str, files: list[Path], base: Path, facts: dict[str, Any]) -> None:
        """Log files as an artifact, named by their paths below `base`."""
        artifact = wandb.Artifact(re.sub(r"[^\w.-]+", "-", name)[:MOST_CHARACTERS], kind, metadata=facts)
        for file in files:
            artifact.add_file(str(file), file.relative_to(base).as_posix(), skip_cache=True, policy="immutable")
        self._run.log_artifact(artifact)


class WandbRun(_Opened):
    """The W&B run of one of our runs, built from the first row.

    Rows go out in batches, less often with more runs `beside` it.
    """

    def __init__(self, folder: SweepFolder, source: RunFolder, mode: Tracked, beside: int = 0) -> None:
        if not re.fullmatch(r"[0-9a-f]{16}", source.run_id):
            raise InputError.at(str(source.path), "does not have a run id (16 hex digits) as its name")
        config, record = source.config(), source.record()
        self._source, self.rows = source, source.rows()
        self._steps = 0
        code = code_of(folder, None if record is None else record.started_at)
        super().__init__(
            folder,
            source.run_id,
            source.run_id,
            mode,
            code,
            beside,
            job_type="pretrain",
            name=shortened(config.words(folder.distinguishing_knobs())),
            tags=[config.architecture.shape_name, *(tag[:64] for tag in folder.tags())],
            config=tracked_config(config) | ({} if code is None else {"code.changed": code.diff != ""}),
        )
        self._run.define_metric("trainer/tokens")
        self._run.define_metric("*", step_metric="trainer/tokens")

    def log_new_rows(self) -> None:
        """Log new rows, each under its line number."""
        for row in self.rows.new():
            self._steps = row.get("trainer/step", self._steps)
            step = self.rows.count - 1
            if step >= self._run.starting_step:
                self._run.log(row, step=step, commit=True)

    def why_not_whole(self, record: RunRecord | None) -> str | None:
        """Why the rows are not all that a completed run wrote, if so."""
        if record is None or record.state != "COMPLETED" or self._steps >= record.steps:
            return None
        file, remedy = self._source.metrics_file, "fetch the whole file, then sync again"
        return f"{file} ends at step {self._steps:,} of {record.steps:,}, and so do the curves in W&B; {remedy}"

    def close(self, record: RunRecord | None, scores: Scores, weights: bool = False) -> Mirrored:
        """End the W&B run by its record and scores, or as preempted without a record, and note what W&B holds.

        `weights` asks for those of a completed run as an artifact.
        """
        weights = weights and record is not None and has_weights(self._source)
        if record is None:
            self._run.mark_preempting()
        else:
            self._file(record, scores)
            if weights:
                self._log_weights(record)
        return self._note(
            Mirrored,
            exit_code=0 if record is not None and record.state == "COMPLETED" else 1,
            metrics_bytes=self.rows.bytes_seen,
            finished=record is not None,
            excluded=None if record is None else record.excluded,
            scores={} if record is None else dict(scores),
            weights=weights,
        )

    def _file(self, record: RunRecord, scores: Scores) -> None:
        """Show a record and scores, and clear those of an earlier record."""
        shown = [*self._run.summary.keys()]
        earlier = [name for name in shown if name in ("reason", "exclusion", "excluded") or name.startswith(DOWNSTREAM)]
        self._run.summary.update(dict.fromkeys(earlier) | tracked_summary(record) | dict(scores))
        if record.environment is not None:
            environment = flatten(record.environment.model_dump(exclude_none=True), "environment")
            self._run.config.update(environment, allow_val_change=True)
        tags = tuple(tag for tag in self._run.tags or () if tag != EXCLUDED_TAG)
        self._run.tags = tags if record.exclusion is None else (*tags, EXCLUDED_TAG)

    def _log_weights(self, record: RunRecord) -> None:
        source = self._source
        files = own_files([source.weights_file, source.config_file, source.record_file], source.path)
        facts = {"shape": record.config.architecture.shape_name, "loss_nats": record.loss_nats, "tokens": record.tokens}
        facts |= {"weights_sha256": record.weights_sha256}
        self._log_files(f"weights-{source.run_id}", "model", files, source.path, facts)


class WandbAnswer(_Opened):
    """The W&B run of a sweep's answer: text as notes, figures as images, tables, and all of its files as an artifact."""

    def __init__(self, folder: SweepFolder, mode: Tracked) -> None:
        self._sweep = folder
        self._code = code_of(folder, None)
        super().__init__(
            folder,
            ANSWER,
            fingerprint_of({"answer of": folder.name}),
            mode,
            self._code,
            0,
            job_type=ANSWER,
            name=shortened(f"answer of {folder.name}"),
            notes=in_view(folder.answer_file.read_text(encoding="utf-8", errors="replace")),
            config={"question": folder.sweep().question, "expect": folder.sweep().expect},
        )

    def log(self) -> None:
        """Log what `study report` wrote, end the W&B run, and note what W&B holds."""
        try:
            sha256 = answer_sha256(self._sweep)
            self._log_all()
            self._note(MirroredAnswer, exit_code=0, sha256=sha256)
        except Exception:
            self.abandon()
            raise

    def _log_all(self) -> None:
        sweep, files = self._sweep, answer_files(self._sweep)
        shown: dict[str, Any] = {
            f"figures/{image.stem}": wandb.Image(str(image), caption=image.stem) for image in images(sweep)
        }
        for file in (sweep.ledger_file, sweep.scores_file):
            if file in files:
                table = pd.read_parquet(file).dropna(axis="columns", how="all").astype(object)
                shown[file.stem] = wandb.Table(dataframe=table, allow_mixed_types=True)
        if shown:
            self._run.log(shown)
        if self._code is not None and self._code.diff:
            patch = Path(self._run.dir) / "diff.patch"
            patch.write_text(self._code.diff, encoding="utf-8")
            self._run.save(patch, base_path=self._run.dir, policy="now", glob=False)
        self._log_files(f"answer-{sweep.name}", "answer", files, sweep.path, {})


def in_view(answer: str) -> str:
    """Return the part of an answer above its folds, without figures and their captions, as W&B shows notes."""
    above = answer.partition("\n<details")[0]
    return re.sub(r"!\[[^\]]*\]\([^)]*\)\n+(?:\*(?:\\.|[^*\n])+\*\n+)?", "", above)[:MOST_OF_NOTES].strip()


def shortened(name: str) -> str:
    """Return a name within W&B's limit, with an ellipsis if cut."""
    return name if len(name) <= MOST_CHARACTERS else f"{name[: MOST_CHARACTERS - 1]}…"


def batch_seconds(runs: int) -> float:
    """How long each of these open runs collects rows, to stay below W&B's limit together."""
    return max(BATCH_SECONDS, 60.0 * runs / REQUESTS_PER_MINUTE)


def tracked_config(config: RunConfig) -> dict[str, Any]:
    """Return a run's configuration under dotted keys, with parameter totals and training FLOPs per token by convention.

    A teacher's FLOPs, which the configuration alone does not give, are in metrics and record.
    """
    flops = {f"flops_per_token.{convention}": flops for convention, flops in config.flops_per_token.items()}
    return dotted(config) | parameters(config.architecture).totals() | flops


def tracked_summary(record: RunRecord) -> dict[str, Any]:
    """Return the reached results of a record; `exclusion` exists if fits leave the run out."""
    values = record.model_dump(mode="json", exclude_none=True, exclude={*NO_COLUMNS})
    return values if record.exclusion is None else values | {"exclusion": record.exclusion}
