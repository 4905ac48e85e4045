"""What a person sees while a sweep runs: bars, and a line for each run that ended."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from rich.console import Console
from rich.progress import TaskID, TimeElapsedColumn, TimeRemainingColumn

from study.base.quantities import plural
from study.base.terminal import WHOLE, bars, say
from study.base.text import printable
from study.config.run_config import RunConfig
from study.running.coordinator import Progress as SweepProgress
from study.running.liveness import signs_of
from study.running.status_tables import silence
from study.store.metric_rows import newest_values
from study.store.records import RunRecord
from study.store.sweep_folder import SweepFolder

BARS = 12
"""How many running runs have a bar of their own, those first that began first: drawing a thousand takes seconds."""


class LaunchDisplay:
    """Bars on a terminal for the sweep and its running runs; a line a run that ended, on a terminal or in a log."""

    def __init__(self, console: Console, folder: SweepFolder, data_fingerprint: str, expected_runs: int) -> None:
        self.console, self.folder, self.data_fingerprint, self.expected_runs = console, folder, data_fingerprint, expected_runs
        self._varied = folder.told_apart_by()
        self.progress = bars(
            console,
            "{task.percentage:>3.0f}%",
            TimeElapsedColumn(table_column=WHOLE),
            "left",
            TimeRemainingColumn(elapsed_when_finished=True, table_column=WHOLE),
        )
        self._sweep = self.progress.add_task(folder.name, total=expected_runs, note="")
        self._tasks: dict[str, TaskID] = {}
        self._shown: set[str] | None = None
        self._held: set[str] = set()

    def refresh(self, state: SweepProgress) -> None:
        """Show where the sweep is."""
        self._show_ended(state)
        self._show_held(state)
        begun = len(state.ended) + len(state.running)
        total = max(begun + state.waiting, self.expected_runs)
        shown = dict(islice(state.running.items(), BARS))
        shares = {key: self._share(key, config) for key, config in shown.items()}
        done = len(state.ended) + sum(shares.values())
        self.progress.update(self._sweep, completed=done, total=total, note=f"{len(state.ended)} of {total} runs")
        for key in [key for key in self._tasks if key not in shown]:
            self.progress.remove_task(self._tasks.pop(key))

    def _show_ended(self, state: SweepProgress) -> None:
        if self._shown is None:
            self._shown = set(state.ended)
            if self._shown:
                are = "is" if len(self._shown) == 1 else "are"
                say(self.console, f"{plural(len(self._shown), 'run')} {are} there already")
        for key, record in state.ended.items():
            if key not in self._shown:
                self._shown.add(key)
                say(self.console, printable(ended_line(record, self._varied)))

    def _show_held(self, state: SweepProgress) -> None:
        for key, (config, who) in state.held.items():
            if key not in self._held:
                self._held.add(key)
                line = f"WAITS     {config.words(self._varied)}: is being trained by {who}"
                say(self.console, printable(line))

    def _share(self, key: str, config: RunConfig) -> float:
        """Update the bar of one run; the share of its steps that are done."""
        if key not in self._tasks:
            self._tasks[key] = self.progress.add_task(config.words(self._varied), total=config.tokens, note="starting")
        home = self.folder.home(config.fingerprint(self.data_fingerprint))
        rows = home.newest_rows()
        values = newest_values(rows)
        tokens, speed = values.get("trainer/tokens", 0), values.get("perf/tokens_per_second")
        note = silence(signs_of(home, rows)) or ("" if speed is None else f"{speed:,.0f} tokens/s")
        self.progress.update(self._tasks[key], completed=tokens, note=note)
        return float(tokens) / config.tokens if config.tokens else 0.0


def ended_line(record: RunRecord, varied: Sequence[str]) -> str:
    """What became of a run, in a line."""
    label = record.config.words(varied)
    if record.state != "COMPLETED" or record.loss_nats is None:
        return f"{record.state:<9} {label}: {record.reason}"
    note = "" if record.trunk is None else f" for its own {record.spent_tokens:,}"
    note += "".join(f"; {what}" for what in (record.spike_note, record.order_note) if what)
    return (
        f"COMPLETED {label}: {record.loss_nats:.4f} ± {record.loss_standard_error_nats or 0:.4f} nats after "
        f"{record.tokens:,} tokens in {record.wall_seconds or 0:.0f} s{note}"
    )
