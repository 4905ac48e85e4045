"""The commands about sweeps."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from study.base.errors import InputError, check_all
from study.base.text import echo
from study.commands.options import (
    CountRange,
    as_json,
    folder_argument,
    place_options,
    png_option,
    results_option,
    sweep_folder,
)

if TYPE_CHECKING:
    from study.config.sweep import Sweep
    from study.report.answer import Answer
    from study.store.sweep_folder import SweepFolder

TEMPLATE = Path(__file__).with_name("new_sweep.yaml")
"""The commented sweep file that `study new` copies."""

SHIPPED = Path(__file__).parents[1] / "sweeps", Path(__file__).parents[2] / "sweeps"
"""Where the sweep files lie that come with the workbench: in a wheel, or in a clone."""


@click.command()
@click.argument("name", default="my_sweep")
def new(name: str) -> None:
    """Write a commented sweep file, NAME.yaml, to start from."""
    from study.base.durable_files import write_once

    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if not file.parent.is_dir():
        raise InputError.at(str(file.parent), "is not a folder; create it first")
    if not write_once(file, TEMPLATE.read_text().replace("NAME", file.stem).encode()):
        raise InputError.at(str(file), "exists, and no file is overwritten; give another name")
    echo(f"{file}: edit its question and values, then: study plan {file}")


@click.command()
@as_json
def sweeps(as_json: bool) -> None:
    """List the shipped sweep files with their questions."""
    from study.base.yaml_files import read_yaml

    files = sorted(file for folder in SHIPPED if folder.is_dir() for file in folder.glob("*.yaml"))
    here = Path.cwd()
    names = (file.relative_to(here) if file.is_relative_to(here) else file for file in files)
    questions = {str(name): str(read_yaml(name)["question"]) for name in names}
    text = "\n".join(f"{file}\n    {question}" for file, question in questions.items())
    echo(json.dumps(questions, indent=1) if as_json else text)


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
    from study.running.launch import plan as estimate
    from study.running.status_tables import cost_summary, cost_table, executed_lines

    spec, _ = read_sweep(sweep, overrides)
    on = spec.resources.overridden(**resources)
    cost = check_all(lambda: estimate(spec, results, on), lambda: _check_tasks(spec))
    if as_json:
        echo(json.dumps(cost.to_dict() | {"executed": on.executed}, indent=1))
    else:
        show(cost_table(spec.question, cost), "\n".join([cost_summary(cost), *executed_lines(on)]))


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
    requested, folder = spec.resources.overridden(**resources), folder_of(spec, results)
    with (
        tolerate_lost_output(),
        launched(spec, values, results, requested, console, track, lambda: _check_tasks(spec)) as unmirrored,
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
            scored = score_sweep(folder, spec.downstream, requested, console)
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


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path("results"))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on this machine.  [default: a free one]")
@click.option("--open/--no-open", "opens", default=True, show_default=True, help="Open the page in a browser.")
def dashboard(folder: Path, port: int, opens: bool) -> None:
    """Show the sweeps of a results folder in a browser.

    FOLDER is `results`, another folder of sweeps, or one sweep. The server reads only, answers this machine alone, and prints
    its address, which holds a random token.
    """
    try:
        from study.dashboard.serving import serve
    except ModuleNotFoundError as error:
        raise InputError.at("study dashboard", f"needs {error.name}; pip install 'scaling-study[dashboard]'") from None
    serve(folder, port, *([_open] if opens else []))


def _open(address: str) -> None:
    """Open a page in a browser with windows; one that would take the terminal is left alone."""
    if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(address)


def _write_answer(folder: SweepFolder, include_unbracketed: bool = False, png: bool = False) -> Answer:
    from study.report.answer import report as report_on

    return report_on(folder, include_unbracketed, png)


def _tell(folder: SweepFolder, answer: Answer, as_json: bool) -> None:
    if as_json:
        echo(json.dumps(answer.to_dict(), indent=1))
    else:
        echo(f"\n{answer.headline}\n\nThe answer: {folder.answer_file}\nIts figures: {folder.figures}")


def _check_tasks(spec: Sweep) -> None:
    if spec.downstream is not None:
        from study.scoring.targets import load_tasks

        load_tasks(spec.downstream)
