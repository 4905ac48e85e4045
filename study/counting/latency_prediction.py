"""The latency of shapes that were not measured, predicted from a table of those that were, with the error of doing so."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from study.base.errors import InputError
from study.counting.architecture import Architecture
from study.counting.memory import Precision, itemsize
from study.counting.parameters import flops_per_sequence, parameters

if TYPE_CHECKING:
    import pandas as pd

Statistic = Literal["median", "p95", "fastest"]
"""Which time of the calls is predicted; on a machine that others use, only the fastest is that of the encoder alone."""

FEWEST_SHAPES = 5
"""How many shapes a batch and length must have to be fitted alone."""

RANGED = ("depth", "width", "FFN ratio", "head width", "batch", "length")
"""What a prediction may be beyond the measurements in."""

TERMS = ("call", "layer", "flop", "weight_byte", "activation_byte")
"""What a coefficient is the seconds of."""


@dataclass(frozen=True)
class LatencyModel:
    """Seconds of a forward pass as a sum of costs that cannot be negative.

    t = c₀ + c₁·L + c₂·FLOPs + c₃·bytes of the blocks' weights + c₄·bytes of the activations that the blocks write

    without the tables of embeddings, of which a call reads a few rows;
    fitted by non-negative least squares of the relative error to a `statistic` of the calls: their median, their 95th
    percentile, or the fastest. `error` is the median and `worst_error` the largest relative error when every shape in turn is
    left out of the fit and predicted; they say little beyond the `ranges`, least and largest, of what was measured (RANGED).
    """

    statistic: Statistic
    precision: Precision
    threads: int
    settings: str
    coefficients: dict[str, float]
    n_rows: int
    n_shapes: int
    ranges: dict[str, tuple[float, float]]
    error: float
    worst_error: float

    def seconds(self, architecture: Architecture, batch: int, sequence_length: int) -> float:
        """Predicted seconds of one call."""
        features = _features(architecture, batch, sequence_length, self.precision)
        return float(features @ np.array([self.coefficients[term] for term in TERMS]))

    def beyond(self, architecture: Architecture, batch: int, sequence_length: int) -> list[str]:
        """In what a call lies outside of all that was measured."""
        values = _ranged(architecture, batch, sequence_length)
        return [name for name, (least, largest) in self.ranges.items() if not least <= values[name] <= largest]

    def to_dict(self) -> dict[str, Any]:
        """The model as plain values."""
        return dict(vars(self))

    def to_text(self) -> str:
        """What the model is and how good, in a line."""
        basis = f"{self.n_rows} times ({self.statistic}) of {self.n_shapes} shapes at {self.settings}, {self.threads} threads"
        error = f"{self.error:.0%} off (median), {self.worst_error:.0%} at worst, each shape left out in turn"
        return f"latency: predicted from {basis}; {error}"


def fit_latency(
    table: pd.DataFrame,
    precision: Precision,
    threads: int | None = None,
    setting: tuple[int, int] | None = None,
    statistic: Statistic = "median",
) -> LatencyModel:
    """The latency model of a table's rows of one precision and number of threads (the only one there is, where not given).

    `setting` is the batch and sequence length to predict for: where FEWEST_SHAPES were measured at just these, their rows
    alone are fitted, else those of all batches and lengths together.

    Raises InputError where the table has no such rows, or fewer than three shapes, or those of one depth or one width, which
    cannot show what another costs.
    """
    rows, settings = _rows_of(table, precision, threads), "all batches and lengths"
    if setting is not None:
        there = rows[(rows["batch"] == setting[0]) & (rows["sequence_length"] == setting[1])]
        if there["shape"].nunique() >= FEWEST_SHAPES:
            rows, settings = there, f"{setting[0]} x {setting[1]} tokens"
    architectures = [_architecture(row) for row in rows.to_dict("records")]
    shapes = [hash(architecture) for architecture in architectures]
    if len(set(shapes)) < 3:
        message = f"has {len(set(shapes))} shapes in {precision}; a prediction needs 3: study latency with more --shapes"
        raise InputError.at("--latency-table", message)
    cases = list(zip(architectures, rows["batch"].astype(int), rows["sequence_length"].astype(int), strict=True))
    measured = [_ranged(*case) for case in cases]
    ranges = {name: (min(one[name] for one in measured), max(one[name] for one in measured)) for name in RANGED}
    for size in ("depth", "width"):
        least, largest = ranges[size]
        if least == largest:
            message = (
                f"has shapes of {size} {least:g} alone, which do not show what {size} costs: study latency with other --shapes"
            )
            raise InputError.at("--latency-table", message)
    features = np.array([_features(*case, precision) for case in cases])
    seconds = rows[f"{statistic}_seconds"].to_numpy(float)
    errors = _left_out_errors(features, seconds, np.array(shapes))
    return LatencyModel(
        statistic=statistic,
        settings=settings,
        precision=precision,
        threads=int(rows["threads"].iloc[0]),
        coefficients=dict(zip(TERMS, _fit(features, seconds).tolist(), strict=True)),
        n_rows=len(rows),
        n_shapes=len(set(shapes)),
        ranges=ranges,
        error=float(np.median(errors)),
        worst_error=float(errors.max()),
    )


def _rows_of(table: pd.DataFrame, precision: Precision, threads: int | None) -> pd.DataFrame:
    rows = table[table["precision"] == precision]
    counts = sorted(rows["threads"].unique().tolist())
    there = table[["precision", "threads"]].drop_duplicates().sort_values(["precision", "threads"])
    known = f"it has {', '.join(f'{kind} at {number} threads' for kind, number in there.itertuples(index=False))}"
    if not counts or (threads is not None and threads not in counts):
        wanted = precision if threads is None else f"{precision} at {threads} threads"
        raise InputError.at("--latency-table", f"has no times in {wanted}; {known}; measure them with study latency")
    if threads is None and len(counts) > 1:
        raise InputError.at("--threads", f"is missing, and the table has times at {', '.join(map(str, counts))}; give one")
    return rows[rows["threads"] == (counts[0] if threads is None else threads)]


def _architecture(row: Mapping[Hashable, Any]) -> Architecture:
    """The architecture that a row of the table was measured on."""
    sizes = ("depth", "width", "heads", "ffn", "vocabulary", "positions", "segments", "norm")
    return Architecture.parse({name: row[name] for name in sizes}, place="--latency-table")


def _ranged(architecture: Architecture, batch: int, sequence_length: int) -> dict[str, float]:
    """A call in the quantities of RANGED."""
    a = architecture
    return dict(zip(RANGED, (a.depth, a.width, a.ffn / a.width, a.width / a.heads, batch, sequence_length), strict=True))


def _features(architecture: Architecture, batch: int, length: int, precision: Precision) -> NDArray[np.float64]:
    """What a call costs, by term; a block writes 8H + 2F numbers a token, and A·S attention scores."""
    a, tokens = architecture, batch * length
    flops = batch * flops_per_sequence(a, length, 0).train_flops / 3
    weights = itemsize(precision) * parameters(a).parameters_non_embedding
    written = itemsize(precision) * a.depth * tokens * (8 * a.width + 2 * a.ffn + a.heads * length)
    return np.array([1, a.depth, flops, weights, written], dtype=float)


def _fit(features: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients ≥ 0 with the least sum of squared relative errors; columns are scaled, so that units do not matter."""
    from scipy.optimize import nnls

    relative = features / seconds[:, None]
    scale = np.linalg.norm(relative, axis=0)
    return np.asarray(nnls(relative / scale, np.ones(len(seconds)))[0] / scale, dtype=float)


def _left_out_errors(features: NDArray[np.float64], seconds: NDArray[np.float64], shapes: NDArray[Any]) -> NDArray[np.float64]:
    """Relative errors of every row, predicted by a fit without the rows of its shape."""
    predicted = np.empty_like(seconds)
    for shape in set(shapes.tolist()):
        out = shapes == shape
        predicted[out] = features[out] @ _fit(features[~out], seconds[~out])
    return np.abs(predicted / seconds - 1)
