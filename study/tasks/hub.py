"""Splits of a task from the Hugging Face Hub, through `datasets`; they work offline once they were loaded online."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from study.data.hub import loading
from study.errors import InputError
from study.schema import nearest
from study.tasks.reading import Table
from study.tasks.spec import Source

_ALL = "*"


def read_hub_split(source: Source, split: str) -> Table:
    """One split of a dataset of the hub, all its configurations one after another where `config` is `*`.

    No code of the dataset is run. Raises InputError where it cannot be loaded, or has no such split.
    """
    from datasets import concatenate_datasets, disable_progress_bars, get_dataset_config_names

    disable_progress_bars()
    place = _place(source)
    configs: list[str | None] = [source.config]
    if source.config == _ALL:
        with _loading(place):
            configs = sorted(get_dataset_config_names(source.hub, revision=source.revision))
    parts = [_split(place, source, config, split) for config in configs]
    dataset = concatenate_datasets(parts) if len(parts) > 1 else parts[0]
    classes = {name: list(names) for name, kind in dataset.features.items() if (names := _class_names(kind)) is not None}
    columns = {name: list(dataset[name]) for name in dataset.column_names}
    return Table(f"{place} ({split})", columns, classes=classes)


def _split(place: str, source: Source, config: str | None, split: str) -> Any:
    from datasets import load_dataset

    with _loading(place):
        dataset = load_dataset(source.hub, config, revision=source.revision)
    if split not in dataset:
        raise InputError.at(place, f"has no split {split!r}; {nearest(split, list(dataset))}")
    return dataset[split]


def _class_names(kind: Any) -> list[str] | None:
    """The names of the classes of a column of classes, or of lists of them."""
    inner = getattr(kind, "feature", kind)
    names = getattr(inner, "names", None)
    return list(names) if names else None


def _place(source: Source) -> str:
    return ":".join(filter(None, ["hub", source.hub, source.config]))


def _loading(place: str) -> AbstractContextManager[None]:
    return loading(place, "cannot be loaded", "load it once while online, or give a folder with its files (--data)")
