"""A sweep folder with made-up records that follow a known law, written through the same files as real ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from study.config.run_config import RunConfig
from study.evidence.evidence import Evidence
from study.store.records import Environment, RunRecord, State, counts_of
from study.store.sweep_folder import GoalLook, GoalPath, SweepFolder

UNIGRAM = 5.67
SEQUENCES = 200
MASKED_PER_SEQUENCE = 10
BATCH_TOKENS = 1024
SHAPES = ((1, 128), (2, 92), (4, 64), (1, 184), (2, 128), (4, 92))
"""(depth, width) of two families: about 0.2M and 0.4M non-embedding parameters."""

SWEEP: dict[str, Any] = {
    "question": "At equal parameters, does depth or width lower MLM loss more?",
    "expect": "Width below 1M non-embedding parameters.",
    "data": {"corpus": "docstrings", "tokenizer": {"kind": "wordpiece", "vocabulary": 2048}, "sequence_length": 64},
    "base": {"recipe": {"batch_tokens": BATCH_TOKENS}},
    "shapes": {"iso_parameters": [2.0e5, 4.0e5], "depth": [1, 2, 4]},
    "budgets": {"tokens": [1.0e6, 2.0e6]},
    "tune": {"recipe.learning_rate": {"low": 1e-3, "high": 8e-3, "trials": 4}},
    "seeds": 2,
}


@dataclass(frozen=True)
class Law:
    """loss = floor + size, token and depth terms + curvature · (log rate - log best)², plus seed and sequence noise."""

    depth_effect: float = 0.08
    """Nats by which every doubling of the depth raises the loss at equal parameters."""
    seed_deviation: float = 0.004
    best_rate: float = 3.5e-3
    curvature: float = 0.15

    def loss(self, config: RunConfig) -> float:
        """The expected loss of a run in nats per masked token."""
        size = counts_of(config, 1)["parameters_non_embedding"]
        away = np.log(config.recipe.learning_rate / self.best_rate)
        base = 3.0 + 40 * size**-0.35 + 60 * config.tokens**-0.35
        return float(base + self.depth_effect * np.log2(config.architecture.depth) + self.curvature * away**2)


def run_config(depth: int, width: int, rate: float = 3e-3, seed: int = 0, tokens: float = 1e6, **recipe: Any) -> RunConfig:
    """A configuration of the synthetic sweep."""
    sizes = {"depth": depth, "width": width, "heads": 2, "ffn": 4 * width, "vocabulary": 2048, "positions": 64}
    given = {"learning_rate": rate, "batch_tokens": BATCH_TOKENS, "budget": {"tokens": tokens}, **recipe}
    data = SWEEP["data"] | {"validation_sequences": SEQUENCES}
    return RunConfig.parse({"architecture": sizes, "recipe": given, "data": data, "seed": seed})


def reshaped(config: RunConfig, **sizes: int) -> RunConfig:
    """The configuration with other heads or FFN."""
    return config.model_copy(update={"architecture": config.architecture.model_copy(update=sizes)})


def in_setting(config: RunConfig, **settings: Any) -> RunConfig:
    """The configuration with other fields of its architecture or its recipe."""
    fields = {name: value for name, value in settings.items() if name in type(config.architecture).model_fields}
    recipe = {name: value for name, value in settings.items() if name not in fields}
    changed = {"architecture": config.architecture.model_copy(update=fields), "recipe": config.recipe.model_copy(update=recipe)}
    return config.model_copy(update=changed)


def add_run(
    folder: SweepFolder,
    config: RunConfig,
    law: Law | None = None,
    state: State = "COMPLETED",
    order_gain: float | None = 1.0,
    excluded: str | None = None,
    reason: str | None = None,
    trunk: str | None = None,
    text: str = "synthetic",
    flops_before: float | None = None,
) -> str:
    """Write one run whose loss follows the law, or that ended otherwise, of its own or as a branch of a trunk; its id.

    An order gain of None is that of a record of an earlier version; `excluded` is why a person leaves the run out. `text` is
    the data fingerprint of what the run read, `flops_before` those of the runs that it needs.
    """
    law = law or Law()
    run_id = config.fingerprint(text)
    run = folder.run(run_id)
    run.write_config(config)
    completed = state == "COMPLETED"
    losses = _losses(law, config, run_id)
    loss = float(losses.mean())
    results: dict[str, Any] = {}
    if completed:
        run.write_validation_losses(losses * MASKED_PER_SEQUENCE)
        results = {
            "loss_nats": loss,
            "loss_standard_error_nats": float(losses.std(ddof=1) / np.sqrt(SEQUENCES)),
            "validation_masked_tokens": SEQUENCES * MASKED_PER_SEQUENCE,
        }
        if order_gain is not None:
            results |= {"order_gain_nats": order_gain, "order_gain_standard_error_nats": 0.01}
    steps = config.steps if completed else config.steps // 3
    record = {
        "run_id": run_id,
        "sweep": folder.name,
        "state": state,
        "reason": reason,
        "config": config.to_dict(),
        "data_fingerprint": text,
        "steps": steps,
        "tokens": steps * config.recipe.batch_tokens,
        "unigram_entropy_nats": UNIGRAM,
        **counts_of(config, steps),
        **results,
        **({} if trunk is None else {"trunk": trunk, "trunk_step": steps // 2}),
        **({} if flops_before is None else {"spent_flops": flops_before + counts_of(config, steps)["train_flops"]}),
        "attempts": 1,
        "started_at": "2026-01-01T00:00:00+00:00",
        "finished_at": "2026-01-01T00:01:00+00:00",
    }
    _write_metrics(run.metrics_file, config, steps, loss)
    run.file_record(RunRecord.parse(record))
    if excluded is not None:
        run.exclusion_file.write_text(json.dumps({"reason": excluded}))
    return run_id


def environment(**changes: Any) -> Environment:
    """What a record says of a machine that is not there."""
    versions = {"python": "3", "torch": "2", "lightning": "2", "study": "0"}
    machine = {"hostname": "h", "device": "cpu", "processor": "p", "threads": 1, "precision": "fp32"}
    return Environment.model_validate(machine | versions | changes)


def sweep_folder(path: Path, sweep: dict[str, Any] | None = None) -> SweepFolder:
    """An empty sweep folder with its sweep.yaml."""
    path.mkdir(parents=True)
    (path / "sweep.yaml").write_text(yaml.safe_dump(SWEEP if sweep is None else sweep, sort_keys=False))
    return SweepFolder(path)


def depth_or_width(
    path: Path,
    law: Law | None = None,
    seeds: int = 2,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    rates: Iterable[float] = (1e-3, 2e-3, 4e-3, 8e-3),
    budgets: Iterable[float] = (1e6, 2e6),
) -> SweepFolder:
    """The sweep `depth_or_width` as it looks when all runs went well: every rate at seed 0, further seeds at the best rate."""
    law, folder, rates = law or Law(), sweep_folder(path), tuple(rates)
    for depth, width in shapes:
        for tokens in budgets:
            for rate in rates:
                add_run(folder, run_config(depth, width, rate, tokens=tokens), law)
            best = min(rates, key=lambda rate: abs(np.log(rate / law.best_rate)))
            for seed in range(1, seeds):
                add_run(folder, run_config(depth, width, best, seed, tokens), law)
    return folder


def goal_path(**changes: Any) -> GoalPath:
    """A goal that forecasts a loss of 3 nats, spent after one look, but for these fields."""
    usual = {
        "of": "the forecast, relative",
        "wanted": 0.02,
        "spend_flops": 1e10,
        "state": "spent",
        "sentence": "It is spent",
        "looks": (GoalLook(runs=15, spent_flops=1e9, half_width=0.04),),
        "target_parameters": 4e6,
        "target_tokens": 4e7,
        "forecast_nats": 3.0,
    }
    return GoalPath(**usual | changes)


def with_facts(evidence: Evidence, **actual: Any) -> Evidence:
    """The evidence with other facts, such as other `token_gains`, or other scores `downstream`."""
    changed = replace(evidence)
    changed.__dict__.update(actual)  # as cached properties keep it
    return changed


def _losses(law: Law, config: RunConfig, run_id: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Loss of each validation sequence: hard and easy sequences are so for all runs."""
    of_sequences = np.random.default_rng(7).normal(0, 0.5, SEQUENCES)
    noise = np.random.default_rng(int(run_id, 16))
    centre = law.loss(config) + noise.normal(0, law.seed_deviation)
    own = noise.normal(0, 0.05, SEQUENCES)
    losses: np.ndarray[Any, np.dtype[np.float64]] = centre + of_sequences - of_sequences.mean() + own
    return losses


def _write_metrics(file: Path, config: RunConfig, steps: int, loss: float) -> None:
    """A loss curve that leaves the unigram plateau and ends at the run's loss; no rows of no steps."""
    rows: list[dict[str, float]] = []
    for step in np.unique(np.linspace(1, steps, 20).astype(int)).tolist() if steps else ():
        tokens = step * BATCH_TOKENS
        progress = {"trainer/step": step, "trainer/tokens": tokens}
        progress["trainer/flops"] = config.flops_per_token["train_flops"] * tokens
        value = loss + max(0.0, UNIGRAM - loss) * (1 - step / steps) ** 2
        rows.append(progress | {"train/loss": value + 0.01})
        if step % 2 or step == steps:
            rows.append(progress | {"val/loss": value})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
