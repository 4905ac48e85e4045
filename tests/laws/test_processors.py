"""What a processor rounds otherwise moves no status and no number that is saved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from study.base.machine import processor_line
from study.base.quantities import rounded_all
from study.evidence.ledgers import selected
from study.laws.catalogue import LAWS
from study.laws.estimation import Settings, fit
from study.laws.forecasting import forecast, forecast_to_dict
from study.laws.law import Floats
from study.laws.minimising import Objective, minimise
from study.laws.observations import Observations
from study.laws.reading import TableQuery, read_observations
from study.laws.tables import RunTable
from tests.points import observed

ROOT = Path(__file__).resolve().parents[2]


def of_seeds(seeds: int) -> Observations:
    """Four shapes of so many seeds, of which two lie as far above a law as below it."""
    sizes = np.repeat([1e5, 1.2e5, 1.7e5, 2e5], seeds)
    off = np.tile([-0.02, 0.02, 0.005][:seeds], 4) * np.repeat([1, 1.2, 0.8, 1.1], seeds)
    return Observations.of({"parameters": sizes}, (3 + 13 * sizes**-0.15) * np.exp(off), sizes.astype(int))


def of_an_even_number() -> Observations:
    """Twelve rows so far off a power that Huber's loss is as low between the middle two as at either."""
    sizes = np.geomspace(1e6, 2e6, 12)
    noise = np.random.default_rng(3).normal(0, 0.02, 12)
    return Observations.of({"parameters": sizes}, 3 * sizes**-0.01 * np.exp(noise))


CASES: dict[str, tuple[str, Callable[[], Observations], dict[str, Any]]] = {
    "healthy": ("chinchilla", lambda: observed(LAWS["chinchilla"], rows=40), {}),
    "least squares": ("chinchilla", lambda: observed(LAWS["chinchilla"], rows=40), {"huber_delta": np.inf}),
    "a score": ("score-of-loss", lambda: observed(LAWS["score-of-loss"], rows=20), {"space": "linear"}),
    "two seeds of few shapes": ("power-floor", lambda: of_seeds(2), {}),
    "three seeds of few shapes": ("power-floor", lambda: of_seeds(3), {}),
    "an even number of rows": ("power", of_an_even_number, {}),
    "a floor that is not there": ("power-floor", lambda: observed(LAWS["power"], rows=20), {}),
    "few rows": ("chinchilla", lambda: observed(LAWS["chinchilla"], rows=7, noise=0.01), {}),
}
"""Healthy and degenerate fits: law, points and settings."""


def saved(name: str, change: Callable[[Floats], Floats] = lambda values: values) -> Any:
    """What is saved of a fit and its forecast, of points whose values are changed a little, alike where they are alike."""
    law, points, settings = CASES[name]
    given, chosen = points(), Settings(bootstrap=60, starts=32, **settings)
    columns = {}
    for column, values in given.columns.items():
        unique, places = np.unique(values, return_inverse=True)
        columns[column] = change(unique)[places]
    given = replace(given, columns=columns, response=change(given.response))
    fitted = fit(LAWS[law], given, chosen)
    return rounded_all(fitted.to_dict() | {"forecast": forecast_to_dict(forecast(LAWS[law], given, chosen))})


@cache
def as_they_are(name: str) -> Any:
    """What is saved of the points as they are."""
    return saved(name)


def perturbed(random: np.random.Generator, values: Floats) -> Floats:
    """The values as another processor might have rounded them."""
    return values * (1 + 1e-12 * random.uniform(-1, 1, len(values)))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("healthy", "an even number of rows") else pytest.mark.slow) for name in CASES],
)
def test_a_table_that_differs_by_rounding_gives_the_same_status_and_file(name: str) -> None:
    expected = as_they_are(name)
    assert saved(name, partial(perturbed, np.random.default_rng(0))) == expected


@pytest.mark.parametrize("draw", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_resamples_that_hardly_determine_a_law_are_the_same_on_every_processor(draw: int) -> None:
    """Of six shapes some resamples leave a term out, and others end in a valley without a bottom."""
    ledger = selected(RunTable.read(ROOT / "results" / "reference" / "forecast_six_times" / "ledger.parquet"))
    given, random = read_observations(TableQuery(ledger), LAWS["chinchilla"]), np.random.default_rng(draw)
    there = replace(given, response=given.response * (1 + 1e-15 * random.uniform(-1, 1, len(given))))
    one, other = (rounded_all(fit(LAWS["chinchilla"], points).to_dict()) for points in (given, there))
    assert other == one


def test_a_term_that_is_left_out_converges_and_its_exponent_stays_at_its_start() -> None:
    """A gain that no bound limits would be promised by the exponent however small the coefficient is."""
    sizes = np.geomspace(1e6, 1e8, 8)
    law, rising = LAWS["power-floor"].at({"parameters": sizes}), 3 * sizes**0.01
    objective = Objective(law, rising, 1e-3, "log")
    start = np.array([[3.5, coefficient, 0.7] for coefficient in (1e-3, 1e-9, 1e-30)])
    minimum = minimise(objective, start, np.ones((3, 8)))
    assert minimum.converged.all()
    assert minimum.theta[:, 1] == pytest.approx(0, abs=1e-12)
    assert (minimum.theta[:, 2] == 0.7).all()


HAS_AVX512 = "avx512f" in (processor_line("flags") or "").split()
OTHERS = {
    "AVX-512": {"OPENBLAS_CORETYPE": "SkylakeX"},
    "AVX2": {"OPENBLAS_CORETYPE": "Zen", "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512F AVX512_SKX"},
    "SSE3": {
        "OPENBLAS_CORETYPE": "Prescott",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX2 FMA3 AVX512F AVX512_SKX",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F",
    },
}
"""What makes OpenBLAS, numpy and the C library take the instructions of another processor; unknown names change nothing.

OpenBLAS does as it is told even where the processor lacks the instructions, and the process is killed.
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        "SSE3",
        "AVX2",
        pytest.param("AVX-512", marks=pytest.mark.skipif(not HAS_AVX512, reason="this processor has no AVX-512")),
    ],
)
def test_other_processors_give_the_same_status_and_file(other: str) -> None:
    """As far as one can behave like others: sums, logarithms and exponentials differ in their last bits."""
    code = (
        f"import json; from tests.laws.test_processors import CASES, saved; print(json.dumps([saved(n) for n in {[*CASES]}]))"
    )
    expected = json.loads(json.dumps([as_they_are(name) for name in CASES]))
    environment = {**os.environ, **OTHERS[other], "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for name, here, there in zip(CASES, expected, json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert there == here, name


@pytest.mark.parametrize("starts", [8, 32])
def test_of_minima_that_are_equally_low_the_least_squares_decide_and_not_the_start(starts: int) -> None:
    """Each of them was reported before, whichever start had led to the lowest by rounding."""
    points = of_an_even_number()
    usual, few = (fit(LAWS["power"], points, Settings(bootstrap=0, starts=count)) for count in (128, starts))
    assert few.estimates == pytest.approx(usual.estimates, rel=1e-9)
    assert few.objective == pytest.approx(usual.objective, rel=1e-9)


def test_a_flat_optimum_is_named_and_has_no_interval() -> None:
    fitted = fit(LAWS["power-floor"], of_seeds(2), Settings(bootstrap=100))
    assert fitted.status == "weakly_identified"
    assert fitted.reasons[0] == "the optimum is flat: other values of E, A and alpha fit the rows equally well"
    assert fitted.intervals == {}
    assert fitted.estimates == pytest.approx({"E": 3, "A": 13, "alpha": 0.15}, rel=1e-6), "that of least squares"
    assert not any("flat" in reason for reason in fit(LAWS["power-floor"], of_seeds(3)).reasons)


def test_numbers_are_rounded_to_the_digits_of_their_interval() -> None:
    fitted = fit(LAWS["chinchilla"], observed(LAWS["chinchilla"], rows=40), Settings(bootstrap=100))
    as_dict = fitted.to_dict()
    for name, value in as_dict["estimates"].items():
        low, high = as_dict["intervals"][name]
        assert value == pytest.approx(fitted.estimates[name], abs=1e-5 * (high - low))
        assert len(f"{value:.15g}".replace(".", "").lstrip("0")) <= 9
