"""Probes: linear models on frozen features; layer, pooling and regularisation are chosen on dev."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from study.base.randomness import fixed_permutation
from study.config.score_config import ScoreConfig
from study.model.stored_weights import multiply_in_int8
from study.scoring.baselines import fit_to_labels
from study.scoring.features import LAST_LAYERS, Combination, Pooling, combined, layer_features
from study.scoring.fine_tuning import task_model
from study.scoring.predictions import Logits, predictions, test_facts
from study.scoring.scored_examples import Inputs
from study.scoring.task_inputs import ScoreAttempt, TaskInputs
from study.scoring.task_metrics import measure
from study.store.score_records import Probe
from study.training.attempts import Preempted

STRENGTHS = (0.01, 0.1, 1.0)
"""Inverse strengths of the penalty on standardised features: C of a logistic regression, 1/alpha of a ridge."""

MOST_ROWS = 20_000
"""A probe learns from at most so many texts or words of train: those of the first inputs of a fixed permutation."""

ITERATIONS = 200


def probe(scoring: ScoreAttempt, data: TaskInputs) -> dict[str, Any]:
    """Fit a probe on every layer and pooling, and on the last layers together, and report test for the best on dev."""
    started, config = time.perf_counter(), scoring.config
    data = replace(data, splits={**data.splits, "train": _learnt_from(data.splits["train"])})
    model = task_model(config, scoring.run, data).to(torch.device(scoring.execution.device))
    if scoring.in_int8:
        multiply_in_int8(model.encoder)
    poolings: tuple[Pooling, ...] = ("token",) if data.task.spec.kind == "tokens" else ("cls", "mean")
    features = {
        split: _with_last_layers(
            layer_features(model.encoder, data.collator(split), poolings, scoring.precision, scoring.stop), poolings
        )
        for split in ("train", "dev", "test")
    }
    best: tuple[dict[str, float], dict[str, Any]] | None = None
    probes = []
    for key in features["train"]:
        if scoring.stop.received:
            raise Preempted
        of_key = {split: by_key[key] for split, by_key in features.items()}
        chosen, dev, predicted = _best_strength(config, data, of_key)
        test = test_facts(data.task, predicted)
        score = test["test_scores"][config.metric]
        probes.append(Probe(layer=key[0], pooling=key[1], regularisation=chosen, dev=dev[config.metric], test=score))
        if best is None or dev[config.metric] > best[0][config.metric]:
            best = dev, test
    assert best is not None
    tokens = sum(int(inputs.tokens.lengths.sum()) for inputs in data.splits.values())
    seconds = time.perf_counter() - started
    return best[1] | {"dev_scores": best[0], "probes": tuple(probes), "tokens": tokens, "seconds": seconds}


def _learnt_from(train: Inputs) -> Inputs:
    """Return the inputs that a probe learns from, so that no others are encoded and kept."""
    order = fixed_permutation(len(train))
    rows = np.ones(len(train), np.int64) if train.word_places is None else train.word_places.lengths
    return train.take(np.sort(order[np.cumsum(rows[order]) <= MOST_ROWS]))


def _with_last_layers(
    by_layer: dict[tuple[int, Pooling], NDArray[np.float32]], poolings: tuple[Pooling, ...]
) -> dict[tuple[int | Combination, Pooling], NDArray[np.float32]]:
    """Features by layer, and of the last layers together."""
    features: dict[tuple[int | Combination, Pooling], NDArray[np.float32]] = dict(by_layer.items())
    depth = max(layer for layer, _ in by_layer)
    if depth >= LAST_LAYERS:
        for pooling in poolings:
            last = [by_layer[layer, pooling] for layer in range(depth + 1 - LAST_LAYERS, depth + 1)]
            features["concat", pooling], features["sum", pooling] = combined(last, "concat"), combined(last, "sum")
    return features


def _best_strength(
    config: ScoreConfig, data: TaskInputs, features: dict[str, NDArray[np.float32]]
) -> tuple[float, dict[str, float], list[Any]]:
    """Return the best strength on dev, with every metric there and predictions for test."""
    mean, deviation = features["train"].mean(0), features["train"].std(0) + 1e-6
    scaled = {split: (values - mean) / deviation for split, values in features.items()}
    order = fixed_permutation(len(scaled["train"]))
    learnt, targets, tried = scaled["train"][order], _targets(data)[order], []
    for strength in STRENGTHS:
        fitted = _fitted(data, learnt, targets, strength)
        dev = measure(data.task, "dev", _predicted(data, "dev", fitted, scaled["dev"]))
        tried.append((strength, dev, fitted))
    strength, dev, fitted = max(tried, key=lambda trial: trial[1][config.metric])
    return strength, dev, _predicted(data, "test", fitted, scaled["test"])


def _targets(data: TaskInputs) -> NDArray[Any]:
    train = data.splits["train"]
    return train.labels if train.word_labels is None else train.word_labels.values


def _fitted(data: TaskInputs, features: NDArray[np.float32], targets: NDArray[Any], strength: float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    if data.task.spec.regression:
        return Ridge(alpha=1 / strength).fit(features, targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # stopped early it is a little more regularised, and dev judges it
        return fit_to_labels(data.task, LogisticRegression(C=strength, max_iter=ITERATIONS), features, targets)


def _predicted(data: TaskInputs, split: str, fitted: Any, features: NDArray[np.float32]) -> list[Any]:
    if data.task.spec.regression:
        rows = fitted.predict(features)[:, None]
    elif data.task.spec.multi_label:
        rows = fitted.decision_function(features)
    else:
        rows = np.full((len(features), len(data.task.labels)), -np.inf)
        decided = fitted.decision_function(features)
        rows[:, fitted.classes_] = np.stack([-decided, decided], 1) if decided.ndim == 1 else decided
    inputs = data.splits[split]
    counts = None if inputs.word_places is None else np.cumsum(inputs.word_places.lengths)[:-1]
    logits: Logits = list(rows) if counts is None else np.split(rows, counts)
    return predictions(data.task, split, inputs, logits)
