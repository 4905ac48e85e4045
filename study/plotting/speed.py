"""The figures of `study bench`: training speed beside the peers, and loss against seconds of training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.base.quantities import count_text
from study.evidence.ledgers import LOSS
from study.plotting.style import legend_below, panels, save_in, series_styles, theme, title_above, wide_figure

PEERS = {
    "loop": "BertForMaskedLM, plain loop",
    "trainer": "transformers.Trainer",
    "trainer_compiled": "transformers.Trainer, compiled",
}
SHARES = {"share_of_matmul_rate": "of plain matrix products", "mfu": "of the datasheet's dense rate"}


def speed_frame(rows: list[dict[str, object]]) -> pd.DataFrame:
    """One row per bar: the case, the kind (`times faster` or `share`), its series and value."""
    bars = []
    for row in rows:
        speed = row["ours_tokens_per_second"]
        if not isinstance(speed, float):
            continue
        name = row["model"] or f"{row['shape']}, {row['vocabulary']:,} pieces"
        case = f"{name}, {row['batch']}·{row['sequence_length']}, {row['dtype']}: {count_text(speed)} tokens/s"
        versus = row["versus"]
        assert isinstance(versus, dict)
        bars += [{"case": case, "kind": "times faster", "series": PEERS[name], "value": versus[name]} for name in versus]
        bars += [{"case": case, "kind": "share", "series": SHARES[key], "value": row[key]} for key in SHARES if row[key]]
    return pd.DataFrame(bars, columns=["case", "kind", "series", "value"])


def draw_speed(data: pd.DataFrame, title: str) -> Figure:
    """Return the ratio to the peers' tokens/s, and the share of the hardware's rate in use."""
    with theme():
        cases = list(data["case"].unique())
        figure = wide_figure(1.3 + 0.46 * max(3, len(cases)))
        left, right = figure.subplots(1, 2, sharey=True)
        faster = data[data["kind"] == "times faster"]
        _bars(left, faster, cases, "tokens/s of our training over the peer's", "{:.1f}x")
        left.axvline(1, color="black", linewidth=1)
        beside = left.get_yaxis_transform()
        for row, case in enumerate(cases):
            if case not in faster["case"].array:
                left.text(0.04, row, "no peer", transform=beside, va="center", fontsize="x-small", color="gray")
        _bars(right, data[data["kind"] == "share"], cases, "rate of the products that run, as a share", "{:.0%}")
        right.set_xlim(0, max(1.0, right.get_xlim()[1]))
        title_above(figure, title)
    return figure


def _bars(axes: Axes, data: pd.DataFrame, cases: list[str], label: str, form: str) -> None:
    sns.barplot(data, x="value", y="case", order=cases, hue="series", orient="h", ax=axes, legend=not data.empty)
    for container in axes.containers:
        axes.bar_label(container, fmt=form.format, padding=3, fontsize="x-small")  # type: ignore[arg-type]
    axes.set_xlabel(label)
    axes.set_ylabel("")
    axes.margins(x=0.12)
    if not data.empty:
        sns.move_legend(axes, "lower left", bbox_to_anchor=(0, 1), ncols=1, title=None)


THEIRS = "transformers' run_mlm"
COLUMNS = ["case", "series", "seed", "seconds", "loss"]


def curves_frame(rows: list[dict[str, object]]) -> pd.DataFrame:
    """One row per validation: the case, series, seed, seconds of training before it, and loss.

    Rows of one race share run_mlm's training, whose seconds each has measured again; the first row's are shown.
    """
    curves: dict[tuple[object, ...], list[list[float]]] = {}
    for row in rows:
        if row["error"] is not None:
            continue
        dtypes = dict.fromkeys((row.get("their_dtype", row["dtype"]), row["dtype"]))  # older rows have one
        case = f"{row['shape']}, {row['vocabulary']:,} pieces, {' against '.join(map(str, dtypes))}"
        for series, name in ((THEIRS, "their_curve"), (f"ours, {row['variant']}", "our_curve")):
            curve = row[name]
            assert isinstance(curve, list)
            curves.setdefault((case, series, row["seed"]), curve)
    points = [(*training, seconds, loss) for training, curve in curves.items() for seconds, _, loss in curve]
    return pd.DataFrame(points, columns=COLUMNS)


def draw_curves(data: pd.DataFrame, title: str) -> Figure:
    """One panel per case; one line per training, coloured by series."""
    with theme():
        cases = list(data["case"].unique())
        figure, axes_of_cases = panels(cases, "seconds of training", LOSS, height=3.0)
        styles = series_styles(list(data["series"].unique()))
        for axes, case in zip(axes_of_cases, cases, strict=True):
            for (series, _), curve in data[data["case"] == case].groupby(["series", "seed"], sort=False):
                axes.plot(curve["seconds"], curve["loss"], color=styles[str(series)][0], marker=".")
            axes.set_xscale("log")
        legend_below(figure, [Line2D([], [], color=colour, marker=".", label=name) for name, (colour, _) in styles.items()])
        title_above(figure, title)
    return figure


def draw_files(results: Path) -> list[Path]:
    """Draw what results of `study bench` hold beside them: training speed, and the race as `<hardware>-time-to-loss`."""
    sections = (
        ("train", "Training speed", "", speed_frame, draw_speed),
        ("time-to-loss", "Loss against training time", "-time-to-loss", curves_frame, draw_curves),
    )
    written = []
    for name, title, suffix, frame, draw in sections:
        rows, where = _section(results, name)
        if not (data := frame(rows)).empty:
            written += save_in(draw(data, f"{title} on {where}"), results.parent, f"{results.stem}{suffix}")
    return written


def _section(results: Path, name: str) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of a section, empty if missing, and the hardware."""
    section = json.loads(results.read_bytes())["sections"].get(name)
    if section is None:
        return [], ""
    environment = section["environment"]
    device = environment["device"]
    return section["rows"], device if device != "cpu" else f"{environment['processor']}, {environment['threads']} threads"
