"""Reading a sweep file with command-line overrides, or a launched sweep's copy.

study.planning.plan checks whether the parts of a run fit together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from study.base.errors import InputError, Problem, near, shown
from study.base.schema import set_below
from study.base.shipped import shipped
from study.base.yaml_files import MOST_NESTED, load_yaml, problem_in_words, read_yaml
from study.config.knobs import KNOBS
from study.config.sweep import Sweep, parse_sweep

SWEEP_FILE = "sweep.yaml"
"""The name of the copy in the sweep's folder."""

_PIPES = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
"""The folders of what a shell gives for a file: /dev/stdin, or /dev/fd/63 for <(cat sweep.yaml)."""

_NAMELESS = "is missing, since text from a pipe has no file name; give name=NAME"


def read_sweep(
    path: Path, overrides: Sequence[str] = (), check: Callable[[Mapping[str, Any]], object] = lambda _: None
) -> tuple[Sweep, dict[str, Any]]:
    """Read a sweep file with `key.path=value` overrides: the sweep, and the plain values for `sweep.yaml`.

    The name of a shipped sweep stands for its file, and `-` for standard input. Raises InputError with every problem, also
    those of `check` (see parse_sweep).
    """
    values = _values_of(path)
    problems = list(_problems_between(overrides))
    for override in overrides:
        try:
            _override(values, override)
        except InputError as error:
            problems += error.problems
    if "name" not in values:
        problems.append(Problem("name", _NAMELESS))
        values["name"] = "piped"
    try:
        sweep = parse_sweep(values, check=check)
    except InputError as error:
        raise InputError([*problems, *error.problems]) from None
    if problems:
        raise InputError(problems)
    return sweep, values


def _values_of(path: Path) -> dict[str, Any]:
    """Return the values of a sweep file, with the file's name unless it is piped."""
    if str(path) == "-":
        path = Path("/dev/stdin")
    if path.parent in _PIPES:
        return read_yaml(path, piped=True)
    path = _file_of(path)
    return {"name": path.stem} | read_yaml(path)


def read_launched(path: Path) -> Sweep:
    """Read the sweep that a launch, perhaps of another version, left in its folder.

    Unknown keys are ignored, knobs unchecked. Raises InputError without a sweep.
    """
    values = {"name": path.parent.name} | read_yaml(path)
    try:
        return parse_sweep(values, unknown="ignore")
    except InputError as error:
        raise InputError(Problem(str(path), str(problem)) for problem in error.problems) from None


def _file_of(path: Path) -> Path:
    """Return the file at a path, else the shipped sweep of this name; raises InputError where another file may be meant.

    That is the copy in a sweep's folder, the file with its suffix, one under sweeps/, or the nearest name. Of two sweeps with
    one name, neither is chosen.
    """
    if path.is_file():
        return path
    file = path if path.suffix in (".yaml", ".yml") else Path(f"{path}.yaml")
    named = [one for one in (path / SWEEP_FILE, file, Path("sweeps") / file.name) if one.is_file()]
    ours = shipped("sweeps")
    if (own := ours.get(str(path))) is not None and all(map(own.samefile, named)):
        return own
    beside = {name: Path(name) for name in ours} | {one.stem: one for one in sorted(path.parent.glob("*.y*ml"))}
    if not named and (best := near(file.stem, [*beside])) is not None:
        named = [beside[best]]
    if named:
        raise InputError.at(str(path), f"is not a file; did you mean {named[0]}?")
    return path


def _problems_between(overrides: Sequence[str]) -> Iterator[Problem]:
    paths = [override.partition("=")[0] for override in overrides]
    yield from (Problem(path, f"is set {count} times; set it once") for path, count in Counter(paths).items() if count > 1)
    for index, path in enumerate(paths):
        if undone := next((before for before in paths[:index] if before.startswith(f"{path}.")), None):
            yield Problem(path, f"would undo {undone}, which comes before it; set one of them")


def _override(values: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    keys = _keys_of(path)
    if not separator or not all(path.split(".")) or not path.isprintable():
        raise InputError.at(shown(override), "is not an override; write key.path=value, as in seeds=3")
    if len(keys) > MOST_NESTED:
        raise InputError.at(shown(path), f"goes through {len(keys)} keys, more than the {MOST_NESTED} that a file may nest")
    try:
        value = load_yaml(text)
    except yaml.constructor.ConstructorError as error:
        raise InputError.at(path, problem_in_words(error)) from None
    except yaml.MarkedYAMLError as error:
        raise InputError.at(path, f"{shown(text)} is not a YAML value: {problem_in_words(error)}") from None
    set_below(values, keys, value)


def _keys_of(path: str) -> list[str]:
    """Return the keys of a path; a knob under `vary`, `tune` or `search.space` is one dotted key."""
    keys = path.split(".")
    for above in (["vary"], ["tune"], ["search", "space"]):
        if keys[: len(above)] == above and len(keys) > len(above) + 1:
            below = keys[len(above) :]
            parts = 3 if ".".join(below[:3]) in KNOBS else 2
            return [*above, ".".join(below[:parts]), *below[parts:]]
    return keys
