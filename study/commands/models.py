"""The commands about models; nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from study.base.errors import InputError
from study.base.machine import rest_at_barriers
from study.base.text import echo
from study.commands.options import (
    CountRange,
    FiniteRange,
    as_json,
    completing,
    figure_options,
    output_folder,
    results_option,
    threads_option,
)
from study.config.presets import PRESETS, PresetName

if TYPE_CHECKING:
    from study.counting.latency import LatencyModel
    from study.counting.memory import Precision
    from study.plotting.style import Format, StyleName
    from study.shapes.accounts import Conditions

CONVENTIONS = ("parameters", "parameters_encoder", "parameters_non_embedding")

size = CountRange(max=10_000_000)
"""A size given as an option; small values are checked with the shape, far too large ones here."""

batch_option = click.option("--batch", type=CountRange(1), default=32, show_default=True, help="Sequences, for the memory.")
precision_option = click.option("--precision", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True)
inference_precision_option = click.option(
    "--precision", type=click.Choice(["fp32", "bf16", "int8"]), default="fp32", show_default=True, help="int8 is for inference."
)
length_option = click.option(
    "--sequence-length",
    type=CountRange(),
    help="Tokens per sequence, for the FLOPs.  [default: 128, or the positions if they are fewer]",
)


@click.command()
@click.argument("name", required=False, shell_complete=completing("models", "runs", paths=True))
@click.option("--depth", type=size, help="Layers L.")
@click.option("--width", type=size, help="Hidden size H.")
@click.option("--heads", type=size, help="Attention heads A.  [default: width/64]")
@click.option("--ffn", type=size, help="Inner size F.  [default: 4·width]")
@click.option("--vocabulary", type=size, help="Word pieces V.  [default: 30522]")
@click.option("--positions", type=size, help="Learned positions.  [default: 512]")
@click.option("--preset", type=click.Choice([*PRESETS]), help="Architecture of a preset, at 15% masks.  [default: bert]")
@length_option
@batch_option
@precision_option
@click.option("--explain", is_flag=True, help="Add the numbers that others report, and why they differ.")
@results_option
@as_json
def params(
    name: str | None,
    sequence_length: int | None,
    batch: int,
    precision: Precision,
    explain: bool,
    preset: PresetName | None,
    results: Path,
    as_json: bool,
    **sizes: int | None,
) -> None:
    """Count the parameters, FLOPs and memory of a model.

    Nothing is built. NAME is a model of the literature (bert-base, microsoft/deberta-v3-base), a config.yaml, a run's folder or
    a run's id. Without NAME the sizes define the shape; with it they change it.
    """
    from study.counting.architecture import changed
    from study.counting.named_models import architecture_of
    from study.shapes.accounts import Conditions, account, default_length, explanations, resolve_architecture

    changes = dict(PRESETS[preset or "bert"].get("architecture", {}))
    changes |= {key: value for key, value in sizes.items() if value is not None}
    requested = resolve_architecture(name, results) if name is not None else None
    architecture = changed(requested.architecture, changes, requested.title) if requested else architecture_of(None, changes)
    title = requested.title if requested and not changes else architecture.shape_name
    published = requested.published if requested and not changes else None
    others = explanations(architecture, published, of_name=bool(requested and not changes)) if explain else ()
    conditions = Conditions(default_length(sequence_length, [architecture]), batch, precision)
    counted = account(architecture, conditions, title, others)
    echo(json.dumps(counted.to_dict(), indent=1) if as_json else counted.to_text())


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=completing("models", "runs", paths=True))
@click.option("--change", "changes", multiple=True, metavar="FIELD=VALUE", help="A change of the one NAME to rank; repeatable.")
@click.option(
    "--by",
    type=click.Choice(["parameters", "train_flops", "memory_bytes", "latency_seconds"]),
    help="What changes are ranked by.  [default: parameters]",
)
@click.option(
    "--latency-table", type=click.Path(path_type=Path), help="Measured by study latency; adds the latency of changes."
)
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
    """Put models side by side, or rank single changes of one.

    Changes are ranked by what they add.

    \b
    study compare bert-base roberta-base
    study compare bert-base --change depth=24 --change width=1024

    A wider model keeps its ffn, and its heads where they divide the width; width=1024,ffn=4096 is one change of both, and is
    shown beside width=1024 where the ffn was 4·H.
    """  # noqa: D301
    from study.shapes.accounts import Conditions, default_length, resolve_architecture
    from study.shapes.comparing import (
        changes_as_text,
        changes_to_dict,
        measures,
        models_as_text,
        models_to_dict,
        parse_changes,
        rank_changes,
        tabulate_models,
        with_berts_ffn,
    )

    subjects = [resolve_architecture(name, results) for name in names]
    if changes and len(subjects) > 1:
        raise InputError.at("--change", f"needs one NAME to change, not {len(subjects)}")
    steps = with_berts_ffn(subjects[0].architecture, parse_changes(subjects[0].architecture, changes))
    models = [*(subject.architecture for subject in subjects), *(step.architecture for step in steps)]
    length = default_length(sequence_length, models)
    if not changes:
        for option, value in (("--by", by), ("--latency-table", latency_table)):
            if value is not None:
                raise InputError.at(option, "ranks changes; give --change FIELD=VALUE too")
        rows = tabulate_models(subjects, length)
        plain, text = models_to_dict(subjects, rows, length), models_as_text(subjects, rows, length)
    else:
        if by == "latency_seconds" and latency_table is None:
            raise InputError.at("--by", "latency_seconds needs a --latency-table, which `study latency` measures")
        by = by or "parameters"
        base, conditions = subjects[0], Conditions(length, batch, precision)
        measured = measures(conditions, _latency_model(latency_table, conditions))
        ranked = rank_changes(base.architecture, steps, measured, by)
        plain, text = changes_to_dict(base, ranked, by, conditions), changes_as_text(base, ranked, by, conditions)
    echo(json.dumps(plain, indent=1) if as_json else text)


@click.command()
@click.option("--into", type=output_folder, default=Path("figures"), show_default=True)
@figure_options
@as_json
def figures(into: Path, formats: list[Format], style: StyleName, as_json: bool) -> None:
    """Draw where parameters are, and what each size adds.

    They are of the named models and need counting alone.
    """
    from study.counting.named_models import catalogue, named
    from study.plotting import model_figures
    from study.plotting.style import drawn_as, save_in

    base, shares = named("bert-base"), model_figures.shares_frame(model_figures.shown(catalogue()))
    grown = model_figures.elasticities_frame(base)
    with drawn_as(style):
        written = [
            *save_in(model_figures.draw_shares(shares), into, "where_parameters_are", formats, shares),
            *save_in(model_figures.draw_elasticities(grown, base), into, "elasticities", formats, grown),
        ]
    echo(json.dumps([str(path) for path in written]) if as_json else "\n".join(map(str, written)))


kind_option = click.option(
    "--kind",
    default="bert",
    show_default=True,
    shell_complete=completing("models"),
    help="What the shapes are like but for their sizes: a preset, or a named model, such as modern or albert-base.",
)
"""The kind of encoder whose shapes are asked for."""


@click.command()
@click.option("--parameters", help="Number of parameters by --convention, such as 10M.")
@click.option("--convention", type=click.Choice(CONVENTIONS), default="parameters_non_embedding", show_default=True)
@click.option("--train-flops", help="Training FLOPs per token (train_flops), such as 60M.")
@click.option("--memory", help="Peak memory, such as 200MB, of --memory-of.")
@click.option("--memory-of", type=click.Choice(["inference", "training"]), default="inference", show_default=True)
@click.option("--size", help="Bytes of the encoder's weights, such as 25MB, at --precision.")
@click.option("--latency", "latency", help="Time of a forward pass, such as 10ms, by a --latency-table.")
@click.option("--score", type=FiniteRange(), help="The least score that --score-law must predict.")
@click.option("--under", is_flag=True, help="The widest shape at each depth below the amount; implied by several amounts.")
@click.option("--tolerance", type=FiniteRange(0, 1, max_open=True), default=0.02, show_default=True, help="Relative tolerance.")
@click.option("--batch", type=CountRange(1), default=1, show_default=True, help="Sequences, for memory and latency.")
@click.option("--sequence-length", type=CountRange(1), default=128, show_default=True, help="Tokens per sequence.")
@inference_precision_option
@click.option(
    "--latency-table", type=click.Path(path_type=Path), help="Of study latency.  [default: results/latency, or the shipped one]"
)
@click.option("--latency-statistic", type=click.Choice(["median", "p95", "fastest"]), default="median", show_default=True)
@click.option("--threads", type=CountRange(1), help="Threads of the latency table.  [default: the only ones]")
@click.option("--law", type=click.Path(path_type=Path), help="JSON of a fitted law; sorts by predicted loss.")
@click.option("--score-law", type=click.Path(path_type=Path), help="JSON of study score-law; sorts by predicted score.")
@click.option("--law-convention", type=click.Choice(CONVENTIONS), help="What the law's N counts, if its file does not say.")
@click.option("--tokens", help="Training tokens, such as 1B, for a law that needs them.")
@click.option("--depth", default="1:24", show_default=True, help="Depths to consider.")
@click.option("--width", default="64:2048", show_default=True, help="Widths to consider.")
@click.option("--width-multiple", type=CountRange(1), default=64, show_default=True)
@click.option(
    "--head-width",
    type=CountRange(1),
    help="Widths are multiples of it.  [default: what is nearest to that of --kind, BERT's 64]",
)
@click.option("--ffn-ratio", type=FiniteRange(0.001, 1000), help="F over H.  [default: that of --kind, BERT's 4]")
@kind_option
@click.option("--vocabulary", type=CountRange(1), default=30522, show_default=True, help="Word pieces V.")
@click.option("--positions", type=CountRange(1), default=512, show_default=True, help="Learned positions.")
@click.option("--embedding-width", type=CountRange(1), help="Width of the tables, as in ALBERT.  [default: that of --kind]")
@as_json
def shapes(as_json: bool, **options: Any) -> None:
    """Find shapes by size, cost or score.

    Shapes either meet one amount, or stay under several at once. Only a law ranks them; without one their order says
    nothing.
    """
    from study.shapes.right_sizing import ShapeQuery

    solved = ShapeQuery(**options).answer()
    if as_json:
        echo(json.dumps(solved.to_dict(), indent=1))
    else:
        echo(solved.to_text())


@click.command()
@click.option("--models", default="", shell_complete=completing("models"), help="Named models, such as bert-tiny,bert-mini.")
@click.option("--shapes", default="", help="Shapes as DEPTHxWIDTH, such as 2x128,4x256.")
@click.option("--batch", default="1,32", show_default=True, help="Sequences per call.")
@click.option("--sequence-length", default="128,512", show_default=True, help="Tokens per sequence.")
@click.option("--vocabulary", type=CountRange(1), default=30522, show_default=True, help="Word pieces V of --shapes.")
@click.option("--positions", type=CountRange(1), default=512, show_default=True, help="Learned positions of --shapes.")
@kind_option
@threads_option
@click.option(
    "--precision", default="fp32", show_default=True, help="fp32, bf16 or int8, or several, such as fp32,int8, timed in turn."
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--seconds", type=FiniteRange(0, min_open=True), default=10.0, show_default=True, help="Approximate time per case."
)
@click.option("--into", type=output_folder, default=Path("results/latency"), show_default=True)
@as_json
def latency(into: Path, as_json: bool, **options: Any) -> None:
    """Time the forward pass of encoders on this machine.

    The times go into the table that `study shapes` and the plots read: those of a batch size and length once all encoders have
    had them, so that one stopped halfway keeps what it finished. Expect --seconds for each case, more for large ones.
    """
    rest_at_barriers()
    from rich.console import Console
    from rich.progress import Progress, TimeRemainingColumn

    from study.base.terminal import say, show
    from study.benching.forward_passes import LatencyOptions, disturbance, latency_summary, measure_into
    from study.plotting import model_figures

    with Progress(
        *Progress.get_default_columns()[:-1], TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as progress:

        def begin(name: str) -> Callable[[float], None]:
            say(progress.console, name)
            task = progress.add_task("timing", total=1.0)
            return lambda share: progress.update(task, completed=share, visible=share < 1)

        rows, path = measure_into(into, LatencyOptions(**options), begin)
    model_figures.write_latency(path)
    if as_json:
        echo(json.dumps({"table": str(path), "rows": rows.to_dict("records")}, indent=1))
    else:
        show(latency_summary(rows), f"The table: {path}", *filter(None, [disturbance(rows)]))


def _latency_model(table: Path | None, conditions: Conditions) -> LatencyModel | None:
    if table is None:
        return None
    from study.counting.latency import fit_latency, read_table

    return fit_latency(read_table(table), conditions.precision, setting=(conditions.batch, conditions.sequence_length))
