"""The tables of an answer, as Markdown: differences, gains, laws, cells and excluded runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from study.config import setting_words
from study.fitting.averages import Average
from study.fitting.cells import Cell, in_words, setting_columns
from study.fitting.comparisons import Comparison
from study.fitting.estimation import Fit
from study.fitting.evidence import Evidence
from study.fitting.law_fits import LawFit, in_every_count
from study.fitting.paired import Judged
from study.quantities import plural
from study.wording import signed, status_words, table


def differences(evidence: Evidence, of_shapes: bool) -> str:
    """Every pair of shapes of equal parameters, or of settings of one shape, with its interval and status; empty if none."""
    pairs = [pair for pair in evidence.comparisons.pairs if pair.of_shapes == of_shapes]
    header = ["family", "first − second", "nats", "95% interval", "Holm p", "status", "sequences", "seeds", "dof of seeds"]
    return table(header, [[pair.family, *_difference_row(pair)] for pair in pairs]) if pairs else ""


def _difference_row(pair: Comparison | Average) -> list[object]:
    """What is compared, the difference, its verdict and what it rests on."""
    found = pair.difference
    return [
        pair.sides,
        *_judged_difference(pair),
        status_words(pair.status),
        found.n_sequences,
        f"{found.n_seeds[0]} and {found.n_seeds[1]}",
        None if found.degrees_of_freedom is None else f"{found.degrees_of_freedom:.1f}",
    ]


def _judged_difference(found: Judged) -> list[object]:
    """A difference, its interval and Holm's adjusted p."""
    p_value = None if found.p_value_holm is None else f"{found.p_value_holm:.2g}"
    return [signed(found.difference.estimate_nats), found.difference.bounds, p_value]


def averages(evidence: Evidence) -> str:
    """Every pair that was compared in several places, averaged over them; empty if none."""
    header = ["first − second", "places", "nats", "95% interval", "Holm p", "status", "least", "most", "seeds", "dof of seeds"]
    return table(header, _average_rows(evidence.averages)) if evidence.averages else ""


def _average_rows(averages: Sequence[Average]) -> Iterator[list[object]]:
    for average in averages:
        name, nats, *judged, _, seeds, freedom = _difference_row(average)
        yield [
            name,
            len(average.places),
            nats,
            *judged,
            signed(average.least_nats),
            signed(average.most_nats),
            seeds,
            freedom,
        ]


def gains(evidence: Evidence) -> str:
    """Every step to a larger depth, width or FFN; empty where there is none."""
    if not evidence.gains:
        return ""
    intro = (
        "Neighbouring cells that differ in one size, by loss lowered per parameter added. Each interval is for its pair alone, "
        "Holm's p is adjusted for all of them, and cells whose rate is not bracketed take part (see the table of cells)."
    )
    header = ["axis", "from", "to", "budget", "setting", "nats", "95% interval", "Holm p"]
    header += ["parameters_encoder added", "nats lowered per million"]
    return f"{intro}\n\n{table(header, _gain_rows(evidence))}"


def _gain_rows(evidence: Evidence) -> Iterator[list[object]]:
    for gain in evidence.gains:
        yield [
            gain.axis,
            gain.smaller,
            gain.larger,
            gain.budget,
            gain.setting or None,
            *_judged_difference(gain),
            f"{gain.parameters_added:,}",
            f"{gain.nats_lowered_per_million:+.3f}",
        ]


def cuts(evidence: Evidence) -> str:
    """Every encoder that began without layers of a trained one, beside the whole; empty where there is none."""
    if not evidence.cuts:
        return ""
    intro = (
        "Encoders that begin with some layers of a trained one, minus the one that begins with all of them, after the same "
        "budget. Each interval is for its pair alone."
    )
    header = ["whole", "cut", "layers cut", "budget", "nats", "95% interval", "parameters_encoder saved"]
    return f"{intro}\n\n{table(header, _cut_rows(evidence))}"


def _cut_rows(evidence: Evidence) -> Iterator[list[object]]:
    for cut in evidence.cuts:
        yield [
            cut.whole,
            cut.cut,
            cut.layers,
            cut.budget,
            signed(cut.difference.estimate_nats),
            cut.difference.bounds,
            f"{cut.parameters_saved:,}",
        ]


def token_gains(evidence: Evidence) -> str:
    """Every step of a shape to a larger budget; empty where there is none."""
    if not evidence.token_gains:
        return ""
    intro = (
        "One shape at neighbouring budgets, each with a training of its own length. Each interval is for its pair alone and "
        "takes seeds as independent, which is cautious where budgets share a trunk; Holm's p is adjusted for all of them. "
        "Where the seeds of a budget scatter unevenly, none of its cells counts as scattering less than the middle one. "
        "Cells whose learning rate is not bracketed take part."
    )
    header = ["shape", "setting", "from tokens", "to tokens", "nats", "95% interval", "Holm p", "nats lowered per doubling"]
    return f"{intro}\n\n{table(header, _token_gain_rows(evidence))}"


def _token_gain_rows(evidence: Evidence) -> Iterator[list[object]]:
    for gain in evidence.token_gains:
        yield [
            gain.shape,
            gain.setting or None,
            f"{gain.fewer_tokens:,}",
            f"{gain.more_tokens:,}",
            *_judged_difference(gain),
            f"{gain.nats_lowered_per_doubling:+.3f}",
        ]


def laws(evidence: Evidence) -> str:
    """Every law's parameters with their intervals, and its status; empty where there is no law."""
    if not evidence.laws.fits:
        return ""
    usable = [cell for cell in evidence.cells if cell.usable]
    loose = sum(not cell.rates.bracketed for cell in usable)
    intro = f"Cells whose learning rate is not bracketed take part: {loose} of {len(usable)} (see the table of cells).\n\n"
    header = ["law", "status", "parameter", "estimate", "95% interval", "n"]
    return f"{intro if loose else ''}{table(header, _law_rows(evidence))}"


def _law_rows(evidence: Evidence) -> Iterator[list[object]]:
    for law in evidence.laws.fits:
        found = law.fit
        status = status_words(found.status)
        if not found.told:
            yield [law.name, status, None, None, None, found.n]
            continue
        for name, (low, high) in found.intervals.items():
            yield [law.name, status, name, f"{found.estimates[name]:.4g}", f"{low:.4g} to {high:.4g}", found.n]


def law_by_count(found: LawFit) -> str:
    """A ledger's law in every count of what it reads: constants, so far as rows tell them, and forecast; empty for no count."""
    fits = in_every_count(found)
    rows = [[count, *_counted_row(one, found.fit.law.parameters)] for count, one in fits.items()]
    header = ["counted as", "status", *found.fit.law.parameters, "held-out error", "its intervals"]
    return table(header, rows) if rows else ""


def _counted_row(found: LawFit | str, parameters: Sequence[str]) -> list[object]:
    """Status, constants and forecast of a law in one count."""
    if isinstance(found, str):
        return [f"none: {found}", *[None] * (len(parameters) + 2)]
    told = found.forecast
    forecast = [None, told] if isinstance(told, str) else [told.mean_error, told.coverage]
    constants = (_constant(found.fit, name) if found.fit.told else None for name in parameters)
    return [status_words(found.fit.status), *constants, *forecast]


def _constant(found: Fit, name: str) -> str:
    """A constant with its interval, where it has one."""
    interval = found.intervals.get(name)
    return f"{found.estimates[name]:.3g}" + ("" if interval is None else f" ({interval[0]:.3g} to {interval[1]:.3g})")


def cells(evidence: Evidence) -> str:
    """Every cell with its size, rate, loss and FLOPs; empty where there is none."""
    header = ["shape", "setting", "parameters_non_embedding", "parameters", "tokens", "rate", "bracketed", "vertex", "seeds"]
    header += ["loss (nats)", "train_flops", *(["other knobs"] if any(cell.knobs for cell in evidence.cells) else [])]
    rows = (
        [
            cell.architecture.shape_name,
            cell.setting or None,
            f"{cell.parameters_non_embedding:,}",
            f"{cell.parameters:,}",
            f"{cell.tokens:,}",
            None if cell.rates.chosen is None or cell.rates.status == "untrained" else f"{cell.rates.chosen:.4g}",
            "yes" if cell.rates.status == "bracketed" else status_words(cell.rates.status),
            _vertex(cell),
            len(cell.runs),
            _loss(cell),
            f"{cell.train_flops:.3g}",
            *([setting_words({knob.name: knob.chosen for knob in cell.knobs})] if "other knobs" in header else []),
        ]
        for cell in evidence.cells
    )
    return table(header, rows) if evidence.cells else ""


def _vertex(cell: Cell) -> str | None:
    """Where the parabola through the chosen rate and its neighbours is lowest, and how far below the chosen loss."""
    rates = cell.rates
    return None if rates.optimum is None else f"{rates.optimum:.3g} (−{rates.gain_left_nats:.4f})"


def _loss(cell: Cell) -> str | None:
    error = "" if cell.standard_error_nats is None else f" ± {cell.standard_error_nats:.4f}"
    return None if cell.loss_nats is None else f"{cell.loss_nats:.4f}{error}"


def excluded(evidence: Evidence) -> list[dict[str, Any]]:
    """The excluded runs as plain rows."""
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
    settings = in_words(evidence.ledger, setting_columns(evidence.folder, evidence.ledger))
    rows = evidence.ledger.assign(setting=settings).loc[evidence.excluded.index]
    return [{columns[str(key)]: value for key, value in row.items()} for row in rows[list(columns)].to_dict("records")]


def excluded_runs(evidence: Evidence) -> str:
    """Every excluded run with its reason; empty where there is none."""
    told = [row | {"setting": row["setting"] or None, "tokens": f"{row['tokens']:,}"} for row in excluded(evidence)]
    rows = [list(row.values()) for row in told]
    if not rows:
        return ""
    summary = f"{plural(len(rows), 'run')} {'stays' if len(rows) == 1 else 'stay'} in the ledger and out of every comparison."
    return f"{summary}\n\n{table(['run', 'shape', 'setting', 'tokens', 'rate', 'seed', 'reason'], rows)}"
