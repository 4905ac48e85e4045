"""The latency table of a machine: one folder, one environment, one row a case."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.durable_files import json_of, write_atomically
from study.errors import InputError
from study.paths import pasted

if TYPE_CHECKING:
    import pandas as pd

TIMES = ("median_seconds", "p95_seconds", "fastest_seconds")
"""The columns of times."""

KEY = ("model", "shape", "vocabulary", "norm", "batch", "sequence_length", "precision", "threads")
"""What identifies a row of a table; one that is measured again replaces the older."""


def check_environment(environment: Mapping[str, Any], root: Path) -> Path:
    """The folder of this environment's table under `root`, which may be there or not.

    Raises InputError where it holds the table of another environment (another torch, Python or system): times of both in one
    table could not be compared.
    """
    folder = root / hardware_name(environment)
    facts = folder / "environment.json"
    before = json_of(facts, dict, "give another --out")
    if before is not None and before != dict(environment):
        changed = [name for name in environment if before.get(name) != environment[name]]
        told = "; ".join(f"{name} was {before.get(name)!r}, is {environment[name]!r}" for name in changed)
        raise InputError.at(str(folder), f"holds times of another environment ({told}); give another --out")
    return folder


def write_table(rows: pd.DataFrame, environment: Mapping[str, Any], root: Path) -> Path:
    """Put rows into `root/<hardware>/table.csv`, with `environment.json` beside it; returns the table's path.

    Rows that are there stay, unless the same case was measured again. Raises InputError as `check_environment` does.
    """
    import pandas as pd

    folder = check_environment(environment, root)
    table = folder / "table.csv"
    if table.exists():
        rows = pd.concat([pd.read_csv(table), rows]).drop_duplicates(list(KEY), keep="last")
    order = ["threads", "precision", "sequence_length", "batch", "parameters_encoder", "model"]
    content = rows.sort_values(order).to_csv(index=False, float_format="%.6g")
    write_atomically(folder / "environment.json", json.dumps(dict(environment), indent=1).encode() + b"\n")
    write_atomically(table, content.encode())
    return table


def hardware_name(environment: Mapping[str, Any]) -> str:
    """The processor on a CPU, else the device, by name as a folder: lower case, all but letters and digits as dashes."""
    hardware = environment["processor"] if environment["device"] == "cpu" else environment["device"]
    return re.sub(r"[^a-z0-9]+", "-", str(hardware).lower()).strip("-") or "unknown"


def read_table(path: Path) -> pd.DataFrame:
    """The table of a latency folder; raises InputError, naming the command that makes one, where there is none or it is torn.

    `path` is the table, its folder, or a folder that holds exactly one such.
    """
    import pandas as pd

    found = [path] if path.is_file() else sorted(path.glob("table.csv")) or sorted(path.glob("*/table.csv"))
    if not found:
        remedy = f"measure one: study latency --models bert-tiny,bert-mini,bert-small,bert-medium --out {pasted(path)}"
        raise InputError.at(str(path), f"holds no latency table; {remedy}")
    if len(found) > 1:
        raise InputError.at(str(path), f"holds {len(found)} latency tables; give one of {', '.join(map(str, found))}")
    try:
        table = pd.read_csv(found[0])
        sizes = ("depth", "width", "heads", "ffn", "positions", "segments")
        missing = [name for name in (*KEY, *sizes, *TIMES) if name not in table]
    except (ValueError, pd.errors.ParserError) as error:
        raise InputError.at(str(found[0]), f"is no latency table: {error}") from None
    if missing:
        raise InputError.at(str(found[0]), f"is no latency table: it has no column {', '.join(missing)}")
    if table.empty or not (table[list(TIMES)].apply(pd.to_numeric, errors="coerce") > 0).all(axis=None):
        raise InputError.at(str(found[0]), "has no rows, or times that are not above zero; measure again with study latency")
    return table
