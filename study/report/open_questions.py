"""The open questions of a sweep, each with what would settle it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pandas as pd

from study.base.grouping import grouped
from study.base.quantities import EQUAL_WITHIN, budget_words, compact, count_text, plural, signed, span
from study.config.named_runs import NO_RUN
from study.config.run_config import MOST_OVERLAP
from study.config.sweep import CellSweep
from study.counting.parameters import COUNT_WORDS, SIZE_COUNTS
from study.evidence.cells import CellResult
from study.evidence.comparisons import Comparison
from study.evidence.evidence import Evidence
from study.evidence.families import of_equal_size
from study.evidence.gains import Gain, TokenGain
from study.evidence.learning_rates import TriedRate
from study.evidence.ledgers import LEDGER_COLUMNS, UNIQUE_TOKENS
from study.evidence.paired import MOST_SEEDS, MOST_SEQUENCES, would_be_significant
from study.laws.expressions import evaluate
from study.report.findings import MOST_STEPS
from study.report.pair_sentences import MOST_FAMILIES, assumed_rates, parts_lacking, reading_remedies
from study.report.verdicts import listed

MOST_UNREAD = 8
"""The most cells without word order to name; the table of cells has all."""


def undecided(evidence: Evidence) -> list[str]:
    """Return the open questions, each with what would settle it."""
    of_cells = (_open_runs, _open_cells, _open_order, _open_sizes, _open_seeds, _open_spikes, _open_scatter, _open_two_seeds)
    of_pairs = (_open_pairs, _open_steps, _open_rates, _open_transfers, _open_knobs, _open_vertices, _open_choices)
    of_scores = (_open_tasks, _open_score_seeds)
    parts = (*of_cells, *of_pairs, *of_scores, _mixed_precision, _unread_text, _overlapping_text, _trained_runs, _limits)
    return [line for part in parts for line in part(evidence)]


def _open_runs(evidence: Evidence) -> Iterator[str]:
    if missing := evidence.runs_open:
        yield f"{plural(missing, 'run')} begun but not ended; study launch goes on from there."


def _open_cells(evidence: Evidence) -> Iterator[str]:
    """Yield the cells with no known loss, unless that is all of them."""
    lost = [cell.at_budget for cell in evidence.cells if not cell.usable]
    if lost and len(lost) < len(evidence.cells):
        yield f"What these would reach, none of whose runs can be used: {', '.join(lost)}."


def _open_order(evidence: Evidence) -> Iterator[str]:
    """Yield the cells that read no word order, and how many did not measure it."""
    usable = [cell for cell in evidence.cells if cell.usable]
    unread = [cell for cell in usable if cell.reads_order is False]
    if unread:
        names = ", ".join(f"{cell.at_budget}{_gain_words(cell)}" for cell in unread[:MOST_UNREAD])
        more = f" and {len(unread) - MOST_UNREAD} more" if len(unread) > MOST_UNREAD else ""
        yield (
            f"What these would reach if all of their runs read word order, {len(unread)} of {plural(len(usable), 'cell')}: "
            f"{names}{more}; until then their losses are those of bags of words, on which no verdict on shapes rests, and "
            f"{reading_remedies(parts_lacking(evidence))}."
        )
    unknown = sum(cell.reads_order is None for cell in usable)
    if unknown:
        yield (
            f"Whether {unknown} of {plural(len(usable), 'cell')} read word order, or are bags of words, whose losses say "
            "nothing of shapes: it was not measured when they were trained; new runs measure it."
        )


def _gain_words(cell: CellResult) -> str:
    return "" if cell.order_gain_nats is None else f" ({cell.order_words})"


def _open_sizes(evidence: Evidence) -> Iterator[str]:
    """Yield the shapes meant to have equal parameters that differ too much in it to be compared."""
    if not isinstance(sweep := evidence.sweep, CellSweep):
        return
    column, words = SIZE_COUNTS[sweep.size_count], COUNT_WORDS[sweep.size_count]
    shapes = {cell.architecture.shape_name: int(getattr(cell, column)) for cell in evidence.cells}
    for target in sweep.iso_parameters:
        of_target = [name for name, size in shapes.items() if abs(size / target - 1) <= sweep.shapes.tolerance]
        sizes = list(of_equal_size(of_target, lambda name: shapes[name]))
        if len(sizes) > 1:
            groups = "; ".join(", ".join(f"{name} ({compact(shapes[name])})" for name in equal) for equal in sizes)
            why = f"shapes asked for at {compact(target)} {words} are not within {EQUAL_WITHIN:.0%} of one size"
            yield f"How {groups} compare: {why}, so none is compared across a semicolon; other depths or targets would meet."


def _open_seeds(evidence: Evidence) -> Iterator[str]:
    """Yield the cells whose mean lacks some seeds, which diverged at the same rate."""
    cells = [cell for cell in evidence.cells if cell.usable and cell.unlearned]
    partial = [f"{cell.at_budget} ({len(cell.runs)} of {len(cell.runs) + cell.unlearned})" for cell in cells]
    if partial:
        yield f"How much lower the means are for leaving out seeds that diverged: {', '.join(partial)}."


def _open_spikes(evidence: Evidence) -> Iterator[str]:
    spikes = evidence.ledger.get("loss_spikes", pd.Series(dtype=float))
    spiked = {*evidence.ledger.loc[spikes.index[spikes > 0], "run_id"]} if len(spikes) else set()
    runs = [(cell, len(spiked.intersection(cell.runs))) for cell in evidence.cells]
    if cells := ", ".join(f"{cell.at_budget} ({count} of {plural(len(cell.runs), 'run')})" for cell, count in runs if count):
        yield f"What these would reach had their training loss not spiked, which a lower learning rate may spare: {cells}."


def _open_scatter(evidence: Evidence) -> Iterator[str]:
    """Yield the budgets at which seeds scatter unevenly, so that each interval rests on the few seeds of a cell."""
    cells = {cell.name: cell for cell in evidence.cells}
    tokens = {(scatter.pool.budget, scatter.pool.doublings) for scatter in evidence.comparisons.seed_scatter}
    pools = Counter(budget for budget, _ in tokens)
    uneven = []
    for scatter in evidence.comparisons.seed_scatter:
        if not scatter.alike:
            (quiet, least), *_, (loud, most) = scatter.deviations.items()
            low, high = cells[quiet], cells[loud]
            ends = f"{low.in_unit(least):.2g} {low.unit} for {low.words} to {high.in_unit(most):.2g} for {high.words}"
            budget, several = scatter.pool.budget, pools[scatter.pool.budget] > 1
            near = f" ({count_text(2**scatter.pool.doublings)} tokens or so)" if several else ""
            uneven.append(f"at {budget_words(budget)}{near} {ends} (Bartlett's p = {scatter.p_alike:.2g})")
    if uneven:
        unevenly = "How widely each cell scatters over seeds: unevenly, so that intervals take each cell's own deviation"
        yield f"{unevenly}, of which a few seeds say little: {'; '.join(uneven)}."


def _open_two_seeds(evidence: Evidence) -> Iterator[str]:
    """Yield how reliable verdicts on two seeds are: if two agree by chance, a widely scattering cell looks like others.

    Bartlett's test at a level of 50% would halve the wrong verdicts, but lose a fifth of the right ones, even of pairs that
    differ by 20 deviations over seeds; each cell's own variance alone would leave none.
    """
    cells = {cell.name: cell for cell in evidence.cells}
    decided = (pair for pair in evidence.comparisons.pairs if pair.status == "decided")
    if any(len(cells[name].runs) == 2 for pair in decided for name in (pair.first_cell, pair.second_cell)):
        yield "Whether cells of two seeds scatter alike, which so few seldom show."


def _open_pairs(evidence: Evidence) -> Iterator[str]:
    pairs = evidence.comparisons.pairs
    if not evidence.comparisons.seed_variances and sum(cell.usable for cell in evidence.cells) > 1:
        yield "Whether any difference exceeds chance between seeds; two usable seeds a cell or more would show it."
    elif unknown := sum(pair.status == "no_seed_replicates" for pair in pairs):
        yield (
            f"Whether {plural(unknown, 'pair')} with a cell of one seed, beside others that scatter unevenly, would hold "
            "beyond chance; two seeds there or more would show it."
        )
    families = grouped((pair for pair in pairs if pair.status == "undecided"), lambda pair: pair.family)
    if families:
        yield "In brackets, what would decide a pair about half the time; adding seeds until pairs are decided raises the 5%."
    for family, among in islice(families.items(), MOST_FAMILIES):
        clauses = (
            f"{listed([f'{pair.first} minus {pair.second}' for pair in same])} ({remedy})"
            for remedy, same in grouped(among, _remedy).items()
        )
        yield f"{family}: {'; '.join(clauses)}."
    if (more := len(families) - MOST_FAMILIES) > 0:
        yield f"Undecided pairs of {more} more {'family' if more == 1 else 'families'}, which are in the tables of differences."


def _open_steps(evidence: Evidence) -> Iterator[str]:
    """Undecided steps to more tokens and, if no pairs cover it, to a larger size: few by name, many counted."""
    of_sizes = () if evidence.comparisons.weigh_depth_or_width else evidence.gains
    steps: list[Gain | TokenGain] = [*of_sizes, *evidence.token_gains]
    if names := [gain.step for gain in steps if gain.status == "undecided"]:
        which = "these" if len(names) <= MOST_STEPS else f"{len(names)} of {len(steps)}"
        more = f"; and {len(names) - MOST_STEPS} more, see their tables" if len(names) > MOST_STEPS else ""
        listed = f"{'; '.join(names[:MOST_STEPS])}{more}"
        yield f"Whether {which} steps change the loss at all, since chance may do as much (Holm, 5%): {listed}."


def _remedy(pair: Comparison) -> str:
    ways = []
    if pair.seeds_that_would_decide is not None:
        ways.append(f"{pair.seeds_that_would_decide} seeds a cell")
    if pair.sequences_that_would_decide is not None:
        ways.append(f"{pair.sequences_that_would_decide} validation sequences")
    return " or ".join(ways) or f"neither {MOST_SEEDS} seeds a cell nor {MOST_SEQUENCES} times the sequences"


def _open_rates(evidence: Evidence) -> Iterator[str]:
    compared = [cell for cell in evidence.cells if cell.name in evidence.comparisons.compared]
    if names := ", ".join(cell.at_budget for cell in compared if not cell.rates.bracketed):
        yield f"How much of the comparisons is the learning rate's doing: cells that are not bracketed were let in: {names}."
    if not evidence.comparisons.weigh_depth_or_width:
        yield from _open_rates_of_fronts(evidence)
    usable = {cell.name for cell in evidence.cells if cell.usable}  # the others are reported elsewhere
    left_out = (left for left in evidence.comparisons.left_out if left.cell in usable)
    for reason, cells in grouped(left_out, lambda left: left.reason).items():
        names = ", ".join(f"{cell.shape} at {cell.family}" for cell in cells)
        yield f"Left out of the comparisons ({reason}): {names}."


def _open_transfers(evidence: Evidence) -> Iterator[str]:
    """Yield the decided pairs of cells deeper or wider than those that searched their rate."""
    pairs = evidence.comparisons.pairs
    if assumed := assumed_rates(evidence, pairs):
        decided = plural(sum(pair.status == "decided" for pair in pairs), "decided pair")
        yield (
            f"Whether rates hold to {assumed.farthest}: they were searched at {assumed.searched}, and {assumed.pairs} of "
            f"{decided} have a cell beyond that at a transferred rate; searching a cell there would tell."
        )


def _open_knobs(evidence: Evidence) -> Iterator[str]:
    """Knobs besides the learning rate whose best value tried is the lowest or the highest, with the cells."""
    ends = ((knob, cell) for cell in evidence.cells if cell.usable for knob in cell.knobs if knob.edge is not None)
    for (name, edge), at in grouped(ends, lambda end: (end[0].name, end[0].edge)).items():
        cells = ", ".join(f"{cell.at_budget} ({knob.chosen})" for knob, cell in at)
        yield f"How much is {name}'s doing: the best one tried is the {edge} in {cells}."


def _open_vertices(evidence: Evidence) -> Iterator[str]:
    """Yield the decided pairs whose interval excludes their difference at the minima of the cells' parabolas.

    None if tokenisers differ: parabolas are of losses per token, and pairs of losses per byte.
    """
    cells, moved = {cell.name: cell for cell in evidence.cells}, []
    decided = [pair for pair in evidence.comparisons.pairs if pair.status == "decided"]
    for pair in decided:
        first, second = (cells[name].rates.gain_left_nats for name in (pair.first_cell, pair.second_cell))
        difference = pair.difference
        if cells[pair.first_cell].per_byte or first is None or second is None:
            continue
        if difference.low_nats is None or difference.high_nats is None:
            continue
        at_vertices = difference.estimate_nats - first + second
        if not difference.low_nats <= at_vertices <= difference.high_nats:
            change = (
                f"{pair.first} minus {pair.second} {signed(at_vertices)} in place of {signed(difference.estimate_nats)} nats"
            )
            moved.append((abs(at_vertices - difference.estimate_nats), f"{change} at {pair.family}"))
    if moved:
        most = "; ".join(words for _, words in sorted(moved, reverse=True)[:MOST_STEPS])
        count = f"{len(moved)} of {plural(len(decided), 'decided pair')} out of the interval"
        yield f"What rates between those tried would give; by the vertices in the table of cells they move {count}: {most}."


def _open_choices(evidence: Evidence) -> Iterator[str]:
    """Yield the decided pairs that would not differ significantly at the next-ranked rate of the higher side.

    No interval covers a choice that missed the best rate tried, which makes two of five equal cells differ in more than 5% of
    draws (`study.config.tuned_values.trial_seeds`): without the pairs listed here, in 3% to 7% if a third of the seeds chose
    and in 3% to 10% if one of five to twelve did. Of pairs that differ by two deviations or more at their best rates, 0% to 14%
    are listed.
    """
    cells, seeds = {cell.name: cell for cell in evidence.cells}, evidence.comparisons.seed_variances
    decided = [pair for pair in evidence.comparisons.pairs if pair.status == "decided"]
    loose, chose = [], 1
    for pair in decided:
        sides = [(pair.first_cell, pair.first), (pair.second_cell, pair.second)]
        (lower, _), (higher, name) = sides if pair.first_is_lower else sides[::-1]
        other = cells[higher].rates.next_best
        if other is None or (loss := _loss_at(other, cells[higher], evidence.ledger)) is None:
            continue
        above, at = loss - float(cells[lower].losses.mean()), (len(cells[lower].runs), len(other.trials))
        if above <= 0 or not would_be_significant(above, pair.difference, (seeds[lower], seeds[higher]), at):
            size = f"{signed(above / pair.difference.nats_per_unit)} {pair.difference.unit}"
            loose.append(f"{name} at {other.learning_rate:.4g} minus {pair.lower} {size} at {pair.family}")
            chose = max(chose, cells[higher].rates.seeds)
    if loose:
        who, ranked = ("the first seed", "it ranks") if chose == 1 else (f"the first {chose} seeds", "they rank")
        more = f"; and {len(loose) - MOST_STEPS} more" if len(loose) > MOST_STEPS else ""
        yield (
            f"Whether {who} chose the best of the rates tried: {len(loose)} of {plural(len(decided), 'decided pair')} would be "
            f"open at the rate that {ranked} next for the higher side, and seeds at the chosen rates say nothing of it: "
            f"{'; '.join(loose[:MOST_STEPS])}{more}."
        )


def _loss_at(rate: TriedRate, cell: CellResult, ledger: pd.DataFrame) -> float | None:
    """Return the mean loss at a rate tried in a cell, in nats per what the cell's losses are per; None if unknown."""
    if not cell.per_byte:
        return rate.loss_nats
    learned = [trial.run_id for trial in rate.trials if trial.usable_loss_nats is not None]
    bits = ledger.loc[ledger["run_id"].isin(learned), "bits_per_masked_byte"]
    return None if bits.isna().any() else float(bits.mean()) * math.log(2)


def _open_rates_of_fronts(evidence: Evidence) -> Iterator[str]:
    """Yield cells of fronts and steps, which need no bracket, whose rate may be far from its best, except those in pairs."""
    named = evidence.comparisons.compared | {left.cell for left in evidence.comparisons.left_out}
    usable = [cell for cell in evidence.cells if cell.usable]
    loose = [cell for cell in usable if not cell.rates.bracketed and cell.name not in named]
    if loose:
        names = "any cell" if 1 < len(loose) == len(usable) else ", ".join(cell.at_budget for cell in loose)
        yield f"How much is the learning rate's doing: the best one tried does not lie between worse ones in {names}."


def _open_tasks(evidence: Evidence) -> Iterator[str]:
    """Yield the sweep's downstream tasks on which some or all usable runs lack scores."""
    requested = evidence.sweep.downstream
    named = [] if requested is None else [Path(task).stem for task in requested.tasks]
    runs = {run: cell.at_budget for cell in evidence.cells for run in cell.runs}
    for missing, tasks in grouped(named, lambda task: tuple(run for run in runs if run not in _scored(evidence, task))).items():
        if missing or not runs:
            cells = dict.fromkeys(runs[run] for run in missing)
            which = "the encoders" if len(cells) == len({*runs.values()}) else ", ".join(cells)
            yield f"What {which} score on {', '.join(tasks)}: {_why_unscored(len(missing), len(runs))}."


def _why_unscored(missing: int, runs: int) -> str:
    if not runs:
        return "no run can be used, so none was scored"
    if missing == runs:
        return "no run was scored; study score does it"
    return f"{missing} of {runs} runs {'was' if missing == 1 else 'were'} not scored; study score does it or says why not"


def _scored(evidence: Evidence, task: str) -> set[str]:
    tasks = evidence.downstream.tasks if evidence.downstream else ()
    ways = (of_task.points for of_task in tasks if of_task.task == task or of_task.task.startswith(f"{task} ("))
    return {run for points in ways for runs in points["runs"] for run in runs}


def _open_score_seeds(evidence: Evidence) -> Iterator[str]:
    tasks = evidence.downstream.tasks if evidence.downstream else ()
    if names := ", ".join(task.task for task in tasks if task.of_one_seed):
        yield (
            f"How far scores on {names} scatter over seeds: they are of one seed, so that their noise and intervals are over "
            "examples alone; more seeds of pre-training, and of fine-tuning (study score --seeds), would show it."
        )


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


def _unread_text(evidence: Evidence) -> Iterator[str]:
    if evidence.ledger.empty or "unknown_share" not in evidence.ledger:
        return
    row = evidence.ledger.sort_values("unknown_share", ascending=False).iloc[0]
    record = evidence.folder.run(str(row["run_id"])).record()
    if record is not None and (unread := record.unread):
        yield f"What a tokeniser that knows more of this text would do: {unread}."


def _overlapping_text(evidence: Evidence) -> Iterator[str]:
    """Yield the share of the validation text in the training text, if large, in the run with most."""
    if evidence.ledger.empty or "validation_overlap_share" not in evidence.ledger:
        return
    row = evidence.ledger.sort_values("validation_overlap_share", ascending=False).iloc[0]
    if (share := row["validation_overlap_share"]) > MOST_OVERLAP:
        data = evidence.folder.run(str(row["run_id"])).config().data
        yield f"How the losses compare on text that was not trained on: {data.overlap(share)}."


def _repeated_text(evidence: Evidence) -> Iterator[str]:
    used = evidence.used
    if UNIQUE_TOKENS in used:  # who limits the text knows how often it is read
        used = used[used[UNIQUE_TOKENS].isna()]
    if used.empty or used["train_tokens"].isna().any():
        return
    unique = evaluate(LEDGER_COLUMNS["unique_tokens"], used.__getitem__, "the ledger", used.columns)
    passes = (used["tokens"] / unique).to_numpy(dtype=float)
    most = int(passes.argmax())
    if passes[most] >= 1.05:  # more than once as printed
        yield (
            f"What new text would do in place of repeated: runs passed up to {passes[most]:.1f} times over the "
            f"{compact(float(unique.iloc[most]))} tokens that they were trained on; a larger corpus would."
        )


def _trained_runs(evidence: Evidence) -> Iterator[str]:
    used = evidence.used
    roles = {
        "start": ("donor", "donors cost", "began with weights of", "whose tokens and FLOPs are not counted"),
        "teacher": ("teacher", "training teachers cost", "learned from", "of whose FLOPs the forward passes alone are counted"),
    }
    counts = any(cell.flops_before for cell in evidence.cells)
    for knob, (role, cost, did, counted) in roles.items():
        if (column := f"recipe.{knob}") not in used:
            continue
        named = used.loc[used[column] != NO_RUN[knob], column]
        if len(named):
            runs = ", ".join(sorted({str(name).partition(":")[0] for name in named}))
            if counts:
                cost, counted = "one of another size costs and buys", "whose training counts in spent_flops alone"
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
    compared = (cell for cell in evidence.cells if cell.name in evidence.comparisons.compared)
    tables = {cell.parameters - cell.parameters_non_embedding for cell in compared}
    if evidence.comparisons.weigh_depth_or_width and len(tables) > 1:
        both = "(both counts are in the table of cells)"
        if evidence.sweep.size_count == "total":
            why = "at equal total parameters the wider shape has larger embedding tables, and so less in its layers"
            yield f"Whether the same holds at equal non-embedding parameters: {why} {both}."
        else:
            why = "at equal non-embedding parameters the wider shape has larger embedding tables"
            yield f"Whether the same holds at equal total parameters: {why} {both}."
