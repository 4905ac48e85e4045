"""Features of a frozen encoder, layer by layer, and embeddings of a user's texts as a file.

Letters: B rows, S places, H width, N labelled places.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from lightning_fabric.utilities import move_data_to_device
from numpy.typing import NDArray
from torch import Tensor

from study.base.durable_files import takes_files, write_atomically
from study.base.errors import InputError
from study.counting.memory import AskedPrecision, Precision
from study.data.text_readers import opened_text
from study.model.encoder import Encoder
from study.model.layers import autocast
from study.scoring.pretrained import Pretrained
from study.scoring.scored_examples import Inputs, TaskEncoder, lost_share
from study.scoring.task_inputs import Collator, EvaluatedSplit, TaskBatch
from study.tasks.examples import TextExample
from study.training.attempts import Preempted, StopSignal
from study.training.execution import Execution, resolve_precision

Combination = Literal["concat", "sum"]
"""How the outputs of several layers become one feature (Devlin et al. 2019, arXiv:1810.04805, table 7)."""

LAST_LAYERS = 4
"""So many last layers are combined, as in BERT's features."""

Pooling = Literal["cls", "mean", "token"]
"""The first token's output, the mean over all tokens with [CLS] and [SEP], or the output at each labelled word."""


def pooled(layer_BxSxH: Tensor, batch: TaskBatch, pooling: Pooling) -> Tensor:
    """Return the features of a batch: (B, H), or (N, H) at its labelled places."""
    if pooling == "cls":
        return layer_BxSxH[:, 0]
    if pooling == "token":
        assert batch.places is not None
        return layer_BxSxH.flatten(0, 1)[batch.places]
    if batch.attended is None:
        return layer_BxSxH.mean(1)
    weight_BxSx1 = batch.attended[..., None].to(layer_BxSxH.dtype)
    return (layer_BxSxH * weight_BxSx1).sum(1) / weight_BxSx1.sum(1)


def combined(features: Sequence[NDArray[np.float32]], combination: Combination) -> NDArray[np.float32]:
    """Return the features of several layers side by side, (rows, layers·H), or their sum, (rows, H)."""
    together: NDArray[np.float32] = np.concatenate(features, 1) if combination == "concat" else np.sum(features, 0)
    return together


@torch.inference_mode()
def layer_features(
    encoder: Encoder,
    collate: Collator,
    poolings: tuple[Pooling, ...],
    precision: Precision,
    stop: StopSignal,
    layers: Callable[[int], bool] = lambda _: True,
) -> dict[tuple[int, Pooling], NDArray[np.float32]]:
    """Return the features of inputs by layer (0 is the embeddings) and pooling, in the order of inputs or of words.

    Raises Preempted on an order to stop.
    """
    device = next(encoder.parameters()).device
    encoder.eval()
    by_layer: dict[tuple[int, Pooling], NDArray[np.float32]] = {}
    for on_cpu in EvaluatedSplit(collate):
        if stop.received:
            raise Preempted
        batch, places = move_data_to_device(on_cpu, device), _places(collate.inputs, on_cpu.rows.numpy())
        with autocast(device.type, precision):
            outputs = encoder.layers(batch.tokens, batch.segments, batch.attended)
        for layer, output_BxSxH in enumerate(outputs):
            for pooling in poolings if layers(layer) else ():
                features = pooled(output_BxSxH.float(), batch, pooling)
                if (layer, pooling) not in by_layer:
                    by_layer[layer, pooling] = np.empty((_count(collate.inputs), features.shape[1]), np.float32)
                by_layer[layer, pooling][places] = features.cpu().numpy()
    return by_layer


def _count(inputs: Inputs) -> int:
    return len(inputs) if inputs.word_places is None else len(inputs.word_places.values)


def _places(inputs: Inputs, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    if inputs.word_places is None:
        return rows
    starts = inputs.word_places.starts
    return np.concatenate([np.arange(starts[row], starts[row + 1]) for row in rows])


SUFFIXES = (".npy", ".parquet")


def read_texts(path: Path) -> list[str]:
    """Return the texts of a file, one in each line, some of them empty.

    Raises InputError if unreadable or empty.
    """
    try:
        with opened_text(path) as file:
            texts = file.read().removesuffix("\n").split("\n")
    except OSError as error:
        reason = error.strerror or error
        raise InputError.at(str(path), f"cannot be read: {reason}; give a file with one text per line") from None
    if not any(map(str.strip, texts)):
        raise InputError.at(str(path), "holds no text; give a file with one text per line")
    return texts


def output_file(texts: Path, output: Path | None) -> Path:
    """Return the file for the embeddings; raises InputError for a bad suffix or folder."""
    path = output or texts.with_suffix(".npy")
    if path.suffix not in SUFFIXES:
        raise InputError.at("--into", f"{str(path)!r} is neither {' nor '.join(SUFFIXES)}; end the name in one of them")
    if not takes_files(path.parent):
        raise InputError.at("--into", f"{str(path)!r} cannot be written; give another file")
    return path


@dataclass(frozen=True)
class TextEmbeddings:
    """The embedding of each text, (texts, H); `cut` of them were longer than `most_tokens` tokens and lost their end.

    `lost_share` is the share of their characters that the tokeniser loses.
    """

    values: NDArray[np.float32]
    cut: int
    most_tokens: int
    lost_share: float


def embed(
    run: Pretrained,
    texts: list[str],
    layers: Sequence[int],
    combination: Combination,
    pooling: Literal["cls", "mean"],
    precision: AskedPrecision,
    execution: Execution,
    max_length: int | None = None,
) -> TextEmbeddings:
    """Return the embedding of each text by some layers, combined; 0 is the embeddings, and −1 the last layer.

    Texts of more than `max_length` tokens, by default the run's `usual_length`, lose their end. Raises InputError where a layer
    does not exist, or the encoder has fewer positions.
    """
    depth = run.config.architecture.depth
    requested = [layer if layer >= 0 else depth + 1 + layer for layer in layers]
    for layer, number in zip(layers, requested, strict=True):
        if not 0 <= number <= depth:
            there = f"has layers 0 (the embeddings) to {depth}, or -{depth + 1} to -1 from the end"
            raise InputError.at("--layer", f"layer {layer} does not exist: run {run.run_id} {there}")
    encoder = run.masked_language_model().encoder.to(torch.device(execution.device))
    encode = TaskEncoder(run.tokenizer, run.special, run.max_length(max_length or run.usual_length))
    examples = [TextExample(number, text, None, 0) for number, text in enumerate(texts)]
    inputs = encode.encode(examples)
    collate = Collator(inputs, run.special.pad, run.config.architecture.segments)
    used = resolve_precision(precision, execution.device)
    by_layer = layer_features(encoder, collate, (pooling,), used, StopSignal(), requested.__contains__)
    values = combined([by_layer[number, pooling] for number in requested], combination)
    return TextEmbeddings(values, inputs.truncated, encode.max_length, lost_share(run.tokenizer, examples))


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
