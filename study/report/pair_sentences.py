"""Sentences about pairs: over all, by family, and averaged over conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pandas as pd

from study.base.grouping import grouped
from study.base.quantities import plural, signed
from study.base.schema import flatten
from study.base.text import joined, status_words
from study.config.presets import PRESET, PRESETS
from study.evidence.cells import CellResult
from study.evidence.comparisons import WEIGHED, Average, Comparison, Pair
from study.evidence.evidence import Evidence
from study.evidence.paired import TestedDifference, Verdict

PairT = TypeVar("PairT", bound=Pair)

MOST_FAMILIES = 3
"""The most families with a sentence each; of more, two have, and the tables have all."""

_SIDES = {
    "depth": ("the deeper shape", "the shallower"),
    "width": ("the wider shape", "the narrower"),
    "ffn": ("the shape of larger FFN", "that of smaller"),
    "heads": ("the shape of more heads", "that of fewer"),
}
"""The sides of a pair that weighs a size: the first shape, with more of it, and the second."""

_HAS_MORE = {"width": " (wider)", "ffn": " (of larger FFN)", "heads": " (of more heads)"}
"""The size of which the second shape has more."""

_LOWERS = {
    "depth": "Depth lowers loss",
    "width": "Width lowers loss",
    "ffn": "A larger FFN lowers loss",
    "heads": "More heads lower loss",
}
_LESS_LOWERS = {"ffn": "A smaller FFN lowers loss", "heads": "Fewer heads lower loss"}
"""For a second shape with more of nothing; less depth or width at equal parameters is more of something."""


_TRAINING = {"more tokens": "budgets", "another learning rate": "tune"}
_PARTS = {
    "rotary positions": "architecture.position_encoding",
    "a learned bias by distance": "architecture.distance_bias",
    "more masks": "recipe.masking.rate",
    "Muon": "recipe.optimizer",
}
"""Parts that let an encoder read word order, with their knobs; the plateau lasts longest with learned positions."""

_MODERN = flatten(PRESETS["modern"])
"""The preset that has all parts, by knob."""


def parts_lacking(evidence: Evidence) -> tuple[str, ...]:
    """Return the parts that some run lacks of those that read no word order; of all runs, if that is none.

    Leaves out what the sweep compares, which `base` cannot set.
    """
    ledger, varied = evidence.ledger, evidence.sweep.varied
    unread = ledger[ledger["reads_order"].eq(False)] if "reads_order" in ledger else ledger
    runs = ledger if unread.empty else unread
    given = {part: knob for part, knob in _PARTS.items() if knob not in varied and PRESET not in varied}
    return tuple(part for part, knob in given.items() if not _has(runs, knob).all())


def _has(runs: pd.DataFrame, knob: str) -> pd.Series[bool]:
    value, values = _MODERN[knob], runs.reindex(columns=[knob])[knob]
    return values.eq(value) if isinstance(value, str) else values.ge(value)


def what_helps(lacking: Collection[str]) -> str:
    """Return what may let encoders read word order, as a list in words."""
    return joined([*_TRAINING, *lacking], "or")


def reading_remedies(lacking: Collection[str]) -> str:
    """Return the same with the keys of a sweep file, as the end of a sentence."""
    parts = {part: f"base.{knob}: {_MODERN[knob]}" for part, knob in _PARTS.items() if part in lacking}
    return f"{joined([f'{what} ({key})' for what, key in (_TRAINING | parts).items()], 'or')} may let them read it"


def verdict(pairs: Sequence[Comparison], lacking: Collection[str]) -> str:
    """How many pairs, all of shapes or all of variants, are decided and for which side; for the others why not.

    The verdict on variants is conditional if it is unknown whether the encoders read word order, and says which parts may let
    them if they lack them.
    """
    compared = [pair for pair in pairs if pair.without_order is None]
    unread = [pair for pair in pairs if pair.without_order]
    if not compared:
        return f"No verdict at equal {pairs[0].equal}: {_unread(unread)}; {without_order_remedy(unread, lacking)}."
    words = _verdict(compared, None if unread else _winner(compared))
    if unread:
        words += f" No verdict on more: {_unread(unread)}."
    unknown = sum(pair.reads_order is None for pair in compared)
    if not unknown:
        return words
    which = "these encoders" if unknown == len(pairs) else f"the encoders of {plural(unknown, 'pair')}"
    return f"If {which} read word order, which was not measured: {words[0].lower()}{words[1:]}"


def _unread(pairs: Sequence[Comparison]) -> str:
    who, of = ("an encoder reads no", "shapes") if pairs[0].of_shapes else ("neither encoder reads", "variants")
    reasons: dict[Verdict, str] = {
        "reads_no_order": f"{who} word order, so that the losses say nothing of the {of}",
        "order_not_measured": "whether both encoders read word order was not measured, without which losses say little",
    }
    counts = Counter(pair.without_order for pair in pairs)
    return ", and ".join(f"in {plural(counts[why], 'pair')} {words}" for why, words in reasons.items() if counts[why])


def without_order_remedy(differences: Sequence[TestedDifference], lacking: Collection[str]) -> str:
    """Return what would give differences without a verdict one: encoders that read word order, or measure it."""
    if any(one.without_order == "reads_no_order" for one in differences):
        return reading_remedies(lacking)
    return "new runs measure it"


def _verdict(pairs: Sequence[Comparison], winner: str | None) -> str:
    of_shapes = pairs[0].of_shapes
    n, equal = plural(len(pairs), "pair"), f"equal {pairs[0].equal}"
    if why := why_unknown(pairs):
        return f"Not decided: {n} at {equal}, but {why}."
    if not any(pair.status == "decided" for pair in pairs):
        tested = plural(sum(pair.status != "no_seed_replicates" for pair in pairs), "pair")
        return f"Not decided: none of {n if tested == n else f'{tested} tested'} at {equal} differs beyond chance (Holm, 5%)."
    counts = "; ".join(_counts_of_shapes(pairs) if of_shapes else _counts_of_settings(pairs))
    units = {pair.budget.unit for pair in pairs}
    words = f"at {equal.replace(' and ', ', ')} and {units.pop() if len(units) == 1 else 'budget'}, {counts} (Holm, 5%)."
    if winner is None:
        return words[0].upper() + words[1:]
    return f"{winner}{' in every pair' if len(pairs) > 1 else ''}: {words}"


def why_unknown(differences: Sequence[TestedDifference]) -> str:
    """Why none of these differences has a known scatter between seeds; empty if any has."""
    if any(one.status != "no_seed_replicates" for one in differences):
        return ""
    alone = all(max(one.difference.n_seeds) < 2 for one in differences)
    why = "no cell has two usable seeds" if alone else "each has a cell of one seed, beside others that scatter unevenly"
    return f"{why}, so chance between seeds is unknown"


def _counts_of_shapes(pairs: Sequence[Comparison]) -> Iterator[str]:
    weighed = {size: among for size in WEIGHED if (among := [pair for pair in pairs if pair.weighs == size])}
    for size, among in weighed.items():
        more, less = _SIDES[size]
        against = {pair.against for pair in among if pair.status == "decided"}
        less += _HAS_MORE.get(str(against.pop()), "") if len(against) == 1 else ""
        yield _counts(among, f" of unequal {size}" if len(weighed) > 1 else "", more, less)


def _counts_of_settings(pairs: Sequence[Comparison]) -> Iterator[str]:
    """For each knob, how often either of two values is lower, or which of several is lower than which."""
    for among in grouped(pairs, lambda pair: pair.weighs).values():
        first, second, *more = dict.fromkeys(value for pair in among for value in (pair.first, pair.second))
        yield _lower_ones(among) if more else _counts(among, "", first, second)


def _lower_ones(pairs: Sequence[Comparison]) -> str:
    """Which of several variants are lower than which, with the number of conditions."""
    conditions = Counter(frozenset((pair.first, pair.second)) for pair in pairs)
    decided = [pair for pair in pairs if pair.status == "decided"]
    below = Counter((pair.lower, pair.second if pair.first_is_lower else pair.first) for pair in decided)
    clauses = []
    for lower, than in grouped(below, lambda sides: sides[0]).items():
        higher = (f"{other}{_in_conditions(below[lower, other], conditions[frozenset((lower, other))])}" for _, other in than)
        clauses.append(f"{lower} is lower than {' and '.join(higher)}")
    wins = f": {', '.join(clauses)}" if clauses else ""
    return f"of {plural(len(pairs), 'pair')} {len(decided)} {'is' if len(decided) == 1 else 'are'} decided{wins}"


def _in_conditions(decided: int, conditions: int) -> str:
    return f" in {decided} of {conditions}" if conditions > 1 else ""


def _counts(pairs: Sequence[Comparison], kind: str, first: str, second: str) -> str:
    """How many pairs favour the first side, the second, and neither, and how many have no seeds to tell."""
    by_status = Counter(pair.status for pair in pairs)
    lower = sum(pair.first_is_lower for pair in pairs if pair.status == "decided")
    counts = f"{first} is lower in {lower}, {second} in {by_status['decided'] - lower}, undecided {by_status['undecided']}"
    untested = f", untested {by_status['no_seed_replicates']}" if by_status["no_seed_replicates"] else ""
    return f"of {plural(len(pairs), 'pair')}{kind} {counts}{untested}"


def _winner(pairs: Sequence[Comparison]) -> str | None:
    """Return what lowers the loss more, if every pair is decided and says the same of the same sizes or variants."""
    pair = pairs[0]
    if pair.of_shapes:
        what = what_lowers(pairs)
        return f"{what} more" if what else None
    verdicts = {(other.first, other.second, other.lower) for other in pairs}
    return f"{pair.lower} is lower" if len(verdicts) == 1 and all(other.status == "decided" for other in pairs) else None


def what_lowers(pairs: Sequence[Comparison]) -> str | None:
    """Return what lowers the loss in pairs of shapes, if all are decided for the same side of the same sizes; else None."""
    pair = pairs[0]
    verdicts = {(other.weighs, other.against, other.first_is_lower) for other in pairs}
    if len(verdicts) > 1 or any(other.status != "decided" for other in pairs):
        return None
    if pair.first_is_lower:
        return _LOWERS[pair.weighs]
    return _LESS_LOWERS.get(pair.weighs) if pair.against is None else _LOWERS[pair.against]


def pair_kinds(evidence: Evidence) -> dict[tuple[bool, str], list[Comparison]]:
    """Return the pairs by `kind_of`, variants first: a sweep that varies one asks about it."""
    kinds = grouped(evidence.comparisons.pairs, kind_of)
    return dict(sorted(kinds.items(), key=lambda kind: kind[1][0].of_shapes))


def kind_of(pair: Pair) -> tuple[bool, str]:
    """Whether shapes are compared, and at what equal quantity."""
    return pair.of_shapes, pair.equal


def family_sentences(pairs: Sequence[Comparison]) -> Iterator[str]:
    """One sentence per family; of more than MOST_FAMILIES, the two whose largest decided differences are extreme."""
    families = grouped(pairs, lambda pair: pair.family)
    shown = {name: _largest(among) for name, among in families.items()}
    if len(families) <= MOST_FAMILIES:
        yield from (_family_sentence(name, pair, families[name]) for name, pair in shown.items())
        return
    decided = [name for name, pair in shown.items() if pair.status == "decided"]
    ordered = sorted(decided or shown, key=lambda name: -abs(shown[name].difference.estimate_nats))
    which = "Largest decided" if decided else "Largest"
    yield f"{which} of {len(families)} families: {_family_sentence(ordered[0], shown[ordered[0]], families[ordered[0]])}"
    if len(decided) > 1:
        yield f"Smallest decided: {_family_sentence(ordered[-1], shown[ordered[-1]], families[ordered[-1]])}"


def _largest(pairs: Sequence[Comparison]) -> Comparison:
    """Return a family's largest difference: of the decided ones if any, else of those that allow a verdict."""
    decided = [pair for pair in pairs if pair.status == "decided"]
    compared = [pair for pair in pairs if pair.without_order is None]
    return max(decided or compared or pairs, key=lambda pair: abs(pair.difference.estimate_nats))


def _family_sentence(name: str, shown: Comparison, pairs: Sequence[Comparison]) -> str:
    decided = sum(pair.status == "decided" for pair in pairs)
    words = f"{shown.first} minus {shown.second}: {shown.difference.to_text()}"
    if decided:
        return f"{name}: {shown.lower} is lower, {words}; {decided} of {plural(len(pairs), 'pair')} decided."
    largest = "the largest difference is " if len(pairs) > 1 else ""
    none = "no verdict, for want of word order" if shown.without_order else "nothing decided"
    return f"{name}: {none}; {largest}{words}{chance_words(shown)}."


def chance_words(undecided: TestedDifference) -> str:
    """Return the p-value of an undecided difference by Holm's procedure."""
    return "" if undecided.p_value_holm is None else f"; Holm's p {undecided.p_value_holm:.2g}"


def average_sentences(averages: Sequence[Average]) -> Iterator[str]:
    """Yield the averages over conditions, all of shapes or all of variants, at one equal quantity.

    Of several, it gives each excess over the lowest; without a lowest, each average.
    """
    kinds = grouped(averages, lambda average: average.one_reads).values()
    groups = [group for kind in kinds for group in connected(kind)]
    for group in groups[:MOST_FAMILIES]:
        names = dict.fromkeys(name for average in group for name in (average.second, average.first))
        wins = Counter(average.lower for average in group)
        lowest = next((name for name in names if wins[name] == len(names) - 1), None)
        if lowest is None or len(group) == 1:
            clauses = (f"{average.first} minus {average.second}: {_average_clause(average)}" for average in group)
            yield f"Averaged {_over(group)}, {'; '.join(clauses)} (Holm, 5%)."
            continue
        above = [one.reversed if one.first == lowest else one for one in group if lowest in (one.first, one.second)]
        yield f"Averaged {_over(above)}, {lowest} has the lowest mean. The others minus it, {_test_columns(above)} (Holm, 5%)."
    if more := groups[MOST_FAMILIES:]:
        rest = plural(len(more), "more group")
        kind = "shapes" if averages[0].of_shapes else "variants"
        yield f"The averages of {rest} of {kind} are in the table of averages over conditions."


def _over(averages: Sequence[Average]) -> str:
    """Over which conditions averages are taken, in words; those of several kinds are of any."""
    counts, among = {len(average.places) for average in averages}, {average.among for average in averages}
    number = f"{counts.pop()} conditions" if len(counts) == 1 else "conditions"
    return f"over {number} {among.pop() if len(among) == 1 else ''}".rstrip()


def _test_columns(averages: Sequence[Average]) -> str:
    by_status = grouped(sorted(averages, key=lambda average: average.status), lambda average: average.status)
    return "; ".join(
        f"{status_words(status)}: {', '.join(f'{one.first} {one.difference.to_text()}{_opposed(one)}' for one in group)}"
        for status, group in by_status.items()
    )


@dataclass(frozen=True)
class AssumedRates:
    """Transferred rates in decided pairs of cells deeper or wider than every cell of their variant that searched its rate.

    `searched` and `farthest` are depths or widths in words, `last` the largest of those searched; `pairs` is how many decided
    pairs have such a cell.
    """

    searched: str
    last: str
    farthest: str
    pairs: int


def assumed_rates(evidence: Evidence, pairs: Sequence[Comparison]) -> AssumedRates | None:
    """Return the transferred rates that decided pairs carry beyond what was searched; None without any."""
    cells = {cell.name: cell for cell in evidence.cells}
    searched = grouped([cell for cell in evidence.cells if cell.rates.status == "bracketed"], lambda cell: cell.setting)

    def beyond(cell: CellResult, size: str) -> set[int]:
        """Return the values of a size that searched a cell's rate, where its own is larger than all of them."""
        known = {getattr(one.architecture, size) for one in searched.get(cell.setting, ())}
        is_far = cell.rates.status == "transferred" and getattr(cell.architecture, size) > max(known)
        return known if is_far else set()

    both = [[cells[pair.first_cell], cells[pair.second_cell]] for pair in pairs if pair.status == "decided"]
    known, last, farthest = list[str](), list[str](), list[str]()
    for size in ("depth", "width"):
        if far := [cell for sides in both for cell in sides if beyond(cell, size)]:
            tried = sorted(set[int]().union(*(beyond(cell, size) for cell in far)))
            known.append(f"{size}{'s' if len(tried) > 1 else ''} {joined([*map(str, tried)])}")
            last.append(f"{size} {tried[-1]}")
            farthest.append(f"{size} {max(getattr(cell.architecture, size) for cell in far)}")
    concerned = sum(any(beyond(cell, size) for cell in sides for size in ("depth", "width")) for sides in both)
    return AssumedRates(joined(known), joined(last), joined(farthest), concerned) if concerned else None


def connected(pairs: Sequence[PairT]) -> list[list[PairT]]:
    """Return the pairs in groups of shapes or variants compared with one another."""
    groups: list[list[PairT]] = []
    for pair in pairs:
        sides = {pair.first, pair.second}
        touched = [group for group in groups if any({one.first, one.second} & sides for one in group)]
        groups = [group for group in groups if group not in touched]
        groups.append([*(one for group in touched for one in group), pair])
    return groups


def _average_clause(average: Average) -> str:
    shown = average.in_unit
    span = f"{signed(shown.least_nats)} to {signed(shown.most_nats)} at its {len(average.places)} conditions"
    return f"{average.difference.to_text()}, {status_words(average.status)}, {span}{_opposed(average)}"


def _opposed(average: Average) -> str:
    return ", decided either way, so the average hides what it depends on" if average.opposed else ""
