"""The verdict of a sweep: a one-sentence answer, its certainty, and what would change it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from scipy.stats import norm

from study.base.grouping import grouped
from study.base.quantities import EQUAL_WITHIN, budget_words, plural, plus_minus, span
from study.base.statistics import CONFIDENCE
from study.base.text import at_budget, joined, printable
from study.config.sweep import GoalSweep
from study.counting.architecture import NONE
from study.evidence.cells import CellResult, by_budget, run_ids_in, shorten_run_ids
from study.evidence.comparisons import Average, Comparison, Pair, averages_of
from study.evidence.downstream import DownstreamEvidence
from study.evidence.evidence import Evidence
from study.evidence.gains import Gain, Spending, TokenGain
from study.evidence.ledgers import UNIQUE_TOKENS
from study.evidence.paired import Difference, TestedDifference, adjust_by_holm
from study.evidence.rate_transfer import RateTransfer
from study.evidence.score_trends import Verdict as TrendVerdict
from study.laws.law_fits import LawFit
from study.plotting.paired_differences import MOST_PAIRS
from study.report.findings import compression_words, missing_comparison, run_count, why_excluded
from study.report.pair_sentences import (
    assumed_rates,
    connected,
    kind_of,
    pair_kinds,
    parts_lacking,
    what_helps,
    what_lowers,
    why_unknown,
    without_order_remedy,
)
from study.report.plain_words import is_asked_of, plain_words
from study.report.score_sentences import best_variant

MOST_NAMES = 4
"""The most tasks or conditions that a verdict names; it counts the rest."""

MOST_KINDS = 2
"""The most kinds of comparison in a verdict; the findings have all."""


@dataclass(frozen=True)
class Verdict:
    """The answer to a sweep's question: a `sentence`, its `certainty`, and what would `change` it.

    `figures` names its figures, the best first; `about` is the kind of finding that it sums up; `also` has sentences on what
    the question does not ask.
    """

    sentence: str
    certainty: str
    change: str
    figures: tuple[str, ...]
    about: Literal["loss", "downstream"] = "loss"
    also: tuple[str, ...] = ()


def verdict_of(evidence: Evidence) -> Verdict:
    """Return the verdict on the topic of the sweep's question: scores, tokens, or the loss of shapes and variants."""
    if not any(cell.usable for cell in evidence.cells):
        sentence = printable(f"No answer yet: {run_count(evidence)}{why_excluded(evidence)}.")
        return Verdict(sentence, "No run can be used.", "runs that end and learn", ("learning_rate", "loss_curves"))
    answer = next((answer for asks, answer in _TOPICS if asks(evidence)), _lowest)
    verdict = answer(evidence)
    return replace(verdict, certainty=f"{_unmeasured_order(evidence)}{verdict.certainty}")


def _unmeasured_order(evidence: Evidence) -> str:
    """Return what a verdict is not, where encoders did not measure whether they read word order; empty if all did."""
    usable = [cell for cell in evidence.cells if cell.usable]
    unknown = sum(cell.reads_order is None for cell in usable)
    if not unknown:
        return ""
    which = "these encoders" if unknown == len(usable) else f"{unknown} of {plural(len(usable), 'cell')}"
    return f"Whether {which} read word order was not measured, which leaves no verdict on shapes. "


def asks_about(evidence: Evidence, *words: str) -> bool:
    """Whether the question contains any of some words, such as `parameter`, but not in what is held equal or in an amount."""
    given = r"\bequal [\w-]+( parameters)?|\bat one \w+(, \w+)*( and \w+)?|\b\d[\d.,]*[a-z]? ([\w-]+ )?(parameters|tokens)\b"
    question = re.sub(given, "", evidence.sweep.question.lower())
    return any(re.search(rf"\b{word}s?\b", question) for word in words)


def _on_scores(evidence: Evidence) -> Verdict:
    scores = evidence.downstream
    assert scores is not None
    variants = best_variant(scores)
    clauses = [variants or _trends(scores)]
    if not variants and asks_about(evidence, "larger", "size") and (of_largest := _of_largest(scores)):
        clauses.insert(0, of_largest)
    if asks_about(evidence, "untrained") and (beside := _beside_untrained(scores)):
        clauses.insert(0, beside)
    if asks_about(evidence, "cut") and evidence.cuts:
        clauses.insert(0, _cuts(evidence))
    encoders, tasks = plural(max(len(task.compared) for task in scores.tasks), "encoder"), plural(len(scores.tasks), "task")
    if any(task.validations > 1 for task in scores.tasks):
        encoders += " whose losses compare"
    if variants:
        over = "examples alone, of one seed" if scores.of_one_seed else "examples and seeds"
        certainty = f"Tests at 5%, adjusted by Bonferroni over all pairs; noise is over {over}."
    elif _untested(scores):
        certainty = f"Scores are not tested: the {encoders} share layers or a trunk, so that they are no independent draws."
    else:
        certainty = f"Permutation tests at 5% over {encoders}, adjusted by Holm over {tasks}."
    if scores.of_one_seed and not variants:
        certainty += " The noise of a score is over examples alone, of one seed."
    change = "encoders of more sizes, and more seeds of pre-training and of fine-tuning"
    figures = ("score_against_flops",) if variants else ("score_against_loss", "score_against_parameters")
    return Verdict(_sentence(evidence, clauses), certainty, change, figures, "downstream")


def _untested(scores: DownstreamEvidence) -> bool:
    return any(task.trend is not None and task.trend.verdict == "untested" for task in scores.tasks)


def _beside_untrained(scores: DownstreamEvidence) -> str:
    compared = [task for task in scores.tasks if task.beside_untrained.of]
    if not compared:
        return ""
    above = [task.task for task in compared if task.above_untrained[0]]
    best = max(compared, key=lambda task: float((task.points["score"] - task.points["random"]).max()))
    row = best.points.iloc[int((best.points["score"] - best.points["random"]).argmax())]
    most = f"most on {best.task} ({plus_minus(row['score'], row['half'], 3)} against {row['random']:.3f})"
    where = f"on {_tasks(above, len(compared))}, {most}" if above else f"on none of {plural(len(compared), 'task')}"
    return f"trained encoders beat chance and the same encoders untrained {where}"


def _of_largest(scores: DownstreamEvidence) -> str:
    """On how many tasks the largest encoder scores highest, and its mean score beside the highest; empty for one encoder."""
    tasks = [task for task in scores.tasks if len(task.points) > 1]
    if not tasks:
        return ""
    highest = sum(task.best["parameters"] == task.points["parameters"].max() for task in tasks)
    shown = scores.average or tasks[0]
    largest = shown.points.nlargest(1, ["parameters", "score"]).iloc[0]
    best = shown.best
    low, high = (largest["score"] + side * largest["half"] for side in (-1, 1))
    where = "on average" if scores.average else f"on {shown.task}"
    mean = f"{largest['score']:.3f} (95% interval {low:.3f} to {high:.3f}) {where}"
    beside = "" if best["name"] == largest["name"] else f" against {best['score']:.3f} for {best['name']}"
    return f"the largest encoder scores highest on {highest or 'none'} of {plural(len(tasks), 'task')}, with {mean}{beside}"


_TRENDS: dict[TrendVerdict, str] = {
    "monotone": "follow the loss on",
    "rises": "rise as the loss falls, with exceptions, on",
    "falls": "fall as the loss falls on",
    "undecided": "show no significant relation to the loss on",
}


def _trends(scores: DownstreamEvidence) -> str:
    verdicts = {task.task: task.trend.verdict for task in scores.tasks if task.trend is not None}
    by_verdict = grouped(verdicts, verdicts.__getitem__)
    parts = [f"{words} {_tasks(by_verdict[name], len(scores.tasks))}" for name, words in _TRENDS.items() if name in by_verdict]
    average = _average_trend(scores)
    if parts:
        return f"scores {joined(parts)}{average and f', with {average}'}"
    return f"scores have {average}" if average else "too few encoders were scored to relate scores to the loss"


def _average_trend(scores: DownstreamEvidence) -> str:
    if scores.average is None or scores.average.trend is None:
        return ""
    trend = scores.average.trend
    interval = "no interval" if trend.low is None else f"95% interval {trend.low:+.2f} to {trend.high:+.2f}"
    size = scores.average.untrained
    beside = f", where they have {size.score:+.2f} untrained and what training adds has {size.gain:+.2f}" if size else ""
    return f"a rank correlation of {trend.correlation:+.2f} ({interval}) with the falling loss on average{beside}"


def _on_compressions(evidence: Evidence) -> Verdict:
    clauses = [compression_words(one).removesuffix(".").partition("; ") for one in evidence.compressions[:MOST_KINDS]]
    certainty = f"Each interval is for its pair alone. {_measured_over([one.against_source for one in evidence.compressions])}"
    figures = ("loss_against_parameters",)
    also = tuple(_sentence(evidence, [made]) for _, _, made in clauses if made)
    sentence = _sentence(evidence, [clause for clause, *_ in clauses])
    return Verdict(sentence, certainty, _larger_sweep(evidence), figures, also=also)


def _on_cuts(evidence: Evidence) -> Verdict:
    certainty = f"Each interval is for its pair alone. {_measured_over([cut.difference for cut in evidence.cuts])}"
    figures = ("loss_by_depth", "loss_against_parameters")
    also = tuple(_sentence(evidence, [clause]) for clause in _asked_and_others(evidence)[0])
    return Verdict(_sentence(evidence, [_cuts(evidence)]), certainty, _larger_sweep(evidence), figures, also=also)


def _cuts(evidence: Evidence) -> str:
    """Return the cost of the cheapest cuts at the largest budget, by the number of layers."""
    *_, cuts = grouped(evidence.cuts, lambda cut: (cut.whole, cut.budget)).values()
    by_layers = islice(grouped(cuts, lambda cut: cut.layers).values(), MOST_KINDS)
    least = [min(ways, key=lambda cut: cut.difference.estimate_nats) for ways in by_layers]
    costs = grouped(least, lambda cut: cut.cut.partition(" (")[2].removesuffix(")"))
    clauses = []
    for start, same in costs.items():
        of_layers = joined([f"{_cost(cut.difference)} for {plural(cut.layers, 'layer')}" for cut in same])
        clauses.append(f"{of_layers}{start and f', with {start}'}")
    return f"cutting off layers costs at least {joined(clauses)}"


def _on_spendings(evidence: Evidence) -> Verdict:
    """Return the best encoder that needs other runs, beside those from scratch of as many own FLOPs and as many in all."""
    compared = {one.needs_cell for one in evidence.spendings}
    least = min((cell for cell in evidence.cells if cell.name in compared), key=lambda cell: cell.losses.mean())
    against = [one for one in evidence.spendings if one.needs_cell == least.name and one.without_order is None]
    figures = ("loss_against_flops", "loss_against_spent_flops", "paired_differences", "loss_curves")
    if not against:
        lacking = parts_lacking(evidence)
        why = "neither encoder of a pair reads word order, so that losses say nothing of starts and teachers"
        helps = f"{what_helps(lacking)} may help"
        if not any(one.without_order == "reads_no_order" for one in evidence.spendings):
            why, helps = "whether the encoders read word order was not measured", "new runs measure it"
        remedy = without_order_remedy(evidence.spendings, lacking)
        return Verdict(f"No verdict: {why}; {helps}.", "Nothing is tested.", remedy, figures)
    own, spent = (
        max(affordable, key=lambda one: one.scratch_flops, default=None)
        for flops in (least.train_flops, least.spent_flops)
        for affordable in [[one for one in against if one.scratch_flops <= flops * (1 + EQUAL_WITHIN)]]
    )
    own = own or (min(against, key=lambda one: one.scratch_flops) if spent is None else None)
    costs: dict[Spending, list[str]] = {}
    if own is not None:
        costs.setdefault(own, []).append(f"{own.scratch_flops / own.own_flops:.2f} times its own FLOPs")
    if spent is not None:
        times = f"{spent.scratch_flops / spent.spent_flops:.2f} times"
        costs.setdefault(spent, []).append(f"{times} its FLOPs with the runs that it needs")
    beside = [_beside_scratch(one, ", ".join(flops)) for one, flops in costs.items()]
    clauses = [f"an encoder {against[0].needs} is {joined(beside)}", *_among_needing(evidence)]
    if asks_about(evidence, "start", "teacher") and not asks_about(evidence, "scratch"):
        clauses.reverse()
    pairs = plural(len(evidence.spendings), "pair")
    settings = (cell.settings for cell in evidence.cells if cell.name in compared)
    others = len(run_ids_in(value for setting in settings for value in setting.values()))
    rest = "one run" if others == 1 else plural(others, "run") if others else "other runs"
    luck = f"All rest on {rest}, whose luck no interval holds."
    measured = _measured_over([one.difference for one in against])
    certainty = f"Tests at 5%, adjusted by Holm over {pairs}. {measured} {luck}"
    also = tuple(_sentence(evidence, [clause]) for clause in clauses[1:])
    return Verdict(_sentence(evidence, clauses[:1]), certainty, _larger_sweep(evidence), figures, also=also)


def _among_needing(evidence: Evidence) -> list[str]:
    """Return the best of the variants that need other runs, at equal tokens."""
    needing = {cell.name for cell in evidence.cells if cell.flops_before}
    pairs = [pair for pair in evidence.comparisons.pairs if not pair.of_shapes and pair.without_order is None]
    among = connected([pair for pair in pairs if {pair.first_cell, pair.second_cell} <= needing])
    return [_best_of(max(among, key=len))] if among else []


def _beside_scratch(one: Spending, flops: str) -> str:
    """How far above or below training from scratch an encoder is, and what that takes."""
    side = "below" if one.difference.estimate_nats < 0 else "above"
    return f"{one.difference.size_text} {side} one trained {one.scratch} ({flops}){_unsure(one)}"


def _on_tokens(evidence: Evidence) -> Verdict:
    """Return the law if its fit converged, else what it forecasts and the gain of the largest budget."""
    law = evidence.laws.shown
    if law is not None and law.fit.status == "converged":
        clauses = [f"the loss follows {law.fit.law.formula} with {law.exponents_in_words()}"]
        sure, figures = "The law's fit converged.", ("law_fit", "loss_against_flops")
    else:
        clauses = [*([] if evidence.sweep.varied else _law_forecast(law)), _token_gain(evidence)]
        clauses += _size_gain(evidence) if asks_about(evidence, "size", *_SIZES) else []
        sure, figures = "No law's constants are determined; tests at 5% (Holm).", ("loss_against_flops", "law_fit")
    asked, _ = _asked_and_others(evidence, len(clauses) if evidence.sweep.varied else 0)
    also = () if evidence.sweep.varied else tuple(_sentence(evidence, [clause]) for clause in asked)
    clauses += asked if evidence.sweep.varied else []
    certainty = f"{sure} {_measured_over([gain.difference for gain in evidence.token_gains])}"
    return Verdict(_sentence(evidence, clauses), certainty, _larger_sweep(evidence, "longer budgets"), figures, also=also)


_SIZES = ("depth", "width", "ffn")
"""The sizes of whose steps a question may ask."""


def _law_forecast(law: LawFit | None) -> list[str]:
    """Return what the law of a sweep without variants forecasts although its constants are not all determined."""
    if law is None or isinstance(law.forecast, str) or law.forecast.status == "failed":
        return []
    forecast = law.forecast
    rows = f"the {plural(len(forecast.labels), 'row')} {forecast.rows}"
    return [f"{law.name}, {law.fit.law.formula}, forecasts {rows} with a mean error of {forecast.mean_error}"]


def _token_gain(evidence: Evidence) -> str:
    """In how many encoders the loss falls to the largest budget, and their median gain; single seeds are not tested."""
    last = list({(gain.shape, gain.setting): gain for gain in evidence.token_gains}.values())
    untested = all(gain.status == "no_seed_replicates" for gain in last)
    lower = [gain for gain in last if gain.difference.estimate_nats < 0]
    lowering = lower if untested else [gain for gain in lower if gain.status == "decided"]
    steps = {f"from {gain.shorter.removesuffix(' tokens')} to {gain.longer}" for gain in last}
    where = steps.pop() if len(steps) == 1 else "at the last step to a larger budget"
    falls = "falls" if untested else "falls significantly"
    counts = f"{where} the loss {falls} in {len(lowering)} of {plural(len(last), 'encoder')}"
    unsure = " (no interval, as single seeds test nothing)" if untested else ""
    return f"{counts}{_median_change(lowering, last)}{unsure} in the median"


def _size_gain(evidence: Evidence) -> list[str]:
    """In how many steps to a larger size, of those that the question names if any, the loss falls, and the median gain."""
    named = [size for size in _SIZES if asks_about(evidence, size)] or _SIZES
    steps = [gain for gain in evidence.gains if gain.axis in named and gain.without_order is None]
    if not steps:
        return []
    untested = all(gain.status == "no_seed_replicates" for gain in steps)
    lower = [gain for gain in steps if gain.difference.estimate_nats < 0]
    lowering = lower if untested else [gain for gain in lower if gain.status == "decided"]
    larger = joined([_MORE.get(size, f"more {size}") for size in dict.fromkeys(gain.axis for gain in steps)], "or")
    counts = f"with {larger} in {len(lowering)} of {plural(len(steps), 'step')}"
    return [f"{counts}{_median_change(lowering, steps)}"]


def _median_change(lowering: Sequence[TestedDifference], steps: Sequence[TestedDifference]) -> str:
    """By how much the median of the lowering steps lowers the loss; without one, the change of the median step."""
    among = sorted((one.difference for one in lowering or steps), key=lambda one: one.estimate_nats)
    median = among[len(among) // 2]
    return f", by {median.size_text}" if lowering else f"; it changes by {median.to_text()}"


def _on_rates(evidence: Evidence) -> Verdict:
    """How far the best learning rate moves over shapes, the variant in which it moves least first."""
    transfers = sorted(evidence.rate_transfers, key=lambda transfer: transfer.factor)
    smallest, *_, largest = transfers[0].rates
    over = f"over {plural(len(transfers[0].rates), 'shape')} from {smallest} to {largest}"
    clauses = [f"{over}, the best learning rate moves {joined([_moves(transfer) for transfer in transfers])}"]
    tried = [len(cell.rates.tried) for cell in evidence.cells if len(cell.rates.tried) > 1]
    seeds = plural(max(cell.rates.seeds for cell in evidence.cells), "seed")
    certainty = (
        f"Best rates are vertices of parabolas through the best of {min(tried)} rates or more and its neighbours, at {seeds}."
        f"{_rate_scatter(transfers)}"
    )
    change = f"more seeds, rates closer together; {_larger_sweep(evidence)}"
    return Verdict(_sentence(evidence, clauses), certainty, change, ("learning_rate", "loss_against_parameters"))


def _moves(transfer: RateTransfer) -> str:
    """By what factor the best rate of a variant moves, and between which rates."""
    lowest, highest = min(transfer.rates.values()), max(transfer.rates.values())
    bound = "at least " if transfer.unbracketed else ""
    where = f" under {transfer.setting}" if transfer.setting else ""
    low, high = transfer.interval or (None, None)
    interval = "no interval" if low is None else f"95% interval {low:.2g} to {high:.2g}"
    return f"by a factor of {bound}{transfer.factor:.2g} ({interval}){where}, from {lowest:.2g} to {highest:.2g}"


def _rate_scatter(transfers: Sequence[RateTransfer]) -> str:
    """Return what the intervals of moving rates rest on."""
    if (scatter := transfers[0].scatter) is None:
        return " No cell tried four rates that learned, so that the scatter of losses over rates is unknown."
    about = {"seeds": "over seeds", "parabolas": "about parabolas through four rates"}[scatter.about]
    freedom = f"{plural(scatter.freedom, 'degree')} of freedom"
    return f" Intervals are Tukey and Kramer's: losses scatter by {scatter.deviation_nats:.2g} nats {about} ({freedom})."


def _on_pairs(evidence: Evidence) -> Verdict:
    asked, others = _asked_and_others(evidence)
    kinds = pair_kinds(evidence).values()
    compared = [pair for among in kinds for pair in among if pair.without_order is None]
    return _over_pairs(evidence, asked, compared, evidence.averages, others)


def _over_pairs(
    evidence: Evidence,
    clauses: Sequence[str],
    compared: Sequence[Comparison],
    averages: Sequence[Average] = (),
    others: Sequence[str] = (),
) -> Verdict:
    at_a_glance = len(compared) <= MOST_PAIRS or evidence.averages
    first = ("paired_differences", "loss_by_depth") if at_a_glance else ("loss_by_depth", "paired_differences")
    figures = (*first, "loss_by_shape", "loss_against_parameters")
    sentence = _sentence(evidence, clauses)
    also = tuple(_sentence(evidence, [clause]) for clause in others)
    if not compared:
        certainty = "Losses of encoders that read no word order say nothing of their blocks, so nothing is tested."
        remedy = without_order_remedy(evidence.comparisons.pairs, parts_lacking(evidence))
        return Verdict(sentence, certainty, remedy, figures, also=also)
    certainty = f"{_certainty(evidence, compared, averages)}{_assumed(evidence, compared)}"
    return Verdict(sentence, certainty, _change(evidence, compared), figures, also=also)


def _assumed(evidence: Evidence, compared: Sequence[Comparison]) -> str:
    """Return beyond which depth or width learning rates are assumed; an open question says to which."""
    assumed = assumed_rates(evidence, compared)
    return f" Rates beyond {assumed.last} were not searched." if assumed else ""


Place = Literal["alone", "first", "further"]
"""Where a clause stands in its sentence: `first` among many, or `further` behind one of the same quantity held equal.

Among many, the number of conditions is left to the findings; a further clause leaves out what the first says.
"""


def _asked_and_others(evidence: Evidence, before: int = 0) -> tuple[list[str], list[str]]:
    """Return a clause for each knob, or for shapes, and equal quantity: those that the question asks about, and as many others.

    A question asks about the knobs that it names, else about the first, and about further equal quantities that it names.
    `before`: how many clauses precede them in their sentence.
    """
    question = evidence.sweep.question.lower()
    kinds = list(pair_kinds(evidence).values())
    if len(kinds) > 1 and _confirms(evidence, kinds[0], kinds[1]):
        del kinds[1]
    groups = [among for pairs in kinds for among in grouped(pairs, lambda pair: "" if pair.of_shapes else pair.weighs).values()]
    if not groups:
        return [], []
    same = [among for among in groups if among[0].equal == groups[0][0].equal]
    mains = [among for among in same if is_asked_of(among[0].weighs, question)] or groups[:1]
    named = [among for among in groups if any(among is main or _also_named(among, main, question) for main in mains)]
    named.sort(key=lambda among: question.find(f"equal {_last(among)}"))
    others = [among for among in groups if among not in named]
    first, *further = named
    places: list[Place] = ["first", *("further" if among[0].equal == first[0].equal else "first" for among in further)]
    if before + len(named) <= MOST_KINDS:
        places = ["alone"] * len(named)
    asked = [_pairs(evidence, among, place) for among, place in zip(named, places, strict=True)]
    return asked, [_pairs(evidence, among) for among in others[:MOST_KINDS]]


def _also_named(further: Sequence[Pair], main: Sequence[Pair], question: str) -> bool:
    """Whether a question names the equal quantities of both of two comparisons of one knob."""
    same = further[0].weighs == main[0].weighs
    return same and all(f"equal {_last(pairs)}" in question for pairs in (further, main))


def _last(pairs: Sequence[Pair]) -> str:
    """Return the last of the quantities that pairs have equal: shape or parameters."""
    return pairs[0].equal.rpartition(" ")[2]


def _confirms(evidence: Evidence, first: Sequence[Comparison], further: Sequence[Comparison]) -> bool:
    """Whether variants at another equal quantity have the same significant winner, which only the findings then name."""
    if further[0].of_shapes or first[0].of_shapes:
        return False
    groups = [_connected(evidence, pairs) for pairs in (first, further)]
    sides = [_lowest_side(group) for group in groups]
    decided = all(_any_decided(group) for group in groups)
    return decided and sides[0] is not None and sides[0] == sides[1]


def _pairs(evidence: Evidence, pairs: Sequence[Comparison], place: Place = "alone") -> str:
    """Return the result of pairs of shapes, or of variants in one knob: by their averages over conditions if any."""
    compared = [pair for pair in pairs if pair.without_order is None]
    if not compared:
        who = "one encoder of each pair reads" if pairs[0].of_shapes else "the encoders read"
        what = "shapes" if pairs[0].of_shapes else "variants"
        why = f"{who} no word order, so that losses follow the token table; {what_helps(parts_lacking(evidence))} may help"
        if not any(pair.without_order == "reads_no_order" for pair in pairs):
            why = "whether their encoders read word order was not measured; new runs measure it"
        return f"no verdict on {what} at equal {pairs[0].equal}: {why}"
    of_shapes, equal, n = compared[0].of_shapes, f"at equal {compared[0].equal}", plural(len(compared), "pair")
    group = _connected(evidence, compared)
    if not _any_decided(compared) and not _any_decided(group):
        largest = max(group, key=lambda pair: abs(pair.difference.estimate_nats))
        why = why_unknown(compared) or f"no difference in {n} is significant"
        minus = f"{_side(largest, largest.first)} minus {_side(largest, largest.second, 'that')}"
        kind = " average" if isinstance(largest, Average) else ""
        return f"{equal}, {why}: the largest{kind}, {minus}, is {largest.difference.to_text()}{_where(largest, place)}"
    winner = what_lowers(compared) if of_shapes else None
    tally = None if winner else _tally(compared)
    lead = f"{winner[0].lower()}{winner[1:]} more {equal}: " if winner else f"{equal}, {tally}: " if tally else f"{equal}, "
    if place == "further" and not of_shapes and not tally:
        lead = ""
    return f"{lead}{_best_of(group, place)}{', a significant difference' if len(compared) == 1 else ''}"


def _connected(evidence: Evidence, pairs: Sequence[Comparison]) -> Sequence[Pair]:
    """Return the most sides that are compared with each other, of which two differ significantly if any do.

    They are compared in their averages over conditions if any, where both sides read word order if there are such, else in the
    pairs.
    """
    same_kind = [average for average in evidence.averages if kind_of(average) == kind_of(pairs[0])]
    averages = [average for average in same_kind if pairs[0].of_shapes or average.weighs == pairs[0].weighs]
    both_read = [average for average in averages if not average.one_reads]
    return max(connected(both_read or averages or pairs), key=lambda group: (_any_decided(group), len(group)))


def _any_decided(pairs: Sequence[Pair]) -> bool:
    return any(pair.status == "decided" for pair in pairs)


_MORE = {"ffn": "a larger FFN"}
"""More of a size in words, where it is not `more` of its name."""


def _tally(pairs: Sequence[Comparison]) -> str | None:
    """How often more of either size lowers the loss significantly; None unless all pairs weigh the same two sizes."""
    if len({(pair.weighs, pair.against) for pair in pairs}) > 1 or (against := pairs[0].against) is None:
        return None
    decided = [pair for pair in pairs if pair.status == "decided"]
    counts = {pairs[0].weighs: sum(pair.first_is_lower for pair in decided)}
    counts[against] = len(decided) - counts[pairs[0].weighs]
    often, seldom = sorted(counts, key=lambda size: -counts[size])
    pair_count = plural(len(pairs), "pair")
    more, less = (_MORE.get(size, f"more {size}") for size in (often, seldom))
    return f"{more} lowers the loss significantly in {counts[often]} of {pair_count} and {less} in {counts[seldom] or 'none'}"


def _best_of(group: Sequence[Pair], place: Place = "alone") -> str:
    """Return the side below all others, with its nearest and farthest.

    Else, or if only others differ significantly, the largest.
    """
    lowest = _lowest_side(group)
    beside = [pair for pair in group if lowest in (pair.first, pair.second)]
    if lowest is None or (_any_decided(group) and not _any_decided(beside)):
        lowest, beside = None, list(group)
    beside.sort(key=lambda pair: abs(pair.difference.estimate_nats))
    decided = [pair for pair in beside if pair.status == "decided"]
    farthest = (decided or beside)[-1]
    is_short = place == "further" and not farthest.of_shapes
    best = f"with {farthest.lower}" if is_short else f"{_side(farthest, farthest.lower)} is"
    words = f"{best} {_below(farthest, is_short)}{_where(farthest, place)}{_unsure(farthest)}"
    if lowest is None:
        return words
    near = [pair for pair in beside if pair.status != "decided" and pair is not farthest]
    if not near:
        return words if len(beside) == 1 else f"{words} and {_below(beside[0])}"
    clauses = []
    for tested, pairs in grouped(near, lambda pair: pair.status == "undecided").items():
        others = _side(farthest, listed([_higher(pair) for pair in pairs]), "that" if len(pairs) == 1 else "those")
        clauses.append(f"{'not significantly below' if tested else 'untested against'} {others}")
    return f"{words}, {'but' if decided else 'and'} {joined(clauses)}"


def _unsure(one: TestedDifference) -> str:
    """Return what a difference does not say: whether it is significant, and, of an average, how it turns."""
    unsure = "" if one.status == "decided" else ", which is not significant"
    turns = isinstance(one, Average) and one.opposed
    return f"{unsure}, though each is significantly lower in some conditions" if turns else unsure


def _side(pair: Pair, name: str, loss: str = "the loss") -> str:
    """Return a side of a pair in a sentence: the shape, or the loss with the variant."""
    return name if pair.of_shapes else f"{loss} with {name}"


def _below(pair: Pair, is_short: bool = False) -> str:
    return f"{pair.difference.size_text} below {_higher(pair) if is_short else _side(pair, _higher(pair), 'that')}"


def _lowest_side(group: Sequence[Pair]) -> str | None:
    sides = dict.fromkeys(name for pair in group for name in (pair.first, pair.second))
    return next((name for name in sides if sum(pair.lower == name for pair in group) == len(sides) - 1), None)


def _higher(pair: Pair) -> str:
    return pair.second if pair.first_is_lower else pair.first


def _where(pair: Pair, place: Place) -> str:
    """Return the scope of a difference: an average over conditions, or one family."""
    if isinstance(pair, Average):
        among = f" {pair.among}".rstrip()
        first = f", averaged{among}" if among else " on average"
        return {"alone": f" on average over {len(pair.places)} conditions{among}", "first": first, "further": ""}[place]
    return f" ({re.sub(r' [(][^()]*[)]', '', pair.family)})" if isinstance(pair, Comparison) else ""


def _on_passes(evidence: Evidence) -> Verdict:
    """Return what the fewest passes cost, on average over shapes if there are several, and the most in two of the shapes."""
    costs = _costs_of_passes(evidence)
    averages, (*fewer, most) = _averages_of_passes(evidence, costs), costs
    clauses = [_of_passes(often, averages.get(often, costs[often][0])) for often in fewer[:MOST_KINDS]]
    if averages and clauses:
        clauses[0] = f"averaged over {plural(len(costs[most]), 'shape')}, {clauses[0]}"
    ends = dict.fromkeys((costs[most][0], costs[most][-1]))
    each = [f"{_cost(pair.difference)} for {_shape_of(evidence, pair)}" for pair in ends]
    pairs = [pair for of_passes in costs.values() for pair in of_passes]
    return _over_pairs(evidence, [*clauses, f"{most:g} passes cost {joined(each)}"], pairs, [*averages.values()])


def _of_passes(often: float, cost: Pair) -> str:
    none = "" if cost.status == "decided" else "no significant loss beside new text, "
    return f"{often:g} passes over a text cost {none}{_cost(cost.difference)}"


def _averages_of_passes(evidence: Evidence, costs: Mapping[float, Sequence[Comparison]]) -> dict[float, Average]:
    """Return the average over shapes of each number of passes; empty unless each has one."""
    averages = {often: averages_of(pairs, evidence.cells) for often, pairs in costs.items()}
    if any(len(of_passes) != 1 for of_passes in averages.values()):
        return {}
    return dict(zip(averages, adjust_by_holm([average for (average,) in averages.values()]), strict=True))


def _costs_of_passes(evidence: Evidence) -> dict[float, list[Comparison]]:
    """Pair text read more often than once with as many tokens of new text, by passes, the smallest shape first."""
    cells, costs = {cell.name: cell for cell in evidence.cells}, list[tuple[float, Comparison]]()
    for pair in evidence.comparisons.pairs:
        if pair.weighs == UNIQUE_TOKENS and pair.without_order is None:
            sides = (cells[name] for name in (pair.first_cell, pair.second_cell))
            often, new = (round(cell.tokens / _unique_tokens(cell), 1) for cell in sides)
            if new <= 1 < often:
                costs.append((often, pair))
    by_passes = grouped(costs, lambda cost: cost[0])
    return {often: [pair for _, pair in by_passes[often]] for often in sorted(by_passes)}


def _unique_tokens(cell: CellResult) -> float:
    """Return how many tokens of text a cell reads; without a number, more than it trains on."""
    given = cell.settings[UNIQUE_TOKENS]
    return math.inf if given == NONE else float(str(given))


def _cost(difference: Difference) -> str:
    """Return the first side's loss above the second's, where a negative cost keeps its sign."""
    return difference.size_text if difference.estimate_nats > 0 else difference.to_text()


def _shape_of(evidence: Evidence, pair: Comparison) -> str:
    return next(cell.architecture.shape_name for cell in evidence.cells if cell.name == pair.first_cell)


def _on_best_by_budget(evidence: Evidence) -> Verdict:
    """Return the variant of lowest loss at the smallest and at the largest budget, in the family of most pairs at each."""
    pairs = _of_budgets(evidence)
    families = [max(grouped(pairs[budget], lambda pair: pair.family).values(), key=len) for budget in (min(pairs), max(pairs))]
    best = [_lowest_side(family) or family[0].lower for family in families]
    parts = []
    for family, lowest in zip(families, best, strict=True):
        below = [pair for pair in family if pair.lower == lowest]
        shown = max(below, key=lambda pair: (_higher(pair) in best, abs(pair.difference.estimate_nats)))
        size = shown.difference.size_text
        parts.append(f"{lowest} at {budget_words(shown.budget)}, {size} below {_higher(shown)}{_unsure(shown)}")
    moves = f"stays {parts[0]}, and {parts[1]}" if best[0] == best[1] else f"moves from {parts[0]}, to {parts[1]}"
    return _over_pairs(evidence, [f"the best value {moves}"], [pair for family in pairs.values() for pair in family])


def _of_budgets(evidence: Evidence) -> dict[float, list[Comparison]]:
    """Return the pairs of variants in the first knob that varies, by the amount of their budget."""
    variants = [pair for pair in evidence.comparisons.pairs if not pair.of_shapes and pair.without_order is None]
    of_knob = [pair for pair in variants if pair.weighs == variants[0].weighs and pair.equal == variants[0].equal]
    return grouped(of_knob, lambda pair: pair.budget.amount)


def _certainty(evidence: Evidence, compared: Sequence[Comparison], averages: Sequence[Average]) -> str:
    """Return the certainty of a verdict over pairs, and over their averages if it rests on them: the tests, and their data.

    Tests are adjusted over all pairs of the sweep, also those that the verdict does not name.
    """
    tested = (
        "" if why_unknown(compared) else f"Tests at 5%, adjusted by Holm over {_tested(evidence.comparisons.pairs, 'pair')}"
    )
    if tested and averages:
        tested += f", and over {_tested(averages, 'average')}"
    measured = _measured_over([pair.difference for pair in compared])
    return f"{tested}. {measured}" if tested else measured


def _tested(pairs: Sequence[Pair], kind: str) -> str:
    """Return how many were tested, and how many of several are significant."""
    tested = sum(pair.p_value_holm is not None for pair in pairs)
    significant = sum(pair.status == "decided" for pair in pairs)
    return plural(tested, kind) + (f", {significant} significant" if tested > 1 else "")


def _measured_over(differences: Sequence[Difference]) -> str:
    """Return the seeds and validation sequences behind differences, stated once."""
    seeds = [count for difference in differences for count in difference.n_seeds]
    if not seeds:
        return ""
    few, many = min(seeds), max(seeds)
    each = f"{plural(few, 'seed')} a cell" if few == many else f"{few} to {many} seeds a cell"
    return f"Measured with {each} on {differences[0].sample_text}."


def _change(evidence: Evidence, compared: Sequence[Comparison]) -> str:
    """Return what would change the verdict: deciding the open pairs, wider rates, or a larger sweep."""
    undecided = [pair for pair in compared if pair.status == "undecided"]
    if any(pair.status == "no_seed_replicates" for pair in compared):
        return "two seeds a cell or more"
    if len(undecided) == len(compared):
        seeds = [pair.seeds_that_would_decide for pair in undecided if pair.seeds_that_would_decide is not None]
        return (
            f"more seeds: {min(seeds)} a cell would decide the clearest pair about half the time"
            if seeds
            else "a larger effect"
        )
    cells = {cell.name: cell for cell in evidence.cells}
    if any(not cells[name].rates.bracketed for pair in compared for name in (pair.first_cell, pair.second_cell)):
        return "learning rates tried on both sides of the best one"
    return _larger_sweep(evidence)


def _larger_sweep(evidence: Evidence, what: str = "larger encoders, longer budgets") -> str:
    usable = [cell for cell in evidence.cells if cell.usable]
    sizes = span(*(pick(cell.parameters_non_embedding for cell in usable) for pick in (min, max)))
    tokens = span(*(pick(cell.tokens for cell in usable) for pick in (min, max)))
    return f"{what} or other text; this sweep covers {sizes} non-embedding parameters and {tokens} tokens"


def _not_compared(evidence: Evidence) -> Verdict:
    sentence = f"No answer yet: {missing_comparison(evidence)}."
    change = "runs that can be compared: rates tried on both sides of the best one, and shapes or variants that match"
    return Verdict(sentence, "Nothing is compared.", change, ("learning_rate", "loss_against_parameters", "loss_curves"))


def _largest_step(steps: Sequence[Gain | TokenGain]) -> str:
    largest = max(steps, key=lambda step: abs(step.difference.estimate_nats))
    return f"the largest {largest.step}, {largest.difference.to_text()}"


def _on_steps(evidence: Evidence) -> Verdict:
    steps: Sequence[Gain | TokenGain] = evidence.gains or evidence.token_gains
    compared = [step for step in steps if step.without_order is None]
    figures = ("loss_against_parameters", "loss_by_depth", "loss_against_flops")
    if not compared:
        lacking = parts_lacking(evidence)
        helps = what_helps(lacking)
        why = f"an encoder of each step reads no word order, so that losses follow the token table; {helps} may help"
        if not any(step.without_order == "reads_no_order" for step in steps):
            why = "whether the encoders read word order was not measured; new runs measure it"
        sentence = f"No verdict on sizes: {why}."
        return Verdict(sentence, "Nothing is tested.", without_order_remedy(steps, lacking), figures)
    decided = [step for step in compared if step.status == "decided"]
    lowering, raising = ([step for step in decided if (step.difference.estimate_nats < 0) is lower] for lower in (True, False))
    kind = "size" if evidence.gains else "budget"
    unknown = why_unknown(compared)
    lowers = f"{'lowers' if len(lowering) == 1 else 'lower'} the loss significantly"
    clauses = [unknown or f"{len(lowering)} of {plural(len(compared), 'step')} to a larger {kind} {lowers}"]
    if lowering or not raising:
        clauses[0] += f", {_largest_step(lowering or compared)}"
    if raising:
        clauses.append(f"{len(raising)} {'raises' if len(raising) == 1 else 'raise'} it, {_largest_step(raising)}")
    sentence = _sentence(evidence, clauses)
    tested = "" if unknown else "Tests at 5%, adjusted by Holm. "
    return Verdict(
        sentence, f"{tested}{_measured_over([step.difference for step in compared])}", _larger_sweep(evidence), figures
    )


def _how_low(evidence: Evidence) -> Verdict:
    """Return the mean loss of each cell at the largest budget, the lowest first."""
    cells = sorted(_longest(evidence), key=lambda cell: float(cell.losses.mean()))
    losses = [f"{_loss_of(evidence, cell)} for {cell.words}" for cell in cells]
    sentence = _sentence(evidence, [f"at {budget_words(cells[0].budget)} the loss ends at {listed(losses, 'more')}"])
    few = min(len(cell.runs) for cell in cells)
    certainty = f"Each interval is for its shape alone. Measured with {plural(few, 'seed')} a cell or more."
    also = tuple(_sentence(evidence, [clause]) for clause in _asked_and_others(evidence)[0])
    return Verdict(sentence, certainty, _larger_sweep(evidence), ("loss_against_parameters", "loss_curves"), also=also)


def _longest(evidence: Evidence) -> list[CellResult]:
    *_, cells = by_budget(cell for cell in evidence.cells if cell.usable).values()
    return cells


def _loss_of(evidence: Evidence, cell: CellResult) -> str:
    """Return the mean loss of a cell with its 95% interval, over seeds if there are several, else over validation sequences."""
    half, over = evidence.half_width(cell), "seeds"
    if half is None and cell.standard_error_nats is not None:
        half, over = norm.isf((1 - CONFIDENCE) / 2) * cell.standard_error_nats, "validation sequences"
    loss = float(cell.losses.mean())
    ends = () if half is None else (cell.in_unit(loss - half), cell.in_unit(loss + half))
    interval = f" (95% interval {ends[0]:.3f} to {ends[1]:.3f} over {over})" if ends else ""
    return f"{cell.in_unit(loss):.3f} {cell.unit}{interval}"


def _lowest(evidence: Evidence) -> Verdict:
    """Return the cell of the lowest loss at the largest budget, if nothing is compared."""
    best = evidence.front[-1]
    unread = "; it reads no word order" if best.reads_order is False else ""
    known = best.rates.chosen is None or "recipe.learning_rate" in best.settings
    rate = "" if known else f" with a learning rate of {best.rates.chosen:.3g}"
    where = at_budget(best.words, budget_words(best.budget))
    sentence = _sentence(evidence, [f"the lowest loss is {_loss_of(evidence, best)}, by {where}{rate}{unread}"])
    certainty = f"Measured with {plural(len(best.runs), 'seed')}; nothing is compared with it."
    return Verdict(sentence, certainty, _larger_sweep(evidence), ("loss_curves", "learning_rate", "loss_against_parameters"))


def _on_goal(evidence: Evidence) -> Verdict:
    """Where the sweep's goal stands, by the path that its launch left."""
    path, sweep = evidence.goal, evidence.sweep
    assert path is not None
    assert isinstance(sweep, GoalSweep)
    met = (
        f"Half the 95% interval of {path.of} is at most {path.wanted:g}, as the goal asks; beyond its runs the law is assumed."
    )
    if sweep.compared is not None:
        met = "The intervals of all pairs hold at all looks together with 95%."
    certainty = {"met": met, "open": "The launch has not ended."}.get(path.state, "The goal is not met.")
    change = "other text or another recipe" if path.state == "met" else "more to spend, or another pool"
    sentence = plain_words(cell.settings for cell in evidence.cells)(path.sentence)
    return Verdict(printable(f"{sentence}."), certainty, change, ("path_to_goal", "law_fit", "paired_differences"))


_TOPICS: tuple[tuple[Callable[[Evidence], bool], Callable[[Evidence], Verdict]], ...] = (
    (lambda evidence: evidence.goal is not None, _on_goal),
    (lambda evidence: asks_about(evidence, "score", "task") and evidence.downstream is not None, _on_scores),
    (lambda evidence: asks_about(evidence, "int8", "bf16", "bit") and bool(evidence.compressions), _on_compressions),
    (lambda evidence: bool(evidence.spendings), _on_spendings),
    (lambda evidence: bool(_costs_of_passes(evidence)), _on_passes),
    (lambda evidence: asks_about(evidence, "token") and bool(evidence.token_gains), _on_tokens),
    (lambda evidence: asks_about(evidence, "learning rate") and bool(evidence.rate_transfers), _on_rates),
    (lambda evidence: asks_about(evidence, "cut") and bool(evidence.cuts), _on_cuts),
    (lambda evidence: asks_about(evidence, "how low") and len(_longest(evidence)) > 1, _how_low),
    (lambda evidence: asks_about(evidence, r"best .*budget") and len(_of_budgets(evidence)) > 1, _on_best_by_budget),
    (lambda evidence: bool(evidence.comparisons.pairs), _on_pairs),
    (lambda evidence: bool(evidence.cuts), _on_cuts),
    (lambda evidence: bool(missing_comparison(evidence)), _not_compared),
    (lambda evidence: bool(evidence.gains or evidence.token_gains), _on_steps),
)
"""The topics of a question, the most specific first, and the function that answers each."""


def listed(names: Sequence[str], kind: str = "others") -> str:
    """Up to MOST_NAMES names as a list in words, and the number of others."""
    shown = [*names[:MOST_NAMES], *([f"{len(names) - MOST_NAMES} {kind}"] if len(names) > MOST_NAMES else [])]
    return joined(shown)


def _tasks(names: Sequence[str], of: int) -> str:
    if len(names) <= MOST_NAMES:
        return joined(names)
    return f"{'all' if len(names) == of else len(names)} of {of} tasks"


def _sentence(evidence: Evidence, clauses: Sequence[str]) -> str:
    """Clauses as one sentence that explains its intervals once and has knobs in plain words."""
    whole = ", and ".join(clauses if len(clauses) <= MOST_KINDS else [", ".join(clauses[:-1]), clauses[-1]])
    text, interval, rest = whole.partition("95% interval ")
    text = text + interval + rest.replace("95% interval ", "")
    text = short_ids(evidence, plain_words(cell.settings for cell in evidence.cells)(text))
    return printable(f"{text[0].upper()}{text[1:]}.")


def short_ids(evidence: Evidence, text: str) -> str:
    """Text with the ids of donors and teachers shortened, and omitted before layers if the sweep has one donor."""
    settings = (value for cell in evidence.cells for value in cell.settings.values())
    return shorten_run_ids(text, run_ids_in(settings))
