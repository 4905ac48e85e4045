"""The command line: parses, calls one function each, and shows what it returns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from study.errors import InputError
from study.law_commands import LAW_COMMANDS

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


for law_command in LAW_COMMANDS:
    commands.add_command(law_command)

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
