"""The commands about downstream tasks and trained encoders."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from study.base.durable_files import is_there
from study.base.errors import InputError, Problem, map_all, option_name
from study.base.machine import rest_at_barriers
from study.base.text import echo
from study.commands.options import (
    PLACES,
    CountRange,
    FiniteRange,
    as_json,
    completing,
    device_option,
    output_folder,
    place_options,
    results_option,
    threads_option,
)

if TYPE_CHECKING:
    from study.config.score_config import Downstream

precision_option = click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16", "auto"]),
    help="Precision of products.  [default: auto, bf16 where the device supports it]",
)

max_length_option = click.option(
    "--max-length",
    type=CountRange(8),
    help="Tokens per input.  [default: the sequence length of pre-training; of an imported encoder, its positions]",
)


@click.command()
@as_json
def tasks(as_json: bool) -> None:
    """List the downstream tasks that are known by name.

    Any other task is a .yaml file of its own.
    """
    from study.base.terminal import listing
    from study.tasks.task_spec import known_tasks, read_spec

    specs = [read_spec(name)[0] for name in known_tasks()]
    rows = [{"task": spec.name, "kind": spec.kind, "metrics": list(spec.metrics), "about": spec.about} for spec in specs]
    text = listing((f"{spec.name}: {spec.kind}, {', '.join(spec.metrics)}", spec.about or "") for spec in specs)
    echo(json.dumps(rows, indent=1) if as_json else text)


@click.command()
@click.argument(
    "folder",
    metavar="RUN_OR_SWEEP",
    type=click.Path(path_type=Path),
    shell_complete=completing("sweep_folders", paths=True),
)
@click.option(
    "--tasks",
    required=True,
    shell_complete=completing("tasks"),
    help="Names of tasks or their .yaml files, such as cola,sst2.",
)
@click.option("--data", help="Folder of the tasks' files.  [default: the hub, or what a task's YAML says]")
@click.option("--update", type=click.Choice(["all", "head"]), default="all", show_default=True, help="Which weights learn.")
@click.option("--seeds", type=CountRange(1, 100), default=3, show_default=True)
@click.option("--learning-rates", help="Tried at a third of the seeds; the best on dev is repeated.  [default: 5e-5,1e-4,3e-4]")
@click.option("--batch", "batch_examples", help="Examples per step, one or several to tune.  [default: 32]")
@click.option("--epochs", help="Passes over train, one or several to tune.  [default: 3]")
@max_length_option
@click.option("--max-train-examples", type=CountRange(), help="The most training examples to use.")
@click.option("--max-evaluation-examples", type=CountRange(), help="The most dev and test examples to use.")
@click.option("--teacher", help="Folder of a run that is fine-tuned first and labels the task's unlabelled text.")
@click.option("--taught-epochs", type=CountRange(), help="Passes over what the teacher labelled.  [default: 3]")
@precision_option
@click.option("--random-weights/--no-random-weights", default=True, show_default=True, help="Also score untrained weights.")
@place_options
@as_json
def score(folder: Path, as_json: bool, **requested: Any) -> None:
    """Score runs on downstream tasks.

    Of a sweep, the runs that its answer uses are scored: each cell's best knobs at every seed. Existing scores are kept; Ctrl-C
    lets the running ones save, and the same command resumes them. On Slurm and Ray, further resources are those of the sweep's
    own runs.
    """
    from rich.console import Console

    from study.base.terminal import say, show
    from study.base.text import pasted, tolerate_lost
    from study.config.resources import Resources
    from study.running.score_launch import score_runs
    from study.scoring.score_table import score_table, score_values
    from study.scoring.targets import target

    flags = {name: requested.pop(name) for name in PLACES}
    with tolerate_lost("stdout", "stderr"), _named_as_options("downstream"):
        Resources().overridden(**flags)  # a mistake on the command line is reported before the folder is read
        downstream, scored_runs = _downstream(requested), target(folder)
        resources, console = scored_runs.resources.overridden(**flags), Console(stderr=as_json)
        for line in resources.executed_lines:
            say(console, line)
        scored = score_runs(scored_runs, downstream, resources, console)
    if as_json:
        echo(json.dumps(score_values(scored), indent=1))
    else:
        show(*score_table(scored))
        if is_there((sweep := scored.target.sweep).answer_file):
            echo(f"to write the answer of {sweep.name} with these scores: study report {pasted(sweep.path)}")


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path), shell_complete=completing("runs", paths=True))
@click.argument("texts", type=click.Path(path_type=Path))
@click.option(
    "--layer", "layers", type=int, multiple=True, default=(-1,), help="0 is the embeddings, -1 the last layer; may be repeated."
)
@click.option("--combine", type=click.Choice(["concat", "sum"]), default="concat", show_default=True, help="Several layers.")
@click.option("--pooling", type=click.Choice(["mean", "cls"]), default="mean", show_default=True)
@max_length_option
@precision_option
@click.option("--into", type=click.Path(path_type=Path), help=".npy or .parquet.  [default: TEXTS with .npy]")
@results_option
@device_option
def features(
    folder: Path,
    texts: Path,
    layers: tuple[int, ...],
    combine: Any,
    pooling: Any,
    max_length: int | None,
    precision: Any,
    into: Path | None,
    results: Path,
    device: Any,
) -> None:
    """Write the embedding of each line of TEXTS by a RUN.

    An empty line has the embedding of no text, so that rows and lines agree. RUN is the folder of a completed run, its id or
    the start of it. --layer -4 --layer -3 --layer -2 --layer -1 combines the last four layers.
    """
    rest_at_barriers()
    from study.base.quantities import plural
    from study.config.run_config import MOST_UNKNOWN
    from study.executing.slots import local_slots
    from study.scoring.features import embed, output_file, read_texts, write_embeddings
    from study.scoring.targets import single_run

    given: list[Callable[[], Any]] = [
        partial(read_texts, texts),
        partial(output_file, texts, into),
        lambda: single_run(_folder(folder, results)),
    ]
    lines, file, run = map_all(lambda read: read(), given)
    slot = local_slots(device, slots_per_device=1, devices_per_run=1)[0]
    execution = slot.execution(kernels="eager")
    with _named_as_options("downstream"):
        embeddings = embed(run, lines, layers, combine, pooling, precision or "auto", execution, max_length)
    write_embeddings(file, embeddings.values, lines)
    echo(f"{len(lines):,} embeddings of width {embeddings.values.shape[1]}: {file}")
    if empty := sum(not line.strip() for line in lines):
        echo(f"{plural(empty, 'line')} without text", err=True)
    if embeddings.cut:
        echo(f"{plural(embeddings.cut, 'text')} cut to {embeddings.most_tokens:,} tokens", err=True)
    if embeddings.lost_share > MOST_UNKNOWN:
        of_texts = f"{embeddings.lost_share:.0%} of the texts' characters"
        echo(f"{of_texts} are [UNK] or dropped by the run's tokeniser, and no embedding reads them", err=True)


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path), shell_complete=completing("runs", paths=True))
@click.option("--into", type=click.Path(path_type=Path), required=True, help="A new folder.")
@click.option("--push", metavar="REPOSITORY", help="Upload it to the Hugging Face hub, as OWNER/NAME; a new one is private.")
@results_option
def export(folder: Path, into: Path, push: str | None, results: Path) -> None:
    """Write the encoder of RUN as a folder for transformers.

    RUN is the folder of a completed run, its id or the start of it. Its tokeniser, its record and a model card are included.
    The class of transformers is one that computes the same: BERT, with rotary positions RoFormer; in pre-norm Megatron-BERT,
    with both ESM; with factorised embeddings or ReLU ELECTRA, with shared layers ALBERT; ModernBERT and MobileBERT. An encoder
    that none of them computes is refused, with the differences. A run of objective rtd becomes an ELECTRA: a folder
    discriminator, which --push uploads, and a folder generator.
    """
    from study.scoring.exporting import export as write
    from study.scoring.exporting import push as upload
    from study.scoring.targets import single_run

    written = write(single_run(_folder(folder, results)), into)
    for exported in written:
        for note in exported.notes:
            echo(note)
        opened = f"transformers.{exported.opened_at(repr(str(exported.folder)))}"
        echo(f"{exported.parameters:,} parameters: {exported.folder}; open it with {opened}, or {exported.other_classes}")
    if push is not None:
        echo(f"Pushed to {upload(written[0].folder, push)}; its README.md wants a licence")


@click.command("import-encoder")
@click.argument("source")
@click.option("--into", type=output_folder, required=True, help="Folder for its run, like that of a sweep.")
@click.option("--corpus", default="docstrings", show_default=True, help="Text to validate it on, as in a sweep file.")
@click.option("--text-column", default="text", show_default=True, help="The column of that text.")
@click.option("--sequence-length", type=CountRange(), default=128, show_default=True, help="Tokens per sequence of it.")
@click.option("--validation-sequences", type=CountRange(), default=1024, show_default=True, help="Sequences to validate it on.")
@precision_option
@device_option
@as_json
def import_encoder(source: str, into: Path, precision: Any, device: Any, as_json: bool, **text: Any) -> None:
    """Make an encoder trained elsewhere a completed run.

    It can be scored, lose layers and be learned from. SOURCE is a folder that transformers saved (config.json,
    model.safetensors, and tokenizer.json or vocab.txt) of a BERT, RoBERTa, XLM-R, DistilBERT, ALBERT, ELECTRA,
    DeBERTa, ModernBERT, NeoBERT, RoFormer, Megatron-BERT or ESM, or hub:NAME. Without its MLM head, such as an ELECTRA
    discriminator, it has no loss, but can be scored and be a start.

    \b
    study import-encoder hub:google-bert/bert-base-uncased --into results/bert
    """  # noqa: D301
    rest_at_barriers()
    from study.config.run_config import DataConfig
    from study.executing.slots import local_slots
    from study.store.sweep_folder import SweepFolder
    from study.training.importing import import_encoder as read
    from study.training.importing import to_text

    execution = local_slots(device, slots_per_device=1, devices_per_run=1)[0].execution(kernels="eager")
    with _named_as_options("data"):
        asked = DataConfig.parse(text, place="data")
        run = read(source, SweepFolder(into), asked, execution, precision or "auto", partial(echo, err=True))
    record = run.record()
    assert record is not None
    echo(record.model_dump_json(indent=1, exclude_none=True) if as_json else to_text(run, record))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="RUN", shell_complete=completing("runs", paths=True))
@click.option("--to", "methods", multiple=True, required=True, help="int8, bf16, prune=0.5, layers=6:spread or factor=64.")
@click.option(
    "--beside", "others", multiple=True, type=click.Path(path_type=Path), help="A smaller run to compare with, by folder or id."
)
@click.option("--into", type=output_folder, default=Path("results/compressed"), show_default=True, help="Folder for the runs.")
@click.option("--batch", type=CountRange(1), default=1, show_default=True, help="Sequences per timed call.")
@click.option("--seconds", type=FiniteRange(0, min_open=True), default=2.0, show_default=True, help="Timing of each encoder.")
@threads_option
@results_option
@as_json
def compress(
    folder: Path,
    methods: tuple[str, ...],
    others: tuple[Path, ...],
    into: Path,
    batch: int,
    seconds: float,
    threads: int | None,
    results: Path,
    as_json: bool,
) -> None:
    """Make a trained encoder smaller, and compare.

    Each --to makes a run of no steps from RUN, a run's folder or id, validates it on the same masks, times it, and puts it
    beside RUN. Methods joined by commas are applied together. `study score` and all else read the new runs like any other.

    \b
    study compress 1a2b3c4d --to int8 --to layers=2,prune=0.5,int8
    study compress 1a2b3c4d --to int8 --beside 5e6f7a8b

    int8 rounds weights and products (on a CPU), bf16 weights alone; prune leaves out FFN neurons; layers keeps the first N,
    or N:last or N:spread; factor narrows the token table, and the MLM head is fitted to it. Runs --beside are trained ones of
    the same text and masks: each --to is compared with the one nearest in bytes.
    """  # noqa: D301
    rest_at_barriers()
    from study.base.machine import cores
    from study.benching.compression_table import check_comparable, side_by_side
    from study.benching.forward_passes import Timing
    from study.scoring.targets import single_run
    from study.store.sweep_folder import SweepFolder
    from study.training.compressing import CompressionMethod
    from study.training.compressing import compress as compressed
    from study.training.execution import Execution

    asked = map_all(CompressionMethod.parse, methods)
    run, execution = single_run(_folder(folder, results)), Execution(threads=threads or cores(), kernels="eager")
    beside = [single_run(_folder(other, results)).folder for other in others]
    check_comparable(run.folder, beside)
    made = compressed(run.folder, run.prepared, asked, SweepFolder(into), execution)
    named = list(zip(methods, made, strict=True))
    table = side_by_side(run.folder, named, batch, Timing(threads=execution.threads, seconds=seconds), beside)
    echo(json.dumps(table.to_dict(), indent=1) if as_json else table.to_text())


def _folder(name: Path, results: Path) -> Path:
    """Return an existing folder, else that of the run with this id or prefix in `results`, or in a packed sweep by its path.

    Raises InputError without either.
    """
    from study.store.sweep_folder import SweepFolder, runs_of_id

    if is_there(name):
        return name
    packed = SweepFolder(name.parent.parent).runs(name.name) if name.parent.name == "runs" else []
    if runs := packed or runs_of_id(str(name), results):
        return runs[0].path
    raise InputError.at(str(name), f"is neither a folder nor the id of a run in {results}; `study status` lists runs")


def _downstream(requested: dict[str, Any]) -> Downstream:
    from study.base.quantities import listed
    from study.config.score_config import GRID, Downstream

    names = ("max_length", "max_train_examples", "max_evaluation_examples", "precision", "teacher", "taught_epochs")
    knobs = {name: value for name in names if (value := requested.pop(name)) is not None}
    lists = {name: listed(value) for name in GRID if (value := requested.pop(name))}
    values = {key: value for key, value in requested.items() if value is not None} | {"tasks": listed(requested["tasks"])}
    return Downstream.parse(values | lists | {"knobs": knobs}, place="downstream")


@contextmanager
def _named_as_options(section: Literal["data", "downstream"]) -> Iterator[None]:
    """Report problems of a section, which options fill, as problems of options."""
    try:
        yield
    except InputError as error:
        raise InputError(Problem(_option(problem.place, section), problem.message) for problem in error.problems) from None


def _option(place: str, section: str) -> str:
    inside = place.removeprefix(f"{section}.")
    if inside == place or inside.startswith("tokenizer"):
        return place
    name = inside.removeprefix("knobs.").partition("[")[0]
    return "--batch" if name == "batch_examples" else option_name(name)
