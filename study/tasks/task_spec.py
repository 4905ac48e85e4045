"""What a downstream task is, as a YAML file says it: kind, labels, metrics, and where its splits and columns are found.

```yaml
name: reviews
kind: single                      # single, pair, tokens, spans or minimal_pairs
labels: [bad, good]               # by index; left out, they are those of the train split, sorted
metrics: [accuracy, macro_f1]     # the first is the headline
sources:                          # the first that is there is read
  - files: reviews/{split}        # .parquet, .jsonl, .csv, .tsv or .conll
    columns: {text: review, label: stars}
    splits: {train: train, test: test}      # without dev, a tenth of train is held out to choose on
```
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from study.base.errors import InputError, nearest
from study.base.schema import Distinct, Share, Strict, Text
from study.base.text import path_from
from study.base.yaml_files import read_yaml

Unusable = Literal["empty", "unlabelled"]
"""Why a row may be dropped: a text of it is empty, or it has no label (none at all, or -1, which marks a secret one)."""

Kind = Literal["single", "pair", "tokens", "spans", "minimal_pairs"]
Metric = Literal[
    "accuracy",
    "f1",
    "macro_f1",
    "matthews",
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
"""What the columns of each kind are for, and the names they have where a source says nothing else."""

CLASSIFICATION: tuple[Metric, ...] = ("accuracy", "f1", "macro_f1", "matthews")
REGRESSION: tuple[Metric, ...] = ("pearson", "spearman")
METRICS: dict[Kind, tuple[Metric, ...]] = {
    "single": (*CLASSIFICATION, *REGRESSION),
    "pair": (*CLASSIFICATION, *REGRESSION),
    "tokens": ("accuracy", "macro_f1", "entity_f1"),
    "spans": ("exact_match", "answer_f1"),
    "minimal_pairs": ("paradigm_accuracy", "accuracy"),
}
"""The metrics of each kind; those of single and pair depend on whether labels are classes or numbers."""

SPECS = Path(__file__).parent / "specs"


class Splits(Strict):
    """The names of the splits where the examples lie: learned from, chosen on, and reported.

    Without `dev`, the share `dev_share` of `train` is held out instead, by a hash of the text, so that a text that stands
    twice is in one of them.
    """

    train: Text = "train"
    dev: Text | None = None
    test: Text = "test"
    dev_share: Share = 0.1


class TaskSource(Strict):
    """One place that a task can be read from: local files, a dataset of the hub, or the docstrings that are always there.

    `files` is a path with `{split}` in it, relative to the data folder or to the task's YAML; without a suffix, the one that
    is there is taken. `hub` is a dataset's name, `config` its configuration (`*`: all, one after another), `revision` a
    branch of it. `embedded` names a maker in study.tasks.embedded. `columns` says which column plays which role. `drop` says
    which rows that cannot be used are left out, and counted; otherwise they are refused.
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
    def _one_place(self) -> Self:
        places = [place for place in (self.files, self.hub, self.embedded) if place is not None]
        if len(places) != 1:
            raise ValueError("needs exactly one of 'files', 'hub' and 'embedded'")
        if self.files is not None and "{split}" not in self.files:
            raise ValueError(f"files {self.files!r} has no {{split}} in it, so every split would be the same file")
        if self.hub is None and (self.config or self.revision):
            raise ValueError("'config' and 'revision' belong to a dataset of the hub")
        return self


class TaskSpec(Strict):
    """A downstream task. `labels` are the names of the classes by index, empty where the train split says them.

    Data may hold a class by name or, where no name is a number, by index. `terms` are the licence under which the data may be
    used.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    kind: Kind
    regression: bool = False
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
            raise ValueError("needs names; no, yes, on, off, true and false are names in quotes alone, as in ['no', 'yes']")
        return [label_name(label) if isinstance(label, str | int | float) else label for label in labels]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.metrics or not self.sources:
            raise ValueError("needs at least one metric and one source")
        known = [*METRICS[self.kind]]
        if self.kind in ("single", "pair"):
            known = [metric for metric in known if (metric in REGRESSION) == self.regression]
        elif self.regression:
            raise ValueError(f"regression is for texts and pairs of texts, not for {self.kind}")
        for metric in self.metrics:
            if metric not in known:
                raise ValueError(f"metric {metric!r} does not fit the task; {nearest(metric, list[str](known))}")
        if self.labels and (self.regression or self.kind in ("spans", "minimal_pairs")):
            raise ValueError("labels are for classes, which this task has not")
        if len(set(self.labels)) < len(self.labels) or len(self.labels) == 1:
            raise ValueError("labels need at least two names, all different")
        for source in self.sources:
            for role in source.columns:
                if role not in (*ROLES[self.kind], "id"):
                    raise ValueError(f"columns: {role!r} is not a role; {nearest(role, [*ROLES[self.kind], 'id'])}")
        return self

    @property
    def headline(self) -> Metric:
        """The metric that choices are made by and that figures show."""
        return self.metrics[0]

    def columns(self, source: TaskSource) -> dict[str, str]:
        """The column of each role in a source; `id` only where the source names it."""
        return ROLES[self.kind] | source.columns


def known_tasks() -> list[str]:
    """The names of the tasks that come with the package, sorted."""
    return sorted(path.stem for path in SPECS.glob("*.yaml"))


def read_spec(name: str, place: str = "task") -> tuple[TaskSpec, Path | None]:
    """The task of a name that comes with the package, or of a YAML file, with the folder of that file.

    Raises InputError with the nearest known name, at the place that asks for it, or with all that is wrong in the file.
    """
    path = path_from(name, place)
    if path.suffix in (".yaml", ".yml"):
        return TaskSpec.parse(_named(read_yaml(path), path), place=str(path)), path.parent
    if name not in known_tasks():
        raise InputError.at(place, f"{name!r} is not known, nor is it a .yaml file; {nearest(name, known_tasks())}")
    packaged = SPECS / f"{name}.yaml"
    return TaskSpec.parse(_named(read_yaml(packaged), packaged), place=str(packaged)), None


def label_name(value: object) -> str:
    """A label as its name, the same from every format: text without white space around it, empty where there is none.

    Whole numbers are without `.0`, and true and false in lower case, also in text: a delimited file holds nothing else.
    """
    if value is None or value != value:
        return ""
    name = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
    if name.lower() in ("true", "false"):
        return name.lower()
    whole, _, zeros = name.partition(".")
    return whole if is_whole(whole) and not zeros.strip("0") else name


def is_whole(name: str) -> bool:
    """Whether the name of a label is a whole number."""
    return name.removeprefix("-").isdecimal()


def _named(values: dict[str, object], path: Path) -> dict[str, object]:
    """The values with the file's name as the task's where it has none."""
    return {"name": path.stem} | values
