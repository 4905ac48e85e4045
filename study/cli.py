"""The command line: parses, calls one function each, and shows what it returns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from study.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from study.sweeping.bill import Bill
    from study.sweeping.launch import Resources
    from study.sweeping.status import SweepStatus

INTERRUPTED_EXIT = 130


def main() -> None:
    """Run the command line; bad input is told in full on standard error, with exit status 2."""
    try:
        commands(standalone_mode=False)
    except InputError as error:
        for problem in error.problems:
            click.echo(f"error: {problem}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped; the same command goes on from here", err=True)
        sys.exit(INTERRUPTED_EXIT)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="scaling-study", prog_name="study")
def commands() -> None:
    """Answer scaling questions about masked-language-model encoders with evidence.

    A sweep file asks one question. `study plan` says what it costs, `study launch` runs it and goes on where it was
    stopped, and `study report` redraws its figures and answer from the records.
    """


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
results_option = click.option(
    "--results", type=click.Path(path_type=Path), default=Path("results"), show_default=True, help="Folder of all results."
)


def resource_options(command: Any) -> Any:
    """The options that say what of this machine a sweep may use."""
    for option in (
        click.option("--devices", type=click.IntRange(1), default=1, show_default=True, help="Devices for each run (DDP)."),
        click.option(
            "--slots-per-device",
            type=click.IntRange(1),
            help="Runs at a time on each device.  [default: 1 a GPU, one a core on a CPU]",
        ),
        click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True),
    ):
        command = option(command)
    return command


@commands.command()
@click.argument("name", required=False)
@click.option("--depth", type=int, help="Layers L.")
@click.option("--width", type=int, help="Hidden size H.")
@click.option("--heads", type=int, help="Attention heads A.  [default: width/64]")
@click.option("--ffn", type=int, help="Inner size F.  [default: 4·width]")
@click.option("--vocabulary", type=int, help="Word pieces V.  [default: 30522]")
@click.option("--positions", type=int, help="Learned positions.  [default: 512]")
@click.option("--sequence-length", type=int, default=128, show_default=True, help="Tokens a sequence, for the FLOPs.")
@as_json
def params(name: str | None, sequence_length: int, as_json: bool, **sizes: int | None) -> None:
    """Count the parameters and FLOPs of a model by NAME (bert-base) or by its shape, without building it."""
    from study.counting import account
    from study.named_models import architecture_of

    architecture = architecture_of(name, {key: value for key, value in sizes.items() if value is not None})
    counted = account(architecture, sequence_length)
    if as_json:
        click.echo(json.dumps(counted.to_dict(), indent=1))
    else:
        click.echo(counted.to_text(name or architecture.shape_name))


@commands.command()
@click.argument("sweep", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@results_option
@resource_options
@as_json
def plan(sweep: Path, overrides: tuple[str, ...], results: Path, as_json: bool, **resources: Any) -> None:
    """Check a SWEEP file and print its bill: parameters, tokens, FLOPs and expected seconds, before anything is spent."""
    from study.sweeping.launch import plan as bill_of
    from study.sweeping.spec import read_sweep

    spec, _ = read_sweep(sweep, overrides)
    bill = bill_of(spec, results, _resources(resources))
    if as_json:
        click.echo(json.dumps(bill.to_dict(), indent=1))
    else:
        _print(_bill_table(spec.question, bill), _bill_summary(bill))


@commands.command()
@click.argument("sweep", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@results_option
@resource_options
@click.option(
    "--wandb/--no-wandb", "track", default=True, show_default=True, help="Mirror the runs to W&B, offline unless logged in."
)
@as_json
def launch(sweep: Path, overrides: tuple[str, ...], results: Path, track: bool, as_json: bool, **resources: Any) -> None:
    """Run what a SWEEP file still needs, then write its ledger, figures and answer.

    Ctrl-C lets the running runs save; the same command goes on from there. Runs that are done are never trained again.
    """
    from rich.console import Console

    from study.sweeping.launch import folder_of
    from study.sweeping.launch import launch as launch_sweep
    from study.sweeping.spec import read_sweep

    spec, values = read_sweep(sweep, overrides)
    console = Console(stderr=as_json)
    launched = launch_sweep(spec, values, results, _resources(resources), console, track)
    folder = folder_of(spec, results)
    if launched.unmirrored:
        console.print(f"{launched.unmirrored} runs are not in W&B yet: study sync {folder.path}")
    _report(folder.path, as_json)


@commands.command()
@click.argument("folder", type=click.Path(path_type=Path))
@as_json
def status(folder: Path, as_json: bool) -> None:
    """Show where the runs of a sweep are; FOLDER is the sweep's folder under results/."""
    from study.sweeping.status import status as status_of

    state = status_of(_sweep_folder(folder))
    if as_json:
        click.echo(json.dumps(state.to_dict(), indent=1))
    else:
        _print(_status_table(state))


@commands.command()
@click.argument("folder", type=click.Path(path_type=Path))
@as_json
def report(folder: Path, as_json: bool) -> None:
    """Rebuild ledger, fits, figures and answer from the records in FOLDER; needs no GPU, no account and no torch."""
    _report(_sweep_folder(folder).path, as_json)


def role_options(command: Any) -> Any:
    """The options that say which column, or which expression of columns, means what."""
    roles = {
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
    }
    for role, meaning in reversed(roles.items()):
        command = click.option(f"--{role.replace('_', '-')}", role, metavar="COLUMN", help=meaning)(command)
    return command


@commands.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--law", required=True, help="chinchilla, power-floor, …; an unknown name lists them all.")
@role_options
@click.option("--where", metavar="CONDITION", help="Rows to keep, as in 'loss < 4 and dataset == \"c4\"'.")
@click.option("--cluster", metavar="COLUMN", help="The run of a row: its checkpoints are resampled and held out together.")
@click.option("--budget", metavar="COLUMN", help="What orders runs from small to large.  [default: FLOPs, else 6·N·D]")
@click.option("--huber-delta", type=click.FloatRange(0, min_open=True), default=1e-3, show_default=True)
@click.option("--space", type=click.Choice(["log", "linear"]), default="log", show_default=True, help="Where residuals are.")
@click.option("--bootstrap", type=click.IntRange(0), default=1000, show_default=True, help="Resamples of the runs.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the resamples.")
@click.option("--held-out", type=click.FloatRange(0, 0.9, min_open=True), default=0.1, show_default=True, help="Share of runs.")
@click.option("--any-units", is_flag=True, help="Take counts and losses of odd size as they are.")
@as_json
def fit(table: Path, law: str, as_json: bool, **options: Any) -> None:
    """Fit a scaling law to any TABLE (csv, jsonl, parquet) or results folder, and forecast its largest runs.

    COLUMN is a name or arithmetic over names: --tokens 'C/(6*N)', or in backticks: --tokens '`Training FLOP`/(6*N)'.
    """
    from study.fitting.estimation import Settings
    from study.fitting.law_fits import fit_table
    from study.fitting.reading import Source

    choices = {name: options.pop(name) for name in ("huber_delta", "space", "bootstrap", "seed")}
    held_out = options.pop("held_out")
    selection = {name: options.pop(name) for name in ("where", "cluster", "budget", "any_units")}
    roles = {role: text for role, text in options.items() if text is not None}
    found = fit_table(Source(table, roles, **selection), law, Settings(**choices), held_out)
    click.echo(json.dumps(found.to_dict(), indent=1, allow_nan=False) if as_json else found.to_text())


@commands.command()
@click.argument("table", type=click.Path(path_type=Path))
@role_options
@click.option("--where", metavar="CONDITION", help="Rows to keep.")
@click.option("--any-units", is_flag=True, help="Take counts and losses of odd size as they are.")
@as_json
def frontier(table: Path, where: str | None, any_units: bool, as_json: bool, **roles: str | None) -> None:
    """Find the compute-optimal number of parameters in a TABLE by every approach: envelope, hull, iso-FLOP valleys, law."""
    from study.fitting.compute_optimal import frontiers, to_dict, to_text
    from study.fitting.reading import Source

    given = {role: text for role, text in roles.items() if text is not None}
    found = frontiers(Source(table, given, where=where, any_units=any_units))
    click.echo(json.dumps(to_dict(found), indent=1, allow_nan=False) if as_json else to_text(found))


@commands.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--law", default="chinchilla", show_default=True)
@click.option("--into", type=click.Path(path_type=Path), default=Path("figures"), show_default=True)
@role_options
@click.option("--where", metavar="CONDITION", help="Rows to keep.")
@click.option("--cluster", metavar="COLUMN", help="The run of a row.")
def plot(table: Path, law: str, into: Path, where: str | None, cluster: str | None, **roles: str | None) -> None:
    """Draw a law's fit to a TABLE or results folder, its residuals, forecast, iso-FLOP valleys and multiverse."""
    from study.fitting.reading import Source
    from study.plotting.law_figures import draw_all

    given = {role: text for role, text in roles.items() if text is not None}
    for file in draw_all(Source(table, given, where=where, cluster=cluster), law, into):
        click.echo(file)


@commands.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--parameters", multiple=True, metavar="COLUMN", help="A way to count N; as often as there are.")
@click.option("--flops", multiple=True, metavar="COLUMN", help="A way to count C; as often as there are.")
@click.option("--tokens", metavar="COLUMN", help="Training tokens D.")
@click.option("--loss", metavar="COLUMN", help="Loss.")
@click.option("--where", metavar="CONDITION", help="Rows to keep.")
@as_json
def multiverse(
    table: Path, parameters: tuple[str, ...], flops: tuple[str, ...], where: str | None, as_json: bool, **roles: str | None
) -> None:
    """Ask how compute should be split, in every defensible convention: the share that agrees, and what turns the answer."""
    from study.fitting.multiverse import explore
    from study.fitting.reading import Source

    given = {role: text for role, text in roles.items() if text is not None}
    found = explore(Source(table, given, where=where), parameters, flops)
    click.echo(json.dumps(found.to_dict(), indent=1, allow_nan=False) if as_json else found.to_text())


@commands.command()
@click.option("--into", type=click.Path(path_type=Path), default=Path("results/replications"), show_default=True)
@click.option(
    "--chinchilla",
    type=click.Path(path_type=Path),
    default=Path("../shared/data/published/chinchilla/svg_extracted_data.csv"),
    show_default=True,
    help="Epoch's points, which have no licence to be here.",
)
@as_json
def replicate(into: Path, chinchilla: Path, as_json: bool) -> None:
    """Fit published scaling studies again and compare numbers; exit with 1 where one is beyond its tolerance."""
    from study.replicating.suite import replicate as replicate_all
    from study.replicating.suite import to_markdown

    studies = replicate_all(into, chinchilla)
    click.echo(json.dumps([found.to_dict() for found in studies], indent=1) if as_json else to_markdown(studies))
    if not all(number.agrees for found in studies for number in found.numbers):
        sys.exit(1)


@commands.command()
@click.argument("folder", type=click.Path(path_type=Path))
@as_json
def sync(folder: Path, as_json: bool) -> None:
    """Replay the runs in FOLDER to W&B, each into one clean run; what is there already is left alone."""
    from rich.console import Console
    from rich.progress import Progress

    from study.sweeping.mirror import sync as sync_sweep

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("runs", total=None)
        outcome = sync_sweep(_sweep_folder(folder), lambda done, total: progress.update(task, completed=done, total=total))
    if as_json:
        click.echo(json.dumps(outcome.to_dict(), indent=1))
    else:
        counts = f"{outcome.mirrored} runs mirrored now, {outcome.already} there already, {len(outcome.failed)} failed"
        click.echo(f"{counts} (W&B is {outcome.mode})")
        for run_id, reason in outcome.failed.items():
            click.echo(f"{run_id}: {reason}", err=True)
    if outcome.failed:
        sys.exit(1)


def _resources(options: dict[str, Any]) -> Resources:
    from study.sweeping.launch import Resources

    return Resources(**options)


def _sweep_folder(path: Path) -> Any:
    """The sweep's folder; raises InputError where there is none."""
    from study.records import SweepFolder

    folder = SweepFolder(path)
    if not folder.sweep_file.exists():
        raise InputError.at(str(path), "is no sweep's folder (it holds no sweep.yaml); give one under results/")
    return folder


def _report(path: Path, as_json: bool) -> None:
    from study.answering import report as report_on
    from study.records import SweepFolder

    folder = SweepFolder(path)
    answer = report_on(folder)
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=1))
    else:
        click.echo(f"\n{answer.headline}\n\nThe answer: {folder.answer_file}\nIts figures: {folder.figures}")


def _bill_table(question: str, bill: Bill) -> Table:
    from rich.table import Table

    table = Table(title=question, title_justify="left")
    for column in ("shape", "parameters", "non-embedding", "tokens a run", "train_flops a run", "seconds a run", "runs"):
        table.add_column(column, justify="left" if column == "shape" else "right")
    for row in bill.rows:
        sizes = (f"{row.parameters:,}", f"{row.parameters_non_embedding:,}", f"{row.tokens:,}")
        table.add_row(row.shape, *sizes, f"{row.train_flops:.3g}", f"{row.expected_seconds:,.0f}", f"{row.runs}")
    return table


def _bill_summary(bill: Bill) -> str:
    minutes = bill.expected_seconds / 60
    total = f"{bill.runs} runs, {bill.tokens:,} tokens, {bill.train_flops:.3g} FLOPs (train_flops)"
    return f"{total}: about {minutes:,.1f} minutes on {bill.slots} slots at {bill.basis}"


def _status_table(state: SweepStatus) -> Table:
    from rich.table import Table

    who = f"run by process {state.coordinator['pid']}" if state.coordinator else "nobody runs it now"
    done = f"{state.count('COMPLETED')} of {len(state.runs)} runs completed"
    table = Table(title=f"{state.name}: {done}, {who}", title_justify="left")
    for column in ("run", "shape", "state", "note"):
        table.add_column(column)
    for column in ("learning rate", "seed", "tokens", "loss (nats)", "tokens/s"):
        table.add_column(column, justify="right")
    for run in state.runs:
        loss = "" if run.loss_nats is None else f"{run.loss_nats:.4f}"
        speed = "" if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}"
        numbers = (f"{run.learning_rate:g}", f"{run.seed}", f"{run.tokens:,} of {run.target_tokens:,}", loss, speed)
        table.add_row(run.run_id, run.shape, run.state, run.reason or "", *numbers)
    return table


def _print(*parts: Table | str) -> None:
    from rich.console import Console

    console = Console()
    for part in parts:
        console.print(part, highlight=False)
