"""One attempt at a run or a score by the process that owns its folder."""

from __future__ import annotations

import sys
from collections.abc import Callable

from study.store.ownership import Attempt, Fenced, Held, work_lock
from study.store.records import Ending
from study.store.work_folder import WorkFolder


def in_attempt(folder: WorkFolder, begin: Callable[[], Ending | None], make: Callable[[Attempt], Ending]) -> Ending:
    """Own a folder and `make` its content in a new attempt; return the end state.

    `begin` writes the configuration, or returns the state of an existing record, which makes an attempt unnecessary. PREEMPTED
    if another process works on the folder, or a later attempt has taken it over.
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
