"""The tokens and seconds that our training needs to reach the loss of transformers' run_mlm.

Their side is the usual setup: BertConfig of the shape, Trainer's defaults, DataCollatorForLanguageModeling, the best of three
learning rates, one linear schedule over the token budget. Ours trains at increasing budgets, each with a complete schedule,
until it reaches that loss. Both share text, tokeniser, batch, precision, validation sequences and masks, and dropout: 0 by
default, which serves them better than BertConfig's 0.1. Seconds cover training from first to last step, without validation.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

from study.base.schema import deep_merge
from study.benching.bench_tables import Row
from study.benching.cases import Case
from study.benching.processes import failures_reported, in_own_process
from study.benching.results import Report
from study.benching.validation_curves import EVALUATIONS, Curve, CurveRecorder
from study.config.presets import PRESETS
from study.config.run_config import DataConfig, RunConfig
from study.data.prepared import prepare
from study.store.run_folder import RunFolder
from study.training.attempts import StopSignal
from study.training.execution import Execution
from study.training.trainer import Training

VARIANTS = {
    "modern": PRESETS["modern"],
    "modern recipe, BERT's architecture": {"recipe": PRESETS["modern"]["recipe"]},
}
"""Our variants; the second shows the recipe's part of the gain."""

RACED_SHAPES, RACED_VOCABULARY = "2x128,4x256", 8192
"""The default cases."""

THEIR_RATES = (1e-3, 2e-3, 4e-3)
"""The learning rates of run_mlm; the first seed tries all, the others use the best."""

SMALLEST_BUDGET, GROWTH = 1 / 64, math.sqrt(2)
"""Our smallest budget as a share of theirs, and the ratio of successive budgets."""


def data_of(case: Case) -> DataConfig:
    """Return the deduplicated docstrings at the case's vocabulary and sequence length."""
    tokenizer = {"vocabulary": case.architecture.vocabulary}
    return DataConfig.parse({"dedupe": True, "tokenizer": tokenizer, "sequence_length": case.sequence_length})


def run_of(case: Case, data: DataConfig, variant: str, steps: int, seed: int) -> RunConfig:
    """Return the configuration of one of our runs."""
    values = case.config(steps).to_dict() | {"data": data.model_dump(), "seed": seed}
    values["recipe"].pop("warmup_fraction")
    return RunConfig.parse(deep_merge(values, VARIANTS[variant]))


def train_ours(config: RunConfig, case: Case) -> Curve:
    """Train as `study launch` does."""
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        execution = Execution(case.device, threads=case.threads, validations=EVALUATIONS, checkpoint_seconds=math.inf)
        recorder = CurveRecorder()
        Training(config, prepare(config.data), RunFolder(Path(folder)), execution).fit(StopSignal(), callbacks=[recorder])
    return recorder.curve


def train_theirs(case: Case, data: DataConfig, steps: int, rate: float, seed: int) -> Curve:
    """Train with transformers' Trainer."""
    from study.benching.peers import run_mlm  # transformers is installed for benchmarks only

    return run_mlm(case, prepare(data), steps, rate, seed)


def budgets(steps: int) -> Iterator[int]:
    """Yield our budgets in steps, from the smallest to theirs."""
    growths = round(math.log(1 / SMALLEST_BUDGET, GROWTH))
    yield from sorted({max(1, round(steps * GROWTH**-power)) for power in range(growths + 1)})


def race(case: Case, data: DataConfig, variant: str, steps: int, loss: float, seed: int) -> list[Curve]:
    """Train at increasing budgets until one ends at or below `loss`; return the curves."""
    curves: list[Curve] = []
    for budget in budgets(steps):
        curves.append(in_own_process(train_ours, run_of(case, data, variant, budget, seed), case))
        if curves[-1][-1].loss <= loss:
            break
    return curves


def time_to_loss_row(case: Case, variant: str, seed: int, theirs: tuple[float, Curve], ours: list[Curve]) -> Row:
    """Return a row; our tokens and seconds are None if no budget reaches their loss."""
    rate, their_curve = theirs
    their_end, our_end = their_curve[-1], ours[-1][-1]
    reached = our_end.loss <= their_end.loss
    return {
        "shape": case.shape,
        "vocabulary": case.architecture.vocabulary,
        "variant": variant,
        "changes": VARIANTS[variant],
        "seed": seed,
        "dtype": case.dtype,
        "batch": case.batch,
        "sequence_length": case.sequence_length,
        "dropout": case.dropout,
        "tokens": their_end.tokens,
        "their_rate": rate,
        "their_loss": their_end.loss,
        "their_seconds": their_end.seconds,
        "our_loss": our_end.loss,
        "our_tokens": our_end.tokens if reached else None,
        "our_seconds": our_end.seconds if reached else None,
        "fewer_tokens": their_end.tokens / our_end.tokens if reached else None,
        "faster": their_end.seconds / our_end.seconds if reached else None,
        "their_curve": [list(point) for point in their_curve],
        "our_curve": [list(point) for point in ours[-1]],
        "our_budgets": [[curve[-1].tokens, curve[-1].loss] for curve in ours],
        "error": None,
    }


def measure_time_to_loss(cases: list[Case], tokens: int, seeds: int, report: Report) -> None:
    """Race every variant against run_mlm for every case and seed, each training in its own process."""
    for case in cases:
        data, steps = data_of(case), max(1, tokens // case.batch_tokens)
        rates: tuple[float, ...] = THEIR_RATES
        for seed in range(seeds):
            with failures_reported(f"{case.shape}, seed {seed}", report):
                prepare(data)
                curves = {rate: in_own_process(train_theirs, case, data, steps, rate, seed) for rate in rates}
                best = min(curves, key=lambda rate: curves[rate][-1].loss)
                rates = (best,)
                for variant in VARIANTS:
                    ours = race(case, data, variant, steps, curves[best][-1].loss, seed)
                    report(time_to_loss_row(case, variant, seed, (best, curves[best]), ours))
