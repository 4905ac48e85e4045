"""The findings of a sweep in plain words: sentences about parameters and about loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from study.counting import parameters, what_doubling_adds
from study.fitting.averages import Average
from study.fitting.cells import Cell, difference_between, measured
from study.fitting.comparisons import WEIGHED, Comparison, Pair, why_left_out
from study.fitting.evidence import Evidence
from study.fitting.ledgers import reasons_told
from study.fitting.paired import Judged
from study.fitting.rankings import Gain, flops_fronts_of
from study.fitting.token_gains import TokenGain
from study.grouping import grouped
from study.plotting.what_doubling_adds import shapes_shown
from study.quantities import plural
from study.records import RETRIED
from study.wording import budget_words, compact, signed

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
        grown = {size: f"{size} {f'+{compact(count)}' if count else '0'}" for size, count in added.items()}
        parts = ", ".join((grown | {"width": f"{grown['width']} (the FFN with it)"}).values())
        sentences.append(f"{name} ({compact(before)} parameters_encoder): doubling {parts}; {most} adds most.")
    return sentences


def loss_findings(evidence: Evidence) -> list[str]:
    """What the ledger says about loss: the verdict over all pairs and each family, the best cells and steps; then tokens.

    Best cells and steps are told where no pairs weigh depth or width.
    """
    if not any(cell.usable for cell in evidence.cells):
        return [f"No run that comparisons can use: {run_count(evidence)}{_why_excluded(evidence)}."]
    pairs = evidence.comparisons.pairs
    kinds = sorted(grouped(pairs, _kind).items(), key=lambda kind: not kind[1][0].of_shapes)
    told: list[str] = []
    for kind, among in kinds:
        told += [verdict(among), *_averages([average for average in evidence.averages if _kind(average) == kind])]
    if all(pair.of_shapes for pair in pairs) and evidence.sweep.get("vary"):
        why = f"no two cells can be used that differ in one of them, at one shape and budget{_unbracketed(evidence)}"
        told.append(f"Settings are not compared: {why}.")
    for _, among in kinds:
        told += _family_sentences(among)
    told += _cut_sentences(evidence)
    best = [] if evidence.comparisons.weigh_depth_or_width else list(_best(evidence))
    if told:
        return [*told, *best, *_longest(evidence)]
    none = f"No comparison at equal parameters: {evidence.comparisons.reason}{_unbracketed(evidence)}."
    return [*([none, *best] if evidence.iso_parameters else [*best, none]), *_longest(evidence)]


def _kind(pair: Pair) -> tuple[bool, str]:
    """What is compared, shapes or settings, and at what that is equal."""
    return pair.of_shapes, pair.equal


def _unbracketed(evidence: Evidence) -> str:
    """How many cells comparisons leave out for their learning rates, and what lets them in; empty where they leave out none."""
    cells = {cell.name: cell for cell in evidence.cells}
    left_out = ((cells[left.cell], left.reason) for left in evidence.comparisons.left_out)
    loose = sum(why_left_out(cell, True) is None and why_left_out(cell, False) == reason for cell, reason in left_out)
    if not loose:
        return ""
    which = f"{plural(loose, 'cell')} {'is' if loose == 1 else 'are'} left out for the learning rate"
    remedy = "tune it over more values" if evidence.sweep.get("tune") else "let the sweep tune it"
    return f"; {which}: {remedy}, or give study report --include-unbracketed"


def _why_excluded(evidence: Evidence) -> str:
    """Why runs are left out, the commonest reason first, and what may help."""
    if evidence.excluded.empty:
        return "; the ledger says nothing about loss yet"
    reasons = evidence.excluded["exclusion"]
    failed = reasons.str.startswith(RETRIED)
    retry = f"study retry{', with fewer runs at a time,' if reasons.str.startswith('OOM').any() else ''}"
    ways = [*([retry] if failed.any() else []), *([] if failed.all() else ["a larger budget or other learning rates"])]
    return f" ({reasons_told(reasons)}). The ledger says nothing about loss yet; {' or '.join(ways)} may"


def verdict(pairs: Sequence[Comparison]) -> str:
    """How many pairs, all of shapes or all of settings, are decided, and for which side."""
    of_shapes = pairs[0].of_shapes
    n, equal = plural(len(pairs), "pair"), f"equal {pairs[0].equal}"
    if why := _why_unknown(pairs):
        return f"Not decided: {n} at {equal}, but {why}."
    if not any(pair.status == "decided" for pair in pairs):
        return f"Not decided: none of {n} at {equal} differs beyond chance (Holm, 5%)."
    counts = "; ".join(_counts_of_shapes(pairs) if of_shapes else _counts_of_settings(pairs))
    units = {pair.budget.unit for pair in pairs}
    words = f"at {equal} and {units.pop() if len(units) == 1 else 'budget'}, {counts} (Holm, 5%)."
    winner = _winner(pairs)
    if winner is None:
        return words[0].upper() + words[1:]
    return f"{winner}{' in every pair' if len(pairs) > 1 else ''}: {words}"


def _why_unknown(found: Sequence[Judged]) -> str:
    """Why chance between seeds is known of none of these differences; empty where it is of any."""
    if any(one.status != "no_seed_replicates" for one in found):
        return ""
    alone = all(max(one.difference.n_seeds) < 2 for one in found)
    why = "no cell has two usable seeds" if alone else "each has a cell of one seed, beside others that scatter unevenly"
    return f"{why}, so chance between seeds is unknown"


def _counts_of_shapes(pairs: Sequence[Comparison]) -> Iterator[str]:
    """Of the pairs that weigh each size, in how many more of it is better."""
    weighed = {size: among for size in WEIGHED if (among := [pair for pair in pairs if pair.weighs == size])}
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
        higher = (f"{other}{_in_places(below[lower, other], places[frozenset((lower, other))])}" for _, other in than)
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


def run_count(evidence: Evidence) -> str:
    """How many runs there are, ended and used."""
    ended, excluded = len(evidence.ledger), len(evidence.excluded)
    started = f"{ended} of {plural(evidence.runs_started, 'run')} ended" if evidence.runs_started else "no run was started"
    return f"{started}, {excluded} excluded" if excluded else started


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
    words = f"{told.first} minus {told.second}: {told.difference.to_text()}"
    if decided:
        return f"{name}: {told.lower} is lower, {words}; {decided} of {plural(len(pairs), 'pair')} decided."
    largest = "the largest difference is " if len(pairs) > 1 else ""
    return f"{name}: nothing decided; {largest}{words}{_chance(told)}."


def _chance(undecided: Judged) -> str:
    """The p-value of what Holm's procedure leaves undecided, beside an interval that is for this difference alone."""
    return "" if undecided.p_value_holm is None else f"; Holm's p {undecided.p_value_holm:.2g}"


def _averages(averages: Sequence[Average]) -> Iterator[str]:
    """The averages over places of two shapes or two settings, all of one kind.

    Of several it is told what each is above the one that is below all others. There may be none, where not all were compared
    with each other, or not at the same places; then each average is told.
    """
    groups = _connected(averages)
    for alike in groups[:MOST_FAMILIES]:
        counts = {len(average.places) for average in alike}
        over = f"over {counts.pop()} places" if len(counts) == 1 else "over places"
        names = dict.fromkeys(name for average in alike for name in (average.second, average.first))
        wins = Counter(average.lower for average in alike)
        lowest = next((name for name in names if wins[name] == len(names) - 1), None)
        if lowest is None or len(alike) == 1:
            clauses = (f"{average.first} minus {average.second}: {_average_clause(average)}" for average in alike)
            yield f"Averaged {over}, {'; '.join(clauses)} (Holm, 5%)."
            continue
        above = [one.reversed if one.first == lowest else one for one in alike if lowest in (one.first, one.second)]
        yield f"Averaged {over}, {lowest} has the lowest mean. The others minus it, {_judged(above)} (Holm, 5%)."
    if more := groups[MOST_FAMILIES:]:
        rest = plural(len(more), "more group")
        kind = "shapes" if averages[0].of_shapes else "settings"
        yield f"The averages of {rest} of {kind} are in the table of averages over places."


def _judged(averages: Sequence[Average]) -> str:
    """Averages over places with their intervals, those of one status together and the decided ones first."""
    by_status = grouped(sorted(averages, key=lambda average: average.status), lambda average: average.status)
    return "; ".join(
        f"{status.replace('_', ' ')}: {', '.join(f'{one.first} {one.difference.to_text()}{_opposed(one)}' for one in alike)}"
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
    return f"{average.difference.to_text()}, {average.status.replace('_', ' ')}, {span_of_places}{_opposed(average)}"


def _opposed(average: Average) -> str:
    return ", decided either way, so the average hides what it depends on" if average.opposed else ""


def _cut_sentences(evidence: Evidence) -> Iterator[str]:
    """A sentence for each donor at each budget: for each number of layers cut off, the way that costs least."""
    for (whole, budget), cuts in grouped(evidence.cuts, lambda cut: (cut.whole, cut.budget)).items():
        clauses = []
        for layers, ways in grouped(cuts, lambda cut: cut.layers).items():
            least = min(ways, key=lambda cut: cut.difference.estimate_nats)
            which = f" at the least of {len(ways)} ways" if len(ways) > 1 else ""
            clauses.append(f"cutting off {plural(layers, 'layer')} costs {least.difference.to_text()}{which}, {least.cut}")
        yield f"Of {whole} at {budget}, {'; '.join(clauses)}."


def _best(evidence: Evidence) -> Iterator[str]:
    """The front of each budget and validation set, and what steps to a larger size bought."""
    for (of, _), cells in grouped(evidence.front, lambda cell: (cell.budget, cell.validation)).items():
        *smaller, best = cells
        size = f"({compact(best.parameters)} parameters)"
        words = f"{best.words}, {best.loss_nats:.4f} nats {size}{_like(best, evidence)}{_next(best, evidence)}"
        shown = "; ".join(f"{cell.words} {cell.loss_nats:.4f} at {compact(cell.parameters)}" for cell in smaller)
        cheaper = f"; the front below that size: {shown}" if smaller else ""
        yield f"Lowest loss at {budget_words(of)}: {words}{cheaper}."
    for front in flops_fronts_of(evidence.cells):
        shown = "; ".join(
            f"{cell.setting}, {budget_words(cell.budget)}: {cell.loss_nats:.4f} at {cell.train_flops:.3g}" for cell in front
        )
        name = front[0].architecture.shape_name
        yield f"Front of loss (nats) against train_flops, a teacher's among them, of {name}: {shown}."
    if evidence.gains:
        yield from _steps(evidence.gains)


def _like(cell: Cell, evidence: Evidence) -> str:
    """How many of the cells that one was compared with, in pairs or steps, are not told apart from it; empty where all are."""
    beside = _beside(cell, evidence)
    others, alike = {other for other, _ in beside}, {other for other, status in beside if status != "decided"}
    which = "any cell" if alike == others else f"{len(alike)} of the {len(others)} cells"
    return f", not told apart from {which} that it was compared with" if alike else ""


def _beside(cell: Cell, evidence: Evidence) -> list[tuple[str, str]]:
    """The names of the cells that one was compared with in pairs or steps, each with the verdict."""
    found = [(pair.first_cell, pair.second_cell, pair.status) for pair in evidence.comparisons.pairs]
    found += [(gain.smaller_cell, gain.larger_cell, gain.status) for gain in evidence.gains]
    return [(two if one == cell.name else one, status) for one, two, status in found if cell.name in (one, two)]


def _next(best: Cell, evidence: Evidence) -> str:
    """The next lowest cell minus the best, where no pair or step compares the two: chance may have put them in their order."""
    alike = [cell for cell in measured(evidence.cells) if (cell.budget, cell.validation) == (best.budget, best.validation)]
    others = [cell for cell in alike if cell.name != best.name]
    second = min(others, key=lambda cell: float(cell.losses.mean()), default=None)
    if second is None or any(second.name == other for other, _ in _beside(best, evidence)):
        return ""
    above = difference_between(second, best, evidence.comparisons.seed_variances)
    return f"; the next, {second.words}, minus it {above.to_text()}"


def _steps(gains: Sequence[Gain]) -> Iterator[str]:
    """How many steps to a larger size lower the loss and how many raise it; those in full that buy or cost most."""
    yield _counted_steps(gains, f"{plural(len(gains), 'step')} to a larger size")
    decided = [gain for gain in gains if gain.status == "decided"]
    yield from map(_gain_sentence, [gain for gain in decided if gain.difference.estimate_nats < 0][:GAINS_TOLD])
    raising = [gain for gain in decided if gain.difference.estimate_nats >= 0]
    if raising:
        raising.sort(key=lambda gain: -gain.difference.estimate_nats)
        told = "; ".join(f"{gain.step} {gain.difference.to_text()}" for gain in raising[:GAINS_TOLD])
        yield f"{'The widest that raise it' if len(raising) > GAINS_TOLD else 'Raising it'}: {told}."


def _counted_steps(gains: Sequence[Gain] | Sequence[TokenGain], steps: str) -> str:
    """How many steps lower the loss and how many raise it, or why that is not known."""
    if why := _why_unknown(gains):
        return f"Not decided: {steps}, but {why}."
    decided = [gain for gain in gains if gain.status == "decided"]
    if not decided:
        return f"Not decided: none of {steps} changes the loss beyond chance (Holm, 5%)."
    lower = sum(gain.difference.estimate_nats < 0 for gain in decided)
    more = len(decided) - lower
    counts = f"{lower} {'lowers' if lower == 1 else 'lower'} the loss, {more} {'raises' if more == 1 else 'raise'} it"
    return f"Of {steps} {counts}, undecided {len(gains) - len(decided)} (Holm, 5%)."


def _gain_sentence(gain: Gain) -> str:
    return (
        f"{gain.step}: {gain.difference.to_text()} for {compact(gain.parameters_added)} more parameters_encoder, "
        f"{gain.nats_lowered_per_million:+.3f} nats lowered per million."
    )


def _longest(evidence: Evidence) -> Iterator[str]:
    """What the step to the largest budget bought each shape and setting; of many how many gained, and the largest gains."""
    last = list({(gain.shape, gain.setting): gain for gain in evidence.token_gains}.values())
    if len(last) > GAINS_TOLD:
        counts = _counted_steps(last, f"{len(last)} last steps to a larger budget")
        last = sorted((gain for gain in last if gain.status == "decided"), key=lambda gain: -gain.nats_lowered_per_doubling)
        yield f"{counts[:-1]}; most of the decided, per doubling of the tokens:" if last else counts
    yield from map(_token_gain_sentence, last[:GAINS_TOLD])


def _token_gain_sentence(gain: TokenGain) -> str:
    if gain.status == "undecided":
        return f"{gain.step}: undecided, {gain.difference.to_text()}{_chance(gain)}."
    lowered = f"{gain.nats_lowered_per_doubling:+.3f} nats lowered per doubling of the tokens"
    return f"{gain.step}: {gain.difference.to_text()}, {lowered}."
