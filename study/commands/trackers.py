"""The commands about trackers."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from study.base.quantities import plural
from study.base.text import echo
from study.commands.options import as_json, folder_argument, output_folder, sweep_folder


@click.command()
@folder_argument
@as_json
def sync(folder: Path, as_json: bool) -> None:
    """Mirror the runs in FOLDER to W&B, each as one clean run.

    Runs that W&B already has are left alone.
    """
    from rich.console import Console
    from rich.progress import Progress

    from study.tracking.mirror import mirror_sweep

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("runs", total=None)
        outcome = mirror_sweep(
            sweep_folder(folder), progress=lambda done, total: progress.update(task, completed=done, total=total)
        )
    if as_json:
        echo(json.dumps(outcome.to_dict(), indent=1))
    else:
        counts = (
            f"{plural(outcome.mirrored, 'run')} mirrored now, {outcome.already:,} already there, {len(outcome.failed)} failed"
        )
        echo(f"{counts} (W&B is {outcome.mode})")
        for run_id, reason in outcome.failed.items():
            echo(f"{run_id}: {reason}", err=True)
    if outcome.failed:
        sys.exit(1)


@click.command("optuna")
@folder_argument
@click.option("--storage", required=True, metavar="URL", help="Database of Optuna, such as sqlite:///study.db.")
@as_json
def optuna(folder: Path, storage: str, as_json: bool) -> None:
    """Copy the searches of a sweep into an Optuna storage.

    A search is one study, and so is each cell that is tuned: values, states, losses at every validation, and facts of the run.
    Run it again to add what has ended since. optuna-dashboard and Optuna's importances read it:

    \b
    study optuna results/mine --storage sqlite:///mine.db
    optuna-dashboard sqlite:///mine.db
    """  # noqa: D301
    from study.planning.optuna_mirror import mirror

    done = mirror(sweep_folder(folder), storage)
    if as_json:
        echo(json.dumps(asdict(done), indent=1))
    else:
        lines = [f"{name}: {plural(trials, 'trial')}" for name, trials in done.studies.items()]
        echo("\n".join([*lines, f"{plural(done.added, 'trial')} added now: {done.storage}"]))


@click.command("import-wandb")
@click.argument("source")
@click.option("--into", type=output_folder, required=True, help="Folder for ledger and histories.")
@click.option("--group", help="Only the runs of this W&B group.")
@click.option(
    "--tuned",
    multiple=True,
    metavar="KEY",
    default=("recipe.learning_rate",),
    show_default=True,
    help="A key in which runs of one cell may differ; repeatable.",
)
@as_json
def import_wandb(source: str, into: Path, group: str | None, tuned: tuple[str, ...], as_json: bool) -> None:
    """Read W&B runs into a ledger, with their whole histories.

    `study fit`, `plot` and `multiverse` take it.

    \b
    study import-wandb entity/project --group depth --into results/theirs
    study import-wandb path/to/wandb --into results/theirs    # offline runs
    """  # noqa: D301
    from study.tracking.wandb_import import import_wandb as read

    done = read(source, into, group, tuned)
    if as_json:
        echo(json.dumps(asdict(done) | {"ledger": str(done.ledger)}, indent=1))
    else:
        echo(f"{plural(done.runs, 'run')} with {done.rows:,} rows: {done.ledger}")
