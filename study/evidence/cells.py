"""The cells of a sweep: one shape under one variant and budget, its rate search, and the losses of its chosen runs."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.base.errors import InputError
from study.base.grouping import grouped
from study.base.quantities import budget_words, signed
from study.base.statistics import variance_of_mean
from study.base.text import at_budget, shape_and_variant
from study.config.recipe import Budget
from study.config.run_config import RunConfig, describe_knobs, ledger_value
from study.config.sweep import CellSweep, Sweep
from study.counting.architecture import SHAPE, Architecture
from study.counting.parameters import TOTALS, parameters
from study.evidence.learning_rates import RATE, CellSearch, RateSearch, TunedKnob, searches
from study.evidence.paired import Difference, paired_difference
from study.evidence.seed_scatter import Pool, SeedScatter, SeedVariance, SeedVariances, seed_scatter
from study.store.records import FOREIGN, validation_of
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder

_RUN_ID = re.compile(r"\b[0-9a-f]{16}\b")

_BUDGET = "recipe.budget."
"""What the ledger's columns of a budget begin with, each of one unit."""


@dataclass(frozen=True)
class CellResult:
    """One shape under one variant and budget, with its rate search and the losses of its chosen runs.

    `settings` holds the variant by ledger column. `tokens` and `train_flops` are those of the whole steps that the budget pays
    for, `budget_share` their share of it. Losses are comparable only under one name of `validation`. `runs` are the usable runs
    at the chosen rate, one of each of `seeds`; `losses` are seeds × validation sequences in nats per masked token, and
    `documents` those of the sequences, by which errors cluster (None: no run keeps them). Runs with the weights of a trained
    run lack `layers_cut` of its layers. `unlearned` runs at the chosen rate diverged. `order_gain_nats` is the mean gain from
    word order, with the mean of the runs' standard errors, since they share sequences; `reads_order` says whether all runs read
    it. Both are None where a run did not measure them.
    """

    name: str
    settings: Mapping[str, object]
    budget: Budget
    architecture: Architecture
    parameters: int
    parameters_encoder: int
    parameters_non_embedding: int
    tokens: int
    budget_share: float
    train_flops: float
    validation: str
    unigram_entropy_nats: float | None
    rates: RateSearch
    runs: tuple[str, ...]
    seeds: tuple[int, ...]
    losses: NDArray[np.float64] = field(repr=False, compare=False)
    knobs: tuple[TunedKnob, ...] = ()
    documents: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    layers_cut: int | None = None
    unlearned: int = 0
    order_gain_nats: float | None = None
    order_gain_standard_error_nats: float | None = None
    reads_order: bool | None = None

    @property
    def setting(self) -> str:
        """The variants in words, empty where only shapes and budgets differ."""
        return describe_knobs(self.settings)

    def variant_without(self, column: str) -> str:
        """The variants in words without that of a column."""
        return describe_knobs({name: value for name, value in self.settings.items() if name != column})

    @property
    def words(self) -> str:
        """Shape and variant."""
        return shape_and_variant(self.architecture.shape_name, self.setting)

    @property
    def at_budget(self) -> str:
        """Shape, variant and budget in words."""
        return at_budget(self.words, budget_words(self.budget))

    @property
    def pool(self) -> Pool:
        """The cells whose seeds may scatter alike."""
        return Pool(self.budget, round(math.log2(self.tokens or 1)))

    @property
    def usable(self) -> bool:
        """Whether any run at the chosen rate has a loss that comparisons can use."""
        return bool(self.runs)

    @property
    def measured(self) -> bool:
        """Whether differences from the cell have an error over validation sequences: two of them, and of two documents."""
        return self.usable and len(self.losses[0] if self.documents is None else np.unique(self.documents)) > 1

    def at(self, seeds: Sequence[int]) -> CellResult:
        """The cell with the runs of these of its seeds alone."""
        places = [self.seeds.index(seed) for seed in seeds]
        return replace(self, runs=tuple(self.runs[place] for place in places), seeds=tuple(seeds), losses=self.losses[places])

    @property
    def loss_nats(self) -> float | None:
        """Validation loss, nats per masked token, mean over the seeds at the chosen rate."""
        return float(self.losses.mean()) if self.usable else None

    @property
    def standard_error_nats(self) -> float | None:
        """Standard error of `loss_nats` over the validation sequences, seeds averaged; None where the cell is not measured."""
        return variance_of_mean(self.losses.mean(axis=0), self.documents) ** 0.5 if self.measured else None

    @property
    def order_words(self) -> str | None:
        """What the order of words is worth, in words; None where it was not measured."""
        if self.order_gain_nats is None:
            return None
        error = "" if self.order_gain_standard_error_nats is None else f" ± {self.order_gain_standard_error_nats:.4f}"
        return f"{signed(self.order_gain_nats)}{error}"

    def to_dict(self) -> dict[str, Any]:
        """The cell as plain values, its runs' losses as their mean and standard error."""
        return {
            "cell": self.name,
            "shape": self.architecture.shape_name,
            "setting": self.setting,
            "budget": budget_words(self.budget),
            **{name: getattr(self, name) for name in (*TOTALS, "tokens", "train_flops")},
            "learning_rate": self.rates.chosen,
            "rate_status": self.rates.status,
            "other_knobs": [asdict(knob) for knob in self.knobs],
            "seeds": len(self.runs),
            "loss_nats": self.loss_nats,
            "standard_error_nats": self.standard_error_nats,
            "order_gain_nats": self.order_gain_nats,
            "order_gain_standard_error_nats": self.order_gain_standard_error_nats,
            "reads_order": self.reads_order,
        }


def cells_of(folder: SweepFolder, ledger: pd.DataFrame) -> tuple[CellResult, ...]:
    """The cells of a sweep by size, shape, budget and variant, in the sweep's order; empty for an empty ledger.

    Only the runs of the sweep as last launched make cells; earlier ones stay in the ledger.
    """
    if ledger.empty:
        return ()
    ledger = _own(ledger)
    listed = listed_values(folder.sweep())
    varied = variant_columns(folder, ledger)
    chosen = searches(ledger, folder.sweep().choosing_seeds)
    found = [_cell(folder, name, ledger.iloc[search.at_best], search, varied) for name, search in chosen.items()]
    if folder.sweep().transfers:
        found = _with_transfers(found)

    def order(cell: CellResult) -> tuple[object, ...]:
        settings = (variant_order(value, listed.get(column, ())) for column, value in cell.settings.items())
        budget = (cell.budget.unit, cell.budget.amount)  # whole steps of larger batches may be fewer tokens
        return cell.parameters_non_embedding, *cell.architecture.sizes, *budget, *settings, cell.name

    return tuple(sorted(found, key=order))


def _with_transfers(cells: Sequence[CellResult]) -> list[CellResult]:
    """The cells, with a rate marked as transferred where it is the smallest cell's and the largest cell confirms it.

    The smallest cell is the cheapest of the variant and budget, the largest the most expensive of the variant, as in the plan
    (study.planning.neighbours). Both rates must be bracketed, and the largest cell's must be that of its source.
    """

    def order(cell: CellResult) -> tuple[float, tuple[int, ...]]:
        return cell.train_flops, cell.architecture.sizes

    found = []
    for alike in grouped(cells, lambda cell: cell.setting).values():
        sources = {budget: min(group, key=order) for budget, group in by_budget(alike).items()}
        largest = max(alike, key=order)
        holds = largest.rates.bracketed and largest.rates.chosen == sources[largest.budget].rates.chosen
        for cell in alike:
            source = sources[cell.budget].rates
            if holds and source.bracketed and cell.rates.status == "only_tried" and cell.rates.chosen == source.chosen:
                cell = replace(cell, rates=replace(cell.rates, status="transferred"))
            found.append(cell)
    return found


def listed_values(sweep: Sweep) -> dict[str, list[object]]:
    """The values of each knob that a sweep varies, as ledgers write them, in the order of the sweep file."""
    varied = sweep.vary if isinstance(sweep, CellSweep) else {}
    return {knob: [ledger_value(knob, value) for value in values] for knob, values in varied.items()}


def variant_order(value: object, listed: Sequence[object]) -> tuple[int, float, str]:
    """The sort key of a variant's value: its position in `listed`; others follow, numbers by size and words in order."""
    number = float(value) if isinstance(value, int | float) and value == value else math.inf
    return listed.index(value) if value in listed else len(listed), number, str(value)


def measured(cells: Iterable[CellResult]) -> list[CellResult]:
    """The cells whose differences have an error over validation sequences."""
    return [cell for cell in cells if cell.measured]


def by_budget(cells: Iterable[CellResult]) -> dict[Budget, list[CellResult]]:
    """The cells of each budget as they come, the budget of fewer tokens first."""
    groups = grouped(cells, lambda cell: cell.budget)
    return dict(sorted(groups.items(), key=lambda group: min(cell.tokens for cell in group[1])))


def by_variant_and_budget(cells: Iterable[CellResult]) -> dict[tuple[str, Budget], list[CellResult]]:
    """The cells of each variant and budget, of one variant those of fewer tokens first."""
    ordered = sorted(cells, key=lambda cell: (cell.setting, cell.tokens))
    return grouped(ordered, lambda cell: (cell.setting, cell.budget))


def scatter_of_cells(cells: Iterable[CellResult]) -> tuple[SeedScatter, ...]:
    """How the usable cells of each pool that has replicates scatter over seeds, those of fewer tokens first."""
    pools = grouped(sorted((cell for cell in cells if cell.usable), key=lambda cell: cell.tokens), lambda cell: cell.pool)
    found = (seed_scatter(pool, {cell.name: cell.losses for cell in members}) for pool, members in pools.items())
    return tuple(scatter for scatter in found if scatter.variances)


def seed_variances(scatter: Iterable[SeedScatter]) -> SeedVariances:
    """The seed variance of each cell of all pools."""
    return {name: variance for pool in scatter for name, variance in pool.variances.items()}


def variances_over_seeds(cells: Sequence[CellResult], seeds: SeedVariances) -> list[SeedVariance] | None:
    """The seed variance of each cell, None where any has none."""
    found = [seeds[cell.name] for cell in cells if cell.name in seeds]
    return found if len(found) == len(cells) else None


def difference_between(first: CellResult, second: CellResult, seeds: SeedVariances) -> Difference:
    """The first cell's loss minus the second's; without an interval where the seed variance of either is unknown."""
    both = (first, second)
    return paired_difference(first.losses, second.losses, variances_over_seeds(both, seeds), documents_of(both))


def documents_of(cells: Iterable[CellResult]) -> NDArray[np.int64] | None:
    """The documents of the sequences that cells of one validation set share, from the first that knows them."""
    return next((cell.documents for cell in cells if cell.documents is not None), None)


def both_read(first: CellResult, second: CellResult) -> bool | None:
    """Whether both cells read word order, which a verdict on their shapes needs; None where it is not known.

    A loss without word order follows the width of the token table and says nothing of the blocks.
    """
    reads = (first.reads_order, second.reads_order)
    return False if False in reads else None if None in reads else True


def either_reads(first: CellResult, second: CellResult) -> bool | None:
    """Whether at least one cell reads word order, which a verdict on two variants needs; None where it is not known.

    What lets an encoder read is a finding; two bags of words say nothing of the variants.
    """
    reads = (first.reads_order, second.reads_order)
    return True if True in reads else None if None in reads else False


def common_seeds(cells: Iterable[CellResult]) -> list[int]:
    """The seeds that all cells have."""
    return sorted(set.intersection(*(set(cell.seeds) for cell in cells)))


def weighted_losses(cells: Sequence[CellResult], weights: NDArray[np.float64], seeds: Sequence[int]) -> NDArray[np.float64]:
    """The weighted sum of cells' losses at seeds that all of them have: seeds × sequences."""
    of_cells = np.stack([cell.at(seeds).losses for cell in cells])
    return np.asarray(np.tensordot(weights, of_cells, axes=1), dtype=np.float64)


def variant_columns(folder: SweepFolder, ledger: pd.DataFrame) -> list[str]:
    """The columns of a sweep's variants: all that differs between its runs but shape, tuned knobs, seed and budget.

    Only runs of the sweep as last launched count. The warmup of a trunk follows its budgets and batch, and RMSNorm has no bias:
    such columns are no variants unless the sweep names them.
    """
    runs = _own(ledger)
    follow = {"recipe.warmup_fraction", "recipe.warmup_tokens", "architecture.norm_bias"} - {*folder.distinguishing_knobs()}
    apart_from = {*SHAPE, *folder.tuned(), "seed", *follow}
    configuration = [
        name
        for name in runs.columns
        if "." in name and name not in apart_from and not name.startswith(("environment.", _BUDGET))
    ]
    return [name for name in (*configuration, "data_fingerprint") if runs[name].nunique(dropna=False) > 1]


def _own(ledger: pd.DataFrame) -> pd.DataFrame:
    """The runs of the sweep as last launched, all where none is."""
    own = ledger[ledger["exclusion"] != FOREIGN]
    return ledger if own.empty else own


def run_ids_in(texts: Iterable[object]) -> frozenset[str]:
    """The ids of donors and teachers that texts name."""
    return frozenset(found for text in texts for found in _RUN_ID.findall(str(text)))


def shorten_run_ids(text: str, known: Collection[str]) -> str:
    """Text whose run ids are cut to six digits; before layers, the id of the only donor that is `known` is left out."""
    if len(known) == 1:
        text = text.replace(f"{next(iter(known))}:", "")
    return _RUN_ID.sub(lambda found: found[0][:6], text)


def in_words(table: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """What some columns are set to in each row, in words."""
    rows = table[list(columns)].itertuples(index=False)
    return [describe_knobs(dict(zip(columns, values, strict=True))) for values in rows]


def budgets_in_words(ledger: pd.DataFrame) -> list[str]:
    """The budget of each run in words, empty where all runs of the sweep as last launched have the same."""
    given = ledger.filter(like=_BUDGET).rename(columns=lambda name: name.removeprefix(_BUDGET))
    words = [budget_words(Budget.model_validate(row[row.notna()].to_dict())) for _, row in given.iterrows()]
    several = pd.Series(words, ledger.index)[_own(ledger).index].nunique() > 1
    return words if several else [""] * len(words)


def _cell(folder: SweepFolder, name: str, runs: pd.DataFrame, search: CellSearch, varied: list[str]) -> CellResult:
    row = runs.iloc[0]
    config = folder.run(str(row["run_id"])).config()
    at_rate = runs[runs[RATE] == search.rates.chosen]
    chosen = at_rate[at_rate["exclusion"].isna()].sort_values("seed")
    losses = [_per_masked_token(folder.run(str(run["run_id"])), run) for _, run in chosen.iterrows()]
    layers_cut = _shared(runs, "layers_cut")
    return CellResult(
        name=name,
        settings={column: row[column] for column in varied},
        budget=config.recipe.budget,
        architecture=config.architecture,
        **parameters(config.architecture).totals(),
        tokens=config.tokens,
        budget_share=config.tokens / config.budget_tokens if config.tokens else 1.0,
        train_flops=_train_flops(config, runs),
        validation=validation_of(config, str(row["data_fingerprint"])),
        unigram_entropy_nats=_shared(runs, "unigram_entropy_nats"),
        rates=search.rates,
        runs=tuple(chosen["run_id"].astype(str)),
        seeds=tuple(int(seed) for seed in chosen["seed"]),
        losses=np.array(losses) if losses else np.empty((0, 0)),
        documents=_documents([folder.run(str(run_id)) for run_id in chosen["run_id"]], [len(each) for each in losses]),
        knobs=search.knobs,
        layers_cut=None if layers_cut is None else int(layers_cut),
        unlearned=int(at_rate["state"].eq("DIVERGED").sum()),
        order_gain_nats=_mean(chosen, "order_gain_nats"),
        order_gain_standard_error_nats=_mean(chosen, "order_gain_standard_error_nats"),
        reads_order=_all_read(chosen),
    )


def _mean(runs: pd.DataFrame, column: str) -> float | None:
    """The mean over runs, None if any or all lack it."""
    values = runs.get(column, pd.Series(dtype=float))
    return None if values.empty or values.isna().any() else float(values.mean())


def _all_read(runs: pd.DataFrame) -> bool | None:
    """Whether all runs read word order: False if any does not, None if that is unknown for any."""
    reads = runs.get("reads_order", pd.Series(dtype=object))
    return False if reads.eq(False).any() else None if reads.empty or reads.isna().any() else True


def _documents(runs: Sequence[RunFolder], sequences: Sequence[int]) -> NDArray[np.int64] | None:
    """The document of each validation sequence, which all runs of a cell share, from the first run that keeps them.

    Raises InputError where their number differs from that of the sequences.
    """
    for run, count in zip(runs, sequences, strict=True):
        if (documents := run.validation_documents()) is not None:
            if len(documents) != count:
                problem = f"names the documents of {len(documents):,} sequences, but the run has the losses of {count:,}"
                raise InputError.at(str(run.validation_documents_file), f"{problem}; fetch both anew")
            return documents
    return None


def _shared(runs: pd.DataFrame, column: str) -> float | None:
    """A value that all runs of a cell share, from the first run that has it."""
    values = runs.get(column, pd.Series(dtype=float)).dropna()
    return None if values.empty else float(values.iloc[0])


def _train_flops(config: RunConfig, runs: pd.DataFrame) -> float:
    """FLOPs of the whole budget by what the runs took for a token, a teacher's among them; without it where none trained."""
    trained = runs[runs["tokens"] > 0]
    if trained.empty:
        return config.flops_per_token["train_flops"] * config.tokens
    row = trained.sort_values("tokens").iloc[-1]
    return float(row["train_flops"] * (config.tokens / row["tokens"]))


def _per_masked_token(run: RunFolder, row: pd.Series) -> NDArray[np.float64]:
    """Loss of each validation sequence; all sequences have the same number of masked tokens.

    Raises InputError where their sum differs from the record's, as that of another run would.
    """
    tokens, loss = row[["validation_masked_tokens", "loss_nats"]].astype(float)
    summed = run.recorded_losses(tokens, loss)
    return summed / (tokens / len(summed))
