"""The latency table of a machine, one environment per folder and one row per case, and the latency of shapes that it lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from study.base.durable_files import is_there, json_of, write_atomically
from study.base.errors import InputError, shown
from study.base.text import pasted
from study.counting.architecture import Architecture, not_of_berts_kind
from study.counting.memory import WeightFormat, itemsize
from study.counting.parameters import flops_per_sequence, parameters

if TYPE_CHECKING:
    import pandas as pd

TIMES = ("median_seconds", "p95_seconds", "fastest_seconds")
"""The columns of times."""

COUNTS = (
    *("depth", "width", "heads", "ffn", "vocabulary", "positions", "segments"),
    *("parameters_encoder", "batch", "sequence_length", "threads"),
)
"""The columns of whole numbers."""

KEY = ("model", "shape", "vocabulary", "norm", "batch", "sequence_length", "precision", "threads")
"""A row's key; a new measurement replaces the older row."""

UNLIKE_BERT = "unlike_bert"
"""The column of what an encoder has unlike BERT (`kind_words`), empty if nothing; tables of earlier versions lack it."""

FOLLOWING_SIZES = ("embedding_width", "layer_groups")
"""The fields that shapes of one kind lack where they equal the width or the depth."""

_MOST = 1e15
"""The largest number allowed in a table."""

_FILE = "table.csv"

Statistic = Literal["median", "p95", "fastest"]
"""The predicted time of the calls; on a shared machine, only the fastest is the encoder's alone."""

FEWEST_OF_A_KIND = 3
"""The least shapes of a kind from which its latency is predicted."""

FEWEST_SHAPES = 5
"""The least shapes of a batch and length to be fitted alone."""

RANGED = ("depth", "width", "FFN ratio", "head width", "batch", "length")
"""The quantities in which a prediction may extrapolate."""

TERMS = ("call", "layer", "flop", "weight_byte", "activation_byte")
"""The terms of the coefficients, in seconds."""


def kind_words(architecture: Architecture) -> str:
    """In what an encoder's kind differs from BERT's, such as `position_encoding rotary, norm_kind rms`."""
    return ", ".join(f"{field} {value}" for field, value in not_of_berts_kind(architecture).items())


def common_kind(unlike: str) -> str:
    """Return the `kind_words` common to a kind: all but FOLLOWING_SIZES, unless those are all that there is."""
    parts = [part for part in unlike.split(", ") if not part.startswith(FOLLOWING_SIZES)]
    return ", ".join(parts) or unlike


def check_environment(environment: Mapping[str, Any], root: Path) -> None:
    """Raise InputError if times of this environment cannot join its folder under `root`, if any.

    A torn table or another environment prevents it.
    """
    _there(environment, root)


def write_table(rows: pd.DataFrame, environment: Mapping[str, Any], root: Path) -> Path:
    """Add rows to `root/<hardware>/table.csv`, write `environment.json` beside it, and return the table's path.

    New measurements replace rows of the same case. Raises InputError as `check_environment` does.
    """
    import pandas as pd

    folder, before = _there(environment, root)
    if before is not None:
        rows = pd.concat([before, rows]).drop_duplicates([*KEY, UNLIKE_BERT], keep="last")
    order = ["threads", "precision", "sequence_length", "batch", "parameters_encoder", "model"]
    content = rows.sort_values(order).to_csv(index=False, float_format="%.6g")
    write_atomically(folder / "environment.json", json.dumps(dict(environment), indent=1).encode() + b"\n")
    write_atomically(folder / _FILE, content.encode())
    return folder / _FILE


def _there(environment: Mapping[str, Any], root: Path) -> tuple[Path, pd.DataFrame | None]:
    """Return the folder of this environment's table under `root`, and any table."""
    folder = root / hardware_name(environment)
    facts = folder / "environment.json"
    before = json_of(facts, dict, "give another --into")
    if before is not None and before != dict(environment):
        changed = [name for name in environment if before.get(name) != environment[name]]
        changes = "; ".join(f"{name} was {before.get(name)!r}, is {environment[name]!r}" for name in changed)
        raise InputError.at(str(folder), f"holds times of another environment ({changes}); give another --into")
    table = folder / _FILE
    return folder, _read(table) if is_there(table) else None


def hardware_name(environment: Mapping[str, Any]) -> str:
    """Return the processor on a CPU, else the device: lower case, all but letters and digits as dashes."""
    hardware = environment["processor"] if environment["device"] == "cpu" else environment["device"]
    return re.sub(r"[^a-z0-9]+", "-", str(hardware).lower()).strip("-") or "unknown"


def read_table(path: Path) -> pd.DataFrame:
    """Return the table of a latency folder; raises InputError if missing or torn.

    `path` is the table, its folder, or a folder that holds exactly one.
    """
    tables = [path] if path.is_file() else sorted(path.glob(_FILE)) or sorted(path.glob(f"*/{_FILE}"))
    if not tables:
        remedy = f"measure one: study latency --models bert-tiny,bert-mini,bert-small,bert-medium --into {pasted(path)}"
        raise InputError.at(str(path), f"holds no latency table; {remedy}")
    if len(tables) > 1:
        raise InputError.at(str(path), f"holds {len(tables)} latency tables; give one of {', '.join(map(str, tables))}")
    return _read(tables[0])


def _read(file: Path) -> pd.DataFrame:
    """Return the table of a file; raises InputError for its first unusable row."""
    import pandas as pd

    try:
        table = pd.read_csv(file, dtype=dict.fromkeys((*COUNTS, *TIMES, UNLIKE_BERT), str))
    except (ValueError, pd.errors.ParserError) as error:
        raise InputError.at(str(file), f"is not a latency table: {error}") from None
    if missing := [name for name in dict.fromkeys((*KEY, *COUNTS, *TIMES)) if name not in table]:
        raise InputError.at(str(file), f"is not a latency table: it has no column {', '.join(missing)}")
    table[UNLIKE_BERT] = table[UNLIKE_BERT].fillna("") if UNLIKE_BERT in table else ""
    if table.empty:
        raise InputError.at(str(file), "has no rows; remove it, and measure with study latency")
    for name in (*COUNTS, *TIMES):
        numbers, counted = pd.to_numeric(table[name], errors="coerce"), name in COUNTS
        usable = numbers.between(0, _MOST) & (numbers % 1 == 0 if counted else numbers > 0)
        if not usable.all():
            row, needed = int(usable.argmin()), "whole number of at least zero" if counted else "time above zero"
            problem = f"{name} of row {row + 1} is {shown(table[name].iloc[row])}, not a {needed}"
            raise InputError.at(str(file), f"{problem}; remove the row, and measure it again with study latency")
        table[name] = numbers
    return table


@dataclass(frozen=True)
class LatencyModel:
    """Seconds of a forward pass as a sum of non-negative costs.

    t = c₀ + c₁·L + c₂·FLOPs + c₃·bytes of the blocks' weights + c₄·bytes of the activations that the blocks write

    Embedding tables are excluded. Coefficients are fitted by non-negative least squares of the relative error to a `statistic`
    of the calls: the median, the 95th percentile, or the fastest. `error` is the median and `worst_error` the largest relative
    leave-one-shape-out error; they say little outside the measured `ranges` (RANGED), or for encoders of another kind than
    those measured, of which `unlike_bert` says what they have in common that BERT has not.
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
    unlike_bert: str = ""

    def seconds(self, architecture: Architecture, batch: int, sequence_length: int) -> float:
        """Predicted seconds of one call."""
        features = _features(architecture, batch, sequence_length, self.precision)
        return float(features @ np.array([self.coefficients[term] for term in TERMS]))

    def beyond(self, architecture: Architecture, batch: int, sequence_length: int) -> list[str]:
        """Return the quantities beyond the measured ranges, and the fields unlike measured ones."""
        values = _ranged(architecture, batch, sequence_length)
        outside = [name for name, (least, largest) in self.ranges.items() if not least <= values[name] <= largest]
        if common_kind(kind_words(architecture)) == self.unlike_bert:
            return outside
        return [*outside, *(field.replace("_", " ") for field in not_of_berts_kind(architecture))]

    def to_dict(self) -> dict[str, Any]:
        """Return the model as plain values."""
        return dict(vars(self))

    def to_text(self) -> str:
        """Return the model's basis and error, in a line."""
        shapes = f"{self.n_shapes} shapes" + (f" with {self.unlike_bert}" if self.unlike_bert else "")
        basis = f"{self.n_rows} times ({self.statistic}) of {shapes} at {self.settings}, {self.threads} threads"
        error = f"{self.error:.0%} off (median), {self.worst_error:.0%} at worst, each shape left out in turn"
        return f"latency: predicted from {basis}; {error}"


def fit_latency(
    table: pd.DataFrame,
    precision: WeightFormat,
    threads: int | None = None,
    setting: tuple[int, int] | None = None,
    statistic: Statistic = "median",
    kind: Architecture | None = None,
) -> LatencyModel:
    """Return the latency model of a table's encoders of a kind, in one precision and number of threads (default: the only one).

    The kind is BERT's, or that of `kind` if FEWEST_OF_A_KIND of its shapes were measured, of two depths and widths. `setting`
    is the batch and sequence length to predict for; if FEWEST_SHAPES have it, only their rows are fitted.

    Raises InputError without such rows, with fewer than three shapes, or with only one depth or width.
    """
    measured_kind, kinds = "" if kind is None else common_kind(kind_words(kind)), table[UNLIKE_BERT].map(common_kind)
    if not _suffice(table[(kinds == measured_kind) & (table["precision"] == precision)], threads):
        measured_kind = ""
    rows, settings = _rows_of(table[kinds == measured_kind], precision, threads), "all batches and lengths"
    if setting is not None:
        exact = rows[(rows["batch"] == setting[0]) & (rows["sequence_length"] == setting[1])]
        if exact["shape"].nunique() >= FEWEST_SHAPES:
            rows, settings = exact, f"{setting[0]} x {setting[1]} tokens"
    template = kind if measured_kind else None
    architectures = [_architecture(row, template) for row in rows.to_dict("records")]
    shapes = [hash(architecture) for architecture in architectures]
    if len(set(shapes)) < FEWEST_OF_A_KIND:
        message = f"has {len(set(shapes))} shapes in {precision}; a prediction needs {FEWEST_OF_A_KIND}"
        message += "; run study latency with more --shapes"
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
        unlike_bert=measured_kind,
    )


def _suffice(rows: pd.DataFrame, threads: int | None) -> bool:
    """Whether rows of one kind and precision suffice at these threads."""
    at = rows if threads is None else rows[rows["threads"] == threads]
    return at["shape"].nunique() >= FEWEST_OF_A_KIND and min(at["depth"].nunique(), at["width"].nunique()) > 1


def _rows_of(table: pd.DataFrame, precision: WeightFormat, threads: int | None) -> pd.DataFrame:
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


def _architecture(row: Mapping[Hashable, Any], kind: Architecture | None) -> Architecture:
    """Return a row's encoder, of BERT's kind if no other is given."""
    sizes = ("depth", "width", "heads", "ffn", "vocabulary", "positions", "segments", "norm")
    words = dict(part.partition(" ")[::2] for part in str(row[UNLIKE_BERT]).split(", "))
    following = {field: int(words[field]) if field in words else None for field in FOLLOWING_SIZES}
    own = {} if kind is None else kind.model_dump() | following
    return Architecture.parse(own | {name: row[name] for name in sizes}, place="--latency-table")


def _ranged(architecture: Architecture, batch: int, sequence_length: int) -> dict[str, float]:
    a = architecture
    return dict(zip(RANGED, (a.depth, a.width, a.ffn / a.width, a.width / a.heads, batch, sequence_length), strict=True))


def _features(architecture: Architecture, batch: int, length: int, precision: WeightFormat) -> NDArray[np.float64]:
    """Return a call's cost terms; a block writes 8H + 2F numbers per token, and A·S attention scores."""
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
