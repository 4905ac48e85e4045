"""All figures of a law's fit to a table, from the table alone."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from study.fitting.forecasting import HELD_OUT
from study.fitting.law_fits import fit_table
from study.fitting.multiverse import explore
from study.fitting.reading import Source
from study.plotting import exponents_by_convention, forecast_against_truth, iso_flop_valleys, law_fit
from study.plotting.style import save_in


def draw_all(source: Source, law: str, into: Path) -> list[Path]:
    """Write every figure that has anything to show into a folder and return the files; the same table gives the same bytes."""
    found = fit_table(source, law)
    figures: dict[str, Figure] = {"law_fit": law_fit.draw(law_fit.frame(found, HELD_OUT), found)}
    if not (forecast := forecast_against_truth.frame(found)).empty:
        figures["forecast_against_truth"] = forecast_against_truth.draw(forecast, found)
    if {"parameters", "tokens"} <= set(found.fit.law.variables) and found.fit.law.predicts == "loss":
        if not (valleys := iso_flop_valleys.frame(found.fit.observations)).empty:
            figures["iso_flop_valleys"] = iso_flop_valleys.draw(valleys)
        sizes = (source.roles["parameters"],) if "parameters" in source.roles else ()
        if not (exponents := exponents_by_convention.frame(explore(source, sizes))).empty:
            figures["exponents_by_convention"] = exponents_by_convention.draw(exponents)
    for name, figure in figures.items():
        save_in(figure, into, name)
    return [into / f"{name}.{kind}" for name in figures for kind in ("svg", "png")]
