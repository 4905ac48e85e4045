"""A corpus, a configuration and a sweep small enough to train within a second or two."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import config as checks

from study.base.schema import deep_merge
from study.config.run_config import RunConfig
from study.data.prepared import data_fingerprint
from study.model.lightning import MaskedLanguageModelling
from study.store.run_folder import RunFolder
from study.store.work_folder import WorkFolder
from study.training.attempts import StopSignal
from study.training.execution import Execution
from study.training.run import train

SHARED: dict[str, Any] = {"activation": "geglu", "layer_groups": 1, "embedding_width": 8}
"""Layers that share gated weights, behind narrow tables."""

CHECKED_STEPS = 3
"""The steps of training and of validation in which the shapes of tensors are checked."""

ORDERED: dict[str, Any] = {"position_encoding": "none", "distance_bias": "learned", "query_key_norm": True}
"""Word order from a bias by distance alone, and normed queries and keys."""


def write_corpus(path: Path, documents: int = 600, seed: int = 0) -> Path:
    """Sentences of a small grammar, so that context helps: each word fixes the next but for a choice of two."""
    draw = random.Random(seed)
    words = [a + b + c for a in "bdgklmnprst" for b in ("ab", "ek", "il", "om", "un") for c in ("a", "e", "i")]
    follows = {word: draw.sample(words, 2) for word in words}
    texts = []
    for _ in range(documents):
        word, text = draw.choice(words), []
        for _ in range(40):
            text.append(word)
            word = draw.choice(follows[word])
        texts.append(" ".join(text))
    path.write_text("\n\n".join(texts))
    return path


def config_values(corpus: Path, **changes: Any) -> dict[str, Any]:
    """A configuration of 30 steps on a small corpus, with changes merged in."""
    values = {
        "architecture": {"depth": 2, "width": 16, "heads": 2, "ffn": 32, "vocabulary": 200, "positions": 16},
        "recipe": {"learning_rate": 3e-3, "batch_tokens": 128, "budget": {"steps": 30}, "precision": "fp32"},
        "data": {
            "corpus": str(corpus),
            "tokenizer": {"vocabulary": 200},
            "sequence_length": 16,
            "validation_sequences": 32,
        },
    }
    return deep_merge(values, changes)


def config(corpus: Path, **changes: Any) -> RunConfig:
    """The strict form of `config_values`."""
    return RunConfig.parse(config_values(corpus, **changes))


def run_folder(root: Path, config: RunConfig) -> RunFolder:
    """Where a run belongs."""
    return RunFolder(root / "runs" / config.fingerprint(data_fingerprint(config.data)))


def trained(root: Path, config: RunConfig, stop: StopSignal | None = None, **execution: Any) -> RunFolder:
    """Train a run in this process and return its folder."""
    folder = run_folder(root, config)
    with shapes_checked_at_first(MaskedLanguageModelling):
        train(config, folder, "test", Execution(**execution), stop or StopSignal())
    return folder


@contextmanager
def shapes_checked_at_first(module: type[Any]) -> Iterator[None]:
    """Check shapes in the first steps of training and of validation alone: the others have the same, and checks take long."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("training_step", "validation_step"):
            patch.setattr(module, name, _checked_at_first(getattr(module, name)))
        yield


def _checked_at_first(original: Callable[..., Any]) -> Callable[..., Any]:
    steps = count()

    def step(self: Any, batch: Any, batch_idx: int) -> Any:
        checks.update("jaxtyping_disable", next(steps) >= CHECKED_STEPS)
        try:
            return original(self, batch, batch_idx)
        finally:
            checks.update("jaxtyping_disable", False)

    return step


def losses(folder: WorkFolder) -> list[float]:
    """The training losses that a run, or a score, has logged."""
    return [row["train/loss"] for row in folder.metrics() if "train/loss" in row]


def stop_after(step: int, monkeypatch: pytest.MonkeyPatch) -> StopSignal:
    """A stop signal that arrives during a step, as SIGTERM would."""
    stop, original = StopSignal(), MaskedLanguageModelling.training_step

    def training_step(self: MaskedLanguageModelling, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if self.trainer.global_step == step - 1:
            stop.set()
        return original(self, batch, batch_idx)

    monkeypatch.setattr(MaskedLanguageModelling, "training_step", training_step)
    return stop


def overflow_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a weight become infinite in a step whose own loss is finite."""
    original = MaskedLanguageModelling.training_step

    def training_step(self: MaskedLanguageModelling, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = original(self, batch, batch_idx)
        if self.trainer.global_step == step - 1:
            self.model.head.bias.data[0] = float("inf")
        return loss

    monkeypatch.setattr(MaskedLanguageModelling, "training_step", training_step)
