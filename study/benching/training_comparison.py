"""Training speed: the contenders of a case alternate over several rounds, each in its own process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, Self

from scipy.stats import binom

from study.benching.cases import PEERS_TOKENS, Case
from study.benching.contenders import PRODUCTS, profile_sentence, shares_of
from study.benching.own_processes import Contender, ContenderError, Order, RoundTime, start_forkserver
from study.benching.results import Report
from study.training.execution import Execution, peak_flops_per_second

PEERS = ("loop", "trainer", "trainer_compiled")
"""The contenders of study.benching.peers, in table order."""

PROFILED = "profiled"
"""Ours under torch's profiler, which runs no rounds."""

COMPILING = ("ours", "trainer_compiled", PROFILED)
"""The contenders that build kernels on CUDA, which takes most of a start and little device memory."""

ROUND_SECONDS = 0.5
"""The shortest round; one step may take longer."""

LEAD_IN = {"cpu": 1, "cuda": 3}
"""Cold-cache steps at the start of each round; they count only if each is as long as a round."""

WARM_UP = {"cpu": Order(0.5, least_steps=2), "cuda": Order(1.0, least_steps=12)}
"""The uncounted first round, for compiling, capturing and the allocator's growth."""


@dataclass
class Rounds:
    """Times by contender, FLOP/s of each product, seconds to the first step, and failures of one case.

    `profile` is the seconds of our step by kind of kernel, if profiled.
    """

    times: dict[str, list[RoundTime]] = field(default_factory=dict)
    matmul: list[dict[tuple[int, int, int], float]] = field(default_factory=list)
    starts: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    profile: dict[str, float] | None = None


class TrainingComparison:
    """The contenders of one case, each in its process; a `with` block stops them.

    A failed contender drops out, with the reason in `rounds.errors`.
    """

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder, self.rounds = case, folder, Rounds()
        self._contenders: dict[str, Contender] = {}
        folder.mkdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str) -> None:
        """Start the process of one of PEERS or of ours."""
        target = f"study.benching.{'peers' if name in PEERS else 'contenders'}.{name}"
        self.start_function(name, target, self.case, self.folder)

    def start_function(self, name: str, target: str, *arguments: Any) -> None:
        """Start a process that calls the function of full name `target`."""
        self._contenders[name] = Contender(target, arguments, self.folder / f"{name}.log")

    def warm_up(self, name: str) -> None:
        """Wait for a contender's first step, then run its uncounted round, unless it is profiled."""

        def warm(contender: Contender) -> Any:
            self.rounds.starts[name] = contender.ready()
            return None if name == PROFILED else contender.round(WARM_UP[self.case.device])

        self._ask(name, warm)

    def measure(self, count: int, seconds: float = ROUND_SECONDS) -> None:
        """Run `count` rounds of every contender, alternating; drop all rounds of a failed one."""
        order = Order(seconds, lead_in=LEAD_IN[self.case.device])
        for _ in range(count):
            for name in [name for name in self._contenders if name != PROFILED]:
                result = self._ask(name, partial(Contender.round, order=order))
                if name == "matmul" and result is not None:
                    self.rounds.matmul.append(result)
                elif result is not None:
                    self.rounds.times.setdefault(name, []).append(result)
        for name in self.rounds.errors:
            self.rounds.times.pop(name, None)
        if "matmul" in self.rounds.errors:
            self.rounds.matmul.clear()

    def profile(self) -> None:
        """Profile our step, if that contender runs, while all others wait."""
        if PROFILED in self._contenders:
            self.rounds.profile = self._ask(PROFILED, partial(Contender.round, order=Order(0.0)))

    def stop(self) -> None:
        """Stop all processes."""
        for contender in self._contenders.values():
            contender.stop()
        self._contenders.clear()

    def _ask(self, name: str, question: Callable[[Contender], Any]) -> Any:
        try:
            return question(self._contenders[name])
        except ContenderError as error:
            self.rounds.errors[name] = str(error)
            self._contenders.pop(name).stop()
            return None


def peers_of(case: Case) -> tuple[str, ...]:
    """Return a case's peers, none if its batch is too large; compiled Trainer only at Tiny and Base on CUDA."""
    if case.device == "cuda" and case.batch_tokens > PEERS_TOKENS:
        return ()
    compiled = case.device == "cuda" and case.model in ("bert-tiny", "bert-base") and case.sequence_length == 128
    return PEERS if compiled else PEERS[:2]


def contenders_of(case: Case, profiled: bool) -> tuple[str, ...]:
    """Return a case's contenders, with the profile of a step if requested and there are peers."""
    peers = peers_of(case)
    return ("ours", *peers, "matmul", *([PROFILED] if profiled and peers else []))


def measure_training(cases: Sequence[Case], rounds: int, report: Report) -> None:
    """Measure every case against its peers and report its row, failures included.

    On CUDA a wave's compiling contenders start together to save time. Other peers start one by one, so the device holds only
    one of them during its first backward pass.
    """
    start_forkserver()
    for _, grouped in groupby(cases, key=lambda case: case.wave):
        wave = list(grouped)
        with tempfile.TemporaryDirectory(prefix="study-bench-") as folder, ExitStack() as running:
            all_of_wave = [
                running.enter_context(TrainingComparison(case, Path(folder) / str(n))) for n, case in enumerate(wave)
            ]
            warm_up(all_of_wave, together=wave[0].device == "cuda")
            for comparison in all_of_wave:
                comparison.measure(rounds)
                comparison.profile()
                comparison.stop()
                peak = peak_flops_per_second(Execution(device=comparison.case.device), comparison.case.dtype)
                report(training_row(comparison.case, comparison.rounds, peak))


def warm_up(comparisons: Sequence[TrainingComparison], together: bool) -> None:
    """Start and warm up all contenders, compiling ones `together` if requested."""
    pairs = [(each, name) for each in comparisons for name in contenders_of(each.case, profiled=together)]
    early = [pair for pair in pairs if together and pair[1] in COMPILING]
    for comparison, name in early:
        comparison.start(name)
    for comparison, name in (pair for pair in pairs if pair not in early):
        comparison.start(name)
        comparison.warm_up(name)
    for comparison, name in early:
        comparison.warm_up(name)


def training_row(case: Case, rounds: Rounds, peak: float | None) -> dict[str, Any]:
    """Return a row: medians over rounds of values, and of ratios and shares within rounds.

    `versus` is our tokens/s over a peer's, with the median's interval (`median_interval`). `share_of_matmul_rate` is our
    products' share of the best matrix-product rate, `mfu` of the datasheet's dense rate `peak`.
    """
    speeds = {name: [case.batch_tokens / time.step_seconds for time in times] for name, times in rounds.times.items()}
    best = [max(rates.values()) for rates in rounds.matmul]
    row: dict[str, Any] = {
        "shape": case.shape,
        "model": case.model,
        "vocabulary": case.architecture.vocabulary,
        "dtype": case.dtype,
        "batch": case.batch,
        "sequence_length": case.sequence_length,
        "dropout": case.dropout,
        "ours_tokens_per_second": None,
        "versus": {},
        "versus_interval": {},
        "share_of_matmul_rate": None,
        "mfu": None,
        "matmul_flops_per_second": median(best) if best else None,
        "tokens_per_second": {name: median(values) for name, values in speeds.items()},
        "step_seconds": {name: median(time.step_seconds for time in times) for name, times in rounds.times.items()},
        "start_seconds": rounds.starts,
        "rounds": max(map(len, speeds.values()), default=0),
        "errors": rounds.errors,
    }
    if "ours" not in speeds:
        return row
    achieved = [speed * case.flops_per_token for speed in speeds["ours"]]
    versus = {name: ratios(speeds["ours"], speeds[name]) for name in PEERS if name in speeds}
    row["ours_tokens_per_second"] = median(speeds["ours"])
    row["versus"] = {name: median(values) for name, values in versus.items()}
    row["versus_interval"] = {name: list(median_interval(values)) for name, values in versus.items()}
    row["share_of_matmul_rate"] = median(ratios(achieved, best)) if best else None
    row["mfu"] = median(achieved) / peak if peak else None
    if rounds.profile is not None and best:
        row["spent"] = shares_of(rounds.profile, row["step_seconds"]["ours"])
        rate = case.product_flops_per_token * case.batch_tokens / rounds.profile[PRODUCTS] / median(best)
        name = f"{case.model or case.shape}, {case.batch} x {case.sequence_length}"
        row["sentence"] = f"{name}: {profile_sentence(row['spent'], rate)}."
    return row


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return the ratios within rounds."""
    return [a / b for a, b in zip(above, below, strict=True)]


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the distribution-free 95% interval of a median of independent values, by order statistics.

    It runs from the k-th smallest to the k-th largest of n values, with the largest k such that fewer than k of n lie on one
    side of the median with probability at most 2.5% (binomial, 1/2). Without such a k it is the range, which covers 93.75% for
    five values and 75% for three. Source: David and Nagaraja, Order Statistics (2003), section 7.1.
    """
    ordered = sorted(values)
    outside = max(int(binom.ppf(0.025, len(ordered), 0.5)) - 1, 0)
    return ordered[outside], ordered[-1 - outside]
