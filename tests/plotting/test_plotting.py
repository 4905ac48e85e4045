"""What the figures show, and that the same ledger gives the same bytes."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Literal
from unittest.mock import Mock
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from study.config.run_config import RunConfig
from study.evidence.evidence import Evidence, gather
from study.evidence.families import families_of
from study.evidence.ledgers import COUNTS, LEDGER_FLOPS, LEDGER_PARAMETERS, LOSS, LOSS_OF_DETECTING, LOSS_PER_BYTE
from study.plotting import (
    learning_rate,
    loss_by_shape,
    loss_curves,
    paired_differences,
    path_to_goal,
    what_doubling_adds,
)
from study.plotting.hover import inline_svg
from study.plotting.lines import line_styles, lines, of_cell
from study.plotting.loss_against_count import LossAgainstFlops, LossAgainstParameters
from study.plotting.loss_by_size import LossBySize
from study.plotting.style import (
    SIDE_BY_SIDE,
    STYLES,
    StyleName,
    drawable,
    drawn_as,
    log_locators,
    panels,
    save_in,
    shortened,
    theme,
    title_above,
)
from study.report.answer import report
from study.report.figures import FIGURES, FigureOfAnswer
from study.store.sweep_folder import ChosenRun, GoalLook
from tests.figures import title_of
from tests.synthetic import (
    SWEEP,
    UNIGRAM,
    Law,
    add_run,
    depth_or_width,
    goal_path,
    in_setting,
    reshaped,
    run_config,
    sweep_folder,
)

BY_DEPTH = LossBySize("depth")
AGAINST_FLOPS, AGAINST_PARAMETERS = LossAgainstFlops(), LossAgainstParameters()


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    folder = depth_or_width(tmp_path_factory.mktemp("results") / "depth_or_width")
    add_run(folder, run_config(4, 92, 1.6e-2), state="DIVERGED", reason="loss became NaN")
    add_run(folder, run_config(4, 64, 1.6e-2), state="DIVERGED")
    folder.write_ledger()
    return gather(folder)


def test_loss_by_depth_shows_every_chosen_run_with_its_interval(evidence: Evidence) -> None:
    data = BY_DEPTH.frame(evidence)
    assert len(data) == 24
    assert data.groupby(["panel", "line"]).ngroups == 4
    assert (data["low_nats"] < data["mean_nats"]).all()
    assert (data["mean_nats"] < data["high_nats"]).all()
    means = data.groupby(["panel", "line", "depth"])["loss_nats"].transform("mean")
    assert means.tolist() == pytest.approx(data["mean_nats"].tolist())


@pytest.mark.parametrize(
    ("shapes", "sizes", "lines"),
    [
        (((1, 128), (2, 128), (1, 64), (2, 64)), {"ffn": (256, 512)}, ["width 64, ffn {}", "width 128, ffn {}"]),
        (((1, 128), (2, 92)), {"heads": (2, 4)}, ["202.1k non-embedding parameters, heads {}"]),
    ],
    ids=["ffn", "heads"],
)
def test_loss_by_depth_has_a_line_for_each_ffn_or_number_of_heads(
    tmp_path: Path, shapes: tuple[tuple[int, int], ...], sizes: dict[str, tuple[int, int]], lines: list[str]
) -> None:
    folder = sweep_folder(tmp_path / "grid")
    ((size, values),) = sizes.items()
    for (depth, width), value in product(shapes, values):
        add_run(folder, reshaped(run_config(depth, width), **{size: value}))
    folder.write_ledger()
    evidence = gather(folder)
    data = BY_DEPTH.frame(evidence)
    assert sorted(data["line"].unique()) == sorted(line.format(value) for line, value in product(lines, values))
    assert set(data["cell"]) == {cell.name for cell in evidence.cells}
    lines_drawn = BY_DEPTH.draw(data).axes[0].get_lines()
    means = {loss for line in lines_drawn for loss in np.asarray(line.get_ydata(), dtype=float).tolist()}
    assert means >= {cell.loss_nats for cell in evidence.cells}


@pytest.mark.parametrize(
    ("size", "shapes", "lines", "places"),
    [
        ("heads", [(2, 64, 2, 256), (2, 64, 4, 256), (1, 64, 2, 256), (1, 64, 8, 256)], 2, {2, 4, 8}),
        ("heads", [(2, 64, 2, 256), (2, 92, 4, 368)], 0, set()),
        ("ffn", [(2, 64, 2, 64), (2, 64, 2, 256), (2, 64, 4, 64), (2, 64, 4, 256)], 2, {1, 4}),
        ("ffn", [(2, 128, 2, 512), (2, 176, 2, 176), (2, 128, 4, 512), (2, 176, 4, 176)], 2, {1, 4}),
        ("ffn", [(1, 64, 2, 256), (1, 64, 4, 256)], 0, set()),
        ("depth", [(1, 64, 2, 256), (2, 64, 2, 256), (1, 64, 4, 256), (2, 64, 4, 256)], 2, {1, 2}),
        ("depth", [(1, 128, 4, 512), (1, 128, 8, 512), (2, 92, 2, 368), (2, 92, 4, 368)], 2, {1, 2}),
        ("depth", [(1, 180, 2, 180), (1, 128, 2, 512), (2, 128, 2, 128), (2, 92, 2, 368)], 2, {1, 2}),
    ],
    ids=[
        "heads",
        "one number a shape",
        "FFN",
        "FFN against width",
        "one FFN",
        "depth beside heads",
        "heads follow the width",
        "FFN too",
    ],
)
def test_every_cell_stands_on_a_line_of_the_size_that_varies(
    tmp_path: Path,
    size: Literal["depth", "heads", "ffn"],
    shapes: list[tuple[int, int, int, int]],
    lines: int,
    places: set[int],
) -> None:
    folder = sweep_folder(tmp_path / "s")
    for depth, width, heads, ffn in shapes:
        add_run(folder, reshaped(run_config(depth, width), heads=heads, ffn=ffn))
    folder.write_ledger()
    evidence = gather(folder)
    data = LossBySize(size).frame(evidence)
    if not lines:
        assert data.empty
        return
    assert set(data["cell"]) == {cell.name for cell in evidence.cells}
    assert data["line"].nunique() == lines
    assert set(data["place"]) == places
    assert (data["label"].str.startswith("H")).all() == (data.groupby("line")["width"].nunique().min() > 1)
    drawn = [axis for axis in LossBySize(size).draw(data).axes[0].get_lines() if len(np.asarray(axis.get_xdata())) == 2]
    assert len(drawn) == lines


def test_a_shape_of_one_depth_is_a_point_beside_lines_of_its_panel_and_variant(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"vary": {"architecture.norm": ["post", "pre"]}})
    for depth, width, norm, tokens in [
        *[(1, 64, "post", 1e6), (2, 64, "post", 1e6), (1, 256, "post", 1e6)],
        *[(1, 64, "pre", 1e6), (1, 64, "post", 2e6)],
    ]:
        add_run(folder, in_setting(run_config(depth, width, tokens=tokens), norm=norm))
    folder.write_ledger()
    data = BY_DEPTH.frame(gather(folder))
    depths = data.groupby(["panel", "line"])["depth"].agg(list).to_dict()
    assert depths == {("1M tokens", "width 64, norm=post"): [1, 2], ("1M tokens", "width 256, norm=post"): [1]}
    figure = BY_DEPTH.draw(data)
    points = np.concatenate([np.asarray(drawn.get_offsets()) for drawn in figure.axes[0].collections])
    assert set(points[:, 1]) >= {*data["mean_nats"]}
    assert "at width 64 with norm=post" in " ".join(title_of(figure).split()), "a point has no spread"


def test_a_shape_of_one_number_of_heads_is_a_point_if_it_shares_all_sizes_but_one_with_a_line(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for depth, width, heads in ((2, 64, 2), (2, 64, 4), (1, 64, 2), (1, 128, 2)):
        add_run(folder, reshaped(run_config(depth, width), heads=heads))
    folder.write_ledger()
    data = LossBySize("heads").frame(gather(folder))
    assert set(data["line"]) == {"depth 2, width 64, ffn 256", "depth 1, width 64, ffn 256"}


def test_a_shape_whose_parameters_no_other_has_stands_on_no_line_of_equal_parameters(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for depth, width in ((1, 128), (2, 92), (1, 64)):
        add_run(folder, run_config(depth, width))
    folder.write_ledger()
    assert set(BY_DEPTH.frame(gather(folder))["width"]) == {128, 92}


def test_learning_rate_shows_excluded_runs_and_one_choice_a_cell(evidence: Evidence) -> None:
    data = learning_rate.frame(evidence)
    assert len(data) == 12 * 4 + 2
    assert data.groupby("cell")["chosen"].sum().tolist() == [1] * 12
    excluded = data[data["unlearned"] > 0]
    assert excluded["learning_rate"].tolist() == [1.6e-2, 1.6e-2]
    assert not excluded["chosen"].any()


def _labels(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_runs_that_learned_nothing_stand_above_every_loss(evidence: Evidence) -> None:
    data = learning_rate.frame(evidence)
    for axes in (figure := learning_rate.draw(data)).axes:
        (border,) = [line for line in axes.get_lines() if line.get_transform() == axes.get_yaxis_transform()]
        above = float(np.asarray(border.get_ydata(), dtype=float)[0])
        assert data["loss_nats"].max() < above < axes.get_ylim()[1]
        assert max(axes.get_yticks()) <= above
        crosses = [line for line in axes.get_lines() if line.get_marker() == "x"]
        to_data = axes.get_xaxis_transform() + axes.transData.inverted()
        heights = [float(to_data.transform(cross.get_xydata())[0][1]) for cross in crosses]
        assert all(above < height < axes.get_ylim()[1] for height in heights)
    assert "diverged" in _labels(figure)


@pytest.mark.slow
def test_many_runs_that_learned_nothing_have_room_for_their_names(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for heads, rate in product((1, 2, 4, 8, 16, 32), (2e-3, 4e-3, 8e-3)):
        add_run(folder, reshaped(run_config(1, 64, rate), heads=heads), state="DIVERGED" if rate == 8e-3 else "COMPLETED")
    folder.write_ledger()
    drawn = learning_rate.draw(learning_rate.frame(gather(folder)))
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()  # type: ignore[no-untyped-call]
    names = [text for text in drawn.axes[0].texts if text.get_text().startswith("heads ")]
    assert len(names) == 6
    extents = [text.get_window_extent() for text in names]
    middles = sorted(extent.y0 + extent.height / 2 for extent in extents)
    assert min(above - below for below, above in pairwise(middles)) > 0.65 * extents[0].height, "letters fill no more of a line"


@pytest.mark.slow
def test_names_of_runs_that_learned_nothing_tell_them_apart_and_keep_clear_of_crosses_and_frame(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    lost = {(2, "post"): (8e-3, 1.6e-2), (4, "post"): (1e-3, 1.6e-2), (4, "pre"): (1e-3, 2e-3)}
    rates = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
    for depth, norm, tokens, rate in product((2, 4), ("post", "pre"), (1e6, 2e6), rates):
        config = in_setting(run_config(depth, 64, rate, tokens=tokens), norm=norm)
        add_run(folder, config, state="DIVERGED" if rate in lost.get((depth, norm), ()) else "COMPLETED")
    folder.write_ledger()
    drawn = learning_rate.draw(learning_rate.frame(gather(folder)))
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()  # type: ignore[no-untyped-call]
    assert len(drawn.axes) == 2
    for panel in drawn.axes:
        names = [text for text in panel.texts if "norm=" in text.get_text()]
        assert {text.get_text() for text in names} == {f"depth {depth}, norm={norm}" for depth, norm in lost}
        frame = panel.get_window_extent()
        crosses = [line for line in panel.get_lines() if line.get_marker() == "x"]
        places = np.concatenate([line.get_transform().transform(line.get_xydata()) for line in crosses])
        for extent in (text.get_window_extent() for text in names):
            assert frame.x0 < extent.x0 < extent.x1 < frame.x1
            assert not any(extent.x0 <= x <= extent.x1 and extent.y0 <= y <= extent.y1 for x, y in places)


@pytest.mark.parametrize(("of_one_rate", "ending"), [(0, ""), (1, "; not shown: 1 cell of one rate")])
def test_the_title_of_rates_counts_the_cells_that_are_not_shown(tmp_path: Path, of_one_rate: int, ending: str) -> None:
    folder = sweep_folder(tmp_path / "s")
    for rate in (2e-3, 4e-3):
        add_run(folder, run_config(1, 64, rate))
    for width in (92, 128)[:of_one_rate]:
        add_run(folder, run_config(1, width))
    folder.write_ledger()
    title = title_of(learning_rate.draw(learning_rate.frame(gather(folder))))
    assert title.splitlines()[0] == "The best learning rate is bracketed in 0 of 1 cell"
    assert title.replace("\n", " ").endswith(f"loss by learning rate at the first seed; 1 cell, 2 runs{ending}")


def test_a_rate_at_which_one_of_several_seeds_learned_nothing_has_its_mean_and_a_cross(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"seeds": 4})
    for rate, seed in product((2e-3, 4e-3, 8e-3), (0, 1)):
        add_run(folder, run_config(1, 64, rate, seed=seed), state="DIVERGED" if (rate, seed) == (4e-3, 1) else "COMPLETED")
    folder.write_ledger()
    data = learning_rate.frame(gather(folder)).set_index("learning_rate")
    assert data["unlearned"].to_dict() == {2e-3: 0, 4e-3: 1, 8e-3: 0}
    assert data["loss_nats"].idxmin() == 4e-3
    assert data["chosen"].idxmax() == 2e-3
    figure = learning_rate.draw(data.reset_index())
    assert title_of(figure).endswith("loss by learning rate averaged over 2 seeds; 1 cell, 6 runs")
    lines = [(line.get_marker(), np.asarray(line.get_xydata())) for line in figure.axes[0].get_lines()]
    assert [points[:, 0].tolist() for marker, points in lines if marker == "x"] == [[4e-3]]
    assert data["loss_nats"].to_list() in [points[:, 1].tolist() for _, points in lines]


def test_budgets_that_are_nearly_the_same_stay_apart_in_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = depth_or_width(tmp_path / "s", shapes=((1, 128), (2, 92), (4, 64)), budgets=(1.00e6, 1.04e6), seeds=1)
    folder.write_ledger()
    evidence = gather(folder)
    for most in (8, 1):
        monkeypatch.setattr("study.evidence.evidence.MOST_PANELS", most)
        assert learning_rate.frame(evidence)["cell"].nunique() == len(evidence.cells) == 6
        assert loss_curves.frame(evidence)["run_id"].nunique() == sum(len(cell.runs) for cell in evidence.cells)
    shapes, parameters = loss_by_shape.frame(evidence), AGAINST_PARAMETERS.frame(evidence)
    for data in (shapes[shapes["kind"] == "cell"], parameters, LossBySize("depth").frame(evidence).drop_duplicates("cell")):
        assert data["panel"].value_counts().to_dict() == {"1M tokens": 3, "1.04M tokens": 3}


CLOSE = [(16, 24), (12, 24), (8, 32), (6, 32), (4, 40), (3, 48), (2, 64), (1, 88), (16, 32), (12, 40), (8, 48), (6, 56)]
CLOSE += [(4, 64), (3, 72), (2, 88), (1, 128), (16, 48), (12, 56), (8, 72), (6, 80), (4, 104), (3, 120), (2, 144), (1, 200)]
APART = [*product((1, 2, 4, 8, 16), (32, 64, 128, 256))]


@pytest.mark.parametrize(
    ("style", "shapes", "budgets", "labelled"),
    [("page", CLOSE, 1, 20), ("paper", CLOSE, 1, 6), ("page", APART, 2, 40), ("paper", APART, 1, 20)],
)
def test_a_map_of_shapes_hides_no_shape_and_no_loss_behind_another(
    style: StyleName, shapes: list[tuple[int, int]], budgets: int, labelled: int
) -> None:
    """Depths and widths as close as those of `depth_curve`, and doublings: a loss without room is left out."""
    cells = pd.DataFrame(shapes, columns=["depth", "width"]).assign(scale="", unit="", loss=np.linspace(4.6, 4.3, len(shapes)))
    budget = pd.concat([cells.assign(panel=f"budget {number}") for number in range(budgets)])
    data = loss_by_shape._with_contours(budget, lambda depth, width: 12.0 * depth * width**2, LOSS, "parameters")
    with drawn_as(style):
        figure = loss_by_shape.draw(data)
        FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
        count = 0
        for panel in figure.axes[:budgets]:
            (scatter,) = (points for points in panel.collections if isinstance(points, PathCollection))
            radius = scatter.get_sizes().max() ** 0.5 / 2 * figure.dpi / 72
            discs = panel.transData.transform(np.asarray(scatter.get_offsets()))
            assert min(np.hypot(*(one - other)) for one, other in combinations(discs, 2)) > 2 * radius
            texts = [text for text in panel.texts if text.get_color() == "black"]
            boxes = [text.get_window_extent() for text in texts]
            for one, other in combinations(boxes, 2):
                assert not one.overlaps(other)
            for box, (x, y) in product(boxes, discs):
                away = max(box.x0 - x, x - box.x1, 0), max(box.y0 - y, y - box.y1, 0)
                assert np.hypot(*away) > radius * 0.9, "a disc is hidden"
            count += len(texts)
        assert count >= labelled


def test_long_titles_of_panels_keep_to_their_panel() -> None:
    figure, _ = panels(["200.1k non-embedding parameters, norm=post, 1.25M tokens"] * 2, "tokens", LOSS)
    FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
    left, right = (panel.title.get_window_extent() for panel in figure.axes)
    assert 0 < left.x0 < left.x1 < right.x0 < right.x1 < figure.bbox.width


def test_a_note_fits_a_column_of_a_paper_in_every_resolution() -> None:
    """Its lines are broken at one resolution, and drawn at that of a file."""
    note = (
        "deeper minus shallower at equal parameters; 95% intervals; 512 sequences, 3+3 seeds; the 52 largest of 84 pairs shown"
    )
    with drawn_as("paper"), theme():
        figure = Figure(figsize=(STYLES["paper"].width, 2), layout="constrained")
        title_above(figure, "19 of 84 pairs differ significantly: shallower better in 19", note)
        (below,) = (artist for artist in figure.artists if isinstance(artist, Annotation))
        for dpi in (72, 100, 200, 600):
            figure.set_dpi(dpi)
            extent = below.get_window_extent(RendererAgg(1, 1, dpi))  # type: ignore[no-untyped-call]
            assert extent.width <= figure.bbox.width, dpi


def test_no_word_of_a_title_or_an_axis_stands_alone() -> None:
    named = "average (mean of 4 tasks, 0 chance, 1 perfect, of the encoders that met all of the tasks so named)"
    _, (panel,) = panels([named], "x", "y")
    assert panel.get_title().count("\n") == 1
    axis = f"{COUNTS['parameters']}; near ones side by side"
    _, axes = panels(["a", "b"], axis, "y")
    figure = Figure(figsize=(8, 3), layout="constrained")
    title_above(figure, f"Downstream score against {COUNTS['parameters']}; bars: 95% over examples, and seeds")
    assert title_of(figure).count("\n") == 1, title_of(figure)
    for text in (panel.get_title(), axes[0].get_xlabel(), title_of(figure)):
        lengths = [len(line) for line in text.splitlines()]
        assert min(lengths) > 0.6 * max(lengths), text


def test_the_legend_of_rates_lists_only_what_there_is(evidence: Evidence) -> None:
    data = learning_rate.frame(evidence)
    inner = data[data["unlearned"] == 0].assign(bracketed=True)
    depths = [f"depth {depth}" for depth in sorted(data["depth"].unique())]
    assert _labels(learning_rate.draw(inner)) == [*depths, "chosen, bracketed"]
    assert _labels(learning_rate.draw(inner.assign(bracketed=False))) == [*depths, "chosen, at the edge"]


def test_widths_of_one_depth_have_lines_that_look_apart(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "grid")
    for (depth, width), rate in product(((1, 128), (2, 64), (2, 128)), (1e-3, 2e-3)):
        add_run(folder, run_config(depth, width, rate))
    folder.write_ledger()
    data = learning_rate.frame(gather(folder))
    expected = {"depth 1", "depth 2, width 64", "depth 2, width 128"}
    assert set(data["line"]) == expected
    figure = learning_rate.draw(data)
    assert set(_labels(figure)) >= set(data["line"])
    looks = [(line.get_color(), line.get_linestyle()) for line in figure.legends[0].get_lines()[: data["line"].nunique()]]
    assert len(set(looks)) == len(looks)


def test_loss_curves_tell_widths_of_one_depth_apart(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6,), shapes=((1, 64), (1, 128), (2, 64)))
    folder.write_ledger()
    drawn = loss_curves.draw(loss_curves.frame(gather(folder)))
    assert _labels(drawn) == ["depth 1, width 64", "depth 1, width 128", "depth 2"]
    strokes = {(line.get_color(), line.get_linestyle()) for line in drawn.axes[0].get_lines() if line.get_marker() != "None"}
    assert len(strokes) == 3


def test_a_line_does_not_name_what_its_panel_does() -> None:
    sizes = {"panel": "", "depth": [1, 1, 2], "width": [64, 128, 64], "heads": 2, "ffn": [256, 512, 256]}
    data = pd.DataFrame(sizes | {"setting": ["norm=post", "norm=pre", "norm=post"]})
    assert [*lines(data)] == ["depth 1, width 64, norm=post", "depth 1, width 128, norm=pre", "depth 2, norm=post"]
    unlike = "norm=post", "norm=pre", "norm=post"
    of_width, of_ffn = (lines(data, ("panel",), without=gone) for gone in (("depth",), ("depth", "width")))
    assert [*of_width] == [f"width {width}, {norm}" for width, norm in zip((64, 128, 64), unlike, strict=True)]
    assert [*of_ffn] == [f"ffn {ffn}, {norm}" for ffn, norm in zip((256, 512, 256), unlike, strict=True)]


@pytest.mark.parametrize("figure", [learning_rate, loss_curves, AGAINST_PARAMETERS, AGAINST_FLOPS])
def test_settings_of_one_shape_look_apart(figure: FigureOfAnswer, tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for norm, rate in product(("post", "pre"), (1e-3, 2e-3)):
        add_run(folder, in_setting(run_config(1, 64, rate), norm=norm))
    folder.write_ledger()
    drawn = figure.draw(figure.frame(gather(folder)))
    entries = {line.get_label(): line for line in drawn.legends[0].get_lines() if "norm=" in str(line.get_label())}
    assert {str(label).removeprefix("depth 1, ") for label in entries} == {"norm=post", "norm=pre"}
    assert len({str(line.get_markerfacecolor()) for line in entries.values()}) == 2
    faces = {str(line.get_markerfacecolor()) for line in drawn.axes[0].get_lines() if line.get_marker() not in ("None", None)}
    faces |= {str(points.get_facecolor()) for points in drawn.axes[0].collections}
    assert len(faces) >= 2


@pytest.mark.parametrize(
    "figure",
    [
        learning_rate,
        pytest.param(loss_curves, marks=pytest.mark.slow),
        AGAINST_PARAMETERS,
        pytest.param(AGAINST_FLOPS, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("sizes", [{"heads": (1, 2, 4, 8, 16)}, {"ffn": (64, 128, 256)}], ids=["heads", "ffn"])
def test_shapes_that_differ_only_in_heads_or_ffn_look_apart_and_are_named(
    figure: FigureOfAnswer, sizes: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    folder = sweep_folder(tmp_path / "s")
    ((size, values),) = sizes.items()
    for value, rate in product(values, (1e-3, 2e-3)):
        add_run(folder, reshaped(run_config(1, 64, rate), **{size: value}))
    folder.write_ledger()
    drawn = figure.draw(figure.frame(gather(folder)))
    lines = [line for line in drawn.legends[0].get_lines() if f"{size} " in str(line.get_label())]
    assert [str(line.get_label()).rpartition(", ")[2] for line in lines] == [f"{size} {value}" for value in values]
    wanted = {(line.get_color(), line.get_marker()) for line in lines}
    assert len(wanted) == len(values)
    assert {(line.get_color(), line.get_marker()) for line in drawn.axes[0].get_lines()} >= wanted


def test_loss_against_parameters_has_a_panel_a_budget_where_equal_parameters_stand_side_by_side(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for heads, tokens in product((1, 2, 4), (2e6, 1e6)):
        add_run(folder, reshaped(run_config(1, 64, tokens=tokens), heads=heads))
    add_run(folder, run_config(2, 64, tokens=1e6))
    folder.write_ledger()
    data = AGAINST_PARAMETERS.frame(gather(folder))
    assert list(dict.fromkeys(data["panel"])) == ["1M tokens", "2M tokens"]
    np.testing.assert_allclose(data["place"], data["parameters"], rtol=0.05)
    for _, alike in data.groupby(["panel", "parameters"]):
        assert alike["place"].nunique() == len(alike)
        assert np.log(alike["place"]).mean() == pytest.approx(np.log(alike["parameters"]).mean())
    figure = AGAINST_PARAMETERS.draw(data)
    assert [axes.get_title() for axes in figure.axes] == ["1M tokens", "2M tokens"]
    assert all("side by side" in axes.get_xlabel() for axes in figure.axes)
    apart = data[(data["heads"] == 2) & (data["panel"] == "1M tokens")]
    assert "front" in str([text.get_text() for text in figure.legends[0].get_texts()])
    one_size = data[data["depth"] == 1]
    assert AGAINST_PARAMETERS.draw(one_size).axes[0].get_xticks().tolist() == [one_size["parameters"].iloc[0]]
    alone = AGAINST_PARAMETERS.draw(apart.assign(place=apart["parameters"]))
    assert "side by side" not in alone.axes[0].get_xlabel()
    assert "front" not in str([text.get_text() for text in alone.legends[0].get_texts()])


def test_bars_at_equal_or_near_flops_stand_side_by_side_and_others_where_they_belong(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for heads, seed in product((1, 2, 4), (0, 1)):
        add_run(folder, reshaped(run_config(1, 64, seed=seed), heads=heads))
    for width in (66, 256):
        add_run(folder, run_config(1, width))
    folder.write_ledger()
    data = AGAINST_FLOPS.frame(gather(folder)).sort_values("train_flops")
    assert data["train_flops"].nunique() == 3, "heads change no FLOPs"
    gaps = np.diff(np.log(data["place"]))
    np.testing.assert_allclose(gaps[:3], gaps[0])
    assert gaps[0] > 0.01 * np.log(data["place"].max() / data["place"].min())
    assert data["place"].iloc[-1] == data["train_flops"].iloc[-1]
    np.testing.assert_allclose(np.log(data["place"]).sum(), np.log(data["train_flops"]).sum())
    (panel,) = AGAINST_FLOPS.draw(data).axes
    assert panel.get_xlabel() == COUNTS["train_flops"] + SIDE_BY_SIDE
    shown = {x for line in panel.get_lines() for x in np.asarray(line.get_xdata()).tolist()}
    assert shown >= {*data["place"]}


@pytest.mark.parametrize("figure", [AGAINST_FLOPS, AGAINST_PARAMETERS])
def test_a_single_cell_stands_in_the_middle_of_a_factor_of_two(figure: FigureOfAnswer, tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    add_run(folder, run_config(1, 64))
    folder.write_ledger()
    evidence = gather(folder)
    drawn = figure.draw(figure.frame(evidence))
    (cell,) = evidence.cells
    low, high = drawn.axes[0].get_xlim()
    assert high / low == pytest.approx(2)
    place = cell.train_flops if figure is AGAINST_FLOPS else cell.parameters
    assert np.sqrt(low * high) == pytest.approx(place, rel=0.01)
    note = title_of(drawn).replace("\n", " ")
    assert note.endswith(f"; 1 cell, 1 run; no seed replicates, so no intervals; unigram entropy {UNIGRAM:.2f}, above the axis")
    assert not [text for text in drawn.axes[0].texts if "unigram" in text.get_text()], "nothing covers what is drawn"


@pytest.mark.parametrize("figure", [BY_DEPTH, AGAINST_FLOPS, AGAINST_PARAMETERS])
def test_a_bar_of_one_degree_of_freedom_does_not_flatten_the_points(figure: FigureOfAnswer, evidence: Evidence) -> None:
    data = figure.frame(evidence)
    assert "longer than the axis" not in title_of(figure.draw(data))
    long = data.assign(**dict.fromkeys(data.columns.intersection(["half_nats", "high_nats", "top_nats"]), 30.0))
    long = long.assign(**dict.fromkeys(data.columns.intersection(["low_nats", "bottom_nats"]), -30.0))
    drawn = figure.draw(long)
    low, high = drawn.axes[0].get_ylim()
    spread = np.ptp(data["loss_nats"])
    assert data["loss_nats"].between(low, high).all()
    assert high - low == pytest.approx(5 * spread)
    assert "bars: 95% over seeds, some longer than the axis" in title_of(drawn).replace("\n", " ")
    labels = [text for axes in drawn.axes for text in axes.texts if text.get_text().startswith("H")]
    assert bool(labels) == (figure is BY_DEPTH)
    assert all(low < label.xy[1] < high for label in labels if isinstance(label, Annotation))


@pytest.mark.parametrize("figure", [BY_DEPTH, AGAINST_PARAMETERS])
def test_figures_of_what_was_not_trained_do_not_ask_for_seeds(figure: FigureOfAnswer, tmp_path: Path) -> None:
    class AsItIs(Law):
        def loss(self, config: RunConfig) -> float:
            return 5.0 - 0.1 * config.architecture.depth

    folder = sweep_folder(tmp_path / "s")
    for depth in (1, 2):
        add_run(folder, run_config(depth, 64, start="a/0123456789abcdef", budget={"steps": 0}), AsItIs())
    folder.write_ledger()
    drawn = figure.draw(figure.frame(gather(folder)))
    assert "nothing was trained, so seeds do not scatter" in title_of(drawn).replace("\n", " ")


def test_settings_of_a_budget_come_as_the_sweep_lists_them(tmp_path: Path) -> None:
    batches = [1024, 2048, 4096]
    folder = sweep_folder(tmp_path / "s", SWEEP | {"vary": {"recipe.batch_tokens": batches}})
    for tokens, batch in product((1e6, 2e6), batches):
        add_run(folder, run_config(1, 64, tokens=tokens, batch_tokens=batch))
    folder.write_ledger()
    evidence = gather(folder)
    assert len({cell.tokens for cell in evidence.cells}) > 2, "whole steps of larger batches are other numbers of tokens"
    for figure in (loss_curves, AGAINST_FLOPS, AGAINST_PARAMETERS):
        data = figure.frame(evidence)
        assert [*line_styles(data)] == [f"depth 1, batch_tokens={batch}" for batch in batches]


def test_loss_curves_end_at_the_final_loss(evidence: Evidence) -> None:
    data = loss_curves.frame(evidence)
    assert data["run_id"].nunique() == 24
    last = data[data["kind"] == "val"].sort_values("tokens").groupby("run_id")["loss_nats"].last()
    final = evidence.ledger.set_index("run_id")["loss_nats"]
    assert last.tolist() == pytest.approx(final[last.index].tolist())
    assert set(data["unigram_entropy_nats"]) == {UNIGRAM}


def test_loss_curves_of_many_shapes_have_few_lines_a_panel_and_lose_no_final_loss(tmp_path: Path) -> None:
    shapes = tuple(product((1, 2), (32, 64, 96, 128)))
    folder = depth_or_width(tmp_path / "s", shapes=shapes, budgets=(1e6, 2e6), rates=(4e-3,))
    folder.write_ledger()
    evidence = gather(folder)
    drawn = loss_curves.draw(data := loss_curves.frame(evidence))
    assert [panel.get_title() for panel in drawn.axes] == ["depth 1", "depth 2"]
    assert _labels(drawn) == [f"width {width}" for width in (32, 64, 96, 128)], "one scale of colours for all panels"
    for panel in drawn.axes:
        colours = {line.get_color() for line in panel.get_lines() if line.get_linestyle() != ":"}
        assert len(colours) == 4 <= loss_curves.MOST_LINES
    points = {
        (panel.get_title(), round(float(x)), round(float(y), 6))
        for panel in drawn.axes
        for line in panel.get_lines()
        if line.get_marker() != "None"
        for x, y in zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True)
    }
    ended = {(f"depth {cell.architecture.depth}", cell.tokens, round(float(cell.losses.mean()), 6)) for cell in evidence.cells}
    assert len(ended) == 16
    assert ended <= points
    assert "each shape at its longest budget" in " ".join(title_of(drawn).split())
    best = min(evidence.cells, key=lambda cell: float(cell.losses.mean()))
    lowest = f"for depth {best.architecture.depth}, width {best.architecture.width}, 2M tokens"
    assert lowest in " ".join(title_of(drawn).split())
    few = loss_curves.draw(data[data["width"] < 96])
    assert [panel.get_title() for panel in few.axes] == [*data["panel"].unique()], "few lines stay beside each other"


def test_many_training_losses_are_averaged_over_steps_of_equal_ratio(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", shapes=((1, 64),), budgets=(1e6,), rates=(4e-3,), seeds=1)
    rows = [{"trainer/tokens": 1000 * step, "train/loss": 5 + 0.5 * (-1) ** step} for step in range(1, 1001)]
    (run,) = folder.runs()
    with run.metrics_file.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    folder.write_ledger()
    (panel,) = loss_curves.draw(loss_curves.frame(gather(folder))).axes
    (thin,) = (line for line in panel.get_lines() if line.get_alpha())
    tokens, losses = np.asarray(thin.get_xdata()), np.asarray(thin.get_ydata())
    assert len(tokens) <= loss_curves.MOST_STEPS
    assert np.all(np.diff(tokens) > 0)
    assert losses[-10:] == pytest.approx(5, abs=0.3), "what scatters from row to row is even"


def test_loss_curves_show_training_losses_from_the_plateau_on_but_not_what_is_learnt_from_a_teacher(tmp_path: Path) -> None:
    teacher, folder = "0123456789abcdef", sweep_folder(tmp_path / "s")
    for learns_from in ("none", f"runs/{teacher}"):
        config = in_setting(run_config(1, 64), teacher=learns_from)
        run_id = add_run(folder, config)
        with folder.run(run_id).metrics_file.open("a") as file:
            file.write('{"trainer/tokens": 7, "train/loss": 7.5}\n')
    folder.write_ledger()
    data = loss_curves.frame(gather(folder))
    taught = data["setting"].str.contains(teacher)
    assert set(data.loc[taught, "kind"]) == {"val"}
    assert set(data.loc[~taught, "kind"]) == {"val", "train"}
    minimised = data[data["kind"] == "train"]
    assert 7 in set(minimised["tokens"])
    (panel,) = loss_curves.draw(data).axes
    (thin,) = (line for line in panel.get_lines() if line.get_alpha())
    kept = np.asarray(thin.get_xdata())
    assert kept.tolist() == minimised.loc[minimised["loss_nats"] <= UNIGRAM, "tokens"].tolist(), "more would hide the rest"
    assert 7 not in kept


def test_an_interval_that_would_hide_the_others_ends_in_an_arrow() -> None:
    data = pd.DataFrame({"low_nats": [-0.1, 0.1, -0.2, -5.0, -0.3], "high_nats": [0.2, 0.3, 0.1, 6.0, 0.5]})
    data = data.assign(estimate_nats=data.mean(axis=1), family=[*"abcde"], pair=[*"vwxyz"])
    data = data.assign(
        sides=pd.Series([("deeper", "wider")] * 5), unit="nats", n_sequences=8, n_seeds="2+2", status="undecided", equal="shape"
    )
    arrows = {}
    one = data.tail(1).assign(low_nats=None, high_nats=None)
    for name, shown in (("cut", pd.concat([data, one])), ("whole", data.head(3)), ("none", one)):
        figure = paired_differences.draw(shown)
        (axes,) = figure.axes
        arrows[name] = [line.get_marker() for line in axes.lines if line.get_marker() in ("<", ">")]
        left, right = axes.get_xlim()
        assert -1 < left <= -0.2 or name == "none"
        assert 0.3 <= right < 1 or name == "none"
        assert ("interval goes on" in str([text.get_text() for text in figure.legends[0].get_texts()])) == (name == "cut")
        plt.close(figure)
    assert arrows == {"cut": ["<", ">"], "whole": [], "none": []}


@pytest.mark.slow
def test_paired_differences_of_long_names_keep_room_for_the_differences(evidence: Evidence) -> None:
    data = paired_differences.frame(evidence)
    teacher = "teacher=97ca007d6d1784a0:weight=0.5:temperature=2"
    data["pair"] = f"{teacher} − {teacher.replace('2', '4')}"
    data["sides"] = [(teacher, teacher.replace("2", "4"))] * len(data)
    FigureCanvasAgg(drawn := paired_differences.draw(data)).draw()  # type: ignore[no-untyped-call]
    (axes,) = drawn.axes
    assert axes.get_window_extent().width / drawn.dpi > 3
    label = axes.xaxis.label.get_window_extent()
    assert 0 <= label.x0 < label.x1 <= drawn.bbox.width


def test_thirty_pairs_fit_a_page_and_a_family_of_one_pair_has_one_line(evidence: Evidence) -> None:
    data = paired_differences.frame(evidence)
    rows = data[data["family"] != paired_differences.AVERAGES].head(6)
    families = [rows.assign(family=f"condition {number}") for number in range(5)]
    figure = paired_differences.draw(pd.concat(families, ignore_index=True))
    assert figure.get_figheight() < 11
    assert len(figure.axes[0].get_yticks()) == 30 + 5
    many = pd.concat([rows.assign(family=f"condition {number}") for number in range(14)], ignore_index=True)
    figure = paired_differences.draw(many)
    assert figure.get_figheight() < 9.3
    assert "largest of 84 pairs are shown" in title_of(figure).replace("\n", " ")
    with drawn_as("paper"):
        assert paired_differences.draw(data).get_figheight() < 9.3
    one_each = [rows.head(1).assign(family=f"condition {number}") for number in range(5)]
    (axes,) = paired_differences.draw(pd.concat(one_each, ignore_index=True)).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"condition {number}" for number in range(5)]


def test_of_more_than_thirty_pairs_the_averages_are_shown_alone(evidence: Evidence) -> None:
    data = paired_differences.frame(evidence)
    averages, pairs = (data[(data["family"] == paired_differences.AVERAGES) == is_average] for is_average in (True, False))
    averages = averages.assign(status="decided", estimate_nats=0.1, pair=[f"average {number}" for number in range(6)])
    pairs = pairs.assign(status="undecided")
    for count in (30, 31):
        many = pd.concat([pairs] * 3, ignore_index=True).head(count)
        figure = paired_differences.draw(pd.concat([averages, many], ignore_index=True))
        finding, note = title_of(figure).replace("\n", " ").split(" deeper minus shallower")
        shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        rows = [name for name in shown if name.startswith("L")]
        assert shown[:7] == [paired_differences.AVERAGES, *averages["pair"]]
        of_pairs, of_averages = f"{count} pairs", "6 averages"
        if count == 30:
            assert len(rows) == 30
            assert finding == f"0 of {of_pairs} differ significantly; of {of_averages} 6: shallower better in 6"
            assert "pairs" not in note
        else:
            assert rows == []
            assert finding == f"6 of {of_averages} differ significantly: shallower better in 6; of {of_pairs} 0"
            assert note.endswith("; the tables list all 31 pairs")


def test_names_of_lines_leave_out_the_ids_of_runs(evidence: Evidence) -> None:
    donor, teacher = "97ca007d6d1784a0", "0123456789abcdef"
    rows = pd.DataFrame([of_cell(evidence.cells[0]) | {"panel": "one"}] * 2)
    alone = rows.assign(setting=[f"start={donor}:first", f"start={donor}:last"])
    assert lines(alone).tolist() == ["depth 1, start=first", "depth 1, start=last"]
    both = rows.assign(setting=[f"start={donor}:first", f"teacher={teacher}"])
    assert lines(both).tolist() == ["depth 1, start=run2:first", "depth 1, teacher=run1"]
    taught = rows.assign(setting=[f"teacher={teacher}", "teacher=none"])
    assert lines(taught).tolist() == ["depth 1, teacher=trained", "depth 1, teacher=none"]


@pytest.mark.parametrize("donors", [("832edc76a9448e90",), ("832edc76a9448e90", "97ca007d6d1784a0")])
def test_no_figure_nor_table_of_differences_shows_the_id_of_a_run(donors: tuple[str, ...], tmp_path: Path) -> None:
    starts = [f"elsewhere/{donor}:{layers}" for donor in donors for layers in ("first", "last")]
    sweep = {name: value for name, value in SWEEP.items() if name != "tune"} | {"vary": {"recipe.start": starts}}
    folder = sweep_folder(tmp_path / "sweep", sweep)
    for start, depth, seed in product(starts, (1, 2), (0, 1)):
        add_run(folder, run_config(depth, 64, seed=seed, start=start))
    answer = report(folder, include_unbracketed=True)
    run_id = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")
    assert {"loss_by_depth", "loss_curves", "paired_differences"} <= {*answer.figures}
    for name in answer.figures:
        root = ElementTree.parse(folder.figures / f"{name}.svg").getroot()
        shown = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
        assert [text for text in shown if run_id.search(text)] == []
    rows = [line for line in answer.to_markdown().splitlines() if line.startswith("|") and "start=" in line]
    assert rows
    assert [row for row in rows if run_id.search(row)] == []


def test_paired_differences_lie_within_their_intervals(evidence: Evidence) -> None:
    data = paired_differences.frame(evidence)
    assert data["family"].eq(paired_differences.AVERAGES).tolist() == [True] * 6 + [False] * 12, "six pairs at two budgets"
    assert data["estimate_nats"].between(data["low_nats"], data["high_nats"]).all()
    assert set(data["n_seeds"]) == {"2+2"}


def test_doubling_has_the_published_counts_of_bert_base(evidence: Evidence) -> None:
    data = what_doubling_adds.frame(evidence)
    assert data["shape"].nunique() == 3
    base = data[data["shape"].str.startswith("BERT-Base")].set_index("size")["added"]
    assert base[["depth", "width", "heads"]].tolist() == [85_054_464, 278_760_960, 0]
    assert base["ffn"] == 12 * (2 * 768 * 3072 + 3072)


def test_doubling_shows_the_only_shape_of_a_sweep_once(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    add_run(folder, run_config(1, 64))
    folder.write_ledger()
    data = what_doubling_adds.frame(gather(folder))
    base, only = data["shape"].unique()
    assert base.startswith("BERT-Base, ")
    assert only == "smallest and largest, L1-H64-A2-F256"
    assert [axes.get_title().partition("\n")[0] for axes in what_doubling_adds.draw(data).axes] == [base, only]


def test_doubling_shows_shapes_of_one_size_once(tmp_path: Path) -> None:
    """Heads change no parameters: of 1, 2 and 16 none is smaller or larger than another."""
    folder = sweep_folder(tmp_path / "s")
    for heads in (1, 2, 16):
        add_run(folder, reshaped(run_config(1, 64), heads=heads))
    folder.write_ledger()
    base, only = what_doubling_adds.frame(gather(folder))["shape"].unique()
    assert base.startswith("BERT-Base, ")
    assert only == "smallest and largest, L1-H64-A1-F256"


def test_doubling_names_what_is_unlike_bert(tmp_path: Path) -> None:
    """Of layers that share their weights twice as many have no more, which BERT's have."""
    folder = sweep_folder(tmp_path / "s")
    add_run(folder, in_setting(run_config(2, 64), layer_groups=1))
    folder.write_ledger()
    data = what_doubling_adds.frame(gather(folder))
    shared = data[data["shape"] == "smallest and largest, L2-H64-A2-F256, layer_groups=1"].set_index("size")["added"]
    assert shared["depth"] == 0
    title = what_doubling_adds.draw(data).axes[1].get_title()
    assert " ".join(title.split()).startswith("smallest and largest, L2-H64-A2-F256, layer_groups=1 (")


def test_flops_and_front_are_those_of_the_cells(evidence: Evidence) -> None:
    flops = AGAINST_FLOPS.frame(evidence)
    assert sorted(flops["train_flops"]) == sorted(cell.train_flops for cell in evidence.cells)
    sizes = AGAINST_PARAMETERS.frame(evidence)
    for _, budget in sizes.groupby("panel"):
        front = budget[budget["on_front"]]
        for cell in budget.to_dict("records"):
            beaten = (front["parameters"] <= cell["parameters"]) & (front["loss_nats"] <= cell["loss_nats"])
            assert beaten.any()


_OF_LOSSES = (loss_curves, AGAINST_FLOPS, AGAINST_PARAMETERS, loss_by_shape, BY_DEPTH, learning_rate)


@pytest.mark.parametrize("figure", _OF_LOSSES)
def test_losses_that_do_not_compare_share_no_axis_and_have_no_winner(figure: FigureOfAnswer, tmp_path: Path) -> None:
    values = SWEEP | {"vary": {"recipe.objective": ["mlm", "rtd"]}}
    folder = sweep_folder(tmp_path / "sweep", values)
    for objective, (depth, width), rate in product(("mlm", "rtd"), ((1, 128), (2, 92)), (2e-3, 3e-3)):
        add_run(folder, run_config(depth, width, rate, objective=objective))
    folder.write_ledger()
    drawn = figure.draw(figure.frame(gather(folder)))
    title = title_of(drawn)
    names = [panel.get_title().replace("\n", " ") for panel in drawn.axes if panel.get_title()]
    assert [name.partition("objective=")[2][:3] for name in names] == ["mlm", "rtd"]
    first, second = drawn.axes[:2]
    assert not first.get_shared_y_axes().joined(first, second) or figure is loss_by_shape
    if figure is not learning_rate:
        assert title.replace("\n", " ").startswith("Losses of objective=mlm and objective=rtd do not compare")
    assert "owest" not in title
    assert "spans" not in title
    plt.close(drawn)


def test_losses_of_several_tokenisers_are_in_bits_per_byte_or_have_panels_of_their_own(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "sweep")
    for depth, width in ((1, 128), (2, 92)):
        add_run(folder, run_config(depth, width))
    folder.write_ledger()
    actual = gather(folder)
    cells = tuple(
        replace(cell, per_byte=True, settings={"data.tokenizer.kind": kind})
        for cell, kind in zip(actual.cells, ("bpe", "unigram"), strict=True)
    )
    actual = replace(actual, cells=cells, families=families_of(cells))
    best = min(cells, key=lambda cell: float(cell.losses.mean()))
    for figure in (AGAINST_FLOPS, AGAINST_PARAMETERS):
        drawn = figure.draw(figure.frame(actual))
        assert f"{best.bits_per_masked_byte:.3f} bits per byte" in title_of(drawn)
        assert drawn.axes[0].get_ylabel().replace("\n", " ") == LOSS_PER_BYTE
        (low, high) = drawn.axes[0].get_ylim()
        assert low < float(best.bits_per_masked_byte or 0) < high
    curves = loss_curves.draw(loss_curves.frame(actual))
    assert [panel.get_title().partition("kind=")[2] for panel in curves.axes] == ["bpe", "unigram"]
    assert "do not compare" in title_of(curves)


@pytest.mark.parametrize("figure", [*_OF_LOSSES, paired_differences])
def test_losses_of_detecting_replaced_tokens_are_named_as_what_they_are(figure: FigureOfAnswer, tmp_path: Path) -> None:
    """They are of no masked tokens, alone in a sweep too."""
    folder = sweep_folder(tmp_path / "sweep", SWEEP | {"base": {"recipe": {"objective": "rtd"}}})
    for (depth, width), rate, seed in product(((1, 128), (2, 92)), (2e-3, 4e-3, 8e-3), (0, 1)):
        add_run(folder, run_config(depth, width, rate, seed, objective="rtd"))
    folder.write_ledger()
    drawn = figure.draw(figure.frame(gather(folder)))
    words = " ".join(text.get_text() for text in drawn.findobj(Text)).replace("\n", " ")
    assert "masked token" not in words
    if figure is not loss_by_shape:
        assert LOSS_OF_DETECTING in words
    plt.close(drawn)


def test_axes_name_unit_and_convention(evidence: Evidence) -> None:
    figure = AGAINST_FLOPS.draw(AGAINST_FLOPS.frame(evidence))
    assert figure.axes[0].get_xlabel() == COUNTS["train_flops"] + SIDE_BY_SIDE
    assert figure.axes[0].get_ylabel() == LOSS
    assert "24 runs" in title_of(figure)


@pytest.mark.parametrize("count", LEDGER_PARAMETERS)
def test_loss_stands_at_its_size_in_any_count_which_the_axis_names(evidence: Evidence, count: str) -> None:
    shown = LossAgainstParameters(count)
    data = shown.frame(evidence)
    assert sorted(data[count]) == sorted(getattr(cell, count) for cell in evidence.cells)
    figure = shown.draw(data)
    names = " ".join(axes.get_xlabel() for axes in figure.axes).replace("\n", " ")
    assert COUNTS[count] in names


@pytest.mark.parametrize("count", LEDGER_FLOPS)
def test_loss_stands_at_its_flops_in_any_count_which_the_axis_names(evidence: Evidence, count: str) -> None:
    shown = LossAgainstFlops(count)
    data = shown.frame(evidence)
    assert set(data[count]) == set(evidence.used[count])
    (panel,) = shown.draw(data).axes
    assert panel.get_xlabel().replace("\n", " ") == COUNTS[count] + SIDE_BY_SIDE


def test_the_front_is_that_of_the_count_on_the_axis(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for depth, width in ((1, 128), (6, 64)):  # the wide shape has more parameters, of which fewer are beside the tables
        add_run(folder, run_config(depth, width))
    folder.write_ledger()
    evidence = gather(folder)
    for count, beaten in (("parameters", []), ("parameters_non_embedding", [6])):
        data = LossAgainstParameters(count).frame(evidence)
        assert data.loc[~data["on_front"], "depth"].tolist() == beaten


def test_all_flops_spent_are_shown_where_an_encoder_needs_other_runs_with_the_front_of_its_shape(tmp_path: Path) -> None:
    class Ways(Law):
        def loss(self, config: RunConfig) -> float:
            return 5 - 0.3 * (config.recipe.init_from is not None) - 0.6 * (config.tokens > 2e6)

    spent, donor = LossAgainstFlops("spent_flops"), "../runs/0123456789abcdef"
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"recipe.start": ["fresh", donor]}})
    for tokens in (1e6, 4e6):
        add_run(folder, run_config(1, 64, tokens=tokens), Ways())
    folder.write_ledger()
    assert spent.frame(gather(folder)).empty
    add_run(folder, run_config(1, 64, start=donor), Ways(), flops_before=1e13)
    add_run(folder, run_config(2, 64), Ways())
    folder.write_ledger()
    evidence = gather(folder)
    own, both = AGAINST_FLOPS.frame(evidence), spent.frame(evidence)
    assert both["spent_flops"].tolist() == pytest.approx((own["train_flops"] + 1e13 * own["needs_runs"]).tolist())
    fronts = [set(data.loc[data["front"] != "", "loss_nats"].round(1)) for data in (own, both)]
    assert fronts == [{4.7, 4.4}, {5.0, 4.4}], "with all FLOPs more tokens cost less; the deeper shape needs no runs"
    for figure, data, found in ((AGAINST_FLOPS, own, "1 of 1 cell"), (spent, both, "None of 1 cell")):
        drawn = figure.draw(data)
        title = title_of(drawn).replace("\n", " ")
        assert title.startswith(f"{found} with a donor or a teacher is on the shape's Pareto front by ")
        assert drawn.axes[0].get_xlabel().replace("\n", " ").startswith(COUNTS[figure.count])
        (steps,) = (line for line in drawn.axes[0].get_lines() if line.get_drawstyle() == "steps-post")
        on_front = data[data["front"] != ""].sort_values("loss_nats", ascending=False)
        assert np.asarray(steps.get_ydata()).tolist() == on_front["loss_nats"].tolist()
        assert "Pareto front of a shape" in _labels(drawn)


OF_OTHER_LEDGERS = {
    *("score_against_flops", "score_against_parameters", "score_against_loss", "parameters_loss_score"),
    *("forecast_against_truth", "iso_flop_valleys"),
    *("loss_by_heads", "loss_by_ffn", "path_to_goal", "loss_against_spent_flops"),
}
"""The figures of downstream scores and goals, and those that need other sizes, budgets or starts than depth or width has."""


@pytest.mark.parametrize("style", [pytest.param("page", marks=pytest.mark.slow), "paper"])
@pytest.mark.parametrize(
    "figure",
    [BY_DEPTH, pytest.param(paired_differences, marks=pytest.mark.slow), pytest.param(loss_curves, marks=pytest.mark.slow)],
    ids=["depth", "pairs", "curves"],
)
def test_figures_are_as_wide_as_their_style_and_keep_their_words_inside(
    evidence: Evidence, figure: FigureOfAnswer, style: StyleName
) -> None:
    with drawn_as(style):
        drawn = figure.draw(figure.frame(evidence))
        FigureCanvasAgg(drawn).draw()  # type: ignore[no-untyped-call]
    assert drawn.get_figwidth() == STYLES[style].width
    (legend,) = drawn.legends
    labels = [axes.xaxis.label for axes in drawn.axes] + [label for axes in drawn.axes for label in axes.get_yticklabels()]
    for words in (*drawn.texts, *(one for one in drawn.artists if isinstance(one, Annotation)), legend, *labels):
        box = words.get_window_extent()
        assert box.x0 >= -1, words
        assert box.x1 <= drawn.bbox.width + 1, words


def test_the_title_of_pairs_names_the_sides_that_are_lower_and_counts_averages_apart(evidence: Evidence) -> None:
    data = paired_differences.frame(evidence).tail(4)
    sides = pd.Series([("kind=bpe", "kind=wordpiece"), ("kind=unigram", "kind=bpe"), ("kind=unigram", "kind=wordpiece")] * 2)
    three = data.head(3).assign(sides=sides[:3].tolist(), estimate_nats=[0.1, -0.1, -0.2], status="decided", family="one")
    title = title_of(paired_differences.draw(three)).replace("\n", " ")
    assert title.startswith("3 of 3 pairs differ significantly: kind=unigram better in 2, kind=wordpiece better in 1")
    average = data.tail(1).assign(sides=pd.Series([("deeper", "shallower")]).tolist(), estimate_nats=0.1, status="decided")
    average["family"] = paired_differences.AVERAGES
    title = title_of(paired_differences.draw(pd.concat([average, three.assign(status="undecided")], ignore_index=True)))
    assert title.replace("\n", " ").startswith("0 of 3 pairs differ significantly; of 1 average 1: shallower better in 1")


@pytest.mark.parametrize(
    ("size", "shapes", "title"),
    [
        (
            "depth",
            [(1, 64, 2, 256), (2, 64, 2, 256), (4, 64, 2, 256), (1, 128, 2, 512), (2, 128, 2, 512), (4, 128, 2, 512)],
            "Over depths 1 to 4 the mean loss spans {} nats at width 64 and {} at width 128",
        ),
        (
            "depth",
            [(1, 128, 2, 512), (2, 92, 2, 368), (1, 184, 2, 736), (2, 128, 2, 512)],
            "Over depths 1 and 2 the mean loss spans {} nats at 202.1k and {} at 402.9k non-embedding parameters",
        ),
        (
            "depth",
            [(1, 64, 2, 256), (2, 64, 2, 256), (4, 64, 2, 256), (2, 128, 2, 512), (4, 128, 2, 512)],
            "The mean loss spans {} nats over depths 1 to 4 at width 64 and {} over depths 2 and 4 at width 128",
        ),
        (
            "heads",
            [(2, 64, 1, 256), (2, 64, 2, 256), (2, 64, 8, 256)],
            "Over 1 to 8 heads the mean loss spans {} nats at depth 2, width 64 and ffn 256",
        ),
        (
            "ffn",
            [(1, 64, 2, 64), (1, 64, 2, 96), (2, 64, 2, 64), (2, 64, 2, 96)],
            "Over FFN ratios 1 and 1.5 the mean loss spans {} nats at depth 1 and {} at depth 2",
        ),
    ],
    ids=["widths", "equal parameters", "other depths a line", "heads", "FFN"],
)
def test_a_title_says_how_far_the_mean_loss_spreads_along_each_line(
    tmp_path: Path, size: Literal["depth", "heads", "ffn"], shapes: list[tuple[int, int, int, int]], title: str
) -> None:
    folder = sweep_folder(tmp_path / "s")
    for depth, width, heads, ffn in shapes:
        add_run(folder, reshaped(run_config(depth, width), heads=heads, ffn=ffn))
    folder.write_ledger()
    data = LossBySize(size).frame(gather(folder))
    means = data.groupby("line", sort=False)["mean_nats"]
    spans = [f"{span:.3f}" for span in means.max() - means.min()]
    finding, note = title_of(LossBySize(size).draw(data)).split(" runs; ")
    assert " ".join(finding.split()) == f"{title.format(*spans)} {len(shapes)}"
    assert note.startswith("lines join means over seeds; no seed replicates, so no intervals")


def test_a_title_of_many_lines_names_the_least_and_the_greatest_spread(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"vary": {"architecture.norm": ["pre", "post"]}})
    for depth, width, norm in product((1, 2), (64, 128), ("pre", "post")):
        add_run(folder, in_setting(run_config(depth, width), norm=norm))
    folder.write_ledger()
    data = BY_DEPTH.frame(gather(folder))
    pre, narrow, deep = data["setting"] == "norm=pre", data["width"] == 64, data["depth"] == 2
    four = data.assign(mean_nats=4 + deep * (0.1 + 0.2 * narrow + 0.4 * pre))
    finding = " ".join(title_of(BY_DEPTH.draw(four)).split())
    over = "Over depths 1 and 2 the mean loss spans at least"
    greatest = "at most 0.700 at width 64 with norm=pre"
    assert finding.startswith(f"{over} 0.100 nats at width 128 with norm=post, and {greatest} 8 runs; ")
    budgets = pd.concat([four[pre & narrow].assign(panel=panel) for panel in ("1M tokens", "2M tokens")], ignore_index=True)
    budgets.loc[(budgets["panel"] == "2M tokens") & (budgets["depth"] == 2), "mean_nats"] = 4.2
    finding = " ".join(title_of(BY_DEPTH.draw(budgets.assign(unit="bits per byte"))).split())
    least, most = (nats / np.log(2) for nats in (0.2, 0.7))
    greatest = f"at most {most:.3f} at width 64 and 1M tokens with norm=pre"
    assert finding.startswith(f"{over} {least:.3f} bits per byte at width 64 and 2M tokens with norm=pre, and {greatest} ")


def test_titles_state_what_is_found(evidence: Evidence) -> None:
    first = " ".join(title_of(paired_differences.draw(data := paired_differences.frame(evidence))).splitlines())
    pairs = data[data["family"] != paired_differences.AVERAGES]
    assert first.startswith(f"{(pairs['status'] == 'decided').sum()} of 12 pairs differ significantly: ")
    assert f"shallower better in {((pairs['status'] == 'decided') & (pairs['estimate_nats'] > 0)).sum()}" in first
    best = min(evidence.cells, key=lambda cell: cell.loss_nats or np.inf)
    assert title_of(AGAINST_FLOPS.draw(AGAINST_FLOPS.frame(evidence))).startswith(f"Lowest loss: {best.loss_nats:.3f}")


@pytest.mark.parametrize("style", ["page", "paper"])
def test_the_path_to_a_goal_shows_its_looks_runs_and_target(style: StyleName) -> None:
    shapes = [("L1-H32-A2-F128", 12_000, 100_000), ("L2-H64-A4-F256", 100_000, 800_000), ("L1-H64-A4-F256", 50_000, 200_000)]
    path = goal_path(
        spend_flops=1e12,
        state="met",
        sentence="The goal is met",
        looks=(GoalLook(runs=1, spent_flops=1e11), GoalLook(runs=3, spent_flops=6e11, half_width=0.015)),
        runs=tuple(
            ChosenRun(
                run_id=f"{number:016x}",
                shape=shape,
                parameters_non_embedding=size,
                tokens=tokens,
                seed=0,
                spent_flops=2e11,
                used=number > 0,
            )
            for number, (shape, size, tokens) in enumerate(shapes)
        ),
        target_parameters=4e5,
        target_tokens=4e6,
        forecast_nats=None,
    )
    data = path_to_goal.frame(Mock(goal=path))
    assert data["kind"].tolist() == ["look", "unused run", "run", "run"]
    assert data.loc[data["kind"] == "look", "half"].tolist() == [0.015]
    with drawn_as(style):
        drawn = path_to_goal.draw(data)
        FigureCanvasAgg(drawn).draw()  # type: ignore[no-untyped-call]
    left, right = drawn.axes
    assert " ".join(title_of(drawn).split()).startswith("Goal met: ± 1.50% reached, ± 2% wanted")
    assert len(right.collections) == 2
    assert right.get_xlim()[1] > 4e5
    assert left.get_yscale() == "log"
    assert path_to_goal.frame(Mock(goal=None)).empty


def test_the_path_to_a_goal_shows_its_runs_though_no_look_gave_an_interval() -> None:
    runs = (
        ChosenRun(
            run_id=f"{number:016x}",
            shape="L1-H32-A2-F128",
            parameters_non_embedding=12_000,
            tokens=tokens,
            seed=0,
            spent_flops=1e11,
            used=True,
        )
        for number, tokens in enumerate((100_000, 200_000))
    )
    path = goal_path(looks=(GoalLook(runs=2, spent_flops=2e11),), runs=tuple(runs))
    left, right = path_to_goal.draw(path_to_goal.frame(Mock(goal=path))).axes
    assert [text.get_text() for text in left.texts] == ["No look at the runs gave an interval"]
    assert not left.lines
    assert np.shape(right.collections[0].get_offsets()) == (2, 2)


def test_seeds_are_a_band_around_their_mean(evidence: Evidence) -> None:
    data = loss_curves.frame(evidence)
    runs = data[(data["kind"] == "val") & (data["line"] == data["line"].iloc[0]) & (data["panel"] == data["panel"].iloc[0])]
    means = loss_curves.over_seeds(runs).set_index("tokens")
    assert (means["seeds"] == runs["run_id"].nunique()).all()
    for tokens, losses in runs.groupby("tokens")["loss_nats"]:
        row = means.loc[tokens]
        assert (row["lowest_nats"], row["highest_nats"]) == (losses.min(), losses.max())
        assert row["loss_nats"] == pytest.approx(losses.mean())


@pytest.mark.slow  # tests/test_packed_sweeps.py compares the same of two folders of one sweep
def test_same_ledger_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (depth_or_width(tmp_path / place / "depth_or_width", budgets=(1e6,)) for place in ("a", "b"))
    report(first)
    report(second)
    written = sorted(path.relative_to(first.path) for path in first.path.rglob("*") if path.is_file())
    drawn = {f"figures/{name}.svg" for name in FIGURES if name not in OF_OTHER_LEDGERS}
    assert drawn == {str(path) for path in written if path.suffix == ".svg"}
    for path in written:
        assert (first.path / path).read_bytes() == (second.path / path).read_bytes(), path


@pytest.mark.slow
def test_a_file_is_drawn_once_and_holds_what_savefig_would_write(
    evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, plain = AGAINST_FLOPS.frame(evidence), io.BytesIO()
    with theme():
        AGAINST_FLOPS.draw(data).savefig(plain, format="png", metadata={"Software": None})
    figure, draw = AGAINST_FLOPS.draw(data), Mock(wraps=Figure.draw)
    monkeypatch.setattr(Figure, "draw", lambda *arguments: draw(*arguments))
    png, _ = save_in(figure, tmp_path, "flops", ["png"])
    assert png.read_bytes() == plain.getvalue()
    assert draw.call_count == 2


def test_an_svg_is_the_same_whatever_formats_are_written_before(evidence: Evidence, tmp_path: Path) -> None:
    """Though each layout moves the axes, and the next one begins where they are."""
    losses = [4.15096, 4.14821, 4.15932, 4.2638]
    data = drawable(AGAINST_FLOPS.frame(evidence))[:4].assign(loss_nats=losses, half_nats=None, unigram_entropy_nats=4.1763)
    (alone,) = save_in(AGAINST_FLOPS.draw(data), tmp_path / "alone", "figure")
    *_, last = save_in(AGAINST_FLOPS.draw(data), tmp_path / "last", "figure", ["png", "pdf"])
    assert last.read_bytes() == alone.read_bytes()


def test_the_format_csv_is_the_data_of_a_figure_and_goes_with_it(evidence: Evidence, tmp_path: Path) -> None:
    data = drawable(AGAINST_FLOPS.frame(evidence))
    files = save_in(AGAINST_FLOPS.draw(data), tmp_path, "flops", ["csv"], data)
    assert [file.name for file in files] == ["flops.csv", "flops.svg"]
    read = pd.read_csv(tmp_path / "flops.csv", keep_default_na=False)
    assert read["loss_nats"].tolist() == data["loss_nats"].tolist()
    assert read["line"].tolist() == data["line"].tolist()
    save_in(AGAINST_FLOPS.draw(data), tmp_path, "flops", data=data)
    assert [file.name for file in tmp_path.iterdir()] == ["flops.svg"]


def test_losses_that_are_nearly_equal_leave_the_title_right_above_its_panel() -> None:
    with theme():
        figure, (panel,) = panels(["a title as long as its panel is wide, of losses that are nearly equal"], "tokens", LOSS)
        panel.plot([1, 2], [3.00001, 3.00002])
        FigureCanvasAgg(figure).draw()  # type: ignore[no-untyped-call]
    assert not panel.yaxis.get_offset_text().get_text()
    assert panel.title.get_window_extent().y0 - panel.bbox.y1 < 10


def test_lines_of_one_depth_are_distinguished_by_their_widths_and_settings() -> None:
    shapes = product((32, 64, 96, 128), ("learned", "rotary"))
    cells = [{"depth": 1, "width": width, "heads": 1, "ffn": 4 * width, "setting": setting} for width, setting in shapes]
    data = pd.DataFrame(cells).assign(panel="all")
    data = data.assign(line=lines(data))
    styles = line_styles(data)
    assert [*styles][:2] == ["depth 1, width 32, learned", "depth 1, width 32, rotary"]
    assert len({(style["color"], style["marker"], style["linestyle"]) for style in styles.values()}) == 8
    assert len({style["color"] for style in styles.values()}) == 4
    depths = line_styles(data.assign(depth=[1, 2] * 4))
    assert len({style["color"] for style in depths.values()}) == 2


def test_no_two_lines_of_a_figure_look_alike() -> None:
    sizes = product((1, 2), (64, 128, 192), (1, 2), ("learned", "rotary"))
    cells = [{"depth": d, "width": w, "heads": h, "ffn": 4 * w, "setting": setting} for d, w, h, setting in sizes]
    data = pd.DataFrame(cells).assign(panel="all")
    styles = line_styles(data.assign(line=lines(data)))
    points = {(style["color"], style["marker"], style.get("markerfacecolor")) for style in styles.values()}
    assert len(points) == len(styles) == len(data) == 24
    assert len({style["linestyle"] for style in styles.values()}) > 4


def test_settings_of_one_shape_have_colours_of_their_own() -> None:
    data = pd.DataFrame([{"depth": 2, "width": 96, "heads": 2, "ffn": 384, "setting": name} for name in ("fresh", "a", "b")])
    styles = line_styles(data.assign(line=lines(data, among=())))
    assert [*styles] == ["depth 2, fresh", "depth 2, a", "depth 2, b"]
    assert len({style["color"] for style in styles.values()}) == 3


def test_a_cell_has_one_name_in_all_panels_and_names_tell_widths_of_several_depths() -> None:
    data = pd.DataFrame({"panel": ["a", "a", "b", "b"], "depth": [1, 1, 1, 2], "width": [64, 128, 128, 92]})
    data = data.assign(heads=1, ffn=256, setting="")
    assert lines(data).tolist() == ["depth 1, width 64", "depth 1, width 128", "depth 1, width 128", "depth 2"]
    expected = [f"depth {depth}, width {width}" for depth, width in zip(data["depth"], data["width"], strict=True)]
    assert lines(data, among=()).tolist() == expected


def test_a_setting_is_named_where_every_shape_has_one_of_its_own() -> None:
    data = pd.DataFrame({"panel": ["a", "b", "b"], "depth": 2, "width": [84, 96, 108], "setting": ["geglu", "gelu", "gelu"]})
    data = data.assign(heads=3, ffn=256)
    assert lines(data, among=()).tolist() == ["depth 2, width 84, geglu", "depth 2, width 96, gelu", "depth 2, width 108, gelu"]
    assert lines(data).tolist() == [f"depth 2, width {width}" for width in (84, 96, 108)], "a panel has one, and says which"


def test_panels_in_rows_have_one_name_of_their_axis() -> None:
    figure, axes = panels(["a", "b", "c"], "tokens", LOSS)
    assert [panel.get_ylabel() for panel in axes] == ["", "", ""]
    assert figure.get_supylabel() == LOSS


@pytest.mark.slow
def test_labels_of_lines_at_one_place_do_not_cover_each_other(tmp_path: Path) -> None:
    """Three settings of equal parameters, whose shapes have the same losses, each at two FFN ratios."""
    activations = ["geglu", "gelu", "swiglu"]
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"architecture.activation": activations}})
    for activation, (width, ffn), seed in product(activations, ((96, 288), (84, 336)), (0, 1)):
        add_run(folder, in_setting(reshaped(run_config(2, width, seed=seed), ffn=ffn), activation=activation))
    folder.write_ledger()
    figure = LossBySize("ffn")
    drawn = figure.draw(figure.frame(gather(folder, include_unbracketed=True)))
    FigureCanvasAgg(drawn).draw()  # type: ignore[no-untyped-call]
    labels = [text for text in drawn.axes[0].texts if text.get_text().startswith("H")]
    assert len(labels) == 6
    boxes = [text.get_window_extent() for text in labels]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]


def test_of_three_labels_at_one_place_that_of_the_lowest_mean_stands_below(evidence: Evidence) -> None:
    two = BY_DEPTH.frame(evidence)
    two = two[two["panel"] == "1M tokens"]
    lower = two[two["line"] == two["line"].iloc[0]]
    shifted = {name: lower[name] - 0.5 for name in lower if name.endswith("_nats") and not name.startswith("unigram")}
    lower = lower.assign(**shifted, line="lower", cell="lower " + lower["cell"])
    three = pd.concat([two, lower], ignore_index=True)
    cut = three.assign(low_nats=-30.0, high_nats=30.0, bottom_nats=-30.0, top_nats=30.0)
    is_lower = three["line"] == "lower"
    for shown, bottom, top in ((three, "bottom_nats", "top_nats"), (cut, "loss_nats", "loss_nats")):
        below, above = _below_and_above(BY_DEPTH.draw(shown))
        lowest, others = three[is_lower].groupby("cell")[bottom].min(), three[~is_lower].groupby("cell")[top].max()
        assert sorted(label.xy[1] for label in below) == pytest.approx(sorted(lowest))
        assert sorted(label.xy[1] for label in above) == pytest.approx(sorted(others))
        assert {label.get_horizontalalignment() for label in above} == {"left", "right"}, "two reach to either side"
    below, above = _below_and_above(BY_DEPTH.draw(two))
    assert (len(below), len(above)) == (0, 6)


def _below_and_above(figure: Figure) -> tuple[list[Annotation], list[Annotation]]:
    """The labels of widths below and above what they label."""
    labels = [text for text in figure.axes[0].texts if isinstance(text, Annotation) and text.get_text().startswith("H")]
    below = [label for label in labels if label.get_verticalalignment() == "top"]
    return below, [label for label in labels if label not in below]


@pytest.mark.slow
def test_lines_at_one_place_stand_side_by_side_and_a_line_alone_stands_there(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"architecture.norm": ["pre", "post"]}})
    for depth, norm, seed in product((1, 2, 4), ("pre", "post"), (0, 1)):
        add_run(folder, in_setting(run_config(depth, 64, seed=seed), norm=norm))
    folder.write_ledger()
    both = BY_DEPTH.frame(gather(folder, include_unbracketed=True))
    assert both["line"].nunique() == 2
    for _, at_place in both.groupby("place"):
        assert at_place["x"].nunique() == at_place["line"].nunique() == 2
        assert (at_place["x"] / at_place["place"]).between(0.8, 1.25).all()
    single = depth_or_width(tmp_path / "single", shapes=((1, 64), (2, 64), (4, 64)), budgets=(1e6,))
    single.write_ledger()
    alone = BY_DEPTH.frame(gather(single))
    assert len(alone)
    assert (alone["x"] == alone["place"]).all()


@pytest.mark.parametrize("factor", [2, 2.5, 3, 4, 6])
def test_ticks_of_a_logarithmic_axis_stand_about_evenly(factor: float) -> None:
    for low in np.geomspace(1e5, 1e6, 30):
        ticks = log_locators(low, factor * low)[0].tick_values(low, factor * low)
        steps = np.diff(np.log([tick for tick in ticks if low <= tick <= factor * low]))
        assert steps.max() < 2 * steps.min()


def test_a_figure_shows_visible_characters_of_names_alone(tmp_path: Path) -> None:
    """Control characters make an SVG that no browser opens, and those of direction reorder what it says."""
    odd = "lo\x1b[31mss \u202e$x$ <b>"
    data = drawable(pd.DataFrame({"name": [odd, "x"], "loss_nats": [3.0, 2.0]}))
    assert data["name"].tolist() == ["lo[31mss $x$ <b>", "x"]
    with theme():
        figure, axes = plt.subplots(layout="constrained")
        axes.set(title=odd, xlabel=odd, ylabel="loss")
        axes.plot([1, 2], label=odd)
        axes.legend()
    (file,) = save_in(figure, tmp_path, "figure")
    words = [" ".join(each.itertext()) for each in ElementTree.parse(file).iter() if each.tag.endswith("text")]
    assert words.count("lo[31mss $x$ <b>") == 3


def test_an_svg_names_its_font_once_and_looks_as_it_was_drawn() -> None:
    font = b"font-family: 'DejaVu Sans', sans-serif"
    drawn = (
        b'<svg width="9">\n  <path d="M 1.23456 2.5 \nL 10.00049 -3 \nz" style="fill: none"/>\n'
        b'  <text style="font-size: 9px; %s; fill: #262626" x="1.23456">L = 2.3456 nats</text>\n'
        b'  <text style="font-size: 9px; font-family: monospace; fill: #262626" y="-0.001">run</text>\n</svg>'
    )
    assert shortened(drawn % font) == (
        b'<svg style="%s" width="9">\n<path d="M1.2 2.5L10 -3z" style="fill: none"/>\n'
        b'<text style="font-size: 9px; fill: #262626" x="1.2">L = 2.3456 nats</text>\n'
        b'<text style="font-size: 9px; font-family: monospace; fill: #262626" y="-0">run</text>\n</svg>' % font
    )


def test_an_svg_keeps_the_names_that_something_refers_to_and_groups_points_once() -> None:
    clip = b'<clipPath id="p1">\n<rect id="r"/>\n</clipPath>\n<path id="m1"/>\n<g id="line2d_1">\n'
    points = [b'<use xlink:href="#m1" x="%d" y="1"/>' % x for x in range(3)]
    grouped = [b'<g clip-path="url(#p1)">\n%s\n</g>\n' % point for point in points]
    text = b'<text id="text_1">a id="b" &lt;g id="c"</text>\n</g>'
    assert shortened(clip + b"".join(grouped) + text) == (
        b'<clipPath id="p1">\n<rect/>\n</clipPath>\n<path id="m1"/>\n<g>\n<g clip-path="url(#p1)">\n%s\n</g>\n'
        b'<text>a id="b" &lt;g id="c"</text>\n</g>' % b"\n".join(points)
    )


def test_a_repeated_style_is_a_class_of_the_same_name_in_every_figure() -> None:
    """So that figures on one page do not restyle each other."""
    red, blue = (b"fill: #%s; stroke-width: 0.8" % colour for colour in (b"ff0000", b"0000ff"))

    def drawn(*styles: bytes) -> bytes:
        points = b"".join(b'<use style="%s"/>' % style for style in styles)
        return b'<svg><defs><style type="text/css">*{stroke-linejoin: round}</style></defs>%s</svg>' % points

    one, other = shortened(drawn(red, red, blue)), shortened(drawn(blue, red, blue, red))
    (name,) = re.findall(rb"\.(\w+)\{" + red, one)
    assert re.findall(rb"\.(\w+)\{" + red, other) == [name]
    assert one.count(b'<use class="%s"/>' % name) == 2
    assert b'<use style="%s"/>' % blue in one
    assert other.count(b"class=") == 4
    assert len(set(re.findall(rb'class="(\w+)"', other))) == 2


def test_names_with_braces_stay_on_a_page(tmp_path: Path) -> None:
    """Such as those of columns in a stranger's table."""
    with theme():
        figure, _ = panels([""], "width", "a*{b")
    title_above(figure, "loss of a*{b} and c")
    save_in(figure, tmp_path, "made_up")
    drawing = inline_svg(figure, (tmp_path / "made_up.svg").read_text(), "made_up", "made up")
    words = re.sub("<[^>]*>", "", drawing)
    assert "loss of a*{b} and c" in words
    assert words.count("a*{b") == 2
