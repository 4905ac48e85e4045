"""The commands about sweeps."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from study.base.errors import InputError, check_all, nearest, shown
from study.base.shipped import shipped
from study.base.text import echo, pasted
from study.commands.options import (
    CountRange,
    as_json,
    completing,
    figure_options,
    folder_argument,
    open_page,
    place_options,
    results_option,
    sweep_folder,
)

if TYPE_CHECKING:
    from study.config.sweep import Sweep
    from study.plotting.style import Format, StyleName
    from study.report.answer import Answer
    from study.store.records import RunRecord
    from study.store.sweep_folder import SweepFolder

TEMPLATE = Path(__file__).with_name("new_sweep.yaml")
"""The commented sweep file that `study new` copies."""


@click.command()
@click.argument("name", default="my_sweep")
@click.option(
    "--like",
    metavar="SWEEP",
    shell_complete=completing("shipped_sweeps"),
    help="Copy this shipped sweep in place of the template; study sweeps lists them.",
)
def new(name: str, like: str | None) -> None:
    """Write a commented sweep file, NAME.yaml, to start from."""
    from study.base.durable_files import write_once
    from study.config.sweep import NAME, NO_NAME

    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if not NAME.fullmatch(file.stem):
        raise InputError.at("NAME", f"{shown(file.stem)} {NO_NAME}")
    if not file.parent.is_dir():
        raise InputError.at(str(file.parent), "is not a folder; create it first")
    text = (
        TEMPLATE.read_text().replace("NAME", file.stem)
        if like is None
        else _named("--like", like, shipped("sweeps")).read_text()
    )
    if not write_once(file, text.encode()):
        raise InputError.at(str(file), "exists, and no file is overwritten; give another name")
    echo(f"{file}: edit its question and values, then: study plan {pasted(file)}")


@click.command()
@as_json
def sweeps(as_json: bool) -> None:
    """List the shipped sweeps with their questions.

    Their names stand for their files in study plan and study launch.
    """
    from study.base.terminal import listing
    from study.base.yaml_files import read_yaml

    rows = [
        {"name": name, "file": str(file), "question": read_yaml(file)["question"]} for name, file in shipped("sweeps").items()
    ]
    text = listing((row["name"], row["question"]) for row in rows)
    echo(json.dumps(rows, indent=1) if as_json else text)


def _named(place: str, name: str, known: dict[str, Path]) -> Path:
    """Return the shipped file of a name; raises InputError with the nearest name."""
    if name not in known:
        raise InputError.at(place, f"{name!r} is not known; {nearest(name, [*known])}")
    return known[name]


@click.command()
@click.argument("name", required=False, shell_complete=completing("notebooks"))
@click.option("--folder", type=click.Path(path_type=Path), help="The sweep to read.  [default: the notebook's own]")
@click.option("--into", type=click.Path(path_type=Path, dir_okay=False), help="Write a copy to edit, and open nothing.")
def notebook(name: str | None, folder: Path | None, into: Path | None) -> None:
    """Open a notebook on the results of a sweep.

    Without NAME, the notebooks are listed. Each is a Python file for marimo, an extra: pip install 'scaling-study[notebooks]'.
    A copy is for marimo edit.
    """
    known = shipped("analysis", ".py")
    if name is None:
        from study.base.terminal import listing

        echo(listing((each, _summary(file)) for each, file in known.items()))
        return
    file = _named("NAME", name, known)
    if into is not None:
        from study.base.durable_files import write_once

        if not write_once(into, file.read_bytes()):
            raise InputError.at(str(into), "exists, and no file is overwritten; give another name")
        echo(f"{into}: marimo edit {pasted(into)}")
        return
    if find_spec("marimo") is None:
        raise InputError.at("study notebook", "needs marimo: pip install 'scaling-study[notebooks]'")
    if folder is not None and not folder.is_dir():
        raise InputError.at("--folder", f"{shown(str(folder))} is not a folder; give that of a sweep's results")
    given = {} if folder is None else {"STUDY_RESULTS": str(folder)}  # marimo splits arguments at =, and reads 1e5 as a number
    opened = subprocess.run([sys.executable, "-m", "marimo", "run", "--token", str(file)], env=os.environ | given, check=False)
    sys.exit(opened.returncode)


def _summary(notebook: Path) -> str:
    return " ".join((ast.get_docstring(ast.parse(notebook.read_text())) or "").partition("\n\n")[0].split())


sweep_argument = click.argument(
    "sweep", type=click.Path(path_type=Path), shell_complete=completing("shipped_sweeps", paths=True)
)


def resource_options(command: Any) -> Any:
    """Return the options that say where the runs of a sweep execute; each overrides the file's `resources`."""
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
@sweep_argument
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
    from study.planning.cost_estimate import cost_summary, cost_table
    from study.running.launch import plan as estimate

    spec, _ = read_sweep(sweep, overrides, _check_sections)
    on = spec.resources.overridden(**resources)
    cost = check_all(lambda: estimate(spec, results, on), lambda: _check_tasks(spec))
    if as_json:
        echo(json.dumps(cost.to_dict() | {"executed": on.executed, "sbatch_options": on.sbatch_options}, indent=1))
    else:
        show(cost_table(spec.question, cost), "\n".join([cost_summary(cost), *on.executed_lines]))


@click.command()
@sweep_argument
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@results_option
@resource_options
@click.option(
    "--wandb/--no-wandb",
    "track",
    default=True,
    show_default=True,
    help="Mirror runs, scores and the answer to W&B, offline unless logged in.",
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

    from study.base.quantities import read_seconds
    from study.base.terminal import say, show
    from study.base.text import printable, tolerate_lost
    from study.config.sweep_files import read_sweep
    from study.report.answer import IMAGES
    from study.report.answer import report as report_on
    from study.running.launch import folder_of, launched
    from study.store.ownership import HUNG_AFTER

    spec, values = check_all(
        lambda: read_sweep(sweep, overrides, _check_sections), lambda: read_seconds("--hung-after", hung_after)
    )
    os.environ[HUNG_AFTER] = hung_after
    console = Console(stderr=as_json)
    requested, folder = spec.resources.overridden(**resources), folder_of(spec, results)
    with (
        tolerate_lost("stdout", "stderr"),
        launched(spec, values, results, requested, console, track, lambda: _check_tasks(spec)),
    ):
        if spec.downstream is not None:
            from study.running.score_launch import score_sweep
            from study.scoring.score_table import score_table

            tasks = printable(", ".join(spec.downstream.tasks))
            say(console, f"all runs have ended; writing an answer without scores, then scoring on {tasks}")
            report_on(folder)  # the runs have an answer even if scoring fails
            scored = score_sweep(folder, spec.downstream, requested, console)
            unscored = f"Not scored on {tasks}: the answer uses no run."
            show(*(() if as_json else (unscored,) if scored is None else score_table(scored)))
        answer = report_on(folder, formats=IMAGES if track else ())
    _show_answer(folder, answer, as_json)


BESIDE = "report.html in FOLDER"
"""What --html stands for without a file."""


class PageFile(click.Path):
    """A file for a page; a folder is refused, since it may be the argument that follows."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the file; raises InputError for a folder, and for a file in a folder that is missing."""
        file = Path(value)
        if file.is_dir():
            remedy = f"without a file, --html comes last: study report {pasted(file)} --html"
            raise InputError.at("--html", f"{file} is a folder, not a file; {remedy}")
        if not file.parent.is_dir():
            raise InputError.at("--html", f"{file.parent} is not a folder; create it first")
        return file


@click.command()
@results_option
@click.pass_context
def demo(context: click.Context, results: Path) -> None:
    """Run a small sweep to its answer, in one to two minutes.

    It trains about 11 small encoders on the docstrings of the installed packages; two idle CPU cores are enough, without GPU,
    account or files. Launch it again, and nothing is trained twice. It is the same as: study launch demo --no-wandb
    """
    context.invoke(launch, sweep=Path("demo"), results=results, track=False)
    echo("Next, your own question: study new")


@click.command()
@folder_argument
@click.option(
    "--include-unbracketed", is_flag=True, help="Also compare cells whose best learning rate is at an end of its range."
)
@figure_options
@click.option(
    "--html",
    "page",
    is_flag=False,
    flag_value=BESIDE,
    type=PageFile(),
    metavar="[FILE]",
    help="Also write the answer as one page to send, which needs no network.  [default file: FOLDER/report.html]",
)
@as_json
def report(
    folder: Path,
    include_unbracketed: bool,
    formats: list[Format],
    style: StyleName,
    page: Path | None,
    as_json: bool,
) -> None:
    """Rebuild the ledger, fits, figures and answer of a sweep.

    Reads only the records in FOLDER; needs no GPU, no account and no torch.
    """
    from study.report.answer import report as report_on

    sweep = sweep_folder(folder)
    if page is not None and str(page) == BESIDE:
        page = folder / "report.html"
    answer = report_on(sweep, include_unbracketed, formats, style, page)
    _show_answer(sweep, answer, as_json)
    if changed := _on_other_text(answer.evidence.sweep, answer.records):
        echo(f"{changed}; the answer is about the text that they read.", err=as_json)
    if page is not None and not as_json:
        echo(f"To send: {page}")


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
        raise InputError.at("study dashboard", f"needs {error.name}; pip install markdown-it-py starlette uvicorn") from None
    serve(folder, port, *([open_page] if opens else []), on_other_text=_on_other_text)


def _on_other_text(sweep: Sweep, records: Sequence[RunRecord]) -> str:
    """`Plan.on_other_text` of a sweep; empty where its text is unknown."""
    try:
        from study.data.prepared import files_fingerprints
        from study.planning.plan import Plan

        return Plan(sweep, records, files_fingerprints(sweep.texts)).on_other_text
    except (InputError, ModuleNotFoundError):
        return ""


def _show_answer(folder: SweepFolder, answer: Answer, as_json: bool) -> None:
    if as_json:
        echo(json.dumps(answer.to_dict(), indent=1))
    else:
        echo(f"\n{answer.headline}\n\nThe answer: {folder.answer_file}\nIts figures: {folder.figures}")


def _check_sections(sections: Mapping[str, Any]) -> None:
    """Raise InputError where the files that valid sections name cannot be used."""
    from study.data.prepared import check_files
    from study.scoring.targets import load_tasks

    data, downstream = sections.get("data"), sections.get("downstream")
    check_all(
        lambda: None if data is None else check_files(data), lambda: None if downstream is None else load_tasks(downstream)
    )


def _check_tasks(spec: Sweep) -> None:
    if spec.downstream is not None:
        from study.planning.plan import Plan
        from study.scoring.targets import check_tasks

        check_tasks(spec.downstream, lambda: Plan(spec).first_runs)
