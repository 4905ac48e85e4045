"""What the tests share: small architectures, a small corpus, and checks of tensor shapes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

settings.register_profile("unhurried", parent=settings.default, deadline=None, max_examples=50, derandomize=True)
settings.register_profile("fuzz", parent=settings.get_profile("unhurried"), max_examples=5000, derandomize=False)
settings.load_profile("unhurried")

CHECKED = ("embeddings", "encoder", "heads", "linear", "loss", "masked_language_model")
install_import_hook([f"study.model.{name}" for name in CHECKED], "beartype.beartype")
install_import_hook("study.data.masking", "beartype.beartype")

if "PYTEST_XDIST_WORKER" not in os.environ:  # workers take the cache of the process that started them
    os.environ["STUDY_CACHE"] = os.environ.get("STUDY_TEST_CACHE") or tempfile.mkdtemp(prefix="study-cache-")
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["WANDB_MODE"] = "offline"


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """No power fails while tests run: files are not synced, a third of the time of tests that write many runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Each test starts with one thread, whatever one before it has set: the last bit of a sum depends on their number."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora and published results beside the project; tests that need them are skipped elsewhere."""
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not here")
    return SHARED


@pytest.fixture(scope="module")
def few_resamples() -> Iterator[None]:
    """A quarter of the usual resamples, for the laws of a sweep and of its scores, frontiers and universes."""
    from study.evidence import downstream, shape_multiverse, sweep_laws
    from study.laws import multiverse
    from study.laws.approaches import resample_frontier

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resample_frontier, "__defaults__", (100,))
        for module, name in (
            (multiverse, "UNIVERSE_SETTINGS"),
            (shape_multiverse, "UNIVERSE_SETTINGS"),
            (sweep_laws, "DEFAULT_SETTINGS"),
            (downstream, "_SETTINGS"),
            (downstream, "_LOSS_SETTINGS"),
        ):
            patch.setattr(module, name, replace(getattr(module, name), bootstrap=100))
        yield


Figure = Callable[[str], None]


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Figure:
    """Takes what a test counted or measured; it is shown when all tests have run."""
    return lambda text: record_property("figure", text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("passed", [])
    lines = [
        value for report in reports for name, value in report.user_properties if name == "figure" and report.when == "call"
    ]
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.line(str(line))


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command and returns its exit status, standard output and standard error."""
    from study.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["study", *map(str, arguments)])
        try:
            main()
            status = 0
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 0
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
