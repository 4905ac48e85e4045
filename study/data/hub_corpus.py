"""The train split of a Hugging Face Hub dataset, read with `datasets`; works offline once downloaded."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from study.base.errors import InputError
from study.data.text_readers import text_field, texts_in

PREFIX = "hub:"


def hub_identity(corpus: str) -> list[str | None]:
    """Return name, configuration and commit of `hub:NAME[:CONFIG]`, also offline.

    Raises InputError if the dataset cannot be loaded.
    """
    from datasets import load_dataset_builder

    name, config = hub_name(corpus)
    with _loading(corpus):
        builder = load_dataset_builder(name, config)
    return [name, builder.config.name, builder.hash]


def read_hub(corpus: str, text_column: str) -> Iterator[str]:
    """Yield the texts of the train split, empty for rows without text; runs none of the dataset's code.

    Raises InputError if the dataset cannot be loaded, or the column is missing or not text.
    """
    from datasets import disable_progress_bars, load_dataset

    name, config = hub_name(corpus)
    disable_progress_bars()
    with _loading(corpus):
        dataset = load_dataset(name, config, split="train")
    field = text_field(corpus, text_column, dataset.features.arrow_schema)
    for table in dataset.select_columns([field[0]]).with_format("arrow").iter(batch_size=256):
        yield from texts_in(table, field)


def hub_name(corpus: str) -> tuple[str, str | None]:
    """Split `hub:NAME[:CONFIG]` into name and configuration; raises InputError without a name."""
    name, _, config = corpus.removeprefix(PREFIX).partition(":")
    if not name:
        raise InputError.at("data.corpus", f"{corpus!r} names no dataset; the form is hub:NAME[:CONFIG]")
    return name, config or None


def _loading(corpus: str) -> AbstractContextManager[None]:
    remedy = "load it once while online, or save its text as .parquet and give that path"
    return loading("data.corpus", f"{corpus!r} cannot be loaded", remedy)


@contextmanager
def loading(place: str, problem: str, remedy: str) -> Iterator[None]:
    """Turn any error of a hub call into one InputError with the first line of its reason and a remedy."""
    from datasets.exceptions import DatasetsError

    silent = _why_silent()
    try:
        yield
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = silent or (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError.at(place, f"{problem}: {reason}; {remedy}") from error


@functools.cache
def _why_silent() -> str | None:
    """Return why the hub does not answer, None if it does or offline mode is on; checked once per process.

    Without an answer the process goes offline, since each request would be tried six times.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return None
    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # the HTTP library may vary
        constants.HF_HUB_OFFLINE = True
        return f"{constants.ENDPOINT} does not answer ({error})"
    return None
