"""The command line: parses, calls one function each, and shows what it returns."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from study.bench_commands import BENCH_COMMANDS
from study.errors import InputError, told_together
from study.law_commands import LAW_COMMANDS
from study.options import as_json, results_option
from study.score_commands import SCORE_COMMANDS
from study.sweep_commands import SWEEP_COMMANDS, sweep_folder
from study.tracker_commands import TRACKER_COMMANDS

if TYPE_CHECKING:
    from study.folders import SweepFolder
    from study.latency.prediction import LatencyModel
    from study.memory import Precision
    from study.sweeping.spec import SweepSpec

INTERRUPTED_EXIT = 130
FOLDER_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
"""What a folder answers that cannot be written to or is full; any other error of the system is shown whole."""

CONVENTIONS = ("parameters", "parameters_encoder", "parameters_non_embedding")


def main() -> None:
    """Run the command line; bad input is told in full on standard error, with exit status 2."""
    try:
        commands(prog_name="study", standalone_mode=False)
    except InputError as error:
        for problem in error.problems:
            click.echo(f"error: {problem}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in FOLDER_ERRORS or error.filename is None:
            raise
        click.echo(f"error: {error.filename}: {error.strerror}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # who read this has enough; say nothing at exit either
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt) as stopped:
        told = (stopped.__cause__ or stopped).args  # click turns an interrupt into an Abort
        click.echo("; ".join(["stopped", *map(str, told)]), err=True)
        sys.exit(INTERRUPTED_EXIT)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="scaling-study", prog_name="study")
def commands() -> None:
    """Answer scaling questions about masked-language-model encoders with evidence.

    A sweep file asks one question. `study plan` says what it costs, `study launch` runs it and goes on where it was
    stopped, and `study report` redraws its figures and answer from the records.
    """


for command_elsewhere in (*SWEEP_COMMANDS, *LAW_COMMANDS, *SCORE_COMMANDS, *BENCH_COMMANDS, *TRACKER_COMMANDS):
    commands.add_command(command_elsewhere)


def resource_options(command: Any) -> Any:
    """The options that say where a sweep runs and on how much; each goes over the sweep file's `resources`."""
    for option in (
        click.option("--array", type=click.IntRange(1), help="Slurm jobs in the queue at most at a time.  [default: 64]"),
        click.option("--time", help="Time limit of each Slurm job, as in 30m or 4h; a run that reaches it goes on in another."),
        click.option("--partition", help="Partition of the Slurm jobs."),
        click.option("--nodes", type=click.IntRange(1), help="Slurm nodes of each run, which share its devices.  [default: 1]"),
        click.option("--devices", type=click.IntRange(1), help="Devices for each run (DDP).  [default: 1]"),
        click.option(
            "--slots-per-device",
            type=click.IntRange(1),
            help="Runs at a time on each device.  [default: 1 a GPU, one a core on a CPU]",
        ),
        click.option(
            "--kernels",
            type=click.Choice(["auto", "eager", "onednn", "compiled", "graphed"]),
            help="fp32 products of a CPU by oneDNN; fused by torch.compile, and one CUDA graph a step.  "
            "[default: auto, graphed on a GPU, onednn in fp32 on a CPU that is not Intel's]",
        ),
        click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Kind of device.  [default: auto]"),
        click.option(
            "--on",
            type=click.Choice(["local", "slurm", "ray"]),
            help="Where the runs execute; slurm and ray are extras.  [default: local]",
        ),
    ):
        command = option(command)
    return command


size = click.IntRange(max=10_000_000)
"""A size given on the command line; what is too small is told with the shape, what is far too large here."""

batch_option = click.option("--batch", type=click.IntRange(1), default=32, show_default=True, help="Sequences, for the memory.")
precision_option = click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True)
length_option = click.option(
    "--sequence-length", type=int, help="Tokens a sequence, for the FLOPs.  [default: 128, or the positions if they are fewer]"
)


@commands.command()
@click.argument("name", required=False)
@click.option("--depth", type=size, help="Layers L.")
@click.option("--width", type=size, help="Hidden size H.")
@click.option("--heads", type=size, help="Attention heads A.  [default: width/64]")
@click.option("--ffn", type=size, help="Inner size F.  [default: 4·width]")
@click.option("--vocabulary", type=size, help="Word pieces V.  [default: 30522]")
@click.option("--positions", type=size, help="Learned positions.  [default: 512]")
@length_option
@batch_option
@precision_option
@click.option("--explain", is_flag=True, help="Add the numbers that others give for this model, and why they differ.")
@results_option
@as_json
def params(
    name: str | None,
    sequence_length: int | None,
    batch: int,
    precision: Precision,
    explain: bool,
    results: Path,
    as_json: bool,
    **sizes: int | None,
) -> None:
    """Count the parameters, FLOPs and memory of a model without building it.

    NAME is a model of the literature (bert-base, microsoft/deberta-v3-base), a config.yaml, a run's folder or a run's id;
    without it the sizes make the shape, and with it they change it.
    """
    from study.accounts import account, explanations, length_of
    from study.named_models import architecture_of, changed
    from study.naming import subject

    given = {key: value for key, value in sizes.items() if value is not None}
    asked = subject(name, results) if name is not None else None
    architecture = changed(asked.architecture, given, asked.title) if asked else architecture_of(None, given)
    title = asked.title if asked and not given else architecture.shape_name
    published = asked.published if asked and not given else None
    others = explanations(architecture, published) if explain else ()
    length = length_of(sequence_length, [architecture])
    counted = account(architecture, length, batch, precision, title, others)
    click.echo(json.dumps(counted.to_dict(), indent=1) if as_json else counted.to_text())


@commands.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--change", "changes", multiple=True, metavar="FIELD=VALUE", help="A change of the one NAME to rank; repeat it.")
@click.option(
    "--by",
    type=click.Choice(["parameters", "train_flops", "memory_bytes", "latency_seconds"]),
    help="What changes are ranked by.  [default: parameters]",
)
@click.option("--latency-table", type=click.Path(path_type=Path), help="Measured by study latency; adds latency to changes.")
@length_option
@batch_option
@precision_option
@results_option
@as_json
def compare(
    names: tuple[str, ...],
    changes: tuple[str, ...],
    by: str | None,
    latency_table: Path | None,
    sequence_length: int | None,
    batch: int,
    precision: Precision,
    results: Path,
    as_json: bool,
) -> None:
    """Put models side by side, or rank single changes of one model by what they add.

    \b
    study compare bert-base roberta-base
    study compare bert-base --change depth=24 --change width=1024 --change vocabulary=60000

    A wider model keeps its ffn, and its heads where they divide the width; width=1024,ffn=4096 is one change of both.
    """  # noqa: D301
    from study.accounts import length_of
    from study.changes import changes_as_text, changes_to_dict, measures, rank_changes
    from study.comparing import rows_as_text, rows_to_dict, side_by_side
    from study.naming import subject

    subjects = [subject(name, results) for name in names]
    length = length_of(sequence_length, [each.architecture for each in subjects])
    if not changes:
        for option, value in (("--by", by), ("--latency-table", latency_table)):
            if value is not None:
                raise InputError.at(option, "is for ranking changes; give --change FIELD=VALUE too")
        rows = side_by_side(subjects, length)
        plain, text = rows_to_dict(subjects, rows), rows_as_text(subjects, rows)
    elif len(subjects) > 1:
        raise InputError.at("--change", f"needs one NAME to change, not {len(subjects)}")
    else:
        if by == "latency_seconds" and latency_table is None:
            raise InputError.at("--by", "latency_seconds needs a --latency-table, which `study latency` measures")
        by = by or "parameters"
        model = _latency_model(latency_table, precision, (batch, length))
        ranked = rank_changes(subjects[0], changes, measures(length, batch, precision, model), by)
        plain, text = changes_to_dict(subjects[0], ranked, by), changes_as_text(subjects[0], ranked, by)
    click.echo(json.dumps(plain, indent=1) if as_json else text)


@commands.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@as_json
def figures(folder: Path, as_json: bool) -> None:
    """Draw into FOLDER what counting alone shows: where the named models' parameters are, and their elasticities."""
    from study.named_models import catalogue, named
    from study.plotting import elasticities, where_parameters_are
    from study.plotting.style import save_in

    shares = where_parameters_are.frame(where_parameters_are.shown(catalogue()))
    base = named("bert-base")
    written = [
        *save_in(where_parameters_are.draw(shares), folder, "where_parameters_are"),
        *save_in(elasticities.draw(elasticities.frame(base), base), folder, "elasticities"),
    ]
    click.echo(json.dumps([str(path) for path in written]) if as_json else "\n".join(map(str, written)))


def _check_tasks(spec: SweepSpec) -> None:
    """Raise InputError with all that is wrong with the tasks of a sweep; where it has none, nothing heavy is imported."""
    if spec.downstream is not None:
        from study.scoring.launch import load_tasks

        load_tasks(spec.downstream)


@commands.command()
@click.argument("sweep", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]...")
@results_option
@resource_options
@as_json
def plan(sweep: Path, overrides: tuple[str, ...], results: Path, as_json: bool, **resources: Any) -> None:
    """Check a SWEEP file and print its bill: parameters, tokens, FLOPs and expected seconds, before anything is spent."""
    from study.sweeping.launch import plan as bill_of
    from study.sweeping.sweep_files import read_sweep
    from study.sweeping.tables import bill_summary, bill_table
    from study.terminal import show

    spec, _ = read_sweep(sweep, overrides)
    on = spec.resources.overridden(**resources)
    bill = told_together(lambda: bill_of(spec, results, on), lambda: _check_tasks(spec))
    if as_json:
        click.echo(json.dumps(bill.to_dict(), indent=1))
    else:
        show(bill_table(spec.question, bill), bill_summary(bill))


@commands.command()
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
    help="Give up a run that takes no step for so long.",
)
@as_json
def launch(
    sweep: Path, overrides: tuple[str, ...], results: Path, track: bool, hung_after: str, as_json: bool, **resources: Any
) -> None:
    """Run what a SWEEP file still needs, then write its ledger, figures and answer.

    Ctrl-C lets the running runs save; the same command goes on from there. Runs that are done are never trained again.
    """
    from rich.console import Console

    from study.ownership import HUNG_AFTER
    from study.quantities import read_seconds
    from study.sweeping.launch import folder_of, launched
    from study.sweeping.sweep_files import read_sweep
    from study.terminal import show

    spec, values = read_sweep(sweep, overrides)
    read_seconds("--hung-after", hung_after)
    os.environ[HUNG_AFTER] = hung_after
    console = Console(stderr=as_json)
    _check_tasks(spec)
    asked, folder = spec.resources.overridden(**resources), folder_of(spec, results)
    with launched(spec, values, results, asked, console, track) as unmirrored:
        if unmirrored:
            console.print(f"{unmirrored} runs are not in W&B yet: study sync {folder.path}", markup=False, soft_wrap=True)
        if spec.downstream is not None:
            from study.answering import report as write_report
            from study.scoring.report import score_launched

            write_report(folder)  # of what is trained there is an answer, whatever becomes of the scores
            table = score_launched(folder.path, spec.downstream, asked, console)
            show(*(() if as_json else table))
        _report(folder, as_json)


@commands.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--include-unbracketed", is_flag=True, help="Compare cells whose best learning rate is at an end of its range too."
)
@as_json
def report(folder: Path, include_unbracketed: bool, as_json: bool) -> None:
    """Rebuild ledger, fits, figures and answer from the records in FOLDER; needs no GPU, no account and no torch."""
    _report(sweep_folder(folder), as_json, include_unbracketed)


@commands.command()
@click.argument("folder", type=click.Path(path_type=Path))
@as_json
def sync(folder: Path, as_json: bool) -> None:
    """Replay the runs in FOLDER to W&B, each into one clean run; what is there already is left alone."""
    from rich.console import Console
    from rich.progress import Progress

    from study.sweeping.mirror import mirror_sweep

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("runs", total=None)
        outcome = mirror_sweep(
            sweep_folder(folder), progress=lambda done, total: progress.update(task, completed=done, total=total)
        )
    if as_json:
        click.echo(json.dumps(outcome.to_dict(), indent=1))
    else:
        counts = f"{outcome.mirrored} runs mirrored now, {outcome.already} there already, {len(outcome.failed)} failed"
        click.echo(f"{counts} (W&B is {outcome.mode})")
        for run_id, reason in outcome.failed.items():
            click.echo(f"{run_id}: {reason}", err=True)
    if outcome.failed:
        sys.exit(1)


@commands.command()
@click.option("--parameters", help="How many, as in 10M; counted by --convention.")
@click.option("--convention", type=click.Choice(CONVENTIONS), default="parameters_non_embedding", show_default=True)
@click.option("--train-flops", help="Training FLOPs per token (train_flops), as in 60M.")
@click.option("--memory", help="Memory at the peak, as in 200MB, of --memory-of.")
@click.option("--memory-of", type=click.Choice(["inference", "training"]), default="inference", show_default=True)
@click.option("--latency", "latency", help="Seconds of an encoder's forward pass, as in 10ms; needs --latency-table.")
@click.option("--under", is_flag=True, help="The widest shape at each depth under the amount; so where several are given.")
@click.option("--tolerance", type=click.FloatRange(0, 1, max_open=True), default=0.02, show_default=True, help="As a share.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Sequences, for memory and latency.")
@click.option("--sequence-length", type=click.IntRange(1), default=128, show_default=True, help="Tokens a sequence.")
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True)
@click.option("--latency-table", type=click.Path(path_type=Path), default=Path("results/latency"), show_default=True)
@click.option("--latency-statistic", type=click.Choice(["median", "p95", "fastest"]), default="median", show_default=True)
@click.option("--threads", type=click.IntRange(1), help="Which rows of the latency table.  [default: the only ones]")
@click.option("--law", type=click.Path(path_type=Path), help="JSON of a fitted law; the lowest predicted loss comes first.")
@click.option("--law-convention", type=click.Choice(CONVENTIONS), help="What the law's N counts, where its file does not say.")
@click.option("--tokens", help="Training tokens, as in 1B, for a law that needs them.")
@click.option("--depth", default="1:24", show_default=True, help="Depths to consider.")
@click.option("--width", default="64:2048", show_default=True, help="Widths to consider.")
@click.option("--width-multiple", type=click.IntRange(1), default=64, show_default=True)
@click.option("--head-width", type=click.IntRange(1), help="Widths are multiples of it.  [default: what is nearest to 64]")
@click.option("--ffn-ratio", type=click.FloatRange(0, min_open=True), default=4.0, show_default=True, help="F over H.")
@click.option("--vocabulary", type=click.IntRange(1), default=30522, show_default=True, help="Word pieces V.")
@click.option("--positions", type=click.IntRange(1), default=512, show_default=True, help="Learned positions.")
@as_json
def shapes(as_json: bool, **options: Any) -> None:
    """Find the shapes with so many parameters, FLOPs, bytes or seconds, or under several such budgets at once."""
    from study.right_sizing import right_size

    solved = right_size(**options)
    if as_json:
        click.echo(json.dumps(solved.to_dict(), indent=1))
    else:
        click.echo(solved.to_text())


@commands.command()
@click.option("--models", default="", help="Named models with commas between, as in bert-tiny,bert-mini.")
@click.option("--shapes", default="", help="Shapes as DEPTHxWIDTH with commas between, as in 2x128,4x256.")
@click.option("--batch", default="1,32", show_default=True, help="Sequences a call.")
@click.option("--sequence-length", default="128,512", show_default=True, help="Tokens a sequence.")
@click.option("--vocabulary", type=click.IntRange(1), default=30522, show_default=True, help="Word pieces V of --shapes.")
@click.option("--positions", type=click.IntRange(1), default=512, show_default=True, help="Learned positions of --shapes.")
@click.option("--threads", type=click.IntRange(1), help="CPU threads.  [default: all cores of this process]")
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True, help="About, a case.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/latency"), show_default=True)
@as_json
def latency(out: Path, as_json: bool, **options: Any) -> None:
    """Time the forward pass of encoders on this machine, and put it into the table that `study shapes` and the plots read."""
    from rich.console import Console
    from rich.progress import Progress, TimeRemainingColumn

    from study.plotting import parameters_against_latency
    from study.terminal import show
    from study.timing.command import disturbed, measure_into, table_of

    with Progress(
        *Progress.get_default_columns()[:-1], TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task("warming up", total=1.0)
        rows, path = measure_into(out, lambda share: progress.update(task, completed=share, description="timing"), **options)
    parameters_against_latency.write(path)
    if as_json:
        click.echo(json.dumps({"table": str(path), "rows": rows.to_dict("records")}, indent=1))
    else:
        show(table_of(rows), f"The table: {path}", *filter(None, [disturbed(rows)]))


def _latency_model(table: Path | None, precision: Precision, setting: tuple[int, int]) -> LatencyModel | None:
    """What predicts latency from a table of measured ones, None without a table."""
    if table is None:
        return None
    from study.latency.prediction import fit_latency
    from study.latency.table import read_table

    return fit_latency(read_table(table), precision, setting=setting)


def _report(folder: SweepFolder, as_json: bool, include_unbracketed: bool = False) -> None:
    from study.answering import report as report_on

    answer = report_on(folder, include_unbracketed)
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=1))
    else:
        click.echo(f"\n{answer.headline}\n\nThe answer: {folder.answer_file}\nIts figures: {folder.figures}")
