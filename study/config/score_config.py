"""The configuration of one score (encoder, task, protocol, knobs and seed), and the grid of scores of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from study.base.schema import Count, Index, NonNegative, Positive, Several, Share, Strict, Text
from study.base.text import path_from
from study.config.run_config import fingerprint_of
from study.counting.memory import AskedPrecision

SCORING_VERSION = 1
"""Raised by every change of the code that moves the numbers of a score; CHANGELOG.md says which and why."""

Protocol = Literal["fine_tune", "frozen", "zero_shot", "random_init"]
"""How an encoder is scored on a task.

`fine_tune` updates all weights, `frozen` trains a head on fixed features, `zero_shot` trains nothing, and `random_init` is any
of these with untrained weights.
"""


def _how_many(seeds: object) -> object:
    if isinstance(seeds, list):
        raise ValueError(f"lists seeds; say how many, as in seeds: {len(seeds) or 3}")
    return seeds


Seeds = Annotated[Count, Field(le=100), BeforeValidator(_how_many)]
"""A number of seeds."""

Update = Literal["all", "head", "none"]
"""Which weights the task trains: all, those of the head, or none (zero-shot)."""


class Knobs(Strict):
    """How a head, with `update: all` also the encoder, is trained on a task.

    AdamW; the rate rises linearly over `warmup_fraction` of the steps and falls linearly to zero. Training stops once the dev
    score has not risen for `patience` epochs, and the best epoch counts. `max_length` cuts inputs in tokens, by default at the
    sequence length of pre-training, beyond which no position was trained. `max_train_examples` and `max_evaluation_examples`
    take the first of a fixed permutation of train and of the other splits.
    """

    learning_rate: Positive = 1e-4
    epochs: Count = 3
    batch_examples: Count = 32
    warmup_fraction: Share = 0.1
    weight_decay: NonNegative = 0.01
    dropout: Annotated[NonNegative, Field(lt=1)] = 0.1
    patience: Count = 2
    max_length: Annotated[Count, Field(ge=8)] | None = None
    max_train_examples: Count | None = None
    max_evaluation_examples: Count | None = None
    precision: AskedPrecision = "auto"


class ScoreConfig(Strict):
    """Everything that can change the numbers of one score, and nothing else.

    `encoder` is the id of the pre-training run; for random weights it is the fingerprint of architecture and data, so that runs
    of one shape share scores. `task_fingerprint` covers the kind of the task and its examples. Epochs and knobs are chosen by
    `metric`, the task's main one.
    """

    encoder: Text
    task: Text
    task_fingerprint: Text
    metric: Text
    protocol: Protocol
    update: Update
    knobs: Knobs = Knobs()
    seed: Index = 0

    def fingerprint(self) -> str:
        """The score's id: 16 hex digits of SHA-256 over its values without defaults and SCORING_VERSION."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        return fingerprint_of(values | {"scoring_version": SCORING_VERSION})

    def tuned_with(self) -> str:
        """A key that scores share if they differ only in tuned knobs and seed."""
        return fingerprint_of(self.model_dump(mode="json", exclude={"seed": True, "knobs": set(TUNED)}))


TUNED = ("learning_rate", "batch_examples", "epochs")
"""The knobs that are chosen on dev among the values of a grid."""


GRID = ("learning_rates", "batch_examples", "epochs")
"""The keys that list the values of those knobs."""


class Downstream(Strict):
    """The downstream scores of a sweep: tasks, and a grid of fine-tuning knobs.

    The default grid thins that of Turc et al. 2019 (arXiv:1908.08962), who fine-tuned BERT's miniatures over {3e-5 … 3e-4},
    {8 … 128} and 4 epochs; Devlin et al. 2019 (§A.3) used {2e-5 … 5e-5}, {16, 32} and {2, 3, 4}. The grid runs at a third of
    the seeds, its best on dev at the others. A plain list of names stands for `tasks`; `data` is the folder of their files.
    """

    tasks: Several[Text]
    data: Text | None = None
    update: Literal["all", "head"] = "all"
    seeds: Seeds = 3
    learning_rates: Several[Positive] = (5e-5, 1e-4, 3e-4)
    batch_examples: Several[Count] = (32,)
    epochs: Several[Count] = (3,)
    random_weights: bool = True
    knobs: Knobs = Knobs()

    @model_validator(mode="before")
    @classmethod
    def _a_list_is_of_tasks(cls, values: object) -> object:
        return {"tasks": values} if isinstance(values, list | tuple) else values

    @model_validator(mode="after")
    def _knobs_leave_the_grid_alone(self) -> Self:
        if given := [name for name in TUNED if name in self.knobs.model_fields_set]:
            raise ValueError(f"knobs holds {', '.join(given)}, which the grid gives: {', '.join(GRID)}")
        return self

    @property
    def data_folder(self) -> Path | None:
        """The folder with the tasks' files, if any; raises InputError for an unknown user's home."""
        return None if self.data is None else path_from(self.data, "downstream.data").resolve()

    def grid(self) -> list[Knobs]:
        """Every combination of the tuned knobs."""
        return [
            self.knobs.model_copy(update={"learning_rate": rate, "batch_examples": batch, "epochs": epochs})
            for rate in self.learning_rates
            for batch in self.batch_examples
            for epochs in self.epochs
        ]
