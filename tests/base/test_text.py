"""Paths as people write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from study.base.errors import InputError
from study.base.text import path_from
from study.config.run_config import TokenizerConfig
from study.data.cache import cache_root
from study.data.corpora import corpus_files
from study.data.tokenizing import tokenizer_file
from study.tasks.task_spec import read_spec

NOBODY = "~nobody-has-this-name/x"


def test_a_path_may_begin_with_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert path_from("~/x.txt", "here") == tmp_path / "x.txt"
    assert path_from("x.txt", "here") == Path("x.txt")


def test_a_home_that_is_nobodys_is_refused_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDY_CACHE", NOBODY)
    refused = {}
    readers: dict[str, Callable[[], object]] = {
        "data.corpus": lambda: corpus_files(NOBODY),
        "data.tokenizer.path": lambda: tokenizer_file(TokenizerConfig(kind="file", path=NOBODY)),
        "STUDY_CACHE": cache_root,
        "--tasks": lambda: read_spec(NOBODY, "--tasks"),
    }
    for place, read in readers.items():
        with pytest.raises(InputError, match="begins with the home folder of an unknown user; give the full path") as caught:
            read()
        refused[place] = [problem.place for problem in caught.value.problems]
    assert refused == {place: [place] for place in refused}
