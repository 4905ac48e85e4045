"""The files that make up a user's corpus, and the skipped files of its folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.base.durable_files import files_below, is_there
from study.base.errors import InputError, Problem, shown
from study.base.quantities import plural
from study.base.text import path_from
from study.data.text_readers import KINDS, kind_of

_NAMED = 3
"""How many skipped files a note names."""

_OF_A_DATASET = ("dataset_dict.json", "dataset_info.json", "state.json")
"""What `datasets.save_to_disk` writes beside the data files."""


_OF_TRAIN = re.compile(r"-train(-\d{5}-of-\d{5})?\.arrow$")
"""The files of the train split in the cache of `load_dataset`, beside those of other splits and of maps."""


@dataclass(frozen=True)
class CorpusFiles:
    """The files of a corpus in reading order, and the skipped files of its folder."""

    read: tuple[Path, ...]
    passed_over: tuple[Path, ...] = ()


def corpus_files(corpus: str) -> CorpusFiles:
    """Return the files of a corpus: the path itself, or all files of known kinds below a folder, sorted.

    Hidden files are ignored, and links to folders skipped. Of a `save_to_disk` dataset only the files it names are read; of
    several splits, only train, as in the cache of `load_dataset`.

    Raises InputError if the path is missing, its suffix unknown, files are empty, a folder holds no known kind, or none of
    several splits is train.
    """
    try:
        return _files_at(corpus)
    except OSError as error:  # a name too long, or a subfolder without permission
        what = f"{error.strerror} ({shown(str(error.filename))})"
        raise InputError.at("data.corpus", f"{shown(corpus)} cannot be read: {what}; give a file or a folder of text") from None


def passed_over(corpus: str) -> str | None:
    """Describe a folder's skipped files, None if there are none."""
    files = corpus_files(corpus).passed_over
    if not files:
        return None
    named = ", ".join(str(file) for file in files[:_NAMED]) + (", …" if len(files) > _NAMED else "")
    return f"{plural(len(files), 'file')} of {corpus} {'is' if len(files) == 1 else 'are'} skipped: {named}"


def _files_at(corpus: str) -> CorpusFiles:
    path = path_from(corpus, "data.corpus")
    if path.is_dir():
        files = _files_in(path)
        if not files.read:
            raise InputError.at("data.corpus", f"the folder {corpus!r} holds no file of a known kind; known: {KINDS}")
    elif not is_there(path):
        remedy = f"give docstrings, a path, or hub:NAME[:CONFIG] (looked at {path.absolute()})"
        raise InputError.at("data.corpus", f"{corpus!r} does not exist; {remedy}")
    elif kind_of(path) is None:
        raise InputError.at("data.corpus", f"{corpus!r} has an unknown suffix; known: {KINDS}")
    else:
        files = CorpusFiles((path,))
    if empty := [file for file in files.read if file.stat().st_size == 0]:
        raise InputError(Problem("data.corpus", f"{str(file)!r} is empty; remove it or fill it") for file in empty)
    return files


def _files_in(folder: Path) -> CorpusFiles:
    below = [file for file in (*files_below(folder), *_linked_folders(folder)) if not _is_hidden(file.relative_to(folder))]
    files = sorted(below)
    unread = {file for left_out in map(_left_out_by, files) for file in left_out}
    known = (file for file in files if kind_of(file) is not None and (file.is_file() or not file.exists()))
    read = {file for file in known if not unread & {file, *file.parents}}
    others = (file for file in files if file not in read and file.name not in _OF_A_DATASET)
    return CorpusFiles(tuple(sorted(read)), tuple(others))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _linked_folders(folder: Path) -> Iterator[Path]:
    """Yield the links to folders, which are not followed, since they may lead in circles."""
    yield from (link for parent, names, _ in os.walk(folder) for name in names if (link := Path(parent, name)).is_symlink())


def _left_out_by(file: Path) -> Iterator[Path]:
    """Yield what a file of a saved or cached dataset excludes: splits other than train, and Arrow files it does not name."""
    described = _values(file) if file.name in _OF_A_DATASET else {}
    splits = described.get("splits")
    if file.name == "dataset_dict.json" and isinstance(splits, list):
        if "train" not in splits and len(splits) > 1:
            message = f"{str(file.parent)!r} has the splits {', '.join(map(str, splits))}, none of them train"
            raise InputError.at(
                "data.corpus", f"{message}; give the folder of one, such as {str(file.parent / str(splits[0]))!r}"
            )
        yield from (file.parent / str(split) for split in splits if split != "train" and "train" in splits)
    if file.name == "dataset_info.json" and isinstance(splits, dict) and not is_there(file.with_name("state.json")):
        yield from (other for other in file.parent.glob("*.arrow") if len(splits) > 1 and not _OF_TRAIN.search(other.name))
    shards = described.get("_data_files")
    if file.name == "state.json" and isinstance(shards, list):
        names = {shard.get("filename") for shard in shards if isinstance(shard, dict)}
        yield from (other for other in file.parent.glob("*.arrow") if other.name not in names)


def _values(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
