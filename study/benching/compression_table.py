"""A trained encoder beside its compressions and other encoders: bytes, latency, loss and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Any

from study.base.durable_files import is_there
from study.base.errors import InputError, Problem
from study.base.quantities import bytes_text, plural, plus_minus, seconds_text, signed
from study.base.statistics import variance_of_mean
from study.base.text import aligned
from study.benching.forward_passes import LatencyCase, Timing, disturbance, measure
from study.counting.memory import WeightFormat, inference_memory
from study.store.records import RunRecord
from study.store.run_folder import RunFolder
from study.store.score_records import readable_scores, scores, with_series

OF_ID = 8
"""The digits of a run's id that name it in a table."""

SOURCE = "source"
"""The name of the run that was compressed."""


@dataclass(frozen=True)
class SizedRun:
    """A run with its bytes, seconds and scores.

    `disk_bytes` is the size of its weights file, `memory_bytes` the closed form of a forward pass of the encoder. Seconds are
    those of a call. `difference` is its loss minus the source's over the same masked tokens, with its standard error. Scores
    are on test, by series (study.store.score_records) and metric, means over seeds at the knobs that are best on dev.
    """

    name: str
    run: RunFolder
    record: RunRecord
    disk_bytes: int
    memory_bytes: int
    median_seconds: float
    fastest_seconds: float
    difference: tuple[float, float | None] | None
    scores: dict[str, float]

    @property
    def precision(self) -> WeightFormat:
        """How the weights are stored."""
        return self.record.config.recipe.weights

    def to_dict(self) -> dict[str, Any]:
        """Return the run as plain values."""
        difference, error = self.difference or (None, None)
        return {
            "name": self.name,
            "run": str(self.run.path),
            "shape": self.record.config.architecture.shape_name,
            "weights": self.precision,
            "parameters": self.record.parameters,
            "disk_bytes": self.disk_bytes,
            "memory_bytes": self.memory_bytes,
            "median_seconds": self.median_seconds,
            "fastest_seconds": self.fastest_seconds,
            "loss_nats": self.record.loss_nats,
            "difference_nats": difference,
            "difference_standard_error_nats": error,
            "scores": self.scores,
        }


@dataclass(frozen=True)
class EqualBytes:
    """A compression and the other run whose file is nearest to it in bytes.

    `difference` is the compression's loss minus the other's over the same masked tokens, with its standard error.
    """

    compressed: SizedRun
    other: SizedRun
    difference: tuple[float, float | None]

    def to_dict(self) -> dict[str, Any]:
        """Names, bytes and the difference as plain values."""
        nats, error = self.difference
        return {
            "compressed": self.compressed.name,
            "other": self.other.name,
            "bytes_ratio": self.compressed.disk_bytes / self.other.disk_bytes,
            "speed_ratio": self.other.fastest_seconds / self.compressed.fastest_seconds,
            "difference_nats": nats,
            "difference_standard_error_nats": error,
        }

    def to_text(self) -> str:
        """Both in a sentence."""
        one, other, (nats, error) = self.compressed, self.other, self.difference
        speed = other.fastest_seconds / one.fastest_seconds
        sizes = f"{bytes_text(one.disk_bytes)} beside {bytes_text(other.disk_bytes)} of {other.name}"
        return (
            f"{one.name}: {sizes}, a loss that differs by {plus_minus(nats, error, form='+')} nats, at {speed:.2f}x its speed"
        )


@dataclass(frozen=True)
class SideBySide:
    """A source, its compressions and other runs, timed at one batch and sequence length."""

    runs: tuple[SizedRun, ...]
    conditions: str
    disturbed: str | None
    at_equal_bytes: tuple[EqualBytes, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the runs, the conditions and the pairs of about equal bytes as plain values."""
        pairs = [pair.to_dict() for pair in self.at_equal_bytes]
        return {"conditions": self.conditions, "runs": [run.to_dict() for run in self.runs], "at_equal_bytes": pairs}

    def to_text(self) -> str:
        """Return a table of a row a run, the source first, and what its columns mean."""
        source = self.runs[0]
        tasks = [task for task in source.scores if any(task in run.scores for run in self.runs[1:])]
        cells = [self._cells(run) | _scores(run, tasks) for run in self.runs]
        rows = [list(cells[0]), *(list(row.values()) for row in cells)]
        notes = [
            f"file: the weights with the MLM head; memory and times: a forward pass of the encoder, {self.conditions}",
            "memory is counted for weights held as they are stored; here products of int8 keep those of fp32 beside them",
            "difference: of the loss in nats, over the same masked tokens, with its standard error by document",
        ]
        width = source.record.config.architecture.table_width
        if any(run.record.config.steps == 0 and run.record.config.architecture.table_width < width for run in self.runs):
            notes.append("narrower tables: the MLM head, and with it the loss, is a linear fit until steps train it")
        paths = [f"{run.name}: {run.run.path}" for run in self.runs]
        answers = [pair.to_text() for pair in self.at_equal_bytes]
        below = [*answers, *([""] if answers else []), *notes, *filter(None, [self.disturbed])]
        return "\n".join([*aligned(rows, left=3), "", *below, "", *paths])

    def _cells(self, run: SizedRun) -> dict[str, str]:
        loss, (value, error) = run.record.loss_nats, run.difference or (None, None)
        return {
            "run": run.name,
            "shape": run.record.config.architecture.shape_name,
            "weights": run.precision,
            "parameters": f"{run.record.parameters:,}",
            "file": bytes_text(run.disk_bytes),
            "memory": bytes_text(run.memory_bytes),
            "median": seconds_text(run.median_seconds),
            "fastest": seconds_text(run.fastest_seconds),
            "speed": f"{self.runs[0].fastest_seconds / run.fastest_seconds:.2f}x",
            "loss": "" if loss is None else f"{loss:.4f}",
            "difference": "" if value is None else signed(value) if error is None else plus_minus(value, error, form="+"),
        }


def side_by_side(
    source: RunFolder,
    compressions: Sequence[tuple[str, RunFolder]],
    batch: int,
    timing: Timing,
    others: Sequence[RunFolder] = (),
) -> SideBySide:
    """Time the encoders of runs alternately, and put them beside their source.

    Each is timed with its weights' format at the sequence length of its text; `speed` compares the fastest calls. `others` have
    passed `check_comparable`; each compression is compared with the one nearest in bytes.
    """
    named = [(SOURCE, source), *compressions, *((run.run_id[:OF_ID], run) for run in others)]
    records = [record for _, run in named if (record := run.record()) is not None]
    length = records[0].config.data.sequence_length
    cases = [
        LatencyCase(name, record.config.architecture, batch, length, record.config.recipe.weights)
        for (name, _), record in zip(named, records, strict=True)
    ]
    rows, test_scores = measure(cases, timing), _test_scores([run for _, run in named])
    runs = tuple(
        SizedRun(
            name=name,
            run=run,
            record=record,
            disk_bytes=run.weights_file.stat().st_size if is_there(run.weights_file) else 0,
            memory_bytes=inference_memory(record.config.architecture, batch, length, record.config.recipe.weights).total,
            median_seconds=float(row["median_seconds"]),
            fastest_seconds=float(row["fastest_seconds"]),
            difference=None if run is source else paired_difference_of(run, source),
            scores=test_scores[run.run_id],
        )
        for (name, run), record, row in zip(named, records, rows.to_dict("records"), strict=True)
    )
    compressed, beside = runs[1 : 1 + len(compressions)], runs[1 + len(compressions) :]
    pairs = tuple(_nearest_in_bytes(run, beside) for run in compressed if beside)
    return SideBySide(runs, f"{batch} x {length} tokens, {plural(timing.threads, 'thread')}", disturbance(rows), pairs)


def check_comparable(source: RunFolder, others: Sequence[RunFolder]) -> None:
    """Raise InputError with a line for each run that was not validated on the source's masked tokens."""
    wanted = _validated_on(source)
    strange = [run for run in others if _validated_on(run) != wanted]
    remedy = "give one of the same text, tokenizer, sequence_length, validation_sequences and masking, with an MLM loss"
    if problems := [Problem(f"--beside {run.path}", f"was validated on other tokens; {remedy}") for run in strange]:
        raise InputError(problems)


def _validated_on(run: RunFolder) -> tuple[Any, ...] | None:
    """Return what decides the masked tokens of a run's validation; None without an MLM loss."""
    record = run.record()
    if record is None or record.loss_nats is None or record.config.recipe.detects_replaced:
        return None
    config = record.config
    return record.data_fingerprint, config.data.sequence_length, config.data.validation_sequences, config.masking


def _nearest_in_bytes(compressed: SizedRun, others: Sequence[SizedRun]) -> EqualBytes:
    other = min(others, key=lambda run: abs(log(run.disk_bytes / compressed.disk_bytes)))
    return EqualBytes(compressed, other, paired_difference_of(compressed.run, other.run))


def paired_difference_of(run: RunFolder, source: RunFolder) -> tuple[float, float | None]:
    """Return a run's loss minus its source's over the same masked tokens, and its standard error, clustered by document.

    The standard error is None for one sequence or document.
    """
    record = run.record()
    assert record is not None
    nats, before = run.validation_losses(), source.validation_losses()
    assert record.validation_masked_tokens is not None
    per_sequence = (nats - before) * (len(nats) / record.validation_masked_tokens)
    documents = run.validation_documents()
    units = len(nats) if documents is None else len(set(documents.tolist()))
    return float(per_sequence.mean()), sqrt(variance_of_mean(per_sequence, documents)) if units > 1 else None


def _test_scores(runs: Sequence[RunFolder]) -> dict[str, dict[str, float]]:
    """Return the scores of each run by id, means over seeds, by series and main metric."""
    by_run: dict[str, dict[str, float]] = {run.run_id: {} for run in runs}
    frame = with_series(scores(readable_scores(runs)))
    if frame.empty:
        return by_run
    for row in frame.groupby(["run_id", "series", "metric"], as_index=False)[["test"]].mean().to_dict("records"):
        by_run[str(row["run_id"])][f"{row['series']}/{row['metric']}"] = float(row["test"])
    return by_run


def _scores(run: SizedRun, tasks: Sequence[str]) -> dict[str, str]:
    return {task: f"{run.scores[task]:.3f}" if task in run.scores else "" for task in tasks}
