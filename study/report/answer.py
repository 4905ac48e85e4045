"""The answer of a sweep, rebuilt from the records with the same bytes every time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from study.base.durable_files import is_there, write_atomically
from study.base.text import bullets, code, escape
from study.evidence.evidence import Evidence, gather, save_fits
from study.plotting import what_doubling_adds
from study.plotting.style import Format, StyleName, drawable, drawn_as, finding_of, remove_figure, save_in
from study.report import answer_tables as tables
from study.report.figures import FIGURES
from study.report.findings import dominance_sentences, law_findings, law_sentence, loss_findings, parameter_findings, run_count
from study.report.open_questions import undecided
from study.report.page import write_page
from study.report.plain_words import plain_words
from study.report.score_sentences import law_table, score_findings, score_table, trend_table
from study.report.verdicts import Verdict, asks_about, short_ids, verdict_of
from study.store.named_files import as_read
from study.store.records import RunRecord
from study.store.score_records import write_scores
from study.store.sweep_folder import SweepFolder

FINDINGS = {
    "loss": ("Loss", "measured"),
    "laws": ("Laws", "fitted"),
    "downstream": ("Downstream", "measured on the split that nothing was chosen on"),
    "parameters": ("Parameters", "counted, exact"),
}
"""The kinds of `Answer.findings` in order: a title, and the evidence behind it."""

IMAGES: tuple[Format, ...] = ("png",)
"""The formats of figures, beside SVG, for what shows only images, such as W&B."""

METHOD_PAGE = "docs/conventions.md"
"""The page of the documentation on what the numbers of every answer are; with the documentation, the answer links to it."""

PER_BYTE = (
    "Here tokenisers differ, so losses compare per byte of fixed masked words: whole words of the validation text are masked, "
    "the same for every tokeniser, and the loss over their pieces is divided by their UTF-8 bytes. Figures that compare cells "
    "are in bits per byte. A byte that no piece stands for counts 8 bits. Learning rates, loss curves and laws, which compare "
    "runs of one tokeniser, are in nats per masked token."
)
"""The convention of losses of sweeps that compare tokenisers; those of all answers are in docs/conventions.md."""


@dataclass(frozen=True)
class Answer:
    """The ledger's answer to a sweep's question; `records` are the ledger's if known.

    `figures` are those with data, by name, with what each shows.
    """

    evidence: Evidence
    figures: Mapping[str, str]
    records: Sequence[RunRecord] = ()

    @cached_property
    def verdict(self) -> Verdict:
        """The answer to the sweep's question."""
        return verdict_of(self.evidence)

    @property
    def headline(self) -> str:
        """The verdict's sentence."""
        return self.verdict.sentence

    @cached_property
    def findings(self) -> dict[str, list[str]]:
        """Sentences by kind, as in FINDINGS, and the open questions."""
        return {
            "parameters": parameter_findings(self.evidence),
            "loss": [short_ids(self.evidence, sentence) for sentence in loss_findings(self.evidence)],
            "laws": law_findings(self.evidence),
            "downstream": [short_ids(self.evidence, sentence) for sentence in score_findings(self.evidence)],
            "undecided": undecided(self.evidence),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain JSON values."""
        evidence = self.evidence
        ended, excluded = len(evidence.ledger), tables.excluded(evidence)
        return {
            "sweep": evidence.folder.name,
            "question": evidence.sweep.question,
            "expect": evidence.sweep.expect,
            "headline": self.headline,
            "certainty": self.verdict.certainty,
            "would_change_it": self.verdict.change,
            "runs": {"started": evidence.runs_started, "ended": ended, "excluded": len(excluded)},
            "findings": self.findings,
            "doubling": what_doubling_adds.frame(evidence).to_dict("records"),
            "cells": [cell.to_dict() for cell in evidence.cells],
            "comparisons": evidence.differences(),
            "laws": [fit.to_dict() for fit in evidence.laws.fits],
            "downstream": None if evidence.downstream is None else evidence.downstream.to_dict(),
            "excluded": excluded,
            "figures": [f"figures/{name}.svg" for name in self.figures],
        }

    def to_markdown(self) -> str:
        """Return the text of answer.md: the verdict and its figure, the main findings, and the rest in folds."""
        evidence = self.evidence
        folds = {
            "All findings": "\n\n".join(
                f"**{title}** ({how})\n\n{bullets(self.findings[name])}"
                for name, (title, how) in FINDINGS.items()
                if self.findings[name] and (name != "parameters" or self._counts)
            ),
            "What the evidence does not decide": bullets(self.findings["undecided"]),
            "All figures": "\n\n".join(self._figure(name) for name in self.figures if name != self._first_figure),
            "Differences at equal parameters": short_ids(evidence, tables.differences(evidence, of_shapes=True)),
            "Differences between variants": short_ids(evidence, tables.differences(evidence, of_shapes=False)),
            "Averages over conditions": short_ids(evidence, tables.averages(evidence)),
            "What layers cut off cost": short_ids(evidence, tables.cuts(evidence)),
            "What starts and teachers buy": short_ids(evidence, tables.spendings(evidence)),
            "What a larger size buys": short_ids(evidence, tables.gains(evidence)),
            "What more tokens buy": short_ids(evidence, tables.token_gains(evidence)),
            "Laws of the loss": tables.laws(evidence),
            "Compute-optimal sizes by these laws": tables.best_splits(evidence),
            "Scores against the loss": trend_table(evidence),
            "Laws from loss to score": law_table(evidence),
            "Downstream scores": score_table(evidence),
            "Cells": short_ids(evidence, tables.cells(evidence)),
            "Excluded runs": tables.excluded_runs(evidence),
            "Losses of several tokenisers": PER_BYTE if evidence.sweep.compares_tokenizers else "",
        }
        parts = [
            f"# {code(evidence.folder.name)}",
            f"> **Question.** {escape(evidence.sweep.question)}",
            f"**{escape(self.verdict.sentence)}**",
            f"**How sure:** {escape(self.verdict.certainty)}",
            self._figure(self._first_figure) if self._first_figure else "",
            f"**What would change this:** {escape(self.verdict.change)}.",
            *self._in_view(),
            *(_fold(title, text) for title, text in folds.items() if text),
            f"What the terms mean and how differences are tested: `{METHOD_PAGE}`.",
            _regenerate(evidence.folder),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    @property
    def _first_figure(self) -> str | None:
        return next((name for name in (*self.verdict.figures, *self.figures) if name in self.figures), None)

    def _figure(self, name: str) -> str:
        """Return a figure whose words say what is drawn, with what it shows as its caption."""
        return f"![{FIGURES[name][1]}](figures/{name}.svg)\n\n*{escape(self.figures[name])}*"

    @property
    def _counts(self) -> bool:
        """Whether the question asks about parameters, so that the answer says what doubling a size adds."""
        return asks_about(self.evidence, "parameter")

    @property
    def _unread(self) -> str:
        """How many runs read no word order, and whether any is at a chosen learning rate; empty if all read it."""
        reads = self.evidence.ledger.get("reads_order", pd.Series(dtype=object))
        unread = {*self.evidence.ledger.loc[reads.index[reads.eq(False)], "run_id"]}
        chosen = len(unread.intersection(run for cell in self.evidence.cells for run in cell.runs))
        return f"; {len(unread)} read no word order, {chosen or 'none'} of them at a chosen learning rate" if unread else ""

    def _in_view(self) -> Iterator[str]:
        """Yield the expectation, the run counts, and the first finding of each kind not in the verdict."""
        if expected := self.evidence.sweep.expect:
            yield f"**Expected:** {escape(expected)}"
        yield f"**Runs:** {run_count(self.evidence)}{self._unread}."
        law, about = self.evidence.laws.shown, self.verdict.about
        also = [sentence for kind in ("loss", "downstream") if kind != about for sentence in self.findings[kind][:1]]
        also += [*self.verdict.also, *(dominance_sentences(self.evidence)[:1] if about == "loss" else [])]
        also += [] if law is None else [law_sentence(law)]
        also += self.findings["parameters"] if self._counts else []
        yield f"**Also found**\n\n{bullets(short_ids(self.evidence, line) for line in also)}" if also else ""


def report(
    folder: SweepFolder,
    include_unbracketed: bool = False,
    formats: Sequence[Format] = (),
    style: StyleName = "page",
    page: Path | None = None,
) -> Answer:
    """Rebuild ledger, scores, fits, figures and answer.md of a sweep from its records.

    `include_unbracketed` admits cells whose best learning rate lies at an edge of the tried range to comparisons. Figures have
    the width of a `style`, and `formats` beside SVG, of which csv is their data. `page` is the file of an HTML page with the
    whole answer. Raises InputError if the folder has no readable sweep.yaml or holds a file that is not a record.
    """
    records = folder.records()
    ledger = as_read(folder.write_ledger(records))
    if is_there(folder.scores_file) or any(run.names(run.scores) for run in folder.runs()):
        write_scores(folder)
    evidence = gather(folder, include_unbracketed, ledger)
    save_fits(evidence)
    settings = [cell.settings for cell in evidence.cells]
    with drawn_as(style, plain_words(settings)):
        drawn = {name: figure for name in FIGURES if (figure := _drawn(evidence, name, formats)) is not None}
    answer = Answer(evidence, {name: finding_of(figure) for name, figure in drawn.items()}, records)
    write_atomically(folder.answer_file, answer.to_markdown().encode())
    if page is not None:
        write_page(evidence, answer.to_markdown(), drawn, page)
    return answer


def _drawn(evidence: Evidence, name: str, formats: Sequence[Format]) -> Figure | None:
    """Draw and save a figure; without data, remove that of an earlier report."""
    module, _ = FIGURES[name]
    data = drawable(module.frame(evidence))
    if data.empty:
        remove_figure(evidence.folder.figures, name)
        return None
    figure = module.draw(data)
    save_in(figure, evidence.folder.figures, name, formats, data)
    return figure


def _fold(title: str, text: str) -> str:
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{text}\n\n</details>'


def _regenerate(folder: SweepFolder) -> str:
    return (
        "`study report` of the folder that this page lies in rebuilds it, with `ledger.parquet`, `fits/` and `figures/`, from "
        f"the records of its runs, without torch, a GPU or an account; `study launch` of {code(f'{folder.name}.yaml')} "
        f"(see `{folder.sweep_file.name}`) trains what is missing."
    )
