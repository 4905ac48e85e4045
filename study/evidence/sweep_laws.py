"""The laws that a sweep's cells determine, each fitted with its forecast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from study.base.errors import InputError
from study.base.quantities import plural
from study.counting.architecture import SIZES
from study.evidence.families import of_equal_size
from study.evidence.ledgers import LEDGER_COLUMNS, table_of, usable, validation_names
from study.laws.catalogue import LAWS, find_law
from study.laws.estimation import DEFAULT_SETTINGS
from study.laws.law_fits import LawFit, fit_table
from study.laws.reading import TableQuery, differing_columns, explain_incomparable_losses, explain_separate_laws
from study.laws.tables import RunTable
from study.store.sweep_folder import SweepFolder

MOST_VARIANTS = 6
"""Maximum number of variants with laws in the answer; `study fit` fits any of them."""

LEDGER_LAWS = {
    f"{law.name}: {law.formula}": law.name
    for law in LAWS.values()
    if law.predicts == "loss" and set(law.variables) <= set(LEDGER_COLUMNS)
}
"""Laws whose variables the ledger has: name by name and formula."""


@dataclass(frozen=True)
class SweepLaws:
    """Fitted laws in the order in which they are shown; `reasons` say why there are no others."""

    fits: tuple[LawFit, ...]
    reasons: tuple[str, ...]

    @property
    def shown(self) -> LawFit | None:
        """The first law that converged, else the first with known constants."""
        fits = [law_fit for law_fit in self.fits if law_fit.fit.usable]
        return next((law_fit for law_fit in fits if law_fit.fit.status == "converged"), next(iter(fits), None))


def fit_ledger(ledger: RunTable, law_name: str, parameters: str, flops: str, where: str | None = None) -> LawFit:
    """Fit a law to a ledger with these columns as N and C; C orders the runs for the forecast.

    Raises InputError as study.laws.law_fits.fit_table does.
    """
    read = ("flops", *find_law(law_name).variables)
    roles = {role: column for role, column in {"parameters": parameters, "flops": flops}.items() if role in read}
    return fit_table(TableQuery(ledger, roles, where=where), law_name)


def sweep_laws(folder: Path, ledger: pd.DataFrame, settings: Sequence[str], searched: bool) -> SweepLaws:
    """Fit the laws whose variables a sweep varies to its usable runs at their cells' best knobs.

    Loss in parameters and tokens if both vary, else in the one that does; if depth and width vary too, also the law in both; at
    one budget the law in the sizes of the shape, if these vary independently. Where a sum of powers omits something, Kaplan's
    law is fitted, too; of the two the one that forecasts better comes first. The index of `ledger` gives the order of the
    records. Shapes of equal non-embedding parameters have one size; if no shape has two budgets, tokens show nothing. Runs that
    differ in `settings` have separate laws, up to MOST_VARIANTS. No law is fitted to several validation sets or masks, nor to a
    search, which gives few shapes a good rate and prunes others; a law with undetermined constants is left out.
    """
    if ledger.empty:
        return SweepLaws((), ("No law is fitted: no run has ended",))
    used = usable(ledger, SweepFolder(folder).trial_seeds())
    if used.empty:
        return SweepLaws((), ("No law is fitted: no run is usable",))
    if searched:
        return SweepLaws((), ("No law is fitted: a search finds the best rate of few sizes and may prune the others",))
    if not used["tokens"].any():
        return SweepLaws((), ("No law is fitted: nothing was trained",))
    remedy = "fit some with study fit of this folder and"  # no path, so that answers do not depend on location
    if reason := explain_incomparable_losses(used, validation_names(used), remedy):
        return SweepLaws((), (f"No law is fitted: {reason}",))
    if not (differing := differing_columns(used, settings)):
        return _laws(TableQuery(table_of(folder, ledger.sort_index())), used)
    if len(used[differing].drop_duplicates()) > MOST_VARIANTS or used[differing].isna().any(axis=None):
        return SweepLaws((), (f"No law is fitted: {explain_separate_laws(used, settings, remedy)}",))
    table = table_of(folder, ledger.sort_index())
    by_filter = {where: _laws(TableQuery(table, where=where), runs) for where, runs in by_variant(used, differing)}
    variants_of: dict[str, list[str]] = {}
    for where, laws in by_filter.items():
        for reason in laws.reasons:
            variants_of.setdefault(reason, []).append(where)
    reasons = (
        text if len(named) == len(by_filter) else f"{text} (where {'; '.join(named)})" for text, named in variants_of.items()
    )
    return SweepLaws(tuple(fit for laws in by_filter.values() for fit in laws.fits), tuple(reasons))


def by_variant(used: pd.DataFrame, columns: list[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the runs of each variant, by the differing columns, with its --where filter."""
    for values, runs in used.groupby(columns, sort=False):
        plain = (value.item() if isinstance(value, np.generic) else value for value in values)
        yield " and ".join(f"{column} == {value!r}" for column, value in zip(columns, plain, strict=True)), runs


def _laws(source: TableQuery, used: pd.DataFrame) -> SweepLaws:
    names = _candidates(used)
    if not names:
        return SweepLaws((), ("No law is fitted: the usable runs are of one size, and no shape has two budgets",))
    results: list[LawFit | list[str]] = []
    for name in names:
        one = _fitted(source, name)
        others = [_fitted(source, one.beside)] if isinstance(one, LawFit) and one.beside else []
        results += sorted([one, *others], key=_forecast_error)
    fits = tuple(one for one in results if isinstance(one, LawFit))
    return SweepLaws(fits, tuple(reason for one in results if isinstance(one, list) for reason in one))


def _fitted(source: TableQuery, name: str) -> LawFit | list[str]:
    """Return the fit of a law, or the reasons why there is none."""
    try:
        fitted = fit_table(source, name, DEFAULT_SETTINGS)
    except InputError as error:
        problems = (problem if problem.place == name else f"{name}: {problem}" for problem in error.problems)
        return [f"No fit of {problem}" for problem in problems]
    if fitted.fit.intervals or fitted.fit.status == "failed":
        return fitted
    if fitted.fit.resamples.failed:
        return [f"No fit of {name}: its resamples do not converge"]
    points = plural(fitted.fit.observations.settings(fitted.fit.law), "different point")
    return [f"No fit of {name}: other constants fit the {points} equally well"]


def _forecast_error(fitted: LawFit | list[str]) -> float:
    if isinstance(fitted, list) or isinstance(fitted.forecast, str):
        return np.inf
    return float(np.mean(np.abs(fitted.forecast.errors)))


def _candidates(used: pd.DataFrame) -> list[str]:
    varies = {role: used[column].nunique() > 1 for role, column in LEDGER_COLUMNS.items() if column in used}
    varies["parameters"] = len(list(of_equal_size(used["parameters_non_embedding"], float))) > 1
    if varies["parameters"] and varies["tokens"]:
        return ["chinchilla", *(["width-depth-tokens"] if varies["depth"] and varies["width"] else [])]
    if varies["parameters"]:
        return ["power-floor", *(["shape"] if _independent_sizes(used) else [])]
    of_one_shape = used.groupby([LEDGER_COLUMNS[size] for size in SIZES])["tokens"].nunique()
    return ["tokens-floor"] if of_one_shape.max() > 1 else []


def _independent_sizes(used: pd.DataFrame) -> bool:
    sizes = np.log(used[[LEDGER_COLUMNS[size] for size in SIZES]].to_numpy(dtype=float))
    return bool(np.linalg.matrix_rank(np.column_stack([np.ones(len(sizes)), sizes]), tol=1e-6) == 1 + len(SIZES))
