"""Metrics as JSON lines: one write per row, fsynced every few seconds; a torn tail is repaired before appending."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from study.base.durable_files import content_of, retry_write, write_atomically
from study.store.work_folder import line_of, whole_rows

FSYNC_SECONDS = 5.0


class MetricsFile(Logger):
    """Lightning's logger for a run's `metrics.jsonl`, with one history over all attempts.

    Keys are the module's (`train/loss`, `trainer/tokens`, …) without Lightning's `epoch`, which packed batches lack. A killed
    attempt's rows after the resumed step are removed, since they will be written again. The file is replaced, so that an
    attempt presumed dead appends to an unread file. `check` is called before that and before each row, and raises if another
    attempt owns the run.
    """

    def __init__(self, path: Path, from_step: int, check: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.path, self._check = path, check
        retry_write(lambda: write_atomically(path, b"".join(_lines_to(path, from_step))), check=check)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._synced = time.monotonic()

    @property
    def name(self) -> str:
        """Lightning's name of the logger."""
        return "metrics"

    @property
    def version(self) -> str:
        """Lightning's version of the logger, unused."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: the configuration has its own file."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one row, whole or not at all; raises OSError if the disk is full."""
        del step
        size = retry_write(lambda: os.fstat(self._file).st_size, check=self._check)
        row = {key: _number(value) for key, value in metrics.items() if key != "epoch"}
        line = line_of(row)
        if os.write(self._file, line) != len(line):
            os.ftruncate(self._file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        if time.monotonic() - self._synced > FSYNC_SECONDS:
            self.save()

    @rank_zero_only
    def save(self) -> None:
        """Make the rows durable."""
        os.fsync(self._file)
        self._synced = time.monotonic()

    def close(self) -> None:
        """Make the rows durable and close the file."""
        self.save()
        os.close(self._file)


def _number(value: float) -> int | float:
    return int(value) if float(value).is_integer() else float(value)


def _lines_to(path: Path, step: int) -> Iterator[bytes]:
    """Return the complete rows up to a step; raises InputError at a damaged one."""
    rows = whole_rows(io.BytesIO(content_of(path) or b""), str(path))
    return (line_of(row) for _, row in takewhile(lambda row: row[1]["trainer/step"] <= step, rows))
