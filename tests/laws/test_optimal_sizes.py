"""The best sizes at a budget are where a fitted law is lowest, and their intervals those of its resamples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from study.laws.catalogue import LAWS
from study.laws.estimation import Fit, Settings, fit
from study.laws.frontiers import parametric
from study.laws.optimal_sizes import BUDGETS, FLOPS_RULES, best_sizes
from tests.points import observed


def fitted(name: str) -> Fit:
    return fit(LAWS[name], observed(LAWS[name], 60), Settings(bootstrap=60, starts=8))


def test_the_best_split_of_chinchillas_law_is_that_of_its_frontier() -> None:
    found = fitted("chinchilla")
    frontier = parametric(found)
    for one in best_sizes(found):
        assert one.values["parameters"] == pytest.approx(frontier.parameters(one.flops))
        assert 6 * one.values["parameters"] * one.values["tokens"] == pytest.approx(one.flops)
        low, high = one.intervals["parameters"] or (0, 0)
        assert low < one.values["parameters"] < high


def test_no_other_width_depth_and_tokens_of_a_budget_have_a_lower_loss() -> None:
    found, rule = fitted("width-depth-tokens"), FLOPS_RULES["width-depth-tokens"]
    for one in best_sizes(found, (1e19, 1e21)):
        assert one.values["depth"] > 1
        assert 72 * one.values["width"] ** 2 * one.values["depth"] * one.values["tokens"] == pytest.approx(one.flops)
        least = found.predict({name: np.array([value]) for name, value in one.values.items()})
        for more, less in (("width", "depth"), ("depth", "tokens"), ("tokens", "width")):
            for factor in (0.9, 1.1):
                moved = dict(one.values)
                moved[more] *= factor ** (1 / rule.powers[more])
                moved[less] /= factor ** (1 / rule.powers[less])
                assert found.predict({name: np.array([value]) for name, value in moved.items()}) > least


def test_no_encoder_has_less_than_a_layer_and_the_rest_of_the_budget_goes_to_width_and_tokens() -> None:
    found = fitted("width-depth-tokens")
    found = replace(found, estimates=found.estimates | {"B": 1e-4})
    (one,) = best_sizes(found, (1e15,))
    assert one.values["depth"] == 1
    assert 72 * one.values["width"] ** 2 * one.values["tokens"] == pytest.approx(1e15)


def test_a_law_that_is_flat_in_a_size_or_of_other_variables_has_no_best_sizes() -> None:
    found = fitted("chinchilla")
    assert [one.flops for one in best_sizes(found)] == list(BUDGETS)
    assert best_sizes(replace(found, estimates=found.estimates | {"A": 0.0})) == []
    assert best_sizes(replace(found, status="failed")) == []
    assert best_sizes(fitted("tokens-floor")) == []
