"""The mirror's use of wandb: settings, session and one W&B run a run."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path
from typing import Any, Literal

import wandb
from pydantic import ValidationError
from wandb.sdk.lib import wbauth

from study.base.durable_files import write_once
from study.base.errors import InputError, Problem
from study.base.schema import flatten, join_path
from study.config.run_config import RunConfig
from study.counting.parameters import parameters
from study.store.records import NO_COLUMNS, RunRecord, dotted
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.tracking.mirror_state import Mirrored, Tracked, state_file

Mode = Literal["online", "offline", "disabled"]

DEFAULT_PROJECT = "scaling-study"
INIT_SECONDS = 20.0
FINISH_SECONDS = 300.0

REQUESTS_PER_MINUTE = 100
"""The most requests with rows from all open W&B runs together; W&B allows 200 a project and minute."""

BATCH_SECONDS = 15.0
"""The shortest time for which wandb collects rows before sending."""

MOST_CHARACTERS = 128
"""The longest name of a run or group in W&B."""

EXCLUDED_TAG = "excluded"
"""The W&B tag of a run that fits leave out."""

logger = logging.getLogger(__name__)


class Unreachable(ConnectionError):
    """The W&B server refused or did not answer in time."""


def tracking_mode() -> Mode:
    """The mode in which wandb would track here, by WANDB_MODE, settings files and login.

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
    """End wandb's service process; the next W&B run starts another."""
    try:
        wandb.teardown()
    except ConnectionError as error:
        logger.warning("wandb's service had died: %s", error)


def _settings() -> wandb.Settings:
    """Settings of all W&B runs: metrics only (no console, code, git, host or system metrics), with bounded waits."""
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


class WandbRun:
    """The W&B run of one of our runs, built from the first row; raises Unreachable if the server is.

    Rows go out in batches, less often with more runs `beside` it; wandb itself retries what the server rejects as too much
    (429).
    """

    def __init__(self, folder: SweepFolder, source: RunFolder, mode: Tracked, beside: int = 0) -> None:
        if not re.fullmatch(r"[0-9a-f]{16}", source.run_id):
            raise InputError.at(str(source.path), "does not have a run id (16 hex digits) as its name")
        config = source.config()
        self.rows = source.rows()
        self._mode = mode
        self._state_file = state_file(folder, source)
        self._state_file.parent.mkdir(parents=True, exist_ok=True)
        self._state_file.unlink(missing_ok=True)
        for remains in folder.wandb.glob(f"*run-*-{source.run_id}*"):
            shutil.rmtree(remains)
        try:
            self._run = wandb.init(
                reinit="create_new",
                id=source.run_id,
                project=wandb.setup(settings=_settings()).settings.project or DEFAULT_PROJECT,
                group=folder.name[:MOST_CHARACTERS],
                job_type="pretrain",
                name=shortened(config.words(folder.distinguishing_knobs())),
                tags=[config.architecture.shape_name, *(tag[:64] for tag in folder.tags())],
                config=tracked_config(config),
                dir=str(folder.path),
                mode=mode,
                resume="allow" if mode == "online" else None,
                settings=wandb.Settings(x_file_stream_transmit_interval=batch_seconds(beside + 1)),
            )
        except wandb.errors.CommError as error:
            raise Unreachable(str(error)) from error
        self._folder = Path(self._run.dir).parent
        self._run.define_metric("trainer/tokens")
        self._run.define_metric("*", step_metric="trainer/tokens")

    def log_new_rows(self) -> None:
        """Log new rows, each under its line number."""
        for row in self.rows.new():
            step = self.rows.count - 1
            if step >= self._run.starting_step:
                self._run.log(row, step=step, commit=True)

    def close(self, record: RunRecord | None) -> Mirrored:
        """End the W&B run by its record, or as preempted without one, and note what W&B holds."""
        if record is None:
            self._run.mark_preempting()
        else:
            self._file(record)
        self._run.finish(exit_code=0 if record is not None and record.state == "COMPLETED" else 1)
        if not self._folder.is_dir():
            raise FileNotFoundError(f"{self._folder} was deleted while it was written")
        state = Mirrored(
            metrics_bytes=self.rows.bytes_seen,
            finished=record is not None,
            excluded=None if record is None else record.excluded,
            mode=self._mode,
            wandb_folder=self._folder.name,
        )
        write_once(self._state_file, state.model_dump_json().encode() + b"\n")  # touches no file of another run
        return state

    def abandon(self) -> None:
        """End the W&B run without a note, so that it is rebuilt."""
        self._run.finish(exit_code=1)

    def _file(self, record: RunRecord) -> None:
        """Show a record, and clear an earlier one of a retried run."""
        before = {name: None for name in ("reason", "exclusion", "excluded") if self._run.summary.get(name) is not None}
        self._run.summary.update(before | tracked_summary(record))
        if record.environment is not None:
            environment = flatten(record.environment.model_dump(exclude_none=True), "environment")
            self._run.config.update(environment, allow_val_change=True)
        tags = tuple(tag for tag in self._run.tags or () if tag != EXCLUDED_TAG)
        self._run.tags = tags if record.exclusion is None else (*tags, EXCLUDED_TAG)


def shortened(name: str) -> str:
    """A name within W&B's limit, with an ellipsis if cut."""
    return name if len(name) <= MOST_CHARACTERS else f"{name[: MOST_CHARACTERS - 1]}…"


def batch_seconds(runs: int) -> float:
    """How long each of these open runs collects rows, to stay below W&B's limit together."""
    return max(BATCH_SECONDS, 60.0 * runs / REQUESTS_PER_MINUTE)


def tracked_config(config: RunConfig) -> dict[str, Any]:
    """A run's configuration under dotted keys, with parameter totals and training FLOPs per token by convention.

    A teacher's FLOPs, which the configuration alone does not give, are in metrics and record.
    """
    flops = {f"flops_per_token.{convention}": flops for convention, flops in config.flops_per_token.items()}
    return dotted(config) | parameters(config.architecture).totals() | flops


def tracked_summary(record: RunRecord) -> dict[str, Any]:
    """The reached results of a record; `exclusion` exists if fits leave the run out."""
    values = record.model_dump(mode="json", exclude_none=True, exclude={*NO_COLUMNS})
    return values if record.exclusion is None else values | {"exclusion": record.exclusion}
