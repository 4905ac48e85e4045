"""What a page shows of a figure's point under the pointer; files of figures are without it."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from study.base.quantities import compact, compact_flops, error_text
from study.base.text import visible
from study.plotting.style import MANY, worded

_WORDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "line": ("", str),
    "label": ("", str),
    "row": ("", str),
    "pair": ("", str),
    "split": ("on", str),
    "source": ("", str),
    "budget": ("budget", str),
    "panel": ("", str),
    "depth": ("depth", str),
    "width": ("width", str),
    "parameters": ("parameters", compact),
    "parameters_encoder": ("parameters_encoder", compact),
    "parameters_non_embedding": ("parameters_non_embedding", compact),
    "train_flops": ("train_flops", compact_flops),
    "tokens": ("tokens", compact),
    "learning_rate": ("learning rate", "{:.4g}".format),
    "loss_nats": ("loss", "{:.4f}".format),
    "half_nats": ("95% interval", lambda half: f"± {error_text(half)}"),
    "lowest_nats": ("lowest seed", "{:.4f}".format),
    "highest_nats": ("highest seed", "{:.4f}".format),
    "estimate_nats": ("difference", "{:+.4f}".format),
    "low_nats": ("95% interval from", "{:.4f}".format),
    "high_nats": ("to", "{:.4f}".format),
    "loss": ("loss", "{:.4f}".format),
    "measured": ("measured", "{:.4f}".format),
    "law": ("law", "{:.4f}".format),
    "predicted": ("predicted", "{:.4f}".format),
    "low": ("95% interval from", "{:.4f}".format),
    "high": ("to", "{:.4f}".format),
    "residual": ("residual", "{:+.4f}".format),
    "score": ("score", "{:.3f}".format),
    "half": ("95% interval", lambda half: f"± {error_text(half, 3)}"),
    "random": ("untrained", "{:.3f}".format),
    "n_seeds": ("seeds", str),
    "seeds": ("seeds", str),
    "status": ("", str),
    "runs": ("runs", str),
    "run_ids": ("ids", str),
    "run_id": ("run", str),
}
"""The columns of frames that are shown, in order, with their labels and formats."""

_WITH_UNIT = frozenset({"loss_nats", "half_nats", "lowest_nats", "highest_nats", "estimate_nats"})
"""Those followed by the row's `unit`, nats if it has none."""

_NOISE = ("<!--.*?-->", r'(?<=<style type="text/css">)\*\{.*?\}', r"(?<=>)\s+")
"""What a page has no use for: comments repeat the text that paths draw, and a style of everything is that of the page, too."""

_SPOT = 6.0
"""The radius of a point for the pointer, in points of type."""


@dataclass(frozen=True)
class _Spot:
    """A point of a figure by its data, its words, and the line that it belongs to."""

    x: float
    y: float
    words: str
    line: str


_SPOTS: WeakKeyDictionary[Axes, list[_Spot]] = WeakKeyDictionary()


def explain(axes: Axes, rows: pd.DataFrame, x: str, y: str) -> None:
    """Tell the known columns of these rows at the points that two columns place; at most MANY rows, spread evenly."""
    step = -(-len(rows) // MANY)
    shown = rows[rows[x].notna() & rows[y].notna()].iloc[:: step or 1]
    _SPOTS.setdefault(axes, []).extend(
        _Spot(float(row[x]), float(row[y]), _words(row), str(row.get("line", ""))) for row in shown.to_dict("records")
    )


def _words(row: Mapping[Hashable, Any]) -> str:
    known = {column: row[column] for column in _WORDS if column in row and pd.notna(row[column]) and row[column] != ""}
    for size in ("depth", "width"):
        if f"{size} {known.get(size)}" in str(known.get("line", "")):
            del known[size]
    words = {name: worded(value) if isinstance(value, str) else _WORDS[name][1](value) for name, value in known.items()}
    words |= {name: f"{words[name]} {row.get('unit', 'nats')}" for name in words if name in _WITH_UNIT}
    return "\n".join(" ".join(filter(None, (_WORDS[name][0], words[name]))) for name in words)


def inline_svg(figure: Figure, svg: str, name: str, drawn: str) -> str:
    """Return a saved figure as an element of a page: its drawing, with ids that begin with `name`, and words at its points.

    `drawn` says what it draws to who does not see it. Colours become CSS variables, `--ink`, `--paper`, and `--rrggbb`.
    """
    drawing = svg[svg.index("<svg") :]
    for noise in _NOISE:
        drawing = re.sub(noise, "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", drawing)
    drawing = re.sub("#([0-9a-f]{6})", r"var(--\1)", drawing)
    head = f'<svg role="img" aria-label="{html.escape(drawn)}"'
    return f"{head}{drawing.removeprefix('<svg').rpartition('</svg>')[0]}{_spots(figure)}</svg>"


def _spots(figure: Figure) -> str:
    points = 72 / figure.dpi
    parts = []
    for axes in figure.axes:
        for spot in _SPOTS.get(axes, ()):
            across, up = axes.transData.transform((spot.x, spot.y)) * points
            if axes.bbox.contains(across / points, up / points):
                down = figure.get_figheight() * 72 - up
                where = f'cx="{across:.1f}" cy="{down:.1f}" r="{_SPOT:g}" data-line="{html.escape(spot.line)}"'
                parts.append(f'<circle class="spot" {where}><title>{html.escape(visible(spot.words))}</title></circle>')
    return "".join(parts)
