"""Rate search of a cell: the best tuned knobs, the rates tried there, and whether the best rate's neighbours are worse."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import compress
from statistics import fmean
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.base.grouping import grouped
from study.base.schema import whole
from study.config.tuned_values import Tried, best_values, comparable_seeds, rank
from study.store.records import INFORMATIVE_STATES

RATE = "recipe.learning_rate"

RateStatus = Literal["bracketed", "transferred", "lowest_tried", "highest_tried", "only_tried", "none_usable", "untrained"]
"""`bracketed`: worse rates were tried on both sides; else the edge of the tried range that was chosen.

`transferred`: the smallest cell's bracketed rate, which the largest cell confirms.

`untrained`: the budget has no steps, so losses do not depend on the rate.
"""

_TUNABLE = ("architecture.", "recipe.", "masking.")


@dataclass(frozen=True)
class Trial:
    """One run at a choosing seed: its loss, and why it is excluded, if so."""

    run_id: str
    loss_nats: float | None
    exclusion: str | None

    @property
    def usable_loss_nats(self) -> float | None:
        """The loss; None if comparisons exclude the run."""
        return None if self.exclusion is not None else self.loss_nats


@dataclass(frozen=True)
class TriedRate:
    """One rate and its informative runs, at least one, at the choosing seeds."""

    learning_rate: float
    trials: tuple[Trial, ...]

    @property
    def loss_nats(self) -> float | None:
        """Mean loss of the runs that learned, nats per masked token; None if none did."""
        learned = [loss for trial in self.trials if (loss := trial.usable_loss_nats) is not None]
        return fmean(learned) if learned else None

    @property
    def rank(self) -> float | None:
        """Sort key (`study.config.tuned_values.rank`)."""
        return rank([trial.usable_loss_nats for trial in self.trials])

    @property
    def unlearned(self) -> int:
        """How many runs did not learn."""
        return sum(trial.usable_loss_nats is None for trial in self.trials)


@dataclass(frozen=True)
class RateSearch:
    """The rates tried in one cell and the one chosen.

    `chosen` ranks first at the `seeds` that choose. `optimum`: vertex of the parabola in log(rate) through the chosen rate and
    its two neighbours, at the seeds where all three learned; `gain_left_nats`: its depth below the chosen loss. Both are None
    without such seeds or neighbours, or if only some runs read word order, which makes the loss jump.
    """

    tried: tuple[TriedRate, ...]
    status: RateStatus
    chosen: float | None = None
    optimum: float | None = None
    gain_left_nats: float | None = None
    seeds: int = 1

    @property
    def bracketed(self) -> bool:
        """Whether worse rates were tried on both sides, or no search was needed."""
        return self.status in ("bracketed", "transferred", "untrained")

    @property
    def next_best(self) -> TriedRate | None:
        """The best-ranked rate except the chosen one."""
        others = [rate for rate in self.tried if rate.learning_rate != self.chosen and rate.loss_nats is not None]
        return min(others, key=lambda rate: rate.rank or 0.0, default=None)


@dataclass(frozen=True)
class TunedKnob:
    """A tuned knob beside the learning rate: its best value, and its place in the tried range."""

    name: str
    chosen: int | float | str | None
    edge: Literal["lowest", "highest"] | None


@dataclass(frozen=True)
class CellSearch:
    """What the runs of one cell tried and what it chose.

    `rows`: ledger positions. `off`: for each row, the tuned knobs (without the learning rate) not at the cell's best, which
    ranks first at the choosing seeds; if no run is usable, no knob is off and `knobs` is empty. `rates`: the search among the
    runs `at_best`.
    """

    rows: NDArray[np.int64]
    off: tuple[str, ...]
    rates: RateSearch
    knobs: tuple[TunedKnob, ...]

    @property
    def at_best(self) -> NDArray[np.int64]:
        """Positions of the runs with all other tuned knobs at the cell's best."""
        return self.rows[[not knobs for knobs in self.off]]


def searches(ledger: pd.DataFrame, choosing_seeds: Collection[int] = ()) -> dict[str, CellSearch]:
    """Return the search of each cell of a ledger; `choosing_seeds` are those the sweep names, empty outside a sweep.

    A cell's knobs are the differing columns of architecture, recipe and masking. Values are compared at seeds where several
    were tried (`study.config.tuned_values`). A diverged run ranks last. Runs that failed otherwise (FAILED, OOM, HUNG) or that
    a person excluded do not count as tried.
    """
    if ledger.empty:
        return {}
    runs = _Runs(ledger, choosing_seeds)
    return {str(cell): runs.search(np.asarray(rows)) for cell, rows in ledger.groupby("cell").indices.items()}


class _Knob:
    """A tunable column: values, codes, and numbers if numeric."""

    def __init__(self, column: pd.Series[Any]) -> None:
        self.name = str(column.name)
        self.values = column.to_numpy(dtype=object)
        self.codes = pd.factorize(column)[0]
        self.numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=float, na_value=np.nan)


class _Runs:
    """A ledger's runs as arrays by column."""

    def __init__(self, ledger: pd.DataFrame, choosing_seeds: Collection[int]) -> None:
        self.choosing_seeds = choosing_seeds
        tunable = [name for name in ledger.columns if name.startswith(_TUNABLE) and name != RATE]
        self.knobs = [_Knob(ledger[name]) for name in tunable if ledger[name].nunique(dropna=False) > 1]
        self.codes = np.array([knob.codes for knob in self.knobs]).reshape(len(self.knobs), len(ledger))
        self.seeds = pd.Series(ledger.get("seed", np.inf), ledger.index).fillna(np.inf).to_numpy(dtype=float)
        self.untrained = pd.Series(ledger.get("target_tokens", 1), ledger.index).eq(0).to_numpy()
        self.rates = ledger[RATE].to_numpy(dtype=float, na_value=np.nan)
        differing = pd.DataFrame(np.vstack([self.codes, pd.factorize(self.rates)[0]]).T)
        self.points = differing.groupby(list(differing), sort=False).ngroup().to_numpy()
        self.exclusions = ledger["exclusion"].to_numpy(dtype=object)
        informative = ledger["state"].isin(INFORMATIVE_STATES)
        self.informative = (
            informative & ledger["excluded_by_hand"].isna() if "excluded_by_hand" in ledger else informative
        ).to_numpy()
        self.names = ledger["run_id"].astype(str).to_numpy(dtype=object)
        losses = ledger["loss_nats"].astype(object)
        self.losses = losses.where(losses.notna(), None).tolist()
        self.reads = ledger.get("reads_order", pd.Series(None, ledger.index, dtype=object)).to_numpy(dtype=object)
        self.usable = losses.where(losses.notna() & ledger["exclusion"].isna(), None).tolist()

    def search(self, rows: NDArray[np.int64]) -> CellSearch:
        runs = zip(rows.tolist(), self.seeds[rows].tolist(), self.points[rows].tolist(), strict=True)
        tried = [Tried(seed, point, self.usable[row], self.informative[row]) for row, seed, point in runs]
        choosing, best = comparable_seeds(tried, self.choosing_seeds), best_values(tried, self.choosing_seeds)
        trials = rows[[one.seed in choosing for one in tried]]
        if best is None:
            return CellSearch(rows, ("",) * len(rows), self._rates(rows, trials, None), ())
        first = rows[self.points[rows] == best][0]
        off = (self.codes[:, rows] != self.codes[:, [first]]).T
        at_best = rows[~off.any(axis=1)]
        return CellSearch(
            rows=rows,
            off=tuple(" and ".join(knob.name for knob in compress(self.knobs, each)) for each in off),
            rates=self._rates(at_best, np.intersect1d(at_best, trials), best),
            knobs=tuple(self._tuned(knob, rows, first) for knob in compress(self.knobs, off.any(axis=0))),
        )

    def _rates(self, rows: NDArray[np.int64], trials: NDArray[np.int64], point: int | None) -> RateSearch:
        """Return the search among runs that differ only in rate and seed.

        The rate of `point` ranks first; None if no run is usable.
        """
        learned = [row for row in rows if self.usable[row] is not None]
        if self.untrained[rows].all() and learned:
            return RateSearch((), "untrained", float(self.rates[learned[0]]))
        by_rate = grouped(trials[self.rates[trials].argsort(kind="stable")].tolist(), lambda row: self.rates[row])
        of_rates = [runs for runs in by_rate.values() if self.informative[runs].any()]
        tried, seeds = tuple(map(self._tried, of_rates)), len(set(self.seeds[trials].tolist()))
        best = next((position for position, runs in enumerate(of_rates) if self.points[runs[0]] == point), None)
        if best is None:
            return RateSearch(tried, "none_usable", seeds=seeds)
        chosen, status = tried[best].learning_rate, _status(best, len(tried))
        around = slice(best - 1, best + 2)
        if status != "bracketed" or not self._learned_alike(of_rates[around]):
            return RateSearch(tried, status, chosen, seeds=seeds)
        rates, losses = np.array([(rate.learning_rate, rate.rank) for rate in tried[around]]).T
        return RateSearch(tried, status, chosen, *_vertex(rates, losses), seeds=seeds)

    def _learned_alike(self, of_values: list[list[int]]) -> bool:
        """Whether all runs learned, at equal seeds, and all or none read word order."""
        seeds = {frozenset(self.seeds[rows].tolist()) for rows in of_values}
        runs = [row for rows in of_values for row in rows]
        comparable = len(seeds) == 1 and len({str(self.reads[row]) for row in runs}) == 1
        return comparable and all(self.usable[row] is not None for row in runs)

    def _tried(self, rows: list[int]) -> TriedRate:
        informative = (row for row in rows if self.informative[row])
        return TriedRate(float(self.rates[rows[0]]), tuple(map(self._trial, informative)))

    def _trial(self, row: int) -> Trial:
        exclusion = self.exclusions[row]
        return Trial(self.names[row], self.losses[row], None if pd.isna(exclusion) else str(exclusion))

    def _tuned(self, knob: _Knob, rows: NDArray[np.int64], best: int) -> TunedKnob:
        """Return the best run's value of a knob."""
        value, number = knob.values[best], knob.numbers[best]
        numbers = knob.numbers[rows[self.informative[rows]]]
        edge: Literal["lowest", "highest"] | None = None
        if not np.isnan(numbers).any():
            edge = "lowest" if number == numbers.min() else "highest" if number == numbers.max() else None
        return TunedKnob(knob.name, None if pd.isna(value) else str(value) if np.isnan(number) else whole(float(number)), edge)


def _status(best: int, tried: int) -> RateStatus:
    if tried == 1:
        return "only_tried"
    if best == 0:
        return "lowest_tried"
    return "highest_tried" if best == tried - 1 else "bracketed"


def _vertex(rates: NDArray[np.float64], losses: NDArray[np.float64]) -> tuple[float, float]:
    """Return the vertex of the parabola in log(rate) through three points, the middle lowest: rate, and depth below the middle.

    With x = log(rate/middle rate): loss − middle loss = slope·x + bend·x².
    """
    (before, _, after), (left, middle, right) = np.log(rates / rates[1]), losses
    rise_left, rise_right = (left - middle) / before, (right - middle) / after
    bend = (rise_right - rise_left) / (after - before)
    slope = rise_left - bend * before
    return float(rates[1] * np.exp(-slope / (2 * bend))), float(slope**2 / (4 * bend))
