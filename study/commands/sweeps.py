"""The commands about sweeps."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from study.base.durable_files import is_there
from study.base.errors import InputError, check_all
from study.commands.options import CountRange, as_json, place_options, png_option, results_option

if TYPE_CHECKING:
    from study.config.sweep import Sweep
    from study.report.answer import Answer
    from study.store.sweep_folder import SweepFolder

WATCH_SECONDS = 2.0
WATCH_MARGIN = 12
"""Lines of the terminal that are not rows of runs."""

MOST_NAMED = 5
"""At most so many sweeps are named where a folder of several was given for one."""

folder_argument = click.argument("folder", type=click.Path(path_type=Path))


def sweep_folder(path: Path) -> SweepFolder:
    """The sweep's folder, also of a launch that has written nothing yet; raises InputError where there is none."""
    from study.store.locks import is_held

    folder = _folder(path)
    if not is_there(folder.sweep_file) and not any(map(is_held, (folder.launching, folder.scoring))):
        raise InputError.at(str(path), f"is not a sweep folder: it has no sweep.yaml; {_folder_meant(path)}")
    return folder


def folder_with_runs(path: Path) -> SweepFolder:
    """A folder with runs, of a sweep or of imported encoders; else as `sweep_folder`."""
    folder = _folder(path)
    return folder if folder.runs() else sweep_folder(path)


def _folder(path: Path) -> SweepFolder:
    """The folder at a path, with a name even where the path ends in none."""
    from study.store.sweep_folder import SweepFolder

    return SweepFolder(path if path.name not in ("", "..") else path.resolve())


def _folder_meant(path: Path) -> str:
    """A hint at the folder that may be meant: by a sweep's name, file or results, or by a similar name."""
    from study.base.errors import near
    from study.store.sweep_folder import SweepFolder, sweeps_in

    named = SweepFolder(Path("results") / path.stem)
    if is_there(named.sweep_file):
        return f"did you mean {named.path}?"
    beside = {folder.parent.name: folder.parent for folder in sorted(path.parent.glob("*/sweep.yaml"))}
    if (best := near(path.name, [*beside])) is not None:
        return f"did you mean {beside[best]}?"
    with suppress(InputError):
        below = [str(sweep.path) for sweep in sweeps_in(path).values()]
        return f"give one of them, such as {', '.join(below[:MOST_NAMED])}{', …' if len(below) > MOST_NAMED else ''}"
    return "give one under results/"


def resource_options(command: Any) -> Any:
    """The options that say where the runs of a sweep execute; each overrides the file's `resources`."""
    for option in (
        click.option("--nodes", type=CountRange(1), help="Slurm nodes per run, which share its devices.  [default: 1]"),
        click.option("--devices", type=CountRange(1), help="Devices per run (DDP).  [default: 1]"),
        click.option(
            "--kernels",
            type=click.Choice(["auto", "eager", "onednn", "compiled", "graphed"]),
            help="onednn: fp32 products on a CPU; compiled: torch.compile; graphed: one CUDA graph per step.  "
            "[default: auto, graphed on a GPU, onednn in fp32 on a non-Intel CPU]",
        ),
    ):
        command = option(command)
    return place_options(command)


@click.command()
@click.argument("sweep", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@results_option
@resource_options
@as_json
def plan(sweep: Path, overrides: tuple[str, ...], results: Path, as_json: bool, **resources: Any) -> None:
    """Check a SWEEP file and estimate its cost.

    Prints parameters, tokens, FLOPs and expected seconds, and the lines of shell (resources.slurm.setup) that every Slurm job
    executes as you: trust a sweep file as you would a script.
    """
    from study.base.terminal import show
    from study.config.sweep_files import read_sweep
    from study.running.launch import plan as bill_of
    from study.running.status_tables import cost_summary, cost_table, executed_lines

    spec, _ = read_sweep(sweep, overrides)
    on = spec.resources.overridden(**resources)
    bill = check_all(lambda: bill_of(spec, results, on), lambda: _check_tasks(spec))
    if as_json:
        click.echo(json.dumps(bill.to_dict() | {"executed": on.executed}, indent=1))
    else:
        show(cost_table(spec.question, bill), "\n".join([cost_summary(bill), *executed_lines(on)]))


@click.command()
@click.argument("sweep", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@results_option
@resource_options
@click.option(
    "--wandb/--no-wandb", "track", default=True, show_default=True, help="Mirror the runs to W&B, offline unless logged in."
)
@click.option(
    "--hung-after",
    default="10min",
    envvar="STUDY_HUNG_AFTER",
    show_default=True,
    help="Give up a run that takes no step for this long.",
)
@as_json
def launch(
    sweep: Path, overrides: tuple[str, ...], results: Path, track: bool, hung_after: str, as_json: bool, **resources: Any
) -> None:
    """Run what a SWEEP file still needs, then write its answer.

    Writes ledger, fits and figures, too. Ctrl-C lets the running runs save, and the same command resumes them. Completed runs
    are never trained again.
    """
    from rich.console import Console

    from study.base.quantities import plural, read_seconds
    from study.base.terminal import say, show, tolerate_lost_output
    from study.base.text import pasted, printable
    from study.config.sweep_files import read_sweep
    from study.running.launch import folder_of, launched
    from study.store.ownership import HUNG_AFTER

    spec, values = check_all(lambda: read_sweep(sweep, overrides), lambda: read_seconds("--hung-after", hung_after))
    os.environ[HUNG_AFTER] = hung_after
    console = Console(stderr=as_json)
    asked, folder = spec.resources.overridden(**resources), folder_of(spec, results)
    with (
        tolerate_lost_output(),
        launched(spec, values, results, asked, console, track, lambda: _check_tasks(spec)) as unmirrored,
    ):
        if unmirrored:
            are = "is" if unmirrored == 1 else "are"
            say(console, f"{plural(unmirrored, 'run')} {are} not in W&B yet: study sync {pasted(folder.path)}")
        if spec.downstream is not None:
            from study.running.score_launch import score_sweep
            from study.scoring.score_table import score_table

            tasks = printable(", ".join(spec.downstream.tasks))
            say(console, f"all runs have ended; writing an answer without scores, then scoring on {tasks}")
            _write_answer(folder)  # the runs have an answer even if scoring fails
            scored = score_sweep(folder, spec.downstream, asked, console)
            unscored = f"Not scored on {tasks}: the answer uses no run."
            show(*(() if as_json else (unscored,) if scored is None else score_table(scored)))
        answer = _write_answer(folder)
    _tell(folder, answer, as_json)


@click.command()
@folder_argument
@click.option(
    "--include-unbracketed", is_flag=True, help="Also compare cells whose best learning rate is at an end of its range."
)
@png_option
@as_json
def report(folder: Path, include_unbracketed: bool, png: bool, as_json: bool) -> None:
    """Rebuild the ledger, fits, figures and answer of a sweep.

    Reads only the records in FOLDER; needs no GPU, no account and no torch.
    """
    sweep = sweep_folder(folder)
    _tell(sweep, _write_answer(sweep, include_unbracketed, png), as_json)


def _write_answer(folder: SweepFolder, include_unbracketed: bool = False, png: bool = False) -> Answer:
    from study.report.answer import report as report_on

    return report_on(folder, include_unbracketed, png)


def _tell(folder: SweepFolder, answer: Answer, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=1))
    else:
        click.echo(f"\n{answer.headline}\n\nThe answer: {folder.answer_file}\nIts figures: {folder.figures}")


def _check_tasks(spec: Sweep) -> None:
    """Raise InputError for wrong tasks of a sweep; without tasks nothing heavy is imported."""
    if spec.downstream is not None:
        from study.scoring.targets import load_tasks

        load_tasks(spec.downstream)


@click.command()
@folder_argument
@click.option("--watch", "-w", is_flag=True, help="Refresh every two seconds while the sweep is running.")
@click.option("--all", "every", is_flag=True, help="List every run, even if there are more than 200.")
@as_json
def status(folder: Path, watch: bool, every: bool, as_json: bool) -> None:
    """Show the state of a sweep's runs.

    FOLDER is the sweep's folder under results/. Of more than 200 runs, those that are running, excluded or spiked are listed,
    as many as fit the screen. With --json and --watch, each update is one line of JSON.
    """
    from study.base.terminal import show
    from study.running.status import status as status_of
    from study.running.status_tables import MOST_LISTED, status_summary, status_table, watched

    sweep = sweep_folder(folder)
    if watch and as_json:
        while True:
            state = status_of(sweep)
            click.echo(json.dumps(state.to_dict()))
            if state.coordinator is None:
                return
            time.sleep(WATCH_SECONDS)
    if watch:
        _watch(sweep)
    state = status_of(sweep)
    if as_json:
        click.echo(json.dumps(state.to_dict(), indent=1))
    elif every or len(state.runs) <= MOST_LISTED:
        show(status_table(state), status_summary(state))
    else:
        show(*watched(state, _rows_free()))


def _rows_free() -> int:
    """The number of rows for runs that fit the terminal."""
    return max(4, shutil.get_terminal_size().lines - WATCH_MARGIN)


def _watch(sweep: SweepFolder) -> None:
    """Show a sweep on the terminal until it is no longer running."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from study.running.status import status as status_of
    from study.running.status_tables import watched

    console = Console()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while (state := status_of(sweep)).coordinator is not None:
            table, *lines = watched(state, _rows_free())
            live.update(Group(table, *map(Text, lines)), refresh=True)
            time.sleep(WATCH_SECONDS)


@click.command()
@folder_argument
@as_json
def stop(folder: Path, as_json: bool) -> None:
    """Let a sweep save and stop, wherever it was started.

    Stops training and scoring; the same command resumes later.
    """
    from study.running.steering import stop as stop_sweep

    sweep = sweep_folder(folder)
    stopped = stop_sweep(sweep)
    text = f"{sweep.name} has stopped; the same command resumes it" if stopped else f"{sweep.name} is not running"
    click.echo(json.dumps({"sweep": sweep.name, "stopped": stopped}) if as_json else text)


@click.command()
@folder_argument
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@as_json
def retry(folder: Path, runs: tuple[str, ...], as_json: bool) -> None:
    """Try failed runs and scores again.

    The next launch, or study score, resumes all that FAILED, were HUNG or met OOM, or those of the named RUNs, from their last
    checkpoints. A named run that was excluded is trained anew. Every record is kept among the past attempts of its run.
    """
    from dataclasses import asdict

    from study.base.quantities import plural
    from study.base.text import printable
    from study.running.steering import retry as retry_failed

    sweep = folder_with_runs(folder)
    retried = retry_failed(sweep, runs)
    if as_json:
        click.echo(json.dumps({"sweep": sweep.name, "retried": [asdict(run) for run in retried]}, indent=1))
        return
    for one in retried:
        click.echo(printable(f"{f'{one.task} of ' if one.task else ''}{one.run_id} was {one.state}: {one.reason or ''}"))
    scores = sum(one.task is not None for one in retried)
    if count := len(retried) - scores:
        click.echo(f"{plural(count, 'run')} will be tried again by the next launch of {sweep.name}")
    if scores:
        by = f"the next study score, or launch that scores, of {sweep.name}"
        click.echo(f"{plural(scores, 'score')} will be tried again by {by}")
    if not retried:
        click.echo(f"nothing of {sweep.name} FAILED, was HUNG or met OOM; name other runs to try them again")


@click.command()
@click.argument("run")
@click.option("--reason", help="The reason, which the ledger and the answer quote.")
@click.option("--undo", is_flag=True, help="Include the run again.")
@results_option
@as_json
def exclude(run: str, reason: str | None, undo: bool, results: Path, as_json: bool) -> None:
    """Exclude a run from fits and comparisons, with a reason.

    RUN is its id or the start of it, or its folder in one sweep. Its record stays as it is. A later launch tunes and repeats as
    if the run had failed; to train it once more, `study retry` it by its id. `study report` writes the answer without it.
    """
    from study.base.text import pasted
    from study.running.steering import exclude as exclude_run
    from study.running.steering import include
    from study.store.sweep_folder import SweepFolder

    if undo == (reason is not None):
        raise InputError.at("study exclude", "needs either --reason, or --undo")
    found = include(run, results) if reason is None else exclude_run(run, results, reason)
    if as_json:
        click.echo(json.dumps({"run": found[0].run_id, "excluded": reason, "folders": [str(each.path) for each in found]}))
        return
    what = "is included again" if reason is None else "is excluded"
    for each in found:
        sweep = SweepFolder.of(each)
        click.echo(f"{each.run_id} {what} in {sweep.name}; to update its answer: study report {pasted(sweep.path)}")
