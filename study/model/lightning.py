"""Masked language modelling as a LightningModule. Letters: B sequences, S tokens, K masked positions."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor
from torch._functorch import config as functorch

from study.base.errors import InputError
from study.base.quantities import plural, rounded
from study.base.randomness import Stream, stream_seed
from study.base.statistics import variance_of_mean
from study.config.resources import Kernels
from study.config.run_config import RunConfig
from study.data.batches import ValidationBatch, WordBatch, training_masker
from study.data.masked_words import BITS_A_BYTE, MaskedWords
from study.data.masking import IGNORED, MaskedBatch, Masker
from study.data.pairs import Pairs
from study.data.prepared import prepare
from study.model.distillation import LayerMatching
from study.model.encoder import at_positions, has_fused_kernels
from study.model.layers import multiply_through_onednn, seed_dropout
from study.model.masked_language_model import TeacherLogits, TeacherModel
from study.model.optimization import StepGraph, clip_gradients, learning_rate_factor, optimizer_of, schedule
from study.model.parametrization import fresh_model
from study.model.replaced_tokens import detection, joint_loss, replaced

HOOK = "_current_fx_name"
"""Lightning's attribute with the current hook's name."""

SPEED_DIGITS = 4
"""The digits of a logged speed; the clock's further ones are noise, half of all that curves take in a packed sweep."""

ORDER_SHARE = 0.25
"""The share of validation sequences, from the first, that measure word order during a run; at its end all do.

Validation takes at most 5% of a run (study.training.trainer.validations_of), so this takes at most 1.25% more.
"""

OF_SOME = (
    *("pair_loss", "pair_accuracy", "generator_loss", "generator_accuracy"),
    *("bits_per_masked_byte", "bits_per_masked_byte_standard_error"),
)
"""What only some validations measure."""


@dataclass(frozen=True)
class ValidationResult:
    """The validation after a step: the nats and number of each sequence's masked tokens, and the correct predictions.

    `permuted_nats` are those of the first sequences, at a run's end of all, with visible tokens permuted. Standard errors
    cluster by `documents`, one per sequence (PreparedData.validation_documents), if known. `pair_nats` are those of each pair's
    label, if the objective judges pairs, of which it judged `pairs_correct` right. `word_nats` are those of each document's
    masked words (study.data.masked_words), at a run's end, and `word_bytes` their bytes. If the objective detects replaced
    tokens, nats and predictions are those of the detection at all ordinary tokens, and `generator_loss` (nats) and
    `generator_accuracy` those of its generator at the masked ones.
    """

    step: int
    nats: Tensor
    tokens: Tensor
    correct: int
    permuted_nats: Tensor
    documents: Tensor | None = None
    pair_nats: Tensor | None = None
    pairs_correct: int | None = None
    word_nats: Tensor | None = None
    word_bytes: Tensor | None = None
    generator_loss: float | None = None
    generator_accuracy: float | None = None

    @property
    def loss(self) -> float:
        """Sum of nats over masked tokens ÷ number of masked tokens."""
        return float(self.nats.sum() / self.tokens.sum())

    @property
    def standard_error(self) -> float | None:
        """Return the standard error of the loss over documents, None for one."""
        return self._standard_error(self.nats, self.tokens)

    @property
    def order_gain(self) -> float:
        """Loss with visible tokens permuted minus loss, over the permuted sequences.

        Both have the same masks, including random and kept tokens, so the gain is part of the reported loss.
        """
        gained, tokens = self._gained
        return float(gained.sum() / tokens.sum())

    @property
    def order_gain_standard_error(self) -> float | None:
        """Return the standard error of the order gain over documents, None for one."""
        return self._standard_error(*self._gained)

    @property
    def _gained(self) -> tuple[Tensor, Tensor]:
        """Each sequence's loss from permutation in nats, and its masked tokens."""
        measured = slice(len(self.permuted_nats))
        return self.permuted_nats - self.nats[measured], self.tokens[measured]

    def _standard_error(self, nats: Tensor, tokens: Tensor) -> float | None:
        """Return the standard error of Σ nats ÷ Σ tokens over the given first sequences; None for one document.

        To first order it is that of the mean of (nats − ratio · tokens) ÷ mean tokens.
        """
        documents = None if self.documents is None else self.documents[: len(nats)].numpy()
        if len(nats if documents is None else np.unique(documents)) < 2:
            return None
        residuals = (nats - nats.sum() / tokens.sum() * tokens) / tokens.mean()
        return math.sqrt(variance_of_mean(residuals.numpy(), documents))

    @property
    def byte_losses(self) -> NDArray[np.float64] | None:
        """Each document's nats of masked words ÷ the mean bytes of these words."""
        if self.word_nats is None or self.word_bytes is None:
            return None
        return (self.word_nats / self.word_bytes.mean()).numpy()

    @property
    def bits_per_masked_byte(self) -> float | None:
        """Sum of bits over the pieces of masked words ÷ the words' bytes, at a run's end."""
        return None if self.byte_losses is None else float(self.byte_losses.mean()) / math.log(2)

    @property
    def bits_per_masked_byte_standard_error(self) -> float | None:
        """Return the standard error of the bits per byte over documents; None for one."""
        if self.word_nats is None or self.word_bytes is None or len(self.word_nats) < 2:
            return None
        nats = self.word_nats - self.word_nats.sum() / self.word_bytes.sum() * self.word_bytes
        return math.sqrt(variance_of_mean((nats / self.word_bytes.mean()).numpy())) / math.log(2)

    @property
    def document_count(self) -> int | None:
        """The number of documents, if known."""
        return None if self.documents is None else len(np.unique(self.documents.numpy()))

    @property
    def accuracy(self) -> float:
        """Share of masked tokens predicted correctly, or of ordinary tokens judged right."""
        return self.correct / int(self.tokens.sum())

    @property
    def pair_loss(self) -> float | None:
        """The mean nats of the pairs' labels, if any."""
        return None if self.pair_nats is None else float(self.pair_nats.mean())

    @property
    def pair_accuracy(self) -> float | None:
        """The share of pairs judged right, if any."""
        return None if self.pair_nats is None or self.pairs_correct is None else self.pairs_correct / len(self.pair_nats)


class MaskedLanguageModelling(pl.LightningModule):
    """One run's training: step t draws masks and dropout from (seed, t); the loss is the mean over masked tokens only.

    With a `teacher` the loss also follows its logits (MaskedLanguageModel.predicted_loss) and any losses between layers
    (study.model.distillation), and FLOPs include its forward pass and the products of these.
    A training batch holds this rank's packed tokens (B, S), or rows of `PackedPairs`. If the objective judges pairs, the
    mean cross-entropy of their labels is added to the loss; if it detects replaced tokens, the loss is that of
    study.model.replaced_tokens. Every `log_every_steps` it logs `train/loss`, the mean since the last row;
    `train/gradient_norm` before clipping; `recipe/learning_rate`; cumulative `trainer/step`, `trainer/tokens` and
    `trainer/flops` (convention train_flops); `perf/tokens_per_second` and, if the device's peak is known, `perf/mfu`, the
    share of it used by executed products (without `spared_flops_per_token`). Validation logs `val/loss`, `val/accuracy` and
    `val/order_gain` (ValidationResult), with standard errors clustered by `validation_documents`, one per sequence, of
    pairs `val/pair_loss` and `val/pair_accuracy`, of a generator `val/generator_loss` and `val/generator_accuracy`, and at
    the end `val/bits_per_masked_byte`. Raises FloatingPointError if a logged loss is not finite.

    `trainer.callback_metrics` has the same metrics, for ModelCheckpoint, EarlyStopping and pruning callbacks. Without a
    `masker` the module prepares its data, so that `MaskedLanguageModelling(config)` trains under any Lightning Trainer with
    `PackedBatches(config)`, and `load_from_checkpoint` needs only the checkpoint.
    """

    def __init__(
        self,
        config: RunConfig | Mapping[str, Any],
        masker: Masker | None = None,
        log_every_steps: int = 50,
        peak_flops_per_second: float | None = None,
        kernels: Kernels = "eager",
        teacher: TeacherModel | None = None,
        validation_documents: Tensor | None = None,
    ) -> None:
        super().__init__()
        config = config if isinstance(config, RunConfig) else RunConfig.parse(config)
        self.save_hyperparameters({"config": config.to_dict()})
        self.config, self._given_masker, self.log_every_steps = config, masker, log_every_steps
        self.peak_flops_per_second, self.kernels, self.teacher = peak_flops_per_second, kernels, teacher
        teachers = None if teacher is None else teacher.model.architecture
        self.train_flops_per_token = config.flops_per_token_with(teachers)["train_flops"]
        self._spared_flops_per_token = config.spared_flops_per_token_with(teachers)
        self.model = fresh_model(config.architecture, config.recipe, config.seed)
        self.matching: LayerMatching | None = None
        if teacher is not None and teacher.losses:
            self.matching = LayerMatching(teacher.losses, config.architecture, teacher.model.architecture, config.seed)
        self.validation: ValidationResult | None = None
        self.validation_documents = validation_documents
        self.gradient_norm = torch.zeros(())
        self._row_started, self._row_step = 0.0, 0
        self._loss_sum, self._loss_steps = torch.zeros(()), 0
        self._validated: list[tuple[Tensor, ...]] = []
        self._words: list[tuple[Tensor, Tensor]] = []

    def __setattr__(self, name: str, value: Any) -> None:
        """Skip torch's checks for HOOK, which is set some forty times a step."""
        if name == HOOK:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    @property
    def fused(self) -> bool:
        """Whether torch.compile fuses kernels."""
        return self.kernels in ("compiled", "graphed")

    @property
    def steps_done(self) -> int:
        """Optimiser steps taken."""
        return self.trainer.global_step

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Logits of the model (see MaskedLanguageModel)."""
        return self.model(*inputs, **named)

    def setup(self, stage: str) -> None:
        """Draw masks on the training device, choose product kernels, and fuse each block and the loss if requested.

        Blocks of one shape are compiled once, at any depth, unless losses read their attention. So is a teacher, except for the
        fused kernels, which compute gradients.
        """
        models = [self.model] if self.teacher is None else [self.model, self.teacher.model.to(self.device)]
        self._generator, self.masker = torch.Generator(self.device), self._training_masker().to(self.device)
        self._graph: StepGraph | None = None
        self._predicted_loss: Callable[..., Tensor] = self.model.predicted_loss
        if self.kernels == "onednn":
            for model in models:
                multiply_through_onednn(model)
        if self.fused and stage == "fit":
            torch._dynamo.config.optimize_ddp = False  # it would split modules that are already small
            functorch.ban_recompute_used_far_apart = False  # else norms keep fp32 values instead of recomputing them from bf16
            observed = self.matching is not None and self.matching.losses.of_attention
            for model in models:
                for encoder in model.encoders:
                    for block in (encoder.embeddings, *(() if observed else encoder.blocks)):
                        block.compile(dynamic=False)
            self._predicted_loss = torch.compile(self.model.predicted_loss, dynamic=False)
            if self.uses_fused_kernels:
                self._write_out()

    def _training_masker(self) -> Masker:
        """Return the training masker; raises InputError if the recipe names a trained run, which only a launch loads."""
        if self._given_masker is not None:
            return self._given_masker
        if runs := self.config.recipe.trained_runs:
            raise InputError.at(f"recipe.{next(iter(runs))}", "names a trained run; train with study.api.train, which loads it")
        prepared = prepare(self.config.data)
        self.validation_documents = torch.from_numpy(prepared.validation_documents())
        return training_masker(self.config, prepared)

    @property
    def uses_fused_kernels(self) -> bool:
        """Whether BERT's blocks and the loss without a teacher or generator use the Triton kernels: on a GPU in bf16."""
        alone = self.model.generator is None
        return alone and self.device.type == "cuda" and self.trainer.precision == "bf16-mixed"

    def _write_out(self) -> None:
        from study.model.fused import fused_blocks, fused_predicted_loss

        if self.matching is None and has_fused_kernels(self.config.architecture, self.config.recipe.dropout):
            self.model.encoder.fused = fused_blocks
        if self.teacher is None:
            transformed = torch.compile(self.model.head.transformed, dynamic=False)
            self._predicted_loss = functools.partial(fused_predicted_loss, self.model, transformed)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """Return the loss of one step."""
        del batch_idx
        seed, step, rank = self.config.seed, self.trainer.global_step, self.trainer.global_rank
        self._generator.manual_seed(stream_seed(Stream.MASKS, seed, step))
        if self.config.recipe.dropout:
            seed_dropout(self.device, stream_seed(Stream.DROPOUT, seed, step, rank))
        if self._graph is None:
            loss = self._loss_of(batch)
        else:
            loss, self.gradient_norm = self._graph(batch)
        self._loss_sum = self._loss_sum.to(loss.device) + loss.detach()
        self._loss_steps += 1
        return loss

    def _loss_of(self, batch: Tensor) -> Tensor:
        """Return the mean loss over masked positions, mixed with any teacher's, plus that over pairs if any."""
        recipe = self.config.recipe
        pairs = Pairs.of(batch) if recipe.reads_pairs else None
        tokens, segments = (batch, None) if pairs is None else (pairs.tokens, pairs.segments)
        masked = self.masker(tokens, self._generator, self.trainer.global_rank, self.trainer.world_size)
        attended = self.masker.attended(tokens)
        if recipe.detects_replaced:
            draws_BxK = self._draws(masked.positions)
            return joint_loss(self.model, tokens, masked, draws_BxK, ~self.masker.special(tokens), segments, attended)
        judges = pairs is not None and recipe.judges_pairs
        positions = F.pad(masked.positions, (1, 0)) if judges else masked.positions  # [CLS] first
        hidden, predicted, added = self._encoded(masked, positions, segments, attended)
        if pairs is not None and judges:
            first_Bx1xH, hidden = (part.contiguous() for part in hidden.tensor_split([1], 1))
            added = [*added, self.model.pair_loss(first_Bx1xH[:, 0], pairs.labels)]
        loss = self._predicted_loss(hidden, masked.labels, *predicted)
        if self.trainer.world_size > 1:
            loss = loss * self._weight_of(masked.labels, self.trainer.world_size)
        return sum(added, loss)

    def _weight_of(self, labels_BxK: Tensor, ranks: int) -> Tensor:
        """Return this rank's share of all labels times the number of ranks, since gradients are averaged with equal weights.

        It is 1 unless padding, or sequences of few ordinary tokens, leave some ranks fewer labels.
        """
        own = (labels_BxK != IGNORED).sum().float()
        everyones = own.clone()
        torch.distributed.all_reduce(everyones)  # the strategy's own reduction waits at a barrier first
        return own * ranks / everyones

    def _draws(self, positions_BxK: Tensor) -> Tensor:
        """Return a draw for each masked position, whatever the number of ranks."""
        (batch, predictions), rank = positions_BxK.shape, self.trainer.global_rank
        size = (batch * self.trainer.world_size, predictions)
        drawn = torch.rand(size, device=positions_BxK.device, generator=self._generator)
        return drawn[rank * batch : (rank + 1) * batch]

    def _encoded(
        self, masked: MaskedBatch, positions_BxK: Tensor, segments_BxS: Tensor | None, attended_BxS: Tensor | None
    ) -> tuple[Tensor, tuple[TeacherLogits, ...], list[Tensor]]:
        """Return the encoder's output at some positions, and any teacher's logits and loss between layers."""
        encoder, teacher, matching = self.model.encoder, self.teacher, self.matching
        if teacher is None or matching is None:
            predicted = () if teacher is None else (teacher.predict(masked, segments_BxS, attended_BxS),)
            return self.model.hidden(masked.tokens, segments_BxS, attended_BxS, positions_BxK), predicted, []
        logits, taught = teacher.observe(masked, matching.of_teacher, segments_BxS, attended_BxS)
        inputs = (masked.tokens, segments_BxS, attended_BxS, matching.of_student, teacher.losses.of_attention)
        output_BxSxH, states = encoder.observe(*inputs)
        predicted = () if logits is None else (logits,)
        return at_positions(output_BxSxH, positions_BxK), predicted, [matching(states, taught, attended_BxS)]

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Differentiate the loss, unless the step graph has."""
        if self._graph is None:
            super().backward(loss, *args, **kwargs)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        """Drop the last step's gradients, unless they belong to the step graph."""
        if self._graph is None:
            super().optimizer_zero_grad(epoch, batch_idx, optimizer)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Take the optimiser's step; with a step graph, in the closure."""
        if self._graph is None:
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        else:
            optimizer_closure()

    def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
        """Clip the global norm by the recipe, and keep the norm before."""
        self.gradient_norm = clip_gradients(self._clipped, self._clip_norm)

    @property
    def _clip_norm(self) -> float:
        return self.config.recipe.gradient_clip_norm or float("inf")

    def on_train_start(self) -> None:
        """Start the first row's clock, list the parameters, and create the step graph if kernels are graphed."""
        self._row_started, self._row_step, self._starting = time.perf_counter(), self.steps_done, True
        self._clipped = list(self.parameters())
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, torch.optim.Optimizer)
        if self.kernels == "graphed":
            bf16 = self.trainer.precision == "bf16-mixed"
            self._graph = StepGraph(self._loss_of, optimizer, self._clip_norm, self._generator, bf16)
        else:
            for group in optimizer.param_groups:  # a resumed run may have been graphed before
                group["lr"], group["capturable"] = float(group["lr"]), False

    def on_train_batch_end(self, *_: Any) -> None:
        """Log a due row; speeds leave out an attempt's first step, which builds kernels."""
        self.log_due_row()
        if self._starting:
            self._row_started, self._row_step, self._starting = time.perf_counter(), self.steps_done, False

    def log_due_row(self) -> None:
        """Log the row of this step if due and not yet logged, before its checkpoint."""
        if self.steps_done % self.log_every_steps == 0 and self.steps_done > self._row_step:
            self._log_interval()

    def _log_interval(self) -> None:
        mean = self.trainer.strategy.reduce(self._loss_sum / self._loss_steps, reduce_op="mean")
        self._loss_sum, self._loss_steps = torch.zeros((), device=self.device), 0
        if not torch.isfinite(mean):
            raise FloatingPointError(
                f"the training loss is {mean.item()} in the {plural(self.log_every_steps, 'step')} to step {self.steps_done}"
            )
        recipe, last_step, speeds = self.config.recipe, self.steps_done - 1, self._throughput()
        self._log_row(
            {
                "train/loss": mean.item(),
                "train/gradient_norm": self.gradient_norm.item(),
                "recipe/learning_rate": recipe.learning_rate * learning_rate_factor(last_step, self.config.steps, recipe),
            }
            | ({} if self._starting else speeds)
        )

    def _throughput(self) -> dict[str, float]:
        """Return the speed since the last row."""
        now = time.perf_counter()
        tokens = (self.steps_done - self._row_step) * self.config.recipe.batch_tokens
        tokens_per_second = tokens / (now - self._row_started)
        self._row_started, self._row_step = now, self.steps_done
        if self.peak_flops_per_second is None:
            return {"perf/tokens_per_second": rounded(tokens_per_second, digits=SPEED_DIGITS)}
        achieved = tokens_per_second * (self.train_flops_per_token - self._spared_flops_per_token)
        speeds = {"perf/tokens_per_second": tokens_per_second, "perf/mfu": achieved / self.peak_flops_per_second}
        return {name: rounded(speed, digits=SPEED_DIGITS) for name, speed in speeds.items()}

    def _log_row(self, row: dict[str, float]) -> None:
        """Give a row to the loggers at once, in full precision, and its metrics to callbacks.

        `self.log` would round to float32 for the loggers and repeat the row.
        """
        self.log_dict(row, logger=False)
        if self.trainer.is_global_zero:
            for logger in self.trainer.loggers:
                logger.log_metrics(self.progress() | row, step=self.steps_done)

    def on_validation_start(self) -> None:
        """Start the validation clock and run eagerly."""
        self._validation_started = time.perf_counter()
        if self.fused:
            torch.compiler.set_stance("force_eager")

    def on_validation_end(self) -> None:
        """Exclude validation from the rows' throughput."""
        if self.fused:
            torch.compiler.set_stance("default")
        self._row_started += time.perf_counter() - self._validation_started

    def progress(self) -> dict[str, float]:
        """Return the run's progress, by metric name."""
        tokens = self.steps_done * self.config.recipe.batch_tokens
        return {
            "trainer/step": self.steps_done,
            "trainer/tokens": tokens,
            "trainer/flops": self.train_flops_per_token * tokens,
        }

    def validation_step(self, batch: ValidationBatch | WordBatch, batch_idx: int) -> None:
        """Score validation sequences: nats, masked tokens and correct predictions of each, and the nats of permuted ones.

        Masked words are scored at a run's end.
        """
        del batch_idx
        if isinstance(batch, WordBatch):
            if self._ends:
                nats_BxK, _ = self._predicted(batch.masked)
                self._words.append((batch.documents, nats_BxK))
            return
        rows, masked, permuted_BxS, pairs, draws_BxK = batch
        if draws_BxK is not None:
            self._validated.append((rows, *self._detected(rows, masked, permuted_BxS, draws_BxK)))
            return
        nats, correct = self._scored(masked)
        permuted_nats, measured = nats.clone(), int((rows < self._sequences_permuted).sum())  # rows ascend
        if measured and self.config.architecture.orders_tokens:  # else only rounding differs
            first = MaskedBatch(*(each[:measured] for each in (permuted_BxS, masked.positions, masked.labels)))
            permuted_nats[:measured], _ = self._scored(first)
        judged = () if pairs is None else self._judged(pairs)
        self._validated.append((rows, nats, (masked.labels != IGNORED).sum(1), correct, permuted_nats, *judged))

    def _detected(self, rows: Tensor, masked: MaskedBatch, permuted_BxS: Tensor, draws_BxK: Tensor) -> tuple[Tensor, ...]:
        """Measure each sequence: the detection's nats, tokens, correct judgements and nats of permuted tokens.

        Then the generator's nats, tokens and correct predictions.
        """
        logits_BxKxV = self.model(masked.tokens, masked.positions).float()
        generated = F.cross_entropy(logits_BxKxV.flatten(0, 1), masked.labels.flatten(), reduction="none")
        right = (logits_BxKxV.argmax(-1) == masked.labels).sum(1)
        originals_BxS = masked.originals
        read_BxS = replaced(originals_BxS, masked, logits_BxKxV, draws_BxK)
        counted_BxS, changed_BxS = ~self.masker.special(originals_BxS), read_BxS != originals_BxS
        detected = detection(self.model.detection_logits(read_BxS), changed_BxS, counted_BxS)
        permuted_nats, measured = detected.nats.double().sum(1), int((rows < self._sequences_permuted).sum())
        if measured and self.config.architecture.orders_tokens:  # else only rounding differs
            permuted_BxS = permuted_BxS.scatter(1, masked.positions, read_BxS.gather(1, masked.positions))[:measured]
            logits_BxS = self.model.detection_logits(permuted_BxS)
            permuted_nats[:measured] = (
                detection(logits_BxS, changed_BxS[:measured], counted_BxS[:measured]).nats.double().sum(1)
            )
        of_detector = (detected.nats.double().sum(1), counted_BxS.sum(1), detected.correct.sum(1), permuted_nats)
        return *of_detector, generated.double().view_as(masked.labels).sum(1), (masked.labels != IGNORED).sum(1), right

    def _judged(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return the nats of each pair's label, and whether it is judged right."""
        logits_Bx2 = self.model.pair_logits(pairs.tokens, pairs.segments)
        return F.cross_entropy(logits_Bx2, pairs.labels, reduction="none"), logits_Bx2.argmax(1) == pairs.labels

    def _scored(self, masked: MaskedBatch) -> tuple[Tensor, Tensor]:
        """Return the nats and the number of correct predictions of each sequence."""
        nats_BxK, correct_BxK = self._predicted(masked)
        return nats_BxK.sum(1), correct_BxK.sum(1)

    def _predicted(self, masked: MaskedBatch) -> tuple[Tensor, Tensor]:
        """Return the nats of each masked position, zero if none is predicted, and whether it is right."""
        logits = self.model(masked.tokens, masked.positions).float()
        nats = F.cross_entropy(logits.flatten(0, 1), masked.labels.flatten(), ignore_index=IGNORED, reduction="none")
        valid = masked.labels != IGNORED
        correct = (logits.argmax(-1) == masked.labels) & valid
        return nats.double().view_as(valid), correct

    @property
    def _masked_words(self) -> MaskedWords | None:
        return getattr(getattr(self.trainer, "datamodule", None), "words", None) if self._ends else None

    @property
    def _ends(self) -> bool:
        return self.steps_done >= self.config.steps

    def _word_nats(self, words: MaskedWords) -> Tensor:
        """Return the nats of each document's masked words, over all ranks; bytes that no piece stands for cost 8 bits each."""
        nats_D = torch.zeros(len(words.word_bytes), dtype=torch.float64, device=self.device)
        for documents_BxK, nats_BxK in self._words:
            nats_D.index_add_(0, documents_BxK.flatten(), nats_BxK.flatten())
        self._words.clear()
        return self.trainer.strategy.reduce(nats_D, reduce_op="sum").cpu() + BITS_A_BYTE * math.log(2) * words.lost_bytes

    @property
    def _sequences_permuted(self) -> int:
        """The number of validation sequences, from the first, that measure word order now."""
        sequences = self.config.data.validation_sequences
        return sequences if self._ends else math.ceil(ORDER_SHARE * sequences)

    def on_validation_epoch_end(self) -> None:
        """Combine the ranks' sequences and log what validation measured."""
        rows, *measured = (torch.cat(parts) for parts in zip(*self._validated, strict=True))
        self._validated.clear()
        total = torch.zeros(len(measured), self.config.data.validation_sequences, dtype=torch.float64, device=self.device)
        total[:, rows] = torch.stack([each.double() for each in measured])
        nats, tokens, correct, permuted_nats, *others = self.trainer.strategy.reduce(total, reduce_op="sum").cpu()
        permuted_nats = permuted_nats[: self._sequences_permuted]
        words = self._masked_words
        judged, generated = ((), others) if self.config.recipe.detects_replaced else (others, ())
        of_generator = (float(generated[n].sum() / generated[1].sum()) for n in (0, 2)) if generated else (None, None)
        result = ValidationResult(
            self.steps_done,
            nats,
            tokens,
            int(correct.sum()),
            permuted_nats,
            self.validation_documents,
            *((judged[0], int(judged[1].sum())) if judged else (None, None)),
            *((None, None) if words is None else (self._word_nats(words), words.word_bytes)),
            *of_generator,
        )
        of_some = {name: getattr(result, name) for name in OF_SOME}
        losses = {"loss": result.loss, "pair loss": result.pair_loss, "generator loss": result.generator_loss}
        for name, value in {**losses, "order gain": result.order_gain}.items():
            if value is not None and not math.isfinite(value):
                raise FloatingPointError(f"the validation {name} is {value} after step {self.steps_done}")
        self.validation = result
        errors = {"loss": result.standard_error, "order_gain": result.order_gain_standard_error}
        self._log_row(
            {"val/loss": result.loss, "val/accuracy": result.accuracy, "val/order_gain": result.order_gain}
            | {f"val/{name}_standard_error": error for name, error in errors.items() if error is not None}
            | {f"val/{name}": value for name, value in of_some.items() if value is not None}
        )

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return the recipe's optimiser and its schedule, stepped every step."""
        optimizer = optimizer_of(self.model, self.config.recipe, () if self.matching is None else self.matching.parameters())
        scheduler = schedule(optimizer, self.config.steps, self.config.recipe)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the loss since the last logged row, the mean over ranks."""
        loss_sum = self.trainer.strategy.reduce(self._loss_sum.to(self.device, copy=True), reduce_op="mean")
        checkpoint["interval"] = {"loss_sum": loss_sum.cpu(), "steps": self._loss_steps}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the loss since the last logged row; without a teacher, leave out the projection to its width."""
        if self.matching is None:
            state = checkpoint["state_dict"]
            checkpoint["state_dict"] = {name: tensor for name, tensor in state.items() if not name.startswith("matching.")}
        interval = checkpoint["interval"]
        self._loss_sum, self._loss_steps = interval["loss_sum"], interval["steps"]
