"""What a cell chose: the best of its tuned knobs, the rates tried there, and whether the neighbours of the best are worse."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.polynomial import Polynomial

from study.schema import whole

RATE = "recipe.learning_rate"

RateStatus = Literal["bracketed", "lowest_tried", "highest_tried", "only_tried", "none_usable"]
"""`bracketed` where worse rates were tried on both sides; else at which edge of the tried range the chosen rate lies."""

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
        """Whether worse rates were tried on both sides of the chosen one."""
        return self.status == "bracketed"


@dataclass(frozen=True)
class TunedKnob:
    """A tuned knob beside the learning rate: its value in a cell's best run, and at which end of those tried that lies."""

    name: str
    chosen: int | float | str
    edge: Literal["lowest", "highest"] | None


def tuned_knobs(runs: pd.DataFrame) -> tuple[TunedKnob, ...]:
    """The knobs beside the learning rate in which the runs of a cell differ; none without a usable run at the first seed.

    Only numbers have ends, those of the runs that tell of their knobs.
    """
    if (best := _best_run(runs)) is None:
        return ()
    found = []
    for name in (name for name in _knobs(runs) if runs[name].nunique() > 1):
        chosen: Any = runs.at[best, name]
        values = pd.to_numeric(runs.loc[_tell(runs), name], errors="coerce")
        edge: Literal["lowest", "highest"] | None = None
        if not values.isna().any():
            edge = "lowest" if chosen == values.min() else "highest" if chosen == values.max() else None
        found.append(TunedKnob(name, chosen if isinstance(chosen, str) else whole(float(chosen)), edge))
    return tuple(found)


def _knobs(runs: pd.DataFrame) -> list[str]:
    """The columns of all that can be tuned but for the learning rate."""
    return [name for name in runs.columns if name.startswith(_TUNABLE) and name != RATE]


def _tell(runs: pd.DataFrame) -> pd.Series[bool]:
    """Which runs say how good their knobs are: not those that failed or that a person excluded."""
    told = runs["state"].isin(["COMPLETED", "DIVERGED"])
    return told & runs["excluded_by_hand"].isna() if "excluded_by_hand" in runs else told


def _best_run(runs: pd.DataFrame) -> Hashable | None:
    """The row of the lowest loss at the first seed, None where none is usable there."""
    first = runs[(runs["seed"] == runs["seed"].min()) & runs["exclusion"].isna()]
    losses = first["loss_nats"].dropna().astype(float)
    return None if losses.empty else losses.idxmin()


def off_best(runs: pd.DataFrame) -> pd.Series[str]:
    """Which tuned knobs of each run of a cell, but for the learning rate, are not at its best, by name; empty where all are.

    The best run is that of the lowest loss at the first seed; without a usable one there no knob is off. Runs of a cell differ
    in tuned knobs and seeds only, so the knobs are the columns of its architecture, recipe and masking that differ.
    """
    if (best := _best_run(runs)) is None:
        return pd.Series("", index=runs.index)
    knobs = np.array(_knobs(runs), dtype=object)
    values = runs[knobs].map(str).to_numpy()
    others = values != values[runs.index == best]
    return pd.Series([" and ".join(knobs[off]) for off in others], index=runs.index)


def search_rates(runs: pd.DataFrame) -> RateSearch:
    """The rate search in ledger rows of one cell that differ in the rate and the seed only, at the first seed.

    A run that diverged or stayed at the unigram entropy counts as worse than any that learned. One that failed for another
    reason (FAILED, OOM, HUNG), or that a person excluded, says nothing about its rate and does not count as tried. Where the
    cell has one rate alone, which nothing had to choose, any seed that learned will do.
    """
    first = runs[(runs["seed"] == runs["seed"].min()) & _tell(runs)]
    tried = tuple(_tried(row) for _, row in first.sort_values(RATE).iterrows())
    losses = np.array([_rank_loss(rate) for rate in tried])
    if not np.isfinite(losses).any():
        usable = runs["exclusion"].isna() & runs["loss_nats"].notna()
        if usable.any() and runs[RATE].nunique() == 1:
            return RateSearch(tried, "only_tried", float(runs[RATE].iloc[0]))
        return RateSearch(tried, "none_usable")
    best = int(losses.argmin())
    chosen, status = tried[best].learning_rate, _status(best, len(tried))
    neighbours = slice(best - 1, best + 2)
    if status != "bracketed" or not np.isfinite(losses[neighbours]).all():
        return RateSearch(tried, status, chosen)
    optimum, lowest = _vertex([rate.learning_rate for rate in tried[neighbours]], losses[neighbours].tolist())
    return RateSearch(tried, status, chosen, optimum, float(losses[best]) - lowest)


def _tried(row: pd.Series) -> TriedRate:
    loss, exclusion = row["loss_nats"], row["exclusion"]
    return TriedRate(
        learning_rate=float(row[RATE]),
        run_id=str(row["run_id"]),
        loss_nats=None if pd.isna(loss) else float(loss),
        exclusion=None if pd.isna(exclusion) else str(exclusion),
    )


def _rank_loss(rate: TriedRate) -> float:
    return float("inf") if rate.exclusion is not None or rate.loss_nats is None else rate.loss_nats


def _status(best: int, tried: int) -> RateStatus:
    if tried == 1:
        return "only_tried"
    if best == 0:
        return "lowest_tried"
    return "highest_tried" if best == tried - 1 else "bracketed"


def _vertex(rates: list[float], losses: list[float]) -> tuple[float, float]:
    """The rate and the loss at the lowest point of the parabola in log(rate) through three points, the middle one lowest."""
    parabola = Polynomial.fit(np.log(rates), losses, 2)
    (turning,) = parabola.deriv().roots()
    return float(np.exp(turning)), float(parabola(turning))
