"""Sweep files small enough to run within seconds, on a corpus that a model learns something of in a hundred steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from study.base.schema import deep_merge
from study.config.run_config import RunConfig, TokenizerVariant
from study.config.sweep import CellSweep, SearchSweep, Sweep, parse_sweep
from study.executing.processes import Job
from study.planning.plan import Plan
from study.running.coordinator import Coordinator
from study.running.run_proposer import RunJob, RunProposer
from study.store.records import RunRecord, State, counts_of
from study.store.sweep_folder import SweepFolder

LEARNS: dict[str, Any] = {
    "shapes": {"grid": {"depth": [1]}},
    "base": {"architecture": {"norm": "pre"}, "recipe": {"learning_rate": 0.01}},
    "budgets": {"steps": [250]},
}
"""The changes that make a sweep of one run, which learns enough for its answer to use it."""

RATES = {"recipe.learning_rate": {"low": 0.02, "high": 0.08, "trials": 3}}


def write_topics(path: Path, documents: int = 500, words: int = 40) -> Path:
    """Documents of so many words, of one of eight topics with eight words each, so that every word says much of the others."""
    draw = random.Random(0)
    known = [a + b + c for a in "bdgklmnp" for b in ("ab", "ek", "il", "om") for c in ("a", "e")]
    texts = []
    for _ in range(documents):
        topic = 8 * draw.randrange(8)
        texts.append(" ".join(draw.choices(known[topic : topic + 8], k=words)))
    path.write_text("\n\n".join(texts))
    return path


def sweep_values(corpus: Path, **changes: Any) -> dict[str, Any]:
    """A sweep of two shapes, a hundred steps a run, with changes merged in; None takes a key away."""
    values: dict[str, Any] = {
        "name": "toy",
        "question": "Does a second layer help?",
        "data": {
            "corpus": str(corpus),
            "tokenizer": {"vocabulary": 100},
            "sequence_length": 16,
            "validation_sequences": 32,
        },
        "base": {"recipe": {"batch_tokens": 256, "precision": "fp32", "learning_rate": 0.04}},
        "shapes": {"grid": {"depth": [1, 2], "width": [16], "heads": [2], "ffn": [32]}},
        "budgets": {"steps": [100]},
    }
    return {key: value for key, value in deep_merge(values, changes).items() if value is not None}


def parsed(corpus: Path = Path("corpus.txt"), **changes: Any) -> Sweep:
    """The strict form of `sweep_values`, of either kind."""
    return parse_sweep(sweep_values(corpus, **changes))


def sweep(corpus: Path = Path("corpus.txt"), **changes: Any) -> CellSweep:
    """A sweep of cells as its strict form."""
    spec = parsed(corpus, **changes)
    assert isinstance(spec, CellSweep)
    return spec


def search_sweep(**changes: Any) -> SearchSweep:
    """A sweep that searches, with `search` among the changes, as its strict form."""
    spec = parsed(**{"shapes": None} | changes)
    assert isinstance(spec, SearchSweep)
    return spec


def write_sweep(path: Path, corpus: Path, **changes: Any) -> Path:
    """`sweep_values` as a file."""
    path.write_text(yaml.safe_dump(sweep_values(corpus, **changes), sort_keys=False))
    return path


def texts_of(spec: Sweep, fingerprint: str = "data") -> dict[TokenizerVariant, str]:
    """The fingerprint of a text that a sweep reads with one tokeniser."""
    return {spec.data.tokenizer.variant: fingerprint}


def coordinator_of(
    folder: SweepFolder, corpus: Path = Path("corpus.txt"), fingerprint: str = "data", **changes: Any
) -> Coordinator[RunJob, RunRecord]:
    """What drives the runs of a sweep."""
    spec = parsed(corpus, **changes)
    texts = texts_of(spec, fingerprint)
    plan = Plan(spec, texts=texts, runs=folder.runs_folder)
    return Coordinator(folder, RunProposer(plan, sweep_values(corpus, **changes), folder, texts))


def run_in(jobs: Sequence[Job]) -> RunJob:
    """The run that a batch of jobs is: each is submitted alone."""
    (job,) = jobs
    assert isinstance(job, RunJob)
    return job


def record(
    config: RunConfig, loss: float | None = 3.0, state: State = "COMPLETED", run_id: str = "0" * 16, **changes: Any
) -> RunRecord:
    """The record of a run that nobody trained."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "sweep": "toy",
        "state": state,
        "config": config,
        "data_fingerprint": "data",
        "steps": config.steps,
        "tokens": config.tokens,
        "loss_nats": loss,
        "order_gain_nats": 1.0,
        "order_gain_standard_error_nats": 0.01,
        "attempts": 1,
        "started_at": "2026-01-01T00:00:00+00:00",
        "finished_at": "2026-01-01T00:01:00+00:00",
    }
    return RunRecord(**values | counts_of(config, config.steps) | changes)
