"""The laws that the runs of a sweep allow, as curves with bands, and what one predicts for an encoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from study.base.errors import UNREADABLE, InputError
from study.base.quantities import compact
from study.base.text import joined, status_words
from study.config.knobs import MASKED_SHARE
from study.config.run_config import LEFT_OUT, describe_knobs, ledger_value
from study.counting.architecture import NOT_IN_MLM, SIZES, Architecture
from study.counting.parameters import MASKING_RATE, TOTALS, parameters
from study.dashboard.library import Library, Snapshot
from study.evidence.cells import PER_BYTE
from study.evidence.comparisons import EQUAL_BUDGETS_WITHIN
from study.evidence.downstream import score_law, with_comparable_losses
from study.evidence.ledgers import LEDGER_FLOPS, open_ledger, usable
from study.evidence.score_points import score_points
from study.evidence.sweep_laws import LEDGER_LAWS, by_variant
from study.laws.catalogue import find_law
from study.laws.estimation import DEFAULT_SETTINGS
from study.laws.forecasting import Forecast
from study.laws.law_fits import LawFit, fit_table
from study.laws.observations import VOCABULARY
from study.laws.reading import TableQuery, differing_columns, read_observations
from study.laws.two_steps import TwoSteps
from study.report.plain_words import plain_words
from study.shapes.accounts import training_flops
from study.store.records import validation_of
from study.store.sweep_folder import SweepFolder

if TYPE_CHECKING:
    from study.plotting.law_fit import LawTarget

MOST_VARIANTS = 12
"""The most variants whose laws are offered."""

MOST_AHEAD = 6
"""The most laws that are fitted before one is chosen."""


@dataclass(frozen=True)
class LawOffer:
    """A law that can be fitted to a sweep's ledger: to the rows `where`, to all if None."""

    law: str
    where: str | None

    @property
    def key(self) -> str:
        """What an address holds of it."""
        return "|".join(filter(None, (self.law, self.where)))

    @property
    def words(self) -> str:
        """It in words, for a menu."""
        where = "" if self.where is None else f", {self.where.replace('architecture.', '').replace('recipe.', '')}"
        return f"{self.law}: {find_law(self.law).formula}{where}"


def offers_of(library: Library, shot: Snapshot) -> list[LawOffer]:
    """Return the laws that the ledger of a sweep allows; empty without a ledger or enough runs."""
    return library.kept(("offers", shot.name), shot.version, lambda: _offers(shot.folder))


def _offers(folder: SweepFolder) -> list[LawOffer]:
    try:
        table = open_ledger(folder.path)
        used = usable(table.frame, folder.trial_seeds())
        differing = differing_columns(used, folder.varied())
    except UNREADABLE:
        return []
    if len(used) and used[differing].isna().any(axis=None):
        return []
    variants = [where for where, _ in by_variant(used, differing)] if differing else [None]
    queries = [TableQuery(table, where=where) for where in variants[:MOST_VARIANTS]]
    return [LawOffer(name, query.where) for query in queries for name in _READ if _fits(query, name)]


_READ = sorted(
    (name for name in LEDGER_LAWS.values() if set(find_law(name).variables) <= {"parameters", "tokens", "flops", *SIZES}),
    key=lambda name: name not in ("chinchilla", "power-floor", "tokens-floor"),
)
"""The laws that read nothing but sizes and amounts; those of a sweep's answer come first."""


def _fits(query: TableQuery, name: str) -> bool:
    """Whether there are enough rows for a law, which vary in all that it reads."""
    law = find_law(name)
    try:
        read_observations(query, law).check(law)
    except InputError:
        return False
    return True


def _fitted(library: Library, shot: Snapshot, key: str, count: str) -> LawFit:
    """Return the fit of an offer with a count of parameters or FLOPs; raises InputError for what is not offered."""
    offer = next((one for one in offers_of(library, shot) if one.key == key), None)
    if offer is None:
        raise InputError.at("law", "is none that the runs of this sweep allow; choose another")
    reads = find_law(offer.law).variables
    roles = {role: count for role, counts in _COUNTS.items() if role in reads and count in counts}

    def fit() -> LawFit:
        query = TableQuery(open_ledger(shot.folder.path), roles, where=offer.where)
        return fit_table(query, offer.law, DEFAULT_SETTINGS)

    return library.kept(("law", shot.name, key, *roles.items()), shot.version, fit)


_COUNTS = {"parameters": TOTALS, "flops": LEDGER_FLOPS}


def offers(library: Library, asked: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the laws that a `sweep` allows, for a menu.

    The first are fitted meanwhile, with this `count`, if no run is trained.
    """
    shot, count = library.snapshot(asked.get("sweep", "")), asked.get("count", "")
    offered = offers_of(library, shot)
    if not shot.live:
        library.make_ahead(partial(_fitted, library, shot, one.key, count) for one in offered[:MOST_AHEAD])
    return [{"key": one.key, "words": one.words} for one in offered]


def law_lines(library: Library, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a sweep's `law` as curves against each of its variables, with 95% bands, also beyond its budgets, and its runs.

    `count` is the column of N or C, if it is one. A curve belongs to a `level` of another variable; `columns` names the column
    of each variable. `at` is a target, such as `N=1e9, D=2e10`, without which that of a goal is shown; a curve leads to it.
    """
    from study.plotting.law_fit import frame  # matplotlib is not waited for before a law is drawn

    shot = library.snapshot(asked.get("sweep", ""))
    fitted = _fitted(library, shot, asked.get("law", ""), asked.get("count", ""))
    data = frame(fitted, _targets(library, shot, fitted, asked))
    law, observations = fitted.fit.law, fitted.fit.observations
    curves = data[data["kind"].isin(("curve", "approach"))]
    held = set(fitted.forecast.labels) if isinstance(fitted.forecast, Forecast) else set()
    run_ids = fitted.query.table.frame["run_id"]
    outcome = fitted.forecast
    return {
        "formula": law.formula,
        "status": status_words(fitted.fit.status, fitted.fit.reasons),
        "estimates": {
            name: [fitted.fit.estimates[name], *fitted.fit.intervals.get(name, (None, None))] for name in law.parameters
        },
        "n": fitted.fit.n,
        "columns": {name: observations.roles.get(name, name) for name in law.variables},
        "curves": [
            {
                "variable": rows["variable"].iloc[0],
                "by": rows["by"].iloc[0],
                "level": None if np.isnan(rows["level"].iloc[0]) else compact(float(rows["level"].iloc[0])),
                "to_target": kind == "approach",
                **{name: rows[name].tolist() for name in ("size", "law", "low", "high", "beyond")},
            }
            for (kind, *_), rows in curves.groupby(["kind", "variable", "level"], dropna=False, sort=False)
        ],
        "targets": [
            {"variable": one.variable, "x": one.size, "y": one.law, "low": one.low, "high": one.high, "words": one.row}
            for one in data[data["kind"] == "target"].itertuples()
        ],
        "runs": sorted({str(run_ids.iloc[_row_of(label)]) for label in observations.labels}),
        "held_out": sorted({str(run_ids.iloc[_row_of(label)]) for label in held}),
        "forecast": f"mean error {outcome.mean_error}, {outcome.coverage}" if isinstance(outcome, Forecast) else outcome,
    }


def _targets(library: Library, shot: Snapshot, fitted: LawFit, asked: Mapping[str, str]) -> list[LawTarget]:
    """Return the target that was asked for, else that of the sweep's goal."""
    from study.plotting.law_figures import targets_of, targets_of_goal

    if not (at := asked.get("at", "").strip()):
        return targets_of_goal(shot.folder.goal_path(), fitted)
    key = ("target", shot.name, asked.get("law", ""), asked.get("count", ""), at)
    return library.kept(key, shot.version, lambda: targets_of(fitted, [at], "Target"))


def _row_of(label: str) -> int:
    """Return the position of a row in its table by its label (study.laws.tables.RunTable.labels), of merged rows the first."""
    return int(label.split()[1].rstrip(",")) - 1


def tasks_of(library: Library, shot: Snapshot) -> dict[str, pd.DataFrame]:
    """Return the scored encoders of each task of a sweep (study.evidence.score_points); empty without scores or a ledger."""

    def read() -> dict[str, pd.DataFrame]:
        try:
            points = score_points(shot.folder, shot.folder.read_ledger())
        except UNREADABLE:
            return {}
        return {} if points.empty else {str(task): rows.reset_index(drop=True) for task, rows in points.groupby("task")}

    return library.kept(("tasks", shot.name), shot.version, read)


def prediction_of(
    library: Library, shot: Snapshot, key: str, task: str, architecture: Architecture, tokens: float, sequence_length: int
) -> dict[str, Any]:
    """Return the loss that a law predicts for an encoder, with the 95% interval of the law and how far it extrapolates.

    The interval holds the uncertainty of the law's constants, not the scatter of single runs; beyond the runs it is widened
    where the forecast of the largest missed. `beyond` also says in what else the encoder differs from the law's runs. With a
    `task` that the sweep was scored on, `score` is that of the predicted loss.
    """
    law = _fitted(library, shot, key, "")
    fitted = law.fit
    _, flops = training_flops(architecture, sequence_length, _masking_rate(law))
    values = _values(architecture, tokens, flops, fitted.observations.roles)
    at = {name: np.array([values[name]]) for name in fitted.law.variables}
    low, high = law.interval_at(at)
    beyond = []
    for name in fitted.law.variables:
        least, most = float(fitted.observations.columns[name].min()), float(fitted.observations.columns[name].max())
        times = max(values[name] / most, least / values[name])
        if times > 1 + EQUAL_BUDGETS_WITHIN:  # whole steps are a little fewer tokens than their budget
            way = "above the largest" if values[name] > most else "below the smallest"
            beyond.append(f"{name} is {times:.3g} times {way} that the law was fitted to")
    vocabulary = fitted.observations.alike.get(VOCABULARY)
    if vocabulary is not None and vocabulary != architecture.vocabulary:
        beyond.append(f"losses over other vocabularies do not compare, and the law's runs have {vocabulary:,} word pieces")
    beyond += _unlike_its_runs(_ledger_rows(law), architecture, sequence_length)
    tasks = tasks_of(library, shot)
    return {
        "score": _score(library, shot, law, task, tasks[task], at) if task in tasks else None,
        "loss_nats": float(fitted.predict(at)[0]),
        "low": float(low[0]),
        "high": float(high[0]),
        "beyond": beyond,
        "status": status_words(fitted.status, fitted.reasons),
        "n": fitted.n,
    }


_BESIDE = {*SIZES, "vocabulary", "positions", "segments", *NOT_IN_MLM}
"""The fields of an architecture that a law or its caution about vocabularies reads, or that no loss depends on."""


def _unlike_its_runs(runs: pd.DataFrame, architecture: Architecture, sequence_length: int) -> Iterator[str]:
    """Yield what all runs of a law share and an encoder, or the length that it reads, differs in."""
    for name in (name for name, field in Architecture.model_fields.items() if not field.exclude and name not in _BESIDE):
        knob = f"architecture.{name}"
        shared = runs[knob].unique().tolist() if knob in runs else [LEFT_OUT[knob]]
        theirs, own = ({knob: value} for value in (shared[0], ledger_value(knob, getattr(architecture, name))))
        if len(shared) == 1 and (its := describe_knobs(own)) != (of_runs := describe_knobs(theirs)):
            in_words = plain_words((own, theirs))
            yield f"this encoder has {in_words(its)}, the law's runs {in_words(of_runs)}"
    lengths = runs["data.sequence_length"].unique().tolist() if "data.sequence_length" in runs else []
    if lengths and sequence_length not in lengths:
        read = joined([f"{length:g}" for length in sorted(lengths)], "or")
        yield f"losses over other lengths do not compare, and the law's runs read sequences of {read} tokens"


def _score(
    library: Library, shot: Snapshot, law: LawFit, task: str, points: pd.DataFrame, at: dict[str, Any]
) -> dict[str, Any]:
    """Return the score of a task at the predicted loss, with a 95% interval over the constants of both laws."""
    facts = {"task": task, "metric": str(points["metric"].iloc[0])}
    if (unit := points["unit"].iloc[0]) == PER_BYTE:
        return facts | {"why_not": f"scores are related to losses in {unit}, and the law gives nats per masked token"}
    run, of_loss = _ledger_rows(law).iloc[0], law.fit
    validated = validation_of(shot.folder.run(str(run["run_id"])).config(), str(run["data_fingerprint"]))
    if validated != with_comparable_losses(points)["validation"].iloc[0]:
        return facts | {
            "why_not": "scores are related to losses of other text, masks or objective than those of the law's runs"
        }
    of_score = library.kept(("score", shot.name, task), shot.version, lambda: score_law(points))
    if isinstance(of_score, str):
        return facts | {"why_not": of_score}
    steps = TwoSteps(of_loss, of_score)
    both = len(of_loss.resampled) and len(of_score.resampled)
    low, high = of_score.interval(steps.predictions(at)) if both else ([np.nan], [np.nan])
    loss, losses = float(of_loss.predict(at)[0]), of_score.observations.columns["loss"]
    outside = max(float(losses.min()) - loss, loss - float(losses.max()))
    way = "below the lowest" if loss < losses.min() else "above the highest"
    return facts | {
        "value": float(steps.predict(at)[0]),
        "low": float(low[0]),
        "high": float(high[0]),
        "beyond": f"the loss is {outside:.3g} nats {way} of the scored encoders" if outside > 0 else None,
        "status": status_words(of_score.status, of_score.reasons),
        "n": of_score.n,
    }


def _masking_rate(law: LawFit) -> float:
    """Return the share of the tokens that a law's runs mask in training, their mean."""
    rates = _ledger_rows(law).reindex(columns=[MASKED_SHARE, "masking.rate"]).bfill(axis=1)[MASKED_SHARE]
    return float(rates.fillna(MASKING_RATE).mean())


def _ledger_rows(law: LawFit) -> pd.DataFrame:
    """Return the rows of a ledger that a law was fitted to."""
    return law.query.table.frame.iloc[[_row_of(label) for label in law.fit.observations.labels]]


def _values(architecture: Architecture, tokens: float, per_token: Mapping[str, float], roles: Any) -> dict[str, float]:
    """Return what laws read of an encoder, by the columns that the law was fitted to."""
    values: dict[str, float] = {size: float(getattr(architecture, size)) for size in SIZES}
    values["tokens"] = tokens
    values["parameters"] = float(parameters(architecture).totals()[roles.get("parameters", TOTALS[0])])
    values["flops"] = per_token[roles.get("flops", LEDGER_FLOPS[0])] * tokens
    return values
