"""The commands about scaling laws."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from study.base.errors import InputError, Problem, option_name
from study.base.quantities import RESAMPLES
from study.base.text import echo, file_name
from study.commands.options import CountRange, FiniteRange, as_json, completing, figure_options, output_folder

if TYPE_CHECKING:
    from study.laws.multiverse import Multiverse
    from study.laws.tables import RunTable
    from study.plotting.style import Format, StyleName

LEAST_RESAMPLES = 40
"""With fewer, no resample lies beyond either end of a 95% interval."""

MOST_RESAMPLES = 1_000_000
"""With more, the intervals hardly move, and the table of draws fills the memory."""

_ROLES = {
    "parameters": "Parameters N.",
    "tokens": "Training tokens D.",
    "flops": "Training FLOPs C.",
    "loss": "Loss.",
    "depth": "Layers.",
    "width": "Hidden size.",
    "heads": "Attention heads.",
    "ffn": "FFN inner size.",
    "unique_tokens": "Tokens before any is repeated.",
    "error": "Downstream error, 0 to 1.",
    "score": "Downstream score, 0 to 1.",
    "learning_rate": "Peak learning rate.",
    "batch": "Batch size.",
    "vocabulary": "Vocabulary size.",
}


def role_options(*roles: str) -> Callable[[Any], Any]:
    """Return the options that assign roles to columns, or to expressions of columns."""

    def decorated(command: Any) -> Any:
        for role in reversed(roles):
            command = click.option(option_name(role), role, metavar="COLUMN", help=_ROLES[role])(command)
        return command

    return decorated


def value_options(*roles: str) -> Callable[[Any], Any]:
    """Return the options that give roles a value, as in 1B."""

    def decorated(command: Any) -> Any:
        for role in reversed(roles):
            command = click.option(option_name(role), role, metavar="VALUE", help=_ROLES[role])(command)
        return command

    return decorated


def selection_options(command: Any) -> Any:
    """Add the options that select rows, name the run of each, and accept odd units."""
    for option in (
        click.option("--any-units", is_flag=True, help="Accept counts, losses and scores in unusual units."),
        click.option("--best-of", metavar="COLUMNS", help="Keep the best row of each combination of these, as in N,D."),
        click.option(
            "--cluster",
            metavar="COLUMN",
            help="The run of a row: its checkpoints are resampled and held out together.  [default: what the rows show]",
        ),
        click.option("--where", metavar="CONDITION", help="Rows to keep, as in 'loss < 4 and dataset == \"c4\"'."),
    ):
        command = option(command)
    return command


def _given(options: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the roles and the other fields of a Source that were given as options."""
    given = {name: value for name, value in options.items() if value not in (None, False)}
    selects = ("where", "cluster", "budget", "any_units", "best_of", "hold_out", "leave_out_group")
    selection: dict[str, Any] = {name: given.pop(name) for name in selects if name in given}
    return given, selection


def _opened(path: Path, fewest: int = 1) -> RunTable:
    """Return the table of a file, of so many rows or more, or of a results folder; of a ledger only the rows in use."""
    from study.laws.tables import RunTable

    if path.is_dir():
        from study.evidence.ledgers import open_ledger

        return open_ledger(path)
    table = RunTable.read(path, fewest)
    if "exclusion" in table.frame:
        from study.evidence.ledgers import selected

        return selected(table)
    return table


def _show(result: Any, as_json: bool) -> None:
    from study.base.quantities import rounded_all

    echo(json.dumps(rounded_all(result.to_dict()), indent=1, allow_nan=False) if as_json else result.to_text())


def _enough(_context: click.Context, _option: click.Parameter, resamples: int) -> int:
    if 0 < resamples < LEAST_RESAMPLES:
        raise InputError.at(
            "--bootstrap", f"{resamples} are too few for a 95% interval; give at least {LEAST_RESAMPLES}, or 0 for no interval"
        )
    return resamples


bootstrap_option = click.option(
    "--bootstrap",
    type=CountRange(0, MOST_RESAMPLES),
    default=RESAMPLES,
    show_default=True,
    callback=_enough,
    help=f"Resamples of the runs: 0, or at least {LEAST_RESAMPLES}.",
)


held_out_option = click.option(
    "--held-out",
    type=FiniteRange(0, 0.9, min_open=True),
    default=0.1,
    show_default=True,
    help="Share of the runs, the largest, that are forecast from the others.",
)

huber_delta_option = click.option(
    "--huber-delta",
    type=FiniteRange(1e-9, 1e9),
    default=1e-3,
    show_default=True,
    help="The residual beyond which its loss is linear.",
)


@click.command()
@as_json
def laws(as_json: bool) -> None:
    """List the scaling laws: formulas, conventions and sources."""
    from study.base.terminal import listing
    from study.laws.catalogue import law_paragraphs, laws_to_dict

    echo(json.dumps(laws_to_dict(), indent=1, ensure_ascii=False) if as_json else listing(law_paragraphs()))


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option(
    "--law",
    shell_complete=completing("laws"),
    help="A name of study laws, a formula such as 'E + A*N**-alpha', or a file with one.",
)
@role_options(*_ROLES)
@selection_options
@click.option(
    "--budget", metavar="COLUMN", help="Orders runs from small to large.  [default: --flops, else 6·N·D, else the sizes]"
)
@click.option("--hold-out", metavar="CONDITION", help="Rows to forecast from the others, in place of the largest: 'N > 1e9'.")
@click.option("--leave-out-group", metavar="COLUMN", help="Also forecast each group of rows from all others.")
@huber_delta_option
@click.option("--space", type=click.Choice(["log", "linear"]), default="log", show_default=True, help="Scale of the residuals.")
@bootstrap_option
@click.option("--seed", type=CountRange(0), default=0, show_default=True, help="Seed of the resamples.")
@held_out_option
@as_json
def fit(table: Path, law: str | None, as_json: bool, **options: Any) -> None:
    """Fit a scaling law to a TABLE and forecast large runs.

    TABLE is a csv, jsonl, parquet or xlsx, or a results folder; its largest runs are forecast from the others. COLUMN is a name
    or arithmetic over names: --tokens 'C/(6*N)', or in backticks: --tokens '`Training FLOP`/(6*N)'.
    """
    from study.laws.estimation import Settings
    from study.laws.law_fits import fit_table
    from study.laws.reading import TableQuery

    choices = {each: options.pop(each) for each in ("huber_delta", "space", "bootstrap", "seed")}
    held_out = options.pop("held_out")
    roles, selection = _given(options)
    fitted = fit_table(TableQuery(_opened(table), roles, **selection), law, Settings(**choices), held_out)
    if not as_json:
        echo(fitted.to_text())
        return
    from study.laws.predicting import fit_to_dict

    echo(json.dumps(fit_to_dict(fitted), indent=1, allow_nan=False))


@click.command()
@click.argument("fit", type=click.Path(path_type=Path))
@value_options(*_ROLES)
@click.option("--at", multiple=True, metavar="POINT", help="All variables of a point, as in N=1e9,experts=8; repeatable.")
@click.option(
    "--points", type=click.Path(path_type=Path), help="A table with a row for each point, its columns named like the variables."
)
@as_json
def predict(fit: Path, points: Path | None, at: tuple[str, ...], as_json: bool, **options: str | None) -> None:
    """Predict at given sizes by a law that was fitted.

    FIT is the file that study fit --json prints. Says the interval, how far the point lies beyond the fitted rows, and how
    held-out rows fared at such a distance.
    """
    import numpy as np

    from study.base.quantities import read_count
    from study.laws.predicting import points_of
    from study.laws.predicting import predict as predicted

    given = {role: text for role, text in options.items() if text is not None}
    others = [*map(option_name, given), *(["--at"] if points is not None and at else [])]
    if others and (points is not None or at):
        whole = "--at" if points is None else "--points"
        raise InputError.at(whole, f"gives every variable; leave out {', '.join(others)}")
    if points is not None or at:
        columns = points_of(fit, points, at)
    else:
        columns = {role: np.array([read_count(option_name(role), text)]) for role, text in given.items()}
    _show(predicted(fit, columns), as_json)


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--law", help="As in study fit.")
@click.option(
    "--candidates", required=True, type=click.Path(path_type=Path), help="A table with a row for each run that may be made."
)
@click.option(
    "--target",
    multiple=True,
    required=True,
    metavar="POINT",
    help="Where to forecast: parameters=7e10,tokens=1.4e12, or a table with a row for each point; repeatable.",
)
@click.option(
    "--budget",
    required=True,
    metavar="COST",
    help="What the runs may cost in all, as in 1e21, or a share of what all candidates cost, as in 5%.",
)
@click.option(
    "--cost", metavar="EXPRESSION", help="The cost of a candidate, over its columns.  [default: cost, 6·N·D or FLOPs]"
)
@click.option(
    "--criterion",
    type=click.Choice(["error", "v-optimal", "d-optimal"]),
    default="error",
    show_default=True,
    help="Expected error at the target over basins of a law that may bend, its variance, or the parameters' volume.",
)
@click.option("--space", type=click.Choice(["log", "linear"]), default="log", show_default=True, help="Scale of the residuals.")
@role_options(*_ROLES)
@selection_options
@click.option("--seed", type=CountRange(0), default=0, show_default=True, help="Seed of the starts.")
@as_json
def design(
    table: Path,
    law: str | None,
    candidates: Path,
    target: tuple[str, ...],
    budget: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Choose the next runs for a forecast.

    TABLE holds finished runs, or none that has a result: then the runs to begin with are printed. Prints the
    CANDIDATES that lower the expected error at the target most, for a budget, in order, with the interval to expect before and
    after each, and what the cheapest or random runs would give for the same budget.
    """
    from study.designing.advising import advise, begin
    from study.laws.catalogue import find_law
    from study.laws.reading import TableQuery, read_observations

    opened = _opened(table, fewest=0)
    method, space = options.pop("criterion"), options.pop("space")
    how = {name: options.pop(name) for name in ("cost", "seed")}
    roles, selection = _given(options)
    chosen = find_law(law, table=opened, roles=roles)
    finished = None if opened.frame.empty else read_observations(TableQuery(opened, roles, **selection), chosen, space)
    if finished:
        _show(advise(chosen, finished, candidates, target, budget, method=method, space=space, **how), as_json)
        return
    unused = [*selection, *(["criterion"] if method != "error" else []), *(["space"] if space != "log" else [])]
    if unused:
        message = f"is for finished runs, of which {table} has none to use; leave it out"
        raise InputError([Problem(option_name(name), message) for name in unused])
    notes = () if finished is None else [note.removeprefix("warning: ") for note in finished.notes()]
    _show(begin(chosen, candidates, target, budget, roles=roles, notes=notes, **how), as_json)


@click.command("score-law")
@click.argument("table", type=click.Path(path_type=Path))
@role_options("parameters", "tokens", "flops", "loss", "score")
@selection_options
@huber_delta_option
@bootstrap_option
@held_out_option
@as_json
def score_law(table: Path, huber_delta: float, bootstrap: int, held_out: float, as_json: bool, **options: Any) -> None:
    """Fit a downstream score to N and D, in two steps and one.

    The largest runs are forecast both ways.
    """
    from study.laws.estimation import Settings
    from study.laws.reading import TableQuery
    from study.laws.two_steps import fit_score

    roles, selection = _given(options)
    settings = Settings(huber_delta=huber_delta, bootstrap=bootstrap)
    _show(fit_score(TableQuery(_opened(table), roles, **selection), settings, held_out), as_json)


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@role_options("parameters", "tokens", "flops", "loss")
@selection_options
@click.option("--at", metavar="FLOPS", help="Also the best N, D and loss at this budget, as in 1e21.")
@as_json
def frontier(table: Path, at: str | None, as_json: bool, **options: Any) -> None:
    """Find the compute-optimal number of parameters in a TABLE.

    It is estimated by every approach: envelope, hull, iso-FLOP valleys, law.
    """
    from study.base.quantities import read_count
    from study.laws.approaches import frontiers
    from study.laws.reading import TableQuery

    roles, selection = _given(options)
    flops = None if at is None else read_count("--at", at)
    _show(frontiers(TableQuery(_opened(table), roles, **selection), flops), as_json)


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--law", shell_complete=completing("laws"), help="As in study fit.  [default: chinchilla]")
@click.option("--as", "like", type=click.Path(path_type=Path), help="Law, columns and options of a study fit --json file.")
@click.option("--at", multiple=True, metavar="POINT", help="A target to draw the law up to, as in N=1e9,D=2e10; repeatable.")
@click.option("--into", type=output_folder, default=Path("figures"), show_default=True)
@figure_options
@role_options(*_ROLES)
@selection_options
def plot(
    table: Path,
    law: str | None,
    like: Path | None,
    at: tuple[str, ...],
    into: Path,
    formats: list[Format],
    style: StyleName,
    **options: Any,
) -> None:
    """Draw the fit of a law to a TABLE or results folder.

    The figures also show residuals, forecast, iso-FLOP valleys, shapes and the multiverse, and what the law says of targets, as
    study predict does. Options given beside --as add to the file's; contradictions are refused.
    """
    from study.laws.law_files import read_options
    from study.laws.reading import TableQuery
    from study.plotting.law_figures import draw_all
    from study.plotting.style import drawn_as

    roles, selection = _given(options)
    if like is None:
        with drawn_as(style):
            query = TableQuery(_opened(table), roles, **selection)
            written = draw_all(query, law or "chinchilla", into, formats=formats, at=at)
    else:
        old = read_options(like)
        old.refuse_contradictions(like, {**({} if law is None else {"law": law}), **selection, **roles})
        source = TableQuery(_opened(table), **{**old.source, **selection, "roles": {**old.source["roles"], **roles}})
        with drawn_as(style):
            written = draw_all(source, old.law, into, old.settings, old.held_out, formats, at)
    for file in written:
        echo(file)


@click.command()
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...", type=click.Path(path_type=Path))
@click.option("--parameters", multiple=True, metavar="COLUMN", help="A way to count N; repeatable.")
@click.option("--flops", multiple=True, metavar="COLUMN", help="A way to count C; repeatable.")
@role_options("tokens", "loss")
@selection_options
@click.option(
    "--ask",
    metavar="QUESTION",
    shell_complete=completing("questions"),
    help="compute (how to split it), shape (depth against width), or a knob whose values to compare, as architecture.norm.  "
    "[default: shape for several sweeps and for one that compares depths, else compute]",
)
@click.option(
    "--into",
    type=output_folder,
    help="Folder for a figure and the JSON of all universes; of a knob, a folder in it for each two values.",
)
@figure_options
@as_json
def multiverse(
    tables: tuple[Path, ...],
    ask: str | None,
    into: Path | None,
    formats: list[Format],
    style: StyleName,
    as_json: bool,
    **options: Any,
) -> None:
    """Answer one question by every convention or sweep.

    Reports the share of conventions that agree, and what changes the answer. For a sweep's folder the question is depth or
    width at equal size, within each setting; for a table, how to split compute between parameters and tokens. In each universe
    a law is fitted to at most 1,000 rows, so that intervals differ slightly from those of study fit and study frontier, which
    use all rows.

    Of several sweeps' folders the question is depth or width, at each of their sizes and budgets; it shows whether the answer
    turns with position encoding, optimiser, budget, corpus or whatever else differs between them. --ask architecture.norm
    compares each two norms, at each shape and budget, in cells of one sweep or two that differ in nothing else. Sweeps that
    cannot answer are left out with a note.
    """
    from study.base.quantities import rounded_all

    knob = None if ask in ("compute", "shape") else ask
    asked = _explored(tables, ask, knob, options)
    if into is not None:
        from study.plotting.answer_by_convention import save_multiverse
        from study.plotting.style import drawn_as

        with drawn_as(style):
            for one in asked:
                values = file_name(f"{one.question.above} or {one.question.below}")
                save_multiverse(one, into if knob is None else into / values, formats)
    if knob is None:
        _show(asked[0], as_json)
    elif as_json:
        echo(json.dumps(rounded_all([one.to_dict() for one in asked]), indent=1, allow_nan=False))
    else:
        echo("\n\n".join(one.to_text() for one in asked))


def _explored(tables: Sequence[Path], ask: str | None, knob: str | None, options: dict[str, Any]) -> list[Multiverse]:
    """Return the answers, several only to a knob's question; `options` are those of tables."""
    from study.evidence.recipe_multiverse import explore_knob, explore_recipes
    from study.evidence.shape_multiverse import asks_about_shape, explore_shapes, why_not_shape
    from study.laws.multiverse import explore
    from study.laws.reading import TableQuery

    table, *others = tables
    if others and ask == "compute":
        raise InputError.at("--ask", "compute is for one table; several sweeps are asked about shape or a knob")
    if others or knob is not None or ask == "shape" or (ask is None and asks_about_shape(table)):
        if unread := [option_name(name) for name, value in options.items() if value]:
            raise InputError.at(", ".join(unread), "is only for tables; the questions of sweeps use their own columns")
        if knob is not None:
            return explore_knob(tables, knob)
        return [explore_recipes(tables) if others else explore_shapes(table)]
    own_question = ask is None and not any(options.values())
    sizes = options.pop("parameters"), options.pop("flops")
    roles, selection = _given(options)
    try:
        return [explore(TableQuery(_opened(table), roles, **selection), *sizes)]
    except InputError as error:
        raise InputError([*(why_not_shape(table) if own_question else ()), *error.problems]) from error


@click.command()
@click.option("--into", type=output_folder, default=Path("results/replications"), show_default=True)
@click.option(
    "--chinchilla",
    type=click.Path(path_type=Path),
    help="Epoch's svg_extracted_data.csv, which has no licence and is not included.",
)
@as_json
def replicate(into: Path, chinchilla: Path | None, as_json: bool) -> None:
    """Refit published scaling studies and compare the numbers.

    Exits with status 1 where one is beyond its tolerance.
    """
    from study.replicating.studies import replicate as replicate_all
    from study.replicating.studies import to_markdown

    studies = replicate_all(into, chinchilla)
    echo(json.dumps([one.to_dict() for one in studies], indent=1) if as_json else to_markdown(studies))
    if not all(number.agrees for one in studies for number in one.numbers):
        sys.exit(1)
