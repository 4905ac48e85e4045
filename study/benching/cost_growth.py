"""How the cost of training grows: one size at a time around a middle shape, against the roofline of this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from study.benching.cases import Case
from study.benching.figures import Tell
from study.benching.gate import Contender, Order, load
from study.benching.rows import best_product
from study.benching.step_profile import PRODUCTS, Shares, explained, shares_of
from study.benching.training_rounds import PROFILED, Stand
from study.counting.memory import Device, Precision, TrainingStep, activation_bytes
from study.counting.named_models import architecture_of
from study.counting.parameters import parameters

MIDDLE = {"depth": 4, "width": 256, "sequence_length": 128, "vocabulary": 8192}
"""What all cases share but for the one size that is varied."""

VARIED = {
    "width": (64, 128, 256, 512, 1024),
    "depth": (1, 2, 4, 12, 24),
    "sequence_length": (64, 128, 256, 512),
    "vocabulary": (2048, 8192, 30522, 65536),
}
"""The sizes, with the middle among them."""

BATCH_TOKENS: dict[Device, int] = {"cpu": 2048, "cuda": 32768}
"""Tokens a step, the same at all lengths."""

ROUNDS = 4
"""Rounds of a case."""

FALLEN = 0.75
"""A size is told, and profiled, where it reaches less than this part of the best share of the roof along its axis."""

Rows = Sequence[Mapping[str, Any]]
"""Rows as `roofline_row` makes them."""


def cases(device: Device, threads: int) -> Iterator[tuple[str, Case]]:
    """Each varied size's name with its case; the middle comes once for each size."""
    dtype: Precision = "bf16" if device == "cuda" else "fp32"
    for varied, values in VARIED.items():
        for value in values:
            sizes = MIDDLE | {varied: value}
            length = sizes.pop("sequence_length")
            model = architecture_of(None, sizes | {"positions": 512})
            yield varied, Case(model, dtype, BATCH_TOKENS[device] // length, length, device, threads)


def step_bytes(case: Case) -> float:
    """Bytes that a step moves at the least, if no tensor stays in a cache.

    Parameters 44 bytes each (read forward and backward, gradient written and read for its norm and by the optimiser, which
    reads and writes weight and two moments), activations written once and read once, logits passed over six times.
    """
    step = TrainingStep(case.batch, case.sequence_length, case.predictions, case.dtype, case.dropout, case.device)
    logits = 4 * case.batch * case.predictions * case.architecture.vocabulary
    return 44.0 * parameters(case.architecture).parameters + 2.0 * activation_bytes(case.architecture, step) + 6.0 * logits


def roofline_row(varied: str, case: Case, step_seconds: float | None, limits: tuple[float, float]) -> dict[str, Any]:
    """One row: the FLOP/s of the products that run against the roof, min(product rate, intensity · bandwidth).

    `limits` are the machine's FLOP/s of plain products and its bytes/s.
    """
    flops = case.flops_per_token * case.batch_tokens
    intensity = flops / step_bytes(case)
    roof = min(limits[0], intensity * limits[1])
    achieved = flops / step_seconds if step_seconds else None
    return {
        "varied": varied.replace("_", " "),
        "value": case.sequence_length if varied == "sequence_length" else getattr(case.architecture, varied),
        "shape": case.shape,
        "model": None,
        "vocabulary": case.architecture.vocabulary,
        "sequence_length": case.sequence_length,
        "dtype": case.dtype,
        "intensity": intensity,
        "flops_per_second": achieved,
        "roof": roof,
        "product_rate": limits[0],
        "bytes_per_second": limits[1],
        "share_of_products": case.product_flops_per_token / case.flops_per_token,
        "share_of_roof": achieved / roof if achieved else None,
        "errors": {},
    }


def fallen(rows: Rows) -> dict[int, int]:
    """The rows that fall off the roof, each with the row that reaches the most of it along the same axis."""
    found = {}
    for number, row in enumerate(rows):
        axis = [other for other, one in enumerate(rows) if one["varied"] == row["varied"] and one["share_of_roof"]]
        best = max(axis, key=lambda other: rows[other]["share_of_roof"], default=None)
        if best is not None and row["share_of_roof"] and row["share_of_roof"] < FALLEN * rows[best]["share_of_roof"]:
            found[number] = best
    return found


def with_sentences(rows: Rows, spent: Mapping[int, Shares]) -> list[dict[str, Any]]:
    """The rows with a sentence at each size that falls off the roof, from where its step goes and the best one's (`spent`)."""
    told = [{**row, "spent": spent[number]} if number in spent else dict(row) for number, row in enumerate(rows)]
    for number, best in fallen(rows).items():
        row, most = told[number], told[best]
        sentence = f"At {row['varied']} {row['value']:,} training reaches {row['share_of_roof']:.0%} of the roof, "
        sentence += f"{most['share_of_roof']:.0%} at {most['value']:,}"
        if number in spent and best in spent:
            sentence += f": {explained(_profiled(row), _profiled(most))}"
        row["sentence"] = f"{sentence}."
    return told


def _profiled(row: Mapping[str, Any]) -> tuple[Shares, float]:
    """The shares of a step, and the part of the best rate that its products run at."""
    rate = row["flops_per_second"] * row["share_of_products"] / row["spent"][PRODUCTS]
    return row["spent"], rate / row["product_rate"]


def measure_roofline(device: Device, threads: int, tell: Tell) -> None:
    """Time every case, profile those that fall off the roof and the best of their axes, and tell all rows."""
    load()
    with tempfile.TemporaryDirectory(prefix="study-bench-") as name:
        folder, rows = Path(name), []
        known: dict[Case, float | None] = {}
        all_cases = list(cases(device, threads))
        limits = _limits(replace(all_cases[0][1], architecture=architecture_of(None, {"depth": 4, "width": 1024})), folder)
        for number, (varied, case) in enumerate(all_cases):
            if case not in known:
                known[case] = _step_seconds(case, folder / str(number))
            rows.append(roofline_row(varied, case, known[case], limits))
        profiled = sorted({row for pair in fallen(rows).items() for row in pair})
        told_of = dict.fromkeys(all_cases[row][1] for row in profiled)
        shares = {case: _shares(case, known[case], folder / f"profile-{number}") for number, case in enumerate(told_of)}
        spent = {row: found for row in profiled if (found := shares[all_cases[row][1]]) is not None}
    for row in with_sentences(rows, spent):
        tell(row)


def _shares(case: Case, step_seconds: float | None, folder: Path) -> Shares | None:
    """Where a step goes, by a profile of its own; None where that fails."""
    assert step_seconds is not None
    with Stand(case, folder) as stand:
        stand.start(PROFILED)
        stand.warm_up(PROFILED)
        stand.profile()
    return None if stand.found.spent is None else shares_of(stand.found.spent, step_seconds, case.device)


def _limits(case: Case, folder: Path) -> tuple[float, float]:
    """FLOP/s of the best plain product, and bytes/s of a copy."""
    found: dict[str, list[Any]] = {"matmul": [], "bandwidth": []}
    for name, times in found.items():
        with Contender(f"study.benching.contenders.{name}", (case, folder), folder / f"{name}.log") as contender:
            contender.ready()
            times += [contender.round(Order(0.5)) for _ in range(3)]
    return best_product(found["matmul"])[1], max(found["bandwidth"])


def _step_seconds(case: Case, folder: Path) -> float | None:
    """Seconds of a step of ours, None where it cannot run."""
    with Stand(case, folder) as stand:
        stand.start("ours")
        stand.warm_up("ours")
        stand.rounds(ROUNDS)
    times = stand.found.times.get("ours")
    return median(time.step_seconds for time in times) if times else None
