"""The variance within groups, taken as one for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


def pooled_variance(groups: Iterable[Sequence[float] | NDArray[np.float64]]) -> tuple[float, int]:
    """Σ over groups of Σ(x − mean)² ÷ Σ(k − 1), and its degrees of freedom Σ(k − 1); 0 and 0 where no group has two."""
    told = [np.asarray(values, dtype=float) for values in groups if len(values) > 1]
    freedom = sum(len(values) - 1 for values in told)
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in told)
    return squares / max(1, freedom), freedom
