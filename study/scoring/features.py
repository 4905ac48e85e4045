"""Features of a frozen encoder, layer by layer. Letters: B rows, S places, H width, N labelled places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from lightning_fabric.utilities import move_data_to_device
from numpy.typing import NDArray
from torch import Tensor

from study.counting.memory import Precision
from study.model.autocast import autocast
from study.model.encoder import Encoder
from study.scoring.encoding import Inputs
from study.scoring.task_batches import Collator, EvaluatedSplit, TaskBatch
from study.training.stopping import Preempted, StopSignal

Pooling = Literal["cls", "mean", "token"]
"""Of an input: the output at its first token, or the mean over its tokens, [CLS] and [SEP] included; `token` at each place."""


def pooled(layer_BxSxH: Tensor, batch: TaskBatch, pooling: Pooling) -> Tensor:
    """The features of a batch: (B, H), or (N, H) at its places."""
    if pooling == "cls":
        return layer_BxSxH[:, 0]
    if pooling == "token":
        assert batch.places is not None
        return layer_BxSxH.flatten(0, 1)[batch.places]
    if batch.attended is None:
        return layer_BxSxH.mean(1)
    weight_BxSx1 = batch.attended[..., None].to(layer_BxSxH.dtype)
    return (layer_BxSxH * weight_BxSx1).sum(1) / weight_BxSx1.sum(1)


@torch.inference_mode()
def layer_features(
    encoder: Encoder,
    collate: Collator,
    poolings: tuple[Pooling, ...],
    precision: Precision,
    stop: StopSignal,
    layers: Callable[[int], bool] = lambda _: True,
) -> dict[tuple[int, Pooling], NDArray[np.float32]]:
    """The features of inputs by layer (0 is the embeddings) and pooling, in the order of its inputs, or of their words.

    Raises Preempted when told to stop.
    """
    device = next(encoder.parameters()).device
    encoder.eval()
    found: dict[tuple[int, Pooling], NDArray[np.float32]] = {}
    for on_cpu in EvaluatedSplit(collate):
        if stop.received:
            raise Preempted
        batch, places = move_data_to_device(on_cpu, device), _places(collate.inputs, on_cpu.rows.numpy())
        with autocast(device.type, precision):
            outputs = encoder.layers(batch.tokens, batch.segments, batch.attended)
        for layer, output_BxSxH in enumerate(outputs):
            for pooling in poolings if layers(layer) else ():
                features = pooled(output_BxSxH.float(), batch, pooling)
                if (layer, pooling) not in found:
                    found[layer, pooling] = np.empty((_count(collate.inputs), features.shape[1]), np.float32)
                found[layer, pooling][places] = features.cpu().numpy()
    return found


def _count(inputs: Inputs) -> int:
    """How many features there are of a layer: one an input, or one a word."""
    return len(inputs) if inputs.word_places is None else len(inputs.word_places.values)


def _places(inputs: Inputs, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the features of a batch of inputs stand, or of their words."""
    if inputs.word_places is None:
        return rows
    starts = inputs.word_places.starts
    return np.concatenate([np.arange(starts[row], starts[row + 1]) for row in rows])
