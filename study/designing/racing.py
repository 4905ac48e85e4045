"""Which of several variants is best, by seeds run one after another, with an error that looking does not raise.

Intervals hold at every look of a planned number, so that stopping when they decide keeps the error rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import combinations, product
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import stdtr, stdtrit

from study.base.durable_files import write_atomically
from study.base.statistics import CONFIDENCE
from study.base.text import table
from study.laws.law import Floats

Interval = tuple[float, float]
Shared = Callable[[int, int, int], float]
"""The standard error that all seeds of two variants have in common, by the two and the number of seeds."""

FIRST = 3
"""The seeds before the first look: two say too little of their scatter."""

SPENDING = 2.0
"""The share of the error that is spent after n of m seeds is (n/m) to this power."""

_CELLS = 160
_UPRIGHT = np.pi / 2


@dataclass(frozen=True)
class Race:
    """Where a race stands after so many `seeds` of every standing variant.

    `standing` are the variants that no other is shown to be below; one is `best` if it stands alone, all are `equal` if they
    lie within the difference that matters. `intervals` are those of the pairs that this look compared, the first variant's loss
    minus the second's.
    """

    seeds: int
    standing: tuple[int, ...]
    outcome: Literal["open", "best", "equal"]
    intervals: Mapping[tuple[int, int], Interval]

    @property
    def half_width(self) -> float:
        """Half the widest interval; infinite while seeds cannot decide."""
        return max((high - low) / 2 for low, high in self.intervals.values())


def race(losses: Floats, difference: float, shared: Shared = lambda *_: 0.0, level: float = CONFIDENCE) -> list[Race]:
    """Return the looks at a race, one after each seed, until it is decided.

    `losses` are variants × all planned seeds, NaN from the first seed that a variant lacks. Seeds are paired. Each pair has
    intervals that hold at all looks together (`valid_interval`) at an equal share of the error, so that all hold with
    probability `level`; a pair's interval is the intersection of those so far. A variant drops out once it is above another,
    and the race ends when one stands, or all that stand lie within `difference` of each other.
    """
    pairs = [*combinations(range(len(losses)), 2)]
    of_pair = 1 - (1 - level) / len(pairs)
    intervals: dict[tuple[int, int], Interval] = dict.fromkeys(pairs, (-np.inf, np.inf))
    standing, looks = tuple(range(len(losses))), list[Race]()
    for seeds in range(1, losses.shape[1] + 1):
        if np.isnan(losses[list(standing), :seeds]).any():
            break
        raced = [pair for pair in pairs if set(pair) <= set(standing)]
        for one, other in raced:
            differences = losses[one, :seeds] - losses[other, :seeds]
            low, high = valid_interval(differences, shared(one, other, seeds), losses.shape[1], of_pair)
            before = intervals[one, other]
            intervals[one, other] = max(low, before[0]), min(high, before[1])
        compared = {pair: intervals[pair] for pair in raced}
        above = {one if low > 0 else other for (one, other), (low, high) in compared.items() if low > 0 or high < 0}
        standing = tuple(variant for variant in standing if variant not in above) or standing
        left = [interval for pair, interval in compared.items() if set(pair) <= set(standing)]
        close = all(-difference < low and high < difference for low, high in left)
        outcome: Literal["open", "best", "equal"] = "best" if len(standing) == 1 else "equal" if close else "open"
        looks.append(Race(seeds, standing, outcome, compared))
        if outcome != "open":
            break
    return looks


@dataclass(frozen=True)
class RaceOdds:
    """The results of simulated races.

    The shares of sweeps that named a best variant, and in which one that is not above another dropped out; the share of runs
    spent; and the share that t-tests at the last seed alone would have decided.
    """

    decided: float
    wrong: float
    spent: float
    fixed: float


def simulate_races(
    effect: float,
    scatter: tuple[float, float],
    seeds: int,
    *,
    variants: int = 2,
    difference: float = 1.0,
    shared: float = 0.0,
    sweeps: int = 1000,
    seed: int = 0,
) -> RaceOdds:
    """Simulate sweeps whose first variant lies `effect` below the others, which are equal.

    Each variant scatters over seeds by a deviation drawn between the two of `scatter`; all seeds of a variant share the noise
    of the validation set, by which two variants differ with standard error `shared`.
    """
    random = np.random.default_rng(seed)
    decided = wrong = fixed = spent = 0.0
    for _ in range(sweeps):
        of_seeds = random.normal(size=(variants, seeds)) * random.uniform(*scatter, (variants, 1))
        losses = of_seeds + random.normal(size=(variants, 1)) * shared / 2**0.5
        losses[0] -= effect
        looks = race(losses, difference, lambda *_: shared)
        lost = {variant for look in looks for variant in range(variants) if variant not in look.standing}
        decided += looks[-1].outcome == "best"
        wrong += bool(lost) if effect == 0 else 0 in lost
        spent += variants + sum(len(look.standing) for look in looks[:-1])
        fixed += _fixed(losses, shared)
    return RaceOdds(decided / sweeps, wrong / sweeps, spent / sweeps / (variants * seeds), fixed / sweeps)


def _fixed(losses: Floats, shared: float) -> bool:
    """Whether t-tests at the last seed alone, adjusted by Bonferroni, find the lowest mean below every other.

    The shared noise is added with the seeds' degrees of freedom, which is conservative.
    """
    best, (variants, seeds) = int(np.argmin(losses.mean(axis=1))), losses.shape
    tail = (1 - CONFIDENCE) / (variants * (variants - 1))
    differences = np.delete(losses, best, axis=0) - losses[best]
    errors = np.sqrt(differences.var(axis=1, ddof=1) / seeds + shared**2)
    return bool((differences.mean(axis=1) > -stdtrit(seeds - 1, tail) * errors).all())


EFFECTS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""The effects of the table, in the mean deviation over seeds; 0 is a null sweep."""


SEEDS = (3, 6, 12)
"""The planned seeds of the table."""


def measure(sweeps: int = 1000) -> list[dict[str, float]]:
    """Return what simulated sweeps of 2 to 4 variants did, with unequal scatter and shared validation noise."""
    rows = []
    for seeds, variants, effect in product(SEEDS, (2, 3, 4), EFFECTS):
        odds = simulate_races(effect, (0.5, 1.5), seeds, variants=variants, difference=0.5, shared=0.25, sweeps=sweeps)
        rows.append({"seeds": seeds, "variants": variants, "effect": effect, **asdict(odds)})
    return rows


def write(rows: list[dict[str, float]], folder: Path) -> Path:
    """Write the rows as a table, stopping.md; returns its path."""
    header = ["seeds", "variants", "effect", "best named", "in error", "runs spent", "best named by a test after all seeds"]
    counts, shares = ("seeds", "variants", "effect"), ("decided", "wrong", "spent", "fixed")
    lines = [[*(f"{row[name]:g}" for name in counts), *(f"{row[name]:.1%}" for name in shares)] for row in rows]
    text = (
        "Sweeps that look after every seed, from the third to the last planned, and stop once one variant is best, or all that "
        "stand lie within 0.5 of each other. Unit: the mean deviation over seeds. Deviations lie between 0.5 and 1.5, and two "
        "variants differ by validation noise of standard error 0.25 that all seeds share. In error: a variant drops out that "
        "is no worse than all others. Runs spent are a share of those of all seeds."
    )
    write_atomically(folder / "stopping.md", f"# Stopping\n\n{text}\n\n{table(header, lines)}\n".encode())
    return folder / "stopping.md"


@lru_cache(maxsize=64)
def boundaries(most: int, error: float) -> tuple[float, ...]:
    """How large |t| may be at each look from FIRST to `most` seeds, so that a null sequence exceeds any in an `error`.

    t is that of n normal differences with any unknown variance. t/√(n − 1) is the tangent of an angle, and these angles form a
    Markov chain: sin θ' = (√n·sin θ·cos ψ + sin ψ)/√(n + 1), where √n·tan ψ has Student's distribution of n degrees of freedom
    and is independent of θ. Each look spends its share of the error on sequences that have not exceeded a boundary before.
    Sources: the recursion over looks of Armitage, McPherson and Rowe 1969 (J. R. Stat. Soc. A 132, 235-244), here for t;
    spending as a power of the share of the data, Kim and DeMets 1987 (Biometrika 74, 149-154).
    """
    spent = error * (np.arange(most + 1) / most) ** SPENDING
    boundaries = [float(stdtrit(FIRST - 1, 1 - spent[FIRST] / 2))]
    edges = np.linspace(0, np.arctan(boundaries[0] / (FIRST - 1) ** 0.5), _CELLS + 1)
    weight = 2 * np.diff(stdtr(FIRST - 1, (FIRST - 1) ** 0.5 * np.tan(edges)))  # of |θ| between two edges
    for n in range(FIRST, most):
        angles = (edges[1:] + edges[:-1]) / 2
        end = _end(1 - spent[n + 1], angles, weight, n)
        boundaries.append(n**0.5 * float(np.tan(end)))
        edges = np.linspace(0, end, _CELLS + 1)
        weight = np.diff(_within(edges, angles, n), axis=0) @ weight
    return tuple(boundaries)


def _end(share: float, angles: Floats, weight: Floats, n: int) -> float:
    """Return the angle that a share of all sequences has never exceeded after n + 1 seeds."""

    def beyond(end: float) -> float:
        return float(_within(np.array([end]), angles, n)[0] @ weight) - share

    return float(brentq(beyond, 0.0, _UPRIGHT))


def _within(ends: Floats, angles: Floats, n: int) -> Floats:
    """Return the probability that |θ'| is at most each end after n + 1 seeds, by angle θ ≥ 0 after n; E × A."""
    sine = np.sin(angles)
    lift, turn = np.sqrt((n * sine**2 + 1) / (n + 1)), np.arctan(n**0.5 * sine)
    top = np.arcsin(np.clip(np.sin(ends)[:, None] / lift, -1, 1))

    def below(psi: Floats) -> Floats:
        inside = np.clip(psi, -_UPRIGHT, _UPRIGHT)
        return np.asarray(stdtr(n, n**0.5 * np.tan(inside)))

    return below(top - turn) - below(-top - turn) + 1 - below(np.pi - top - turn)


def valid_interval(differences: Floats, shared: float, most: int, level: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval of a mean difference after so many seeds of `most`; with `level` those of all looks hold together.

    `differences` are those of paired seeds; `shared` is the standard error that all of them have in common, as of one
    validation set. Infinite before FIRST seeds. Half of it is the boundary times √(s²/n + shared²), which is conservative: the
    boundary is that of seeds alone, whose scatter s is estimated and whose looks differ more (Mickey and Brown 1966, Ann. Math.
    Stat. 37, 639-642, for one look; for many by the simulation of study.designing.racing). Source: repeated confidence
    intervals, Jennison and Turnbull 2000, Group Sequential Methods, ch. 9.
    """
    n = len(differences)
    if n < FIRST:
        return -np.inf, np.inf
    mean, variance = float(np.mean(differences)), float(np.var(differences, ddof=1))
    half = boundaries(most, 1 - level)[n - FIRST] * (variance / n + shared**2) ** 0.5
    return mean - half, mean + half
