"""Where a sweep is, read from its folder: nothing here asks a coordinator or a tracker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from study.ownership import is_locked
from study.records import RunFolder, SweepFolder

TAIL_BYTES = 4096


@dataclass(frozen=True)
class RunStatus:
    """Where one run is: its state is that of its record, `running`, or `stopped` where no process trains it now."""

    run_id: str
    shape: str
    learning_rate: float
    seed: int
    state: str
    tokens: int
    target_tokens: int
    loss_nats: float | None
    tokens_per_second: float | None
    reason: str | None


@dataclass(frozen=True)
class SweepStatus:
    """Where a sweep is: its runs, and who coordinates it now, None where nobody does."""

    name: str
    coordinator: Mapping[str, Any] | None
    runs: tuple[RunStatus, ...]

    def count(self, state: str) -> int:
        """Runs in a state."""
        return sum(run.state == state for run in self.runs)

    def to_dict(self) -> dict[str, Any]:
        """The status as plain values."""
        states = sorted({run.state for run in self.runs})
        counts = {state: self.count(state) for state in states}
        return {
            "sweep": self.name,
            "coordinator": self.coordinator,
            "counts": counts,
            "runs": [asdict(run) for run in self.runs],
        }


def status(folder: SweepFolder) -> SweepStatus:
    """Read where a sweep and its runs are."""
    coordinator = None
    if is_locked(folder.lock_file) and folder.holder_file.exists():
        coordinator = json.loads(folder.holder_file.read_bytes())
    return SweepStatus(folder.name, coordinator, tuple(_run_status(folder, run) for run in folder.runs()))


def _run_status(folder: SweepFolder, run: RunFolder) -> RunStatus:
    record, home = run.record(), folder.home(run.run_id)
    config = run.config() if record is None else record.config
    values = newest_values(run if record else home)
    state: str = "running" if is_locked(home.lock_file) else "stopped"
    tokens, loss = values.get("trainer/tokens", 0), values.get("val/loss")
    if record is not None:
        state, tokens, loss = record.state, record.tokens, record.loss_nats
    return RunStatus(
        run_id=run.run_id,
        shape=config.architecture.shape_name,
        learning_rate=config.recipe.learning_rate,
        seed=config.seed,
        state=state,
        tokens=tokens,
        target_tokens=config.tokens,
        loss_nats=loss,
        tokens_per_second=record.tokens_per_second if record else values.get("perf/tokens_per_second"),
        reason=record.exclusion if record else None,
    )


def newest_values(run: RunFolder) -> dict[str, Any]:
    """The newest value of each metric of a run, read from the end of its file."""
    try:
        with run.metrics_file.open("rb") as file:
            start = max(0, run.metrics_file.stat().st_size - TAIL_BYTES)
            file.seek(start)
            lines = file.read().split(b"\n")[1 if start else 0 : -1]
    except FileNotFoundError:
        return {}
    values: dict[str, Any] = {}
    for line in lines:
        values |= json.loads(line)
    return values
