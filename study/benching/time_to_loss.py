"""The tokens and seconds that our training needs to reach the loss of transformers' run_mlm.

Both share text, tokeniser, batch, precision, validation sequences and masks, and dropout: 0 by default, which serves theirs
better than BertConfig's 0.1. Seconds cover training from first to last step, without validation.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PrinterCallback, Trainer, TrainerCallback

from study.base.schema import deep_merge
from study.benching.cases import Case
from study.benching.own_processes import failures_reported, in_own_process, use_one_gpu
from study.benching.peers import arguments_of, collator_of, dataset_of, model_of
from study.benching.results import Report, Row
from study.config.presets import PRESETS
from study.config.run_config import DataConfig, RunConfig
from study.data.batches import PackedBatches
from study.data.masking import IGNORED, MaskedBatch
from study.data.prepared import PreparedData, prepare
from study.model.layers import autocast
from study.store.run_folder import RunFolder
from study.training.attempts import StopSignal
from study.training.execution import Execution
from study.training.trainer import Training

EVALUATIONS = 12
"""Validations per training."""


class LossPoint(NamedTuple):
    """A validation during training."""

    seconds: float
    tokens: int
    loss: float


Curve = list[LossPoint]


class TrainingClock:
    """A pausable clock of training seconds."""

    def __init__(self) -> None:
        self._seconds, self._since = 0.0, math.nan

    def start(self) -> None:
        """Start or resume."""
        self._since = perf_counter()

    def pause(self) -> float:
        """Pause and return the seconds so far."""
        if not math.isnan(self._since):
            self._seconds, self._since = self._seconds + perf_counter() - self._since, math.nan
        return self._seconds


class CurveRecorder(pl.Callback):
    """Records each validation of a run with the training seconds before it."""

    def __init__(self) -> None:
        self.curve: Curve = []
        self._watch = TrainingClock()

    def on_train_start(self, *_: Any) -> None:
        """Start the clock."""
        self._watch.start()

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Pause the clock once the device is done."""
        if module.device.type == "cuda":
            torch.cuda.synchronize()
        self._watch.pause()

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Record the loss and resume."""
        tokens = module.steps_done * module.config.recipe.batch_tokens
        self.curve.append(LossPoint(self._watch.pause(), tokens, module.validation.loss))
        self._watch.start()

    def on_train_end(self, *_: Any) -> None:
        """Stop the clock before the final validation."""
        self._watch.pause()


EVALUATION_SEQUENCES = 64
"""Sequences per validation batch."""

VARIANTS = {
    "modern": PRESETS["modern"],
    "modern recipe, BERT's architecture": {"recipe": PRESETS["modern"]["recipe"]},
}
"""Our variants; the second shows the recipe's part of the gain."""

THEIR_RATES = (1e-3, 2e-3, 4e-3)
"""The learning rates of run_mlm; the first seed tries all, the others use the best."""

OUR_RATES = (4e-3, 8e-3, 1.6e-2)
"""The learning rates of ours, tried alike; the first is the preset's."""

SMALLEST_BUDGET, GROWTH = 1 / 64, math.sqrt(2)
"""Our smallest budget as a share of theirs, and the ratio of successive budgets."""


def data_of(case: Case) -> DataConfig:
    """Return the deduplicated docstrings at the case's vocabulary and sequence length."""
    tokenizer = {"vocabulary": case.architecture.vocabulary}
    return DataConfig.parse({"dedupe": True, "tokenizer": tokenizer, "sequence_length": case.sequence_length})


def run_of(case: Case, data: DataConfig, variant: str, steps: int, rate: float, seed: int) -> RunConfig:
    """Return the configuration of one of our runs."""
    values = case.config(steps).to_dict() | {"data": data.model_dump(), "seed": seed}
    values["recipe"].pop("warmup_fraction")
    return RunConfig.parse(deep_merge(values, changes(variant, rate)))


def changes(variant: str, rate: float) -> dict[str, Any]:
    """Return what a variant at a learning rate changes in the configuration."""
    return deep_merge(VARIANTS[variant], {"recipe": {"learning_rate": rate}})


def train_ours(config: RunConfig, case: Case) -> Curve:
    """Train as `study launch` does."""
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        execution = Execution(case.device, threads=case.threads, validations=EVALUATIONS, checkpoint_seconds=math.inf)
        recorder = CurveRecorder()
        Training(config, prepare(config.data), RunFolder(Path(folder)), execution).fit(StopSignal(), callbacks=[recorder])
    return recorder.curve


def train_theirs(case: Case, data: DataConfig, steps: int, rate: float, seed: int) -> Curve:
    """Train BertForMaskedLM with Trainer's defaults except rate, batch, steps, precision and seed."""
    use_one_gpu()
    prepared = prepare(data)
    torch.set_num_threads(case.threads)
    torch.manual_seed(seed)
    model = model_of(case)
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        arguments = arguments_of(case.device, case.dtype, folder, case.batch, steps, learning_rate=rate, seed=seed)
        split = prepared.split("train")
        recorder = _EvaluationCallback(case, lambda: validation_loss(model, case, prepared), max(1, steps // EVALUATIONS))
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=dataset_of(split.take(np.arange(len(split))), prepared.special.all),
            data_collator=collator_of(prepared.tokenizer()),
            callbacks=[recorder],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return recorder.curve


class _EvaluationCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Validates every `every` steps and at the end, and records the training seconds."""

    def __init__(self, case: Case, validate: Callable[[], float], every: int) -> None:
        self.case, self.validate, self.every = case, validate, every
        self.curve: Curve = []
        self._watch = TrainingClock()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._watch.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            if self.case.device == "cuda":
                torch.cuda.synchronize()
            seconds = self._watch.pause()
            self.curve.append(LossPoint(seconds, state.global_step * self.case.batch_tokens, self.validate()))
            self._watch.start()


@torch.no_grad()
def validation_loss(model: Any, case: Case, prepared: PreparedData) -> float:
    """Return the loss on our runs' validation sequences and masks: nats over masked tokens ÷ their number."""
    model.eval()
    nats, count = 0.0, 0
    for masked in _batches(case, prepared):
        tokens, positions_BxK, labels = (each.to(case.device) for each in masked)
        with autocast(case.device, case.dtype):
            hidden_BxSxH = model.bert(tokens).last_hidden_state
            index = positions_BxK[:, :, None].expand(-1, -1, hidden_BxSxH.shape[-1])
            logits: Tensor = model.cls(hidden_BxSxH.gather(1, index)).float()
        nats += float(F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"))
        count += int((labels != IGNORED).sum())
    model.train()
    return nats / count


def _batches(case: Case, prepared: PreparedData) -> Iterator[MaskedBatch]:
    masked = PackedBatches(case.config(), prepared).validation
    parts = (torch.split(each, EVALUATION_SEQUENCES) for each in masked)
    return (MaskedBatch(*batch) for batch in zip(*parts, strict=True))


def budgets(steps: int) -> Iterator[int]:
    """Yield our budgets in steps, from the smallest to theirs."""
    growths = round(math.log(1 / SMALLEST_BUDGET, GROWTH))
    yield from sorted({max(1, round(steps * GROWTH**-power)) for power in range(growths + 1)})


def race(
    case: Case, data: DataConfig, variant: str, steps: int, loss: float, rates: Sequence[float], seed: int
) -> list[tuple[float, Curve]]:
    """Train at increasing budgets until one ends at or below `loss`; return the best rate of each and its curve."""
    best: list[tuple[float, Curve]] = []
    for budget in budgets(steps):
        runs = [run_of(case, data, variant, budget, rate, seed) for rate in rates]
        curves = [in_own_process(train_ours, run, case) for run in runs]
        best.append(min(zip(rates, curves, strict=True), key=_end))
        if _end(best[-1]) <= loss:
            break
    return best


def _end(of: tuple[float, Curve]) -> float:
    _, curve = of
    return curve[-1].loss


def time_to_loss_row(
    case: Case, variant: str, seed: int, theirs: tuple[float, Curve], ours: Sequence[tuple[float, Curve]]
) -> Row:
    """Return a row; our tokens and seconds are None if no budget reaches their loss."""
    (their_rate, their_curve), (our_rate, our_curve) = theirs, ours[-1]
    their_end, our_end = their_curve[-1], our_curve[-1]
    reached = our_end.loss <= their_end.loss
    return {
        "shape": case.shape,
        "vocabulary": case.architecture.vocabulary,
        "variant": variant,
        "changes": changes(variant, our_rate),
        "seed": seed,
        "dtype": case.dtype,
        "batch": case.batch,
        "sequence_length": case.sequence_length,
        "dropout": case.dropout,
        "tokens": their_end.tokens,
        "their_rate": their_rate,
        "their_loss": their_end.loss,
        "their_seconds": their_end.seconds,
        "our_rate": our_rate,
        "our_loss": our_end.loss,
        "our_tokens": our_end.tokens if reached else None,
        "our_seconds": our_end.seconds if reached else None,
        "fewer_tokens": their_end.tokens / our_end.tokens if reached else None,
        "faster": their_end.seconds / our_end.seconds if reached else None,
        "their_curve": [list(point) for point in their_curve],
        "our_curve": [list(point) for point in our_curve],
        "our_budgets": [[curve[-1].tokens, curve[-1].loss] for _, curve in ours],
        "error": None,
    }


def measure_time_to_loss(cases: list[Case], tokens: int, seeds: int, report: Report) -> None:
    """Race every variant against run_mlm for every case and seed, each training in its own process."""
    for case in cases:
        data, steps = data_of(case), max(1, tokens // case.batch_tokens)
        their_rates: Sequence[float] = THEIR_RATES
        our_rates: dict[str, Sequence[float]] = dict.fromkeys(VARIANTS, OUR_RATES)
        for seed in range(seeds):
            with failures_reported(f"{case.shape}, seed {seed}", report):
                prepare(data)
                curves = [in_own_process(train_theirs, case, data, steps, rate, seed) for rate in their_rates]
                theirs = min(zip(their_rates, curves, strict=True), key=_end)
                their_rates = (theirs[0],)
                for variant in VARIANTS:
                    ours = race(case, data, variant, steps, _end(theirs), our_rates[variant], seed)
                    our_rates[variant] = (ours[-1][0],)
                    report(time_to_loss_row(case, variant, seed, theirs, ours))
