"""Downstream scores of others to draw beside a sweep's own: GLUE's test sets on BERT's miniatures.

From the table in the README of google-research/bert (Apache-2.0; Turc et al. 2019, arXiv 1908.08962): pre-trained by masked
language modelling on Wikipedia and books, without distillation; fine-tuned for 4 epochs, the best of five batch sizes and four
learning rates for each task. GLUE's test labels are secret, so these are not the sentences that a sweep reports on.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from study.counting.named_models import find
from study.counting.parameters import parameters

_COLUMNS = {
    "cola": ("CoLA", {"matthews": 0}),
    "sst2": ("SST-2", {"accuracy": 0}),
    "mrpc": ("MRPC", {"f1": 0, "accuracy": 1}),
    "stsb": ("STS-B", {"pearson": 0, "spearman": 1}),
    "qqp": ("QQP", {"f1": 0, "accuracy": 1}),
    "mnli": ("MNLI-m", {"accuracy": 0}),
    "qnli": ("QNLI(v2)", {"accuracy": 0}),
    "rte": ("RTE", {"accuracy": 0}),
    "wnli": ("WNLI", {"accuracy": 0}),
}
"""The column of each task, and which of the numbers between slashes is which metric."""


@dataclass(frozen=True)
class PublishedScore:
    """One published number: of which model, how large it is by each count, on which task by which metric, 0 to 1."""

    model: str
    sizes: Mapping[str, int]
    task: str
    metric: str
    score: float


def published_scores(task: str, metric: str) -> tuple[PublishedScore, ...]:
    """The published scores of a task by a metric, smallest model first; none where nobody has published any."""
    column, places = _COLUMNS.get(task, ("", {}))
    if metric not in places:
        return ()
    with files("study.evidence").joinpath("bert_miniatures_glue.csv").open(encoding="utf-8") as table:
        rows = list(csv.DictReader(table))
    found = [
        PublishedScore(
            row["model"], _sizes(row["model"]), task, metric, round(float(row[column].split("/")[places[metric]]) / 100, 6)
        )
        for row in rows
    ]
    return tuple(sorted(found, key=lambda one: one.sizes["parameters"]))


def _sizes(model: str) -> dict[str, int]:
    named = find(model)
    assert named is not None, f"{model} is not in the catalogue"
    return parameters(named.architecture).totals()
