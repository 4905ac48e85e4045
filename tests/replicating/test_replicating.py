"""Published numbers are met, and the page of the replications says so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from study.base.quantities import rounded_all
from study.replicating import studies
from study.replicating.studies import (
    Number,
    Study,
    chinchilla,
    data_constrained,
    olmo_ladder,
    open_lm,
    reconciliation,
    to_markdown,
)

FITTED: dict[str, Callable[..., Study]] = {
    study.__name__: cache(study) for study in (chinchilla, olmo_ladder, open_lm, data_constrained, reconciliation)
}
"""Every study, fitted once, whoever asks."""

HEADER = "Model Size,Training FLOP,loss\n"


@pytest.fixture(scope="module", autouse=True)
def _fitted_once() -> Iterator[None]:
    """Let the command take the studies that are fitted already."""
    with pytest.MonkeyPatch.context() as patch:
        for name, study in FITTED.items():
            patch.setattr(studies, name, study)
        yield


def disagreements(study: Study) -> list[Number]:
    assert study.numbers
    return [number for number in study.numbers if not number.agrees]


@pytest.mark.slow
def test_chinchilla_by_epoch(shared_data: Path) -> None:
    points = shared_data / "published" / "chinchilla" / "svg_extracted_data.csv"
    fitted = FITTED["chinchilla"](points)
    assert not disagreements(fitted)
    assert fitted.status == "converged"


@pytest.mark.parametrize(
    "name", [pytest.param("olmo_ladder", marks=pytest.mark.slow), "open_lm", "data_constrained", "reconciliation"]
)
def test_published_numbers_are_met(name: str) -> None:
    assert not disagreements(FITTED[name]())


COMMITTED = Path(__file__).resolve().parents[2] / "results" / "replications" / "replications.json"


def assert_committed(study: Study) -> None:
    (committed,) = [one for one in json.loads(COMMITTED.read_bytes()) if one["title"] == study.title]
    assert rounded_all(study.to_dict()) == committed


@pytest.mark.slow
def test_the_committed_numbers_of_chinchilla_are_what_is_fitted_now(shared_data: Path) -> None:
    assert_committed(FITTED["chinchilla"](shared_data / "published" / "chinchilla" / "svg_extracted_data.csv"))


@pytest.mark.parametrize(
    "name", [pytest.param("olmo_ladder", marks=pytest.mark.slow), "open_lm", "data_constrained", "reconciliation"]
)
def test_the_committed_numbers_are_what_is_fitted_now(name: str) -> None:
    assert_committed(FITTED[name]())


def test_page_and_json_hold_every_number_and_say_what_was_skipped(study: Any, tmp_path: Path) -> None:
    status, out, _ = study("replicate", "--into", tmp_path)
    page = (tmp_path / "replications.md").read_text()
    written = json.loads((tmp_path / "replications.json").read_text())
    assert (status, out.strip()) == (0, page.strip())
    assert len(written) == 5
    assert "Skipped: its points have no stated licence" in page
    assert all(number["name"] in page for study in written for number in study["numbers"])


@pytest.mark.parametrize("ours", [1 - 1e-9, 1.0, 1 + 1e-9])
def test_a_difference_that_rounds_to_nought_has_no_minus(ours: float) -> None:
    page = to_markdown((Study("t", "s", "m", "found", (Number("loss", 1.0, ours, 0.1),)),))
    assert "+0.0000%" in page
    assert "-0.0000%" not in page


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("N,loss\n1,2\n", "has no column Model Size, Training FLOP"),
        (f"{HEADER}1e6,1e12,3\n2e6,2e12,2.9\n", "holds 2 points of numbers above zero in 2 rows, not 245"),
        (HEADER + "1e6,1e12,3\n" * 243 + "1e6,0,3\n,1e12,3\n", "holds 243 points of numbers above zero in 245 rows, not 245"),
    ],
)
def test_points_that_are_not_chinchillas_are_refused(study: Any, tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "points.csv"
    if content is not None:
        path.write_text(content)
    status, _, err = study("replicate", "--into", tmp_path / "into", "--chinchilla", path)
    assert status == 2
    assert f"points.csv: {message}" in err
