"""The charts of runs as data: the ended runs of many sweeps as points, what each knob matters, and logged metrics as curves.

Points have quantities to plot and knobs to group by; a curve is over steps, tokens, FLOPs or time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from study.base.errors import UNREADABLE, InputError
from study.base.quantities import plural
from study.counting.architecture import SHAPE
from study.dashboard.library import Library
from study.evidence.cells import in_words
from study.evidence.learning_rates import searches
from study.evidence.ledgers import COUNTS, LOSS, LOSS_OF_DETECTING, OBJECTIVE, ORDER_GAIN, unusable, validation_columns
from study.evidence.ledgers import LOSSES as LOSS_OF_EITHER
from study.store.records import fill_left_out, ledger
from study.store.score_records import DOWNSTREAM, scores_in, series
from study.store.sweep_folder import SweepFolder

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Evaluator = Literal["ped-anova", "fanova"]
"""How importances are measured: over the best tenth of the runs, or over all."""

_KNOBS = ("architecture.", "recipe.", "data.", "masking.")

LOSSES = {
    "loss_nats": LOSS,
    "order_gain_nats": ORDER_GAIN,
    "accuracy": "validation accuracy (share of masked tokens)",
}
"""Quantities that compare only on one validation set, with units."""

QUANTITIES = {
    **COUNTS,
    "tokens": "training tokens",
    "architecture.depth": "depth (layers)",
    "architecture.width": "width (hidden size)",
    "architecture.heads": "heads",
    "architecture.ffn": "FFN size",
    "architecture.vocabulary": "vocabulary (pieces)",
    "recipe.learning_rate": "learning rate",
    "wall_seconds": "wall time (s; of a branch, that of its own part)",
    "tokens_per_second": "speed (tokens/s)",
    "peak_memory_bytes": "peak memory (bytes)",
    **LOSSES,
}
"""The ledger columns for axes, with conventions and units."""

HIGHER_IS_BETTER = ("order_gain_nats", "accuracy", "tokens_per_second")
"""The quantities that are better when higher, and so are downstream scores; others, such as seconds, are better when lower."""

MOST_KINDS = 10
"""The most values of a column of words that groups runs; a column of numbers always does, by a scale."""

_CONFIGURED = ("architecture.", "recipe.", "data.", "masking.", "environment.")

FEWEST_RUNS = 10
"""The fewest runs of which importances are estimated."""

AXES = {
    "trainer/tokens": "training tokens",
    "trainer/step": "optimiser steps",
    "trainer/flops": "training FLOPs (train_flops)",
}
"""The metrics that serve as horizontal axes."""

WORDS = {
    "train/loss": "training loss (nats per masked token; with a teacher, what is learnt)",
    "val/loss": "validation loss (nats per masked token)",
    "val/loss_standard_error": "standard error of the validation loss (nats)",
    "val/order_gain": "order gain (nats)",
    "val/order_gain_standard_error": "standard error of the order gain (nats)",
    "val/accuracy": "validation accuracy (share of masked tokens)",
    "train/gradient_norm": "gradient norm, before clipping",
    "recipe/learning_rate": "learning rate",
    "perf/tokens_per_second": "speed (tokens/s)",
    "perf/mfu": "MFU (share of the device's peak)",
}
"""Axis labels of the metrics that the workbench logs; others are named as logged."""

_OF_DETECTING = {
    "train/loss": "training loss (nats; the generator's, and the weighted one of detecting replaced tokens)",
    **dict.fromkeys(("val/loss", "loss_nats"), LOSS_OF_DETECTING),
    **dict.fromkeys(("val/accuracy", "accuracy"), "validation accuracy (share of tokens, of detecting replaced ones)"),
}
_OF_EITHER = {
    "train/loss": "training loss (nats)",
    **dict.fromkeys(("val/loss", "loss_nats"), LOSS_OF_EITHER),
    **dict.fromkeys(("val/accuracy", "accuracy"), "validation accuracy"),
}
"""Axis labels where all runs detect replaced tokens, and where some do and others predict masked ones."""

MOST_POINTS, FEWEST_POINTS, POINTS_OF_ALL = 400, 20, 16_000
"""The most points of a run, spread evenly and including the last: fewer where many runs share a figure."""

MOST_CURVES = 3000
"""The most runs whose curves are sent."""


def runs_in(folders: Mapping[str, SweepFolder]) -> tuple[pd.DataFrame, dict[str, str]]:
    """One row per ended run and sweep, and why sweeps that cannot be read are missing.

    A row is the current ledger's, with `sweep`, the name in `folders`; `setting`, the variant in words; `left_out`, why laws do
    not use the run (study.evidence.ledgers.unusable), missing if they do; `replicates`, a number that runs of a sweep share if
    they differ in the seed alone, as those of a `cell` with tuned knobs may not; `validation`, the validation set and masks in
    words, empty if all runs share them, since losses compare only under one name; and `downstream/<series>/<metric>`, the mean
    score of trained weights over seeds of fine-tuning (study.store.score_records.series).
    """
    tables, scores, problems = [], [], {}
    for name, folder in folders.items():
        try:
            if (table := folder.written_ledger()) is None:
                records, unreadable = folder.read_records()
                if unreadable:
                    problems[name] = "; ".join(map(str, unreadable))
                table = ledger(records, tuned=folder.sweep().tuned, cells=folder.cells())
            tables.append(with_reasons(table, folder).assign(sweep=name))
            scores.append(_scores_of(name, folder))
        except UNREADABLE as error:
            problems[name] = str(error)
    if all(table.empty for table in tables):
        return pd.DataFrame(columns=["run_id", "sweep", "setting", "left_out", "validation"]), problems
    runs = fill_left_out(pd.concat([table for table in tables if not table.empty], ignore_index=True))
    runs = runs.assign(validation=in_words(runs, validation_columns(runs)))
    scored = [table for table in scores if not table.empty]
    return (_with_scores(runs, pd.concat(scored, ignore_index=True)) if scored else runs), problems


def with_reasons(ledger: pd.DataFrame, folder: SweepFolder) -> pd.DataFrame:
    """Return a sweep's ledger with `setting`, `left_out` and `replicates`, as in `runs_in`."""
    if ledger.empty:
        return ledger
    varied = [knob for knob in folder.varied() if knob in ledger]
    gone = unusable(ledger, searches(ledger, folder.trial_seeds()).values())
    left_out = pd.Series(gone, dtype=object).reindex(range(len(ledger)))
    seedless = ["cell", *(knob for knob in folder.tuned() if knob in ledger)]
    replicates = ledger.groupby(seedless, dropna=False, sort=False).ngroup()
    return ledger.assign(setting=in_words(ledger, varied), left_out=left_out.to_numpy(), replicates=replicates)


def _scores_of(name: str, folder: SweepFolder) -> pd.DataFrame:
    scores = scores_in(folder)
    return scores if scores.empty else scores[scores["protocol"] != "random_init"].assign(sweep=name)


def _with_scores(runs: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    scores = scores.assign(column=DOWNSTREAM + series(scores) + "/" + scores["metric"])
    by_run = scores.pivot_table(index=["sweep", "run_id"], columns="column", values="test", aggfunc="mean")
    return runs.join(by_run, on=["sweep", "run_id"])


def quantities(runs: pd.DataFrame) -> dict[str, str]:
    """Return the numeric columns with values in these runs, and their axis names."""
    scores = {name: f"{name.removeprefix(DOWNSTREAM)} (downstream score)" for name in _columns(runs, DOWNSTREAM)}
    named = _by_objective(QUANTITIES, {*runs[OBJECTIVE].eq("rtd")} if OBJECTIVE in runs else set())
    return {name: words for name, words in (named | scores).items() if name in runs and runs[name].notna().any()}


def _by_objective(labels: Mapping[str, str], detects: set[bool]) -> dict[str, str]:
    """Return axis labels for runs by whether they detect replaced tokens."""
    others = {} if True not in detects else _OF_EITHER if False in detects else _OF_DETECTING
    return {name: others.get(name, label) for name, label in labels.items()}


def kinds(runs: pd.DataFrame) -> list[str]:
    """Return the columns in which these runs differ: sizes first, then other numbers and words of few values."""
    named = [*SHAPE, "sweep", "setting", "shape", "state", "seed", *_columns(runs, *_CONFIGURED)]
    differing = [name for name in dict.fromkeys(named) if name in runs and runs[name].nunique() > 1]
    return [name for name in differing if is_numeric_dtype(runs[name]) or runs[name].nunique() <= MOST_KINDS]


def validations(runs: pd.DataFrame) -> list[str]:
    """Return the validation sets of these runs, the one with most usable runs first."""
    counts = runs["left_out"].isna().groupby(runs["validation"]).agg(["sum", "size"])
    return counts.sort_values(["sum", "size"], ascending=False, kind="stable").index.tolist()


def comparable(runs: pd.DataFrame, axes: Iterable[str], validation: str) -> pd.DataFrame:
    """Return the runs for these axes: of one validation set if an axis is measured on it."""
    return runs[runs["validation"] == validation] if LOSSES.keys() & set(axes) else runs


def _columns(runs: pd.DataFrame, *beginnings: str) -> list[str]:
    return sorted(name for name in map(str, runs) if name.startswith(beginnings))


def ended_runs(library: Library, names: Iterable[str]) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return `runs_in` of some sweeps, read anew where one has changed."""
    shots = [library.snapshot(name) for name in names]
    key, versions = ("table", *(one.name for one in shots)), [one.version for one in shots]
    return library.kept(key, versions, lambda: runs_in({one.name: one.folder for one in shots}))


def points(library: Library, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the ended runs of `sweeps` as columns; `axes` and `kinds` say which can be plotted and grouped by.

    `left_out` is why laws do not use a run; `validation` names its validation set, since losses compare only on one.
    """
    runs, problems = ended_runs(library, several(asked.get("sweeps", "")))
    axes, groups = quantities(runs), kinds(runs)
    sizes = ["architecture.vocabulary", "data.sequence_length", "recipe.batch_tokens", *SHAPE]
    shown = dict.fromkeys(
        ["run_id", "sweep", "shape", "replicates", "setting", "state", "seed", "left_out", "validation", *sizes]
    )
    columns = [name for name in dict.fromkeys((*shown, *axes, *groups)) if name in runs]
    return {
        "axes": axes,
        "on_one_validation": list(LOSSES),
        "higher_is_better": [name for name in axes if is_better_higher(name)],
        "kinds": groups,
        "validations": validations(runs) if len(runs) else [],
        "columns": {name: _plain(runs[name]) for name in columns},
        "problems": [f"{name}: {problem}" for name, problem in problems.items()],
    }


def _plain(column: pd.Series[Any]) -> list[Any]:
    return column.astype(object).where(column.notna(), None).tolist()


def importances(library: Library, asked: Mapping[str, str]) -> dict[str, Any]:
    """How much each knob of a `sweep` matters for a `target`, by Optuna's `evaluator`; `why_not` says why there are none.

    PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255) says which knobs reach the best tenth of the runs; fANOVA (Hutter et al.
    2014) says which knobs explain the variance over all runs, by a random forest. Only completed runs on the first validation
    set count; seeds are repetitions. The negative is used of what is better when higher.
    """
    name, target = asked.get("sweep", ""), asked.get("target", "")
    evaluator: Evaluator = "fanova" if asked.get("evaluator") == "fanova" else "ped-anova"
    ended, _ = ended_runs(library, [name])
    if target not in ended:
        return {"importances": {}, "why_not": "No run of this sweep has this quantity."}
    runs = comparable(ended, (target,), validations(ended)[0])
    runs = runs[(runs["state"] == "COMPLETED") & runs[target].notna()]
    knobs = [knob for knob in kinds(runs) if knob.startswith(_KNOBS) and runs[knob].notna().all()]
    if len(runs) < FEWEST_RUNS or not knobs:
        why = f"Importances need {FEWEST_RUNS} completed runs that differ in a knob; there are {plural(len(runs), 'run')}."
        return {"importances": {}, "why_not": why}
    if missing := [package for package in ("optuna", "sklearn") if find_spec(package) is None]:
        return {"importances": {}, "why_not": f"Importances need {' and '.join(missing)}: pip install optuna scikit-learn"}
    values = runs[target].astype(float) * (-1 if is_better_higher(target) else 1)
    key, version = ("importances", evaluator, target, name), library.snapshot(name).version
    return {"importances": library.kept(key, version, lambda: _importances(runs[knobs], values, evaluator)), "runs": len(runs)}


def is_better_higher(quantity: str) -> bool:
    """Whether a quantity is better when it is higher, like accuracy, or when lower, like loss and seconds."""
    return quantity in HIGHER_IS_BETTER or quantity.startswith(DOWNSTREAM)


def _importances(knobs: pd.DataFrame, values: pd.Series[float], evaluator: Evaluator) -> dict[str, float]:
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spaces = {str(name): _space(knobs[name]) for name in knobs}
    study = optuna.create_study()
    rows = knobs.astype(object).to_dict("records")
    study.add_trials(
        [
            optuna.trial.create_trial(
                params={name: _value(row[name], space) for name, space in spaces.items()}, distributions=spaces, value=value
            )
            for row, value in zip(rows, values.tolist(), strict=True)
        ]
    )
    chosen = PedAnovaImportanceEvaluator() if evaluator == "ped-anova" else FanovaImportanceEvaluator(seed=0)
    try:
        importances = get_param_importances(study, evaluator=chosen)
    except (ValueError, RuntimeError) as error:
        raise InputError.at("importances", f"cannot be estimated from these runs: {error}") from None
    return {name: float(share) for name, share in importances.items()}


def _space(column: pd.Series[Any]) -> BaseDistribution:
    """Numbers on a logarithmic scale where they are positive, all else as categories."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if is_numeric_dtype(column) and not is_bool_dtype(column):
        low, high = float(column.min()), float(column.max())
        return FloatDistribution(low, high, log=low > 0)
    return CategoricalDistribution(sorted(column.astype(str).unique().tolist()))


def _value(value: Any, space: Any) -> float | str:
    return str(value) if hasattr(space, "choices") else float(value)


def several(words: str) -> list[str]:
    """Parts that commas divide; a doubled comma is one of a part."""
    return [part.replace("\0", ",") for part in words.replace(",,", "\0").split(",") if part]


def curves(library: Library, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the curve of each run of a sweep that logged a `metric`, of `runs` or of all, and the metrics that there are.

    Without a metric it is the validation loss, or the training loss if the sweep is live or no run was validated twice, or else
    the first. The last row of a step counts.
    """
    shot, ids = library.snapshot(asked.get("sweep", "")), frozenset(several(asked.get("runs", "")))
    metric, x = asked.get("metric", ""), asked.get("x", "")
    runs = [run for name, run in shot.runs.items() if not ids or name in ids][:MOST_CURVES]
    logged: dict[str, dict[str, NDArray[np.float64]]] = {}
    problems: list[str] = []
    for run in runs:
        try:
            logged[run.run_id] = library.curves(run)
        except UNREADABLE as error:
            problems.append(str(error))
    metrics = sorted({name for columns in logged.values() for name in columns if name not in AXES}, key=_usual)
    x = x if x in AXES else next(iter(AXES))
    most = min(MOST_POINTS, max(FEWEST_POINTS, POINTS_OF_ALL // max(1, len(runs))))
    if metric not in metrics:
        validated = (_curve(columns, x, "val/loss", most) for columns in logged.values())
        several_times = any(curve is not None and len(curve["x"]) > 1 for curve in validated)
        usual = "val/loss" if several_times and not shot.live else "train/loss"
        metric = usual if usual in metrics else next(iter(metrics), "")
    labels = _by_objective(WORDS, {run.config.recipe.detects_replaced for run in runs})
    return {
        "metrics": {name: labels.get(name, name) for name in metrics},
        "axes": AXES,
        "metric": metric,
        "x": x,
        "curves": {name: curve for name, columns in logged.items() if (curve := _curve(columns, x, metric, most)) is not None},
        "problems": problems,
        "left_out": max(0, len(ids or shot.runs) - MOST_CURVES),
    }


def _usual(metric: str) -> tuple[int, str]:
    """Return the known metrics first, in their order."""
    known = list(WORDS)
    return known.index(metric) if metric in known else len(known), metric


def _curve(columns: dict[str, NDArray[np.float64]], x: str, metric: str, most: int) -> dict[str, list[float]] | None:
    if metric not in columns or x not in columns:
        return None
    there = np.isfinite(columns[metric]) & np.isfinite(columns[x])
    at, values = columns[x][there], columns[metric][there]
    if not len(at):
        return None
    last = np.append(np.diff(at) != 0, True)
    at, values = at[last], values[last]
    kept = np.unique(np.linspace(0, len(at) - 1, min(len(at), most)).round().astype(int))
    return {"x": at[kept].tolist(), "y": values[kept].tolist()}
