"""The variance within groups is the one that analyses of variance take for all."""

from __future__ import annotations

import numpy as np
import pytest

from study.base.pooling import pooled_variance


def test_the_variance_within_is_one_for_all_groups() -> None:
    """Squares by degrees of freedom: 2 by 1, 6 by 2, and a group of one, which says nothing."""
    assert pooled_variance([[1.0, 3.0], [5.0], [2.0, 2.0, 5.0]]) == pytest.approx(((2 + 6) / 3, 3))
    assert pooled_variance([[1.0], [2.0]]) == (0.0, 0)
    alike = np.random.default_rng(0).normal(size=(5, 4))
    assert pooled_variance(list(alike)) == pytest.approx((alike.var(axis=1, ddof=1).mean(), 15))
