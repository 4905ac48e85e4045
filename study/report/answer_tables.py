"""The tables of an answer, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from study.base.quantities import compact, error_text, plural, signed
from study.base.text import bullets, status_said, status_words, table_of
from study.config.run_config import describe_knobs
from study.evidence.cells import CellResult, in_words, variant_columns
from study.evidence.evidence import Evidence
from study.evidence.paired import Difference, TestedDifference
from study.laws.estimation import Fit
from study.laws.frontiers import BestSizes, best_sizes
from study.laws.law_fits import LawFit, fit_every_count


def differences(evidence: Evidence, of_shapes: bool) -> str:
    """Every pair of shapes of equal parameters, or of variants of one shape, with interval and status; empty if none."""
    return table_of(
        [
            {
                "family": pair.family,
                "first − second": pair.sides,
                **_test_columns(pair),
                "status": status_words(pair.status),
                "sequences": pair.difference.n_sequences,
                **_seeds(pair.difference),
            }
            for pair in evidence.comparisons.pairs
            if pair.of_shapes == of_shapes
        ]
    )


def _test_columns(tested: TestedDifference) -> dict[str, object]:
    p_value = None if tested.p_value_holm is None else f"{tested.p_value_holm:.2g}"
    return {
        tested.difference.unit: signed(tested.difference.in_unit.estimate_nats),
        "95% interval": tested.difference.bounds,
        "Holm p": p_value,
    }


def _seeds(difference: Difference) -> dict[str, object]:
    first, second = difference.n_seeds
    freedom = None if difference.degrees_of_freedom is None else f"{difference.degrees_of_freedom:.1f}"
    return {"seeds": f"{first} and {second}", "dof of seeds": freedom}


def averages(evidence: Evidence) -> str:
    """Every pair with several conditions, averaged over them; empty if none."""
    return table_of(
        [
            {
                "first − second": average.sides,
                "conditions": len(average.places),
                **_test_columns(average),
                "status": status_words(average.status),
                "least": signed(average.in_unit.least_nats),
                "most": signed(average.in_unit.most_nats),
                **_seeds(average.difference),
            }
            for average in evidence.averages
        ]
    )


def gains(evidence: Evidence) -> str:
    """Every step to a larger depth, width or FFN; empty if none."""
    if not evidence.gains:
        return ""
    rows = [
        {
            "axis": gain.axis,
            "from": gain.smaller,
            "to": gain.larger,
            "budget": gain.budget,
            "variant": gain.setting or None,
            **_test_columns(gain),
            "parameters_encoder added": f"{gain.parameters_added:,}",
            f"{gain.difference.unit} lowered per million": f"{gain.in_unit.nats_lowered_per_million:+.3f}",
        }
        for gain in evidence.gains
    ]
    return f"Ranked by loss lowered per parameter added.\n\n{table_of(rows)}"


def cuts(evidence: Evidence) -> str:
    """Every encoder cut from a trained one, beside the whole; empty if none."""
    return table_of(
        [
            {
                "whole": cut.whole,
                "cut": cut.cut,
                "layers cut": cut.layers,
                "budget": cut.budget,
                cut.difference.unit: signed(cut.difference.in_unit.estimate_nats),
                "95% interval": cut.difference.bounds,
                "parameters_encoder saved": f"{cut.parameters_saved:,}",
            }
            for cut in evidence.cuts
        ]
    )


def spendings(evidence: Evidence) -> str:
    """Every encoder that starts from or learns from another run, beside those from scratch; empty if none."""
    return table_of(
        [
            {
                "first": one.needs,
                "second": one.scratch,
                **_test_columns(one),
                "status": status_words(one.status),
                "own FLOPs": f"{one.own_flops / one.scratch_flops:.2f}×",
                "FLOPs spent": f"{one.spent_flops / one.scratch_flops:.2f}×",
                **_seeds(one.difference),
            }
            for one in evidence.spendings
        ]
    )


def token_gains(evidence: Evidence) -> str:
    """Every step of a shape to a larger budget; empty if none."""
    return table_of(
        [
            {
                "shape": gain.shape,
                "variant": gain.setting or None,
                "from tokens": f"{gain.fewer_tokens:,}",
                "to tokens": f"{gain.more_tokens:,}",
                **_test_columns(gain),
                f"{gain.difference.unit} lowered per doubling": f"{gain.in_unit.nats_lowered_per_doubling:+.3f}",
            }
            for gain in evidence.token_gains
        ]
    )


_BOUND_NOTE = "; of a law on a bound, the exponents alone, which describe these runs and are not to be extrapolated"


def laws(evidence: Evidence) -> str:
    """Every law's parameters with intervals, and its status; empty if none."""
    if not evidence.laws.fits:
        return ""
    usable = [cell for cell in evidence.cells if cell.usable]
    loose = sum(not cell.rates.bracketed for cell in usable)
    intro = f"Cells whose learning rate is not bracketed take part: {loose} of {len(usable)} (see the table of cells).\n\n"
    tables = [table_of([row for law in evidence.laws.fits for row in _law_rows(law)])]
    for law in evidence.laws.fits:
        if counted := law.with_and_without_embeddings:
            rows = [_counted_row(count, one, law.fit.law.parameters) for count, one in counted.items()]
            bound = any(not isinstance(one, str) and one.fit.status == "on_bound" for one in counted.values())
            note = _BOUND_NOTE if bound else ""
            tables.append(f"{law.name} with embeddings in N and without{note}:\n\n{table_of(rows)}")
    return (intro if loose else "") + "\n\n".join(tables)


def best_splits(evidence: Evidence) -> str:
    """Return the best depth, width and tokens at budgets beyond the sweep, by its laws; empty without a law of all three."""
    fits = evidence.laws.fits
    optima = {law.name: (law, best) for law in fits if (best := best_sizes(law.fit))}
    if not any(law.fit.law.name == "width-depth-tokens" for law, _ in optima.values()):
        return ""
    intro = [
        "Where each law has its least loss at a budget of FLOPs, 6·N·D, with N = 12·depth·width² in the law of width and "
        "depth, and how many times the largest run that is. None of it was trained: beyond the largest run a law alone speaks, "
        "with the intervals of its resamples, which know nothing of how it errs there.",
        *(
            f"{law.name} {status_said(law.fit.status, law.fit.reasons)}: no recommendation."
            for law, _ in optima.values()
            if law.fit.status != "converged"
        ),
    ]
    rows = [_split_row(law, one) for law, best in optima.values() for one in best]
    return f"{bullets(intro)}\n\n{table_of(rows)}"


def _split_row(law: LawFit, best: BestSizes) -> dict[str, object]:
    return {
        "law": law.name,
        "FLOPs": f"{best.flops:.0e}",
        "times the largest run": _two_digits(best.beyond),
        **{name: _size_text(best, name) for name in ("parameters", "depth", "width", "tokens")},
    }


def _size_text(best: BestSizes, name: str) -> str | None:
    if name not in best.values:
        return None
    interval = best.intervals[name]
    ends = "no interval" if interval is None else " to ".join(map(_two_digits, interval))
    return f"{_two_digits(best.values[name])} ({ends})"


def _two_digits(value: float) -> str:
    """Return two digits, which resamples give alike on every processor."""
    return compact(float(f"{value:.2g}")).replace(".0", "")


def _law_rows(law: LawFit) -> Iterator[dict[str, object]]:
    """One row per parameter; one without a value if the runs do not determine them."""
    fit = law.fit
    constants = [
        (name, f"{fit.estimates[name]:.4g}", f"{low:.4g} to {high:.4g}") for name, (low, high) in fit.intervals.items()
    ]
    of_law = {"law": law.name, "status": status_words(fit.status)}
    for name, estimate, interval in constants if fit.usable else [(None, None, None)]:
        yield {**of_law, "parameter": name, "estimate": estimate, "95% interval": interval, "n": fit.n}


def law_by_count(fitted: LawFit) -> str:
    """Return a ledger's law in every count of its variables: determined constants and forecast; empty for no count."""
    parameters = fitted.fit.law.parameters
    return table_of([_counted_row(count, one, parameters) for count, one in fit_every_count(fitted).items()])


def _counted_row(count: str, fitted: LawFit | str, parameters: Sequence[str]) -> dict[str, object]:
    if isinstance(fitted, str):
        return {"counted as": count, "status": f"none: {fitted}"} | dict.fromkeys(
            [*parameters, "held-out error", "its intervals"]
        )
    forecast = fitted.forecast
    error, covered = (None, forecast) if isinstance(forecast, str) else (forecast.mean_error, forecast.coverage)
    known = parameters if fitted.fit.usable else fitted.fit.law.exponents if fitted.fit.status == "on_bound" else ()
    constants = {name: _constant(fitted.fit, name) if name in known else None for name in parameters}
    status = status_words(fitted.fit.status)
    return {"counted as": count, "status": status, **constants, "held-out error": error, "its intervals": covered}


def _constant(fit: Fit, name: str) -> str:
    interval = fit.intervals.get(name)
    return f"{fit.estimates[name]:.3g}" + ("" if interval is None else f" ({interval[0]:.3g} to {interval[1]:.3g})")


def cells(evidence: Evidence) -> str:
    """Every cell with its size, rate, loss and FLOPs; empty if none."""
    any_knobs = any(cell.knobs for cell in evidence.cells)
    any_order = any(cell.order_gain_nats is not None for cell in evidence.cells)
    any_pairs = any(cell.pair_accuracy is not None for cell in evidence.cells)
    any_before = any(cell.flops_before for cell in evidence.cells)
    more = [
        ({"spent_flops": f"{cell.spent_flops:.3g}"} if any_before else {})
        | (_order(cell) if any_order else {})
        | (_pairs(cell) if any_pairs else {})
        | (_knobs(cell) if any_knobs else {})
        for cell in evidence.cells
    ]
    return table_of([_cell_row(cell) | rest for cell, rest in zip(evidence.cells, more, strict=True)])


def _cell_row(cell: CellResult) -> dict[str, object]:
    rates = cell.rates
    return {
        "shape": cell.architecture.shape_name,
        "variant": cell.setting or None,
        "parameters_non_embedding": f"{cell.parameters_non_embedding:,}",
        "parameters": f"{cell.parameters:,}",
        "tokens": f"{cell.tokens:,}",
        "rate": None if rates.chosen is None or rates.status == "untrained" else f"{rates.chosen:.4g}",
        "bracketed": "yes" if rates.status == "bracketed" else status_words(rates.status),
        "vertex": _vertex(cell),
        "seeds": len(cell.runs),
        **({"bits per byte": _bits(cell)} if cell.per_byte else {"loss (nats)": _loss(cell)}),
        "train_flops": f"{cell.train_flops:.3g}",
    }


def _order(cell: CellResult) -> dict[str, object]:
    """Return the gain from word order, and a note if a run reads none."""
    none = " (reads none)" if cell.reads_order is False else ""
    return {"order gain (nats)": None if cell.order_words is None else f"{cell.order_words}{none}"}


def _pairs(cell: CellResult) -> dict[str, object]:
    return {"pair accuracy": None if cell.pair_accuracy is None else f"{cell.pair_accuracy:.1%}"}


def _knobs(cell: CellResult) -> dict[str, object]:
    return {"other knobs": describe_knobs({knob.name: knob.chosen for knob in cell.knobs}) or None}


def _vertex(cell: CellResult) -> str | None:
    """Return the minimum of the parabola through the chosen rate and its neighbours, and how far it is below their loss."""
    rates = cell.rates
    return None if rates.optimum is None else f"{rates.optimum:.3g} (−{rates.gain_left_nats:.4f})"


def _loss(cell: CellResult) -> str | None:
    error = "" if cell.standard_error_nats is None else f" ± {error_text(cell.standard_error_nats)}"
    return None if cell.loss_nats is None else f"{cell.loss_nats:.4f}{error}"


def _bits(cell: CellResult) -> str | None:
    error = "" if cell.standard_error_nats is None else f" ± {error_text(cell.standard_error_nats / math.log(2))}"
    return None if cell.bits_per_masked_byte is None else f"{cell.bits_per_masked_byte:.4f}{error}"


def excluded(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the excluded runs as plain rows."""
    columns = {
        "run_id": "run",
        "shape": "shape",
        "setting": "setting",
        "target_tokens": "tokens",
        "recipe.learning_rate": "learning_rate",
        "seed": "seed",
        "exclusion": "reason",
    }
    if evidence.excluded.empty:
        return []
    settings = in_words(evidence.ledger, variant_columns(evidence.folder, evidence.ledger))
    rows = evidence.ledger.assign(setting=settings).loc[evidence.excluded.index]
    return [{columns[str(key)]: value for key, value in row.items()} for row in rows[list(columns)].to_dict("records")]


def excluded_runs(evidence: Evidence) -> str:
    """Every excluded run with its reason; empty if none."""
    runs = [row | {"setting": row["setting"] or None, "tokens": f"{row['tokens']:,}"} for row in excluded(evidence)]
    if not runs:
        return ""
    summary = f"{plural(len(runs), 'run')} {'stays' if len(runs) == 1 else 'stay'} in the ledger and out of every comparison."
    words = {"learning_rate": "rate", "setting": "variant"}
    rows = [{words.get(str(name), str(name)): value for name, value in row.items()} for row in runs]
    return f"{summary}\n\n{table_of(rows)}"
