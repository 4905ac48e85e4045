"""Cells of a sweep: one shape under one variant and budget, its rate search, and the losses of its chosen runs."""

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
from study.base.quantities import budget_words, error_text, signed
from study.base.statistics import variance_of_mean
from study.base.text import at_budget, shape_and_variant
from study.config.presets import PRESET, PRESET_KNOBS
from study.config.recipe import Budget
from study.config.run_config import RunConfig, describe_knobs, ledger_value
from study.config.sweep import CellSweep, Sweep
from study.counting.architecture import NONE, SHAPE, Architecture
from study.counting.parameters import TOTALS, parameters
from study.evidence.learning_rates import RATE, CellSearch, RateSearch, TunedKnob, searches
from study.evidence.ledgers import OBJECTIVE, VALIDATION
from study.evidence.paired import Difference, DifferencePerByte, paired_difference
from study.evidence.seed_scatter import PooledCells, SeedScatter, SeedVariance, SeedVariances, seed_scatter
from study.store.records import FOREIGN, validation_of
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder

NATS, DETECTED, PER_BYTE = Difference.unit, "nats per token", DifferencePerByte.unit
"""The units of losses: of masked tokens, of tokens that may have been replaced, and of masked words."""

_RUN_ID = re.compile(r"\b[0-9a-f]{16}\b")

_BUDGET = "recipe.budget."
"""Prefix of the ledger's budget columns, one column a unit."""


@dataclass(frozen=True)
class CellResult:
    """One shape under one variant and budget, with its rate search and the losses of its chosen runs.

    `settings`: the variant by ledger column. `tokens`, `train_flops`: of the whole steps that the budget pays for,
    `budget_share` their share of it; `flops_before`: of the runs that it starts from or learns from. Losses compare only under
    one `validation`. `runs`: the usable runs at the chosen rate, one for each of `seeds`; `losses`: seeds × validation
    sequences, nats per masked token; `documents`: of the sequences, by which errors cluster (None if no run keeps them). In a
    sweep of several tokenisers losses are `per_byte`: seeds × validation documents, nats per byte of the masked words that all
    runs share (study.data.masked_words). `layers_cut`: layers dropped from the run that gave the initial weights.
    `unlearned`: diverged runs at the chosen rate. `order_gain_nats`: mean gain from word order, its standard error the mean
    over runs, which share sequences; `reads_order`: whether all runs read it. Both are None if any run lacks them, and so is
    `pair_accuracy`, the mean share of validation pairs judged right.
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
    flops_before: float = 0.0
    unlearned: int = 0
    order_gain_nats: float | None = None
    order_gain_standard_error_nats: float | None = None
    reads_order: bool | None = None
    pair_accuracy: float | None = None
    per_byte: bool = False

    @property
    def setting(self) -> str:
        """The variant in words; empty if there is only one."""
        return describe_knobs(self.settings)

    def variant_without(self, column: str) -> str:
        """Return the variant in words, leaving out one column."""
        return describe_knobs({name: value for name, value in self.settings.items() if name != column})

    @property
    def words(self) -> str:
        """Shape and variant."""
        return shape_and_variant(self.architecture.shape_name, self.setting)

    @property
    def at_budget(self) -> str:
        """Shape, variant and budget."""
        return at_budget(self.words, budget_words(self.budget))

    @property
    def spent_flops(self) -> float:
        """FLOPs of its training and of all runs that it needs."""
        return self.train_flops + self.flops_before

    @property
    def pool(self) -> PooledCells:
        """Cells whose seeds may share a variance."""
        return PooledCells(self.budget, round(math.log2(self.tokens or 1)), self.validation)

    @property
    def usable(self) -> bool:
        """Whether any run has a comparable loss."""
        return bool(self.runs)

    @property
    def measured(self) -> bool:
        """Whether differences have an error over validation sequences."""
        return self.usable and len(self.losses[0] if self.documents is None else np.unique(self.documents)) > 1

    def at(self, seeds: Sequence[int]) -> CellResult:
        """Return the cell restricted to some of its seeds."""
        rows = [self.seeds.index(seed) for seed in seeds]
        return replace(self, runs=tuple(self.runs[row] for row in rows), seeds=tuple(seeds), losses=self.losses[rows])

    def among(self, runs: Collection[str]) -> CellResult:
        """Return the cell restricted to its runs among these, whole without any."""
        return self.at([seed for run, seed in zip(self.runs, self.seeds, strict=True) if run in runs] or self.seeds)

    @property
    def loss_nats(self) -> float | None:
        """Mean validation loss over seeds, nats per masked token."""
        return float(self.losses.mean()) if self.usable else None

    @property
    def standard_error_nats(self) -> float | None:
        """Standard error of `loss_nats` over validation sequences; None if not `measured`."""
        return variance_of_mean(self.losses.mean(axis=0), self.documents) ** 0.5 if self.measured else None

    @property
    def token_unit(self) -> str:
        """The unit of its losses per token: of masked ones, or of all where the objective detects replaced ones."""
        return DETECTED if self.architecture.generator_share else NATS

    @property
    def unit(self) -> str:
        """The unit that its losses are shown in."""
        return PER_BYTE if self.per_byte else self.token_unit

    def in_unit(self, nats: float) -> float:
        """Return a loss of its kind in its `unit`."""
        return nats / math.log(2) if self.per_byte else nats

    @property
    def loss_in_unit(self) -> float | None:
        """Mean loss over seeds in its `unit`."""
        return None if self.loss_nats is None else self.in_unit(self.loss_nats)

    @property
    def bits_per_masked_byte(self) -> float | None:
        """Mean loss over seeds in bits per byte of masked words, if measured."""
        return self.loss_nats / math.log(2) if self.per_byte and self.loss_nats is not None else None

    @property
    def order_words(self) -> str | None:
        """The gain from word order."""
        if self.order_gain_nats is None:
            return None
        error = "" if self.order_gain_standard_error_nats is None else f" ± {error_text(self.order_gain_standard_error_nats)}"
        return f"{signed(self.order_gain_nats)}{error}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; losses as mean and standard error."""
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
            **({} if self.pair_accuracy is None else {"pair_accuracy": self.pair_accuracy}),
            **({"bits_per_masked_byte": self.bits_per_masked_byte} if self.per_byte else {}),
        }


def cells_of(folder: SweepFolder, ledger: pd.DataFrame) -> tuple[CellResult, ...]:
    """Return the cells of a sweep as last launched, by size, shape, budget and variant."""
    if ledger.empty:
        return ()
    ledger = _last_launched(ledger)
    listed = listed_values(folder.sweep())
    varied = variant_columns(folder, ledger)
    chosen = searches(ledger, folder.sweep().choosing_seeds)
    cells = [_cell(folder, name, ledger.iloc[search.at_best], search, varied) for name, search in chosen.items()]
    if folder.sweep().transfers:
        cells = _with_transfers(cells)

    def order(cell: CellResult) -> tuple[object, ...]:
        settings = (variant_order(value, listed.get(column, ())) for column, value in cell.settings.items())
        budget = (cell.budget.unit, cell.budget.amount)  # whole steps of larger batches may be fewer tokens
        return cell.parameters_non_embedding, *cell.architecture.sizes, *budget, *settings, cell.name

    return tuple(sorted(cells, key=order))


def _with_transfers(cells: Sequence[CellResult]) -> list[CellResult]:
    """Mark rates that are the smallest cell's and that the largest cell confirms as transferred.

    The smallest cell is the cheapest of a variant and budget, the largest the most expensive of a variant, as in
    study.planning.cell. Both rates must be bracketed, and the largest cell's must equal its source's.
    """

    def order(cell: CellResult) -> tuple[float, tuple[int, ...]]:
        return cell.train_flops, cell.architecture.sizes

    marked = []
    for members in grouped(cells, lambda cell: cell.setting).values():
        sources = {budget: min(group, key=order) for budget, group in by_budget(members).items()}
        largest = max(members, key=order)
        confirmed = largest.rates.bracketed and largest.rates.chosen == sources[largest.budget].rates.chosen
        for cell in members:
            source = sources[cell.budget].rates
            if confirmed and source.bracketed and cell.rates.status == "only_tried" and cell.rates.chosen == source.chosen:
                cell = replace(cell, rates=replace(cell.rates, status="transferred"))
            marked.append(cell)
    return marked


def listed_values(sweep: Sweep) -> dict[str, list[object]]:
    """Values of each varied knob, in sweep file order."""
    varied = sweep.vary if isinstance(sweep, CellSweep) else {}
    return {knob: [_or_none(ledger_value(knob, value)) for value in values] for knob, values in varied.items()}


def _or_none(value: object) -> object:
    """Return a value of a knob, a missing one as a word."""
    return NONE if value is None or value != value else value


def variant_order(value: object, listed: Sequence[object]) -> tuple[int, float, str]:
    """Sort key of a variant's value: position in `listed`, then other numbers by size, then words."""
    number = float(value) if isinstance(value, int | float) and value == value else math.inf
    return listed.index(value) if value in listed else len(listed), number, str(value)


def measured(cells: Iterable[CellResult]) -> list[CellResult]:
    """Return the measured cells."""
    return [cell for cell in cells if cell.measured]


def by_budget(cells: Iterable[CellResult]) -> dict[Budget, list[CellResult]]:
    """Group cells by budget, fewest tokens first."""
    groups = grouped(cells, lambda cell: cell.budget)
    return dict(sorted(groups.items(), key=lambda group: min(cell.tokens for cell in group[1])))


def by_variant_and_budget(cells: Iterable[CellResult]) -> dict[tuple[str, Budget], list[CellResult]]:
    """Group cells by variant and budget, sorted by variant and tokens."""
    ordered = sorted(cells, key=lambda cell: (cell.setting, cell.tokens))
    return grouped(ordered, lambda cell: (cell.setting, cell.budget))


def scatter_of_cells(cells: Iterable[CellResult]) -> tuple[SeedScatter, ...]:
    """Seed scatter of each pool of usable cells with replicates."""
    pools = grouped(sorted((cell for cell in cells if cell.usable), key=lambda cell: cell.tokens), lambda cell: cell.pool)
    scatters = (seed_scatter(pool, {cell.name: cell.losses for cell in members}) for pool, members in pools.items())
    return tuple(scatter for scatter in scatters if scatter.variances)


def seed_variances(scatter: Iterable[SeedScatter]) -> SeedVariances:
    """Seed variances by cell name."""
    return {name: variance for pool in scatter for name, variance in pool.variances.items()}


def variances_over_seeds(cells: Sequence[CellResult], seeds: SeedVariances) -> list[SeedVariance] | None:
    """Seed variances of the cells, if all are known."""
    variances = [seeds[cell.name] for cell in cells if cell.name in seeds]
    return variances if len(variances) == len(cells) else None


def difference_between(first: CellResult, second: CellResult, seeds: SeedVariances) -> Difference:
    """Return the first loss minus the second."""
    both = (first, second)
    variances = variances_over_seeds(both, seeds)
    return paired_difference(first.losses, second.losses, variances, documents_of(both), first.per_byte)


def documents_of(cells: Iterable[CellResult]) -> NDArray[np.int64] | None:
    """Documents of shared validation sequences, if known."""
    return next((cell.documents for cell in cells if cell.documents is not None), None)


def both_read(first: CellResult, second: CellResult) -> bool | None:
    """Whether both cells read word order, as a verdict on shapes requires; None if unknown.

    A loss without it follows the token table's width and says nothing about the blocks.
    """
    reads = (first.reads_order, second.reads_order)
    return False if False in reads else None if None in reads else True


def either_reads(first: CellResult, second: CellResult) -> bool | None:
    """Whether at least one cell reads word order, as a verdict on variants requires; None if unknown.

    What lets an encoder read is a result; two bags of words show nothing.
    """
    reads = (first.reads_order, second.reads_order)
    return True if True in reads else None if None in reads else False


def common_seeds(cells: Iterable[CellResult]) -> list[int]:
    """Return the seeds of all cells."""
    return sorted(set.intersection(*(set(cell.seeds) for cell in cells)))


def weighted_losses(cells: Sequence[CellResult], weights: NDArray[np.float64], seeds: Sequence[int]) -> NDArray[np.float64]:
    """Weighted sum of the cells' losses at common seeds: seeds × sequences."""
    of_cells = np.stack([cell.at(seeds).losses for cell in cells])
    return np.asarray(np.tensordot(weights, of_cells, axes=1), dtype=np.float64)


FOLLOWING = frozenset(
    {
        "recipe.warmup_fraction",
        "recipe.warmup_tokens",
        "architecture.norm_bias",
        "architecture.embedding_norm",
        "architecture.relative_positions",
    }
)
"""A trunk's warmup follows its budgets and batch; RMSNorm has no bias, and post-norm norms the embeddings whatever is asked;
only disentangled attention has rows for distances."""


def variant_columns(folder: SweepFolder, ledger: pd.DataFrame) -> list[str]:
    """Columns of a sweep's variants: all that differ in its last launch except shape, tuned knobs, seed and budget.

    FOLLOWING columns are variants only if the sweep names them, and compared presets stand for all that they set.
    """
    runs, sweep, compared = _last_launched(ledger), folder.sweep(), {*folder.distinguishing_knobs()}
    excluded = {*SHAPE, *folder.tuned(), "seed", *(FOLLOWING - compared)}
    presets = [PRESET] if PRESET in compared else []
    if presets:
        excluded |= {*PRESET_KNOBS, RATE}
    if sweep.compares_tokenizers:
        excluded |= {"architecture.vocabulary", "data_fingerprint"}
    configuration = [
        name for name in runs.columns if "." in name and name not in excluded and not name.startswith(("environment.", _BUDGET))
    ]
    named = [*presets, *configuration, *({"data_fingerprint"} - excluded)]
    return [name for name in named if runs[name].nunique(dropna=False) > 1]


def _last_launched(ledger: pd.DataFrame) -> pd.DataFrame:
    own = ledger[ledger["exclusion"] != FOREIGN]
    return ledger if own.empty else own


def scales_of(cells: Sequence[CellResult], per_token: bool = False) -> dict[str, str]:
    """By cell name, the variants among which its losses compare, in words; empty if those of all cells do.

    `per_token` asks for losses per masked token, which do not compare across tokenisers.
    """
    settings = pd.DataFrame([cell.settings for cell in cells]).astype(str)
    differing = map(str, settings.columns[settings.nunique() > 1])
    columns = [name for name in differing if name.startswith((*VALIDATION, OBJECTIVE))]
    words = {cell.name: describe_knobs({name: cell.settings[name] for name in columns}) for cell in cells}
    groups = grouped(cells, lambda cell: (cell.validation, words[cell.name] if per_token and cell.per_byte else ""))
    if len(groups) < 2:
        return dict.fromkeys(words, "")
    ids, named = run_ids_in(words.values()), dict[str, str]()
    for number, members in enumerate(groups.values(), 1):
        of_group = dict.fromkeys(shorten_run_ids(words[cell.name], ids) for cell in members)
        scale = " or ".join(filter(None, of_group)) or f"validation set {number}"
        named |= dict.fromkeys((cell.name for cell in members), scale)
    return named


def run_ids_in(texts: Iterable[object]) -> frozenset[str]:
    """Ids of initial and teacher runs in texts."""
    return frozenset(run_id for text in texts for run_id in _RUN_ID.findall(str(text)))


def shorten_run_ids(text: str, known: Collection[str]) -> str:
    """Words for run ids: the only one in `known` is `trained`; several are numbered in order."""
    if len(known) == 1:
        text = text.replace(f"start={next(iter(known))}:", "start=")
    words = {run: f"run{number}" if len(known) > 1 else "trained" for number, run in enumerate(sorted(known), 1)}
    return _RUN_ID.sub(lambda match: words.get(match[0], match[0][:6]), text)


def in_words(table: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Each row's values of some columns."""
    rows = table[list(columns)].itertuples(index=False)
    return [describe_knobs(dict(zip(columns, values, strict=True))) for values in rows]


def budgets_in_words(ledger: pd.DataFrame) -> list[str]:
    """Each run's budget as text; empty if there is only one."""
    given = ledger.filter(like=_BUDGET).rename(columns=lambda name: name.removeprefix(_BUDGET))
    words = [budget_words(Budget.model_validate(row[row.notna()].to_dict())) for _, row in given.iterrows()]
    several = pd.Series(words, ledger.index)[_last_launched(ledger).index].nunique() > 1
    return words if several else [""] * len(words)


def _cell(folder: SweepFolder, name: str, runs: pd.DataFrame, search: CellSearch, varied: list[str]) -> CellResult:
    row = runs.iloc[0]
    config = folder.run(str(row["run_id"])).config()
    per_byte = folder.sweep().compares_tokenizers
    at_rate = runs[runs[RATE] == search.rates.chosen]
    chosen = at_rate[at_rate["exclusion"].isna()].sort_values("seed")
    if per_byte:  # runs of earlier versions masked no words
        chosen = chosen[chosen["masked_words"].notna()] if "masked_words" in chosen else chosen.iloc[:0]
    measure = _per_masked_byte if per_byte else per_masked_token
    losses = [measure(folder.run(str(run["run_id"])), run) for _, run in chosen.iterrows()]
    validated = str(chosen["masked_words"].iloc[0]) if per_byte and len(chosen) else str(row["data_fingerprint"])
    layers_cut = _first_known(runs, "layers_cut")
    return CellResult(
        name=name,
        settings={column: _or_none(row[column]) for column in varied},
        budget=config.recipe.budget,
        architecture=config.architecture,
        **parameters(config.architecture).totals(),
        tokens=config.tokens,
        budget_share=config.tokens / config.budget_tokens if config.tokens else 1.0,
        train_flops=_train_flops(config, runs),
        validation=validated if per_byte else validation_of(config, validated),
        unigram_entropy_nats=None if per_byte or config.recipe.detects_replaced else _first_known(runs, "unigram_entropy_nats"),
        rates=search.rates,
        runs=tuple(chosen["run_id"].astype(str)),
        seeds=tuple(int(seed) for seed in chosen["seed"]),
        losses=np.array(losses) if losses else np.empty((0, 0)),
        documents=None
        if per_byte
        else _documents([folder.run(str(run_id)) for run_id in chosen["run_id"]], [len(each) for each in losses]),
        knobs=search.knobs,
        layers_cut=None if layers_cut is None else int(layers_cut),
        flops_before=_flops_before(runs),
        unlearned=int(at_rate["state"].eq("DIVERGED").sum()),
        order_gain_nats=_mean_if_all_known(chosen, "order_gain_nats"),
        order_gain_standard_error_nats=_mean_if_all_known(chosen, "order_gain_standard_error_nats"),
        reads_order=_all_read_order(chosen),
        pair_accuracy=_mean_if_all_known(chosen, "pair_accuracy"),
        per_byte=per_byte,
    )


def _mean_if_all_known(runs: pd.DataFrame, column: str) -> float | None:
    values = runs.get(column, pd.Series(dtype=float))
    return None if values.empty or values.isna().any() else float(values.mean())


def _all_read_order(runs: pd.DataFrame) -> bool | None:
    """Return False if any run reads no word order, None if unknown for any."""
    reads = runs.get("reads_order", pd.Series(dtype=object))
    return False if reads.eq(False).any() else None if reads.empty or reads.isna().any() else True


def _documents(runs: Sequence[RunFolder], sequences: Sequence[int]) -> NDArray[np.int64] | None:
    """Return the document of each validation sequence, from the first run that keeps them.

    Raises InputError if their number is another.
    """
    for run, count in zip(runs, sequences, strict=True):
        if (documents := run.validation_documents()) is not None:
            if len(documents) != count:
                problem = f"lists the documents of {len(documents):,} sequences, but the run has losses for {count:,}"
                raise InputError.at(str(run.validation_documents_file), f"{problem}; fetch both again")
            return documents
    return None


def _first_known(runs: pd.DataFrame, column: str) -> float | None:
    values = runs.get(column, pd.Series(dtype=float)).dropna()
    return None if values.empty else float(values.iloc[0])


def _train_flops(config: RunConfig, runs: pd.DataFrame) -> float:
    """FLOPs of the whole budget, with those of a teacher."""
    trained = runs[runs["tokens"] > 0]
    if trained.empty:
        return config.flops_per_token["train_flops"] * config.tokens
    row = trained.sort_values("tokens").iloc[-1]
    return float(row["train_flops"] * (config.tokens / row["tokens"]))


def _flops_before(runs: pd.DataFrame) -> float:
    """FLOPs of the runs that a cell's runs need; 0 if unknown."""
    if "spent_flops" not in runs:
        return 0.0
    before = runs["spent_flops"] - runs["train_flops"]
    return float(before.max()) if before.notna().any() else 0.0


def per_masked_token(run: RunFolder, row: pd.Series) -> NDArray[np.float64]:
    """Loss per masked token of each validation sequence; raises InputError as `losses_per_token` does."""
    return run.losses_per_token(*row[["validation_masked_tokens", "loss_nats"]].astype(float))


def _per_masked_byte(run: RunFolder, row: pd.Series) -> NDArray[np.float64]:
    """Loss of each document's masked words ÷ their mean bytes; raises InputError as `byte_losses` does."""
    return run.byte_losses(float(row["bits_per_masked_byte"]))
