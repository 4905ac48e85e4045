"""What a step of the modern presets costs beside one of BERT's recipe: the same shape, batch and data, training in turns."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from study.base.schema import deep_merge
from study.benching.cases import Case, computed_flops_per_token
from study.benching.contenders import GateCallback, gate_of, train
from study.benching.own_processes import start_forkserver
from study.benching.results import Report, Row
from study.benching.training_comparison import Rounds, TrainingComparison, median_interval, ratios
from study.config.presets import PRESETS
from study.config.run_config import RunConfig
from study.counting.parameters import MASKING_RATE, masked_positions
from study.training.execution import Execution, peak_flops_per_second

BERT = "bert"
"""The variant beside which the others stand."""

_AS_MANY_MASKS = deep_merge(PRESETS["modern"], {"recipe": {"masking": {"rate": MASKING_RATE}}})

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    BERT: {},
    "modern, with AdamW and 15% masks": deep_merge(_AS_MANY_MASKS, {"recipe": {"optimizer": "adamw"}}),
    "modern, with 15% masks": _AS_MANY_MASKS,
    "modern": PRESETS["modern"],
    "modern2": PRESETS["modern2"],
}
"""What each variant changes in BERT's recipe: positions and bias alone, then Muon, then masks; and the later preset."""


def config_of(case: Case, variant: str) -> RunConfig:
    """Return the configuration of an endless run of a case's variant."""
    return RunConfig.parse(deep_merge(case.config().to_dict(), VARIANTS[variant]))


def contend(case: Case, variant: str, folder: Path, channel: Connection) -> None:
    """Train a variant without end, as a contender of TrainingComparison."""
    train(case, config_of(case, variant), folder, GateCallback(gate_of(channel, case.device)))


def measure_presets(cases: Sequence[Case], rounds: int, report: Report) -> None:
    """Let the variants of every case take turns and report a row for each, failures included."""
    start_forkserver()
    for case in cases:
        with (
            tempfile.TemporaryDirectory(prefix="study-bench-") as folder,
            TrainingComparison(case, Path(folder) / "comparison") as comparison,
        ):
            for variant in VARIANTS:
                comparison.start_function(variant, f"{__name__}.contend", case, variant, comparison.folder)
                comparison.warm_up(variant)
            comparison.measure(rounds)
        peak = peak_flops_per_second(Execution(device=case.device), case.dtype)
        for variant in VARIANTS:
            report(preset_row(case, variant, comparison.rounds, peak))


def preset_row(case: Case, variant: str, rounds: Rounds, peak: float | None) -> Row:
    """Return a variant's row: medians over rounds, and of the ratio to BERT's seconds of a step within rounds.

    `mfu` is the share of the datasheet's dense rate `peak` that the matrix products use, which the last layer runs at masked
    positions alone.
    """
    row: dict[str, Any] = {
        "what": f"{case.model or case.shape}, {variant}",
        "model": case.model or case.shape,
        "variant": variant,
        "vocabulary": case.architecture.vocabulary,
        "dtype": case.dtype,
        "batch": case.batch,
        "sequence_length": case.sequence_length,
        "dropout": case.dropout,
        "error": rounds.errors.get(variant) or rounds.errors.get(BERT),
    }
    if row["error"] is not None:
        return row
    seconds, beside = ([time.step_seconds for time in rounds.times[name]] for name in (variant, BERT))
    slower = ratios(seconds, beside)
    speed = case.batch_tokens / median(seconds)
    config = config_of(case, variant)
    predictions = masked_positions(case.sequence_length, config.training_masking.rate)
    flops = computed_flops_per_token(config.architecture, case.sequence_length, predictions)
    return row | {
        "tokens_per_second": speed,
        "step_seconds": median(seconds),
        "over_bert": median(slower),
        "over_bert_interval": list(median_interval(slower)),
        "mfu": speed * flops / peak if peak else None,
        "rounds": len(slower),
    }
