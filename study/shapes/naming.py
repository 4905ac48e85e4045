"""Resolve a name on the command line: a named model, a configuration file, a run folder, or a run id."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.base.durable_files import is_there
from study.base.errors import InputError
from study.base.text import pasted
from study.counting.architecture import Architecture
from study.counting.named_models import find, unknown

if TYPE_CHECKING:
    from study.store.run_folder import RunFolder


@dataclass(frozen=True)
class NamedArchitecture:
    """An architecture with its title and, for a named model, its published size and how that is known."""

    title: str
    architecture: Architecture
    published: tuple[str, str] | None = None


def resolve_architecture(name: str, results: Path) -> NamedArchitecture:
    """Resolve a name: named models first, then files and folders, then runs in `results`.

    Raises InputError with the nearest known name, or with the file's problem.
    """
    if not name.strip():
        raise InputError.at(repr(name), "is not a model name; give one such as bert-base, a file, or a run's folder or id")
    if model := find(name):
        return NamedArchitecture(model.short_name, model.architecture, (model.published, model.published_status))
    if is_there(path := Path(name)) and path.is_file():
        return NamedArchitecture(name, _in_file(path))
    if path.is_dir() or _is_run(path):
        return NamedArchitecture(name, _in_folder(path))
    if path.suffix in (".yaml", ".yml") or (len(path.parts) > 1 and (path.parent.is_dir() or path.parent.name == "runs")):
        raise InputError.at(name, "does not exist, and is not a model name")
    if (architecture := _of_id(name, results)) is not None:
        return NamedArchitecture(name, architecture)
    raise unknown(name, f", a file or a run in {results}")


def _in_file(path: Path) -> Architecture:
    """Read the architecture in a YAML file, alone or under `architecture` as in a config.yaml, with its objective's head."""
    from study.base.yaml_files import read_yaml
    from study.config.recipe import Recipe

    values: dict[str, Any] = read_yaml(path)
    if "architecture" in values:
        architecture = Architecture.parse(values["architecture"], place=f"{path}: architecture")
        given = values.get("recipe", {})
        recipe = Recipe.parse({"budget": {"steps": 0}} | given if isinstance(given, dict) else given, f"{path}: recipe")
        return architecture.model_copy(update=recipe.heads)
    if "shapes" in values:
        raise InputError.at(str(path), f"is a sweep of many architectures; see `study plan {pasted(path)}`")
    return Architecture.parse(values, place=str(path))


def _is_run(path: Path) -> bool:
    """Whether a path is a run, which is no folder in a packed sweep."""
    from study.store.run_folder import RunFolder

    return RunFolder(path).is_run


def _in_folder(path: Path) -> Architecture:
    from study.store.run_folder import RunFolder

    run = RunFolder(path)
    if not run.is_run:
        raise InputError.at(str(path), "is not a run folder: it needs a config.yaml or a run's record.json")
    return _of_run(run)


def _of_run(run: RunFolder) -> Architecture:
    """Return the architecture in a run's config.yaml, or else in its record."""
    return _in_file(run.config_file) if is_there(run.config_file) else run.config().architecture


def _of_id(run_id: str, results: Path) -> Architecture | None:
    from study.store.sweep_folder import runs_of_id

    runs = runs_of_id(run_id, results)
    return _of_run(runs[0]) if runs else None
