"""A cell of a sweep, and the runs that it needs next: a pure function of the records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from study.config import RunConfig
from study.errors import InputError
from study.records import RunRecord
from study.schema import deep_merge, set_path
from study.sweeping.spec import SweepSpec
from study.sweeping.tuning import Line, sought, start_near


@dataclass(frozen=True)
class Tuning:
    """Where a cell's search at the first seed is: the runs it needs next, the best so far, and whether it is over.

    `around` is the value of the one tuned knob that a neighbour begins at: the best, or where this search began.
    """

    missing: list[RunConfig]
    best: RunConfig | None
    over: bool
    around: float | None = None


@dataclass(frozen=True)
class Cell:
    """The runs of one architecture and budget: learning rates tuned at the first seed, the best repeated at the others.

    `neighbour` is the nearest cheaper cell, whose best value is where the search of this one begins.
    """

    config: RunConfig
    spec: SweepSpec
    neighbour: Cell | None = field(default=None, repr=False, compare=False)

    @property
    def family(self) -> str:
        """What the cell shares with those that differ in their budget alone."""
        return family_of(self.config, self.spec.tune)

    def variant(self, tuned: Mapping[str, float], seed: int) -> RunConfig:
        """The run of this cell with these knobs and this seed."""
        changes: dict[str, Any] = {"seed": seed}
        for path, value in tuned.items():
            set_path(changes, path, value)
        return RunConfig.parse(deep_merge(self._values, changes))

    @cached_property
    def _values(self) -> dict[str, Any]:
        return self.config.to_dict()

    def wanted(self, records: Mapping[str, RunRecord], tuning: Tuning | None = None) -> list[RunConfig]:
        """The runs that the cell needs next, given the records there are (keyed by their key); none left when it is done.

        First the search at the first seed, as soon as that of the neighbour is over; then the best at the other seeds. Where
        nothing is tuned, all seeds at once. A pure function of the records, so that a restarted coordinator asks the same;
        `tuning` is where they leave the search, for who has looked.
        """
        tuning = tuning or self.tuning(records)
        if not tuning.over or tuning.best is None:
            return tuning.missing
        knobs = tuning.best.values_of(self.spec.tune)
        repeats = [self.variant(knobs, seed) for seed in self.spec.seed_values[1:]]
        return [config for config in repeats if config.key not in records]

    def tuned(self, records: Mapping[str, RunRecord]) -> bool:
        """Whether the cell's search is over, so that all the runs it will ever want are known."""
        return not self.spec.tune or self.tuning(records).over

    def tuning(self, records: Mapping[str, RunRecord], before: Tuning | None = None) -> Tuning:
        """Where the search is: brackets around the neighbour's best for one knob, all combinations for several.

        Where nothing is tuned it is over, and every seed is wanted. `before` is where the neighbour's is, for who has looked.
        """
        if not self.spec.tune:
            return Tuning([run for run in self.trials() if run.key not in records], None, over=True)
        if len(self.spec.tune) > 1:
            return self._grid(records)
        around = None
        if self.neighbour is not None:
            before = before or self.neighbour.tuning(records)
            if not before.over:
                return Tuning([], None, over=False)
            around = before.around
        runs = self._line
        start = start_near([value for value, _, _ in runs[1:-1] if value is not None], around)
        line = Line(tuple(value for value, _, _ in runs), start)
        known = tuple((place, records[key].usable_loss_nats) for place, (_, _, key) in enumerate(runs) if key in records)
        search = sought(line, known)
        best = None if search.best is None else runs[search.best]
        around = line.values[search.best if search.best is not None else start]
        missing = [config for place in search.missing if (config := runs[place][1]) is not None]
        return Tuning(missing, best[1] if best else None, not missing, around)

    @cached_property
    def _line(self) -> list[tuple[float | None, RunConfig | None, str]]:
        """The values of the one tuned knob, with one beyond each end, their runs at the first seed, and the runs' keys."""
        ((path, tuned),) = self.spec.tune.items()
        line: list[tuple[float | None, RunConfig | None, str]] = []
        for value in tuned.line():
            try:
                config = self.variant({path: value}, self.spec.first_seed)
            except InputError:
                line.append((None, None, ""))  # no run can have it, such as a share above 1
            else:
                line.append((value, config, config.key))
        return line

    def _grid(self, records: Mapping[str, RunRecord]) -> Tuning:
        """All combinations, then those on either side of the best, knob by knob, until they have all been tried."""
        tried = self.trials()
        if missing := [config for config in tried if config.key not in records]:
            return Tuning(missing, None, over=False)
        best, before = _best(tried, records), None
        while best is not None and best is not before:
            beside = self._beside(best)
            if missing := [config for config in beside if config.key not in records]:
                return Tuning(missing, best, over=False)
            best, before = _best([best, *beside], records), best
        return Tuning([], best, over=True)

    def trials(self) -> list[RunConfig]:
        """Every tuned value at the first seed; where nothing is tuned, every seed."""
        if not self.spec.tune:
            return [self.variant({}, seed) for seed in self.spec.seed_values]
        return [self.variant(point, self.spec.first_seed) for point in self.points()]

    def runs_left(self, records: Mapping[str, RunRecord], tuning: Tuning | None = None) -> int:
        """How many more runs the cell takes at most, further extensions not counted; none once it is done.

        `tuning` is where the records leave its search, for who has looked.
        """
        untried = [run for run in self.trials() if run.key not in records]
        if not self.spec.tune:
            return len(untried)
        tuning = tuning or self.tuning(records)
        if tuning.over:
            return len(self.wanted(records, tuning))
        return max(len(untried), len(tuning.missing)) + len(self.spec.seed_values) - 1

    def planned_runs(self) -> int:
        """How many runs the cell takes at most, extensions not counted."""
        return len(self.points()) + len(self.spec.seed_values) - 1

    def points(self) -> list[dict[str, float]]:
        """Every combination of the tuned values, one of no values where nothing is tuned."""
        axes = {path: tuned.values() for path, tuned in self.spec.tune.items()}
        return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]

    def _beside(self, best: RunConfig) -> list[RunConfig]:
        """The runs a value up and a value down from the best in one knob each, at most one value beyond the ends of its range.

        Those that no run can have, such as a share above 1, are left out.
        """
        knobs = best.values_of(self.spec.tune)
        found = []
        for path, tuned in self.spec.tune.items():
            line = tuned.line()
            place = line.index(knobs[path])
            for value in dict.fromkeys([*line[max(0, place - 1) : place], *line[place + 1 : place + 2]]):
                if value != knobs[path]:
                    with contextlib.suppress(InputError):
                        found.append(self.variant(knobs | {path: value}, self.spec.first_seed))
        return found


def tunings(planned: Iterable[Cell], records: Mapping[str, RunRecord]) -> dict[str, Tuning]:
    """Where the searches of cells are, by the cells' keys; each is looked at once, after those that it waits for."""
    found: dict[str, Tuning] = {}

    def look(cell: Cell) -> Tuning:
        key = cell.config.key
        if key not in found:
            found[key] = cell.tuning(records, None if cell.neighbour is None else look(cell.neighbour))
        return found[key]

    for cell in planned:
        look(cell)
    return found


def family_of(config: RunConfig, tuned: Iterable[str]) -> str:
    """What the runs share that differ only in tuned knobs, seed and budget."""
    return config.identity(but=(*tuned, "seed", "recipe.budget"))


def _best(configs: list[RunConfig], records: Mapping[str, RunRecord]) -> RunConfig | None:
    """The configuration of the lowest loss among usable records, None where there is none."""
    losses = [(loss, i) for i, config in enumerate(configs) if (loss := records[config.key].usable_loss_nats) is not None]
    return configs[min(losses)[1]] if losses else None
