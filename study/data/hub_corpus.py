"""A split of a Hugging Face Hub dataset, read with `datasets`, whole or streamed."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from study.base.durable_files import content_of, write_atomically
from study.base.errors import InputError, nearest, shown
from study.config.run_config import fingerprint_of
from study.data.cache import cache_root
from study.data.text_readers import text_field, texts_in

PREFIX = "hub:"
FORM = "hub:NAME[:CONFIG[:SPLIT]]"
_TRAIN = "train"


class HubName(NamedTuple):
    """What a hub corpus names: a dataset, its configuration if any, and a split."""

    dataset: str
    config: str | None
    split: str


def hub_name(corpus: str) -> HubName:
    """Parse FORM; CONFIG may be empty, SPLIT is train by default. Raises InputError without a name."""
    name, config, split = [*corpus.removeprefix(PREFIX).split(":", 2), "", ""][:3]
    if not name:
        raise InputError.at("data.corpus", f"{corpus!r} names no dataset; the form is {FORM}")
    return HubName(name, config or None, split or _TRAIN)


def hub_identity(corpus: str, *, streamed: bool = False) -> list[str | None]:
    """Return name, configuration, commit and split of a hub corpus, without the split train.

    It also works offline, by `datasets` or the cache.

    Raises InputError if the dataset cannot be loaded, or lacks the split.
    """
    if not streamed:
        return _identity(corpus)
    remembered = cache_root() / "streamed" / fingerprint_of(hub_name(corpus))
    try:
        identity = _identity(corpus)
    except InputError:
        if (known := content_of(remembered)) is None:
            raise
        return [*json.loads(known)]
    _remember(remembered, identity)
    return identity


def _identity(corpus: str) -> list[str | None]:
    from datasets import load_dataset_builder

    name, config, split = hub_name(corpus)
    with _loading(corpus):
        builder = load_dataset_builder(name, config)
    splits = [str(known) for known in builder.info.splits or builder.config.data_files or ()]
    if splits and split not in splits:
        raise InputError.at("data.corpus", f"{corpus!r} has no split {shown(split)}; {nearest(split, splits)}")
    return [name, builder.config.name, builder.hash, *([] if split == _TRAIN else [split])]


def _remember(file: Path, identity: list[str | None]) -> None:
    if content_of(file) != (content := json.dumps(identity).encode()):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content)


def read_hub(corpus: str, text_column: str, *, streamed: bool = False) -> Iterator[str]:
    """Yield the texts of the split, empty for rows without text; runs none of the dataset's code.

    If `streamed`, nothing is kept on disk.

    Raises InputError if the dataset cannot be loaded, or the column is missing or not text.
    """
    field: tuple[str, ...] = ()
    for table in _tables(corpus, text_column, streamed):
        field = field or text_field(corpus, text_column, table.schema)
        yield from texts_in(table, field)


def _tables(corpus: str, text_column: str, streamed: bool) -> Iterator[Any]:
    """Yield the split's rows as Arrow tables, without needless columns."""
    from datasets import disable_progress_bars, load_dataset

    name, config, split = hub_name(corpus)
    disable_progress_bars()
    with _loading(corpus):
        dataset = load_dataset(name, config, split=split, streaming=streamed)
    if dataset.features is not None:
        dataset = dataset.select_columns([text_field(corpus, text_column, dataset.features.arrow_schema)[0]])
    with _loading(corpus):
        yield from dataset.with_format("arrow").iter(batch_size=256)


def _loading(corpus: str) -> AbstractContextManager[None]:
    remedy = "load it once while online, or save its text as .parquet and give that path"
    return loading("data.corpus", f"{corpus!r} cannot be loaded", remedy)


@contextmanager
def loading(place: str, problem: str, remedy: str) -> Iterator[None]:
    """Turn any error of a hub call into one InputError with its reason and a remedy."""
    from datasets.exceptions import DatasetsError

    silent = _why_silent()
    try:
        yield
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        reason = silent or (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError.at(place, f"{problem}: {reason}; {remedy}") from error


@functools.cache
def _why_silent() -> str | None:
    """Return why the hub does not answer, if it should; checked once per process.

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
