"""Training speed side by side: contenders of one case take turns over several rounds, each in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Self

from study.benching.cases import PEERS_TOKENS, Case
from study.benching.figures import Tell
from study.benching.gate import Contender, ContenderError, Order, load
from study.benching.rows import PEERS, Rounds, training_row

ROUND_SECONDS = 0.5
"""How long a contender trains in a round, at least; one step may take longer."""

LEAD_IN = {"cpu": 1, "cuda": 3}
"""Steps that begin each round: they find caches, and pages that the kernel took while others had their turn, cold, and
count only where they are as long as a round, which a cold cache does not show in."""

MUON = "muon"
"""Ours with Muon in place of AdamW, whose step is compared with that of ours."""

PROFILED = "profiled"
"""The contender that tells where a step of ours goes; it takes no turns."""

BUILT = ("ours", MUON, "trainer_compiled", PROFILED)
"""The contenders that build their kernels on CUDA, which takes most of a start and little of the device."""

WARM_UP = {"cpu": Order(0.5, least_steps=2), "cuda": Order(1.0, least_steps=12)}
"""The round that does not count: compiling, capturing and the allocator's growth are over then."""


class Stand:
    """The contenders of one case, each in its process; one that fails leaves, with its reason in `found.errors`.

    A `with` block stops them.
    """

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder, self.found = case, folder, Rounds()
        self._contenders: dict[str, Contender] = {}
        folder.mkdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str) -> None:
        """Start a contender's process."""
        target = f"study.benching.{'peers' if name in PEERS else 'contenders'}.{name}"
        self._contenders[name] = Contender(target, (self.case, self.folder), self.folder / f"{name}.log")

    def warm_up(self, name: str) -> None:
        """Wait for a contender's first step, then give it the round that does not count; what is profiled has had its own."""

        def warm(contender: Contender) -> Any:
            self.found.starts[name] = contender.ready()
            return None if name == PROFILED else contender.round(WARM_UP[self.case.device])

        self._ask(name, warm)

    def rounds(self, count: int, seconds: float = ROUND_SECONDS) -> None:
        """So many rounds of every contender, in turn; rounds that one of them did not live through count for none."""
        found = self.found
        for _ in range(count):
            for name in [name for name in self._contenders if name != PROFILED]:
                order = Order(seconds, lead_in=LEAD_IN[self.case.device])
                what = self._ask(name, partial(Contender.round, order=order))
                if name == "matmul" and what is not None:
                    found.matmul.append(what)
                elif what is not None:
                    found.times.setdefault(name, []).append(what)
        for name in found.errors:
            found.times.pop(name, None)
        if "matmul" in found.errors:
            found.matmul.clear()

    def profile(self) -> None:
        """Where a step of ours goes, if it is to be told, while all others wait."""
        if PROFILED in self._contenders:
            self.found.spent = self._ask(PROFILED, partial(Contender.round, order=Order(0.0)))

    def stop(self) -> None:
        """End all processes."""
        for contender in self._contenders.values():
            contender.stop()
        self._contenders.clear()

    def _ask(self, name: str, question: Callable[[Contender], Any]) -> Any:
        try:
            return question(self._contenders[name])
        except ContenderError as error:
            self.found.errors[name] = str(error)
            self._contenders.pop(name).stop()
            return None


def peers_of(case: Case) -> tuple[str, ...]:
    """What a case is compared with, where its batch leaves room for it; a compiled Trainer at Tiny and Base on CUDA alone."""
    if case.device == "cuda" and case.batch_tokens > PEERS_TOKENS:
        return ()
    compiled = case.device == "cuda" and case.model in ("bert-tiny", "bert-base") and case.sequence_length == 128
    return ("loop", "trainer", "trainer_compiled") if compiled else ("loop", "trainer")


def with_muon(case: Case) -> bool:
    """Whether Muon's step is timed beside AdamW's: on a CPU, and of a GPU's models at Base."""
    return case.device == "cpu" or (case.model == "bert-base" and case.batch_tokens == PEERS_TOKENS)


def contenders_of(case: Case, profiled: bool) -> tuple[str, ...]:
    """What takes turns, and what is profiled where that is asked for, in a batch that leaves room for it."""
    peers, muon = peers_of(case), [MUON] if with_muon(case) else []
    return ("ours", *muon, *peers, "matmul", *([PROFILED] if profiled and peers else []))


def measure_training(cases: Sequence[Case], rounds: int, tell: Tell) -> None:
    """Measure every case against its peers and tell its row; what fails is told in the row.

    On CUDA what compiles starts together in a wave, which saves most of the time; meanwhile the peers that do not start one
    by one, so that the device holds what one of them keeps for its first backward pass, and not what all do.
    """
    load()
    for _, grouped in groupby(cases, key=lambda case: case.wave):
        wave = list(grouped)
        with tempfile.TemporaryDirectory(prefix="study-bench-") as folder, ExitStack() as running:
            stands = [running.enter_context(Stand(case, Path(folder) / str(number))) for number, case in enumerate(wave)]
            _warm_up(stands, together=wave[0].device == "cuda")
            for stand in stands:
                stand.rounds(rounds)
                stand.profile()
                stand.stop()
                tell(training_row(stand.case, stand.found, datasheet_rate(stand.case)))


def _warm_up(stands: list[Stand], together: bool) -> None:
    names = [(stand, name) for stand in stands for name in contenders_of(stand.case, profiled=together)]
    early = [each for each in names if together and each[1] in BUILT]
    for stand, name in early:
        stand.start(name)
    for stand, name in (each for each in names if each not in early):
        stand.start(name)
        stand.warm_up(name)
    for stand, name in early:
        stand.warm_up(name)


def datasheet_rate(case: Case) -> float | None:
    """The datasheet's dense FLOP/s of the case's device, None where it is not known."""
    if case.device == "cpu":
        return None
    from study.training.execution import Execution, peak_flops_per_second

    return peak_flops_per_second(Execution("cuda"), case.dtype)
