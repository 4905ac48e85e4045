"""Which column of a stranger's table means what, by its name: case, spaces, underscores and units in brackets do not count."""

from __future__ import annotations

import re
from collections.abc import Iterable

SYMBOLS = {
    "N": "parameters",
    "D": "tokens",
    "F": "flops",
    "C": "flops",
    "L": "loss",
}
"""What an expression may call a column of this study where the table has none of that name: C/(6*N)."""

SYNONYMS = {
    "parameters": "parameters params nparams nparameters numparams numparameters paramcount modelsize totalparams n",
    "tokens": "tokens ntokens numtokens traintokens trainingtokens tokensseen totaltokens d",
    "flops": "flops flop trainflops trainflop trainingflops trainingflop totalflops compute c",
    "loss": "loss lossnats finalloss valloss validationloss evalloss testloss",
    "depth": "depth layers nlayers numlayers",
    "width": "width hidden hiddensize dmodel",
    "heads": "heads nheads numheads attentionheads",
    "ffn": "ffn ffnsize dff intermediatesize",
    "unique_tokens": "uniquetokens",
    "error": "error",
    "score": "score accuracy acc",
    "run": "run runid runname",
}
"""By role: the names, plain, that a column may have."""

_UNITS = {"k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "b": 1e9, "g": 1e9, "billion": 1e9, "t": 1e12, "trillion": 1e12}


def plain(name: str) -> str:
    """A name without case, spaces, signs, and what stands in brackets at its end."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"[(\[].*$", "", name).lower())


def named_like(role: str, names: Iterable[str]) -> list[str]:
    """The columns that a role may be: those of its very name or symbol, or else those called like it."""
    symbols = [symbol for symbol, meant in SYMBOLS.items() if meant == role]
    known = list(names)
    exact = [name for name in (role, *symbols) if name in known]
    return exact[:1] or [name for name in known if plain(name) in SYNONYMS.get(role, "").split()]


def unit_in(name: str) -> float | None:
    """The factor that a name says its values are in, as in `Model Size (B)` or `tokens_millions`; None where it says none."""
    words = re.findall(r"[a-z]+", name.lower())
    bracket = re.search(r"[(\[]\s*([A-Za-z]+)[^)\]]*[)\]]\s*$", name)
    last = bracket[1].lower() if bracket else (words[-1] if len(words) > 1 else "")
    return _UNITS.get(last, _UNITS.get(last.removesuffix("s")))
