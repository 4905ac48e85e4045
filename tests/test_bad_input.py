"""Bad input through the `study` command: exit status 2, place, value and remedy, no traceback, and nothing left behind."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import sys
from collections.abc import Iterator
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.base.errors import InputError
from study.cli import MOST_REPORTED, main
from study.config.sweep_files import read_sweep
from study.data.corpora import check_corpus
from study.data.text_readers import read_file
from study.planning.plan import Plan
from tests.full_disk import files_of_at_most
from tests.small import write_corpus
from tests.synthetic import add_run, run_config, sweep_folder

GOOD = """\
question: Why?
data: {corpus: text.txt, tokenizer: {vocabulary: 200}, sequence_length: 16, validation_sequences: 32}
base: {recipe: {batch_tokens: 256}}
shapes: {grid: {depth: [1], width: [16], heads: [2]}}
budgets: {steps: [10]}
"""
WITHOUT_SHAPES = GOOD.replace("shapes: {grid: {depth: [1], width: [16], heads: [2]}}\n", "")

with pytest.raises(ValueError, match="day ") as no_day:
    date(2026, 2, 30)
NO_SUCH_DAY = str(no_day.value)
"""What Python says of a day that there is not, in other words from version to version."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to call `study` in, with a cache of its own and a good corpus."""
    folder = tmp_path / "here"
    folder.mkdir()
    write_corpus(folder / "text.txt", documents=400)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("STUDY_CACHE", str(tmp_path / "cache"))
    return folder


class Refusal:
    """What `study` says when it refuses."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def of(self, *arguments: object, prefix: str = "error: ") -> list[str]:
        """The messages, one a line; fails unless the command exits with 2, and leaves every file as it was."""
        self._monkeypatch.setattr(sys, "argv", ["study", *map(str, arguments)])
        before = sorted(Path().rglob("*"))
        with pytest.raises(SystemExit) as ended:
            main()
        output, errors = self._capsys.readouterr()
        assert ended.value.code == 2
        assert "Traceback" not in output + errors
        assert sorted(Path().rglob("*")) == before
        lines = [line for line in errors.splitlines() if line.startswith(prefix)]
        assert lines, errors
        return [line.removeprefix(prefix) for line in lines]


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refusal:
    return Refusal(capsys, monkeypatch)


def one(messages: list[str]) -> str:
    assert len(messages) == 1, messages
    return messages[0]


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """No data is looked at."""

    def touched(*_: object, **__: object) -> None:
        pytest.fail("data was prepared for a sweep that cannot be")

    monkeypatch.setattr("study.running.launch.prepare", touched)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("question: Why?", "question: Why?\nsedes: 2", "sedes: is not a known key; did you mean 'seeds'?"),
        ("corpus:", "corpsu: x, corpus:", "data.corpsu: is not a known key; did you mean 'corpus'?"),
        ("depth: [1]", "depth: [1], dept: [2]", "shapes.grid.dept: is not a known key; did you mean 'depth'?"),
        ("question: Why?", "question: Why?\nquestion: How?", "x.yaml:2:1: is not valid YAML: the key 'question' appears twice"),
        ("question: Why?\n", "", "question: is missing and has no default"),
        ("question: Why?", "question: Why?\n7: 8", "7"),
        ("heads: [2]", "heads: [3]", "shapes.grid.heads: [3] has 3, which does not divide width 16; leave heads out"),
        ("depth: [1]", "depth: [0]", "shapes.grid.depth[0]: 0 is below the least allowed, 1"),
        ("depth: [1]", "depth: []", "shapes.grid.depth: [] is empty"),
        ("depth: [1]", "depth: 1", "shapes.grid.depth: 1"),
        ("width: [16]", "width: [1000000000000]", "shapes.grid.width[0]: 1000000000000 is above the most allowed, 1,000,000"),
        ("width: [16]", "width: [true]", "shapes.grid.width[0]: True is true or false, not a number"),
        ("batch_tokens: 256", "learning_rate: -1e-3", "base.recipe.learning_rate: -0.001 must be above 0"),
        ("batch_tokens: 256", "learning_rate: .nan", "base.recipe.learning_rate: nan must be a finite number"),
        ("batch_tokens: 256", "learning_rate: .inf", "base.recipe.learning_rate: inf must be a finite number"),
        (
            "batch_tokens: 256",
            "learning_rate: yes",
            "base.recipe.learning_rate: True is true or false, not a number",
        ),
        ("batch_tokens: 256", "batch_tokens: 100", "recipe.batch_tokens 100 is not a multiple of data.sequence_length 16"),
        ("batch_tokens: 256", "budget: {steps: 1, tokens: 5}", "base.recipe.budget: belongs under budgets, beside base"),
        (
            "base: {recipe: {batch_tokens: 256}}",
            "base: {data: {corpus: x}}",
            "base.data: belongs beside base, not under it",
        ),
        (
            "base: {recipe: {batch_tokens: 256}}",
            "base: {batch_tokens: 256}",
            "base.batch_tokens: is not a known key; did you mean 'recipe.batch_tokens'?",
        ),
        (
            "base: {recipe: {batch_tokens: 256}}",
            "base: {rate: 1}",
            "base.rate: is not a known key; known: architecture, recipe",
        ),
        ("base: {recipe: {batch_tokens: 256}}", "base: [1]", "base: [1] is not a mapping of keys to values"),
        ("steps: [10]", "tokens: 1e5", "budgets.tokens: '1e5' is not a list; write it in brackets, such as [1e5]"),
        (
            "base: {recipe: {batch_tokens: 256}}",
            "base: {architecture: {positions: 8}}",
            "architecture.positions 8 is below data.sequence_length 16",
        ),
        ("steps: [10]", "tokens: [255]", "budgets.tokens: 255 tokens are less than one batch of 256"),
        ("steps: [10]", "flops: [10]", "less than one batch of 256"),
        ("steps: [10]", "flops: [1e30]", "recipe.budget.flops 1e+30 pays for 4.15e+25 tokens, more than the 9,223,372,036"),
        ("steps: [10]", "tokens: [1e30]", "budgets.tokens[0]: '1e30' is above the most allowed, 1e+18"),
        (
            "batch_tokens: 256",
            "learning_rate: 1e308",
            "base.recipe.learning_rate: '1e308' is beyond what devices calculate with, 1e-37 to 1e+37",
        ),
        (
            "batch_tokens: 256",
            "weight_decay: 1e308",
            "base.recipe.weight_decay: '1e308' is beyond what devices calculate with, 1e-37 to 1e+37",
        ),
        (
            "batch_tokens: 256",
            "epsilon: 1e-320",
            "base.recipe.epsilon: '1e-320' is beyond what devices calculate with, 1e-37 to 1e+37",
        ),
        (
            "question: Why?",
            "question: Why?\ntune: {recipe.learning_rate: {low: 1e-3, high: 1e50, trials: 9}}",
            "tune.recipe.learning_rate.high: '1e50' is beyond what devices calculate with, 1e-37 to 1e+37",
        ),
        (
            "question: Why?",
            "question: Why?\nresources: {slurm: {memory: abc}}",
            "resources.slurm.memory: 'abc' is not an amount of memory; write 64GB or 500MB",
        ),
        (
            "question: Why?",
            f"question: Why?\nresources: {{devices: {10**12}}}",
            f"resources.devices: {10**12} is above the most allowed, 100,000",
        ),
        (
            "grid: {depth: [1], width: [16], heads: [2]}",
            "iso_parameters: [1.0e5], depth: [1], ffn_ratio: 1.0e-3, tolerance: 1.0e-320",
            "shapes.tolerance: 1e-320 is beyond what devices calculate with, 1e-37 to 1e+37",
        ),
        (
            "grid: {depth: [1], width: [16], heads: [2]}",
            "iso_parameters: [1.0e5], depth: [1], ffn_ratio: 1.0e-320",
            "shapes.ffn_ratio[0]: 1e-320 is ",
        ),
        ("steps: [10]", "epochs: [1]", "budgets.epochs: is not a known key"),
        ("vocabulary: 200", "vocabulary: 10", "data.tokenizer.vocabulary: 10 is below the least allowed, 64"),
        ("vocabulary: 200", "vocabulary: 0", "data.tokenizer.vocabulary: 0 is below the least allowed, 64"),
        ("vocabulary: 200", "kind: file", "data.tokenizer: needs a path exactly when its kind is 'file'"),
        ("question: Why?", "question: Why?\nseeds: 0", "seeds: 0 is below the least allowed, 1"),
        (
            "question: Why?",
            "question: Why?\nseeds: [0, 1, 2]",
            "seeds: [0, 1, 2] is a list; give the number of seeds, as in seeds: 3",
        ),
        ("batch_tokens: 256", "batch_tokens: 2.0005K", "base.recipe.batch_tokens: 2000.5 is not a whole number"),
        ("batch_tokens: 256", "batch_tokens: 16KB", "base.recipe.batch_tokens: '16KB' is not a whole number"),
        ("question: Why?", "question: Why?\nname: ../../x", "name: '../../x' cannot name a folder"),
        ("question: Why?", "question: Why?\nname: a/b", "name: 'a/b' cannot name a folder"),
        (
            "question: Why?",
            "question: Why?\ntune: {recipe.learning_rte: {low: 1e-3, high: 1e-2, trials: 2}}",
            "tune.recipe.learning_rte: is not a knob of a run; did you mean 'recipe.learning_rate'?",
        ),
        (
            "question: Why?",
            "question: Why?\ntune: {recipe.learning_rate: {low: 1e-2, high: 1e-3, trials: 2}}",
            "tune.recipe.learning_rate: low 0.01 is not below high 0.001",
        ),
        (
            "question: Why?",
            "question: Why?\ntune: {recipe.learning_rate: {low: 1e-3, high: 1e-2, trials: 1000000000}}",
            "tune.recipe.learning_rate.trials: 1000000000 is above the most allowed, 1,000",
        ),
        (
            "grid: {depth: [1], width: [16], heads: [2]}",
            "iso_parameters: [100], depth: [1]",
            "shapes.iso_parameters 100 at depth 1: the nearest width, 8, has 888 parameters; move the target",
        ),
        (
            "grid: {depth: [1], width: [16], heads: [2]}",
            "iso_parameters: [1e30], depth: [1]",
            "is above the most allowed, 1,000,000,000,000",
        ),
        (
            "grid: {depth: [1], width: [16], heads: [2]}",
            f"iso_parameters: [1.0e5], depth: [1], head_width: {10**18}",
            f"shapes.head_width[0]: {10**18} is above the most allowed, 1,000,000",
        ),
        (
            "grid: {depth: [1], width: [16], heads: [2]}",
            "iso_parameters: [1.0e5], depth: [1], width_multiple: 10000000",
            "shapes.width_multiple: 10000000 is above the most allowed, 1,000,000",
        ),
        (
            "grid: {depth: [1], width: [16], heads: [2]}",
            "iso_parameters: [1.0e5], depth: [1], ffn_ratio: 1.0e+30",
            "shapes.ffn_ratio[0]: 1e+30 is above the most allowed, 1,000",
        ),
        (
            "grid: {depth: [1], width: [16], heads: [2]}",
            "depth: [1]",
            "shapes: needs exactly one of iso_parameters, grid, list",
        ),
    ],
)
@pytest.mark.parametrize("command", ["plan", "launch"])
def test_a_sweep_file_with_one_thing_wrong(
    command: str, old: str, new: str, message: str, here: Path, refusal: Refusal, no_data: None
) -> None:
    assert GOOD.count(old) == 1
    Path("x.yaml").write_text(GOOD.replace(old, new))
    assert message in one(refusal.of(command, "x.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WITHOUT_SHAPES, "needs exactly one of shapes"),
        (
            GOOD + "search: {trials: 2, space: {recipe.dropout: {low: 0, high: 0.5}}}\n",
            "needs exactly one of shapes",
        ),
        (WITHOUT_SHAPES + "search: {trials: 2, space: {recipe.dropout: {low: 0, high: 0.5}}}\n", "base.architecture.depth"),
        (
            WITHOUT_SHAPES + "search: {trials: 2, space: {dropout: {low: 0, high: 0.5}}}\n",
            "search.space.dropout: is not a knob",
        ),
        (
            WITHOUT_SHAPES + "search: {trials: 2, space: {architecture.width: {low: 1, high: 1e12}}}\n",
            "width reaches 1e+12, above",
        ),
        (
            WITHOUT_SHAPES + "search: {trials: 2, space: {architecture.width: {low: 0, high: 128, step: 64}}}\n",
            "width reaches 0, below the least allowed, 1",
        ),
        (
            WITHOUT_SHAPES + "search: {trials: 2, space: {architecture.width: {choices: [64, -64]}}}\n",
            "width reaches -64, below the least allowed, 1",
        ),
        (
            WITHOUT_SHAPES.replace("base: {", "base: {architecture: {width: 0}, ")
            + "search: {trials: 2, space: {architecture.depth: {choices: [1, 2]}}}\n",
            "base.architecture.width: 0 is below the least allowed, 1",
        ),
        (WITHOUT_SHAPES + "search: {trials: 2, space: {}}\n", "search.space: is empty"),
        (
            WITHOUT_SHAPES.replace("base: {", "base: {architecture: {width: 16}, ")
            + "search: {trials: 2, head_width: 32, space: {architecture.depth: {choices: [1, 2]}}}\n",
            "head_width 32 does not divide width 16",
        ),
        (
            WITHOUT_SHAPES + "search: {trials: 2, space: {architecture.width: {low: 16, high: 64, step: 100}}}\n",
            "step 100 from low 16 goes beyond high 64",
        ),
    ],
)
@pytest.mark.parametrize("command", ["plan", "launch"])
def test_shapes_or_a_search(command: str, text: str, message: str, here: Path, refusal: Refusal, no_data: None) -> None:
    Path("x.yaml").write_text(text)
    assert any(message in line for line in refusal.of(command, "x.yaml"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "x.yaml: does not exist"),
        (b"", "x.yaml: is empty"),
        (b"# nothing but a comment\n", "x.yaml: is empty"),
        (b"- a\n- b\n", "x.yaml: does not hold keys and values"),
        (b"just words", "x.yaml: does not hold keys and values"),
        (
            b"question: [1\nbudgets: 2\n",
            "x.yaml:2:8: is not valid YAML: expected ',' or ']', but got ':'; close what opens at 1:11, or put text that holds",
        ),
        (b"question: 'Why?\nbudgets: 2\n", "found unexpected end of stream; close what opens at 1:11, or"),
        (b"question: Why: so?\n", "x.yaml:1:14: is not valid YAML: mapping values are not allowed here; a colon and a space"),
        (b"base: 1\n  seeds: 2\n", "a space after the colon of each key"),
        (b"question: @x\n", "found character '@' that cannot start any token; put text that begins with it in quotes"),
        (b"data:\n  corpus: x\n seeds: 2\n", "x.yaml:3:2: is not valid YAML: expected <block end>"),
        (b"data:\n  corpus: x\n seeds: 2\n", "give all keys of a mapping the same indent"),
        (
            b"question: ok\n\tbudgets: 2\n",
            "x.yaml:2:1: is not valid YAML: found character '\\t' that cannot start any token; indent by spaces, not by tabs",
        ),
        (b"question: !!python/object/apply:os.system [true]\n", "x.yaml:1:11: is not valid YAML"),
        (
            b"tags: [2026-02-30]\n",
            f"x.yaml:1:8: is not valid YAML: '2026-02-30' cannot be read: {NO_SUCH_DAY}; put text in quotes",
        ),
        (
            b"seeds: 010\n",
            "x.yaml:1:8: is not valid YAML: 010 is octal or a time in YAML, not a plain number; write it without",
        ),
        (b"seeds: 1:30\n", "x.yaml:1:8: is not valid YAML: 1:30 is octal or a time in YAML"),
        (b"base: &b {x: *b}\n", "x.yaml:1:14: is not valid YAML: the value contains itself"),
        (b"question: caf\xe9\n", "x.yaml: is not UTF-8 text (byte 13)"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "x.yaml:1:1: is not valid YAML: the character '\\x7f' is not allowed here"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "launch"])
def test_a_file_that_is_no_sweep(
    command: str, content: bytes | None, message: str, here: Path, refusal: Refusal, no_data: None
) -> None:
    if content is not None:
        Path("x.yaml").write_bytes(content)
    assert message in refusal.of(command, "x.yaml")[0]


@pytest.mark.parametrize("command", ["plan", "launch"])
def test_files_of_the_data_that_are_missing_are_reported_together(
    command: str, here: Path, refusal: Refusal, no_data: None
) -> None:
    text = GOOD.replace("text.txt", "nowhere/x.parquet")
    Path("x.yaml").write_text(text.replace("{vocabulary: 200}", "{kind: file, path: no.txt, vocabulary: 200}"))
    corpus, tokenizer = refusal.of(command, "x.yaml")
    assert "data.corpus: 'nowhere/x.parquet' does not exist" in corpus
    assert corpus.endswith(f"(looked at {here}/nowhere/x.parquet)")
    assert "data.tokenizer.path: 'no.txt' is not a file" in tokenizer
    assert tokenizer.endswith(f"(looked at {here}/no.txt)")


def test_a_teacher_is_looked_for_from_where_one_stands(here: Path, refusal: Refusal) -> None:
    Path("x.yaml").write_text(GOOD)
    run = "results/a/runs/0123456789abcdef"
    message = one(refusal.of("plan", "x.yaml", f"base.recipe.teacher={run}:weight=0.5"))
    assert message.startswith(f"recipe.teacher {run}: is not the folder of a finished run; ")
    assert message.endswith(f"(looked at {here / run})")


def test_a_folder_is_no_sweep_file(here: Path, refusal: Refusal) -> None:
    assert one(refusal.of("plan", ".")) == ".: cannot be read: Is a directory"


def test_everything_wrong_is_reported_at_once_before_data_is_touched(here: Path, refusal: Refusal, no_data: None) -> None:
    Path("x.yaml").write_text(
        "question: Why?\nsedes: 2\ndata: {corpus: text.txt, tokenizer: {vocabulary: 200}, sequence_length: 16}\n"
        "base: {recipe: {learning_rate: -1, batch_tokens: 256, warmup: 3}}\n"
        "shapes: {list: [{depth: 0, width: 16}, {depth: 1, width: 16, heads: 5}]}\nbudgets: {tokens: [100]}\n"
    )
    messages = refusal.of("launch", "x.yaml", "seeds=0", "nonsense")
    assert {message.partition(": ")[0] for message in messages} == {
        "sedes",
        "seeds",
        "'nonsense'",
        "base.recipe.learning_rate",
        "base.recipe.warmup",
        "shapes.list[0].depth",
        "shapes.list[1].heads",
        "budgets.tokens",
        "data.validation_sequences",
    }


def test_of_a_list_that_is_wrong_throughout_the_first_are_reported(here: Path, refusal: Refusal) -> None:
    Path("x.yaml").write_text(GOOD + f"tags: {[*range(300)]}\n")
    messages = refusal.of("plan", "x.yaml")
    assert messages[0] == "tags[0]: 0 is not text; write it in quotes, such as '0'"
    assert messages[MOST_REPORTED:] == [f"and {300 - MOST_REPORTED} more"]


def test_targets_that_no_width_meets_are_reported_beside_what_else_is_wrong(
    here: Path, refusal: Refusal, no_data: None
) -> None:
    Path("x.yaml").write_text(GOOD.replace("grid: {depth: [1], width: [16], heads: [2]}", "iso_parameters: [100], depth: [1]"))
    tuned = "tune={recipe.learning_rate: {low: 2, high: 1, trials: 2}}"
    messages = refusal.of("plan", "x.yaml", tuned, "vary={recipe.dropout: [2]}", "base.recipe.epsilon=-1")
    assert {message.partition(": ")[0] for message in messages} == {
        "shapes.iso_parameters 100 at depth 1",
        "tune.recipe.learning_rate",
        "base.recipe.epsilon",
        "vary.recipe.dropout",
    }
    messages = refusal.of("plan", "x.yaml", "vary={recipe.dropout: [2]}")
    assert {message.partition(": ")[0] for message in messages} == {
        "shapes.iso_parameters 100 at depth 1",
        "vary.recipe.dropout",
    }


def test_runs_files_and_tasks_that_cannot_be_are_reported_together(here: Path, refusal: Refusal, no_data: None) -> None:
    Path("x.yaml").write_text(GOOD)
    messages = refusal.of(
        "plan", "x.yaml", "vary={recipe.dropout: [0, 2]}", "data.corpus=gone.txt", "downstream=[colaa, sst22]"
    )
    tasks = {"downstream.tasks[0]", "downstream.tasks[1]"}
    assert {message.partition(": ")[0] for message in messages} == {"vary.recipe.dropout", "data.corpus"} | tasks
    assert "downstream.tasks[0]: 'colaa' is not known, nor is it a .yaml file; did you mean 'cola'?" in messages


def test_the_mask_that_embeddings_leave_out_is_that_of_the_tokeniser(here: Path, refusal: Refusal, study: Any) -> None:
    Path("x.yaml").write_text(GOOD.replace("base: {", "base: {architecture: {segments: 0, position_encoding: rotary}, "))
    knob = "architecture.token_dropout"
    assert study("plan", "x.yaml", f"base.{knob}=4", "--json")[0] == 0
    remedy = "is not the id of the tokeniser's mask piece; give 4, or leave it out"
    assert one(refusal.of("plan", "x.yaml", f"base.{knob}=7")) == f"base.{knob}: 7 {remedy}"
    assert one(refusal.of("plan", "x.yaml", f"vary={{{knob}: [none, 4, 7]}}")) == f"vary.{knob}: 7 {remedy}"


def test_encoders_that_do_not_fit_into_memory_are_not_timed(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of width 128 and 30,522 pieces have 4.4M parameters: 17.5 MB, and others stay beside them."""
    monkeypatch.setattr("study.planning.memory_check.available_memory_bytes", lambda: 30_000_000)
    monkeypatch.setattr("study.benching.forward_passes.measure", lambda *_: pytest.fail("was timed"))
    asked = ("latency", "--sequence-length", "8", "--batch", "1", "--shapes")
    assert one(refusal.of(*asked, "2x128,4x128")).startswith("--models and --shapes: need 36")
    assert one(refusal.of(*asked, "2x100000")).endswith("but 30 MB are free; give fewer or smaller ones, batches or lengths")


EVERY_MISTAKE = [
    (
        ["budgets={flops: [1, 1.0e9], tokens_per_parameter: [1.0e-4]}"],
        [
            "recipe.budget.flops 1 pays for 0 tokens, less than one batch of 256",
            "recipe.budget.tokens_per_parameter 0.0001 pays for 1 tokens, less than one batch of 256",
        ],
    ),
    (
        ["vary={recipe.warmup_tokens: [128, 1.0e+9], architecture.convolution_kernel: [0, 4]}"],
        [
            "architecture.convolution_kernel 4 stands beside the first of several blocks in norm post; leave it out",
            "recipe.warmup_tokens 1e+09 are 3,906,250 steps, more than the 10 of recipe.budget.steps 10",
        ],
    ),
    (
        ["shapes=", "budgets=", "spend={flops: 1.0e12}", "pool={depth: [1, 2], width: [16, 32], tokens: [100, 1000]}",
         "goal={forecast: {parameters_non_embedding: 1.0e6, tokens: 1.0e6}, within: 60%}"],
        ["goal.within: 0.6 is above the most allowed, 0.5"],
    ),
    (
        ["shapes=", "budgets=", "spend={flops: 1.0e12}", "pool={depth: [1, 2], width: [16, 32], tokens: [100, 1000]}",
         "goal={forecast: {parameters_non_embedding: 1.0e6, tokens: 1.0e6}, within: 2%}"],
        [f"recipe.budget.tokens {tokens} pays for {tokens:.0f} tokens, less than one batch of 256" for tokens in (100, 215.4)],
    ),
    (
        ["base.architecture.positions=8", "base.recipe.batch_tokens=100", "base.recipe.unique_tokens=3"],
        [
            "architecture.positions 8 is below data.sequence_length 16",
            "recipe.batch_tokens 100 is not a multiple of data.sequence_length 16; give 96 or 112",
            "recipe.unique_tokens 3 are less than two sequences of 16",
        ],
    ),
    (["vary={recipe.dropout: [0, 2, 3]}"], [f"vary.recipe.dropout: {value} must be below 1" for value in (2, 3)]),
    (
        ["vary={architecture.depth: [1, 2], recipe.dropout: [2.0]}", "tune={recipe.beta1: {low: 0.5, high: 2, trials: 2}}"],
        [
            "vary.architecture.depth: is a size; list its values under shapes",
            "vary.recipe.dropout: 2.0 must be below 1",
            "tune.recipe.beta1: 2 must be below 1",
        ],
    ),
    (
        ["seeds=0", "vary={architecture.norm: [post, middle], recipe.dropout: [0, 2]}", "data.corpus=no.txt",
         "downstream={tasks: [nothing]}"],
        [
            "seeds: 0 is below the least allowed, 1",
            "vary.architecture.norm: 'middle' is not one of post, pre",
            "vary.recipe.dropout: 2 must be below 1",
            "data.corpus: 'no.txt' does not exist",
            "downstream.tasks[0]: 'nothing' is not known",
        ],
    ),
    (
        ["shapes=", "search={trials: 0, space: {recipe.beta1: {low: 0.5, high: 2}, recipe.schedule: {choices: [flat, wsd]}}}"],
        [
            "search.trials: 0 is below the least allowed, 1",
            "search.space.recipe.beta1: 2 must be below 1",
            "search.space.recipe.schedule: 'flat' is not one of linear, cosine, wsd",
        ],
    ),
]  # fmt: skip
"""Overrides, and the beginning of everything that is wrong with them."""


@pytest.mark.parametrize(("overrides", "beginnings"), EVERY_MISTAKE)
def test_all_mistakes_of_a_file_are_reported(overrides: list[str], beginnings: list[str], here: Path, refusal: Refusal) -> None:
    Path("x.yaml").write_text(GOOD)
    said = refusal.of("plan", "x.yaml", *overrides)
    assert [next((each for each in said if each.startswith(beginning)), None) for beginning in beginnings] == said, said


def test_a_folder_of_tasks_that_is_not_there_is_reported_once(here: Path, refusal: Refusal, no_data: None) -> None:
    Path("x.yaml").write_text(GOOD)
    messages = refusal.of("plan", "x.yaml", "downstream={tasks: [cola, sst2], data: gone}")
    assert one(messages).endswith("gone: is not a folder; give the one that holds the task files")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seeds", "'seeds': is not an override; write key.path=value, as in seeds=3"),
        ("seeds: 3", "'seeds: 3': is not an override"),
        ("seeds={", "seeds: '{' is not a YAML value"),
        ("seeds=010", "seeds: 010 is octal or a time in YAML, not a plain number; write it without a leading zero"),
        ("base.recipe.dropout=1:30.5", "base.recipe.dropout: 1:30.5 is octal or a time in YAML"),
        ("base.recipe.lerning_rate=1", "base.recipe.lerning_rate: is not a known key; did you mean 'learning_rate'?"),
        ("question.more=1", "question.more: question is 'Why?', so nothing can be set below it"),
        ("name=..", "name: '..' cannot name a folder"),
    ],
)
def test_an_override_that_cannot_be(override: str, message: str, here: Path, refusal: Refusal, no_data: None) -> None:
    Path("x.yaml").write_text(GOOD)
    assert message in one(refusal.of("launch", "x.yaml", override))


def test_an_override_that_stands_twice(here: Path, refusal: Refusal, no_data: None) -> None:
    Path("x.yaml").write_text(GOOD)
    assert one(refusal.of("launch", "x.yaml", "seeds=3", "seeds=4")) == "seeds: is set 2 times; set it once"


def test_a_plan_reads_how_the_text_begins(here: Path, refusal: Refusal) -> None:
    Path("x.yaml").write_text(GOOD)
    Path("x.jsonl").write_text('{"txt": "a"}\n')
    assert one(refusal.of("plan", "x.yaml", "data.corpus=x.jsonl")).startswith("data.text_column: 'text' is not a column")


def test_a_folder_of_text_that_cannot_be_listed_is_named(here: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def listed(folder: str) -> object:
        if Path(folder).name == "locked":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return scandir(folder)

    Path("texts/locked").mkdir(parents=True)
    Path("texts/a.txt").write_text("some text")
    Path("x.yaml").write_text(GOOD.replace("text.txt", "texts"))
    monkeypatch.setattr(os, "scandir", listed)
    with pytest.raises(InputError) as caught:
        check_corpus(read_sweep(Path("x.yaml"))[0].data)
    wanted = "data.corpus: 'texts' cannot be read: Permission denied ('texts/locked'); give a file or a folder of text"
    assert str(caught.value) == wanted


def test_a_plan_reads_a_text_to_its_end_once_and_then_its_beginning(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("x.yaml").write_text(GOOD)
    opened: list[Path] = []

    def read(path: Path, column: str) -> Iterator[str]:
        opened.append(path)
        return read_file(path, column)

    monkeypatch.setattr("study.data.corpora.read_file", read)
    for times in (2, 3):
        check_corpus(read_sweep(Path("x.yaml"))[0].data)
        assert opened == [Path("text.txt")] * times


LONG = "".join(f"the {number} words of one document\n\n" for number in range(9000))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("end.txt", LONG.encode() + "café".encode("latin-1"), f"end.txt: is not UTF-8 text (byte {len(LONG) + 3})"),
        ("nul.txt", LONG.encode() + b"a\0b", f"nul.txt: holds a NUL (byte {len(LONG) + 1}), so it is not text"),
        (
            "end.jsonl",
            b"".join(b'{"text": "the %d words of one document"}\n' % row for row in range(9000)) + b'{"text": "so',
            "end.jsonl:9001: is not JSON",
        ),
        (
            "end.csv",
            b"id,text\n" + b"".join(b"1,the %d words of one document\n" % row for row in range(9000)) + b"1,2,3\n",
            "end.csv:9002: has 3 fields but the header has 2",
        ),
        ("end.txt.gz", gzip.compress(LONG.encode())[:-900], "end.txt.gz: "),
        ("folder/b.txt", LONG.encode() + b"\xff", f"folder/b.txt: is not UTF-8 text (byte {len(LONG)})"),
    ],
)
def test_text_that_is_broken_after_its_beginning_is_refused_by_a_plan(
    name: str, content: bytes, message: str, here: Path, refusal: Refusal
) -> None:
    Path("folder").mkdir()
    shutil.copy("text.txt", "folder/a.txt")
    Path(name).write_bytes(content)
    Path("x.yaml").write_text(GOOD.replace("text.txt", "folder" if "/" in name else name))
    assert one(refusal.of("plan", "x.yaml")).startswith(message)


def test_a_plan_looks_at_the_name_of_a_dataset(here: Path, refusal: Refusal) -> None:
    Path("x.yaml").write_text(GOOD)
    assert one(refusal.of("plan", "x.yaml", "data.corpus='hub:'")).startswith("data.corpus: 'hub:' names no dataset")


def parquet(path: Path) -> None:
    pd.DataFrame({"words": ["a b", "c d"], "count": [1, 2]}).to_parquet(path)


def vocabulary(path: Path) -> None:
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(196))]))


@pytest.mark.parametrize(
    ("make", "override", "message"),
    [
        (None, "data.corpus=gone.txt", "data.corpus: 'gone.txt' does not exist; give docstrings, a path, or hub:NAME"),
        (
            lambda: Path("x.pdf").write_text("a,b"),
            "data.corpus=x.pdf",
            "data.corpus: 'x.pdf' has an unknown suffix; known: .parquet",
        ),
        (lambda: Path("x.txt").touch(), "data.corpus=x.txt", "data.corpus: 'x.txt' is empty; remove it or fill it"),
        (
            lambda: Path("x.txt").write_bytes(b"text " * 9 + b"\x00"),
            "data.corpus=x.txt",
            "x.txt: holds a NUL (byte 45), so it is not",
        ),
        (lambda: Path("x.txt").write_bytes(b"text \xff"), "data.corpus=x.txt", "x.txt: is not UTF-8 text (byte 5); convert it"),
        (
            lambda: Path("x.jsonl").write_text('{"text": "a"}\nnot JSON\n'),
            "data.corpus=x.jsonl",
            "x.jsonl:2: is not JSON: Expecting value (byte 14 of the file)",
        ),
        (
            lambda: Path("x.jsonl").write_text('{"txt": "a"}\n'),
            "data.corpus=x.jsonl",
            "data.text_column: 'text' is not a column of x.jsonl:1; did you mean 'txt'?",
        ),
        (lambda: parquet(Path("x.parquet")), "data.corpus=x.parquet", "data.text_column: 'text' is not a column of x.parquet"),
        (lambda: Path("x.parquet").write_text("PAR"), "data.corpus=x.parquet", "x.parquet: is not a Parquet file"),
        (
            lambda: Path("folder").mkdir(),
            "data.corpus=folder",
            "data.corpus: the folder 'folder' holds no file of a known kind; known: .parquet",
        ),
        (lambda: Path("x.txt").write_text("one two three"), "data.corpus=x.txt", "data."),
        (None, "data.corpus=hub:nobody/nothing", "data.corpus: 'hub:nobody/nothing' cannot be loaded: "),
        (None, "data.corpus='hub:'", "data.corpus: 'hub:' names no dataset; the form is hub:NAME[:CONFIG[:SPLIT]]"),
        (None, "data.validation_sequences=1000000", "data.validation_sequences: 1,000,000 of length 16 are requested"),
        (
            None,
            "data.tokenizer.vocabulary=50000",
            "data.tokenizer.vocabulary: 50,000 pieces are requested, but this corpus yields only",
        ),
        (
            None,
            "data.tokenizer={kind: file, path: gone.json, vocabulary: 200}",
            "data.tokenizer.path: 'gone.json' is not a file",
        ),
        (
            lambda: Path("t.json").write_text("{}"),
            "data.tokenizer={kind: file, path: t.json, vocabulary: 200}",
            "data.tokenizer.path: 't.json' is not a tokenizer.json",
        ),
        (
            lambda: vocabulary(Path("v.txt")),
            "data.tokenizer={kind: file, path: v.txt, vocabulary: 200}",
            "data.tokenizer.path: the vocabulary lacks [MASK]",
        ),
    ],
)
def test_data_that_cannot_be_used_starts_no_sweep(
    make: object, override: str, message: str, here: Path, refusal: Refusal
) -> None:
    if callable(make):
        make()
    Path("x.yaml").write_text(GOOD)
    assert message in one(refusal.of("launch", "x.yaml", override))


def test_devices_that_are_not_there_or_cannot_share_a_batch(
    here: Path, refusal: Refusal, no_data: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    Path("x.yaml").write_text(GOOD)
    assert "--device cuda: each run needs 1 GPU, but torch finds 0" in one(refusal.of("launch", "x.yaml", "--device", "cuda"))
    assert one(refusal.of("launch", "x.yaml", "--devices", 3)).startswith(
        "--devices 3: cannot split a batch of 16 sequences evenly"
    )
    few = one(refusal.of("launch", "x.yaml", "--devices", 4, "data.validation_sequences=3"))
    assert few == ("data.validation_sequences: 3 are fewer than the 4 devices of a run; set it to 4 or more")
    assert "'--devices': 0 is not in the range" in one(refusal.of("launch", "x.yaml", "--devices", 0, prefix="Error: "))


def test_results_that_cannot_be_written(here: Path, refusal: Refusal) -> None:
    Path("x.yaml").write_text(GOOD)
    Path("file").write_text("not a folder")
    for command, results in product(("plan", "launch"), ("file", "file/below")):
        message = one(refusal.of(command, "x.yaml", "--results", results))
        assert message == f"{results}/x: cannot be written; give another folder with --results"


@pytest.mark.parametrize("command", ["status", "report", "sync"])
@pytest.mark.parametrize("folder", ["gone", ".", "text.txt"])
def test_a_folder_that_is_no_sweeps(command: str, folder: str, here: Path, refusal: Refusal) -> None:
    assert "is not a sweep folder: it has no sweep.yaml; give one under results/" in one(refusal.of(command, folder))


@pytest.mark.parametrize("command", ["plan", "launch"])
def test_a_text_of_too_few_documents(command: str, here: Path, refusal: Refusal) -> None:
    Path("few.txt").write_text("one line\nand another\n\nthe same\n\nthe same\n")
    Path("x.yaml").write_text(GOOD.replace("text.txt", "few.txt"))
    message = one(refusal.of(command, "x.yaml"))
    assert message.startswith(
        "data.corpus: 'few.txt' holds 2 distinct documents, none of them in the validation split; give more text"
    )


@pytest.mark.parametrize("command", ["plan", "launch"])
def test_a_text_that_is_too_short_for_its_validation_set(command: str, here: Path, refusal: Refusal) -> None:
    write_corpus(Path("short.txt"), documents=30)
    Path("x.yaml").write_text(GOOD.replace("text.txt", "short.txt"))
    message = one(refusal.of(command, "x.yaml", "data.validation_sequences=1024"))
    assert message.startswith("data.validation_sequences: 1,024 of length 16 are requested, but 'short.txt' holds 30 dis")
    assert "; set it lower, give more text, or raise data.documents if it is set (4% of the documents validate" in message


def test_more_unique_tokens_than_the_text_has(here: Path, refusal: Refusal) -> None:
    Path("x.yaml").write_text(GOOD)
    remedy = "k tokens to train on; lower it, leave it out, give more text, or raise data.documents if it is set"
    bytes_of_text = Path("text.txt").stat().st_size
    for command, tokens, has in (("plan", bytes_of_text * 2, "base.recipe.unique_tokens: is "),
                                 ("launch", bytes_of_text // 2, "recipe.unique_tokens: is ")):  # fmt: skip
        message = one(refusal.of(command, "x.yaml", f"base.recipe.unique_tokens={tokens}"))
        assert message.startswith(has)
        assert ("has at most" in message) == (command == "plan")
        assert message.endswith(remedy)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("mine", "did you mean results/mine?"),
        ("mine.yaml", "did you mean results/mine?"),
        ("sweeps/mine.yaml", "did you mean results/mine?"),
        ("results/mien", "did you mean results/mine?"),
        ("results", "give one of them, such as results/mine"),
    ],
)
def test_a_sweeps_name_file_or_results_in_place_of_its_folder(given: str, message: str, here: Path, refusal: Refusal) -> None:
    sweep_folder(Path("results/mine"))
    for command in ("status", "report", "stop", "sync"):
        assert one(refusal.of(command, given)).endswith(message)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("results/mine", "results/mine/sweep.yaml"),
        ("other", "sweeps/other.yaml"),
        ("other.yaml", "sweeps/other.yaml"),
        ("sweeps/othr.yaml", "sweeps/other.yaml"),
    ],
)
def test_a_sweeps_folder_or_name_in_place_of_its_file(given: str, meant: str, here: Path, refusal: Refusal) -> None:
    sweep_folder(Path("results/mine"))
    Path("sweeps").mkdir()
    Path("sweeps/other.yaml").write_text(GOOD)
    for command in ("plan", "launch"):
        assert one(refusal.of(command, given)) == f"{given}: is not a file; did you mean {meant}?"


@pytest.mark.parametrize("content", [b"{}", b"\x00\xff", b'{"run_id": 1', b"[" * 100_000, b'{"state": "DONE"}'])
def test_a_damaged_record_is_named(content: bytes, here: Path) -> None:
    from study.running.status import status
    from study.store.sweep_folder import SweepFolder

    Path("x.yaml").write_text(GOOD)
    folder = SweepFolder(Path("results/x"))
    run = folder.run("0" * 16)
    run.write_config(Plan(read_sweep(Path("x.yaml"))[0]).cells[0].config)
    folder.sweep_file.write_text(GOOD)
    run.record_file.write_bytes(content)
    damaged = status(folder).unreadable
    assert damaged
    assert all(str(run.record_file) in str(problem) for problem in damaged)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("parameters", 10**23, f"{10**23} is above the most allowed, {2**63 - 1:,}"),
        ("parameters", 0, "0 is below the least allowed, 1"),
        ("tokens", -5, "-5 is below the least allowed, 0"),
        ("train_flops", 1e300, "1e+300 is above the most allowed, 1e+39"),
        ("loss_nats", 1e200, "1e+200 is above the most allowed, 1e+39"),
        ("train_flops", -1.0, "-1.0 is below the least allowed, 0"),
        ("loss_nats", -4.0, "-4.0 is below the least allowed, 0"),
        ("accuracy", 1.5, "1.5 is above the most allowed, 1"),
    ],
)
def test_a_record_of_numbers_that_no_run_has_is_named(key: str, value: float, reason: str, here: Path) -> None:
    from study.running.status import status

    folder = sweep_folder(Path("results/x"))
    record = folder.run(add_run(folder, run_config(1, 64))).record_file
    record.write_text(json.dumps(json.loads(record.read_text()) | {key: value}))
    damaged, message = map(str, status(folder).unreadable)
    assert damaged.startswith(f"{record}: is damaged")
    assert message == f"{record}.{key}: {reason}"


@pytest.mark.parametrize("value", ["../x", [1], None, True])
def test_a_row_of_metrics_that_holds_no_number_is_named(value: object, here: Path) -> None:
    folder = sweep_folder(Path("results/x"))
    run = folder.run(add_run(folder, run_config(1, 64)))
    first, *others = run.metrics_file.read_text().splitlines()
    run.metrics_file.write_text("\n".join([json.dumps(json.loads(first) | {"train/loss": value}), *others]) + "\n")
    with pytest.raises(InputError, match=r"metrics.jsonl:1: is not a row of metrics \(train/loss is .*, not a number\)"):
        list(run.metrics())


@pytest.mark.parametrize("losses", [[1.0, float("nan")], [[1.0], [2.0]], [1, 2]])
def test_losses_of_validation_that_no_run_writes_are_damaged(losses: list[object], here: Path) -> None:
    folder = sweep_folder(Path("results/x"))
    run = folder.run(add_run(folder, run_config(1, 64)))
    np.save(run.validation_losses_file, np.array(losses))
    with pytest.raises(InputError, match=r"validation_losses.npy: is damaged, and comparisons need it"):
        run.validation_losses()


@pytest.mark.parametrize("command", [["multiverse"], ["fit", "--law", "power"]])
def test_a_damaged_ledger_is_named_with_what_writes_it_anew(command: list[str], here: Path, refusal: Refusal) -> None:
    folder = sweep_folder(Path("results/x"))
    add_run(folder, run_config(1, 64))
    folder.write_ledger()
    shutil.rmtree(folder.runs_folder)
    folder.ledger_file.write_bytes(folder.ledger_file.read_bytes()[:-9])
    message = one(refusal.of(command[0], folder.path, *command[1:]))
    assert message.startswith(f"{folder.ledger_file}: cannot be read as parquet: ")
    assert "`study report` writes" in message
    folder.ledger_file.unlink()
    folder.ledger_file.mkdir()
    message = one(refusal.of(command[0], folder.path, *command[1:]))
    assert message.startswith(f"{folder.ledger_file}: ")
    assert "Is a directory" in message


def test_a_ledger_that_lacks_columns_is_named_with_them(here: Path, refusal: Refusal) -> None:
    folder = sweep_folder(Path("results/x"))
    add_run(folder, run_config(1, 64))
    folder.write_ledger().drop(columns=["tokens", "state"]).to_parquet(folder.ledger_file)
    shutil.rmtree(folder.runs_folder)
    message = one(refusal.of("multiverse", folder.path))
    assert message.startswith(
        f"{folder.ledger_file}: lacks state, tokens, as if another version wrote it; `study report` writes it"
    )
    assert one(refusal.of("fit", folder.path, "--law", "power")).startswith(
        f"{folder.path}: is a ledger without a 'state' column"
    )


@pytest.mark.parametrize(
    "column", ["recipe.learning_rate", "loss_nats", "seed", "tokens", "train_flops", "unigram_entropy_nats"]
)
def test_text_in_place_of_a_number_of_a_ledger_is_reported_with_its_row(column: str, here: Path, refusal: Refusal) -> None:
    folder = sweep_folder(Path("results/x"))
    for width in (64, 128):
        add_run(folder, run_config(1, width))
    ledger = folder.write_ledger().astype({column: object})
    ledger[column] = pd.Series([1, "abc"], dtype=object)
    ledger.to_csv("t.csv", index=False)
    message = one(refusal.of("fit", "t.csv", "--law", "power"))
    assert message.startswith(f"t.csv: {column} of row 2 is 'abc', not a number; remove the row, or")
    ledger.astype({column: str}).to_parquet(folder.ledger_file)
    shutil.rmtree(folder.runs_folder)
    message = one(refusal.of("multiverse", folder.path))
    assert message.startswith(
        f"{folder.ledger_file}: {column} of row 2 is 'abc', not a number; remove the row, or run `study report`"
    )


def test_a_ledger_with_its_header_twice_is_reported_with_the_row(here: Path, refusal: Refusal) -> None:
    folder = sweep_folder(Path("results/x"))
    add_run(folder, run_config(1, 64))
    folder.write_ledger()
    text = folder.ledger_file.with_suffix(".csv").read_text()
    Path("t.csv").write_text(text + text)
    message = one(refusal.of("fit", "t.csv", "--law", "power"))
    assert message.startswith("t.csv: recipe.learning_rate of row 2 is 'recipe.learning_rate', not a number; remove the row")


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (["report", "results/x"], "ledger.parquet"),
        (["launch", "x.yaml"], ".coordinator.json"),
        (["exclude", "0" * 16, "--reason", "Why not?"], f"runs/{'0' * 16}/exclusion.json"),
    ],
)
def test_a_full_disk_is_reported_with_the_file(arguments: list[str], file: str, here: Path, refusal: Refusal) -> None:
    Path("x.yaml").write_text(GOOD)
    folder = sweep_folder(Path("results/x"))
    folder.run("0" * 16).write_config(Plan(read_sweep(Path("x.yaml"))[0]).cells[0].config)
    folder.launching.lock_file.touch()
    with files_of_at_most(0):
        messages = refusal.of(*arguments)
    assert one(messages) == f"results/x/{file}: {os.strerror(errno.EFBIG)}; use another file system"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bert-bse"], "bert-bse: is not a known model, a file or a run in results; did you mean 'bert-base'?"),
        ([], "--depth: is missing; give a model's NAME, or --depth and --width"),
        (["--depth", 1, "--width", 100, "--heads", 7], "heads: 7 heads do not divide width 100; 5 would"),
        (["--depth", -1, "--width", 128], "depth: -1 is below the least allowed, 1"),
        (["--depth", 1, "--width", -128], "width: -128 is below the least allowed, 1"),
        ([""], "'': is not a model name; give one such as bert-base, a file, or a run's folder or id"),
        (["bert-base", "--sequence-length", 1000], "--sequence-length: 1000 is not between 1 and positions 512"),
    ],
)
def test_a_model_that_cannot_be(arguments: list[object], message: str, here: Path, refusal: Refusal) -> None:
    assert one(refusal.of("params", *arguments)) == message


@pytest.mark.parametrize("arguments", [["--width", 10**12, "--depth", 1], ["bert-base", "--ffn", 10**18]])
def test_sizes_far_too_large_are_refused_at_once(arguments: list[object], here: Path, refusal: Refusal) -> None:
    assert "is not in the range x<=10,000,000" in one(refusal.of("params", *arguments, prefix="Error: "))


def test_a_reader_that_hangs_up_is_no_error(here: Path) -> None:
    import subprocess

    study = Path(sys.executable).with_name("study")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([study, "params", "bert-base"], stdout=write, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(write)
    assert done.stderr == b""


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["fit", "t.csv", "--law", "chinchilla"], "--huber-delta"),
        (["fit", "t.csv", "--law", "chinchilla"], "--held-out"),
        (["score-law", "t.csv"], "--held-out"),
        (["shapes", "--parameters", "10M"], "--tolerance"),
        (["shapes", "--parameters", "10M"], "--ffn-ratio"),
        (["latency", "--shapes", "2x128"], "--seconds"),
        (["bench"], "--dropout"),
    ],
)
def test_a_number_is_finite(arguments: list[object], option: str, number: str, here: Path, refusal: Refusal) -> None:
    assert f"'{option}': " in one(refusal.of(*arguments, option, number, prefix="Error: "))


@pytest.mark.parametrize("amount", ["1e-12", "1e308"])
def test_a_huber_delta_that_no_residual_is_near_to_is_refused(amount: str, here: Path, refusal: Refusal) -> None:
    message = one(refusal.of("fit", "t.csv", "--law", "power", "--huber-delta", amount, prefix="Error: "))
    assert "'--huber-delta': " in message
    assert "is not in the range" in message


def test_resamples_that_no_memory_holds_are_refused(here: Path, refusal: Refusal) -> None:
    message = one(refusal.of("fit", "t.csv", "--law", "power", "--bootstrap", 10**26, prefix="Error: "))
    assert f"'--bootstrap': {10**26} is not in the range" in message


def test_slots_that_no_machine_has_are_refused(here: Path, refusal: Refusal) -> None:
    message = one(refusal.of("score", "x", "--tasks", "docstring-order", "--slots-per-device", 10**6))
    assert message == f"resources.slots_per_device: {10**6} is above the most allowed, 100,000"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["params", "bert-tiny", "--vocabulary", "30.5225K"], "--vocabulary: '30.5225K' is not a whole number"),
        (["shapes", "--parameters", "10M", "--batch", "16KB"], "--batch: '16KB' is not a count such as 10M, 250k or 1.5e6"),
    ],
)
def test_a_count_that_is_none_is_reported(arguments: list[object], message: str, here: Path, refusal: Refusal) -> None:
    assert one(refusal.of(*arguments)).startswith(message)


def test_an_ffn_far_too_wide_is_refused(here: Path, refusal: Refusal) -> None:
    message = one(refusal.of("shapes", "--parameters", "10M", "--ffn-ratio", "1e308", prefix="Error: "))
    assert "'--ffn-ratio': 1e+308 is not in the range 0.001<=x<=1000" in message


@pytest.mark.parametrize(
    "arguments", [["plot", "t.csv"], ["multiverse", "t.csv"], ["replicate"], ["latency", "--shapes", "2x128"], ["bench"]]
)
def test_a_file_is_no_folder_to_write_into(arguments: list[object], here: Path, refusal: Refusal) -> None:
    Path("file").write_text("not a folder")
    assert "'--into': Directory 'file' is a file" in one(refusal.of(*arguments, "--into", "file", prefix="Error: "))


@pytest.mark.parametrize("arguments", [["status"], ["stop"], ["frontier"], ["params"], ["exclude", "--reason", "why"]])
def test_a_name_that_no_file_can_have_is_reported(arguments: list[str], here: Path, refusal: Refusal) -> None:
    command, *options = arguments
    assert one(refusal.of(command, "x" * 300, *options)).endswith(": File name too long; give another path")


def test_a_folder_in_the_place_of_a_file_is_reported(here: Path, refusal: Refusal) -> None:
    folder = sweep_folder(Path("results/x"))
    folder.ledger_file.mkdir()
    assert one(refusal.of("report", folder.path)) == f"{folder.ledger_file}: Is a directory; move it away, or give another path"


def test_a_folder_under_a_file_is_reported(here: Path, refusal: Refusal) -> None:
    Path("file").write_text("not a folder")
    message = one(refusal.of("figures", "--into", "file/figures", prefix="Error: "))
    assert "'--into': 'file/figures' cannot be written; give another folder" in message


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no file system here says that it may be written and may not")
@pytest.mark.parametrize("arguments", [["latency", "--shapes", "2x128"], ["figures"], ["bench"]])
def test_a_folder_that_takes_no_files_is_refused_before_anything_is_measured(
    arguments: list[object], here: Path, refusal: Refusal
) -> None:
    message = one(refusal.of(*arguments, "--into", "/proc/x/y", prefix="Error: "))
    assert "'--into': '/proc/x/y' cannot be written; give another folder" in message


def test_threads_far_too_many_are_refused(here: Path, refusal: Refusal) -> None:
    message = one(refusal.of("latency", "--shapes", "2x128", "--threads", 100_000, prefix="Error: "))
    assert "100000 is not in the range 1<=x<=1,024" in message
