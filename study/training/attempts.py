"""One attempt at a run or a score, by the process that owns its folder."""

from __future__ import annotations

import sys
from collections.abc import Callable

from study.store.ownership import Attempt, Fenced, Held, work_lock
from study.store.records import Ending
from study.store.work_folder import WorkFolder


def in_attempt(folder: WorkFolder, begin: Callable[[], Ending | None], make: Callable[[Attempt], Ending]) -> Ending:
    """Own a folder and `make` what it holds in a new attempt; returns how that ended.

    `begin` writes the configuration, or returns the state of a record that exists: then no attempt is made. PREEMPTED where
    another process works on the folder, or a later attempt has taken it over.
    """
    try:
        with work_lock(folder) as locked:
            if (state := begin()) is not None:
                return state
            attempt = Attempt.begin(folder, locked)
            with attempt.renewed():
                folder.remove_leftovers()
                return make(attempt)
    except (Held, Fenced) as error:
        sys.stderr.write(f"{error}\n")
        return "PREEMPTED"
