"""The findings of a sweep: sentences about parameters, loss, laws and their forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from study.base.grouping import grouped
from study.base.quantities import budget_words, bytes_text, compact, plural
from study.base.text import shape_and_variant, status_words
from study.counting.parameters import parameters, what_doubling_adds
from study.evidence.cells import CellResult, difference_between, measured
from study.evidence.comparisons import why_left_out
from study.evidence.compressions import Compression
from study.evidence.evidence import Evidence
from study.evidence.gains import Gain, Rise, TokenGain, flops_fronts, spending_fronts, way
from study.evidence.ledgers import OBJECTIVE, summarise_exclusions
from study.laws.forecasting import Forecast
from study.laws.law_fits import LawFit
from study.plotting.what_doubling_adds import shapes_shown
from study.report.pair_sentences import (
    average_sentences,
    chance_words,
    family_sentences,
    kind_of,
    pair_kinds,
    parts_lacking,
    verdict,
    why_unknown,
    without_order_remedy,
)
from study.store.records import RETRIED

MOST_STEPS = 3
"""How many of the best steps the findings name; the table has all."""


def parameter_findings(evidence: Evidence) -> list[str]:
    """One sentence per shape: what doubling each size adds to its encoder, from the counts alone."""
    sentences = []
    for name, architecture in shapes_shown(evidence).items():
        before = parameters(architecture).parameters_encoder
        added = what_doubling_adds(architecture)
        most = max(added, key=added.__getitem__)
        grown = {size: f"{size} {f'+{compact(count)}' if count else '0'}" for size, count in added.items()}
        parts = ", ".join((grown | {"width": f"{grown['width']} (the FFN with it)"}).values())
        sentences.append(f"{name} ({compact(before)} parameters_encoder): doubling {parts}; {most} adds most.")
    return sentences


def loss_findings(evidence: Evidence) -> list[str]:
    """Return the ledger's findings on loss: the verdict over all pairs and each family, the best cells and steps; then tokens.

    Variants come before shapes: a sweep that varies a knob asks about it. Best cells and steps follow if no pairs weigh depth
    or width.
    """
    if not any(cell.usable for cell in evidence.cells):
        return [f"No run that comparisons can use: {run_count(evidence)}{why_excluded(evidence)}."]
    kinds, lacking = pair_kinds(evidence), parts_lacking(evidence)
    sentences: list[str] = []
    for kind, among in kinds.items():
        sentences += [
            verdict(among, lacking),
            *average_sentences([average for average in evidence.averages if kind_of(average) == kind]),
        ]
    missing = missing_comparison(evidence)
    if missing and evidence.sweep.varied:
        sentences.append(f"{missing[0].upper()}{missing[1:]}.")
    elif unlike := unlike_objectives(evidence):
        sentences.append(f"{unlike[0].upper()}{unlike[1:]}.")
    for among in kinds.values():
        sentences += family_sentences(among)
    sentences += map(compression_words, evidence.compressions)
    sentences += [*_cut_sentences(evidence), *_spending_sentences(evidence), *dominance_sentences(evidence)]
    best = [] if evidence.comparisons.weigh_depth_or_width else list(_best(evidence))
    if sentences:
        return [*sentences, *best, *_longest(evidence)]
    none = f"No comparison at equal parameters: {evidence.comparisons.reason}{_unbracketed(evidence)}."
    return [*([none, *best] if evidence.sweep.iso_parameters else [*best, none]), *_longest(evidence)]


def compression_words(one: Compression) -> str:
    """Return what a compression costs, and how it stands beside the smaller encoder nearest in bytes."""
    made = f"{'rounding' if one.rounds else 'compressing'} adds {one.against_source.to_text()}"
    if one.against is None or one.beside is None:
        return f"{one.name} ({bytes_text(one.bytes)}): {made}."
    side = "below" if one.against.estimate_nats < 0 else "above"
    return f"{one.name} ({bytes_text(one.bytes)}) ends {one.against.size_text} {side} {one.beside}; {made}."


def missing_comparison(evidence: Evidence) -> str:
    """Why the sweep's intended comparison is missing: of variants, or at equal parameters; empty if it exists."""
    pairs = evidence.comparisons.pairs
    if evidence.sweep.varied and all(pair.of_shapes for pair in pairs):
        why = f"no two cells can be used that differ in one of them, at one shape and budget{_unbracketed(evidence)}"
        return f"variants are not compared: {unlike_objectives(evidence) or why}"
    if evidence.sweep.iso_parameters and not pairs:
        return f"no comparison at equal parameters: {evidence.comparisons.reason}{_unbracketed(evidence)}"
    return ""


def unlike_objectives(evidence: Evidence) -> str:
    """Why no loss of objective rtd stands beside one of another objective; empty unless the sweep has both."""
    objectives = {cell.settings.get(OBJECTIVE) for cell in evidence.cells}
    if "rtd" not in objectives or len(objectives) == 1:
        return ""
    return "the loss of objective rtd is of detecting replaced tokens, and of others of predicting masked words; compare scores"


def _unbracketed(evidence: Evidence) -> str:
    """How many cells comparisons leave out for their learning rates, and how to include them; empty if none."""
    cells = {cell.name: cell for cell in evidence.cells}
    left_out = ((cells[left.cell], left.reason) for left in evidence.comparisons.left_out)
    loose = sum(why_left_out(cell, True) is None and why_left_out(cell, False) == reason for cell, reason in left_out)
    if not loose:
        return ""
    which = f"{plural(loose, 'cell')} {'is' if loose == 1 else 'are'} left out for the learning rate"
    remedy = "tune it over more values" if evidence.sweep.tuned else "let the sweep tune it"
    return f"; {which}: {remedy}, or give study report --include-unbracketed"


def why_excluded(evidence: Evidence) -> str:
    """Why runs are left out, the most frequent reason first, and possible remedies."""
    if evidence.excluded.empty:
        return "; the ledger says nothing about loss yet"
    reasons = evidence.excluded["exclusion"]
    failed, by_hand = reasons.str.startswith(RETRIED), reasons.str.startswith("excluded: ")
    retry = f"study retry{', with fewer runs at a time,' if reasons.str.startswith('OOM').any() else ''}"
    helps = {
        retry: failed,
        "study exclude --undo": by_hand,
        "other learning rates": ~failed & ~by_hand,
    }
    ways = [way for way, runs in helps.items() if runs.any()]
    return f" ({summarise_exclusions(reasons)}). The ledger says nothing about loss yet; {' or '.join(ways)} may"


def run_count(evidence: Evidence) -> str:
    """Return the number of runs, ended and used."""
    ended, excluded = len(evidence.ledger), len(evidence.excluded)
    started = f"{ended} of {plural(evidence.runs_started, 'run')} ended" if evidence.runs_started else "no run was started"
    return f"{started}, {excluded} excluded" if excluded else started


def _cut_sentences(evidence: Evidence) -> Iterator[str]:
    """One sentence per donor and budget: the cheapest cut for each number of layers."""
    for (whole, budget), cuts in grouped(evidence.cuts, lambda cut: (cut.whole, cut.budget)).items():
        clauses = []
        for layers, ways in grouped(cuts, lambda cut: cut.layers).items():
            least = min(ways, key=lambda cut: cut.difference.estimate_nats)
            which = f" at the least of {len(ways)} ways" if len(ways) > 1 else ""
            clauses.append(f"cutting off {plural(layers, 'layer')} costs {least.difference.to_text()}{which}, {least.cut}")
        yield f"Of {whole} at {budget}, {'; '.join(clauses)}."


def dominance_sentences(evidence: Evidence) -> list[str]:
    """Return the shapes that another with less of everything beats, by the largest difference of each.

    A count of further ones.
    """
    decided = [one for one in evidence.dominances if one.status == "decided"]
    by_cell = grouped(decided, lambda one: (one.second, one.setting, one.budget))  # the largest first
    largest = [first for first, *_ in by_cell.values()]
    sentences = [
        f"{shape_and_variant(one.second, one.setting)} at {one.budget} is dominated by {one.first}, which has fewer parameters "
        f"({compact(one.parameters[0])} against {compact(one.parameters[1])}), no more train_flops ({one.train_flops[0]:.3g} "
        f"against {one.train_flops[1]:.3g}) and a lower loss, by {one.difference.reversed.to_text()}."
        for one in largest[:MOST_STEPS]
    ]
    more = len(largest) - MOST_STEPS
    return [*sentences, f"So {'is' if more == 1 else 'are'} {plural(more, 'more cell')}."] if more > 0 else sentences


def _spending_sentences(evidence: Evidence) -> Iterator[str]:
    """How many comparisons with training from scratch are decided, and both Pareto fronts of loss against FLOPs."""
    if not evidence.spendings:
        return
    decided = [one for one in evidence.spendings if one.status == "decided"]
    lower = sum(one.difference.estimate_nats < 0 for one in decided)
    pairs, undecided = plural(len(evidence.spendings), "pair"), len(evidence.spendings) - len(decided)
    yield (
        f"Of {pairs} of an encoder that starts from or learns from another run and one of its shape from scratch, the first is "
        f"lower in {lower}, the second in {len(decided) - lower}, undecided {undecided} (Holm, 5%)."
    )
    for fronts in spending_fronts(evidence.cells):
        for flops, front in fronts.items():
            shown = "; ".join(f"{way(cell)}: {cell.loss_in_unit:.4f} at {getattr(cell, flops):.3g}" for cell in front)
            yield f"Pareto front of loss ({front[0].unit}) against {flops} of {front[0].architecture.shape_name}: {shown}."


def _best(evidence: Evidence) -> Iterator[str]:
    """Yield the Pareto front of each budget and validation set, and the gains of steps to a larger size."""
    for (of, _), cells in grouped(evidence.front, lambda cell: (cell.budget, cell.validation)).items():
        *smaller, best = cells
        size = f"({compact(best.parameters)} parameters)"
        unread = ", which reads no word order" if best.reads_order is False else ""
        loss = f"{best.loss_in_unit:.4f} {best.unit}"
        words = f"{best.words}, {loss} {size}{unread}{_like(best, evidence)}{_next(best, evidence)}"
        shown = "; ".join(f"{cell.words} {cell.loss_in_unit:.4f} at {compact(cell.parameters)}" for cell in smaller)
        cheaper = f"; the Pareto front below that size: {shown}" if smaller else ""
        yield f"Lowest loss at {budget_words(of)}: {words}{cheaper}."
    for front in flops_fronts(evidence.cells) if not evidence.spendings else ():
        shown = "; ".join(
            f"{cell.setting}, {budget_words(cell.budget)}: {cell.loss_in_unit:.4f} at {cell.train_flops:.3g}" for cell in front
        )
        name = front[0].architecture.shape_name
        yield f"Pareto front of loss ({front[0].unit}) against train_flops, a teacher's among them, of {name}: {shown}."
    if evidence.gains:
        yield from _steps(evidence)


def _like(cell: CellResult, evidence: Evidence) -> str:
    """How many of the cells compared with one do not differ significantly from it; empty if all differ."""
    beside = _beside(cell, evidence)
    others, equal = {other for other, _ in beside}, {other for other, status in beside if status != "decided"}
    which = "any cell" if equal == others else f"{len(equal)} of the {len(others)} cells"
    return f", not significantly different from {which} that it was compared with" if equal else ""


def _beside(cell: CellResult, evidence: Evidence) -> list[tuple[str, str]]:
    """Return the cells compared with one in pairs or steps, each with the verdict; without those that can have none."""
    compared = [
        (pair.first_cell, pair.second_cell, pair.status) for pair in evidence.comparisons.pairs if not pair.without_order
    ]
    compared += [(gain.smaller_cell, gain.larger_cell, gain.status) for gain in evidence.gains if not gain.without_order]
    return [(two if one == cell.name else one, status) for one, two, status in compared if cell.name in (one, two)]


def _next(best: CellResult, evidence: Evidence) -> str:
    """Return the next lowest cell minus the best, if no pair or step compares them: their order may be chance."""
    same = [cell for cell in measured(evidence.cells) if (cell.budget, cell.validation) == (best.budget, best.validation)]
    others = [cell for cell in same if cell.name != best.name]
    second = min(others, key=lambda cell: float(cell.losses.mean()), default=None)
    if second is None or any(second.name == other for other, _ in _beside(best, evidence)):
        return ""
    above = difference_between(second, best, evidence.comparisons.seed_variances)
    return f"; the next, {second.words}, minus it {above.to_text()}"


def _steps(evidence: Evidence) -> Iterator[str]:
    gains = evidence.gains
    counts = _counted_steps(evidence, gains, f"{plural(len(gains), 'step')} to a larger size")
    decided = [gain for gain in gains if gain.status == "decided"]
    lowering = [gain for gain in decided if gain.difference.estimate_nats < 0]
    yield f"{counts[:-1]}; most of the decided, per million more parameters_encoder:" if len(lowering) > MOST_STEPS else counts
    yield from map(_gain_sentence, lowering[:MOST_STEPS])
    raising = [gain for gain in decided if gain.difference.estimate_nats >= 0]
    if raising:
        raising.sort(key=lambda gain: -gain.difference.estimate_nats)
        worst = "; ".join(f"{gain.step} {gain.difference.to_text()}" for gain in raising[:MOST_STEPS])
        yield f"{'Those that raise it most' if len(raising) > MOST_STEPS else 'Raising it'}: {worst}."


def _counted_steps(evidence: Evidence, gains: Sequence[Gain] | Sequence[TokenGain], steps: str) -> str:
    """How many steps lower or raise the loss, or why that is unknown, or says nothing."""
    compared = [gain for gain in gains if gain.without_order is None]
    if not compared:
        read = any(gain.without_order == "reads_no_order" for gain in gains)
        why = "an encoder of each reads no word order" if read else "whether both encoders read word order was not measured"
        return f"No verdict on {steps}: {why}; {without_order_remedy(gains, parts_lacking(evidence))}."
    if why := why_unknown(compared):
        return f"Not decided: {steps}, but {why}."
    decided = [gain for gain in compared if gain.status == "decided"]
    unread = len(gains) - len(compared)
    none = f", no verdict on {unread} with an encoder that reads no word order, or did not measure it" if unread else ""
    if not decided:
        return f"Not decided: none of {steps} changes the loss beyond chance (Holm, 5%){none}."
    lower = sum(gain.difference.estimate_nats < 0 for gain in decided)
    more = len(decided) - lower
    counts = f"{lower} {'lowers' if lower == 1 else 'lower'} the loss, {more} {'raises' if more == 1 else 'raise'} it"
    return f"Of {steps} {counts}, undecided {len(compared) - len(decided)} (Holm, 5%){none}."


def _gain_sentence(gain: Gain) -> str:
    return (
        f"{gain.step}: {gain.difference.to_text()} for {compact(gain.parameters_added)} more parameters_encoder, "
        f"{gain.in_unit.nats_lowered_per_million:+.3f} {gain.difference.unit} lowered per million."
    )


def _longest(evidence: Evidence) -> Iterator[str]:
    """Yield the gain of each encoder's step to the largest budget; for many, a count and the largest gains."""
    last = list({(gain.shape, gain.setting): gain for gain in evidence.token_gains}.values())
    if len(last) > MOST_STEPS:
        counts = _counted_steps(evidence, last, f"{len(last)} last steps to a larger budget")
        last = sorted((gain for gain in last if gain.status == "decided"), key=lambda gain: -gain.nats_lowered_per_doubling)
        yield f"{counts[:-1]}; most of the decided, per doubling of the tokens:" if last else counts
    yield from map(_token_gain_sentence, last[:MOST_STEPS])


def _token_gain_sentence(gain: TokenGain) -> str:
    if gain.status == "undecided":
        return f"{gain.step}: undecided, {gain.difference.to_text()}{chance_words(gain)}."
    return f"{gain.step}: {gain.difference.to_text()}, {_per_doubling(gain)} lowered per doubling of the tokens."


def _per_doubling(gain: TokenGain) -> str:
    return f"{gain.in_unit.nats_lowered_per_doubling:+.3f} {gain.difference.unit}"


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
    first, second = map(_per_doubling, (steepest.earlier, steepest.later))
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
    """Return a law's fit in one sentence: status, n, exponents with intervals, and forecast of held-out runs."""
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
    """Yield the exponents with the other count of N, with or without embeddings."""
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
