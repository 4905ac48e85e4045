"""The verdict of a sweep: a one-sentence answer, its certainty, and what would change it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from scipy.stats import norm

from study.base.grouping import grouped
from study.base.quantities import EQUAL_WITHIN, budget_words, plural, plus_minus, span
from study.base.statistics import CONFIDENCE
from study.base.text import at_budget, joined, printable, shape_and_variant
from study.config.sweep import GoalSweep
from study.evidence.cells import run_ids_in, shorten_run_ids
from study.evidence.comparisons import Average, Comparison, Pair
from study.evidence.downstream import DownstreamEvidence
from study.evidence.evidence import Evidence
from study.evidence.gains import Gain, Spending, TokenGain
from study.evidence.paired import Difference
from study.evidence.rate_transfer import RateTransfer
from study.evidence.score_trends import Verdict as TrendVerdict
from study.laws.law_fits import LawFit
from study.report.findings import compression_words, missing_comparison, run_count, why_excluded
from study.report.pair_sentences import READING_REMEDIES, WHAT_HELPS, connected, kind_of, pair_kinds, what_lowers, why_unknown
from study.report.score_sentences import best_variant

MOST_NAMES = 4
"""The most tasks or conditions that a verdict names; it counts the rest."""

MOST_KINDS = 2
"""The most kinds of comparison in a verdict; the findings have all."""

MOST_PAIRS = 30
"""The most pairs that a page shows at a glance; beyond, the figure of a verdict is the curve over depth."""


@dataclass(frozen=True)
class Verdict:
    """The answer to a sweep's question: a `sentence`, its `certainty`, and what would `change` it.

    `figures` names its figures, the best first; `about` is the kind of finding that it sums up.
    """

    sentence: str
    certainty: str
    change: str
    figures: tuple[str, ...]
    about: Literal["loss", "downstream"] = "loss"


def verdict_of(evidence: Evidence) -> Verdict:
    """The verdict on the topic of the sweep's question: scores, tokens, or the loss of shapes and variants."""
    if not any(cell.usable for cell in evidence.cells):
        sentence = printable(f"No answer yet: {run_count(evidence)}{why_excluded(evidence)}.")
        return Verdict(sentence, "No run can be used.", "runs that end and learn", ("learning_rate", "loss_curves"))
    answer = next((answer for asks, answer in _TOPICS if asks(evidence)), _lowest)
    return answer(evidence)


def asks_about(evidence: Evidence, *words: str) -> bool:
    """Whether the question contains any of some words, such as `parameter`, except in what is held equal."""
    question = re.sub(r"\bequal [\w-]+( parameters)?", "", evidence.sweep.question.lower())
    return any(re.search(rf"\b{word}s?\b", question) for word in words)


def _on_scores(evidence: Evidence) -> Verdict:
    scores = evidence.downstream
    assert scores is not None
    variants = best_variant(scores)
    clauses = [variants or _trends(scores)]
    if asks_about(evidence, "untrained") and (beside := _beside_untrained(scores)):
        clauses.insert(0, beside)
    if asks_about(evidence, "cut") and evidence.cuts:
        clauses.insert(0, _cuts(evidence))
    encoders, tasks = plural(max(len(task.points) for task in scores.tasks), "encoder"), plural(len(scores.tasks), "task")
    if variants:
        certainty = "A test at 5%, adjusted by Bonferroni; noise is over examples and seeds."
    elif _untested(scores):
        certainty = f"Scores are not tested: the {encoders} share layers or a trunk, so that they are no independent draws."
    else:
        certainty = f"Permutation tests at 5% over {encoders}, adjusted by Holm over {tasks}."
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
    return f"trained encoders beat the same encoders untrained {where}"


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
        return "; ".join(filter(None, (f"scores {joined(parts)}", average)))
    return average or "too few encoders were scored to relate scores to the loss"


def _average_trend(scores: DownstreamEvidence) -> str:
    if scores.average is None or scores.average.trend is None:
        return ""
    trend = scores.average.trend
    interval = "no interval" if trend.low is None else f"95% interval {trend.low:+.2f} to {trend.high:+.2f}"
    return f"averaged over tasks, scores have a rank correlation of {trend.correlation:+.2f} with the falling loss ({interval})"


def _on_compressions(evidence: Evidence) -> Verdict:
    clauses = [compression_words(one).removesuffix(".") for one in evidence.compressions[:MOST_KINDS]]
    certainty = f"Each interval is for its pair alone. {_measured_over([one.against_source for one in evidence.compressions])}"
    figures = ("loss_against_parameters",)
    return Verdict(_sentence(evidence, clauses), certainty, _larger_sweep(evidence), figures)


def _on_cuts(evidence: Evidence) -> Verdict:
    certainty = f"Each interval is for its pair alone. {_measured_over([cut.difference for cut in evidence.cuts])}"
    figures = ("loss_by_depth", "loss_against_parameters")
    return Verdict(_sentence(evidence, [_cuts(evidence)]), certainty, _larger_sweep(evidence), figures)


def _cuts(evidence: Evidence) -> str:
    """The cost of the cheapest cuts at the largest budget, by the number of layers."""
    *_, cuts = grouped(evidence.cuts, lambda cut: (cut.whole, cut.budget)).values()
    clauses = []
    for layers, ways in islice(grouped(cuts, lambda cut: cut.layers).items(), MOST_KINDS):
        least = min(ways, key=lambda cut: cut.difference.estimate_nats)
        clauses.append(f"{least.difference.size_text} for {plural(layers, 'layer')} ({least.cut})")
    return f"cutting off layers costs at least {joined(clauses)}"


def _on_spendings(evidence: Evidence) -> Verdict:
    """The best encoder that needs other runs, beside one from scratch of as many own FLOPs and of as many FLOPs in all."""
    least = min((cell for cell in evidence.cells if cell.flops_before and cell.usable), key=lambda cell: cell.losses.mean())
    against = [one for one in evidence.spendings if one.needs_cell == least.name and one.status != "reads_no_order"]
    figures = ("loss_against_flops", "paired_differences", "loss_curves")
    if not against:
        why = "neither encoder of a pair reads word order, so that losses say nothing of starts and teachers"
        return Verdict(f"No verdict: {why}; {WHAT_HELPS} may help.", "Nothing is tested.", READING_REMEDIES, figures)
    spent = {"of its own": least.train_flops, "with the runs that it needs": least.spent_flops}
    longest = {
        what: max(affordable, key=lambda one: one.scratch_flops)
        for what, flops in spent.items()
        if (affordable := [one for one in against if one.scratch_flops <= flops * (1 + EQUAL_WITHIN)])
    }
    beside: list[str] = []
    for one, whats in grouped(longest, longest.__getitem__).items():
        flops = " and ".join(f"{spent[what]:.3g} FLOPs {what}" for what in whats)
        beside.append(f"for {flops}, {'it' if beside else f'an encoder {one.needs}'} is {_beside_scratch(one)}")
    clauses = [*(_among_needing(evidence) if len(beside) == 1 else []), *beside]
    pairs = plural(len(evidence.spendings), "pair")
    luck = "All rest on one run, whose luck is in no interval."
    measured = _measured_over([one.difference for one in against])
    certainty = f"Tests at 5%, adjusted by Holm over {pairs}. {measured} {luck}"
    return Verdict(_sentence(evidence, clauses), certainty, _larger_sweep(evidence), figures)


def _among_needing(evidence: Evidence) -> list[str]:
    """The best of the variants that need other runs, at equal tokens."""
    needing = {cell.name for cell in evidence.cells if cell.flops_before}
    pairs = [pair for pair in evidence.comparisons.pairs if not pair.of_shapes and pair.status != "reads_no_order"]
    among = connected([pair for pair in pairs if {pair.first_cell, pair.second_cell} <= needing])
    return [_best_of(max(among, key=len))] if among else []


def _beside_scratch(one: Spending) -> str:
    """How far above or below training from scratch an encoder is, and what that costs."""
    side = "below" if one.difference.estimate_nats < 0 else "above"
    unsure = "" if one.status == "decided" else ", which is not significant"
    return f"{one.difference.size_text} {side} one trained {one.scratch} ({one.scratch_flops:.3g} FLOPs){unsure}"


def _on_tokens(evidence: Evidence) -> Verdict:
    """The law if its fit converged, else what it forecasts and the gain of the largest budget; then the best variant."""
    law = evidence.laws.shown
    if law is not None and law.fit.status == "converged":
        clauses = [f"the loss follows {law.fit.law.formula} with {law.exponents_in_words()}"]
        sure, figures = "The law's fit converged.", ("law_fit", "loss_against_flops")
    else:
        clauses = [*([] if evidence.sweep.varied else _foretold(law)), _token_gain(evidence)]
        sure, figures = "No law's constants are determined; tests at 5%, adjusted by Holm.", ("loss_against_flops", "law_fit")
    if variants := [among for (of_shapes, _), among in pair_kinds(evidence).items() if not of_shapes]:
        clauses += _pairs(evidence, variants[0])[:1]
    certainty = f"{sure} {_measured_over([gain.difference for gain in evidence.token_gains])}"
    return Verdict(_sentence(evidence, clauses), certainty, _larger_sweep(evidence, "longer budgets"), figures)


def _foretold(law: LawFit | None) -> list[str]:
    """What the law of a sweep without variants forecasts although its constants are not all determined."""
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
    ordered = sorted(lowering or last, key=lambda gain: gain.difference.estimate_nats)
    median = ordered[len(ordered) // 2]
    steps = {(gain.shorter, gain.longer) for gain in last}
    where = f"from {median.shorter} to {median.longer}" if len(steps) == 1 else "at the last step to a larger budget"
    falls = "falls" if untested else "falls significantly"
    counts = f"{where} the loss {falls} in {len(lowering)} of {plural(len(last), 'encoder')}"
    who = shape_and_variant(median.shape, median.setting)
    unsure = " (no interval, as single seeds test nothing)" if untested else ""
    return f"{counts}, by {median.difference.size_text}{unsure} in the median, {who}"


def _on_rates(evidence: Evidence) -> Verdict:
    """How far the best learning rate moves over shapes, the variant in which it moves least first."""
    transfers = sorted(evidence.rate_transfers, key=lambda transfer: transfer.factor)
    first, *others = map(_moves, transfers)
    shapes = list(transfers[0].rates)
    over = f"over {plural(len(shapes), 'shape')} ({listed(shapes)})"
    clauses = [f"{over}, the best learning rate moves {joined([f'{first} (no interval)', *others])}"]
    tried = [len(cell.rates.tried) for cell in evidence.cells if len(cell.rates.tried) > 1]
    seeds = plural(max(cell.rates.seeds for cell in evidence.cells), "seed")
    certainty = (
        f"Best rates are vertices of parabolas through the best of {min(tried)} rates or more and its neighbours, at {seeds}."
    )
    change = f"more seeds, rates closer together; {_larger_sweep(evidence)}"
    return Verdict(_sentence(evidence, clauses), certainty, change, ("learning_rate", "loss_against_parameters"))


def _moves(transfer: RateTransfer) -> str:
    """By what factor the best rate of a variant moves, and between which rates."""
    lowest, highest = min(transfer.rates.values()), max(transfer.rates.values())
    bound = "at least " if transfer.unbracketed else ""
    where = f" under {transfer.setting}" if transfer.setting else ""
    return f"by a factor of {bound}{transfer.factor:.2g}{where}, from {lowest:.2g} to {highest:.2g}"


def _on_pairs(evidence: Evidence) -> Verdict:
    kinds = list(pair_kinds(evidence).values())
    told = kinds[:1] if len(kinds) > 1 and _confirms(evidence, kinds[0], kinds[1]) else kinds
    clauses = list(islice((clause for among in told for clause in _pairs(evidence, among)), MOST_KINDS))
    compared = [pair for among in kinds for pair in among if pair.status != "reads_no_order"]
    first = ["paired_differences", "loss_by_depth"]
    figures = (*(first if len(compared) <= MOST_PAIRS else first[::-1]), "loss_by_shape", "loss_against_parameters")
    if not compared:
        certainty = "Losses of encoders that read no word order say nothing of their blocks, so nothing is tested."
        return Verdict(_sentence(evidence, clauses), certainty, READING_REMEDIES, figures)
    return Verdict(_sentence(evidence, clauses), _certainty(compared), _change(evidence, compared), figures)


def _confirms(evidence: Evidence, first: Sequence[Comparison], further: Sequence[Comparison]) -> bool:
    """Whether variants at another equal quantity have the same significant winner, which only the findings then name."""
    if further[0].of_shapes or first[0].of_shapes:
        return False
    groups = [_connected(evidence, pairs) for pairs in (first, further)]
    sides = [_lowest_side(group) for group in groups]
    decided = all(_any_decided(group) for group in groups)
    return decided and sides[0] is not None and sides[0] == sides[1]


def _pairs(evidence: Evidence, pairs: Sequence[Comparison]) -> list[str]:
    """One clause for shapes, or one for each knob in which variants differ."""
    compared = [pair for pair in pairs if pair.status != "reads_no_order"]
    if not compared:
        who = "one encoder of each pair reads" if pairs[0].of_shapes else "the encoders read"
        what = "shapes" if pairs[0].of_shapes else "variants"
        return [
            f"no verdict on {what} at equal {pairs[0].equal}: {who} no word order, so that losses follow the token table; "
            f"{WHAT_HELPS} may help"
        ]
    by_knob = grouped(compared, lambda pair: "" if pair.of_shapes else pair.weighs)
    first, *more = (_compared(evidence, among) for among in by_knob.values())
    return [first, *(clause.removeprefix(f"at equal {pairs[0].equal}, ") for clause in more)]


def _compared(evidence: Evidence, pairs: Sequence[Comparison]) -> str:
    """The result of judgeable pairs: by their averages over conditions if any."""
    of_shapes, equal, n = pairs[0].of_shapes, f"at equal {pairs[0].equal}", plural(len(pairs), "pair")
    group = _connected(evidence, pairs)
    decided = sum(pair.status == "decided" for pair in pairs)
    if not decided and not _any_decided(group):
        largest = max(group, key=lambda pair: abs(pair.difference.estimate_nats))
        why = why_unknown(pairs) or f"no difference in {n} is significant"
        shown = f"{largest.first} minus {largest.second}, {largest.difference.to_text()}{_where(largest)}"
        return f"{equal}, {why}; the largest difference is {shown}"
    winner = what_lowers(pairs) if of_shapes else None
    lead = f"{winner} more {equal}: " if winner else f"{equal}, "
    if len(pairs) == 1:
        return f"{lead}{_best_of(group)}, a significant difference"
    if not winner and (tally := _tally(pairs)):
        return f"{lead}{tally}; {_best_of(group)}"
    return f"{lead}{_best_of(group)}; {decided} of {n} {'differs' if decided == 1 else 'differ'} significantly"


def _connected(evidence: Evidence, pairs: Sequence[Comparison]) -> Sequence[Pair]:
    """The most sides that are compared with each other, of which two differ significantly if any do.

    They are compared in their averages over conditions if any, else in the pairs.
    """
    same_kind = [average for average in evidence.averages if kind_of(average) == kind_of(pairs[0])]
    averages = [average for average in same_kind if pairs[0].of_shapes or average.weighs == pairs[0].weighs]
    return max(connected(averages or pairs), key=lambda group: (_any_decided(group), len(group)))


def _any_decided(pairs: Sequence[Pair]) -> bool:
    return any(pair.status == "decided" for pair in pairs)


def _tally(pairs: Sequence[Comparison]) -> str | None:
    """How often more of either size lowers the loss significantly; None unless all pairs weigh the same two sizes."""
    if len({(pair.weighs, pair.against) for pair in pairs}) > 1 or (against := pairs[0].against) is None:
        return None
    decided = [pair for pair in pairs if pair.status == "decided"]
    counts = {pairs[0].weighs: sum(pair.first_is_lower for pair in decided)}
    counts[against] = len(decided) - counts[pairs[0].weighs]
    often, seldom = sorted(counts, key=lambda size: -counts[size])
    pair_count = plural(len(pairs), "pair")
    return f"more {often} lowers the loss significantly in {counts[often]} of {pair_count}, more {seldom} in {counts[seldom]}"


def _best_of(group: Sequence[Pair]) -> str:
    """The side below all others, with its nearest and farthest; else, or if only others differ significantly, the largest."""
    lowest = _lowest_side(group)
    beside = [pair for pair in group if lowest in (pair.first, pair.second)]
    if lowest is None or (_any_decided(group) and not _any_decided(beside)):
        lowest, beside = None, list(group)
    beside.sort(key=lambda pair: abs(pair.difference.estimate_nats))
    decided = [pair for pair in beside if pair.status == "decided"]
    farthest = (decided or beside)[-1]
    unsure = "" if decided else ", which is not significant"
    words = f"{farthest.lower} is {farthest.difference.size_text} below {_higher(farthest)}{_where(farthest)}{unsure}"
    if lowest is None:
        return words
    if near := [_higher(pair) for pair in beside if pair.status != "decided" and pair is not farthest]:
        return f"{words}, {'but' if decided else 'and'} not significantly below {listed(near)}"
    return words if len(beside) == 1 else f"{words} and {beside[0].difference.size_text} below {_higher(beside[0])}"


def _lowest_side(group: Sequence[Pair]) -> str | None:
    """The side below all others."""
    sides = dict.fromkeys(name for pair in group for name in (pair.first, pair.second))
    return next((name for name in sides if sum(pair.lower == name for pair in group) == len(sides) - 1), None)


def _higher(pair: Pair) -> str:
    return pair.second if pair.first_is_lower else pair.first


def _where(pair: Pair) -> str:
    """The scope of a difference: an average over conditions, or one family."""
    if isinstance(pair, Average):
        return f" on average over {len(pair.places)} conditions"
    return f" ({pair.family})" if isinstance(pair, Comparison) else ""


def _certainty(compared: Sequence[Comparison]) -> str:
    """The certainty of a verdict over pairs: its condition, the test, and its seeds and sequences."""
    parts = []
    if any(pair.reads_order is None for pair in compared):
        parts.append("It holds if these encoders read word order (not measured).")
    if not why_unknown(compared):
        parts.append(f"Tests at 5%, adjusted by Holm over {plural(len(compared), 'pair')}.")
    parts.append(_measured_over([pair.difference for pair in compared]))
    return " ".join(parts)


def _measured_over(differences: Sequence[Difference]) -> str:
    """The seeds and validation sequences behind differences, stated once."""
    seeds = [count for difference in differences for count in difference.n_seeds]
    if not seeds:
        return ""
    few, many = min(seeds), max(seeds)
    each = f"{plural(few, 'seed')} a cell" if few == many else f"{few} to {many} seeds a cell"
    return f"Measured with {each} on {differences[0].sample_text}."


def _change(evidence: Evidence, compared: Sequence[Comparison]) -> str:
    """What would change the verdict: deciding the open pairs, wider rates, or a larger sweep."""
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


def _on_steps(evidence: Evidence) -> Verdict:
    steps: Sequence[Gain | TokenGain] = evidence.gains or evidence.token_gains
    compared = [step for step in steps if step.status != "reads_no_order"]
    figures = ("loss_against_parameters", "loss_by_depth", "loss_against_flops")
    if not compared:
        why = "an encoder of each step reads no word order, so that losses follow the token table"
        sentence = f"No verdict on sizes: {why}; {WHAT_HELPS} may help."
        return Verdict(sentence, "Nothing is tested.", READING_REMEDIES, figures)
    decided = [step for step in compared if step.status == "decided"]
    largest = max(decided or compared, key=lambda step: abs(step.difference.estimate_nats))
    lower = sum(step.difference.estimate_nats < 0 for step in decided)
    kind = "size" if evidence.gains else "budget"
    unknown = why_unknown(compared)
    lowers = f"{'lowers' if lower == 1 else 'lower'} the loss significantly"
    counts = unknown or f"{lower} of {plural(len(compared), 'step')} to a larger {kind} {lowers}"
    sentence = _sentence(evidence, [f"{counts}; the largest is {largest.step}, {largest.difference.to_text()}"])
    tested = "" if unknown else "Tests at 5%, adjusted by Holm. "
    return Verdict(
        sentence, f"{tested}{_measured_over([step.difference for step in compared])}", _larger_sweep(evidence), figures
    )


def _lowest(evidence: Evidence) -> Verdict:
    """The cell of the lowest loss at the largest budget, if nothing is compared."""
    best = evidence.front[-1]
    half, over = evidence.half_width(best), "seeds"
    if half is None and best.standard_error_nats is not None:
        half, over = norm.isf((1 - CONFIDENCE) / 2) * best.standard_error_nats, "validation sequences"
    loss = float(best.losses.mean())
    interval = "" if half is None else f" (95% interval {loss - half:.3f} to {loss + half:.3f} over {over})"
    unread = ", which reads no word order" if best.reads_order is False else ""
    rate = "" if best.rates.chosen is None else f" with a learning rate of {best.rates.chosen:.3g}"
    where = at_budget(best.words, budget_words(best.budget))
    sentence = _sentence(evidence, [f"the lowest loss is {loss:.3f} {best.unit}{interval}, by {where}{rate}{unread}"])
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
    return Verdict(printable(f"{path.sentence}."), certainty, change, ("path_to_goal", "law_fit", "paired_differences"))


_TOPICS: tuple[tuple[Callable[[Evidence], bool], Callable[[Evidence], Verdict]], ...] = (
    (lambda evidence: evidence.goal is not None, _on_goal),
    (lambda evidence: asks_about(evidence, "score", "task") and evidence.downstream is not None, _on_scores),
    (lambda evidence: asks_about(evidence, "int8", "bf16", "bit") and bool(evidence.compressions), _on_compressions),
    (lambda evidence: bool(evidence.spendings), _on_spendings),
    (lambda evidence: asks_about(evidence, "token") and bool(evidence.token_gains), _on_tokens),
    (lambda evidence: asks_about(evidence, "learning rate") and bool(evidence.rate_transfers), _on_rates),
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
    return f"any of {of} tasks" if len(names) == of else f"{len(names)} of {of} tasks"


def _sentence(evidence: Evidence, clauses: Sequence[str]) -> str:
    """Clauses as one sentence that explains its intervals once."""
    text, interval, rest = "; ".join(clauses).partition("95% interval ")
    text = short_ids(evidence, text + interval + rest.replace("95% interval ", ""))
    return printable(f"{text[0].upper()}{text[1:]}.")


def short_ids(evidence: Evidence, text: str) -> str:
    """Text with the ids of donors and teachers shortened, and omitted before layers if the sweep has one donor."""
    settings = (value for cell in evidence.cells for value in cell.settings.values())
    return shorten_run_ids(text, run_ids_in(settings))
