"""Pages that are made of code and results when the documentation is built: the references, and the committed answers."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel

from study.cli import commands
from study.config.recipe import Recipe, TrainingMasking
from study.config.run_config import DataConfig, Masking
from study.config.sweep import CellSweep, GoalSweep, SearchSweep
from study.counting.architecture import Architecture
from study.report.answer import METHOD_PAGE

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "results" / "reference"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and figures that are no files of docs/."""
    pages = {"reference/commands.md": commands_page(), "reference/sweep-file.md": sweep_file_page()}
    for answer in sorted(REFERENCE.glob("*/answer.md")):
        name = answer.parent.name
        text = answer.read_text(encoding="utf-8").replace("](figures/", f"](figures/{name}/")
        text = re.sub(r"\]\((?!https?:|figures/|#)[^)]*\)", "]", text)
        pages[f"answers/{name}.md"] = text.replace(f"`{METHOD_PAGE}`", "[Conventions](../conventions.md)")
        for figure in sorted((answer.parent / "figures").glob("*.svg")):
            files.append(File.generated(config, f"answers/figures/{name}/{figure.name}", abs_src_path=str(figure)))
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links to committed answers and figures at their pages, which lie outside docs/ until it is built."""
    page = re.sub(r"\]\(\.\./results/reference/(\w+)/answer\.md", r"](answers/\1.md", markdown)
    return re.sub(r"\]\(\.\./results/reference/(\w+)/figures/", r"](answers/figures/\1/", page)


def commands_page() -> str:
    """Every command with its usage, arguments and options, as `--help` says them."""
    lines = ["# Commands", "", "Every command also explains itself: `study COMMAND --help`.", ""]
    group = click.Context(commands, **commands.context_settings)
    for name in sorted(commands.list_commands(group)):
        command = commands.get_command(group, name)
        assert command is not None
        context = click.Context(command, parent=group, info_name=f"study {name}", max_content_width=80, terminal_width=80)
        lines += [f"## study {name}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(lines)


def sweep_file_page() -> str:
    """Return the keys of a sweep file and of a run, with their types, defaults and meanings, from the models."""
    lines = ["# Sweep file", "", "The keys of a sweep file. How they work together: [Sweep files](../sweep-files.md).", ""]
    lines += [part for name, model in models_of(CellSweep, SearchSweep, GoalSweep) for part in section(name, model)]
    lines += ["## Keys of a run", "", "`base` sets them for all runs, `vary` and `tune` for some.", ""]
    runs = {
        "architecture.": Architecture,
        "recipe.": Recipe,
        "recipe.masking.": TrainingMasking,
        "data.": DataConfig,
        "masking.": Masking,
    }
    lines += [part for prefix, model in runs.items() for part in section(f"`{prefix}`", model, prefix)]
    return "\n".join(lines)


def models_of(*kinds: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the models that a sweep file is made of, each kind of file first, those of a run left out."""
    titles = ("A file of cells", "A file with a search", "A file with a goal")
    seen: dict[type[BaseModel], str] = dict(zip(kinds, titles, strict=True))
    queue = [*kinds]
    while queue:
        model = queue.pop(0)
        yield seen[model], model
        for name, field in model.model_fields.items():
            for inner in inner_models(field.annotation):
                if inner not in seen and inner not in (Architecture, Recipe, DataConfig, Masking):
                    seen[inner] = f"`{name}`"
                    queue.append(inner)


def inner_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models within a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from inner_models(inner)


def section(title: str, model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return a heading, what the model's docstring says, and a table of its keys."""
    said = [" ".join(part.split()) for part in (model.__doc__ or "").split("\n\n") if not part.strip().startswith("Raises")]
    fields = [(field.alias or name, field) for name, field in model.model_fields.items()]
    rows = [f"| `{prefix}{name}` | {typed(field.annotation)} | {default(field)} |" for name, field in fields]
    return [
        f"### {title}",
        "",
        *(line for part in said for line in (part, "")),
        "| key | value | default |",
        "| --- | --- | --- |",
        *rows,
        "",
    ]


def default(field: Any) -> str:
    """Return the default of a key, or that it is needed."""
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "see below"
    return "none" if value in (None, (), {}) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def typed(annotation: Any) -> str:
    """Return a type as a reader knows it."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin is typing.Annotated:
        return typed(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(typed(each) for each in inner if each is not type(None)))
    if origin in (list, tuple, set, frozenset):
        return f"list of {typed(inner[0])}" if inner else "list"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping, see below"
    names = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    return names.get(annotation, "value")
