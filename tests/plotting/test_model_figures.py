"""The figures of counting alone: their data are right, and the command draws them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from study.cli import commands
from study.counting.named_models import catalogue, named
from study.counting.parameters import parameters
from study.plotting import model_figures
from study.plotting.model_figures import GROUPS, elasticities, elasticities_frame, shares_frame


def test_shares_of_every_model_add_up_to_one() -> None:
    data = shares_frame(catalogue())
    assert data.groupby("model")["share"].sum().to_numpy() == pytest.approx(1)
    assert set(data["group"]) == set(GROUPS)
    tiny = data[data["model"] == "bert-tiny"].set_index("group")["count"]
    assert tiny["token embeddings"] == 3_906_816
    assert tiny.sum() == 4_416_698


def test_each_architecture_is_drawn_once() -> None:
    shown = model_figures.shown(catalogue())
    assert len({model.architecture for model in shown}) == len(shown)
    names = [model.short_name for model in shown]
    assert "bert-base" in names
    assert "bert-l2-h768" not in names
    assert {"modernbert-base", "ettin-150m"} <= {*names}, "their local layers differ in rotary angles"


@pytest.mark.parametrize("name", ["bert-tiny", "bert-base", "bert-large"])
def test_elasticities_are_the_limits_of_small_steps(name: str) -> None:
    base = named(name)
    scaled = base.model_copy(update={size: getattr(base, size) * 1000 for size in ("width", "ffn", "vocabulary", "positions")})
    wider = scaled.model_copy(update={"width": scaled.width + scaled.width // 1000, "ffn": scaled.ffn + scaled.ffn // 1000})
    step = math.log(parameters(wider).parameters / parameters(scaled).parameters) / math.log(1.001)
    assert elasticities(scaled)["width"] == pytest.approx(step, rel=1e-3)
    depth = elasticities(base)["depth"]
    blocks = sum(c.count for c in parameters(base).components if c.name in ("attention", "ffn", "block norms"))
    assert depth == pytest.approx(blocks / parameters(base).parameters)


def test_the_plane_has_every_shape_once_and_its_elasticities_within_their_bounds() -> None:
    data = elasticities_frame(named("bert-base"), (1, 12), (64, 768))
    assert sorted(zip(data["depth"], data["width"], strict=True)) == [(1, 64), (1, 768), (12, 64), (12, 768)]
    assert data["depth_elasticity"].between(0, 1).all()
    assert data["width_elasticity"].between(1, 2).all()


def test_the_command_draws_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = model_figures.shown(catalogue())[:2]
    monkeypatch.setattr(model_figures, "shown", lambda _: few)
    svg = {"elasticities.svg", "where_parameters_are.svg"}
    pdf = {name.replace("svg", "pdf") for name in svg}
    for options, expected in ((["--formats", "pdf"], svg | pdf), ([], svg)):
        done = CliRunner().invoke(commands, ["figures", "--into", str(tmp_path / "figures"), *options])
        assert done.exit_code == 0
        assert {path.name for path in (tmp_path / "figures").iterdir()} == expected, "no PDF outlives its SVG"
