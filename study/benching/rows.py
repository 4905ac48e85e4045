"""Rows of the training benchmark from the times of its rounds; torch-free arithmetic that tests can check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from scipy.stats import binom

from study.benching.cases import Case
from study.benching.gate import RoundTime
from study.benching.step_profile import PRODUCTS, shares_of, told

PEERS = ("loop", "trainer", "trainer_compiled")
"""What ours is compared with, in the order of the tables: the contenders of study.benching.peers."""


@dataclass
class Rounds:
    """What the rounds of one case gave: times by contender, FLOP/s of each product, seconds to the first step, failures.

    `spent` are the seconds of a step of ours by kind, where it was profiled.
    """

    times: dict[str, list[RoundTime]] = field(default_factory=dict)
    matmul: list[dict[tuple[int, int, int], float]] = field(default_factory=list)
    starts: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    spent: dict[str, float] | None = None


def training_row(case: Case, rounds: Rounds, peak: float | None) -> dict[str, Any]:
    """One row: medians over the rounds; ratios and shares are taken within each round, whose contenders ran side by side.

    `versus` is our tokens/s over a peer's, with the interval of that median (`median_interval`). `share_of_matmul_rate` is the
    part of the machine's best matrix-product rate that is used by the products which our training runs, `mfu` the same of the
    datasheet's dense rate, where `peak` is known. `muon_step` is a step with Muon over one of ours. `spread` is (slowest −
    fastest) / median over the rounds. `sentence` says where a step goes, where it was profiled.
    """
    speeds = {name: [case.batch_tokens / time.step_seconds for time in times] for name, times in rounds.times.items()}
    best = [max(rates.values()) for rates in rounds.matmul]
    row: dict[str, Any] = {
        "shape": case.shape,
        "model": case.model,
        "vocabulary": case.architecture.vocabulary,
        "dtype": case.dtype,
        "batch": case.batch,
        "sequence_length": case.sequence_length,
        "dropout": case.dropout,
        "ours_tokens_per_second": None,
        "versus": {},
        "versus_interval": {},
        "share_of_matmul_rate": None,
        "mfu": None,
        "muon_step": None,
        "matmul_flops_per_second": median(best) if best else None,
        "flops_per_token": case.flops_per_token,
        "tokens_per_second": {name: median(values) for name, values in speeds.items()},
        "step_seconds": {name: median(time.step_seconds for time in times) for name, times in rounds.times.items()},
        "spread": {name: (max(values) - min(values)) / median(values) for name, values in speeds.items()},
        "start_seconds": rounds.starts,
        "rounds": max(map(len, speeds.values()), default=0),
        "errors": rounds.errors,
    }
    if "ours" not in speeds:
        return row
    achieved = [speed * case.flops_per_token for speed in speeds["ours"]]
    row["ours_tokens_per_second"] = median(speeds["ours"])
    ratios = {name: _ratios(speeds["ours"], speeds[name]) for name in PEERS if name in speeds}
    if "muon" in speeds:
        row["muon_step"] = median(_ratios(speeds["ours"], speeds["muon"]))
    row["versus"] = {name: median(values) for name, values in ratios.items()}
    row["versus_interval"] = {name: list(median_interval(values)) for name, values in ratios.items()}
    row["share_of_matmul_rate"] = median(_ratios(achieved, best)) if best else None
    row["mfu"] = median(achieved) / peak if peak else None
    if rounds.spent is not None and best:
        row["spent"] = shares_of(rounds.spent, row["step_seconds"]["ours"], case.device)
        rate = case.product_flops_per_token * case.batch_tokens / rounds.spent[PRODUCTS] / median(best)
        row["sentence"] = f"{case.model or case.shape}, {case.batch} x {case.sequence_length}: {told(row['spent'], rate)}."
    return row


def _ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """The ratios of what was measured in the same round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of a median by order statistics, whatever the distribution of independent values.

    The k-th of n values from either end, with the largest k for which fewer than k of n lie on one side of the median with a
    chance of at most 2.5% (binomial, 1/2). Where there is none it is the whole range, which covers with 93.75% for five values
    and 75% for three. Source: David and Nagaraja, Order Statistics (2003), section 7.1.
    """
    ordered = sorted(values)
    outside = max(int(binom.ppf(0.025, len(ordered), 0.5)) - 1, 0)
    return ordered[outside], ordered[-1 - outside]


def best_product(rounds: Sequence[Mapping[tuple[int, int, int], float]]) -> tuple[tuple[int, int, int], float]:
    """The shape whose median rate is the best, and that rate."""
    rates = {shape: median(one[shape] for one in rounds) for shape in rounds[0]}
    shape = max(rates, key=lambda sizes: rates[sizes])
    return shape, rates[shape]
