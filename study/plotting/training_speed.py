"""Training speed against the usual peer and the hardware's limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from study.base.quantities import count_text
from study.plotting.style import save_in, theme, title_above, wide_figure

PEERS = {
    "loop": "BertForMaskedLM, plain loop",
    "trainer": "transformers.Trainer",
    "trainer_compiled": "transformers.Trainer, compiled",
}
SHARES = {"share_of_matmul_rate": "of plain matrix products", "mfu": "of the datasheet's dense rate"}


def frame(rows: list[dict[str, object]]) -> pd.DataFrame:
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


def draw(data: pd.DataFrame, title: str) -> Figure:
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


def draw_file(results: Path) -> list[Path]:
    """Draw the training section of `study bench` results, if any, beside them."""
    rows, where = read_section(results, "train")
    data = frame(rows)
    if data.empty:
        return []
    return save_in(draw(data, f"Training speed on {where}"), results.parent, results.stem)


def read_section(results: Path, name: str) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of a section, empty if missing, and the hardware."""
    section = json.loads(results.read_bytes())["sections"].get(name)
    if section is None:
        return [], ""
    environment = section["environment"]
    device = environment["device"]
    return section["rows"], device if device != "cpu" else f"{environment['processor']}, {environment['threads']} threads"
