"""The tokens and seconds that our training needs to reach the loss of transformers' run_mlm.

Both share text, tokeniser, batch, validation sequences and masks, and dropout: 0 by default, which serves theirs better than
BertConfig's 0.1. Seconds are steps times the seconds of a step, which both sides measure in turns after the race, so that other
programs slow both. They cover training alone, without the start and validation. The race trains theirs with a sparse head,
whose losses are the same; the steps that are timed have run_mlm's own, which is dense.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import BertForMaskedLM, PrinterCallback, Trainer, TrainerCallback

from study.base.durable_files import content_of, json_in, write_atomically
from study.base.schema import deep_merge
from study.benching.cases import STEPS, Case, RaceCases
from study.benching.contenders import GateCallback, gate_of
from study.benching.own_processes import ContenderError, failures_reported, in_own_process, start_forkserver, use_one_gpu
from study.benching.peers import BertWithSparseHead, TrainerGateCallback, arguments_of, collator_of, dataset_of, model_of
from study.benching.results import Report, Row
from study.benching.training_comparison import TrainingComparison, median_interval, ratios
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

EVALUATIONS, OUR_EVALUATIONS = 12, 4
"""Validations of a training of theirs, and of ours, whose many short ones they would lengthen several times."""

EVALUATION_SEQUENCES = 64
"""Sequences per validation batch."""


class Variant(NamedTuple):
    """What ours changes in the configuration of a race, and its sequences per step, run_mlm's by default."""

    changes: Mapping[str, Any] = {}
    batch: int | None = None

    def case(self, case: Case) -> Case:
        """Return the variant's case."""
        return replace(case, batch=self.batch or case.batch)


SMALL_BATCH = 16
"""Sequences per step of the variant in small batches, half as many as run_mlm's."""

VARIANTS = {
    "modern2": Variant(PRESETS["modern2"]),
    "modern": Variant(PRESETS["modern"]),
    "modern recipe, BERT's architecture": Variant({"recipe": PRESETS["modern"]["recipe"]}),
    f"modern2, {SMALL_BATCH} sequences a step": Variant(PRESETS["modern2"], SMALL_BATCH),
}
"""Our variants; the third shows the recipe's part of the gain, the last what smaller batches add.

The first alone races in another precision than theirs.
"""

RUN_MLM = "run_mlm"
"""Their side's name."""

THEIR_RATE, OUR_RATE = 2e-3, 8e-3
"""The learning rates from which the first seed searches for the best of run_mlm and of ours; others take the first's."""

MOST_STEPS = 6
"""The most steps of a search for the best learning rate."""

SMALLEST_BUDGET, GROWTH = 1 / 64, math.sqrt(2)
"""Our smallest budget as a share of theirs, and the ratio of successive budgets."""

HALVINGS = 2
"""How often the gap is halved, in log tokens, between the last budget above their loss and the first at it."""


class LossPoint(NamedTuple):
    """A validation during training."""

    tokens: int
    loss: float


Curve = list[LossPoint]


@dataclass(frozen=True)
class RaceEntry:
    """A training of a race: run_mlm, or one of our variants."""

    side: str
    case: Case
    data: DataConfig
    steps: int
    rate: float
    seed: int

    @property
    def tokens(self) -> int:
        """Its budget."""
        return self.steps * self.case.batch_tokens

    @cached_property
    def config(self) -> RunConfig:
        """The configuration of the run; for run_mlm, of what it shares with ours."""
        values = self.case.config(self.steps).to_dict() | {"data": self.data.model_dump(), "seed": self.seed}
        values["recipe"].pop("warmup_fraction")
        return RunConfig.parse(deep_merge(values, self.changes))

    @property
    def changes(self) -> dict[str, Any]:
        """What the side at its learning rate changes in the configuration."""
        return deep_merge(VARIANTS.get(self.side, Variant()).changes, {"recipe": {"learning_rate": self.rate}})

    def described(self) -> dict[str, Any]:
        """Return all that decides its losses, as in JSON."""
        where = {"device": self.case.device, "threads": self.case.threads}
        return {"side": self.side, "config": self.config.to_dict(), **where}


class Finished(NamedTuple):
    """An entry with its validations, none if it diverged."""

    entry: RaceEntry
    curve: Curve

    @property
    def loss(self) -> float:
        """The loss at the end."""
        return self.curve[-1].loss if self.curve else math.inf


def data_of(case: Case) -> DataConfig:
    """Return the deduplicated docstrings at the case's vocabulary and sequence length."""
    tokenizer = {"vocabulary": case.architecture.vocabulary}
    return DataConfig.parse({"dedupe": True, "tokenizer": tokenizer, "sequence_length": case.sequence_length})


def finished(entry: RaceEntry, kept: Path) -> Finished:
    """Train in a process of its own, or read the validations from `kept`, JSON lines of the trainings that have ended."""
    described, content = entry.described(), content_of(kept) or b""
    for number, line in enumerate(content.splitlines(), 1):
        training = json_in(line, f"{kept}:{number}", dict, "remove the line") or {}
        curve = training.pop("curve", [])
        if training == described:
            return Finished(entry, [LossPoint(*point) for point in curve])
    trained = in_own_process(train, entry)
    write_atomically(kept, (content_of(kept) or b"") + json.dumps(described | {"curve": trained}).encode() + b"\n")
    return Finished(entry, trained)


Find = Callable[[RaceEntry, Path], Finished]
"""Trains an entry at its own learning rate (`finished`) or from it on (`best_rate`), with the file that keeps trainings."""


def best_rate(entry: RaceEntry, kept: Path) -> Finished:
    """Return the training at the best learning rate: halve the entry's while that lowers the loss, else double it.

    So the best lies between two others, unless MOST_STEPS do not reach it; while trainings diverge, the rate is halved.
    """
    best = finished(entry, kept)
    for factor in (1 / 2, 2):
        for _ in range(MOST_STEPS):
            other = finished(replace(best.entry, rate=best.entry.rate * factor), kept)
            if best.curve and other.loss >= best.loss:
                break
            best = other
        if best.entry.rate != entry.rate:
            break
    return best


def train(entry: RaceEntry) -> Curve:
    """Train to the end and return the validations, none if a loss is not finite."""
    if entry.side == RUN_MLM:
        theirs = _TheirValidations(entry)
        fit_theirs(entry, theirs, BertWithSparseHead)
        return theirs.curve if all(math.isfinite(point.loss) for point in theirs.curve) else []
    ours = OurValidations()
    try:
        fit_ours(entry, ours)
    except FloatingPointError:
        return []
    return ours.curve


def contend(entry: RaceEntry, channel: Connection) -> None:
    """Train without end or validation, as a contender of TrainingComparison."""
    endless, gate = replace(entry, steps=STEPS), gate_of(channel, entry.case.device)
    if entry.side == RUN_MLM:
        fit_theirs(endless, TrainerGateCallback(gate))
    else:
        fit_ours(endless, GateCallback(gate))


def fit_ours(entry: RaceEntry, callback: pl.Callback) -> None:
    """Train as `study launch` does."""
    case, config = entry.case, entry.config
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        execution = Execution(device=case.device, threads=case.threads, validations=OUR_EVALUATIONS, checkpoint_seconds=1e9)
        Training(config, prepare(config.data), RunFolder(Path(folder)), execution).fit(StopSignal(), callbacks=[callback])


class OurValidations(pl.Callback):
    """Records every validation."""

    def __init__(self) -> None:
        self.curve: Curve = []

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Record the loss."""
        self.curve.append(LossPoint(module.steps_done * module.config.recipe.batch_tokens, module.validation.loss))


def fit_theirs(entry: RaceEntry, callback: TrainerCallback, kind: type[BertForMaskedLM] = BertForMaskedLM) -> None:
    """Train a `kind` of BertForMaskedLM with Trainer's defaults except rate, batch, steps, precision and seed."""
    use_one_gpu()
    case, prepared = entry.case, prepare(entry.data)
    torch.set_num_threads(case.threads)
    torch.manual_seed(entry.seed)
    more = {"learning_rate": entry.rate, "seed": entry.seed}
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        split = prepared.split("train")
        trainer = Trainer(
            model=model_of(case, kind),
            args=arguments_of(case.device, case.dtype, folder, case.batch, entry.steps, **more),
            train_dataset=dataset_of(split.take(np.arange(len(split))), prepared.special.all),
            data_collator=collator_of(prepared.tokenizer()),
            callbacks=[callback],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


class _TheirValidations(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Validates EVALUATIONS times, also at the end."""

    def __init__(self, entry: RaceEntry) -> None:
        self.case, self.prepared = entry.case, prepare(entry.data)
        self.every = max(1, entry.steps // EVALUATIONS)
        self.curve: Curve = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            loss = validation_loss(model, self.case, self.prepared)
            self.curve.append(LossPoint(state.global_step * self.case.batch_tokens, loss))


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


def race(theirs: Finished, case: Case, variant: str, rate: float, find: Find, kept: Path) -> list[Finished]:
    """Train at increasing budgets until one ends at or below their loss, then between it and the one before (HALVINGS).

    Returns the budgets above their loss and the first that is not, if any. `find` trains a budget, `best_rate` from the rate of
    the one before on, `finished` at that rate; those between are at the rate of the first found.
    """
    above: list[Finished] = []
    for steps in budgets(theirs.entry.tokens // case.batch_tokens):
        found = find(replace(theirs.entry, side=variant, case=case, steps=steps, rate=rate), kept)
        if found.loss <= theirs.loss:
            return _narrowed(above, found, theirs.loss, kept)
        above.append(found)
        rate = found.entry.rate
    return above


def _narrowed(above: Sequence[Finished], reached: Finished, loss: float, kept: Path) -> list[Finished]:
    for _ in range(HALVINGS if above else 0):
        steps = round(math.sqrt(above[-1].entry.steps * reached.entry.steps))
        if steps in (above[-1].entry.steps, reached.entry.steps):
            break
        between = finished(replace(reached.entry, steps=steps), kept)
        above, reached = (above, between) if between.loss <= loss else ([*above, between], reached)
    return [*above, reached]


def step_seconds(entries: Sequence[RaceEntry], rounds: int) -> list[list[float]]:
    """Return the seconds of a step of each entry by round; they take turns. Raises ContenderError if one fails."""
    start_forkserver()
    with (
        tempfile.TemporaryDirectory(prefix="study-bench-") as folder,
        TrainingComparison(entries[0].case, Path(folder) / "comparison") as comparison,
    ):
        for entry in entries:
            comparison.start_function(entry.side, f"{__name__}.contend", entry)
            comparison.warm_up(entry.side)
        comparison.measure(rounds)
    if errors := comparison.rounds.errors:
        raise ContenderError("; ".join(f"{side}: {why}" for side, why in errors.items()))
    return [[time.step_seconds for time in comparison.rounds.times[entry.side]] for entry in entries]


def time_to_loss_row(
    theirs: Finished, ours: Sequence[Finished], their_step_seconds: Sequence[float], our_step_seconds: Sequence[float]
) -> Row:
    """Return a row; our tokens and seconds are None if no budget reaches their loss.

    `faster` is the ratio of steps times that of the seconds of a step, the median over rounds with its interval
    (`median_interval`).
    """
    their, our = theirs.entry, ours[-1].entry
    reached = ours[-1].loss <= theirs.loss
    their_seconds, our_seconds = median(their_step_seconds), median(our_step_seconds)
    faster = [their.steps / our.steps * ratio for ratio in ratios(their_step_seconds, our_step_seconds)]
    return {
        "shape": our.case.shape,
        "vocabulary": our.case.architecture.vocabulary,
        "variant": our.side,
        "changes": our.changes,
        "seed": our.seed,
        "their_dtype": their.case.dtype,
        "dtype": our.case.dtype,
        "their_batch": their.case.batch,
        "batch": our.case.batch,
        "sequence_length": our.case.sequence_length,
        "dropout": our.case.dropout,
        "tokens": their.tokens,
        "their_rate": their.rate,
        "their_loss": theirs.loss,
        "their_seconds": their.steps * their_seconds,
        "our_rate": our.rate,
        "our_loss": ours[-1].loss if ours[-1].curve else None,
        "our_tokens": our.tokens if reached else None,
        "our_seconds": our.steps * our_seconds if reached else None,
        "fewer_tokens": their.tokens / our.tokens if reached else None,
        "faster": median(faster) if reached else None,
        "faster_interval": list(median_interval(faster)) if reached else None,
        "rounds": len(faster),
        "their_curve": _timed(theirs, their_seconds),
        "our_curve": _timed(ours[-1], our_seconds),
        "our_budgets": [[each.entry.tokens, each.loss] for each in ours if each.curve],
        "error": None,
    }


def _timed(of: Finished, seconds: float) -> list[list[float]]:
    """Return the seconds, tokens and loss of every validation, from the seconds of a step."""
    return [[tokens / of.entry.case.batch_tokens * seconds, tokens, loss] for tokens, loss in of.curve]


def measure_time_to_loss(
    races: Sequence[RaceCases], tokens: int, seeds: int, rounds: int, kept: Path, report: Report, preset_alone: bool = False
) -> None:
    """Race our variants, or the first alone, against run_mlm for every race and seed; `kept` keeps trainings that end."""
    for case, our_case in races:
        data, steps = data_of(case), max(1, tokens // case.batch_tokens)
        raced = list(VARIANTS.items())[: 1 if preset_alone or our_case.dtype != case.dtype else None]
        variants = {name: variant.case(our_case) for name, variant in raced if (variant.batch or 0) < case.batch}
        their_rate, our_rates, find = THEIR_RATE, dict.fromkeys(variants, OUR_RATE), best_rate
        for seed in range(seeds):
            with failures_reported(f"{case.shape}, seed {seed}", report):
                prepare(data)
                theirs = find(RaceEntry(RUN_MLM, case, data, steps, their_rate, seed), kept)
                if not theirs.curve:
                    raise ContenderError(f"run_mlm diverges at a learning rate of {theirs.entry.rate:g}")
                for variant, variant_case in variants.items():
                    ours = race(theirs, variant_case, variant, our_rates[variant], find, kept)
                    report(time_to_loss_row(theirs, ours, *step_seconds([theirs.entry, ours[-1].entry], rounds)))
                    our_rates[variant] = ours[-1].entry.rate
                their_rate, find = theirs.entry.rate, finished
