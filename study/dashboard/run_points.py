"""The ended runs of some sweeps as points: quantities to plot, knobs to group by, and what each knob matters."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from study.base.errors import InputError
from study.base.quantities import plural
from study.counting.architecture import SHAPE
from study.dashboard.curve_rows import several
from study.dashboard.library import Library
from study.report.exploring import LOSSES, comparable, kinds, quantities, validations

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Evaluator = Literal["ped-anova", "fanova"]
"""How importances are measured: over the best tenth of the runs, or over all."""

_KNOBS = ("architecture.", "recipe.", "data.", "masking.")

FEWEST_RUNS = 10
"""The fewest runs of which importances are told."""


def points(library: Library, asked: Mapping[str, str]) -> dict[str, Any]:
    """The ended runs of `sweeps` as columns; `axes` and `kinds` say which can be plotted and grouped by.

    `left_out` is why laws do not use a run; `validation` names its validation set, since losses compare only on one.
    """
    runs, problems = library.table(several(asked.get("sweeps", "")))
    axes, groups = quantities(runs), kinds(runs)
    sizes = ["architecture.vocabulary", "data.sequence_length", "recipe.batch_tokens", *SHAPE]
    shown = dict.fromkeys(["run_id", "sweep", "shape", "cell", "setting", "state", "seed", "left_out", "validation", *sizes])
    columns = [name for name in dict.fromkeys((*shown, *axes, *groups)) if name in runs]
    return {
        "axes": axes,
        "on_one_validation": list(LOSSES),
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
    set count; seeds are repetitions. For scores the negative is used, as for all that is better when higher.
    """
    name, target = asked.get("sweep", ""), asked.get("target", "")
    evaluator: Evaluator = "fanova" if asked.get("evaluator") == "fanova" else "ped-anova"
    table, _ = library.table([name])
    if target not in table:
        return {"importances": {}, "why_not": "No run of this sweep has this quantity."}
    runs = comparable(table, (target,), validations(table)[0])
    runs = runs[(runs["state"] == "COMPLETED") & runs[target].notna()]
    knobs = [knob for knob in kinds(runs) if knob.startswith(_KNOBS) and runs[knob].notna().all()]
    if len(runs) < FEWEST_RUNS or not knobs:
        why = f"Importances need {FEWEST_RUNS} completed runs that differ in a knob; there are {plural(len(runs), 'run')}."
        return {"importances": {}, "why_not": why}
    if missing := [package for package in ("optuna", "sklearn") if find_spec(package) is None]:
        return {"importances": {}, "why_not": f"Importances need {' and '.join(missing)}: pip install optuna scikit-learn"}
    values = runs[target].astype(float) * (-1 if _is_score(target) else 1)
    key = ("importances", evaluator, target, name, library.snapshot(name).version)
    return {"importances": library.kept(key, lambda: _importances(runs[knobs], values, evaluator)), "runs": len(runs)}


def _is_score(target: str) -> bool:
    return target == "accuracy" or target.startswith("downstream/")


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
        found = get_param_importances(study, evaluator=chosen)
    except (ValueError, RuntimeError) as error:
        raise InputError.at("importances", f"cannot be told of these runs: {error}") from None
    return {name: float(share) for name, share in found.items()}


def _space(column: pd.Series[Any]) -> BaseDistribution:
    """Numbers on a logarithmic scale where they are positive, all else as categories."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if is_numeric_dtype(column) and not is_bool_dtype(column):
        low, high = float(column.min()), float(column.max())
        return FloatDistribution(low, high, log=low > 0)
    return CategoricalDistribution(sorted(column.astype(str).unique().tolist()))


def _value(value: Any, space: Any) -> float | str:
    return str(value) if hasattr(space, "choices") else float(value)
