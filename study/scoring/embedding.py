"""Embeddings of a user's texts by one layer of a run's encoder, as a file of numbers."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from study.base.durable_files import takes_files, write_atomically
from study.base.errors import InputError, Problem
from study.counting.memory import AskedPrecision
from study.scoring.encoding import TaskEncoder
from study.scoring.features import layer_features
from study.scoring.pretrained import Pretrained
from study.scoring.task_batches import Collator
from study.tasks.examples import TextExample
from study.training.execution import Execution, resolve_precision
from study.training.stopping import StopSignal

SUFFIXES = (".npy", ".parquet")

SHOWN = 8
"""So many empty lines are named."""


def read_texts(path: Path) -> list[str]:
    """The texts of a file, one a line; raises InputError where it cannot be read or a line is empty."""
    try:
        texts = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise InputError.at(str(path), f"is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise InputError.at(str(path), f"cannot be read: {error.strerror}; give a file with one text a line") from None
    empty = [number for number, text in enumerate(texts, 1) if not text.strip()]
    if empty:
        problems = [Problem(f"{path}:{number}", "is empty; remove the line, or write its text") for number in empty[:SHOWN]]
        more = [Problem(str(path), f"has {len(empty) - SHOWN} empty lines more")] if len(empty) > SHOWN else []
        raise InputError([*problems, *more])
    return texts


def output_file(texts: Path, output: Path | None) -> Path:
    """Where embeddings go; raises InputError for a suffix that is not known, or where nothing can be written."""
    path = output or texts.with_suffix(".npy")
    if path.suffix not in SUFFIXES:
        raise InputError.at("--output", f"{str(path)!r} is neither {' nor '.join(SUFFIXES)}; end the name in one of them")
    if not takes_files(path.parent):
        raise InputError.at("--output", f"{str(path)!r} cannot be written; give another file")
    return path


@dataclass(frozen=True)
class Embeddings:
    """The embedding of each text, (texts, H); `cut` of them had more than `most_tokens` tokens and lost their end."""

    values: NDArray[np.float32]
    cut: int
    most_tokens: int


def embed(
    run: Pretrained,
    texts: list[str],
    layer: int | None,
    pooling: Literal["cls", "mean"],
    precision: AskedPrecision,
    execution: Execution,
) -> Embeddings:
    """The embedding of each text by a layer, of which 0 is the embeddings and the last is taken where none is named.

    A text too long for the sequence length of pre-training loses its end. Raises InputError where there is no such layer.
    """
    depth = run.config.architecture.depth
    asked = depth if layer is None else layer
    if not 0 <= asked <= depth:
        raise InputError.at("--layer", f"{asked} is not there: run {run.run_id} has layers 0 (the embeddings) to {depth}")
    encoder = run.masked_language_model().encoder.to(torch.device(execution.device))
    encode = TaskEncoder(run.tokenizer, run.special, run.max_length(None))
    inputs = encode.encode([TextExample(number, text, None, 0) for number, text in enumerate(texts)])
    collate = Collator(inputs, run.special.pad, run.config.architecture.segments)
    used = resolve_precision(precision, execution.device)
    found = layer_features(encoder, collate, (pooling,), used, StopSignal(), lambda number: number == asked)
    return Embeddings(found[asked, pooling], inputs.truncated, encode.max_length)


def write_embeddings(path: Path, embeddings: NDArray[np.float32], texts: list[str]) -> None:
    """Write embeddings as `.npy`, or as `.parquet` with columns `text` and `embedding`."""
    buffer = io.BytesIO()
    match path.suffix:
        case ".npy":
            np.save(buffer, embeddings, allow_pickle=False)
        case ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            width = embeddings.shape[1]
            column = pa.FixedSizeListArray.from_arrays(pa.array(embeddings.ravel()), width)
            pq.write_table(pa.table({"text": texts, "embedding": column}), buffer)
    write_atomically(path, buffer.getvalue())
