"""Everything a sweep's ledger says, gathered once for figures, answers and notebooks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from study.base.durable_files import write_atomically
from study.base.errors import UNREADABLE
from study.base.grouping import grouped
from study.base.quantities import budget_words, rounded_all
from study.base.text import file_name
from study.config.sweep import CellSweep, GoalSweep, SearchSweep, Sweep
from study.evidence.cells import CellResult, by_budget, cells_of, listed_values, scales_of
from study.evidence.comparisons import (
    METHOD,
    Average,
    Comparisons,
    Dominance,
    averages_of,
    compare,
    dominances_of,
    why_left_out,
)
from study.evidence.compressions import Compression, compressions_of
from study.evidence.downstream import DownstreamEvidence, downstream
from study.evidence.families import Family, families_of, variant_families
from study.evidence.gains import (
    Cut,
    Gain,
    Rise,
    Spending,
    TokenGain,
    cuts_of,
    gains_of,
    pareto_front,
    rises_of,
    spendings_of,
    token_gains_of,
)
from study.evidence.ledgers import check_ledger, usable
from study.evidence.paired import half_width
from study.evidence.rate_transfer import RateTransfer, rate_transfers_of
from study.evidence.seed_scatter import SeedScatter
from study.evidence.sweep_laws import SweepLaws, by_variant, sweep_laws
from study.laws.catalogue import LAWS
from study.laws.reading import differing_columns
from study.store.records import cell_of
from study.store.run_folder import RunFolder
from study.store.sweep_folder import GoalPath, SweepFolder

MOST_PANELS = 8
"""Maximum number of panels of a figure."""


@dataclass(frozen=True)
class Evidence:
    """A sweep's ledger and the results derived from it.

    `include_unbracketed`: comparisons include cells whose best rate is at an edge of the tried range.
    """

    folder: SweepFolder
    sweep: Sweep
    ledger: pd.DataFrame
    cells: tuple[CellResult, ...]
    families: tuple[Family, ...]
    comparisons: Comparisons
    include_unbracketed: bool

    @cached_property
    def averages(self) -> tuple[Average, ...]:
        """Pairs averaged over conditions."""
        return averages_of(self.comparisons.pairs, self.cells)

    @cached_property
    def gains(self) -> tuple[Gain, ...]:
        """Steps to a larger size."""
        return gains_of(self.cells, self.comparisons.seed_variances)

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """Layers cut off a trained encoder."""
        return cuts_of(self.cells, self.comparisons.seed_variances)

    @cached_property
    def compressions(self) -> tuple[Compression, ...]:
        """The sweep's runs in fewer bits, as `study compress` made them into its ledger."""
        return compressions_of(self.folder, self.ledger, self.cells, self.comparisons.seed_variances)

    @cached_property
    def token_gains(self) -> tuple[TokenGain, ...]:
        """Steps to a larger budget."""
        return token_gains_of(self.cells, self.comparisons.seed_variances_beside_other_budgets)

    @cached_property
    def rises(self) -> tuple[Rise, ...]:
        """Neighbouring steps in tokens among the cells compared."""
        return rises_of(self._included, self.comparisons.seed_variances_beside_other_budgets)

    @cached_property
    def spendings(self) -> tuple[Spending, ...]:
        """Encoders that need other runs beside those from scratch, among the cells compared."""
        return spendings_of(self._included, self.comparisons.seed_variances_beside_other_budgets)

    @cached_property
    def dominances(self) -> tuple[Dominance, ...]:
        """Pairs of shapes, one with less of everything and a lower estimated loss, among the cells compared."""
        return dominances_of(self._included, self.comparisons.seed_variances)

    @cached_property
    def rate_transfers(self) -> tuple[RateTransfer, ...]:
        """How far the best learning rate moves over the shapes of each variant."""
        return rate_transfers_of(self.cells)

    @property
    def _included(self) -> list[CellResult]:
        return [cell for cell in self.cells if why_left_out(cell, self.include_unbracketed) is None]

    @cached_property
    def front(self) -> tuple[CellResult, ...]:
        """The Pareto front of each budget and validation set."""
        return pareto_front(self.cells)

    @cached_property
    def laws(self) -> SweepLaws:
        """The fitted laws, computed at the first call."""
        return sweep_laws(self.folder.path, self._in_order, self._settings, searched=isinstance(self.sweep, SearchSweep))

    @cached_property
    def goal(self) -> GoalPath | None:
        """The path to the sweep's goal, if any."""
        return self.folder.goal_path() if isinstance(self.sweep, GoalSweep) else None

    @property
    def conditions(self) -> tuple[str, ...]:
        """--where filters of variants with separate laws; empty if one law fits all."""
        if self.ledger.empty:
            return ()
        used = usable(self._in_order, self.sweep.choosing_seeds)
        differing = differing_columns(used, self._settings)
        return tuple(where for where, _ in by_variant(used, differing)) if differing else ()

    @property
    def _settings(self) -> list[str]:
        return list(self.cells[0].settings) if self.cells else []

    @property
    def _in_order(self) -> pd.DataFrame:
        positions = {cell.name: position for position, cell in enumerate(self.cells)}
        return (
            self.ledger.sort_values("cell", key=lambda names: names.map(positions), kind="stable") if positions else self.ledger
        )

    @cached_property
    def downstream(self) -> DownstreamEvidence | None:
        """Downstream scores, if any, analysed at the first call."""
        return downstream(self.folder, self.ledger)

    @property
    def excluded(self) -> pd.DataFrame:
        """The ledger's rows that no fit uses."""
        return self.ledger if self.ledger.empty else self.ledger[self.ledger["exclusion"].notna()]

    @property
    def used(self) -> pd.DataFrame:
        """The ledger's other rows."""
        return self.ledger.drop(index=self.excluded.index)

    @cached_property
    def scales(self) -> dict[str, str]:
        """By cell name, the variants among which its losses compare."""
        return scales_of(self.cells)

    def panel_of(self, cell: CellResult) -> str:
        """Return a cell's budget in words, with its group of losses where groups do not compare."""
        return ", ".join(filter(None, (budget_words(cell.budget), self.scales[cell.name])))

    def panels(self, scales: Mapping[str, str] | None = None) -> dict[str, tuple[CellResult, ...]]:
        """Return the cells of each panel: one per family label.

        Beyond MOST_PANELS one per variant and budget, or one per budget. Cells whose losses do not compare, by `scales`, have
        panels of their own.
        """
        scales = self.scales if scales is None else scales
        return {
            label if scale in label else f"{label}, {scale}": tuple(members)
            for label, cells in self._panels().items()
            for scale, members in grouped(cells, lambda cell: scales[cell.name]).items()
        }

    def _panels(self) -> dict[str, tuple[CellResult, ...]]:
        if len(self.families) <= MOST_PANELS:
            by_label = grouped(self.families, lambda family: family.label)
            return {label: tuple(cell for family in families for cell in family.cells) for label, families in by_label.items()}
        by_variant = grouped(self.cells, lambda cell: ", ".join(filter(None, (cell.setting, budget_words(cell.budget)))))
        if len(by_variant) <= MOST_PANELS:
            return {label: tuple(cells) for label, cells in by_variant.items()}
        return {budget_words(budget): tuple(cells) for budget, cells in by_budget(self.cells).items()}

    def half_width(self, cell: CellResult) -> float | None:
        """Half the 95% interval of a cell's mean (nats), if known."""
        variance = self.comparisons.seed_variances.get(cell.name)
        return half_width(variance, len(cell.runs)) if variance is not None and cell.tokens else None

    def losses(self, cell: CellResult) -> dict[str, Any]:
        """Return a cell's values in figures, the loss in `unit`, comparable among `scale`."""
        return {
            "loss_nats": cell.loss_nats,
            "half_nats": self.half_width(cell),
            "seeds": len(cell.runs),
            "run_ids": ", ".join(run[:8] for run in cell.runs),
            "tokens": cell.tokens,
            "unigram_entropy_nats": cell.unigram_entropy_nats,
            "unit": cell.unit,
            "scale": self.scales[cell.name],
        }

    @property
    def runs_started(self) -> int:
        """The number of run folders, finished or not."""
        return len(self.folder.runs())

    @property
    def runs_open(self) -> int:
        """Unfinished runs of the last launch, which the next continues."""
        ended = {*self.ledger["run_id"]}
        return sum(run.run_id not in ended and not self._is_foreign(run) for run in self.folder.runs())

    def _is_foreign(self, run: RunFolder) -> bool:
        """Whether an open run is in no cell of the last launch."""
        cells, texts = self.folder.cells(), self.ledger.get("data_fingerprint", pd.Series(dtype=str)).dropna().unique()
        try:
            config = run.config()
        except UNREADABLE:
            return False
        own = {cell_of(config, self.sweep.tuned, text) for text in texts if config.fingerprint(text) == run.run_id}
        return bool(cells and own) and not own & cells

    @cached_property
    def first_runs(self) -> pd.DataFrame:
        """Ledger row of each usable cell's first run, by cell name."""
        first = {cell.name: cell.runs[0] for cell in self.cells if cell.usable}
        return self.ledger.set_index("run_id").loc[[*first.values()]].set_axis([*first])

    def counted(self, count: str) -> dict[str, float]:
        """Return a ledger column of parameters or FLOPs, by usable cell name."""
        return {str(name): size for name, size in self.first_runs[count].items()} if len(self.first_runs) else {}

    def learning_rates(self) -> dict[str, Any]:
        """Return the content of `fits/learning_rate.json`."""
        cells = [cell.to_dict() | {"search": asdict(cell.rates)} for cell in self.cells]
        transfers = [transfer.to_dict() for transfer in self.rate_transfers]
        return {"cells": cells} | ({"transfers": transfers} if transfers else {})

    def differences(self) -> dict[str, Any]:
        """Return the content of `fits/paired_differences.json`."""
        comparisons = self.comparisons
        return {
            "pairs": [pair.to_dict() | {"budget": budget_words(pair.budget)} for pair in comparisons.pairs],
            "averages": [average.to_dict() for average in self.averages],
            "left_out": [asdict(cell) for cell in comparisons.left_out],
            "seed_scatter": [_scatter_to_dict(scatter) for scatter in comparisons.seed_scatter],
            "reason": comparisons.reason,
            "method": METHOD,
            "gains": [gain.to_dict() | {"nats_lowered_per_million": gain.nats_lowered_per_million} for gain in self.gains],
            "cuts": [asdict(cut) for cut in self.cuts],
            "token_gains": [
                gain.to_dict() | {"nats_lowered_per_doubling": gain.nats_lowered_per_doubling} for gain in self.token_gains
            ],
            "rises": [asdict(rise) for rise in self.rises],
            "front": [cell.name for cell in self.front],
        } | {
            name: [one.to_dict() for one in members]
            for name, members in (("spendings", self.spendings), ("dominances", self.dominances))
            if members
        }


def _scatter_to_dict(scatter: SeedScatter) -> dict[str, Any]:
    cells = grouped(scatter.variances, scatter.variances.__getitem__) if scatter.pool.budget.amount else {}
    return {
        "budget": budget_words(scatter.pool.budget),
        "tokens_near": 2**scatter.pool.doublings,
        "p_alike": scatter.p_alike,
        "alike": scatter.alike,
        "variances": [asdict(variance) | {"of": names} for variance, names in cells.items()],
    }


def gather(folder: SweepFolder, include_unbracketed: bool = False, ledger: pd.DataFrame | None = None) -> Evidence:
    """Gather the evidence in a sweep's ledger, by default a fresh one.

    Raises InputError without a readable sweep.yaml or ledger, or for text in place of a number.
    """
    sweep, ledger = folder.sweep(), folder.read_ledger() if ledger is None else ledger
    check_ledger(ledger, str(folder.ledger_file))
    cells = cells_of(folder, ledger)
    families = families_of(cells, sweep.size_count)
    of_variants = variant_families(cells, listed_values(sweep), sweep.size_count) if isinstance(sweep, CellSweep) else []
    comparisons = compare(families, of_variants, include_unbracketed)
    return Evidence(folder, sweep, ledger, cells, families, comparisons, include_unbracketed)


def save_fits(evidence: Evidence) -> None:
    """Write the JSON files of `fits/`, and remove those of fits that no longer exist."""
    files = {"learning_rate": evidence.learning_rates(), "paired_differences": evidence.differences()}
    files |= {file_name(law_fit.name): law_fit.to_dict() for law_fit in evidence.laws.fits}
    if evidence.downstream is not None:
        files["downstream"] = evidence.downstream.to_dict()
    for law in (*LAWS, "downstream"):
        for file in (evidence.folder.fits / f"{law}.json", *evidence.folder.fits.glob(f"{law}-where-*.json")):
            if file.stem not in files:
                file.unlink(missing_ok=True)
    for name, values in files.items():
        text = json.dumps(rounded_all(values), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        write_atomically(evidence.folder.fits / f"{name}.json", text.encode() + b"\n")
