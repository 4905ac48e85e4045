"""The benchmark of designs on finished runs: R² in the target region at 1, 5 and 10% of the cost of all runs.

Tables and protocol are those of Li et al. 2026 (arXiv 2604.22753, CC BY 4.0), whose farseer has one law and is comparable;
their other tasks are means over ten laws, ours has one law each, so their numbers stand beside for orientation. A finished
sweep is replayed, too: its dearest cell is the target, all other runs are the pool; then the next dearest, without dearer ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.base.durable_files import is_there, write_atomically
from study.base.errors import InputError
from study.base.quantities import count_text, rounded_all
from study.base.text import table
from study.designing.choosing import METHODS, RUNS_A_PARAMETER, choose, expected_error, half_width_of
from study.designing.posterior import BEND, Learner, Pool, Prior, Rows, bend_terms, forecast_of, published_prior
from study.laws.catalogue import LAWS
from study.laws.formulas import read_formula
from study.laws.law import Floats, Law
from study.laws.minimising import Space
from study.laws.reading import TableQuery, read_columns
from study.laws.tables import RunTable

BUDGETS = (0.01, 0.05, 0.1)
"""The shares of the pool's cost."""

REPEATS = 10
"""The repeats of each method, with seeds of their own."""

SIMULATED = 60
"""The laws simulated for the coverage of forecasts."""

_VOCABULARY = "A*N**-alpha + B*D**-beta + K*vocabulary**-gamma - E"

REPLAYED = (0.05, 0.1, 0.15)
"""The shares of the FLOPs of a sweep that is replayed."""

TURNS = 6
"""The dearest cells of a sweep that are its target in turn, since the miss at one is a single draw."""

BASELINES = ("random", "cheapest", "d-optimal", "v-optimal")
"""The plain methods."""

PUBLISHED: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "farseer": {
        "random": (-0.77, 0.78, 0.79),
        "cheapest": (-0.89, 0.41, 0.68),
        "d-optimal": (-0.11, 0.49, 0.87),
        "v-optimal": (0.67, 0.87, 0.92),
        "error": (0.60, 0.88, 0.93),
        "all": (0.91,),
    },
    "data_constrained": {
        "random": (-0.74, -0.36, 0.12),
        "cheapest": (-0.58, -0.56, -0.40),
        "d-optimal": (0.71, 0.80, 0.77),
        "v-optimal": (0.58, 0.83, 0.85),
        "error": (0.73, 0.85, 0.86),
        "all": (0.79,),
    },
    "vocab": {
        "random": (0.54, 0.53, 0.59),
        "cheapest": (0.30, 0.53, 0.55),
        "d-optimal": (0.95, 0.97, 0.97),
        "v-optimal": (0.96, 0.97, 0.98),
        "error": (0.96, 0.98, 0.98),
        "all": (0.93,),
    },
}
"""R² of Li et al. 2026, table 2, at BUDGETS and with all data; `error` is their own method."""


@dataclass(frozen=True)
class Task:
    """A table of finished runs: its law, columns of variables and response, and those whose product is the cost."""

    law: Law
    columns: Mapping[str, str]
    response: str
    cost: tuple[str, str]
    space: Space = "log"


TASKS = {
    "farseer": Task(LAWS["farseer"], {"parameters": "N", "tokens": "D"}, "loss", ("N", "D")),
    "data_constrained": Task(
        LAWS["data-constrained"],
        {"parameters": "params", "tokens": "tokens", "unique_tokens": "unique_tokens"},
        "loss",
        ("params", "tokens"),
    ),
    "vocab": Task(
        read_formula(_VOCABULARY, "vocab"),
        {"parameters": "non_vocab_parameters", "tokens": "num_characters", "vocabulary": "vocab_size"},
        "unigram_normalized_loss",
        ("non_vocab_parameters", "num_characters"),
        "linear",
    ),
}
"""The tasks, by the name of their files."""


@dataclass(frozen=True)
class Loaded:
    """A task's pool, the responses of its candidates and targets, and the prior of every fit, if any."""

    pool: Pool
    response: Floats
    truth: Floats
    prior: Prior | None = None


def load(name: str, folder: Path) -> Loaded:
    """Read a task; raises InputError without its files."""
    task, parts = TASKS[name], []
    for part in ("train", "test"):
        file = folder / f"{name}_{part}.parquet"
        if not file.is_file():
            raise InputError.at("--pools", f"{folder} has no {file.name}; give the folder of scalebench's tables")
        parts.append(pd.read_parquet(file))
    columns = [_columns(task, frame) for frame in parts]
    costs = parts[0][task.cost[0]].to_numpy(dtype=float) * parts[0][task.cost[1]].to_numpy(dtype=float)
    pool = Pool(task.law, columns[0], costs / costs.sum(), columns[1], task.space)
    responses = [frame[task.response].to_numpy(dtype=float) for frame in parts]
    return Loaded(pool, responses[0], responses[1])


def _columns(task: Task, frame: pd.DataFrame) -> dict[str, Floats]:
    columns = {role: frame[name].to_numpy(dtype=float) for role, name in task.columns.items()}
    if "unique_tokens" in columns:
        columns["unique_tokens"] = np.minimum(columns["unique_tokens"], columns["tokens"])
    return columns


def score(truth: Floats, predicted: Floats) -> float:
    """R² clipped to −1 and 1."""
    return float(np.clip(1 - np.sum((truth - predicted) ** 2) / np.sum((truth - truth.mean()) ** 2), -1, 1))


def measure(folder: Path, report: Callable[[dict[str, Any]], None], tasks: Sequence[str] = (), repeats: int = REPEATS) -> None:
    """Report every method on every task as a row."""
    for name in tasks or TASKS:
        loaded = load(name, folder)
        for method in (*BASELINES, "error", "all"):
            scores, counts = [], []
            for seed in range(1 if method == "all" else repeats):
                chosen = [*_chosen(method, loaded, seed, BUDGETS)]
                learner = Learner(loaded.pool, seed)
                forecasts = [learner.forecast(rows, loaded.response) for rows in chosen]
                scores.append([score(loaded.truth, forecast) for forecast in forecasts])
                counts.append([len(rows) for rows in chosen])
            mean, spread = np.mean(scores, axis=0).tolist(), np.std(scores, axis=0).tolist()
            published = list(PUBLISHED[name][method])
            row = {"task": name, "method": method, "r2": mean, "sd": spread, "rows": np.mean(counts, axis=0).tolist()}
            report(rounded_all(row | {"published": published, "each": scores}))


def _chosen(method: str, loaded: Loaded, seed: int, budgets: Sequence[float]) -> Iterator[Rows]:
    pool, random = loaded.pool, np.random.default_rng(seed)
    match method:
        case "all":
            yield np.arange(len(pool))
        case "random":
            order = random.permutation(len(pool))
            yield from (_affordable(order, pool, budget) for budget in budgets)
        case "cheapest":
            yield from (_affordable(np.argsort(pool.costs, kind="stable"), pool, budget) for budget in budgets)
        case _:
            yield from choose(pool, list(budgets), lambda rows: loaded.response[rows], METHODS[method], seed, loaded.prior)


def _affordable(order: Rows, pool: Pool, budget: float) -> Rows:
    """Return the affordable rows in order, at least as many as parameters."""
    kept, spent = [], 0.0
    for row in order.tolist():
        if spent + pool.costs[row] <= budget:
            kept.append(row)
            spent += float(pool.costs[row])
    fewest = len(pool.law.parameters)
    return np.array(kept if len(kept) >= fewest else order[:fewest])


def load_replays(table: RunTable) -> Iterator[Loaded]:
    """Yield the runs of a table that a law reads, such as those at the best rate of their cell, with a target each time.

    The target is the dearest cell, a size and its tokens, with the mean response of its seeds; the next replay knows the pool
    alone. There are TURNS, or as many as leave a pilot in the pool. The prior is that of a goal without one.
    """
    law, roles = LAWS["chinchilla"], {"parameters": "parameters_non_embedding"}
    runs = read_columns(TableQuery(table, roles), (*law.variables, "flops"), law.predicts)
    runs.check(law)
    columns, response = {**runs.columns}, runs.response
    for turn in range(TURNS):
        costs, dearest = columns["flops"], int(np.argmax(columns["flops"]))
        others = np.any([columns[name] != columns[name][dearest] for name in law.variables], axis=0)
        if turn and others.sum() < max(RUNS_A_PARAMETER) * len(law.parameters):
            return
        pool = Pool(
            law,
            {name: columns[name][others] for name in law.variables},
            costs[others] / costs[others].sum(),
            {name: columns[name][[dearest]] for name in law.variables},
        )
        yield Loaded(pool, response[others], response[~others].mean(keepdims=True), published_prior(pool))
        columns, response = {name: values[others] for name, values in columns.items()}, response[others]


def measure_replay(table: RunTable, report: Callable[[dict[str, Any]], None], repeats: int = REPEATS) -> None:
    """Report by method the relative errors of the forecast of a sweep's dearest cells, after each share of the others' FLOPs.

    The forecasts are those of a goal without a prior, whose law may bend, and those of the same law taken as exact. `error`,
    `exact`, `rows` and `each` are those of the dearest cell, `in_turn` is the mean of `error` over all targets.
    """
    replays = [*load_replays(table)]
    pool = replays[0].pool
    targets = [{name: float(value[0]) for name, value in loaded.pool.targets.items()} for loaded in replays]
    for method in (*BASELINES, "error", "all"):
        errors, counts = [], []
        for loaded in replays:
            for seed in range(1 if method == "all" else repeats):
                chosen = [*_chosen(method, loaded, seed, REPLAYED)]
                errors.append([[_missed(loaded, rows, seed, bend) for rows in chosen] for bend in (BEND, 0.0)])
                counts.append([len(rows) for rows in chosen])
        missed = np.reshape(errors, (len(replays), -1, 2, len(counts[0])))
        bent, exact = np.abs(missed[0]).mean(axis=0).tolist()
        each, in_turn = missed[0, :, 0].tolist(), np.abs(missed[:, :, 0]).mean(axis=(0, 1)).tolist()
        rows = np.mean(counts[: len(each)], axis=0).tolist()
        row = {"method": method, "error": bent, "exact": exact, "in_turn": in_turn, "rows": rows}
        report(rounded_all(row | {"targets": targets, "pool": len(pool), "each": each}))


def _missed(loaded: Loaded, rows: Rows, seed: int, bend: float) -> float:
    learner = Learner(loaded.pool, seed, bend, loaded.prior)
    return float(np.expm1(forecast_of(learner.basins(rows, loaded.response))[0] - np.log(loaded.truth[0])))


@dataclass(frozen=True)
class Coverage:
    """Of `simulated` laws, the share whose loss at the target lies in the 95% interval that a design leaves, and half of it."""

    simulated: int
    covered: float
    half_width: float


def simulate_coverage(bend: float, simulated: int = SIMULATED) -> Coverage:
    """How often the interval of a forecast holds for random laws that bend by `bend`.

    Chinchilla's law with exponents between 0.25 and 0.45 and terms of 0.2 to 1.2 nats in the middle of a pool of 10 × 10 sizes
    and tokens over three decades each; runs scatter by 0.3%. The target costs 40 times the dearest run; 1% of the pool's cost
    is spent. The prior is that of a goal without one.
    """
    hits, halves = [], []
    for seed in range(simulated):
        random = np.random.default_rng(seed)
        sizes, tokens = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e7, 1e10, 10), np.geomspace(1e9, 1e12, 10)))
        candidates, costs = {"parameters": sizes, "tokens": tokens}, sizes * tokens
        target = {"parameters": np.array([5e10]), "tokens": np.array([8e12])}
        pool = Pool(LAWS["chinchilla"], candidates, costs / costs.sum(), target)
        prior = published_prior(pool)
        learner = Learner(pool, seed, prior=prior)
        theta = np.array([random.uniform(1.5, 2.0), *random.uniform(0.2, 1.2, 2), *random.uniform(0.25, 0.45, 2)])
        terms = bend_terms(learner.columns)
        truth = np.log(learner.surface.value(theta[None])[0]) + terms @ random.normal(0, bend, terms.shape[1])
        response = np.exp(truth[:-1] + random.normal(0, 0.003, len(pool)))

        def run(rows: Rows, response: Floats = response) -> Floats:
            return response[rows]

        (rows,) = choose(pool, [BUDGETS[0]], run, METHODS["error"], seed, prior)
        basins = learner.basins(rows, response)
        halves.append(half_width_of(expected_error(basins)))
        hits.append(abs(float(forecast_of(basins)[0]) - float(truth[-1])) <= halves[-1])
    return Coverage(simulated, float(np.mean(hits)), float(np.median(halves)))


def measure_coverage(simulated: int = SIMULATED) -> list[dict[str, Any]]:
    """Return the coverage of exact laws, and of laws that bend as designs expect."""
    return [rounded_all({"bend": bend, **asdict(simulate_coverage(bend, simulated))}) for bend in (0.0, BEND)]


def as_line(row: Mapping[str, Any]) -> str:
    """Return a row on one line."""
    if "error" in row:
        return f"replay, {row['method']}: error {' / '.join(f'{one:.2%}' for one in row['error'])}"
    measured = " / ".join(f"{mean:.2f} ± {spread:.2f}" for mean, spread in zip(row["r2"], row["sd"], strict=True))
    return f"{row['task']}, {row['method']}: R² {measured}; published {' / '.join(f'{one:.2f}' for one in row['published'])}"


def write(part: str, rows: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write one of the parts `designs`, `coverage` and `replay` into design.json and return the path of design.md.

    Raises InputError if design.json cannot be read or is an older version's.
    """
    file = folder / "design.json"
    try:
        parts = dict(json.loads(file.read_bytes())) if is_there(file) else {}
    except ValueError as error:
        raise InputError.at(str(file), f"is not a file of study bench ({error}); move it away") from None
    parts[part] = [*rows]
    try:
        markdown = as_markdown(parts)
    except KeyError as error:
        message = f"lacks {error} in its rows, as an older version wrote it; move it away, and measure its parts again"
        raise InputError.at(str(file), message) from None
    write_atomically(file, json.dumps(parts, indent=1).encode() + b"\n")
    write_atomically(folder / "design.md", markdown.encode())
    return folder / "design.md"


def as_markdown(parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return what was measured of designs, coverage and replay, beside the published designs."""
    sections = [_designs(parts.get("designs", ())), _coverage(parts.get("coverage", ())), _replay(parts.get("replay", ()))]
    return "\n\n".join(["# Designs", *filter(None, sections)]) + "\n"


def _designs(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ["task", "method", *(f"R² at {budget:.0%}" for budget in BUDGETS), "runs", "repeats", "published"]
    lines = []
    for row in rows:
        measured = [f"{mean:.2f} ± {spread:.2f}" for mean, spread in zip(row["r2"], row["sd"], strict=True)]
        measured = measured if len(measured) == len(BUDGETS) else ["", "", *measured]
        counts = " / ".join(f"{count:.0f}" for count in row["rows"])
        published = " / ".join(f"{one:.2f}" for one in row["published"])
        lines.append([row["task"], row["method"], *measured, counts, str(len(row["each"])), published])
    text = (
        "R² in the target region after a share of the pool's cost, clipped to −1 and 1: the mean and standard deviation of the "
        "repeats. `error` is our method, the expected error over basins of a law that may bend; beside it stands the method of "
        "Li et al. 2026 (arXiv 2604.22753). All methods are fitted alike. Only farseer has the law of the published numbers: "
        "elsewhere they are means over ten laws."
    )
    return f"{text}\n\n{table(header, lines)}" if lines else ""


def _coverage(rows: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join(
        f"Of {one['simulated']} simulated laws that bend by {one['bend']:.1%}, {one['covered']:.1%} have the loss at a "
        f"target of 40 times the dearest run within the 95% interval after 1% of the pool's cost, in the median "
        f"± {one['half_width']:.1%}."
        for one in rows
    )


def _replay(rows: Sequence[Mapping[str, Any]]) -> str:
    by_method = {row["method"]: row for row in rows}
    if not {"error", "all"} <= {*by_method}:
        return ""
    targets = by_method["all"]["targets"]
    header = ["method", *(f"error at {share:.0%}" for share in REPLAYED), "targets in turn", "runs", "repeats", "exact law"]
    blank = [""] * (len(REPLAYED) - 1)
    lines = []
    for row in rows:
        errors, in_turn, exact = ([f"{one:.2%}" for one in row[name]] for name in ("error", "in_turn", "exact"))
        counts = " / ".join(f"{count:.0f}" for count in row["rows"])
        shown = errors if len(errors) == len(REPLAYED) else [*blank, *errors]
        lines.append([row["method"], *shown, " / ".join(in_turn), counts, str(len(row["each"])), " / ".join(exact)])
    times = [by_method["error"][name][-1] / by_method["all"][name][-1] for name in ("error", "in_turn")]
    where = " and ".join(f"{count_text(value)} {name}" for name, value in targets[0].items())
    others, share = by_method["all"]["pool"], f"{REPLAYED[-1]:.0%}"
    text = (
        f"A finished sweep replayed: its dearest cell, of {where}, is the target, the {others} other runs are the pool, of "
        f"whose FLOPs a share is spent. The mean size of the relative error of the forecast, by chinchilla with published "
        f"exponents as a prior, once as a law that may bend, as goals take it, and once as an exact law. Runs are chosen by "
        f"the same prior. One target is a single draw: in turn, each of the {len(targets)} dearest cells is the target, "
        f"without the runs of dearer ones. For {share} of the FLOPs the runs that `error` chooses miss the dearest cell by "
        f"{times[0]:.2f} times the error of all, and the targets in turn by {times[1]:.2f} times."
    )
    return f"{text}\n\n{table(header, lines)}"
