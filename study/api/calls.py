"""Training, ledgers, laws and reports as calls; each imports what it needs, so that a fit waits for no figure and no torch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args, get_origin

if TYPE_CHECKING:
    import pandas as pd

    from study.config.run_config import RunConfig
    from study.config.sweep import CellSweep, GoalSweep, SearchSweep
    from study.laws.law_fits import LawFit
    from study.plotting.style import Format, StyleName
    from study.report.answer import Answer
    from study.store.records import RunRecord


def _check_types(**arguments: tuple[object, Any, str]) -> None:
    """Raise InputError for every argument of another type than its own, given with what it takes in words."""
    from study.base.errors import InputError, Problem, shown

    wrong = {name: (value, takes) for name, (value, types, takes) in arguments.items() if not _is_of(value, types)}
    if wrong:
        raise InputError(Problem(name, f"is {shown(value)}; give {takes}") for name, (value, takes) in wrong.items())


def _is_of(value: object, types: Any) -> bool:
    return value in get_args(types) if get_origin(types) is Literal else isinstance(value, types)


def _one_of(words: Any) -> str:
    """Return the words of a Literal, as what an argument takes."""
    return f"one of {', '.join(get_args(words))}"


@dataclass(frozen=True)
class Sweep:
    """A sweep: its checked form, and the plain values that its sweep.yaml keeps."""

    spec: CellSweep | SearchSweep | GoalSweep
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path | str, *overrides: str) -> Self:
        """Return the sweep of a file, with overrides such as "data.corpus=my_text.txt".

        Raises InputError with every mistake.
        """
        from study.config.sweep_files import read_sweep

        _check_types(
            path=(path, Path | str, "the path of a sweep file, or a shipped sweep's name"),
            **{f"overrides[{index}]": (each, str, "text, such as 'seeds=3'") for index, each in enumerate(overrides)},
        )
        return cls(*read_sweep(Path(path), overrides))

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Return the sweep of plain values, as a file holds them; raises InputError with every mistake."""
        from study.config.sweep import parse_sweep

        _check_types(values=(values, Mapping, "keys and values, as a sweep file holds them"))
        return cls(parse_sweep(values), copy.deepcopy(dict(values)))


def launch(sweep: Sweep, results: Path | str = "results", *, wandb: bool = False, **resources: Any) -> Answer:
    """Train and score what a sweep still needs, and return its answer, as `study launch` does.

    `resources` are the options of the command: on, device, devices, slots_per_device and others. Raises InputError for bad
    input before anything is trained, and KeyboardInterrupt when stopped, after the runs have saved.
    """
    from rich.console import Console

    from study.report.answer import IMAGES
    from study.report.answer import report as report_on
    from study.running.launch import folder_of, launched
    from study.running.score_launch import score_sweep

    _check_types(
        sweep=(sweep, Sweep, "what Sweep.read or Sweep.parse returns"),
        results=(results, Path | str, "the path of a folder"),
        wandb=(wandb, bool, "True or False"),
    )
    spec, console = sweep.spec, Console(stderr=True)
    on, folder = spec.resources.overridden(**resources), folder_of(spec, Path(results))
    with launched(spec, dict(sweep.values), Path(results), on, console, wandb):
        if spec.downstream is not None:
            score_sweep(folder, spec.downstream, on, console)
        return report_on(folder, formats=IMAGES if wandb else ())


def train(config: RunConfig, folder: Path | str = "results/python", **execution: Any) -> RunRecord:
    """Train a run in this process, or resume it, and return its record; a run with a record is not trained again.

    `execution` are fields of study.training.execution.Execution; the default is CUDA if available, else all cores, and always a
    single device. Raises InputError for bad input before anything is written, and KeyboardInterrupt if the run was stopped,
    after it has saved.
    """
    from study.base.errors import InputError
    from study.base.machine import cores, rest_at_barriers

    rest_at_barriers()
    import torch

    from study.config.run_config import RunConfig
    from study.data.prepared import data_fingerprint
    from study.store.sweep_folder import SweepFolder
    from study.training.attempts import StopSignal
    from study.training.execution import Execution
    from study.training.run import train as train_run

    _check_types(
        config=(config, RunConfig, "what RunConfig.parse returns"),
        folder=(folder, Path | str, "the path of a folder"),
    )
    usual: dict[str, Any] = {"device": "cuda" if torch.cuda.is_available() else "cpu", "threads": cores()}
    given = Execution.parse(usual | execution)
    for name in ("devices", "nodes"):
        if (count := getattr(given, name)) > 1:
            raise InputError.at(
                name, f"{count} need a process each, and train is this one alone; use launch, which starts them"
            )
    sweep = SweepFolder(Path(folder))
    run = sweep.run(config.fingerprint(data_fingerprint(config.data)))
    train_run(config, run, sweep.name, given, StopSignal())
    record = run.record()
    if record is None:
        raise KeyboardInterrupt(f"{run.path} was stopped, or another process trains it")
    return record


def load_ledger(folder: Path | str) -> pd.DataFrame:
    """Return the ledger of a sweep, from its present records: one row a run, `exclusion` empty for runs that count.

    Configuration keys are dotted (`recipe.learning_rate`), results have their unit in the name (`loss_nats`). Raises InputError
    for a folder without a readable sweep.
    """
    from study.store.sweep_folder import SweepFolder

    _check_types(folder=(folder, Path | str, "the path of a sweep's folder"))
    sweep = SweepFolder(Path(folder))
    sweep.sweep()
    return sweep.ledger()


def fit(
    table: pd.DataFrame | Path | str,
    law: str,
    *,
    where: str | None = None,
    cluster: str | None = None,
    bootstrap: int | None = None,
    **columns: str,
) -> LawFit:
    """Fit a law to a table, a file or a sweep's folder, as `study fit` does.

    `columns` name the column, or expression of columns, of each variable: `parameters="N"`, `tokens="C/(6*N)"`, `loss="loss"`.
    `where` keeps rows, `cluster` is the column that names the run of a row, `bootstrap` the number of resamples, by default
    that of `study fit`. Raises InputError for an unknown law, an unfit table or a wrong type.
    """
    import pandas as pd

    from study.base.errors import InputError
    from study.evidence.ledgers import open_ledger, selected
    from study.laws.estimation import DEFAULT_SETTINGS
    from study.laws.law_fits import fit_table
    from study.laws.reading import TableQuery
    from study.laws.tables import RunTable, tidy_table

    _check_types(
        table=(table, pd.DataFrame | Path | str, "a DataFrame, or the path of a table or of a sweep's folder"),
        law=(law, str, "the name of a law, or its formula"),
        where=(where, str | None, "a condition on rows"),
        cluster=(cluster, str | None, "the name of a column"),
        bootstrap=(bootstrap, Integral | None, "a number of resamples"),
        **{name: (column, str, "the name of a column, or an expression of columns") for name, column in columns.items()},
    )
    if bootstrap is not None and bootstrap < 0:
        raise InputError.at("bootstrap", f"{bootstrap} is below the least allowed, 0")
    if isinstance(table, Path | str):
        opened = open_ledger(Path(table))
    else:
        path = Path("the DataFrame")
        opened = selected(RunTable(path, tidy_table(table.copy(), path)))
    query = TableQuery(opened, columns, where=where, cluster=cluster)
    settings = DEFAULT_SETTINGS if bootstrap is None else replace(DEFAULT_SETTINGS, bootstrap=bootstrap)
    return fit_table(query, law, settings)


def report(
    folder: Path | str,
    *,
    include_unbracketed: bool = False,
    formats: Sequence[Format] = (),
    style: StyleName = "page",
    page: Path | str | None = None,
) -> Answer:
    """Rebuild the ledger, fits, figures and answer.md of a sweep from its records, and return the answer.

    `formats` are those of figures beside SVG (pdf, png, csv), `style` their width (page, paper), and `page` an HTML file to
    send. Raises InputError for bad input before anything is written.
    """
    from study.plotting.style import Format, StyleName
    from study.report.answer import report as report_on
    from study.store.sweep_folder import SweepFolder

    _check_types(
        folder=(folder, Path | str, "the path of a sweep's folder"),
        include_unbracketed=(include_unbracketed, bool, "True or False"),
        formats=(formats, list | tuple, "a list of formats"),
        style=(style, StyleName, _one_of(StyleName)),
        page=(page, Path | str | None, "the path of an HTML file"),
    )
    _check_types(**{f"formats[{index}]": (each, Format, _one_of(Format)) for index, each in enumerate(formats)})
    return report_on(SweepFolder(Path(folder)), include_unbracketed, formats, style, None if page is None else Path(page))
