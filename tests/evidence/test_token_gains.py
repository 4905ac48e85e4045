"""Where doublings of the tokens buy more and more, no power law in them holds; where one holds, none is said to."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from study.config.run_config import RunConfig
from study.evidence.evidence import Evidence, gather
from study.evidence.gains import Rise, TokenGain, rises_of
from study.evidence.paired import Contrast, Difference
from study.report.findings import law_findings
from tests.synthetic import SWEEP, Law, add_run, run_config, sweep_folder

BUDGETS = (5e5, 1e6, 2e6, 4e6)


@dataclass(frozen=True)
class OfTokens(Law):
    """The loss at each budget, beside the noise of seeds and sequences."""

    losses: tuple[float, ...] = ()

    def loss(self, config: RunConfig) -> float:
        """The expected loss of a run in nats per masked token."""
        return self.losses[BUDGETS.index(config.recipe.budget.amount)]


def evidence(path: Path, *losses: float, seeds: int = 3) -> Evidence:
    folder = sweep_folder(path, SWEEP | {"tune": {}, "budgets": {"tokens": list(BUDGETS)}})
    for tokens, width, seed in product(BUDGETS, (64, 128), range(seeds)):
        add_run(folder, run_config(1, width, seed=seed, tokens=tokens), OfTokens(losses=losses))
    folder.write_ledger()
    return gather(folder, include_unbracketed=True)


def lines_on_rises(actual: Evidence) -> list[str]:
    return [line for line in law_findings(actual) if "a doubling of the tokens buys more" in line]


def test_doublings_that_buy_more_and_more_are_reported(tmp_path: Path) -> None:
    actual = evidence(tmp_path / "s", 5.3, 5.1, 4.6, 4.3)
    steps = [(rise.earlier.shorter, rise.later.longer, rise.decided) for rise in actual.rises]
    assert steps == [("500k tokens", "2M tokens", True), ("1M tokens", "4M tokens", False)] * 2
    for rise, expected in zip(actual.rises, (0.3, -0.2) * 2, strict=True):
        assert rise.nats_per_doubling.estimate == pytest.approx(expected, abs=0.03)
        low, high = rise.nats_per_doubling.interval or (np.inf, -np.inf)
        assert low < expected < high
    (line,) = lines_on_rises(actual)
    assert line.startswith("In 2 of 4 conditions a doubling of the tokens buys more than the one before (Holm, 5%): L1-H")
    assert "nats from 500k tokens to 1M tokens, +0." in line
    assert "No power law in the tokens does so" in line


def test_a_step_between_two_others_is_one_step_of_both_rises(tmp_path: Path) -> None:
    first, second, *_ = evidence(tmp_path / "s", 5.3, 5.1, 4.6, 4.3).rises
    assert first.later is second.earlier


@pytest.mark.slow
def test_a_power_law_is_never_said_to_rise(tmp_path: Path) -> None:
    actual = evidence(tmp_path / "s", *(3 + 60 * tokens**-0.25 for tokens in BUDGETS))
    assert all(rise.nats_per_doubling.estimate < 0 for rise in actual.rises)
    assert lines_on_rises(actual) == []


@pytest.mark.slow
def test_chance_is_not_said_to_rise(tmp_path: Path) -> None:
    """A straight line in the logarithm is the edge of what power laws do; one seed a cell says nothing of chance."""
    assert lines_on_rises(evidence(tmp_path / "line", 5.2, 4.9, 4.6, 4.3)) == []
    single = evidence(tmp_path / "single", 5.3, 5.1, 4.6, 4.3, seeds=1)
    assert {rise.nats_per_doubling.interval for rise in single.rises} == {None}
    assert lines_on_rises(single) == []
    assert rises_of(single.cells[:2], {}) == ()


@pytest.mark.slow
def test_cells_off_their_best_rate_say_nothing_of_laws(tmp_path: Path) -> None:
    """The middle budget has tried no rate that is low enough: its loss is too high, and the last doubling seems to buy much."""
    budgets, low = (1e6, 2e6, 4e6), (1e-3, 2e-3, 4e-3, 8e-3)
    folder = sweep_folder(
        tmp_path / "s", SWEEP | {"shapes": {"grid": {"depth": [1], "width": [64]}}, "budgets": {"tokens": list(budgets)}}
    )
    for tokens, seed in product(budgets, range(3)):
        for rate in (8e-3, 1.6e-2, 3.2e-2) if tokens == 2e6 else low:
            add_run(folder, run_config(1, 64, rate, seed=seed, tokens=tokens))
    folder.write_ledger()
    assert lines_on_rises(gather(folder)) == []
    assert len(lines_on_rises(gather(folder, include_unbracketed=True))) == 1


def gain(fewer: int, more: int, nats: float) -> TokenGain:
    return TokenGain(
        shape="L1-H64-A1-F256",
        setting="",
        shorter="few",
        longer="many",
        fewer_tokens=fewer,
        more_tokens=more,
        difference=Difference(nats, 0.01, 100, (3, 3)),
    )


def test_what_tokens_buy_is_reported_for_each_doubling() -> None:
    assert gain(10**6, 8 * 10**6, -0.6).nats_lowered_per_doubling == pytest.approx(0.2)
    assert gain(10**6, 2 * 10**6, 0.1).nats_lowered_per_doubling == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("nats", "p_value", "decided"), [(0.1, 0.049, True), (0.1, 0.051, False), (-0.1, 0.001, False), (0.1, None, False)]
)
def test_a_rise_is_decided_where_more_is_bought_and_holm_s_p_value_is_below_five_percent(
    nats: float, p_value: float | None, decided: bool
) -> None:
    earlier, later = gain(10**6, 2 * 10**6, -0.1), gain(2 * 10**6, 4 * 10**6, -0.2)
    assert Rise(earlier, later, Contrast(nats, p_value=0.001), p_value).decided == decided


def test_steps_of_unequal_length_are_compared_by_the_doubling(tmp_path: Path) -> None:
    """0.1 nats for one doubling, then 0.6 for the next two: 0.2 more for each."""
    actual = evidence(tmp_path / "s", 5.3, 5.2, 9.9, 4.6)
    without = [cell for cell in actual.cells if cell.budget.amount != 2e6]
    rises = rises_of(without, actual.comparisons.seed_variances)
    assert [rise.nats_per_doubling.estimate for rise in rises] == pytest.approx([0.2, 0.2], abs=0.03)
