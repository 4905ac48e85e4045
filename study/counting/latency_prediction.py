"""Latency of unmeasured shapes, predicted from a latency table."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from study.base.errors import InputError
from study.counting.architecture import Architecture, not_of_berts_kind
from study.counting.latency_table import UNLIKE_BERT
from study.counting.memory import WeightFormat, itemsize
from study.counting.parameters import flops_per_sequence, parameters

if TYPE_CHECKING:
    import pandas as pd

Statistic = Literal["median", "p95", "fastest"]
"""The predicted time of the calls; on a shared machine, only the fastest is the encoder's alone."""

FEWEST_SHAPES = 5
"""The least shapes of a batch and length to be fitted alone."""

RANGED = ("depth", "width", "FFN ratio", "head width", "batch", "length")
"""The quantities in which a prediction may extrapolate."""

TERMS = ("call", "layer", "flop", "weight_byte", "activation_byte")
"""The terms of the coefficients, in seconds."""


@dataclass(frozen=True)
class LatencyModel:
    """Seconds of a forward pass as a sum of non-negative costs.

    t = c₀ + c₁·L + c₂·FLOPs + c₃·bytes of the blocks' weights + c₄·bytes of the activations that the blocks write

    Embedding tables are excluded. Coefficients are fitted by non-negative least squares of the relative error to a `statistic`
    of the calls: the median, the 95th percentile, or the fastest. `error` is the median and `worst_error` the largest relative
    leave-one-shape-out error; they say little outside the measured `ranges` (RANGED), or for encoders unlike BERT.
    """

    statistic: Statistic
    precision: WeightFormat
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
        """The quantities outside the measured ranges, and the fields in which the encoder is unlike the measured ones."""
        values = _ranged(architecture, batch, sequence_length)
        outside = [name for name, (least, largest) in self.ranges.items() if not least <= values[name] <= largest]
        return [*outside, *(field.replace("_", " ") for field in not_of_berts_kind(architecture))]

    def to_dict(self) -> dict[str, Any]:
        """The model as plain values."""
        return dict(vars(self))

    def to_text(self) -> str:
        """The model's basis and error, in a line."""
        basis = f"{self.n_rows} times ({self.statistic}) of {self.n_shapes} shapes at {self.settings}, {self.threads} threads"
        error = f"{self.error:.0%} off (median), {self.worst_error:.0%} at worst, each shape left out in turn"
        return f"latency: predicted from {basis}; {error}"


def fit_latency(
    table: pd.DataFrame,
    precision: WeightFormat,
    threads: int | None = None,
    setting: tuple[int, int] | None = None,
    statistic: Statistic = "median",
) -> LatencyModel:
    """The latency model of a table's encoders of BERT's kind, in one precision and number of threads (default: the only one).

    `setting` is the batch and sequence length to predict for; if FEWEST_SHAPES have it, only their rows are fitted.

    Raises InputError without such rows, with fewer than three shapes, or with only one depth or width.
    """
    rows, settings = _rows_of(table, precision, threads), "all batches and lengths"
    if setting is not None:
        exact = rows[(rows["batch"] == setting[0]) & (rows["sequence_length"] == setting[1])]
        if exact["shape"].nunique() >= FEWEST_SHAPES:
            rows, settings = exact, f"{setting[0]} x {setting[1]} tokens"
    architectures = [_architecture(row) for row in rows.to_dict("records")]
    shapes = [hash(architecture) for architecture in architectures]
    if len(set(shapes)) < 3:
        message = f"has {len(set(shapes))} shapes in {precision}; a prediction needs 3; run study latency with more --shapes"
        raise InputError.at("--latency-table", message)
    cases = list(zip(architectures, rows["batch"].astype(int), rows["sequence_length"].astype(int), strict=True))
    measured = [_ranged(*case) for case in cases]
    ranges = {name: (min(one[name] for one in measured), max(one[name] for one in measured)) for name in RANGED}
    for size in ("depth", "width"):
        least, largest = ranges[size]
        if least == largest:
            message = f"has only shapes of {size} {least:g}, which cannot show its cost; run study latency with other --shapes"
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


def _rows_of(table: pd.DataFrame, precision: WeightFormat, threads: int | None) -> pd.DataFrame:
    table = table[table[UNLIKE_BERT] == ""]
    rows = table[table["precision"] == precision]
    counts = sorted(rows["threads"].unique().tolist())
    available = table[["precision", "threads"]].drop_duplicates().sort_values(["precision", "threads"])
    known = f"it has {', '.join(f'{kind} at {number} threads' for kind, number in available.itertuples(index=False))}"
    if not counts or (threads is not None and threads not in counts):
        wanted = precision if threads is None else f"{precision} at {threads} threads"
        remedy = f"measure them with study latency --precision {precision}"
        raise InputError.at("--latency-table", f"has no times in {wanted}; {known}; {remedy}")
    if threads is None and len(counts) > 1:
        raise InputError.at("--threads", f"is missing, and the table has times at {', '.join(map(str, counts))}; give one")
    return rows[rows["threads"] == (counts[0] if threads is None else threads)]


def _architecture(row: Mapping[Hashable, Any]) -> Architecture:
    sizes = ("depth", "width", "heads", "ffn", "vocabulary", "positions", "segments", "norm")
    return Architecture.parse({name: row[name] for name in sizes}, place="--latency-table")


def _ranged(architecture: Architecture, batch: int, sequence_length: int) -> dict[str, float]:
    a = architecture
    return dict(zip(RANGED, (a.depth, a.width, a.ffn / a.width, a.width / a.heads, batch, sequence_length), strict=True))


def _features(architecture: Architecture, batch: int, length: int, precision: WeightFormat) -> NDArray[np.float64]:
    """A call's cost terms; a block writes 8H + 2F numbers per token, and A·S attention scores."""
    a, tokens = architecture, batch * length
    flops = batch * flops_per_sequence(a, length, 0).train_flops / 3
    weights = (1 if precision == "int8" else itemsize(precision)) * parameters(a).parameters_non_embedding
    written = itemsize(precision) * a.depth * tokens * (8 * a.width + 2 * a.ffn + a.heads * length)
    return np.array([1, a.depth, flops, weights, written], dtype=float)


def _fit(features: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients ≥ 0 that minimise squared relative errors; columns are scaled to be independent of units."""
    from scipy.optimize import nnls

    relative = features / seconds[:, None]
    scale = np.linalg.norm(relative, axis=0)
    return np.asarray(nnls(relative / scale, np.ones(len(seconds)))[0] / scale, dtype=float)


def _left_out_errors(features: NDArray[np.float64], seconds: NDArray[np.float64], shapes: NDArray[Any]) -> NDArray[np.float64]:
    """Relative errors of every row, predicted by a fit without its shape's rows."""
    predicted = np.empty_like(seconds)
    for shape in set(shapes.tolist()):
        out = shapes == shape
        predicted[out] = features[out] @ _fit(features[~out], seconds[~out])
    return np.abs(predicted / seconds - 1)
