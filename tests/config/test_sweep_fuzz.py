"""Whatever stands in a sweep file or an override, it is read, or every problem is reported on a line: no other end.

A short run in the ordinary suite; `make fuzz` runs it longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from study.base.errors import InputError, Problem
from study.base.text import printable
from study.config.sweep import CellSweep, Sweep
from study.config.sweep_files import read_launched, read_sweep
from study.planning.plan import Plan
from tests.planning.test_goals import DECISION, FORECAST, OPTIMUM
from tests.sweeps import RATES, sweep_values

pytestmark = pytest.mark.fuzz

SWEEPS = Path(__file__).resolve().parents[2] / "sweeps"

SEARCH = {
    "trials": 4,
    "head_width": 8,
    "prune": {"by": "median"},
    "space": {
        "architecture.width": {"choices": [16, 32]},
        "recipe.dropout": {"low": 0, "high": 0.5},
        "recipe.learning_rate": {"low": 1e-3, "high": 1e-2, "log": True},
        "recipe.batch_tokens": {"low": 256, "high": 512, "step": 128},
    },
}
MOBILEBERT = {
    "embedding_width": 16,
    "trigram_embedding": True,
    "bottleneck_width": 16,
    "ffn_stack": 2,
    "activation": "relu",
    "norm_kind": "affine",
    "mlm_transform": "width",
}
SEEDS: list[dict[str, Any]] = [
    *(yaml.safe_load(file.read_text()) for file in sorted(SWEEPS.glob("*.yaml"))),
    sweep_values(Path("text.txt"), tune=RATES, vary={"architecture.norm": ["post", "pre"]}, seeds=3, tags=["a", "b"]),
    sweep_values(Path("text.txt"), base={"architecture": MOBILEBERT}),
    *(sweep_values(Path("text.txt"), **goal) for goal in (FORECAST, DECISION, OPTIMUM)),
    sweep_values(Path("text.txt"), shapes=None, search=SEARCH, base={"architecture": {"depth": 1}}),
    sweep_values(
        Path("text.txt"),
        downstream={"tasks": ["cola"], "knobs": {"max_length": 16}},
        masking={"rate": 0.2},
        resources={"on": "slurm", "slurm": {"partition": "gpu", "time": "4h", "setup": ["ls"], "options": {"nice": 1}}},
    ),
]

NUMBERS = [0, -1, 1, 2, 7, 0.5, -0.0, 1e-320, 1e-38, 1e38, 1e308, 10**12, 10**18, 2**63, 10**30, float("inf"), float("nan")]
WORDS = [
    *("", " ", "x", "none", "auto", "fresh", "on", "null", "~", "=", "<<", "-", "?", "*a", "&a", "!x", "%", "@", "`", "#"),
    *("1e6", "1e400", "-1e-3", "10K", "1.5M", "16KB", "0x10", "0b1", "010", "1:30", "1_000", ".inf", ".nan", "1e", "NaN"),
    *("../..", "a/b", "/", "~nobody/x", "hub:", "a\nb", "a\tb", "\x00", "\x1b[2J", "\u202e", "\ud800", "é" * 70, "9" * 5000),
    *("results/x/runs/0123456789abcdef", "results/x/runs/0123456789abcdef:last", "0123456789abcdef:weight=e:temperature=e"),
]
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, [], {}, [[]], [{}], {"a": {"b": 1}}, [1, 1.0], ["a", "a"], [None], [[1, 2]], {"": ""}]
).map(deepcopy)
KEYS = ["", "seeds", "search", "shapes", "prune", "vary", "recipe.dropout", "architecture", "base", "space", "low", "a.b", "x"]

LETTERS = "abcdefghijklmnopq"
BOMB = ", ".join(
    ["&a [x, x, x, x, x, x, x, x, x]"]
    + [f"&{later} [{', '.join([f'*{earlier}'] * 9)}]" for earlier, later in pairwise(LETTERS)]
)
"""A list of lists of lists, each nine times the one before: 9¹⁷ values in 825 bytes."""

YAML_TEXTS = [
    *("!!int [x]", "!!bool x", "!!float {}", "!!null x", "!!timestamp x", "!!binary aGk=", "!!set {a}", "!!omap [a: 1]"),
    *("!x y", "! y", "0x" + "f" * 6000, "9" * 6000, "0b" + "1" * 6000, "1" * 400 + ".0", "0x_", "._", "1:30", "1:30.5"),
    *("010", "0o7", "[" * 3000, "{a: " * 3000, "- " * 300, "? " * 300, f"[{BOMB}]", "&a [*a]", "&a {<<: *a}"),
    *("{<<: {a: 1}}", "{<<: 1}", "{<<: [1]}", "{a: 1, a: 2}", "{? [1] : 2}", "{1: 2}", "{~: 1}", "'", '"', '"\\x00"'),
    *('"\\ud800"', '"\\U00110000"', '"\\e"', "\x00", "\x07", "2026-01-30", "2026-02-30", "0000-01-01", "%YAML 9.9"),
    *("2001-12-14t21:59:43.10-99:99", "2026-01-30 1:2:3 +14", "--- a\n--- b", "*a", "&", "&a", "|", ">", "|9", ">-", "@"),
    *("`", "\t", "a: b", "[1", "1]", "{", "}", "[,]", "{,}", ",", ": :", "- - -", *map(str, NUMBERS)),
]


@st.composite
def values_of_sweeps(draw: st.DrawFn) -> dict[str, Any]:
    """The values of a good sweep file with a few of them replaced, taken away, doubled or put under other keys."""
    values: dict[str, Any] = deepcopy(SEEDS[draw(st.integers(0, len(SEEDS) - 1))])
    for _ in range(draw(st.integers(1, 3))):
        places = [*_places(values)]
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        odd = draw(st.sampled_from([*NUMBERS, *WORDS]) | ODD | st.integers() | st.floats() | st.text(max_size=8))
        match draw(st.sampled_from(["replace", "remove", "rename", "add", "list"])):
            case "replace":
                holder[key] = odd
            case "remove":
                del holder[key]
            case "rename" if isinstance(holder, dict):
                holder[draw(st.sampled_from(KEYS) | st.just(f"{key}s"))] = holder.pop(key)
            case "add" if isinstance(holder, dict):
                holder[draw(st.sampled_from(KEYS) | st.text(max_size=4))] = odd
            case _:
                holder[key] = [holder[key], odd]
        assume(values)
    return values


def _places(values: dict[str, Any] | list[Any]) -> Iterator[tuple[Any, Any]]:
    """Every key and every place in a list, with what holds it."""
    for key, below in values.items() if isinstance(values, dict) else enumerate(values):
        yield values, key
        if isinstance(below, dict | list):
            yield from _places(below)


@st.composite
def overrides(draw: st.DrawFn) -> str:
    """`key.path=value` with a path that is known, nearly known or none, and any text for a value."""
    known = [".".join(path) for path in _paths(draw(st.sampled_from(SEEDS)))]
    path = draw(st.sampled_from(known) | st.sampled_from([*KEYS, "a" + ".a" * 3000, "..", "vary.x.y.z"]) | st.text(max_size=6))
    text = draw(st.sampled_from([*YAML_TEXTS, *WORDS]) | st.text(max_size=12))
    return draw(st.sampled_from([f"{path}={text}", f"{path}=[{text}]", f"{path}={{{text}: {text}}}", path]))


def _paths(values: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, below in values.items():
        yield (key,)
        if isinstance(below, dict):
            yield from ((key, *path) for path in _paths(below))


def outcome(read: Callable[[], Sweep]) -> Sweep | None:
    """What is read; None where it is refused, each problem on a line that says something."""
    problems: tuple[Problem, ...] = ()
    sweep = None
    try:
        sweep = read()
    except InputError as error:
        problems = error.problems
    assert (sweep is None) == bool(problems)
    assert all(problem.message and printable(str(problem)) for problem in problems)
    assert max((len(problem.message) for problem in problems), default=0) < 4000, "a message is no copy of what stands there"
    return sweep


def _joined(parts: list[str]) -> bytes:
    return " ".join(parts).encode()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "sweep.yaml"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The good sweeps as files."""
    folder = tmp_path_factory.mktemp("good")
    for number, values in enumerate(SEEDS):
        (folder / f"{number}.yaml").write_text(yaml.safe_dump(values))
    return sorted(folder.iterdir())


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(values=values_of_sweeps())
def test_a_sweep_file_is_read_or_refused(values: dict[str, Any], file: Path) -> None:
    file.write_text(yaml.safe_dump(values, allow_unicode=False))
    sweep = outcome(lambda: read_sweep(file)[0])
    if sweep is not None:
        kept = yaml.safe_dump(read_sweep(file)[1], allow_unicode=True)
        file.write_text(kept)
        assert read_launched(file) == sweep, "a launch leaves the file as it was read"


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(number=st.integers(0, len(SEEDS) - 1), overrides=st.lists(overrides(), min_size=1, max_size=3))
@example(number=0, overrides=["a=!!int [x]"])
@example(number=0, overrides=["question=!!bool x"])
@example(number=0, overrides=["seeds=0x" + "f" * 6000])
@example(number=0, overrides=["seeds=" + "[" * 3000])
@example(number=0, overrides=[f"tags=[{BOMB}]"])
def test_overrides_are_read_or_refused(number: int, overrides: list[str], good: list[Path]) -> None:
    outcome(lambda: read_sweep(good[number], overrides)[0])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    number=st.integers(0, len(SEEDS) - 1),
    place=st.floats(0, 1),
    length=st.integers(0, 12),
    text=st.sampled_from([*YAML_TEXTS, *WORDS]) | st.text(max_size=6),
)
def test_a_file_with_a_piece_of_it_replaced_is_read_or_refused(
    number: int, place: float, length: int, text: str, good: list[Path], file: Path
) -> None:
    whole = good[number].read_text()
    start = int(place * len(whole))
    file.write_bytes((whole[:start] + text + whole[start + length :]).encode(errors="surrogatepass"))
    outcome(lambda: read_sweep(file)[0])


@given(
    content=st.binary(max_size=60)
    | st.lists(st.sampled_from(YAML_TEXTS), max_size=6).map(lambda parts: " ".join(parts).encode())
)
@example(content=b"\xff\xfea\x00:\x00")
@example(content=b"\xef\xbb\xbfquestion: Why?")
def test_any_bytes_are_read_or_refused(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    outcome(lambda: read_sweep(file)[0])


@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    max_examples=settings().max_examples // 10,  # each plans a whole sweep
)
@given(values=values_of_sweeps())
def test_a_sweep_that_is_read_is_planned_or_refused(values: dict[str, Any], file: Path) -> None:
    file.write_text(yaml.safe_dump(values, allow_unicode=False))
    sweep = outcome(lambda: read_sweep(file)[0])
    assume(sweep is not None)
    assert sweep is not None
    if isinstance(sweep, CellSweep):
        tried = prod(tuned.trials for tuned in sweep.tune.values())
        assume(len(sweep.variants) * len(sweep.shapes.sizes({})[0]) * tried < 500)

    def planned() -> Sweep:
        plan = Plan(sweep)
        plan.check()
        assert plan.first_runs
        return plan.spec

    outcome(planned)
