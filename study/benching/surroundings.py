"""What a run spends beside its steps: Lightning and logging, checkpoints, loading data, validating; and tokenising."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from study.benching.cases import Case
from study.benching.figures import Tell, failed, figure
from study.benching.gate import Contender, ContenderError, RoundTime, load
from study.benching.rows import median_interval
from study.benching.training_rounds import Stand
from study.counting.architecture import Architecture

SMALL = Architecture(depth=2, width=128, heads=2, ffn=512, vocabulary=2048)
"""A model whose step of 14 x 128 tokens takes 20 to 40 ms on two idle cores."""

STEP_SECONDS = 0.025
"""The step of which Lightning's time is told, whatever a step takes on this machine."""

OVERHEAD_SHARE, LOADING_SHARE, VALIDATION_SHARE, TOKENS_PER_SECOND = 0.03, 0.01, 0.05, 1.5e6
"""The targets: of a step, of a step, of a run, and of tokenising."""

TURN_SECONDS, TURNS, BLOCK = 0.1, 30, 15
"""Turns of the loops whose difference is Lightning: so short that what else the machine does falls on both; turns a round, and
turns that are summed up before they are compared, so many that rows are logged in each."""

CHECKPOINT_SECONDS = 60.0
"""How often a run saves."""

CHARACTERS = 8_000_000
"""How much text is tokenised."""


def small_case(threads: int, batch: int = 32) -> Case:
    """The case whose surroundings are measured."""
    return Case(SMALL, "fp32", batch, 128, "cpu", threads)


def measure_overhead(threads: int, rounds: int, tell: Tell) -> None:
    """Our training path against the same computation in a bare loop, and what a checkpoint costs in the minute it is for."""
    load()
    case = small_case(threads, batch=14)
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        with Stand(case, Path(folder) / "overhead") as stand:
            for name in ("ours", "bare"):
                stand.start(name)
                stand.warm_up(name)
            stand.rounds(TURNS * rounds, TURN_SECONDS)
        saved = _asked("checkpoint", case, Path(folder))
    if stand.found.errors or isinstance(saved, str):
        tell(failed("what surrounds a step", str(stand.found.errors or saved)))
        return
    ours, bare = (stand.found.times[name] for name in ("ours", "bare"))
    blocks = [slice(begin, begin + BLOCK) for begin in range(0, len(ours), BLOCK)]
    extras = [(_seconds(ours[block]) - _seconds(bare[block])) / STEP_SECONDS for block in blocks]
    extra, (low, high) = median(extras), median_interval(extras)
    share = saved["seconds"] / CHECKPOINT_SECONDS
    tell(figure("a step of ours", median(time.step_seconds for time in ours), "s"))
    told = (
        f"Lightning and logging: 95% interval of the median {low:.1%} to {high:.1%}, of {len(extras)} blocks of {BLOCK} turns."
    )
    tell(figure("Lightning and logging, of a step of 25 ms", extra, "share", sentence=told))
    tell(figure("checkpoints, one a minute", share, "share"))
    told = "W&B takes no time of a step: a mirror in a process of its own reads what runs write."
    tell(
        figure(
            "Lightning, logging, checkpoints and W&B together", extra + share, "share", at_most=OVERHEAD_SHARE, sentence=told
        )
    )


def _seconds(turns: Sequence[RoundTime]) -> float:
    """Seconds a step over some turns."""
    return sum(turn.seconds for turn in turns) / sum(turn.steps for turn in turns)


def measure_data(threads: int, tell: Tell) -> None:
    """Tokens a second of tokenising real text, and the loader's share of a step."""
    from study.config.run_config import DataConfig
    from study.data.corpora import read_corpus
    from study.data.token_files import write_tokens
    from study.data.tokenizing import first_characters, train_tokenizer

    texts = list(first_characters((document.text for document in read_corpus(DataConfig())), CHARACTERS))
    tokenizer = train_tokenizer(texts, 8192)
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        started = perf_counter()
        counts, _ = write_tokens((("train", text) for text in texts), tokenizer, Path(folder))["train"]
        speed = int(counts.sum()) / (perf_counter() - started)
        what = f"tokenising {sum(map(len, texts)) / 1e6:.0f} MB of docstrings with 8,192 pieces"
        tell(figure(what, speed, "tokens/s", at_least=TOKENS_PER_SECOND))
        load()
        found = _asked("loading", small_case(threads), Path(folder))
    if isinstance(found, str):
        tell(failed("loading data", found))
        return
    tell(figure("loading a batch of 32 x 128", found["loading_seconds"], "s"))
    tell(figure("loading, of a step", found["loading_seconds"] / found["step_seconds"], "share", at_most=LOADING_SHARE))


def measure_validation(threads: int, tell: Tell) -> None:
    """The share of a run that its validations take, the one at the end included."""
    load()
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        found = _asked("validated", small_case(threads), Path(folder))
    if isinstance(found, str):
        tell(failed("validation", found))
        return
    what = f"{found['validations']} validations of 1,024 sequences in {found['tokens'] / 1e6:.1f}M tokens, of the run"
    tell(figure(what, found["validation_seconds"] / found["seconds"], "share", at_most=VALIDATION_SHARE))


def _asked(name: str, case: Case, folder: Path) -> Any:
    """What one process reports, or why it failed."""
    with Contender(f"study.benching.single_process.{name}", (case, folder), folder / f"{name}.log") as contender:
        try:
            return contender.end()
        except ContenderError as error:
            return str(error)
