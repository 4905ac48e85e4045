"""The pages of sweeps and runs as data: the overview of all sweeps, the page of one with its answer, and that of a run."""

from __future__ import annotations

import html
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from study.base.durable_files import check_own, names_in, own_content, stays_in
from study.base.errors import UNREADABLE, InputError
from study.base.schema import flatten
from study.base.text import printable
from study.config.run_config import describe_run
from study.dashboard.library import Library, SeenRun, Snapshot
from study.report.markdown_html import html_of
from study.store.records import NO_COLUMNS, dotted
from study.store.score_records import scores_of

UNENDED = ("RUNNING", "WAITING", "STOPPED")
"""The states of runs without a record."""

_BOLD = re.compile(r"^\*\*(?P<sentence>.+)\*\*$", re.MULTILINE)
"""A paragraph in bold, as which an answer gives its verdict (study.report.answer)."""

LOG_BYTES = 20_000
"""The most bytes of a log's end that are shown."""


def overview(library: Library, _asked: Mapping[str, str]) -> dict[str, Any]:
    """One row a sweep, and what is wrong with the folder, which may be empty or missing."""
    shots, problems = _all_of(library)
    problems += [f"{shot.name}: {problem}" for shot in shots for problem in shot.problems]
    rows = [_overview_row(library, shot) for shot in shots]
    return {"root": str(library.root), "sweeps": rows, "problems": problems, "version": _version(shots)}


def texts(library: Library, asked: Mapping[str, str]) -> dict[str, str]:
    """Return what is to be said of a `sweep` whose text has changed since its runs, by name; without one, of all.

    It is asked for when the page is there, since a large text that has changed takes long to read.
    """
    words_of = {shot.name: library.on_other_text(shot) for shot in _asked(library, asked)}
    return {name: f"{words}." for name, words in words_of.items() if words}


def _asked(library: Library, asked: Mapping[str, str]) -> list[Snapshot]:
    """Return the `sweep` that is asked for, or without one all."""
    return [library.snapshot(asked["sweep"])] if asked.get("sweep") else _all_of(library)[0]


def _all_of(library: Library) -> tuple[list[Snapshot], list[str]]:
    """Return the sweeps of the folder, or why there is none."""
    try:
        return library.snapshots(), []
    except InputError as error:
        return [], [str(problem) for problem in error.problems]


def _version(shots: Iterable[Snapshot]) -> str:
    return " ".join(shot.version for shot in shots)


def _overview_row(library: Library, shot: Snapshot) -> dict[str, Any]:
    return library.kept(("overview", shot.name), shot.version, lambda: _counted(shot))


def _counted(shot: Snapshot) -> dict[str, Any]:
    states = Counter(run.state for run in shot.runs.values())
    ended = sum(count for state, count in states.items() if state not in UNENDED)
    return {
        "sweep": shot.name,
        "question": "" if shot.sweep is None else printable(shot.sweep.question),
        "verdict": verdict_in(_text_of(shot, shot.folder.answer_file)[0]),
        "done": states["COMPLETED"],
        "failed": ended - states["COMPLETED"] - states["PRUNED"],
        "pruned": states["PRUNED"],
        "running": states["RUNNING"],
        "waiting": states["WAITING"] + states["STOPPED"],
        "tokens": sum(map(_own_tokens, shot.runs.values())),
        "changed": max((run.changed for run in shot.runs.values() if run.changed), default=None),
        "live": shot.live,
    }


def _own_tokens(run: SeenRun) -> int:
    """Return the tokens that a run itself trained on, without those of its trunk."""
    if run.record is None or run.record.spent_tokens is None:
        return run.tokens
    return run.record.spent_tokens


def verdict_in(answer: str) -> str:
    """Return the verdict of an answer as last written, in plain text; empty without one."""
    match = _BOLD.search(answer)
    return "" if match is None else printable(re.sub(r"\\(.)", r"\1", match["sentence"]))


def answer_html(sweep: str, text: str) -> str:
    """Return an answer, which may be a stranger's, as HTML with the figures of its sweep (study.report.markdown_html)."""

    def drawn(source: str) -> str | None:
        if (figure := re.fullmatch(r"figures/(\w+)\.svg", source)) is None:
            return None
        address = html.escape(figure_address(sweep, f"{figure[1]}.svg"))
        return f'<img src="{address}" alt="{figure[1].replace("_", " ")}" loading="lazy">'

    return html_of(text, drawn)


def figure_address(sweep: str, name: str) -> str:
    """Where the server gives a figure."""
    return f"/figure/{quote(sweep, safe='')}/{name}"


def _text_of(shot: Snapshot, file: Path) -> tuple[str, list[str]]:
    """Return the text of a sweep's file, empty without one, and why it cannot be shown, if so."""
    try:
        return (own_content(file, shot.folder.path) or b"").decode(errors="replace"), []
    except OSError as error:
        return "", [f"{file}: {error.strerror}"]


def pulse(library: Library, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return what changes whenever the page of a `sweep` would; without one, that of all."""
    return {"version": _version(_asked(library, asked))}


def sweep_page(library: Library, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a sweep's question, answer, figures and runs."""
    shot = library.snapshot(asked.get("sweep", ""))
    return library.kept(("sweep", shot.name), shot.version, lambda: _sweep_page(library, shot))


def _sweep_page(library: Library, shot: Snapshot) -> dict[str, Any]:
    answer, no_answer = _text_of(shot, shot.folder.answer_file)
    file, no_file = _text_of(shot, shot.folder.sweep_file)
    figures = [name for name in names_in(shot.folder.figures) if re.fullmatch(r"\w+\.svg", name)]
    goal, damaged = _goal(shot)
    return {
        **_overview_row(library, shot),
        "expect": "" if shot.sweep is None else printable(shot.sweep.expect or ""),
        "answer": answer_html(shot.name, answer),
        "figures": [name for name in figures if stays_in(shot.folder.figures / name, shot.folder.path)],
        "runs": [run_row(shot, run) for run in shot.runs.values()],
        "file": file,
        "version": shot.version,
        "problems": [*shot.problems, *no_answer, *no_file, *damaged],
        "goal": goal,
    }


def _goal(shot: Snapshot) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the path to the sweep's goal, None without one, or what is wrong with its file."""
    try:
        path = shot.folder.goal_path()
    except InputError as error:
        return None, [printable(str(problem)) for problem in error.problems]
    if path is None:
        return None, []
    values: dict[str, Any] = path.model_dump()
    return values | {"of": printable(path.of), "sentence": printable(f"{path.sentence}.")}, []


def run_row(shot: Snapshot, run: SeenRun) -> dict[str, Any]:
    """Return a run's row in the table of runs; `cell` names the runs that differ only in their seed."""
    config, record = run.config, run.record
    architecture, setting = config.architecture, config.variant(shot.distinguishing)
    words = describe_run(architecture.shape_name, setting, config.recipe.learning_rate, config.seed)
    return {
        "run": run.run_id,
        "state": run.state,
        "shape": architecture.shape_name,
        "depth": architecture.depth,
        "width": architecture.width,
        "setting": setting,
        "learning_rate": config.recipe.learning_rate,
        "seed": config.seed,
        "tokens": run.tokens,
        "done": run.tokens / config.tokens if config.tokens else None,
        "loss_nats": run.loss_nats,
        "order_gain_nats": run.newest.get("val/order_gain") if record is None else record.order_gain_nats,
        "parameters": None if record is None else record.parameters,
        "non_embedding": None if record is None else record.parameters_non_embedding,
        "train_flops": run.newest.get("trainer/flops") if record is None else record.train_flops,
        "tokens_per_second": run.newest.get("perf/tokens_per_second") if record is None else record.tokens_per_second,
        "note": "" if record is None else record.exclusion or record.order_note or record.spike_note or "",
        "words": words,
        "cell": f"{words.rpartition(' seed=')[0]} at {config.tokens:,} tokens",
    }


def figure_of(shot: Snapshot, name: str) -> bytes:
    """Return a figure of a sweep; raises InputError for an unknown one."""
    if not re.fullmatch(r"\w+\.svg", name):
        raise InputError.at(name, "is no name of a figure")
    try:
        content = own_content(shot.folder.figures / name, shot.folder.path)
    except UNREADABLE:
        content = None
    if content is None:
        raise InputError.at(name, f"is no figure of {shot.name}")
    return content


def run_page(library: Library, asked: Mapping[str, str]) -> dict[str, Any]:
    """All that is known of a `run`, beside an `other` of its sweep if one is named."""
    shot = library.snapshot(asked.get("sweep", ""))
    run, other = shot.run(asked.get("run", "")), shot.run(asked["other"]) if asked.get("other") else None
    record = run.record
    facts = {} if record is None else record.model_dump(mode="json", exclude={*NO_COLUMNS}, exclude_none=True)
    environment = {} if record is None or record.environment is None else record.environment.model_dump(mode="json")
    scores, problem = _scores(run)
    return {
        "row": run_row(shot, run),
        "others": [
            {"run": one.run_id, "words": one.config.words(shot.distinguishing)} for one in shot.runs.values() if one is not run
        ],
        "config": _beside(run, other),
        "facts": flatten(facts),
        "environment": environment,
        "lineage": _lineage(library, shot, run),
        "scores": scores,
        "log": _log_of(run),
        "version": shot.version,
        "problems": [problem] if problem else [],
    }


def _beside(run: SeenRun, other: SeenRun | None) -> list[dict[str, Any]]:
    """Each key of the configuration with its value, and the other run's where there is one."""
    own, beside = dotted(run.config), {} if other is None else dotted(other.config)
    return [
        {
            "key": key,
            "value": own.get(key),
            "other": beside.get(key),
            "differs": other is not None and own.get(key) != beside.get(key),
        }
        for key in dict.fromkeys((*own, *beside))
    ]


def _lineage(library: Library, shot: Snapshot, run: SeenRun) -> list[dict[str, Any]]:
    """Return the runs that this one came from, and those of its sweep that came from it, with the sweep that has each."""
    recipe, record = run.config.recipe, run.record
    above = {"starts from": recipe.init_from, "is taught by": recipe.teacher_run}
    rows = [_relative(library, words, named.folder.name) for words, named in above.items() if named is not None]
    if record is not None and record.trunk is not None:
        rows.append(_relative(library, f"branched after step {record.trunk_step:,} from", record.trunk))
    for one in shot.runs.values():
        if one.record is not None and one.record.trunk == run.run_id:
            rows.append(
                {
                    "relation": "is the trunk of",
                    "run": one.run_id,
                    "sweep": shot.name,
                    "words": one.config.words(shot.distinguishing),
                }
            )
    rows += [
        {"relation": "is also a run of", "run": run.run_id, "sweep": name, "words": ""}
        for name, _ in library.where(run.run_id)
        if name != shot.name
    ]
    return rows


def _relative(library: Library, relation: str, run_id: str) -> dict[str, Any]:
    places = library.where(run_id)
    sweep, words = (places[0][0], places[0][1].config.words(())) if places else (None, "")
    return {"relation": relation, "run": run_id, "sweep": sweep, "words": words}


def _scores(run: SeenRun) -> tuple[list[dict[str, Any]], str]:
    try:
        records = scores_of(run.folder)
    except UNREADABLE as error:
        return [], str(error)
    rows = [
        {
            "task": record.config.task,
            "metric": record.config.metric,
            "protocol": record.config.protocol,
            "update": record.config.update,
            "seed": record.config.seed,
            "state": record.state,
            "dev": record.dev,
            "test": record.test,
            "low": None if record.test_interval is None else record.test_interval[0],
            "high": None if record.test_interval is None else record.test_interval[1],
            "examples": record.test_examples,
        }
        for record in records
    ]
    return rows, ""


def _log_of(run: SeenRun) -> str:
    """Return the end of a run's log, in whole lines."""
    try:
        check_own(run.home.log_file, run.home.path)
        with run.home.log_file.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - LOG_BYTES))
            tail = log.read()
    except FileNotFoundError:
        content = run.folder.content(run.folder.log_file) or b""
        size, tail = len(content), content[-LOG_BYTES:]
    except OSError:
        return ""
    if size > LOG_BYTES:
        tail = tail.partition(b"\n")[2]
    return tail.decode(errors="replace")
