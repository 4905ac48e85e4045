"""The code that a launch ran: commit, remote and uncommitted changes of the repository in which it was started.

results/<sweep>/
    code.json    one entry a launch whose code differs from that of the one before
"""

from __future__ import annotations

import json
import os
import subprocess
from urllib.parse import urlsplit, urlunsplit

from study.base.durable_files import json_of, write_atomically
from study.base.errors import InputError, warn_of
from study.base.schema import Strict
from study.store.records import timestamp
from study.store.sweep_folder import SweepFolder

GIT_SECONDS = 10.0
"""The longest wait for git."""

MOST_OF_DIFF = 1_000_000
"""Longer differences are not kept, in characters."""


class CodeState(Strict):
    """The code since a time: its commit, its remote without user and password, and `git diff HEAD`, None if too long."""

    since: str
    commit: str
    remote: str | None = None
    diff: str | None = None


def note_code(folder: SweepFolder) -> None:
    """Note the code of a launch; nothing without a repository or git, or with WANDB_DISABLE_GIT."""
    if os.environ.get("WANDB_DISABLE_GIT", "false").lower() not in ("false", "0") or (current := _here()) is None:
        return
    before = _noted(folder)
    if not before or before[-1].model_copy(update={"since": current.since}) != current:
        entries = [entry.model_dump(exclude_none=True) for entry in (*before, current)]
        write_atomically(folder.code_file, json.dumps(entries, indent=1).encode() + b"\n")


def code_of(folder: SweepFolder, started_at: str | None) -> CodeState | None:
    """Return the code of what a launch started at a time, by default of the last, if known."""
    known = [entry for entry in _noted(folder) if started_at is None or entry.since <= started_at]
    return known[-1] if known else None


def _noted(folder: SweepFolder) -> list[CodeState]:
    """Return the entries; none, with a warning, if the file is damaged."""
    try:
        entries = json_of(folder.code_file, list, "the next launch writes it anew") or []
        return [CodeState.parse(entry, place=str(folder.code_file)) for entry in entries]
    except InputError as error:
        warn_of(error.problems)
        return []


def _here() -> CodeState | None:
    if (commit := _git("rev-parse", "HEAD")) is None:
        return None
    diff, remote = _git("diff", "--no-ext-diff", "--no-textconv", "HEAD"), _git("remote", "get-url", "origin")
    kept = None if diff is None or len(diff) > MOST_OF_DIFF else diff
    return CodeState(since=timestamp(), commit=commit.strip(), remote=_without_user(remote), diff=kept)


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], capture_output=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def _without_user(remote: str | None) -> str | None:
    """Return a remote's address without user and password, if any."""
    if remote is None:
        return None
    parts = urlsplit(remote.strip())
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
