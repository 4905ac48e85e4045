"""Metrics as JSON lines: one write a row, fsynced every few seconds, a torn tail repaired before appending."""

from __future__ import annotations

import errno
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from study.base.durable_files import content_of, retry_write, write_atomically
from study.store.metric_rows import whole_rows

FSYNC_SECONDS = 5.0


class MetricsFile(Logger):
    """Lightning's logger for a run's `metrics.jsonl`; opens at a step and drops rows past it, so that there is one history.

    Keys are those of the module (`train/loss`, `trainer/tokens`, …); Lightning's `epoch` is left out, since packed batches
    have no epochs. Rows that a killed attempt wrote past the step it resumes from are removed: they will be written again.
    The file is always a new one, so that an attempt that was taken for dead appends to nothing that anybody reads; `check`
    is asked before it and before each row, and raises where the run is no longer this attempt's.
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
        """Lightning's version of the logger; one file has one."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Nothing: the configuration is a file of its own."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one row, whole or not at all; raises OSError where the disk is full."""
        del step
        size = retry_write(lambda: os.fstat(self._file).st_size, check=self._check)
        row = {key: _number(value) for key, value in metrics.items() if key != "epoch"}
        line = json.dumps(row).encode() + b"\n"
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
    """The complete rows up to a step, none where there is no file; raises InputError at one that is damaged."""
    rows = whole_rows(io.BytesIO(content_of(path) or b""), str(path))
    return (line for line, _ in takewhile(lambda found: found[1]["trainer/step"] <= step, rows))
