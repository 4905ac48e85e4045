"""Splits of a task from the Hugging Face Hub, through `datasets`; they work offline once they were loaded online."""

from __future__ import annotations

from typing import Any

from study.base.errors import InputError, nearest
from study.data.hub_corpus import loading
from study.tasks.example_tables import Table
from study.tasks.task_spec import Source

_ALL = "*"

UNLOADED = "cannot be loaded"
"""What is told of a dataset that the hub does not give."""


def read_hub_split(source: Source, split: str, remedy: str) -> Table:
    """One split of a dataset of the hub, all its configurations one after another where `config` is `*`.

    No code of the dataset is run. Raises InputError where it cannot be loaded, with the remedy, or has no such split.
    """
    from datasets import concatenate_datasets, disable_progress_bars, get_dataset_config_names, load_dataset

    disable_progress_bars()
    place = _place(source)
    configs: list[str | None] = [source.config]
    if source.config == _ALL:
        with loading(place, UNLOADED, remedy):
            configs = sorted(get_dataset_config_names(source.hub, revision=source.revision))
    parts = []
    for config in configs:
        with loading(place, UNLOADED, remedy):
            found = load_dataset(source.hub, config, revision=source.revision)
        if split not in found:
            raise InputError.at(place, f"has no split {split!r}; {nearest(split, list(found))}")
        parts.append(found[split])
    dataset = concatenate_datasets(parts) if len(parts) > 1 else parts[0]
    classes = {name: list(names) for name, kind in dataset.features.items() if (names := _class_names(kind)) is not None}
    columns = {name: list(dataset[name]) for name in dataset.column_names}
    return Table(f"{place} ({split})", columns, classes=classes)


def _class_names(kind: Any) -> list[str] | None:
    """The names of the classes of a column of classes, or of lists of them."""
    inner = getattr(kind, "feature", kind)
    names = getattr(inner, "names", None)
    return list(names) if names else None


def _place(source: Source) -> str:
    return ":".join(filter(None, ["hub", source.hub, source.config]))
