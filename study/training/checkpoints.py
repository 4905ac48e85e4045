"""Checkpoints that survive kills, full disks and flipped bits: each is new and verified before an old one is deleted."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pytorch_lightning.plugins.io import CheckpointIO

from study.base.durable_files import OUT_OF_REACH, PATIENCE_SECONDS, retry_write, sync_folder
from study.counting.memory import AskedPrecision, Device, Precision
from study.store.work_folder import checkpoint_name, checkpoints_in
from study.training.execution import LIGHTNING_PRECISION, Execution, resolve_precision

POSTPONABLE = {"postpone": True}
"""Storage options of a checkpoint that may be skipped while its folder is out of reach."""


class DurableCheckpointIO(CheckpointIO):
    """Lightning checkpoints in files with SHA-256 names; the two newest are kept.

    Each is written to a temporary file in its folder, fsynced, hashed as read back, and renamed to `step-<step>-<sha256>.ckpt`
    unless `check` raises; then the folder is fsynced and all but the newest two are deleted. Tensors load with
    `weights_only=True`, so a checkpoint executes nothing. While the folder is out of reach, postponable checkpoints are skipped
    for up to PATIENCE_SECONDS.
    """

    def __init__(self, check: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._check = check
        self._failing_since: float | None = None

    @property
    def saved(self) -> bool:
        """Whether the last checkpoint was written."""
        return self._failing_since is None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None) -> None:
        """Write `checkpoint` into the folder of `path` under its own name; raises OSError on failure."""
        folder = Path(path).parent
        try:
            if storage_options == POSTPONABLE:
                self._write(checkpoint, folder)
            else:
                retry_write(lambda: self._write(checkpoint, folder))
        except OSError as error:
            now = time.monotonic()
            self._failing_since = self._failing_since or now
            lasting = error.errno not in OUT_OF_REACH or now - self._failing_since > PATIENCE_SECONDS
            if storage_options != POSTPONABLE or lasting:
                raise
            warnings.warn(f"the checkpoint of step {checkpoint['global_step']} is postponed: {error}", stacklevel=2)
        else:
            self._failing_since = None

    def _write(self, checkpoint: dict[str, Any], folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        temporary = folder / f".step-{secrets.token_hex(4)}.tmp"  # by tempfile it would be closed to others, whatever the umask
        try:
            with temporary.open("x+b") as file:
                _serialise(checkpoint, file)
                os.fsync(file.fileno())
                file.seek(0)
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if self._check is not None:
                self._check()
            os.replace(temporary, folder / checkpoint_name(checkpoint["global_step"], digest))
        except BaseException:
            with contextlib.suppress(OSError):  # a later owner of the run may have removed it, or the folder is out of reach
                temporary.unlink()
            raise
        sync_folder(folder)
        for older in checkpoints_in(folder)[:-2]:
            self.remove_checkpoint(older)

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint, tensors only."""
        del weights_only
        checkpoint: dict[str, Any] = torch.load(path, map_location=map_location or "cpu", weights_only=True)
        return checkpoint

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove one checkpoint."""
        Path(path).unlink(missing_ok=True)


def _serialise(checkpoint: dict[str, Any], file: Any) -> None:
    """Write a checkpoint's bytes; raise a full disk's error, which torch hides."""
    try:
        torch.save(checkpoint, file)
        file.flush()
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def precision_of(requested: AskedPrecision, checkpoint: Path | None, device: Device) -> Precision:
    """Return the training precision; `auto` means the checkpoint's, else the device's."""
    kept = _training_of(checkpoint).precision if requested == "auto" and checkpoint is not None else None
    return kept or resolve_precision(requested, device)


def resumed(execution: Execution, checkpoint: Path | None) -> Execution:
    """Return the execution with a checkpoint's threads on a CPU, whose number changes the last bits."""
    kept = _training_of(checkpoint).threads if checkpoint is not None and execution.device == "cpu" else None
    return execution if kept is None else execution.model_copy(update={"threads": kept})


class _TrainedWith(NamedTuple):
    """How a checkpoint was trained, None for what it does not store."""

    precision: Precision | None
    threads: int | None


@lru_cache(maxsize=1)
def _training_of(checkpoint: Path) -> _TrainedWith:
    """How a checkpoint was trained, read once."""
    stored: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    names = {name: precision for precision, name in LIGHTNING_PRECISION.items()}
    return _TrainedWith(names.get(stored.get("precision", "")), stored.get("threads"))


def newest_whole_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint with the SHA-256 in its name; damaged ones are set aside."""
    for path in reversed(checkpoints_in(folder)):
        with contextlib.suppress(FileNotFoundError):  # another rank may have set it aside
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if path.stem.endswith(digest):
                return path
            warnings.warn(f"{path} is damaged (its SHA-256 is {digest}); the checkpoint before it is used", stacklevel=2)
            path.rename(path.with_suffix(".damaged"))
    return None
