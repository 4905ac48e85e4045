"""Pruning of a search: what the running runs report at their checks goes to Optuna, and what it gives up is told to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from study.config.run_config import RunConfig
from study.config.search_spec import Prune
from study.planning.search import Checks, OptunaSearch
from study.store.metric_rows import Rows
from study.store.run_folder import Orders, RunFolder

Home = Callable[[RunConfig], RunFolder]


class Pruning:
    """Follows the metrics of a search's runs; they know nothing of it but how often to validate, and `prune.json`."""

    def __init__(self, search: OptunaSearch, prune: Prune, home: Home) -> None:
        self.search, self.prune, self._home = search, prune, home
        self._rows: dict[str, Rows] = {}

    def begin(self, config: RunConfig) -> None:
        """Before a run starts: ask for the validations that are its checks."""
        self._home(config).write_orders(Orders(validations=self.prune.checks))

    def look(self, running: Mapping[str, RunConfig]) -> None:
        """Report what the runs wrote since the last look, and tell those that are given up to stop."""
        self._rows = {key: rows for key, rows in self._rows.items() if key in running}
        for key, config in running.items():
            run = self._home(config)
            rows = self._rows.setdefault(key, run.rows())
            if rows.rewritten():
                rows = self._rows[key] = run.rows()
            for check, row in checks_in(rows.new(), config, self.prune):
                if run.prune() is None and (why := self.search.report(key, check, row["val/loss"])) is not None:
                    run.write_prune(f"{why}, after {row['trainer/tokens']:,} tokens")


def checked(run: RunFolder, config: RunConfig, prune: Prune) -> Checks:
    """The validation losses of a run at its checks."""
    return {check: row["val/loss"] for check, row in checks_in(run.metrics(), config, prune)}


def checks_in(rows: Iterator[dict[str, Any]], config: RunConfig, prune: Prune) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows that are checks, with their numbers; the end of a run is none."""
    interval = config.validation_interval(prune.checks)
    for row in rows:
        step = row["trainer/step"]
        if "val/loss" in row and step % interval == 0 and step < config.steps:
            yield step // interval, row
