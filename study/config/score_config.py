"""The configuration of one score (encoder, task, protocol, knobs and seed), and a sweep's grid of scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from study.base.schema import Count, Index, NonNegative, Positive, Several, Share, Strict, Text
from study.base.text import path_from
from study.config.named_runs import run_folder
from study.config.run_config import fingerprint_of
from study.counting.memory import AskedPrecision

SCORING_VERSION = 1
"""Incremented by every code change that moves a score's numbers; CHANGELOG.md explains each."""

Protocol = Literal["fine_tune", "frozen", "zero_shot", "random_init"]
"""The scoring protocol.

`fine_tune` updates all weights, `frozen` trains a head on fixed features, `zero_shot` trains nothing, and `random_init` is any
of these with untrained weights.
"""


def _how_many(seeds: object) -> object:
    if isinstance(seeds, list):
        raise ValueError(f"is a list; give the number of seeds, as in seeds: {len(seeds) or 3}")
    return seeds


Seeds = Annotated[Count, Field(le=100), BeforeValidator(_how_many)]
"""A number of seeds."""

Update = Literal["all", "head", "none"]
"""The weights that the task trains: all, the head's, or none (zero-shot)."""


class Knobs(Strict):
    """How a task trains a head, and with `update: all` the encoder too.

    AdamW; the rate rises linearly over `warmup_fraction` of the steps, then falls linearly to zero. Training stops when the dev
    score has not risen for `patience` epochs, and the best epoch counts. `max_length` cuts inputs in tokens, by default at the
    pre-training sequence length, beyond which positions are untrained; the scores of an imported encoder name it, by default as
    all its positions. `max_train_examples` and `max_evaluation_examples` limit train and the other splits to the first of a
    fixed permutation.

    `teacher` is the folder of a completed run, which is fine-tuned on train first, with these knobs. The encoder then learns
    the teacher's outputs on the task's unlabelled text for `taught_epochs`, by cross entropy (squared error for numbers), and
    at last train for `epochs`, in one schedule and without patience. Dev chooses among all epochs, so that the last ones are
    used where they help. Source: pre-trained distillation, Turc et al. 2019, arXiv:1908.08962, section 3.
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
    teacher: Text | None = None
    taught_epochs: Count = 3

    @field_validator("teacher")
    @classmethod
    def _teacher_is_a_run(cls, teacher: str | None) -> str | None:
        if teacher is not None and run_folder(teacher) is None:
            raise ValueError("is not the folder of a run; write results/mine/runs/<run id>")
        return teacher

    @model_validator(mode="after")
    def _taught_epochs_need_a_teacher(self) -> Self:
        if self.teacher is None and self.taught_epochs != type(self).model_fields["taught_epochs"].default:
            raise ValueError("taught_epochs are of what a teacher says; give a teacher, or leave them out")
        return self

    def identity(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, the teacher by its run id wherever its folder lies."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        teacher = None if self.teacher is None else run_folder(self.teacher)
        return values if teacher is None else values | {"teacher": teacher.name}


class ScoreConfig(Strict):
    """Everything that can change the numbers of a score, and nothing else.

    `encoder` is the id of the pre-training run, or for random weights the fingerprint of architecture and data, so that runs of
    one shape share scores. `task_fingerprint` covers the task's kind and examples. `metric`, the task's main one, chooses
    epochs and knobs.
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
        """Return the score's id: 16 hex digits of SHA-256 over its non-default values and SCORING_VERSION."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        if "knobs" in values:
            values["knobs"] = self.knobs.identity()
        return fingerprint_of(values | {"scoring_version": SCORING_VERSION})

    def tuned_with(self) -> str:
        """Return a key that scores share if they differ only in tuned knobs and seed."""
        untuned = {name: value for name, value in self.knobs.identity().items() if name not in TUNED}
        return fingerprint_of(self.model_dump(mode="json", exclude={"seed", "knobs"}) | {"knobs": untuned})


TUNED = ("learning_rate", "batch_examples", "epochs")
"""The knobs chosen on dev from a grid."""


GRID = ("learning_rates", "batch_examples", "epochs")
"""The keys that list the grid's values."""


class Downstream(Strict):
    """The downstream scores of a sweep: tasks, and a grid of fine-tuning knobs.

    The default grid thins that of Turc et al. 2019 (arXiv:1908.08962), who fine-tuned BERT's miniatures over {3e-5 … 3e-4}, {8
    … 128} and 4 epochs; Devlin et al. 2019 (§A.3) used {2e-5 … 5e-5}, {16, 32} and {2, 3, 4}. A third of the seeds run the
    grid, the rest its best on dev. A plain list of names stands for `tasks`; `data` is the folder of their files.
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
            raise ValueError(f"knobs has {', '.join(given)}, which the grid sets: {', '.join(GRID)}")
        if self.knobs.teacher is not None and self.update == "head":
            raise ValueError("knobs.teacher teaches the whole encoder, not a probe; leave out update: head")
        return self

    @property
    def data_folder(self) -> Path | None:
        """The folder of the tasks' files, if any; raises InputError for an unknown user's home."""
        return None if self.data is None else path_from(self.data, "downstream.data").resolve()

    def grid(self) -> list[Knobs]:
        """Every combination of the tuned knobs."""
        return [
            self.knobs.model_copy(update={"learning_rate": rate, "batch_examples": batch, "epochs": epochs})
            for rate in self.learning_rates
            for batch in self.batch_examples
            for epochs in self.epochs
        ]
