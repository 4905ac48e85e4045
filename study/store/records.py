"""The record of one run, and the ledger of many."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from study.base.quantities import plural, plus_minus
from study.base.schema import Count, Index, Share, Strict, flatten
from study.config.presets import PRESET
from study.config.resources import Kernels
from study.config.run_config import LEFT_OUT, TRAINING_MASKS, Masking, RunConfig, fingerprint_of, ledger_value
from study.counting.architecture import Architecture
from study.counting.memory import Precision
from study.counting.parameters import parameters

if TYPE_CHECKING:
    import pandas as pd

State = Literal["COMPLETED", "FAILED", "DIVERGED", "HUNG", "OOM", "PRUNED"]
"""How a run ended: COMPLETED reached its target; DIVERGED met a NaN or infinite loss; HUNG took no step for too long; OOM ran
out of memory; PRUNED was stopped by its search; FAILED is everything else.
"""

Ending = Literal[State, "PREEMPTED"]
"""How an attempt ended: as its run did, or stopped on request after saving."""

INFORMATIVE_STATES = ("COMPLETED", "DIVERGED")
"""The states that are informative about a run's knobs."""

RETRIED = ("FAILED", "OOM", "HUNG")
"""The states that a retry without names includes; diverged runs would diverge again and must be named."""

DISK_FULL = "disk full"
"""How the reason of a run begins that failed because nothing more could be written."""

Magnitude = Annotated[float, Field(le=1e39)]
"""A measured number, at most about float32's largest, so that variances and axes exist."""

Amount = Annotated[Magnitude, Field(ge=0)]
"""A measured number that is never negative."""


READS_ORDER_NATS = 0.05
"""A run reads word order if its order gain exceeds this by two standard errors.

Runs of a few million tokens gain −0.001 to 0.001 without word order, and 0.16 or more once they start to read it.
"""


class Environment(Strict):
    """The environment of a run, which affects its numbers' last bits and all timings.

    `devices` counts all `nodes`; `sharing` runs shared each device, so throughput is a share's.
    """

    hostname: str
    device: str
    processor: str
    devices: Index = 1
    nodes: Index = 1
    sharing: Index = 1
    threads: Index
    precision: Precision
    kernels: Kernels = "eager"
    python: str
    torch: str
    lightning: str
    study: str


def _measured(speed: object) -> object:
    """Return a speed, None for the 0 that earlier versions wrote for runs without steps."""
    return speed or None


class RunRecord(Strict):
    """The row that an ended run leaves; unreached values are None, never zero.

    Fields that earlier versions lack are None. `tokens` were trained on, with each sequence's [CLS]; `train_tokens` counts the
    text that it could read, without them. Losses are nats per masked token on the fixed validation set and masks;
    `loss_standard_error_nats` is over its sequences, clustered by its `validation_documents` documents.
    `validation_overlap_share` is the share of validation text in windows of the training text (study.data.deduplication).
    `order_gain_nats` is the rise of the loss, paired by sequence, if visible ordinary tokens are permuted; earlier versions say
    `stuck_at_unigram` for a loss above 97% of the unigram entropy.
    `pair_loss_nats` and `pair_accuracy` are of the labels of fixed validation pairs, None unless the objective judges pairs.
    Under objective rtd, losses and accuracies are those of detecting replaced tokens, over `validation_masked_tokens` ordinary
    tokens, and `generator_loss_nats` and `generator_accuracy` are the generator's at the masked positions.
    `bits_per_masked_byte` is the loss of the pieces of fixed masked words ÷ the bytes of these, the same words whatever the
    tokeniser (study.data.masked_words); it compares between runs with equal `masked_words`. `lost_share` is the share of the
    train split's characters that are [UNK] or dropped.
    `train_flops` and its namesakes are totals by the conventions of study.counting.parameters, with a teacher's forward passes.
    `train_loss_nats` is the mean objective of the last steps. `loss_spikes` counts logged training losses far above those
    before (study.training.run). `weights_sha256` is of the weights file. `unknown_share` is the share of [UNK] in the train
    split. `wall_seconds` sums the attempts' training time with validation, `start_seconds` the part until each attempt's first
    step ended, `starts` times (earlier versions do not say). `tokens_per_second` is of later steps (`seconds_per_step`).

    A run that branched from a `trunk` of the same sweep after `trunk_step` equals one trained alone except for cost: it trained
    on `spent_tokens` itself, in `wall_seconds`, at `tokens_per_second`. A run initialised from another's weights lacks
    `layers_cut` of its layers. An encoder imported without its MLM head has an `untrained_head`, and no loss. `spent_flops` are
    its `train_flops` and those of all runs that it starts from or learns from, directly or not, each once; None if there are
    none.
    """

    schema_version: Literal[1] = 1
    run_id: str
    sweep: str
    state: State
    reason: str | None = None
    config: RunConfig
    data_fingerprint: str
    steps: Index
    tokens: Index
    spent_tokens: Index | None = None
    trunk: str | None = None
    trunk_step: Index | None = None
    layers_cut: Index | None = None
    untrained_head: Literal[True] | None = None
    train_tokens: Index | None = None
    loss_nats: Amount | None = None
    loss_standard_error_nats: Amount | None = None
    order_gain_nats: Magnitude | None = None
    order_gain_standard_error_nats: Amount | None = None
    pair_loss_nats: Amount | None = None
    pair_accuracy: Share | None = None
    generator_loss_nats: Amount | None = None
    generator_accuracy: Share | None = None
    bits_per_masked_byte: Amount | None = None
    bits_per_masked_byte_standard_error: Amount | None = None
    masked_words: str | None = None
    accuracy: Share | None = None
    validation_masked_tokens: Index | None = None
    validation_documents: Count | None = None
    unigram_entropy_nats: Amount | None = None
    unknown_share: Share | None = None
    lost_share: Share | None = None
    validation_overlap_share: Share | None = None
    stuck_at_unigram: bool | None = None
    train_loss_nats: Magnitude | None = None
    loss_spikes: Index | None = None
    parameters: Count
    parameters_encoder: Count
    parameters_non_embedding: Count
    train_flops: Amount
    train_flops_dense_head: Amount
    train_flops_6n: Amount
    train_flops_6n_non_embedding: Amount
    spent_flops: Amount | None = None
    wall_seconds: Amount | None = None
    start_seconds: Amount | None = None
    starts: Index | None = None
    tokens_per_second: Annotated[Amount | None, BeforeValidator(_measured)] = None
    peak_memory_bytes: Index | None = None
    weights_sha256: str | None = None
    attempts: Index
    started_at: str
    finished_at: str
    environment: Environment | None = None
    excluded: str | None = Field(default=None, exclude=True)
    """Why a person leaves the run out: an annotation beside the record, not part of it."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.state == "COMPLETED" and self.loss_nats is None and not self.untrained_head:
            raise ValueError("needs loss_nats: its state is COMPLETED")
        if (self.trunk is None) != (self.trunk_step is None):
            raise ValueError("needs trunk and trunk_step together")
        return self

    @property
    def met_full_disk(self) -> bool:
        """Whether the run failed on a full disk, so that the next launch resumes it."""
        return self.state == "FAILED" and self.excluded is None and (self.reason or "").startswith(f"{DISK_FULL}: ")

    @property
    def spent_share(self) -> float:
        """The share of tokens, and so FLOPs, that the run itself trained on."""
        return 1.0 if self.spent_tokens is None or not self.tokens else self.spent_tokens / self.tokens

    @property
    def is_imported(self) -> bool:
        """Whether the weights are those of an encoder that was trained elsewhere, as study.training.importing read them."""
        start = self.config.recipe.init_from
        made_here = self.layers_cut is not None or start is None or start.grow is not None
        return self.state == "COMPLETED" and not self.steps and not made_here

    @property
    def own_steps(self) -> float:
        """The steps that the run itself took."""
        return self.steps * self.spent_share

    @property
    def own_flops(self) -> float:
        """The `train_flops` of its own steps."""
        return self.train_flops * self.spent_share

    @property
    def exclusion(self) -> str | None:
        """Why fits leave this run out, None if included."""
        if self.excluded is not None:
            return f"excluded: {self.excluded}"
        if self.state != "COMPLETED":
            return f"{self.state}: {self.reason}" if self.reason else self.state
        return "it was imported without an MLM head, so it has no loss" if self.untrained_head else None

    @property
    def reads_order(self) -> bool | None:
        """Whether the run reads word order or is a bag of words (READS_ORDER_NATS); with no gain, False if `stuck_at_unigram`.

        None if not measured, or over too few sequences for an error.
        """
        if self.order_gain_nats is None or self.order_gain_standard_error_nats is None:
            return False if self.stuck_at_unigram else None
        return self.order_gain_nats - 2 * self.order_gain_standard_error_nats > READS_ORDER_NATS

    @property
    def spike_note(self) -> str | None:
        """A note on spikes of the training loss, if any."""
        return f"its training loss spiked {plural(self.loss_spikes, 'time')}" if self.loss_spikes else None

    @property
    def order_note(self) -> str | None:
        """A note that the run reads no word order, or None."""
        if self.reads_order is not False:
            return None
        if self.order_gain_nats is None or self.order_gain_standard_error_nats is None:
            return "reads no word order: its loss is near the unigram entropy"
        gain = plus_minus(self.order_gain_nats, self.order_gain_standard_error_nats, form="+")
        return f"reads no word order: its gain is {gain} nats"

    def read_text(self, fingerprints: Collection[str]) -> bool:
        """Whether the run read a text with one of these fingerprints; True if none is known."""
        return not fingerprints or self.data_fingerprint in fingerprints

    @property
    def unread(self) -> str | None:
        """A warning about the share of [UNK] in the text."""
        tokenizer = self.config.data.tokenizer
        return tokenizer.unread(self.unknown_share, "tokens") if self.lost_share is None else tokenizer.unread(self.lost_share)

    @property
    def is_informative(self) -> bool:
        """Whether the outcome is due to the run's knobs and not excluded."""
        return self.state in INFORMATIVE_STATES and self.excluded is None

    @property
    def usable_loss_nats(self) -> float | None:
        """The loss, None if excluded."""
        return None if self.exclusion is not None else self.loss_nats


def seconds_per_step(seconds: float, start_seconds: float | None, starts: int | None, steps: float) -> float:
    """Seconds per own step of a run, without the first of each start if there are more."""
    first = 1 if starts is None else starts
    if start_seconds is None or steps <= first:
        return seconds / steps
    return (seconds - start_seconds) / (steps - first)


NO_COLUMNS = ("config", "environment", "schema_version", "weights_sha256")
"""The fields of a record without a column of their own."""

OPTIONAL_COLUMNS = (
    *(
        "unknown_share",
        "validation_overlap_share",
        "validation_documents",
        "layers_cut",
        "spent_flops",
        "start_seconds",
        "starts",
        "untrained_head",
        "trunk",
        "trunk_step",
    ),
    *("order_gain_nats", "order_gain_standard_error_nats", "stuck_at_unigram", "loss_spikes"),
    *("pair_loss_nats", "pair_accuracy", "generator_loss_nats", "generator_accuracy"),
    *("bits_per_masked_byte", "bits_per_masked_byte_standard_error", "masked_words", "lost_share"),
)
"""The columns that exist if any record has the field."""

REQUIRED_COLUMNS = (
    *(name for name in RunRecord.model_fields if name not in (*NO_COLUMNS, *OPTIONAL_COLUMNS, "spent_tokens", "excluded")),
    *("shape", "cell", "exclusion", "seed", "recipe.learning_rate"),
)
"""The columns of every nonempty ledger."""

FOREIGN = "not part of the sweep as last launched"
"""Why fits leave out a run of a cell that the sweep no longer has."""


def ledger(records: list[RunRecord], tuned: tuple[str, ...] = (), cells: frozenset[str] = frozenset()) -> pd.DataFrame:
    """Return records as a table: dotted configuration keys (`architecture.depth`) and results by name.

    Runs of one `cell` differ only in the `tuned` knobs and the seed. `exclusion` says why fits leave a row out; runs outside
    `cells`, if given, are FOREIGN. `reads_order` is RunRecord.reads_order. Optional fields have a column if any record has
    them. Rows are ordered by size, budget, rate and seed, so that equal records give equal bytes.
    """
    import pandas as pd

    rows, cells_by_identity = [], dict[tuple[str, str], str]()
    ordered = any(record.reads_order is not None for record in records)
    unrecorded = {name for name in OPTIONAL_COLUMNS if all(getattr(record, name) is None for record in records)}
    omitted = {*NO_COLUMNS, *unrecorded, *(["spent_tokens"] if "trunk" in unrecorded else [])}
    for record in sorted(records, key=lambda record: record.run_id):
        values = record.model_dump(mode="json", exclude=omitted)
        environment = {} if record.environment is None else flatten(record.environment.model_dump(), "environment")
        identity = record.config.identity((*tuned, "seed")), record.data_fingerprint
        if identity not in cells_by_identity:
            cells_by_identity[identity] = cell_of(record.config, tuned, record.data_fingerprint)
        cell = cells_by_identity[identity]
        foreign = FOREIGN if cells and cell not in cells else None
        names = {
            "shape": record.config.architecture.shape_name,
            "cell": cell,
            "target_tokens": record.config.tokens,
            "exclusion": foreign or record.exclusion,
        }
        if ordered:
            names["reads_order"] = record.reads_order
        if "spent_flops" not in omitted and record.spent_flops is None:
            names["spent_flops"] = record.train_flops
        if record.excluded is not None:
            names["excluded_by_hand"] = record.excluded
        rows.append(values | dotted(record.config) | environment | names)
    columns = ["run_id", "parameters_non_embedding", "architecture.depth", "tokens", "recipe.learning_rate", "seed"]
    if not rows:
        return pd.DataFrame(columns=columns)
    table = pd.DataFrame(rows).sort_values([*columns[1:], "run_id"], ignore_index=True)
    return fill_left_out(table)


def fill_left_out(table: pd.DataFrame) -> pd.DataFrame:
    """Fill in the defaults that configurations omit."""
    masks = [name for name in Masking.model_fields if f"{TRAINING_MASKS}{name}" in table]
    as_validated = {f"{TRAINING_MASKS}{name}": table[f"masking.{name}"] for name in masks}
    return table.fillna({knob: value for knob, value in LEFT_OUT.items() if knob in table} | as_validated)


def dotted(config: RunConfig) -> dict[str, Any]:
    """Return a configuration under dotted keys, as ledger values.

    Packing is that of pairs if the objective judges them, and `preset` is there where the run has all values of one.
    """
    values = flatten(config.to_dict()) | ({"recipe.packing": "segment_pairs"} if config.recipe.judges_pairs else {})
    if config.preset is not None:
        values[PRESET] = config.preset
    return {knob: ledger_value(knob, value) for knob, value in values.items()}


def cell_of(config: RunConfig, tuned: tuple[str, ...], data_fingerprint: str) -> str:
    """Return the fingerprint of a run's data and configuration without tuned knobs and seed."""
    shared = {key: value for key, value in flatten(config.without_paths()).items() if key not in (*tuned, "seed")}
    return fingerprint_of(shared | {"data_fingerprint": data_fingerprint})


def validation_of(config: RunConfig, data_fingerprint: str) -> str:
    """Return the fingerprint of a validation set and masks, without paths: losses are comparable only if equal.

    It covers objective rtd, whose loss is that of detecting replaced tokens, and no masked word's.
    """
    values = config.without_paths()
    validated = {"data_fingerprint": data_fingerprint, "data": values["data"], "masking": values["masking"]}
    if config.recipe.detects_replaced:
        validated["objective"] = config.recipe.objective
    return fingerprint_of(validated)


def counts_of(config: RunConfig, steps: int, teacher: Architecture | None = None) -> dict[str, Any]:
    """Parameter totals and FLOPs of `steps` optimiser steps, with a teacher's, by record fields."""
    tokens = steps * config.recipe.batch_tokens
    flops = {convention: per_token * tokens for convention, per_token in config.flops_per_token_with(teacher).items()}
    return parameters(config.architecture).totals() | flops


def timestamp() -> str:
    """Return the UTC time in ISO 8601, in whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
