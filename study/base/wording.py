"""How numbers and other people's text are written for readers: compact numbers, escaped Markdown, tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from matplotlib.ticker import EngFormatter

from study.base.quantities import in_billions

_engineering, _rounded = EngFormatter(sep=""), EngFormatter(places=1, sep="")
_UP_TO = 1e15
"""What SI prefixes serve for: few read P, E and Z, which FLOPs would need."""


def compact(number: float) -> str:
    """A count to one decimal with its prefix, 85.1M for 85,054,464, beyond T as 1.0e18; 250 stays 250."""
    return in_billions(compact_flops(number))


def compact_flops(number: float) -> str:
    """FLOPs as `compact` writes a count, but in SI: 1.5G."""
    if abs(number) < 1000 and number == round(number):
        return f"{number:.0f}"
    return _rounded(number) if abs(number) < _UP_TO else _power(f"{number:.1e}")


def tick(number: float, largest: float) -> str:
    """A round number of an axis that ends at `largest`, with its SI prefix, 200k or 3T; where that is beyond T, as 2e14."""
    return _engineering(number) if largest < _UP_TO else _power(f"{number:.1e}").replace(".0e", "e")


def of_flops(title: str) -> bool:
    """Whether an axis of this name is of FLOPs, which keep the prefixes of SI."""
    return "flop" in title.lower() or "6·N·D" in title


def _power(words: str) -> str:
    return re.sub(r"e\+0*", "e", words)


class UnitAmount(Protocol):
    """So much of a unit."""

    @property
    def amount(self) -> float:
        """How much."""

    @property
    def unit(self) -> str:
        """Of what, in words."""


def budget_words(budget: UnitAmount) -> str:
    """A budget as it was given, in its own unit, unlike any other: 1.25M tokens, 12.25 tokens per parameter, 3e15 FLOPs."""
    words = _exact(budget.amount)
    return f"{words if of_flops(budget.unit) else in_billions(words)} {budget.unit}"


def _exact(number: float) -> str:
    """A number with all of its digits: from 1,000 to T with its SI prefix, or in full where those are more than six."""
    few = 1000 <= number < _UP_TO and number == float(f"{number:.6g}")  # what EngFormatter writes
    return _engineering(number) if few else _power(f"{number:,.15g}")


def status_words(status: str, reasons: Sequence[str] = ()) -> str:
    """A status as it is told, with the reasons for it: weakly identified (few rows); one that is a sentence stays as it is."""
    words = status.replace("_", " ") if status.isidentifier() else status
    return f"{words} ({'; '.join(reasons)})" if reasons else words


def shape_and_setting(shape: str, setting: str) -> str:
    """A shape with its setting in brackets where it has one: L2-H128-A2-F512 (norm=pre)."""
    return f"{shape} ({setting})" if setting else shape


def at_budget(words: str, budget: str) -> str:
    """What is trained and on how much, where that is told: L2-H128-A2-F512 at 1M tokens."""
    return f"{words} at {budget}" if budget else words


def file_name(words: str) -> str:
    """Words as the stem of a file's name: no quotes, and a dash for what is no letter, no digit and none of `.=_-`."""
    return re.sub(r"[^\w.=-]+", "-", words.replace(" == ", "=").replace("'", "")).strip("-")


def span(low: float, high: float) -> str:
    """`1.0M to 2.0M`, or `1.0M` where both read the same."""
    return compact(low) if compact(low) == compact(high) else f"{compact(low)} to {compact(high)}"


def signed(nats: float) -> str:
    """A difference in nats with its sign, to four decimals."""
    return f"{nats:+.4f}"


def escape(text: object) -> str:
    """Text of unknown origin as one line of Markdown that shows it and does nothing else."""
    line = "".join(character for character in " ".join(str(text).split()) if character.isprintable())
    return re.sub(r"([\\`*_\[\]<>#|~&$!])", r"\\\1", line)


def bullets(sentences: Iterable[str]) -> str:
    """A Markdown list of sentences, escaped."""
    return "\n".join(f"- {escape(sentence)}" for sentence in sentences)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; its cells are escaped, and a missing value is a dash."""
    lines = [[escape(name) for name in header], ["---"] * len(header)]
    lines += [["–" if value is None else escape(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_of(rows: Sequence[Mapping[str, object]]) -> str:
    """A Markdown table of rows that are told by column, all alike; empty where there are none."""
    return table(list(rows[0]), [list(row.values()) for row in rows]) if rows else ""
