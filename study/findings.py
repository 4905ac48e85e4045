"""The findings of a sweep in plain words: sentences about parameters, about loss, and about what is not decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from study.counting import parameters, what_doubling_adds
from study.fitting.averages import Average
from study.fitting.cells import EQUAL_WITHIN, Cell, grouped, of_equal_size
from study.fitting.comparisons import SIZES, Comparison, why_left_out
from study.fitting.evidence import Evidence
from study.fitting.expressions import evaluate
from study.fitting.forecasting import Forecast
from study.fitting.law_fits import LawFit
from study.fitting.learning_rates import RATE
from study.fitting.ledgers import LEDGER_COLUMNS
from study.fitting.paired import MOST_SEEDS, MOST_SEQUENCES, Difference
from study.fitting.rankings import Gain, flops_fronts_of
from study.fitting.token_gains import Rise, TokenGain
from study.named_runs import NO_RUN
from study.plotting.what_doubling_adds import shapes_shown
from study.quantities import count_text, plural
from study.wording import budget_words, compact, signed, span

MOST_FAMILIES = 8
"""So many families are told in words each; of more, two, and the tables have all."""

GAINS_TOLD = 3
"""How many of the best steps are told in words; the table has all."""

_SIDES = {
    "depth": ("the deeper shape", "the shallower"),
    "width": ("the wider shape", "the narrower"),
    "ffn": ("the shape of larger FFN", "that of smaller"),
    "heads": ("the shape of more heads", "that of fewer"),
}
"""Of a pair that weighs a size: the first shape, which has more of it, and the second."""

_HAS_MORE = {"width": " (wider)", "ffn": " (of larger FFN)", "heads": " (of more heads)"}
"""What the second shape has more of."""

_LOWERS = {
    "depth": "Depth lowers loss",
    "width": "Width lowers loss",
    "ffn": "A larger FFN lowers loss",
    "heads": "More heads lower loss",
}
_LESS_LOWERS = {"ffn": "A smaller FFN lowers loss", "heads": "Fewer heads lower loss"}
"""Where the second shape has more of nothing; less depth or width at equal parameters is more of something."""


def parameter_findings(evidence: Evidence) -> list[str]:
    """One sentence a shape: what doubling each size adds to its encoder, which follows from the counts alone."""
    sentences = []
    for name, architecture in shapes_shown(evidence).items():
        before = parameters(architecture).parameters_encoder
        added = what_doubling_adds(architecture)
        most = max(added, key=added.__getitem__)
        parts = ", ".join(f"{size} {f'+{compact(count)}' if count else '0'}" for size, count in added.items())
        sentences.append(f"{name} ({compact(before)} parameters_encoder): doubling {parts}; {most} adds most.")
    return sentences


def loss_findings(evidence: Evidence) -> list[str]:
    """What the ledger says about loss: the verdict over all pairs and each family, the best cells and steps; then tokens.

    Best cells and steps are told where no pairs weigh depth or width.
    """
    if not any(cell.usable for cell in evidence.cells):
        return [f"No run that comparisons can use: {run_count(evidence)}{_why_excluded(evidence)}."]
    pairs = evidence.comparisons.pairs
    kinds = [among for of_shapes in (True, False) if (among := [pair for pair in pairs if pair.of_shapes == of_shapes])]
    told = [sentence for among in kinds for sentence in (verdict(among), *_averages(evidence.averages, among[0].of_shapes))]
    if all(pair.of_shapes for pair in pairs) and evidence.sweep.get("vary"):
        why = f"no two cells can be used that differ in one of them, at one shape and budget{_unbracketed(evidence)}"
        told.append(f"Settings are not compared: {why}.")
    for among in kinds:
        told += _family_sentences(among)
    best = [] if evidence.comparisons.weigh_depth_or_width else list(_best(evidence))
    if told:
        return [*told, *best, *_longest(evidence)]
    none = f"No comparison at equal parameters: {evidence.comparisons.reason}{_unbracketed(evidence)}."
    return [*([none, *best] if _iso_parameters(evidence) else [*best, none]), *_longest(evidence)]


def _unbracketed(evidence: Evidence) -> str:
    """How many cells comparisons leave out for their learning rates, and what lets them in; empty where they leave out none."""
    cells = {cell.name: cell for cell in evidence.cells}
    left_out = ((cells[left.cell], left.reason) for left in evidence.comparisons.left_out)
    loose = sum(why_left_out(cell, True) is None and why_left_out(cell, False) == reason for cell, reason in left_out)
    if not loose:
        return ""
    which = f"{plural(loose, 'cell')} {'is' if loose == 1 else 'are'} left out for the learning rate"
    return f"; {which}: tune it over a wider range, or give study report --include-unbracketed"


def _iso_parameters(evidence: Evidence) -> list[float]:
    """The sizes at which the sweep asks for shapes of equal parameters."""
    return [float(target) for target in (evidence.sweep.get("shapes") or {}).get("iso_parameters") or ()]


def _why_excluded(evidence: Evidence) -> str:
    """Why runs are left out, the commonest reason first, and what may help."""
    if evidence.excluded.empty:
        return "; the ledger says nothing about loss yet"
    reasons = evidence.excluded["exclusion"].str.partition(" (")[0].value_counts()
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
    return f" ({told}). The ledger says nothing about loss yet; a larger budget or other learning rates may"


def law_findings(evidence: Evidence) -> list[str]:
    """Each law that the ledger can tell, with its status, intervals and forecast; or why there is none, or can be none yet."""
    laws = evidence.laws
    return [*map(law_sentence, laws.fits), *(f"{reason}." for reason in laws.reasons), *_rises(evidence.rises)]


def _rises(rises: Sequence[Rise]) -> Iterator[str]:
    """Where each doubling of the tokens buys more than the one before, beyond chance; the widest in full."""
    decided = [rise for rise in rises if rise.decided]
    if not decided:
        return
    told = max(decided, key=lambda rise: rise.nats_per_doubling.estimate)
    first, second = (f"{gain.nats_lowered_per_doubling:+.3f} nats" for gain in (told.earlier, told.later))
    shape = _shape_in(told.earlier.shape, told.earlier.setting)
    steps = f"{shape} {first} from {told.earlier.shorter} to {told.later.shorter}, {second} on to {told.later.longer}"
    where = f"In {len(decided)} of {plural(sum(rise.p_value_holm is not None for rise in rises), 'place')}"
    yield (
        f"{where} a doubling of the tokens buys more than the one before (Holm, 5%): {steps}. No power law in the tokens does "
        "so; runs that are just leaving the plateau of the unigrams do, and larger budgets may follow one."
    )


def law_sentence(found: LawFit) -> str:
    """A law's fit in one sentence: status, n, exponents with intervals, and what it said of the runs held out."""
    law = found.fit.law
    status = found.fit.status.replace("_", " ") + (f" ({'; '.join(found.fit.reasons)})" if found.fit.reasons else "")
    columns = ", ".join(found.fit.observations.roles.get(name, name) for name in law.variables)
    exponents = ", ".join(_exponent(found, name) for name in law.exponents)
    runs = found.fit.observations.runs
    n = f"n = {found.fit.n}" if runs == found.fit.n else f"n = {found.fit.n} of {plural(runs, 'independent training')}"
    if found.fit.status == "failed":
        return f"{found.name}, {law.formula}, over {columns}: {status}, {n}."
    return f"{found.name}, {law.formula}, over {columns}: {status}, {n}; {exponents}; {forecast_words(found.forecast)}."


def _exponent(found: LawFit, name: str) -> str:
    interval = found.fit.intervals.get(name)
    unknown = "no interval" + (", since others fit as well" if found.fit.status == "weakly_identified" else "")
    bounds = unknown if interval is None else f"95% interval {interval[0]:.3g} to {interval[1]:.3g}"
    return f"{name} {found.fit.estimates[name]:.3g} ({bounds})"


def forecast_words(told: Forecast | str) -> str:
    """What a forecast of the largest runs came to, in words."""
    if isinstance(told, str):
        return f"forecast {told}"
    if told.status == "failed":
        return "forecast none: the fit to the smaller runs failed"
    plain = told.to_dict()
    rows = plural(plain["n_held_out"], "row")
    return (
        f"forecast of the largest {rows}, up to {plain['extrapolation']:.3g} times the budget fitted "
        f"({told.status.replace('_', ' ')}): held-out error {told.mean_error}, {coverage(told)}"
    )


def coverage(told: Forecast) -> str:
    """How many of the rows held out lie within their interval, in words."""
    plain = told.to_dict()
    count, covered = plain["n_held_out"], plain["covered"]
    return "no interval" if covered is None else f"interval covered {round(covered * count)} of {count}"


def verdict(pairs: Sequence[Comparison]) -> str:
    """How many pairs, all of shapes or all of settings, are decided, and for which side."""
    of_shapes = pairs[0].of_shapes
    n, equal = plural(len(pairs), "pair"), "equal parameters" if of_shapes else "equal shape"
    if all(pair.status == "no_seed_replicates" for pair in pairs):
        alone = all(max(pair.difference.n_seeds) < 2 for pair in pairs)
        why = "no cell has two usable seeds" if alone else "each has a cell of one seed, beside others that scatter unevenly"
        return f"Not decided: {n} at {equal}, but {why}, so chance between seeds is unknown."
    if not any(pair.status == "decided" for pair in pairs):
        return f"Not decided: none of {n} at {equal} differs beyond chance (Holm, 5%)."
    counts = "; ".join(_counts_of_shapes(pairs) if of_shapes else _counts_of_settings(pairs))
    units = {pair.budget.unit for pair in pairs}
    words = f"at {equal} and {units.pop() if len(units) == 1 else 'budget'}, {counts} (Holm, 5%)."
    winner = _winner(pairs)
    return f"{winner} in every pair: {words}" if winner else words[0].upper() + words[1:]


def _counts_of_shapes(pairs: Sequence[Comparison]) -> Iterator[str]:
    """Of the pairs that weigh each size, in how many more of it is better."""
    weighed = {size: among for size in SIZES if (among := [pair for pair in pairs if pair.weighs == size])}
    for size, among in weighed.items():
        more, less = _SIDES[size]
        against = {pair.against for pair in among if pair.status == "decided"}
        less += _HAS_MORE.get(str(against.pop()), "") if len(against) == 1 else ""
        yield _counts(among, f" of unequal {size}" if len(weighed) > 1 else "", more, less)


def _counts_of_settings(pairs: Sequence[Comparison]) -> Iterator[str]:
    """Of the pairs that differ in each setting, in how many either of two values is better, or each of several than which."""
    for among in grouped(pairs, lambda pair: pair.weighs).values():
        first, second, *more = dict.fromkeys(value for pair in among for value in (pair.first, pair.second))
        yield _lower_ones(among) if more else _counts(among, "", first, second)


def _lower_ones(pairs: Sequence[Comparison]) -> str:
    """Which of several settings are lower than which, in how many of the places where the two were compared."""
    places = Counter(frozenset((pair.first, pair.second)) for pair in pairs)
    decided = [pair for pair in pairs if pair.status == "decided"]
    below = Counter((pair.lower, pair.second if pair.first_is_lower else pair.first) for pair in decided)
    clauses = []
    for lower, than in grouped(below, lambda sides: sides[0]).items():
        higher = (f"{other}{_in_places(below[sides], places[frozenset(sides)])}" for sides in than for other in sides[1:])
        clauses.append(f"{lower} is lower than {' and '.join(higher)}")
    told = f": {', '.join(clauses)}" if clauses else ""
    return f"of {plural(len(pairs), 'pair')} {len(decided)} {'is' if len(decided) == 1 else 'are'} decided{told}"


def _in_places(decided: int, places: int) -> str:
    """In how many of the places of a pair it is decided for one side; empty where it has one alone."""
    return f" in {decided} of {places}" if places > 1 else ""


def _counts(pairs: Sequence[Comparison], kind: str, first: str, second: str) -> str:
    """In how many pairs the first side is better, in how many the second, and how many are undecided."""
    decided = [pair for pair in pairs if pair.status == "decided"]
    lower = sum(pair.first_is_lower for pair in decided)
    counts = f"{first} is lower in {lower}, {second} in {len(decided) - lower}, undecided {len(pairs) - len(decided)}"
    return f"of {plural(len(pairs), 'pair')}{kind} {counts}"


def _winner(pairs: Sequence[Comparison]) -> str | None:
    """What lowers the loss more, where every pair is decided and says the same of the same sizes or settings."""
    pair = pairs[0]
    if any(other.status != "decided" for other in pairs):
        return None
    if not pair.of_shapes:
        alike = len({(other.first, other.second, other.lower) for other in pairs}) == 1
        return f"{pair.lower} is lower" if alike else None
    if len({(other.weighs, other.against, other.first_is_lower) for other in pairs}) > 1:
        return None
    what = _what_lowers(pair)
    return f"{what} more" if what else None


def _what_lowers(pair: Comparison) -> str | None:
    """What lowers the loss in a pair of shapes; None where that has no name."""
    if pair.first_is_lower:
        return _LOWERS[pair.weighs]
    return _LESS_LOWERS.get(pair.weighs) if pair.against is None else _LOWERS[pair.against]


def undecided(evidence: Evidence) -> list[str]:
    """What the evidence leaves open, each with what would settle it."""
    of_cells = (_open_runs, _open_cells, _open_sizes, _open_seeds, _open_scatter)
    of_pairs = (_open_pairs, _open_steps, _open_rates, _open_knobs, _open_vertices)
    parts = (*of_cells, *of_pairs, _mixed_precision, _trained_runs, _limits)
    return [line for part in parts for line in part(evidence)]


def run_count(evidence: Evidence) -> str:
    """How many runs there are, ended and used."""
    ended, excluded = len(evidence.ledger), len(evidence.excluded)
    started = f"{ended} of {plural(evidence.runs_started, 'run')} ended" if evidence.runs_started else "no run was started"
    return f"{started}, {excluded} excluded" if excluded else started


def interval(difference: Difference) -> str:
    """A difference with its interval and n."""
    n = f"n = {plural(difference.n_sequences, 'sequence')}, {difference.n_seeds[0]} and {difference.n_seeds[1]} seeds"
    if difference.low_nats is None or difference.high_nats is None:
        return f"{signed(difference.estimate_nats)} nats (no interval; {n})"
    bounds = f"95% interval {signed(difference.low_nats)} to {signed(difference.high_nats)}"
    return f"{signed(difference.estimate_nats)} nats ({bounds}; {n})"


def _family_sentences(pairs: Sequence[Comparison]) -> Iterator[str]:
    """A sentence a family; of more than MOST_FAMILIES those whose widest decided differences are the widest and the least."""
    families = grouped(pairs, lambda pair: pair.family)
    told = {name: _told(among) for name, among in families.items()}
    if len(families) <= MOST_FAMILIES:
        yield from (_family_sentence(name, pair, families[name]) for name, pair in told.items())
        return
    decided = [name for name, pair in told.items() if pair.status == "decided"]
    ordered = sorted(decided or told, key=lambda name: -abs(told[name].difference.estimate_nats))
    which = "Widest decided" if decided else "Widest"
    yield f"{which} of {len(families)} families: {_family_sentence(ordered[0], told[ordered[0]], families[ordered[0]])}"
    if len(decided) > 1:
        yield f"Least wide decided: {_family_sentence(ordered[-1], told[ordered[-1]], families[ordered[-1]])}"


def _told(pairs: Sequence[Comparison]) -> Comparison:
    """The widest difference of a family, of those that are decided if any is."""
    decided = [pair for pair in pairs if pair.status == "decided"]
    return max(decided or pairs, key=lambda pair: abs(pair.difference.estimate_nats))


def _family_sentence(name: str, told: Comparison, pairs: Sequence[Comparison]) -> str:
    """One difference of a family in full, and how many of its pairs are decided."""
    decided = sum(pair.status == "decided" for pair in pairs)
    words = f"{told.first} minus {told.second}: {interval(told.difference)}"
    if decided:
        return f"{name}: {told.lower} is lower, {words}; {decided} of {plural(len(pairs), 'pair')} decided."
    return f"{name}: nothing decided; the largest difference is {words}."


def _averages(averages: Sequence[Average], of_shapes: bool) -> Iterator[str]:
    """The averages over places of two shapes or two settings; of several, what each of the others is above the lowest."""
    for alike in _connected([average for average in averages if average.of_shapes == of_shapes])[:MOST_FAMILIES]:
        counts = {len(average.places) for average in alike}
        over = f"over {counts.pop()} places" if len(counts) == 1 else "over places"
        if len(alike) == 1:
            (average,) = alike
            yield f"Averaged {over}, {average.first} minus {average.second}: {_average_clause(average)} (Holm, 5%)."
            continue
        names = dict.fromkeys(name for average in alike for name in (average.second, average.first))
        lowest = max(names, key=lambda name: sum(average.lower == name for average in alike))
        above = [one.reversed if one.first == lowest else one for one in alike if lowest in (one.first, one.second)]
        yield f"Averaged {over}, {lowest} has the lowest mean. The others minus it, {_judged(above)} (Holm, 5%)."


def _judged(averages: Sequence[Average]) -> str:
    """Averages over places with their intervals, those of one status together and the decided ones first."""
    by_status = grouped(sorted(averages, key=lambda average: average.status), lambda average: average.status)
    return "; ".join(
        f"{status.replace('_', ' ')}: {', '.join(f'{one.first} {interval(one.difference)}{_opposed(one)}' for one in alike)}"
        for status, alike in by_status.items()
    )


def _connected(averages: Sequence[Average]) -> list[list[Average]]:
    """The averages in groups of shapes or settings that were compared with one another."""
    groups: list[list[Average]] = []
    for average in averages:
        sides = {average.first, average.second}
        touched = [group for group in groups if any({one.first, one.second} & sides for one in group)]
        groups = [group for group in groups if group not in touched]
        groups.append([*(one for group in touched for one in group), average])
    return groups


def _average_clause(average: Average) -> str:
    """An average over places with its interval, verdict and range."""
    span_of_places = f"{signed(average.least_nats)} to {signed(average.most_nats)} at its {len(average.places)} places"
    return f"{interval(average.difference)}, {average.status.replace('_', ' ')}, {span_of_places}{_opposed(average)}"


def _opposed(average: Average) -> str:
    return ", decided either way, so the average hides what it depends on" if average.opposed else ""


def _best(evidence: Evidence) -> Iterator[str]:
    """The front of each budget and validation set, and the steps that bought most loss for their parameters."""
    for (of, _), cells in grouped(evidence.front, lambda cell: (cell.budget, cell.validation)).items():
        *smaller, best = cells
        words = f"{_named(best)}, {best.loss_nats:.4f} nats ({compact(best.parameters)} parameters)"
        shown = "; ".join(f"{_named(cell)} {cell.loss_nats:.4f} at {compact(cell.parameters)}" for cell in smaller)
        cheaper = f"; the front below that size: {shown}" if smaller else ""
        yield f"Lowest loss at {budget_words(of)}: {words}{cheaper}."
    for front in flops_fronts_of(evidence.cells):
        shown = "; ".join(
            f"{cell.setting}, {budget_words(cell.budget)}: {cell.loss_nats:.4f} at {cell.train_flops:.3g}" for cell in front
        )
        name = front[0].architecture.shape_name
        yield f"Front of loss (nats) against train_flops, a teacher's among them, of {name}: {shown}."
    lowering = [gain for gain in evidence.gains if gain.difference.estimate_nats <= 0]
    yield from (_gain_sentence(gain) for gain in lowering[:GAINS_TOLD])
    yield from _raising(evidence.gains)


def _named(cell: Cell) -> str:
    return _shape_in(cell.architecture.shape_name, cell.setting)


def _at_budget(cell: Cell) -> str:
    return f"{_named(cell)} at {budget_words(cell.budget)}"


def _shape_in(shape: str, setting: str) -> str:
    return f"{shape} ({setting})" if setting else shape


def _gain_sentence(gain: Gain) -> str:
    return (
        f"{_step(gain)}: {interval(gain.difference)} for {compact(gain.parameters_added)} more parameters_encoder, "
        f"{gain.nats_lowered_per_million:+.3f} nats lowered per million."
    )


def _raising(gains: Sequence[Gain]) -> Iterator[str]:
    """The steps to a larger size that raise the loss, each by its own interval; the widest in full."""
    raising = [gain for gain in gains if gain.difference.low_nats is not None and gain.difference.low_nats > 0]
    if not raising:
        return
    widest = sorted(raising, key=lambda gain: -gain.difference.estimate_nats)[:GAINS_TOLD]
    told = "; ".join(f"{_step(gain)} {interval(gain.difference)}" for gain in widest)
    count = f"{len(raising)} of {plural(len(gains), 'step')} to a larger size"
    yield f"{count} {'raises' if len(raising) == 1 else 'raise'} the loss, by intervals of one step at a time: {told}."


def _step(gain: Gain) -> str:
    return f"{gain.axis} from {gain.smaller} to {_shape_in(gain.larger, gain.setting)} at {gain.budget}"


def _longest(evidence: Evidence) -> Iterator[str]:
    """What the step to the largest budget bought the largest shapes, and of many over which range all gained."""
    last = list({(gain.shape, gain.setting): gain for gain in evidence.token_gains}.values())
    if len(last) > GAINS_TOLD:
        gained = [gain.nats_lowered_per_doubling for gain in last]
        bought = f"lowered by {min(gained):.3f} to {max(gained):.3f} nats per doubling of the tokens"
        yield f"At the last step to a larger budget the loss of {len(last)} cells is {bought}; the largest {GAINS_TOLD}:"
    yield from map(_token_gain_sentence, last[-GAINS_TOLD:])


def _token_gain_sentence(gain: TokenGain) -> str:
    lowered = f"{gain.nats_lowered_per_doubling:+.3f} nats lowered per doubling of the tokens"
    return f"{_token_step(gain)}: {interval(gain.difference)}, {lowered}."


def _token_step(gain: TokenGain) -> str:
    return f"{_shape_in(gain.shape, gain.setting)} from {gain.shorter} to {gain.longer}"


def _open_runs(evidence: Evidence) -> Iterator[str]:
    missing = evidence.runs_started - len(evidence.ledger)
    if missing:
        yield f"{plural(missing, 'run')} begun but not ended; study launch goes on from there."


def _open_cells(evidence: Evidence) -> Iterator[str]:
    """The cells that nothing is known of; where that is all of them, the answer says so already."""
    lost = [_at_budget(cell) for cell in evidence.cells if not cell.usable]
    if lost and len(lost) < len(evidence.cells):
        yield f"What these would reach, none of whose runs can be used: {', '.join(lost)}."


def _open_sizes(evidence: Evidence) -> Iterator[str]:
    """The shapes that were asked for at one number of parameters and are too far apart in it to be compared."""
    shapes = {cell.architecture.shape_name: cell.parameters_non_embedding for cell in evidence.cells}
    tolerance = float((evidence.sweep.get("shapes") or {}).get("tolerance", EQUAL_WITHIN))
    for target in _iso_parameters(evidence):
        of_target = [name for name, size in shapes.items() if abs(size / target - 1) <= tolerance]
        sizes = list(of_equal_size(of_target, lambda name: shapes[name]))
        if len(sizes) > 1:
            told = "; ".join(", ".join(f"{name} ({compact(shapes[name])})" for name in equal) for equal in sizes)
            apart = (
                f"shapes asked for at {compact(target)} non-embedding parameters are not within {EQUAL_WITHIN:.0%} of one size"
            )
            yield f"How {told} compare: {apart}, so none is compared across a semicolon; other depths or targets would meet."


def _open_seeds(evidence: Evidence) -> Iterator[str]:
    """The cells whose mean is of some seeds only, the others having diverged or not learnt at the same rate."""
    partial = []
    for cell in evidence.cells:
        runs = evidence.ledger[evidence.ledger["cell"] == cell.name]
        lost = (runs[RATE] == cell.rates.chosen) & (runs["state"].eq("DIVERGED") | runs["stuck_at_unigram"].eq(True))
        if cell.usable and lost.any():
            partial.append(f"{_at_budget(cell)} ({len(cell.runs)} of {len(cell.runs) + lost.sum()})")
    if partial:
        yield f"How much lower the means are for leaving out seeds that did not learn: {', '.join(partial)}."


def _open_scatter(evidence: Evidence) -> Iterator[str]:
    """The budgets at which seeds scatter unevenly, so that each interval rests on the few seeds of a cell."""
    named = {cell.name: _named(cell) for cell in evidence.cells}
    pools = Counter(scatter.pool.budget for scatter in evidence.comparisons.seed_scatter)
    uneven = []
    for scatter in evidence.comparisons.seed_scatter:
        if not scatter.alike:
            (quiet, least), *_, (loud, most) = scatter.deviations.items()
            ends = f"{least:.2g} nats for {named[quiet]} to {most:.2g} for {named[loud]}"
            budget, several = scatter.pool.budget, pools[scatter.pool.budget] > 1
            near = f" ({count_text(2**scatter.pool.doublings)} tokens or so)" if several else ""
            uneven.append(f"at {budget_words(budget)}{near} {ends} (Bartlett's p = {scatter.p_alike:.2g})")
    if uneven:
        told = "How widely each cell scatters over seeds: unevenly, so that intervals take each cell's own deviation"
        yield f"{told}, of which a few seeds say little: {'; '.join(uneven)}."


def _open_pairs(evidence: Evidence) -> Iterator[str]:
    pairs = evidence.comparisons.pairs
    if not evidence.comparisons.seed_variances and sum(cell.usable for cell in evidence.cells) > 1:
        yield "Whether any difference exceeds chance between seeds; two usable seeds a cell or more would show it."
    elif unknown := sum(pair.status == "no_seed_replicates" for pair in pairs):
        yield (
            f"Whether {plural(unknown, 'pair')} with a cell of one seed, beside others that scatter unevenly, would hold "
            "beyond chance; two seeds there or more would show it."
        )
    families: dict[str, dict[str, list[str]]] = {}
    for pair in pairs:
        if pair.status == "undecided":
            by_remedy = families.setdefault(pair.family, {})
            by_remedy.setdefault(_remedy(pair), []).append(f"{pair.first} minus {pair.second}")
    if families:
        yield "In brackets, what would decide a pair about half the time if its true difference is the one estimated."
    for family, by_remedy in families.items():
        told = (f"{', '.join(names)} ({remedy})" for remedy, names in by_remedy.items())
        yield f"{family}: {'; '.join(told)}."


def _open_steps(evidence: Evidence) -> Iterator[str]:
    """Steps to more tokens, and where no pairs say it to a larger size, that may change nothing."""
    steps = [(_token_step(gain), gain.difference) for gain in evidence.token_gains]
    if not evidence.comparisons.weigh_depth_or_width:
        steps = [*((_step(gain), gain.difference) for gain in evidence.gains), *steps]
    if names := [name for name, difference in steps if difference.holds_zero]:
        yield f"Whether these steps change the loss at all, since their intervals hold zero: {'; '.join(names)}."


def _remedy(pair: Comparison) -> str:
    ways = []
    if pair.seeds_that_would_decide is not None:
        ways.append(f"{pair.seeds_that_would_decide} seeds a cell")
    if pair.sequences_that_would_decide is not None:
        ways.append(f"{pair.sequences_that_would_decide} validation sequences")
    return " or ".join(ways) or f"neither up to {MOST_SEEDS} seeds a cell nor up to {MOST_SEQUENCES} times the sequences alone"


def _open_rates(evidence: Evidence) -> Iterator[str]:
    compared = [cell for cell in evidence.cells if cell.name in evidence.comparisons.compared]
    if names := ", ".join(_named(cell) for cell in compared if not cell.rates.bracketed):
        yield f"How much of the comparisons is the learning rate's doing: cells that are not bracketed were let in: {names}."
    if not evidence.comparisons.weigh_depth_or_width:
        yield from _open_rates_of_fronts(evidence)
    for reason, cells in grouped(evidence.comparisons.left_out, lambda left: left.reason).items():
        names = ", ".join(f"{cell.shape} at {cell.family}" for cell in cells)
        yield f"Left out of the comparisons ({reason}): {names}."


def _open_knobs(evidence: Evidence) -> Iterator[str]:
    """The knobs tuned beside the learning rate whose best value tried is the lowest or the highest, with the cells."""
    ends = ((knob, cell) for cell in evidence.cells if cell.usable for knob in cell.knobs if knob.edge is not None)
    for (name, edge), at in grouped(ends, lambda end: (end[0].name, end[0].edge)).items():
        cells = ", ".join(f"{_at_budget(cell)} ({knob.chosen})" for knob, cell in at)
        yield f"How much is {name}'s doing: the best one tried is the {edge} in {cells}."


def _open_vertices(evidence: Evidence) -> Iterator[str]:
    """The decided pairs whose interval would not hold their difference at the rates where the cells' parabolas are lowest."""
    cells, moved = {cell.name: cell for cell in evidence.cells}, []
    decided = [pair for pair in evidence.comparisons.pairs if pair.status == "decided"]
    for pair in decided:
        first, second = (cells[name].rates.gain_left_nats for name in (pair.first_cell, pair.second_cell))
        found = pair.difference
        if first is None or second is None or found.low_nats is None or found.high_nats is None:
            continue
        at_vertices = found.estimate_nats - first + second
        if not found.low_nats <= at_vertices <= found.high_nats:
            told = f"{pair.first} minus {pair.second} {signed(at_vertices)} in place of {signed(found.estimate_nats)} nats"
            moved.append((abs(at_vertices - found.estimate_nats), f"{told} at {pair.family}"))
    if moved:
        most = "; ".join(words for _, words in sorted(moved, reverse=True)[:GAINS_TOLD])
        count = f"{len(moved)} of {plural(len(decided), 'decided pair')} out of the interval"
        yield f"What rates between those tried would give; by the vertices in the table of cells they move {count}: {most}."


def _open_rates_of_fronts(evidence: Evidence) -> Iterator[str]:
    """The cells of fronts and steps, which need no bracket, whose rate may be far from its best; no pair names them."""
    told = evidence.comparisons.compared | {left.cell for left in evidence.comparisons.left_out}
    usable = [cell for cell in evidence.cells if cell.usable]
    loose = [cell for cell in usable if not cell.rates.bracketed and cell.name not in told]
    if loose:
        names = "all cells" if 1 < len(loose) == len(usable) else ", ".join(map(_at_budget, loose))
        yield f"How much is the learning rate's doing: the best one tried does not lie between worse ones in {names}."


def _mixed_precision(evidence: Evidence) -> Iterator[str]:
    used = evidence.used
    if "environment.precision" not in used:
        return
    runs = used.loc[used["recipe.precision"] == "auto", "environment.precision"].value_counts()
    if len(runs) > 1:
        counts = " and ".join(f"{plural(count, 'run')} in {precision}" for precision, count in sorted(runs.items()))
        yield (
            f"Whether precision plays a part: auto meant {counts}; base.recipe.precision in the sweep file would train all "
            "anew in one."
        )


def _repeated_text(evidence: Evidence) -> Iterator[str]:
    used = evidence.used
    if used.empty or used["train_tokens"].isna().any():
        return
    unique = evaluate(LEDGER_COLUMNS["unique_tokens"], used.__getitem__, "the ledger", used.columns)
    passes = (used["tokens"] / unique).to_numpy(dtype=float)
    most = int(passes.argmax())
    if passes[most] >= 1.05:  # as it is told, more than once
        yield (
            f"What new text would do in place of repeated: runs passed up to {passes[most]:.1f} times over the "
            f"{compact(float(unique.iloc[most]))} tokens that they were trained on; a larger corpus would."
        )


def _trained_runs(evidence: Evidence) -> Iterator[str]:
    """What runs that began with the weights of another, or learned from it, do not say."""
    used = evidence.used
    told = {
        "start": ("donor", "donors cost", "began with weights of", "whose tokens and FLOPs are not counted"),
        "teacher": ("teacher", "training teachers cost", "learned from", "of whose FLOPs the forward passes alone are counted"),
    }
    for knob, (role, cost, did, counted) in told.items():
        if (column := f"recipe.{knob}") not in used:
            continue
        named = used.loc[used[column] != NO_RUN[knob], column]
        if len(named):
            runs = ", ".join(sorted({str(name).partition(":")[0] for name in named}))
            yield (
                f"What another {role} would do, and what {cost}: {plural(len(named), 'run')} {did} {runs}, "
                f"whose luck no interval holds, and {counted}."
            )


def _limits(evidence: Evidence) -> Iterator[str]:
    usable = [cell for cell in evidence.cells if cell.usable]
    if not usable:
        return
    low, high = (pick(cell.parameters_non_embedding for cell in usable) for pick in (min, max))
    few, many = (pick(cell.tokens for cell in usable) for pick in (min, max))
    yield (
        f"Anything beyond {span(low, high)} non-embedding parameters, {span(few, many)} tokens and this text; a larger "
        "sweep would."
    )
    yield from _repeated_text(evidence)
    if evidence.comparisons.weigh_depth_or_width:
        yield (
            "Whether the same holds at equal total parameters: at equal non-embedding parameters the wider shape has larger "
            "embedding tables (both counts are in the table of cells)."
        )
