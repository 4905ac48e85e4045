"""The laws of a sweep in plain words, with what they forecast, and where the tokens follow none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from study.base.quantities import plural
from study.base.text import shape_and_variant, status_words
from study.evidence.evidence import Evidence
from study.evidence.gains import Rise
from study.laws.forecasting import Forecast
from study.laws.law_fits import LawFit


def law_findings(evidence: Evidence) -> list[str]:
    """Each law that the ledger can tell, with its status, intervals and forecast; or why there is none, or can be none yet."""
    laws = evidence.laws
    return [*map(_law_sentence, laws.fits), *(f"{reason}." for reason in laws.reasons), *_rises(evidence.rises)]


def _rises(rises: Sequence[Rise]) -> Iterator[str]:
    """Where each doubling of the tokens buys more than the one before, beyond chance; the widest in full."""
    decided = [rise for rise in rises if rise.decided]
    if not decided:
        return
    told = max(decided, key=lambda rise: rise.nats_per_doubling.estimate)
    first, second = (f"{gain.nats_lowered_per_doubling:+.3f} nats" for gain in (told.earlier, told.later))
    shape = shape_and_variant(told.earlier.shape, told.earlier.setting)
    steps = f"{shape} {first} from {told.earlier.shorter} to {told.later.shorter}, {second} on to {told.later.longer}"
    where = f"In {len(decided)} of {plural(sum(rise.p_value_holm is not None for rise in rises), 'place')}"
    yield (
        f"{where} a doubling of the tokens buys more than the one before (Holm, 5%): {steps}. No power law in the tokens does "
        "so; runs that are just leaving the plateau of bags of words do, and larger budgets may follow one."
    )


def _law_sentence(found: LawFit) -> str:
    """A law's fit in one sentence: status, n, exponents with intervals, and what it said of the runs held out."""
    law = found.fit.law
    status = status_words(found.fit.status, found.fit.reasons)
    columns = ", ".join(found.fit.observations.roles.get(name, name) for name in law.variables)
    points = found.fit.observations
    n = f"n = {found.fit.n}" if points.n_clusters == found.fit.n else f"n = {points.counted}"
    if not found.fit.usable:
        return f"{found.name}, {law.formula}, over {columns}: {status}, {n}."
    told = filter(None, (_exponents(found), _forecast_words(found.forecast)))
    return f"{found.name}, {law.formula}, over {columns}: {status}, {n}; {'; '.join(told)}."


def _exponents(found: LawFit) -> str:
    """The exponents with their intervals."""
    intervals = ((name, *found.fit.intervals[name]) for name in found.fit.law.exponents)
    return ", ".join(
        f"{name} {found.fit.estimates[name]:.3g} (95% interval {low:.3g} to {high:.3g})" for name, low, high in intervals
    )


def _forecast_words(told: Forecast | str) -> str:
    """What a forecast of the largest runs came to, in words."""
    if isinstance(told, str):
        return f"forecast {told}"
    if told.status == "failed":
        return "forecast none: the fit to the smaller runs failed"
    return (
        f"forecast of {plural(len(told.labels), 'row')} beyond the budgets fitted, up to {told.extrapolation:.3g} times the "
        f"largest ({status_words(told.status)}): held-out error {told.mean_error}, {told.coverage}"
    )
