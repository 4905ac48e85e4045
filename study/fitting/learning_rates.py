"""What a cell chose: the best of its tuned knobs, the rates tried there, and whether the neighbours of the best are worse."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from math import inf
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.schema import whole

RATE = "recipe.learning_rate"

RateStatus = Literal["bracketed", "lowest_tried", "highest_tried", "only_tried", "none_usable", "untrained"]
"""`bracketed` where worse rates were tried on both sides; else at which edge of the tried range the chosen rate lies.

`untrained` where the budget is of no steps, so that losses do not hang on it.
"""

_TUNABLE = ("architecture.", "recipe.", "masking.")


@dataclass(frozen=True)
class TriedRate:
    """One rate at the first seed: its run, its loss in nats per masked token where it reached one, why it is left out."""

    learning_rate: float
    run_id: str
    loss_nats: float | None
    exclusion: str | None


@dataclass(frozen=True)
class RateSearch:
    """The rates tried in one cell and the one chosen.

    `chosen` is the rate of the lowest loss at the cell's first seed. `optimum` and `gain_left_nats` are the vertex of the
    parabola in log(rate) through the chosen rate and its two neighbours, and how far below the chosen loss it lies; None
    where a neighbour is missing or left out.
    """

    tried: tuple[TriedRate, ...]
    status: RateStatus
    chosen: float | None = None
    optimum: float | None = None
    gain_left_nats: float | None = None

    @property
    def bracketed(self) -> bool:
        """Whether worse rates were tried on both sides of the chosen one, or none was needed."""
        return self.status in ("bracketed", "untrained")

    @property
    def next_best(self) -> TriedRate | None:
        """The rate of the lowest loss at the first seed but for the chosen one; None where no other has a usable run."""
        others = [rate for rate in self.tried if rate.learning_rate != self.chosen and rate.exclusion is None]
        return min(others, key=lambda rate: rate.loss_nats or inf, default=None)


@dataclass(frozen=True)
class TunedKnob:
    """A tuned knob beside the learning rate: its value in a cell's best run, and at which end of those tried that lies."""

    name: str
    chosen: int | float | str | None
    edge: Literal["lowest", "highest"] | None


@dataclass(frozen=True)
class CellSearch:
    """What the runs of one cell tried and what it chose.

    `rows` are their places in the ledger. `off` names, for each, the tuned knobs beside the learning rate that are not at the
    cell's best, empty where all are. The best run is that of the lowest loss at the first seed; without a usable one there no
    knob is off and `knobs` is empty. `rates` is the search among the runs `at_best`, of which none is.
    """

    rows: NDArray[np.int64]
    off: tuple[str, ...]
    rates: RateSearch
    knobs: tuple[TunedKnob, ...]

    @property
    def at_best(self) -> NDArray[np.int64]:
        """The places of the runs that have all tuned knobs but the learning rate at the cell's best."""
        return self.rows[[not knobs for knobs in self.off]]


def searches(ledger: pd.DataFrame) -> dict[str, CellSearch]:
    """The search of each cell of a ledger.

    Runs of a cell differ in tuned knobs and seeds only, so the knobs are the columns of its architecture, recipe and masking
    that differ. The rate is searched at the first seed. A run that diverged or stayed at the unigram entropy counts as worse
    than any that learned. One that failed for another reason (FAILED, OOM, HUNG), or that a person excluded, says nothing about
    its knobs and does not count as tried. Where the cell has one rate alone, which nothing had to choose, any seed that learned
    will do.
    """
    if ledger.empty:
        return {}
    runs = _Runs(ledger)
    return {str(cell): runs.search(np.asarray(rows)) for cell, rows in ledger.groupby("cell").indices.items()}


class _Knob:
    """A column of something that can be tuned: its values, equal codes for equal ones, and as numbers where they are some."""

    def __init__(self, column: pd.Series[Any]) -> None:
        self.name = str(column.name)
        self.values = column.to_numpy(dtype=object)
        self.codes = pd.factorize(column)[0]
        self.numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=float, na_value=np.nan)


class _Runs:
    """The runs of a ledger by column; cells are looked at by the places of their rows, for there may be many thousands."""

    def __init__(self, ledger: pd.DataFrame) -> None:
        tunable = [name for name in ledger.columns if name.startswith(_TUNABLE) and name != RATE]
        self.knobs = [_Knob(ledger[name]) for name in tunable if ledger[name].nunique(dropna=False) > 1]
        self.codes = np.array([knob.codes for knob in self.knobs]).reshape(len(self.knobs), len(ledger))
        self.names = ledger["run_id"].astype(str).to_numpy(dtype=object)
        self.seeds = pd.to_numeric(ledger["seed"], errors="coerce").fillna(np.inf).to_numpy(dtype=float)
        self.untrained = pd.Series(ledger.get("target_tokens", 1), ledger.index).eq(0).to_numpy()
        self.rates = ledger[RATE].to_numpy(dtype=float, na_value=np.nan)
        self.losses = ledger["loss_nats"].to_numpy(dtype=float, na_value=np.nan)
        self.exclusions = ledger["exclusion"].to_numpy(dtype=object)
        told = ledger["state"].isin(["COMPLETED", "DIVERGED"])
        self.tell = (told & ledger["excluded_by_hand"].isna() if "excluded_by_hand" in ledger else told).to_numpy()
        self.ranks = np.where(ledger["exclusion"].isna() & ~np.isnan(self.losses), self.losses, np.inf)

    def search(self, rows: NDArray[np.int64]) -> CellSearch:
        """The search of the cell that has these rows."""
        first = self._first(rows)
        best = int(first[self.ranks[first].argmin()])
        if self.ranks[best] == np.inf:
            return CellSearch(rows, ("",) * len(rows), self._rates(rows), ())
        off = (self.codes[:, rows] != self.codes[:, [best]]).T
        return CellSearch(
            rows=rows,
            off=tuple(" and ".join(knob.name for knob in compress(self.knobs, each)) for each in off),
            rates=self._rates(rows[~off.any(axis=1)]),
            knobs=tuple(self._tuned(knob, rows, best) for knob in compress(self.knobs, off.any(axis=0))),
        )

    def _first(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the rows at their first seed."""
        seeds = self.seeds[rows]
        return np.compress(seeds == seeds.min(), rows)

    def _rates(self, rows: NDArray[np.int64]) -> RateSearch:
        """The rate search in runs that differ in the rate and the seed only."""
        usable = rows[np.isfinite(self.ranks[rows])]
        if self.untrained[rows].all() and len(usable):
            return RateSearch((), "untrained", float(self.rates[usable[0]]))
        first = self._first(rows)
        first = first[self.tell[first]]
        first = first[self.rates[first].argsort(kind="stable")]
        tried = tuple(map(self._tried, first))
        losses = self.ranks[first]
        if not np.isfinite(losses).any():
            rates = np.unique(self.rates[rows])
            if len(rates) == 1 and len(usable):
                return RateSearch(tried, "only_tried", float(rates[0]))
            return RateSearch(tried, "none_usable")
        best = int(losses.argmin())
        chosen, status = tried[best].learning_rate, _status(best, len(tried))
        around = first[best - 1 : best + 2]
        if status != "bracketed" or not np.isfinite(self.ranks[around]).all():
            return RateSearch(tried, status, chosen)
        return RateSearch(tried, status, chosen, *_vertex(self.rates[around], self.ranks[around]))

    def _tried(self, row: int) -> TriedRate:
        loss, exclusion = float(self.losses[row]), self.exclusions[row]
        return TriedRate(
            learning_rate=float(self.rates[row]),
            run_id=self.names[row],
            loss_nats=None if np.isnan(loss) else loss,
            exclusion=None if pd.isna(exclusion) else str(exclusion),
        )

    def _tuned(self, knob: _Knob, rows: NDArray[np.int64], best: int) -> TunedKnob:
        """What the best run has of a knob; only numbers have ends, those of the runs that tell of their knobs."""
        value, number = knob.values[best], knob.numbers[best]
        numbers = knob.numbers[rows[self.tell[rows]]]
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
    """The rate at the lowest point of the parabola in log(rate) through three points, and how far it lies below the middle one.

    The middle one is lowest. With x = log(rate/middle rate) the parabola is loss − middle loss = slope·x + bend·x².
    """
    (before, _, after), (left, middle, right) = np.log(rates / rates[1]), losses
    rise_left, rise_right = (left - middle) / before, (right - middle) / after
    bend = (rise_right - rise_left) / (after - before)
    slope = rise_left - bend * before
    return float(rates[1] * np.exp(-slope / (2 * bend))), float(slope**2 / (4 * bend))
