"""The recipe of a run: optimiser, schedule, batch, precision, initial weights, teacher and budget."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from study.base.schema import Count, Index, NonNegative, Positive, Share, Strict, Text
from study.config.named_runs import NO_RUN, InitFrom, Teacher, check_teacher, parse_start, parse_teacher, why_no_run
from study.counting.memory import AskedPrecision, WeightFormat

Initialisation = Literal["bert", "unit_stream"]
ResidualInitialisation = Literal["bert", "zero"]
OptimiserName = Literal["adamw", "muon"]
Objective = Literal["mlm", "mlm_nsp", "mlm_sop", "rtd"]
Packing = Literal["full_sentences", "doc_sentences", "segment_pairs"]
ParametrizationName = Literal["standard", "completep", "scaled_rates"]


BASE_HEAD_WIDTH = 64
"""The head width of completep's base encoder, at any width."""

BASE_FFN_RATIO = 4
"""The FFN size of that encoder over its width."""


class Budget(Strict):
    """The training length in exactly one unit, rounded down to whole steps.

    `tokens` counts input tokens, which only packing `doc_sentences` pads, `flops` counts `train_flops`
    (study.counting.parameters), and `tokens_per_parameter` multiplies the unique parameters of the MLM model. With 0 steps a
    run keeps its initial weights.
    """

    tokens: Positive | None = None
    steps: Index | None = None
    flops: Positive | None = None
    tokens_per_parameter: Positive | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name, value in self if value is not None]
        if len(given) != 1:
            known = ", ".join(type(self).model_fields)
            raise ValueError(f"needs exactly one of {known}, not {', '.join(given) or 'none'}")
        return self

    @property
    def words(self) -> str:
        """The knob and its amount."""
        return f"recipe.budget.{self._given[0]} {self.amount:g}"

    @property
    def unit(self) -> str:
        """The unit in words."""
        return {"flops": "FLOPs"}.get(self._given[0], self._given[0].replace("_", " "))

    @property
    def amount(self) -> float:
        """The amount in this unit."""
        return float(self._given[1])

    @property
    def _given(self) -> tuple[str, float]:
        (given,) = ((name, value) for name, value in self if value is not None)
        return given


class TrainingMasking(Strict):
    """The corruption of training text; rates and shares default to those of `masking`, for validation.

    Each sequence masks round(rate · sequence length) positions. `whole_words` masks all pieces of words in random order and
    cuts the last word to fit (Devlin et al. skip it). `static_copies` of 0 draws new masks at every step; k copies give each
    sequence k fixed masks, one drawn per visit. BERT wrote 10 copies (Liu et al. 2019, arXiv:1907.11692, §4.1).
    """

    rate: Annotated[Positive, Field(le=0.9)] | None = None
    mask_share: Share | None = None
    random_share: Share | None = None
    whole_words: bool = False
    static_copies: Annotated[Index, Field(le=2**31)] = 0


class Recipe(Strict):
    """How a run trains: optimiser, schedule, batch, regularisation, precision and budget.

    - `optimizer`: AdamW, without weight decay on norms and biases; or `muon`, which updates the matrices of the blocks at
      `muon_rate_ratio` times `learning_rate` (study.model.optimization.Muon): tuning one rate tunes both.
    - `schedule`: `linear` and `cosine` warm up over `warmup_fraction` of the steps and decay to `final_learning_rate_fraction`
      of the peak. `wsd` (warmup-stable-decay) stays at the peak and decays linearly over the last `decay_fraction`.
      `warmup_tokens` replaces `warmup_fraction`: every budget has the same warmup, and wsd runs share all steps before the
      decay.
    - `batch_tokens`: the global batch, over all devices. `gradient_clip_norm`: 0 does not clip.
    - `start`: `fresh` weights, or the folder of a completed run. A shallower encoder keeps its first layers; `:last` or
      `:spread` after the folder keeps its last or evenly spread ones, and `:0,2,4` these, numbered from 0, in this order. One
      with a smaller ffn keeps the neurons that matter most, one with narrower tables their best approximation.
      `:grow=even` or `:grow=uneven` starts a wider or deeper encoder that computes the same (study.training.reshaping).
    - `weights`: the format of the stored weights. `bf16` and `int8` round those of `start` in a run of no steps; products are
      then of int8 too (study.model.stored_weights).
    - `teacher`: `none`, or the folder of a completed run whose predictions replace the masked words as targets.
      `PATH:weight=0.5:temperature=2` mixes both and softens them (study.model.masked_language_model.distillation_loss), and
      `PATH:hidden_mse=1:attention=1:layers=uniform` adds losses between layers, each times its weight
      (study.counting.layer_losses.LayerLosses).
    - `initialisation`: BERT's, or `unit_stream`, which changes the projection of narrower tables (study.model.layers).
    - `residual_initialisation`: BERT's, or `zero`, which starts each block as the identity except for post-norm's norms (Goyal
      et al. 2017, arXiv:1706.02677, section 5.1; Zhang et al. 2019, arXiv:1901.09321).
    - `masking`: training masks (TrainingMasking).
    - `objective`: `mlm` predicts masked words. `mlm_nsp` also predicts whether the second of two segments follows the first
      (BERT), `mlm_sop` whether two consecutive segments are in order (ALBERT); both losses are added (study.data.pairs). `rtd`
      detects tokens that a generator of `generator_share` of the encoder's width, heads and ffn replaced (ELECTRA,
      study.model.replaced_tokens).
    - `packing`: how text fills training sequences under `mlm` and `rtd`, in the names of RoBERTa (Liu et al. 2019,
      arXiv:1907.11692, section 4.2). `full_sentences` cuts the text every S − 1 tokens, across documents; `doc_sentences`
      begins a sequence with each document and pads its last, padding counting as tokens; `segment_pairs` reads the pairs of
      `mlm_nsp` without their loss. Validation always reads full sequences.
    - `unique_tokens`: reads so many tokens of the training text again and again, counted as trained ones are: documents in a
      fixed random order, of which fewer are the beginning of more. By default all text is read before any is repeated.
    - `parametrization`: `standard` uses one learning rate, weight decay and initial deviation at every size. `completep` scales
      those of an encoder of `base_width` and `base_depth`; `scaled_rates` does, but over the width keeps the initial deviation
      and slows the tables (study.model.parametrization).
    """

    learning_rate: Positive = 1e-3
    schedule: Literal["linear", "cosine", "wsd"] = "linear"
    warmup_fraction: Share = 0.1
    warmup_tokens: NonNegative | None = None
    decay_fraction: Share = 0.2
    final_learning_rate_fraction: Share = 0.0
    weight_decay: NonNegative = 0.01
    beta1: Annotated[NonNegative, Field(lt=1)] = 0.9
    beta2: Annotated[NonNegative, Field(lt=1)] = 0.98
    epsilon: Positive = 1e-6
    gradient_clip_norm: NonNegative = 1.0
    dropout: Annotated[NonNegative, Field(lt=1)] = 0.0
    batch_tokens: Count = 4096
    precision: AskedPrecision = "auto"
    weights: WeightFormat = "fp32"
    start: Text = NO_RUN["start"]
    teacher: Text = NO_RUN["teacher"]
    initialisation: Initialisation = "bert"
    residual_initialisation: ResidualInitialisation = "bert"
    masking: TrainingMasking = TrainingMasking()
    objective: Objective = "mlm"
    generator_share: Annotated[Positive, Field(le=1)] = 0.25
    packing: Packing = "full_sentences"
    unique_tokens: Positive | None = None
    optimizer: OptimiserName = "adamw"
    muon_rate_ratio: Positive = 4.0
    parametrization: ParametrizationName = "standard"
    base_width: Count = 128
    base_depth: Count = 2
    budget: Budget

    @field_validator("start")
    @classmethod
    def _start_is_a_run(cls, start: str) -> str:
        if start != NO_RUN["start"] and parse_start(start) is None:
            raise ValueError(why_no_run("start", start))
        return start

    @field_validator("teacher")
    @classmethod
    def _teacher_is_a_run(cls, named: str) -> str:
        try:
            teacher = parse_teacher(named)
        except ValueError:
            raise ValueError("has a weight or a temperature that is not a number") from None
        if named != NO_RUN["teacher"] and teacher is None:
            raise ValueError(why_no_run("teacher", named))
        if teacher is not None:
            check_teacher(teacher)
        return named

    @model_validator(mode="after")
    def _fractions_fit(self) -> Self:
        decay = self.decay_fraction if self.schedule == "wsd" else 0.0
        if self.warmup_tokens is not None:
            if self.warmup_fraction != type(self).model_fields["warmup_fraction"].default:
                raise ValueError(f"warmup_tokens replace warmup_fraction {self.warmup_fraction}; give one of them")
        elif self.warmup_fraction + decay > 1 + 1e-9:
            raise ValueError(f"warmup_fraction {self.warmup_fraction} and decay_fraction {decay} add up to more than 1")
        return self

    @model_validator(mode="after")
    def _first_values_follow_one_rule(self) -> Self:
        if self.parametrization != "standard" and self.initialisation != "bert":
            both = f"initialisation {self.initialisation} and parametrization {self.parametrization}"
            raise ValueError(f"{both} both initialise the projection of narrower tables; leave out one")
        return self

    @property
    def judges_pairs(self) -> bool:
        """Whether the objective includes a loss over pairs of segments."""
        return self.objective in ("mlm_nsp", "mlm_sop")

    @property
    def detects_replaced(self) -> bool:
        """Whether the encoder detects replaced tokens, and predicts no masked ones."""
        return self.objective == "rtd"

    @property
    def heads(self) -> dict[str, Any]:
        """What the objective adds to an architecture: the head that judges pairs, or the generator of replaced tokens."""
        return {"pair_head": self.judges_pairs, "generator_share": self.generator_share if self.detects_replaced else 0.0}

    @property
    def reads_pairs(self) -> bool:
        """Whether training sequences are pairs of segments."""
        return self.judges_pairs or self.packing == "segment_pairs"

    @property
    def pads(self) -> bool:
        """Whether training sequences end with padding."""
        return not self.reads_pairs and self.packing == "doc_sentences"

    @property
    def init_from(self) -> InitFrom | None:
        """The run that supplies the initial weights; None for fresh weights."""
        return parse_start(self.start)

    @property
    def teacher_run(self) -> Teacher | None:
        """The teacher, if any."""
        return parse_teacher(self.teacher)

    @property
    def trained_runs(self) -> dict[str, str]:
        """The identities of the named trained runs, by knob."""
        named = {"start": self.init_from, "teacher": self.teacher_run}
        return {knob: run.identity for knob, run in named.items() if run is not None}

    def warmup_steps(self, steps: int) -> int:
        """Return the steps of the warmup."""
        if self.warmup_tokens is not None:
            return round(self.warmup_tokens / self.batch_tokens)
        return round(self.warmup_fraction * steps)

    def decay_steps(self, steps: int) -> int:
        """Return the steps of the decay, at the end."""
        return round(self.decay_fraction * steps) if self.schedule == "wsd" else steps - self.warmup_steps(steps)
