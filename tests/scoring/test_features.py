"""`study features` writes an embedding for each line of a file, or says which line it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.scoring.features import embed, read_texts
from study.scoring.pretrained import pretrained
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.training.execution import Execution
from tests.live_memory import tracked_peak
from tests.small import config, trained, write_corpus

LINES = ["babadab", "gila nome dabe", "kame kame kame kame"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    place = tmp_path_factory.mktemp("features")
    return trained(place / "results" / "toy", config(write_corpus(place / "text.txt"), recipe={"budget": {"steps": 2}}))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def test_each_line_has_its_embedding(study: Any, run: RunFolder, texts: Path) -> None:
    status, out, _ = study("features", run.path, texts, "--precision", "fp32", "--device", "cpu")
    assert (status, out) == (0, f"3 embeddings of width 16: {texts.with_suffix('.npy')}\n")
    expected = embed(pretrained(run.path), LINES, [-1], "concat", "mean", "fp32", Execution()).values
    np.testing.assert_allclose(np.load(texts.with_suffix(".npy")), expected, atol=1e-6)
    by_id = study("features", run.run_id[:8], texts, "--device", "cpu", "--results", SweepFolder.of(run).path.parent)
    assert by_id[:2] == (0, out)


def test_features_are_all_that_is_kept_of_what_the_encoder_gives(run: RunFolder) -> None:
    """A view of the first token would keep the outputs of all; 512 texts of 16 tokens are a batch."""
    encoder = pretrained(run.path)
    two, eight = (
        tracked_peak(lambda n=batches: embed(encoder, ["kame " * 20] * (512 * n), [-1], "concat", "cls", "fp32", Execution()))  # type: ignore[misc]
        for batches in (2, 8)
    )
    assert eight < 1.1 * two


def test_line_ends_and_the_mark_of_another_system_are_no_part_of_a_text(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes("\ufeff".encode() + "\r\n".join([*LINES, ""]).encode())
    assert read_texts(path) == LINES


def test_a_parquet_file_keeps_the_texts_beside_the_embeddings(study: Any, run: RunFolder, texts: Path) -> None:
    into = texts.with_name("features.parquet")
    options = ("--layer", 0, "--pooling", "cls", "--precision", "fp32", "--device", "cpu", "--into", into)
    assert study("features", run.path, texts, *options)[0] == 0
    table = pd.read_parquet(into)
    assert table["text"].tolist() == LINES
    expected = embed(pretrained(run.path), LINES, [0], "concat", "cls", "fp32", Execution()).values
    np.testing.assert_allclose(np.stack(table["embedding"].tolist()), expected, atol=1e-6)


@pytest.mark.parametrize(("combination", "width"), [("concat", 32), ("sum", 16)])
def test_last_layers_are_combined(study: Any, run: RunFolder, texts: Path, combination: str, width: int) -> None:
    options = ("--layer", -2, "--layer", -1, "--combine", combination, "--precision", "fp32", "--device", "cpu")
    status, out, _ = study("features", run.path, texts, *options)
    assert (status, out) == (0, f"3 embeddings of width {width}: {texts.with_suffix('.npy')}\n")
    before, last = (
        embed(pretrained(run.path), LINES, [layer], "concat", "mean", "fp32", Execution()).values for layer in (1, 2)
    )
    expected = np.concatenate([before, last], 1) if combination == "concat" else before + last
    np.testing.assert_allclose(np.load(texts.with_suffix(".npy")), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"\n \n", (), "texts.txt: holds no text; give a file with one text per line"),
        (b"\xff\xfek\0", (), "texts.txt: is not UTF-8 text (byte 0); it looks like UTF-16; convert it with iconv"),
        (b"kame\xff\n", (), "texts.txt: is not UTF-8 text (byte 4)"),
        (b"kame\n", ("--into", "features.csv"), "--into: 'features.csv' is neither .npy nor .parquet"),
        (
            b"kame\n",
            ("--layer", 3),
            "--layer: layer 3 does not exist: run {run} has layers 0 (the embeddings) to 2, or -3 to -1",
        ),
        (b"kame\n", ("--layer", -4), "--layer: layer -4 does not exist"),
    ],
)
def test_what_cannot_be_embedded_is_refused(
    study: Any, run: RunFolder, texts: Path, content: bytes, options: tuple[object, ...], message: str
) -> None:
    texts.write_bytes(content)
    status, out, err = study("features", run.path, texts, *options)
    assert (status, out) == (2, "")
    assert message.format(run=run.run_id) in err
    assert not texts.with_suffix(".npy").exists()


def test_a_line_without_text_keeps_its_row(study: Any, run: RunFolder, texts: Path) -> None:
    texts.write_text("kame\n\nkame\n")
    status, _, err = study("features", run.path, texts, "--precision", "fp32", "--device", "cpu")
    assert (status, err) == (0, "1 line without text\n")
    first, empty, last = np.load(texts.with_suffix(".npy"))
    np.testing.assert_allclose(first, last, atol=1e-6)
    assert np.isfinite(empty).all()
    assert np.abs(empty - first).max() > 1e-3


def test_texts_that_lose_their_end_are_counted(study: Any, run: RunFolder, texts: Path) -> None:
    texts.write_text("kame\n" + "kame " * 99 + "\n")
    status, out, err = study("features", run.path, texts, "--device", "cpu")
    assert (status, err) == (0, "1 text cut to 16 tokens\n")
    assert out.startswith("2 embeddings")


def test_weights_that_are_gone_or_damaged_are_named(study: Any, run: RunFolder, texts: Path) -> None:
    whole = run.weights_file.read_bytes()
    try:
        run.weights_file.write_bytes(whole[: len(whole) // 2])
        status, _, err = study("features", run.path, texts)
        assert (status, f"{run.weights_file}: is damaged, and the weights are needed" in err) == (2, True)
        run.weights_file.unlink()
        status, _, err = study("features", run.path, texts)
        assert (status, f"{run.weights_file}: does not exist, but the weights are needed" in err) == (2, True)
    finally:
        run.weights_file.write_bytes(whole)


def test_a_file_that_is_not_there_is_refused(study: Any, run: RunFolder, tmp_path: Path) -> None:
    status, _, err = study("features", run.path, tmp_path / "nowhere.txt")
    assert status == 2
    assert "nowhere.txt: cannot be read: No such file or directory; give a file with one text per line" in err


def test_a_run_texts_and_an_output_that_cannot_be_are_reported_together(study: Any, tmp_path: Path) -> None:
    given = ("0123456789abcdef", tmp_path / "nowhere.txt", "--into", "features.csv", "--results", tmp_path)
    status, _, err = study("features", *given)
    assert status == 2
    assert all(words in err for words in ("nowhere.txt: cannot be read", "neither .npy nor .parquet", "0123456789abcdef: is "))
