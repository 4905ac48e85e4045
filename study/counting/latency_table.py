"""The latency table of a machine: one environment per folder, one row per case."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.base.durable_files import is_there, json_of, write_atomically
from study.base.errors import InputError, shown
from study.base.text import pasted

if TYPE_CHECKING:
    import pandas as pd

TIMES = ("median_seconds", "p95_seconds", "fastest_seconds")
"""The columns of times."""

COUNTS = (
    *("depth", "width", "heads", "ffn", "vocabulary", "positions", "segments"),
    *("parameters_encoder", "batch", "sequence_length", "threads"),
)
"""The columns of whole numbers."""

KEY = ("model", "shape", "vocabulary", "norm", "batch", "sequence_length", "precision", "threads")
"""A row's key; a new measurement replaces the older row."""

UNLIKE_BERT = "unlike_bert"
"""The column of what an encoder has unlike BERT, empty if nothing; tables of earlier versions lack it."""

_MOST = 1e15
"""The largest number allowed in a table."""

_FILE = "table.csv"


def check_environment(environment: Mapping[str, Any], root: Path) -> None:
    """Raise InputError if times of this environment cannot join its folder under `root`, if any.

    A torn table or another environment (torch, Python or system) prevents it.
    """
    _there(environment, root)


def write_table(rows: pd.DataFrame, environment: Mapping[str, Any], root: Path) -> Path:
    """Add rows to `root/<hardware>/table.csv`, write `environment.json` beside it, and return the table's path.

    New measurements replace rows of the same case. Raises InputError as `check_environment` does.
    """
    import pandas as pd

    folder, before = _there(environment, root)
    if before is not None:
        rows = pd.concat([before, rows]).drop_duplicates(list(KEY), keep="last")
    order = ["threads", "precision", "sequence_length", "batch", "parameters_encoder", "model"]
    content = rows.sort_values(order).to_csv(index=False, float_format="%.6g")
    write_atomically(folder / "environment.json", json.dumps(dict(environment), indent=1).encode() + b"\n")
    write_atomically(folder / _FILE, content.encode())
    return folder / _FILE


def _there(environment: Mapping[str, Any], root: Path) -> tuple[Path, pd.DataFrame | None]:
    """The folder of this environment's table under `root`, and any table; raises as `check_environment`."""
    folder = root / hardware_name(environment)
    facts = folder / "environment.json"
    before = json_of(facts, dict, "give another --into")
    if before is not None and before != dict(environment):
        changed = [name for name in environment if before.get(name) != environment[name]]
        changes = "; ".join(f"{name} was {before.get(name)!r}, is {environment[name]!r}" for name in changed)
        raise InputError.at(str(folder), f"holds times of another environment ({changes}); give another --into")
    table = folder / _FILE
    return folder, _read(table) if is_there(table) else None


def hardware_name(environment: Mapping[str, Any]) -> str:
    """The processor on a CPU, else the device: lower case, all but letters and digits as dashes."""
    hardware = environment["processor"] if environment["device"] == "cpu" else environment["device"]
    return re.sub(r"[^a-z0-9]+", "-", str(hardware).lower()).strip("-") or "unknown"


def read_table(path: Path) -> pd.DataFrame:
    """The table of a latency folder; raises InputError, with a command to make one, if missing or torn.

    `path` is the table, its folder, or a folder that holds exactly one.
    """
    tables = [path] if path.is_file() else sorted(path.glob(_FILE)) or sorted(path.glob(f"*/{_FILE}"))
    if not tables:
        remedy = f"measure one: study latency --models bert-tiny,bert-mini,bert-small,bert-medium --into {pasted(path)}"
        raise InputError.at(str(path), f"holds no latency table; {remedy}")
    if len(tables) > 1:
        raise InputError.at(str(path), f"holds {len(tables)} latency tables; give one of {', '.join(map(str, tables))}")
    return _read(tables[0])


def _read(file: Path) -> pd.DataFrame:
    """The table of a file; raises InputError for its first row with unusable numbers."""
    import pandas as pd

    try:
        table = pd.read_csv(file, dtype=dict.fromkeys((*COUNTS, *TIMES, UNLIKE_BERT), str))
    except (ValueError, pd.errors.ParserError) as error:
        raise InputError.at(str(file), f"is not a latency table: {error}") from None
    if missing := [name for name in dict.fromkeys((*KEY, *COUNTS, *TIMES)) if name not in table]:
        raise InputError.at(str(file), f"is not a latency table: it has no column {', '.join(missing)}")
    table[UNLIKE_BERT] = table[UNLIKE_BERT].fillna("") if UNLIKE_BERT in table else ""
    if table.empty:
        raise InputError.at(str(file), "has no rows; remove it, and measure with study latency")
    for name in (*COUNTS, *TIMES):
        numbers, counted = pd.to_numeric(table[name], errors="coerce"), name in COUNTS
        usable = numbers.between(0, _MOST) & (numbers % 1 == 0 if counted else numbers > 0)
        if not usable.all():
            row, needed = int(usable.argmin()), "whole number of at least zero" if counted else "time above zero"
            problem = f"{name} of row {row + 1} is {shown(table[name].iloc[row])}, not a {needed}"
            raise InputError.at(str(file), f"{problem}; remove the row, and measure it again with study latency")
        table[name] = numbers
    return table
