"""The YAML definition of a downstream task: kind, labels, metrics, and the sources of its splits and columns.

```yaml
name: reviews
kind: single                      # single, pair, tokens, spans or minimal_pairs
multi_label: false                # true: any number of labels a text, or none
labels: [bad, good]               # by index; default: those of the train split, sorted
metrics: [accuracy, macro_f1]     # the first is the headline
sources:                          # the first available one is read
  - files: reviews/{split}        # .parquet, .jsonl, .csv, .tsv or .conll
    columns: {text: review, label: stars}
    splits: {train: train, test: test}      # without dev, a tenth of train is held out
```
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from study.base.errors import InputError, nearest, shown
from study.base.schema import Distinct, Share, Strict, Text
from study.base.shipped import shipped
from study.base.text import path_from
from study.base.yaml_files import read_yaml

Unusable = Literal["empty", "unlabelled", "invalid"]
"""Why a row may be dropped.

`empty`: a text is empty. `unlabelled`: the label is missing or -1 (secret), or a question has no answer. `invalid`: an answer
is not where its start says, or words and tags differ in number.
"""

Kind = Literal["single", "pair", "tokens", "spans", "minimal_pairs"]
Metric = Literal[
    "accuracy",
    "f1",
    "macro_f1",
    "matthews",
    "micro_f1",
    "subset_accuracy",
    "pearson",
    "spearman",
    "entity_f1",
    "exact_match",
    "answer_f1",
    "paradigm_accuracy",
]

ROLES: dict[Kind, dict[str, str]] = {
    "single": {"text": "text", "label": "label"},
    "pair": {"text_a": "text_a", "text_b": "text_b", "label": "label"},
    "tokens": {"tokens": "tokens", "labels": "tags"},
    "spans": {"context": "context", "question": "question", "answers": "answer", "starts": "answer_start"},
    "minimal_pairs": {"good": "sentence_good", "bad": "sentence_bad", "paradigm": "UID"},
}
"""The column roles of each kind, with their default names."""

CLASSIFICATION: tuple[Metric, ...] = ("accuracy", "f1", "macro_f1", "matthews")
REGRESSION: tuple[Metric, ...] = ("pearson", "spearman")
MULTI_LABEL: tuple[Metric, ...] = ("micro_f1", "macro_f1", "subset_accuracy")
_OF_TEXTS: tuple[Metric, ...] = (*dict.fromkeys((*CLASSIFICATION, *MULTI_LABEL, *REGRESSION)),)
METRICS: dict[Kind, tuple[Metric, ...]] = {
    "single": _OF_TEXTS,
    "pair": _OF_TEXTS,
    "tokens": ("accuracy", "macro_f1", "entity_f1"),
    "spans": ("exact_match", "answer_f1"),
    "minimal_pairs": ("paradigm_accuracy", "accuracy"),
}
"""The metrics of each kind; for single and pair they depend on `regression` and `multi_label`."""

SPECS = "tasks/specs"
"""The folder of the tasks that are known by name."""


class Splits(Strict):
    """The names of the splits for training, choices and reports.

    Without `dev`, the share `dev_share` of `train` is held out by a hash of the text, so duplicates stay together. Of the split
    `unlabelled` only texts are read, which a teacher labels (`knobs.teacher` of a score).
    """

    train: Text = "train"
    dev: Text | None = None
    test: Text = "test"
    unlabelled: Text | None = None
    dev_share: Annotated[Share, Field(gt=0, lt=1)] = 0.1

    @model_validator(mode="after")
    def _dev_is_named_or_held_out(self) -> Self:
        if self.dev is not None and "dev_share" in self.model_fields_set:
            raise ValueError(f"dev_share has no effect, since dev is {shown(self.dev)}; leave out one of the two")
        return self


class TaskSource(Strict):
    """One source of a task: local files, a hub dataset, or the docstrings.

    `files` is a path with `{split}`, relative to the data folder or the task's YAML; without a suffix, the existing one is
    used. `hub` is a dataset name, `config` its configuration (`*`: all, concatenated), `revision` its branch. `embedded` names
    a maker in study.tasks.embedded. `columns` maps roles to columns. `drop` lists the reasons for which unusable rows are
    dropped and counted; otherwise they raise errors.
    """

    files: Text | None = None
    hub: Text | None = None
    config: Text | None = None
    revision: Text | None = None
    embedded: Text | None = None
    columns: dict[str, Text] = Field(default_factory=dict)
    splits: Splits = Splits()
    drop: Distinct[Unusable] = ()

    @model_validator(mode="after")
    def _exactly_one_origin(self) -> Self:
        origins = [origin for origin in (self.files, self.hub, self.embedded) if origin is not None]
        if len(origins) != 1:
            raise ValueError("needs exactly one of 'files', 'hub' and 'embedded'")
        if self.files is not None and "{split}" not in self.files:
            raise ValueError(f"files {shown(self.files)} has no {{split}} in it, so every split would be the same file")
        if self.embedded is not None and self.splits.unlabelled is not None:
            raise ValueError(f"{self.embedded} has no unlabelled texts; leave out the split")
        if self.hub is None and (self.config or self.revision):
            raise ValueError("'config' and 'revision' need a hub dataset")
        return self


class TaskSpec(Strict):
    """A downstream task. `labels` are the class names by index, empty if the train split defines them.

    Data may give a class by name or, if no name is a number, by index. With `multi_label` a text has any number of them, or
    none. `unanswerable`: some questions have no answer (SQuAD 2.0, Rajpurkar et al. 2018, arXiv:1806.03822). `terms` is the
    data's licence.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    kind: Kind
    regression: bool = False
    multi_label: bool = False
    unanswerable: bool = False
    labels: tuple[Text, ...] = ()
    metrics: Distinct[Metric]
    sources: tuple[TaskSource, ...]
    terms: Text | None = None
    about: Text | None = None

    @field_validator("labels", mode="before")
    @classmethod
    def _labels_are_names(cls, labels: object) -> object:
        if not isinstance(labels, list | tuple):
            return labels
        if any(isinstance(label, bool) for label in labels):
            raise ValueError("needs names; quote no, yes, on, off, true and false, as in ['no', 'yes']")
        return [label_name(label) if isinstance(label, str | int | float) else label for label in labels]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.metrics or not self.sources:
            raise ValueError("needs at least one metric and one source")
        if self.kind not in ("single", "pair") and (self.regression or self.multi_label):
            field = "regression" if self.regression else "multi_label"
            raise ValueError(f"{field} is for texts and pairs of texts, not for {self.kind}")
        if self.kind not in ("single", "pair") and any(source.splits.unlabelled is not None for source in self.sources):
            raise ValueError(f"unlabelled is for texts and pairs of texts, not for {self.kind}")
        if self.unanswerable and self.kind != "spans":
            raise ValueError(f"unanswerable is for spans, not for {self.kind}")
        if self.regression and self.multi_label:
            raise ValueError("regression and multi_label exclude each other; leave out one")
        known = [*self._known_metrics()]
        for metric in self.metrics:
            if metric not in known:
                raise ValueError(f"metric {metric!r} does not fit the task; {nearest(metric, list[str](known))}")
        if self.labels and (self.regression or self.kind in ("spans", "minimal_pairs")):
            raise ValueError("labels are for classes, and this task has none")
        if len(set(self.labels)) < len(self.labels) or len(self.labels) == 1:
            raise ValueError("labels need at least two names, all different")
        for source in self.sources:
            for role in source.columns:
                if role not in (*ROLES[self.kind], "id"):
                    raise ValueError(f"columns: {shown(role)} is not a role; {nearest(role, [*ROLES[self.kind], 'id'])}")
            role_of: dict[str, str] = {}
            for role, split in self.splits(source).items():
                if (other := role_of.setdefault(split, role)) != role:
                    raise ValueError(f"splits: {other} and {role} are both {shown(split)}; give each a split of its own")
        return self

    def _known_metrics(self) -> tuple[Metric, ...]:
        if self.kind not in ("single", "pair"):
            return METRICS[self.kind]
        return REGRESSION if self.regression else MULTI_LABEL if self.multi_label else CLASSIFICATION

    @property
    def headline(self) -> Metric:
        """The metric for choices and figures."""
        return self.metrics[0]

    def columns(self, source: TaskSource) -> dict[str, str]:
        """Return the column of each role in a source; `id` only if the source names it."""
        return ROLES[self.kind] | source.columns

    def splits(self, source: TaskSource) -> dict[str, str]:
        """Return the split of each role that a source names; minimal pairs have `test` alone."""
        names = source.splits
        if self.kind == "minimal_pairs":
            return {"test": names.test}
        roles = {"train": names.train, "dev": names.dev, "test": names.test, "unlabelled": names.unlabelled}
        return {role: split for role, split in roles.items() if split is not None}


def known_tasks() -> list[str]:
    """Return the sorted names of the built-in tasks."""
    return [*shipped(SPECS)]


def read_spec(name: str, place: str = "task") -> tuple[TaskSpec, Path | None]:
    """Read a built-in task by name, or a YAML file, and return it with that file's folder.

    Raises InputError at `place`, or with every problem of the file.
    """
    path = path_from(name, place)
    if path.suffix in (".yaml", ".yml"):
        return TaskSpec.parse(_named(read_yaml(path), path), place=str(path)), path.parent
    if (packaged := shipped(SPECS).get(name)) is None:
        raise InputError.at(place, f"{shown(name)} is not known, nor is it a .yaml file; {nearest(name, known_tasks())}")
    return TaskSpec.parse(_named(read_yaml(packaged), packaged), place=str(packaged)), None


def label_name(value: object) -> str:
    """Return a label's name, the same for every format: stripped text, empty if missing.

    Whole numbers lose `.0`, and true and false become lower case, also in text.
    """
    if value is None or value != value:
        return ""
    name = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
    if name.lower() in ("true", "false"):
        return name.lower()
    whole, _, zeros = name.partition(".")
    return whole if is_whole(whole) and not zeros.strip("0") else name


def is_whole(name: str) -> bool:
    """Whether a label name is a whole number."""
    return name.removeprefix("-").isdecimal()


def _named(values: dict[str, object], path: Path) -> dict[str, object]:
    return {"name": path.stem} | values
