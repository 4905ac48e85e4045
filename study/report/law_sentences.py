"""The laws of a sweep in words, their forecasts, and tokens that follow no law."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from study.base.quantities import plural
from study.base.text import shape_and_variant, status_words
from study.evidence.evidence import Evidence
from study.evidence.gains import Rise
from study.laws.forecasting import Forecast
from study.laws.law_fits import LawFit


def law_findings(evidence: Evidence) -> list[str]:
    """Each law of the ledger with its status, intervals and forecast; or why there is none yet."""
    laws = evidence.laws
    return [*map(law_sentence, laws.fits), *(f"{reason}." for reason in laws.reasons), *_rises(evidence.rises)]


def _rises(rises: Sequence[Rise]) -> Iterator[str]:
    """Where doubling the tokens buys significantly more than the doubling before; the widest in full."""
    decided = [rise for rise in rises if rise.decided]
    if not decided:
        return
    steepest = max(decided, key=lambda rise: rise.nats_per_doubling.estimate)
    first, second = (f"{gain.nats_lowered_per_doubling:+.3f} nats" for gain in (steepest.earlier, steepest.later))
    shape = shape_and_variant(steepest.earlier.shape, steepest.earlier.setting)
    steps = (
        f"{shape} {first} from {steepest.earlier.shorter} to {steepest.later.shorter}, {second} on to {steepest.later.longer}"
    )
    where = f"In {len(decided)} of {plural(sum(rise.p_value_holm is not None for rise in rises), 'condition')}"
    yield (
        f"{where} a doubling of the tokens buys more than the one before (Holm, 5%): {steps}. No power law in the tokens does "
        "so; runs that are just leaving the plateau of bags of words do, and larger budgets may follow one."
    )


def law_sentence(fitted: LawFit) -> str:
    """A law's fit in one sentence: status, n, exponents with intervals, and forecast of held-out runs."""
    law = fitted.fit.law
    status = status_words(fitted.fit.status, fitted.fit.reasons)
    columns = ", ".join(fitted.fit.observations.roles.get(name, name) for name in law.variables)
    points = fitted.fit.observations
    n = f"n = {fitted.fit.n}" if points.n_clusters == fitted.fit.n else f"n = {points.counted}"
    if not fitted.fit.usable:
        return f"{fitted.name}, {law.formula}, over {columns}: {status}, {n}."
    parts = filter(None, (fitted.exponents_in_words(), *_other_counts(fitted), _forecast_words(fitted.forecast)))
    return f"{fitted.name}, {law.formula}, over {columns}: {status}, {n}; {'; '.join(parts)}."


def _other_counts(fitted: LawFit) -> Iterator[str]:
    """The exponents with the other count of N, with or without embeddings."""
    for count, other in fitted.with_and_without_embeddings.items():
        if other is not fitted and not isinstance(other, str) and other.fit.usable and other.fit.intervals:
            yield f"with {count} as N {other.exponents_in_words()}"


def _forecast_words(forecast: Forecast | str) -> str:
    if isinstance(forecast, str):
        return f"forecast {forecast}"
    if forecast.status == "failed":
        return "forecast none: the fit to the smaller runs failed"
    return (
        f"forecast of {plural(len(forecast.labels), 'row')} beyond the budgets fitted, up to {forecast.extrapolation:.3g} "
        f"times the largest ({status_words(forecast.status)}): held-out error {forecast.mean_error}, {forecast.coverage}"
    )
