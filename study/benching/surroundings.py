"""A run's overhead beside its steps: Lightning, logging, checkpoints, and tokenising."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from study.benching.cases import Case
from study.benching.processes import RoundTime, start_forkserver
from study.benching.results import Report, failure, measurement
from study.benching.training_comparison import TrainingComparison, median_interval
from study.config.run_config import DataConfig, TokenizerConfig
from study.counting.architecture import Architecture
from study.counting.parameters import parameters
from study.data.corpora import read_corpus
from study.data.token_files import write_tokens
from study.data.tokenizer_training import train_tokenizer
from study.data.tokenizing import first_characters
from study.training.checkpoints import DurableCheckpointIO

SMALL = Architecture(depth=2, width=128, heads=2, ffn=512, vocabulary=2048)
"""A model whose step of 14 x 128 tokens takes 20 to 40 ms on two idle cores."""

STEP_SECONDS = 0.025
"""The reference step for Lightning's share, however long a step is here."""

OVERHEAD_SHARE, TOKENS_PER_SECOND = 0.03, 1.5e6
"""The targets for overhead per step, and for tokenising."""

SHORT_ROUND_SECONDS, SHORT_ROUNDS, BLOCK = 0.1, 30, 15
"""The rounds of the two compared loops: their seconds, short so other programs disturb both equally; their number per round
of the command; and their number per compared block, enough that each block logs rows."""

CHECKPOINT_SECONDS, REPEATS = 60.0, 5
"""Seconds between a run's checkpoints, and timings of a checkpoint."""

CHARACTERS = 8_000_000
"""Characters to tokenise."""


def measure_overhead(threads: int, rounds: int, report: Report) -> None:
    """Compare our training path with a bare loop, and time the checkpoints."""
    start_forkserver()
    case = Case(SMALL, "fp32", 14, 128, "cpu", threads)
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        with TrainingComparison(case, Path(folder) / "overhead") as comparison:
            for name in ("ours", "bare"):
                comparison.start(name)
                comparison.warm_up(name)
            comparison.measure(SHORT_ROUNDS * rounds, SHORT_ROUND_SECONDS)
        share = checkpoint_seconds(case.architecture, Path(folder)) / CHECKPOINT_SECONDS
    if errors := comparison.rounds.errors:
        report(failure("what surrounds a step", str(errors)))
        return
    ours, bare = (comparison.rounds.times[name] for name in ("ours", "bare"))
    blocks = [slice(begin, begin + BLOCK) for begin in range(0, len(ours), BLOCK)]
    extras = [(_step_seconds(ours[block]) - _step_seconds(bare[block])) / STEP_SECONDS for block in blocks]
    extra, (low, high) = median(extras), median_interval(extras)
    interval = f"95% interval of the median {low:.1%} to {high:.1%}, of {len(extras)} blocks of {BLOCK} short rounds"
    mirror = "W&B takes no time of a step: a separate process mirrors what runs write."
    report(measurement("a step of ours", median(time.step_seconds for time in ours), "s"))
    what = "Lightning and logging, of a step of 25 ms"
    report(measurement(what, extra, "share", sentence=f"Lightning and logging: {interval}."))
    report(measurement("checkpoints, one a minute", share, "share"))
    what = "Lightning, logging, checkpoints and W&B together"
    report(measurement(what, extra + share, "share", at_most=OVERHEAD_SHARE, sentence=mirror))


def _step_seconds(times: Sequence[RoundTime]) -> float:
    return sum(time.seconds for time in times) / sum(time.steps for time in times)


def checkpoint_seconds(architecture: Architecture, folder: Path) -> float:
    """Time a durable checkpoint of weights and optimiser: written, fsynced, hashed and renamed."""
    names = ("weights", "first moments", "second moments")
    tensors = {name: torch.randn(parameters(architecture).parameters) for name in names}
    saver, seconds = DurableCheckpointIO(), []
    for step in range(REPEATS):
        started = perf_counter()
        saver.save_checkpoint({"global_step": step, "tensors": tensors}, folder / "checkpoints" / "next.ckpt")
        seconds.append(perf_counter() - started)
    return median(seconds)


def measure_tokenising(report: Report) -> None:
    """Report the tokenising speed in tokens per second."""
    texts = list(first_characters((document.text for document in read_corpus(DataConfig())), CHARACTERS))
    config = TokenizerConfig()
    tokenizer = train_tokenizer(texts, config)
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        started = perf_counter()
        written = write_tokens((("train", text) for text in texts), tokenizer, Path(folder), config.vocabulary)
        counts, _ = written["train"]
        speed = int(counts.sum()) / (perf_counter() - started)
    what = f"tokenising {sum(map(len, texts)) / 1e6:.0f} MB of docstrings with {config.vocabulary:,} pieces"
    report(measurement(what, speed, "tokens/s", at_least=TOKENS_PER_SECOND))
