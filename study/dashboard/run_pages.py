"""The page of one run: configuration, its difference to another run, lineage, scores, environment and log."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from study.base.errors import UNREADABLE
from study.base.schema import flatten
from study.dashboard.library import Library, SeenRun, Snapshot
from study.dashboard.sweep_pages import run_row
from study.store.records import NO_COLUMNS, dotted
from study.store.score_records import scores_of

LOG_BYTES = 20_000
"""The most bytes of a log's end that are shown."""


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
    """The runs that this one came from, and those of its sweep that came from it, with the sweep that has each."""
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
    """The end of a run's log, in whole lines."""
    try:
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
