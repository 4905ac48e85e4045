"""Runs that write what a run writes, without training."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from study.config.run_config import RunConfig
from study.store.records import RunRecord, counts_of
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder


def empty_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    """The folder of a sweep without runs, where nobody is logged in to W&B."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = tmp_path / "results" / "depth"
    path.mkdir(parents=True)
    return SweepFolder(path)


class FakeRun:
    """A run that writes rows and a record without training."""

    def __init__(self, folder: SweepFolder, seed: int = 0, run_id: str | None = None) -> None:
        self.config = RunConfig.parse(
            {
                "architecture": {"depth": 2, "width": 128, "heads": 2, "ffn": 512, "vocabulary": 2048},
                "recipe": {"learning_rate": "3e-3", "batch_tokens": 1024, "budget": {"steps": 100}},
                "data": {"tokenizer": {"vocabulary": 2048}},
                "seed": seed,
            }
        )
        self.folder: RunFolder = folder.run(run_id or self.config.fingerprint("data"))
        self.folder.write_config(self.config)
        self.sweep = folder.name
        self.steps = 0

    def write(self, count: int) -> None:
        with self.folder.metrics_file.open("a") as file:
            for _ in range(count):
                self.steps += 1
                file.write(json.dumps(self.row(self.steps)) + "\n")

    def row(self, step: int) -> dict[str, float]:
        row = {
            "trainer/step": step,
            "trainer/tokens": step * 1024,
            "trainer/flops": step * 1.1e9,
            "train/loss": 7.6 / step**0.1,
        }
        return row | ({"val/loss": 7.5 / step**0.1} if step % 10 == 0 else {"perf/mfu": 0.1 + step / 3e4})

    def end(self, **changes: Any) -> None:
        values: dict[str, Any] = {
            "run_id": self.folder.run_id,
            "sweep": self.sweep,
            "state": "COMPLETED",
            "config": self.config,
            "data_fingerprint": "data",
            "steps": self.steps,
            "tokens": self.steps * 1024,
            "loss_nats": 5.1,
            "attempts": 1,
            "started_at": "2026-01-01T00:00:00+00:00",
            "finished_at": "2026-01-01T00:01:00+00:00",
        }
        assert self.folder.file_record(RunRecord(**values | counts_of(self.config, self.steps) | changes))


class Steady:
    """Writes a row every 5 ms in a thread, as a run does, and keeps the longest time that one row took."""

    def __init__(self, run: FakeRun) -> None:
        self.slowest = 0.0
        self.run = run
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while not self._stop.wait(0.005):
            begin = time.perf_counter()
            self.run.write(1)
            self.slowest = max(self.slowest, time.perf_counter() - begin)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self.run.end()
