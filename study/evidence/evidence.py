"""All that the ledger of a sweep says, gathered once for figures, answers and notebooks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from study.base.durable_files import write_atomically
from study.base.errors import UNREADABLE
from study.base.grouping import grouped
from study.base.quantities import budget_words, rounded_all
from study.base.text import file_name
from study.config.sweep import CellSweep, SearchSweep, Sweep
from study.evidence.averages import Average, averages_of
from study.evidence.cells import CellResult, by_budget, cells_of, listed_values
from study.evidence.comparisons import METHOD, Comparisons, compare, why_left_out
from study.evidence.downstream import DownstreamEvidence, downstream
from study.evidence.families import Family, families_of, variant_families
from study.evidence.gains import Cut, Gain, Rise, TokenGain, cuts_of, gains_of, pareto_front, rises_of, token_gains_of
from study.evidence.ledgers import check_ledger, usable
from study.evidence.paired import half_width
from study.evidence.seed_scatter import SeedScatter
from study.evidence.sweep_laws import SweepLaws, by_variant, sweep_laws
from study.laws.catalogue import LAWS
from study.laws.reading import differing_columns
from study.store.records import cell_of
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder

MOST_PANELS = 8
"""A figure of more panels than these is not read."""


@dataclass(frozen=True)
class Evidence:
    """A sweep's ledger and what follows from it.

    `include_unbracketed`: comparisons take in cells whose best learning rate lies at an edge of the tried range.
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
        """The pairs compared under several conditions, averaged over them."""
        return averages_of(self.comparisons.pairs, self.cells)

    @cached_property
    def gains(self) -> tuple[Gain, ...]:
        """What steps to a larger size bought."""
        return gains_of(self.cells, self.comparisons.seed_variances)

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """What layers cut off a trained encoder cost."""
        return cuts_of(self.cells, self.comparisons.seed_variances)

    @cached_property
    def token_gains(self) -> tuple[TokenGain, ...]:
        """What steps to a larger budget bought."""
        return token_gains_of(self.cells, self.comparisons.seed_variances_beside_other_budgets)

    @cached_property
    def rises(self) -> tuple[Rise, ...]:
        """Where a doubling of the tokens buys more than the one before, among the cells that comparisons take in."""
        taken_in = [cell for cell in self.cells if why_left_out(cell, self.include_unbracketed) is None]
        return rises_of(taken_in, self.comparisons.seed_variances_beside_other_budgets)

    @cached_property
    def front(self) -> tuple[CellResult, ...]:
        """The cells that no other of the same budget and validation set beats."""
        return pareto_front(self.cells)

    @cached_property
    def laws(self) -> SweepLaws:
        """The laws that the ledger suffices for, fitted at the first call."""
        return sweep_laws(self.folder.path, self._in_order, self._settings, searched=isinstance(self.sweep, SearchSweep))

    @property
    def conditions(self) -> tuple[str, ...]:
        """The filters that select each variant with a law of its own, as --where takes them; empty where one law fits all."""
        if self.ledger.empty:
            return ()
        used = usable(self._in_order, self.sweep.choosing_seeds)
        apart = differing_columns(used, self._settings)
        return tuple(where for where, _ in by_variant(used, apart)) if apart else ()

    @property
    def _settings(self) -> list[str]:
        """The columns of what differs beside shapes and budgets."""
        return list(self.cells[0].settings) if self.cells else []

    @property
    def _in_order(self) -> pd.DataFrame:
        """The ledger in the order of the cells."""
        places = {cell.name: place for place, cell in enumerate(self.cells)}
        return self.ledger.sort_values("cell", key=lambda names: names.map(places), kind="stable") if places else self.ledger

    @cached_property
    def downstream(self) -> DownstreamEvidence | None:
        """What downstream scores say, fitted at the first call; None where nothing was scored."""
        return downstream(self.folder, self.ledger)

    @property
    def excluded(self) -> pd.DataFrame:
        """The ledger's rows that no fit uses."""
        return self.ledger if self.ledger.empty else self.ledger[self.ledger["exclusion"].notna()]

    @property
    def used(self) -> pd.DataFrame:
        """The ledger's other rows."""
        return self.ledger.drop(index=self.excluded.index)

    def panels(self) -> dict[str, tuple[CellResult, ...]]:
        """The cells of each panel of a figure: one per family, or one per budget beyond MOST_PANELS.

        Families whose sizes read alike share a panel.
        """
        if len(self.families) <= MOST_PANELS:
            alike = grouped(self.families, lambda family: family.label)
            return {label: tuple(cell for family in families for cell in family.cells) for label, families in alike.items()}
        return {budget_words(budget): tuple(cells) for budget, cells in by_budget(self.cells).items()}

    def half_width(self, cell: CellResult) -> float | None:
        """Half the 95% interval of a cell's mean over seeds (nats), None where these are unknown or nothing was trained."""
        variance = self.comparisons.seed_variances.get(cell.name)
        return half_width(variance, len(cell.runs)) if variance is not None and cell.tokens else None

    def losses(self, cell: CellResult) -> dict[str, Any]:
        """What every figure of cells shows of one: mean loss over seeds, half its 95% interval, n, tokens, and plateau."""
        return {
            "loss_nats": cell.loss_nats,
            "half_nats": self.half_width(cell),
            "seeds": len(cell.runs),
            "tokens": cell.tokens,
            "unigram_entropy_nats": cell.unigram_entropy_nats,
        }

    @property
    def runs_started(self) -> int:
        """Runs whose folder is there, ended or not."""
        return len(self.folder.runs())

    @property
    def runs_open(self) -> int:
        """Unfinished runs of the sweep as last launched, which the next launch continues."""
        ended = {*self.ledger["run_id"]}
        return sum(run.run_id not in ended and not self._is_foreign(run) for run in self.folder.runs())

    def _is_foreign(self, run: RunFolder) -> bool:
        """Whether an open run is in no cell of the sweep as last launched, by the texts of the ended runs."""
        cells, texts = self.folder.cells(), self.ledger.get("data_fingerprint", pd.Series(dtype=str)).dropna().unique()
        try:
            config = run.config()
        except UNREADABLE:
            return False
        own = {cell_of(config, self.sweep.tuned, text) for text in texts if config.fingerprint(text) == run.run_id}
        return bool(cells and own) and not own & cells

    @cached_property
    def first_runs(self) -> pd.DataFrame:
        """The ledger's row of the first run of each usable cell, by the cell's name."""
        first = {cell.name: cell.runs[0] for cell in self.cells if cell.usable}
        return self.ledger.set_index("run_id").loc[[*first.values()]].set_axis([*first])

    def counted(self, count: str) -> dict[str, float]:
        """What the ledger says in a column that counts parameters or FLOPs, by the name of each usable cell."""
        return {str(name): size for name, size in self.first_runs[count].items()} if len(self.first_runs) else {}

    def learning_rates(self) -> dict[str, Any]:
        """What `fits/learning_rate.json` holds: every cell's rate search."""
        return {"cells": [cell.to_dict() | {"search": asdict(cell.rates)} for cell in self.cells]}

    def differences(self) -> dict[str, Any]:
        """What `fits/paired_differences.json` holds: comparisons, cuts, gains, their rises, and the cells on the front."""
        found = self.comparisons
        return {
            "pairs": [pair.to_dict() | {"budget": budget_words(pair.budget)} for pair in found.pairs],
            "averages": [average.to_dict() for average in self.averages],
            "left_out": [asdict(cell) for cell in found.left_out],
            "seed_scatter": [_scatter(scatter) for scatter in found.seed_scatter],
            "reason": found.reason,
            "method": METHOD,
            "gains": [gain.to_dict() | {"nats_lowered_per_million": gain.nats_lowered_per_million} for gain in self.gains],
            "cuts": [asdict(cut) for cut in self.cuts],
            "token_gains": [
                gain.to_dict() | {"nats_lowered_per_doubling": gain.nats_lowered_per_doubling} for gain in self.token_gains
            ],
            "rises": [asdict(rise) for rise in self.rises],
            "front": [cell.name for cell in self.front],
        }


def _scatter(scatter: SeedScatter) -> dict[str, Any]:
    """How the cells of a pool scatter, as plain values: whether alike, and each variance with its cells.

    Empty where nothing was trained.
    """
    cells = grouped(scatter.variances, scatter.variances.__getitem__) if scatter.pool.budget.amount else {}
    return {
        "budget": budget_words(scatter.pool.budget),
        "tokens_near": 2**scatter.pool.doublings,
        "p_alike": scatter.p_alike,
        "alike": scatter.alike,
        "variances": [asdict(variance) | {"of": names} for variance, names in cells.items()],
    }


def gather(folder: SweepFolder, include_unbracketed: bool = False) -> Evidence:
    """The evidence in a sweep's ledger, as last written.

    Raises InputError where the folder has no readable sweep.yaml, no ledger, or one with text in place of a number.
    """
    sweep, ledger = folder.sweep(), folder.read_ledger()
    check_ledger(ledger, str(folder.ledger_file))
    cells = cells_of(folder, ledger)
    families = families_of(cells)
    alike = variant_families(cells, listed_values(sweep)) if isinstance(sweep, CellSweep) else []
    comparisons = compare(families, alike, include_unbracketed)
    return Evidence(folder, sweep, ledger, cells, families, comparisons, include_unbracketed)


def save_fits(evidence: Evidence) -> None:
    """Write `fits/learning_rate.json`, `paired_differences.json`, one file a law and, of downstream scores, `downstream.json`.

    Files of what is no more are removed.
    """
    files = {"learning_rate": evidence.learning_rates(), "paired_differences": evidence.differences()}
    files |= {file_name(found.name): found.to_dict() for found in evidence.laws.fits}
    if evidence.downstream is not None:
        files["downstream"] = evidence.downstream.to_dict()
    for law in (*LAWS, "downstream"):
        for file in (evidence.folder.fits / f"{law}.json", *evidence.folder.fits.glob(f"{law}-where-*.json")):
            if file.stem not in files:
                file.unlink(missing_ok=True)
    for name, values in files.items():
        text = json.dumps(rounded_all(values), indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(evidence.folder.fits / f"{name}.json", text.encode() + b"\n")
