"""The trained runs that a recipe names: the initial weights and the teacher."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from study.base.errors import nearest, shown
from study.base.quantities import plural
from study.base.schema import number_in, whole
from study.counting.layer_losses import NO_LOSSES, LayerLosses, layers_as_text

NO_RUN = {"start": "fresh", "teacher": "none"}
"""The knobs that name a trained run, with their value for none."""

SPREADS = ("first", "last", "spread")
"""The words for the kept layers of a deeper encoder: the first, the last, or evenly spread ones."""

Grow = Literal["even", "uneven"]
"""How the weights that read a widened encoder's copies share their value: equally, or at random (study.training.reshaping)."""


def listed_layers(keep: str) -> tuple[int, ...] | None:
    """Return the layers that a list such as `0,2,4` names; None for a word of SPREADS."""
    return None if keep in SPREADS else tuple(map(int, keep.split(",")))


def layers_problem(depth: int, kept: int, keep: str) -> str | None:
    """Why an encoder of `depth` cannot give `kept` layers, in words that follow its name, if so."""
    layers = listed_layers(keep)
    if layers is None:
        return None if 1 <= kept <= depth else f"has {depth} layers, of which {kept} cannot be kept"
    if len(layers) != kept:
        return f"gives {plural(len(layers), 'layer')} ({keep}) to {kept}; name as many as the encoder has"
    if outside := [layer for layer in layers if layer >= depth]:
        return f"has layers 0 to {depth - 1}, not {outside[0]}"
    return None


def kept_layers(depth: int, kept: int, keep: str) -> tuple[int, ...]:
    """Return the layers, from 0, that `kept` layers take from an encoder of `depth`.

    `first` drops the layers nearest the output, which loses least (Sajjad et al. 2023, arXiv:2004.03844). `spread` keeps
    round(i·(depth − 1)/(kept − 1)): 0, 2, 4, 7, 9 and 11 for six of 12, as in DistilBERT (Sanh et al. 2019, arXiv:1910.01108,
    its scripts). Raises ValueError as `layers_problem` says.
    """
    if problem := layers_problem(depth, kept, keep):
        raise ValueError(problem)
    match keep:
        case "first":
            return tuple(range(kept))
        case "last":
            return tuple(range(depth - kept, depth))
        case "spread":
            stride = (depth - 1) / max(1, kept - 1)
            return tuple(round(index * stride) for index in range(kept))
        case _:
            return tuple(map(int, keep.split(",")))


@dataclass(frozen=True)
class InitFrom:
    """The trained run that supplies the initial weights, and the layers it keeps or how it grows."""

    folder: Path
    keep: str = "first"
    grow: Grow | None = None

    @property
    def kept_words(self) -> str:
        """The kept layers in words."""
        return f"{self.keep} layers" if self.keep in SPREADS else f"layers {self.keep.replace(',', ', ')}"

    @property
    def identity(self) -> str:
        """The run id and the kept layers or the growth, wherever the folder lies."""
        return f"{self.folder.name}:{self.keep if self.grow is None else f'grow={self.grow}'}"


@dataclass(frozen=True)
class Teacher:
    """A trained run whose predictions are targets, their weight in the loss, their temperature, and losses between layers."""

    folder: Path
    weight: float = 1.0
    temperature: float = 1.0
    losses: LayerLosses = NO_LOSSES

    @property
    def unusual(self) -> dict[str, float | str]:
        """The settings that differ from their defaults, by name."""
        settings = {name: value for name, value in _settings(self).items() if value != USUAL[name]}
        return {name: value if isinstance(value, str) else whole(value) for name, value in settings.items()}

    @property
    def identity(self) -> str:
        """The run id with the unusual settings, wherever the folder lies."""
        return "".join((self.folder.name, *(f":{name}={value}" for name, value in self.unusual.items())))


def _settings(teacher: Teacher) -> dict[str, float | str]:
    return {"weight": teacher.weight, "temperature": teacher.temperature, **asdict(teacher.losses)}


USUAL = _settings(Teacher(Path()))
"""The defaults of a teacher, by name, in the order of its text."""

_RUN = r"(?P<folder>(?:.*/)?[0-9a-f]{16})/?"
_START = re.compile(_RUN + r"(?::(?P<keep>first|last|spread|\d{1,4}(?:,\d{1,4})*)|:grow=(?P<grow>even|uneven))?")
_VALUES = {"layers": r"last|uniform|\d{1,4}-\d{1,4}(?:,\d{1,4}-\d{1,4})*", "relation_heads": r"[0-9]{1,6}"}
_TEACHER = re.compile(_RUN + "".join(f"(?::{name}=(?P<{name}>{_VALUES.get(name, '[0-9.e+-]+')}))?" for name in USUAL))


_EXAMPLES = {
    "start": (*(f":{keep}" for keep in SPREADS), ":0,2,4", *(f":grow={how}" for how in get_args(Grow))),
    "teacher": tuple(f":{name}={value}" for name, value in (USUAL | {"weight": 0.9, "temperature": 2}).items()),
}
"""What may follow a run: one of these of a start, several of a teacher in this order."""


def why_no_run(knob: str, named: str) -> str:
    """Return why the text of a start or teacher cannot be read: it names no run, or what follows the run is not known."""
    run, *parts = named.split(":")
    if run_folder(run) is None:
        how = f"perhaps with {' or '.join(_EXAMPLES[knob])}"
        return f"is neither {NO_RUN[knob]} nor the folder of a run; write results/mine/runs/<run id>, {how}"
    for part in parts:
        if not _may_follow(knob, part):
            return f"has {shown(f':{part}')} after its run; {nearest(f':{part}', [*_EXAMPLES[knob]])}"
    return f"has more after its run than may follow it; known: {' or '.join(_EXAMPLES[knob])}, in this order"


def _may_follow(knob: str, part: str) -> bool:
    """Whether a run may be followed by a part alone."""
    return (_START if knob == "start" else _TEACHER).fullmatch(f"{'0' * 16}:{part}") is not None


def run_folder(named: str) -> Path | None:
    """Return the folder of a run by its path; None for other text."""
    match = re.fullmatch(_RUN, named)
    return None if match is None else Path(match["folder"])


def parse_start(start: str) -> InitFrom | None:
    """Return the run that `recipe.start` names, if any; raises ValueError if it names a layer twice."""
    if (match := _START.fullmatch(start)) is None:
        return None
    keep = match["keep"] or "first"
    if (layers := listed_layers(keep)) is not None:
        if len({*layers}) < len(layers):
            raise ValueError(f"names a layer twice ({keep}); name each once")
        keep = "first" if layers == tuple(range(len(layers))) else ",".join(map(str, layers))
    return InitFrom(Path(match["folder"]), keep, cast("Grow | None", match["grow"]))


def parse_teacher(named: str) -> Teacher | None:
    """Return the teacher that `recipe.teacher` names, if any; raises ValueError if a number is malformed."""
    if (match := _TEACHER.fullmatch(named)) is None:
        return None
    read: dict[str, Any] = {name: type(usual)(match[name] or usual) for name, usual in USUAL.items()}
    weight, temperature = (read.pop(name) for name in ("weight", "temperature"))
    return Teacher(Path(match["folder"]), weight, temperature, LayerLosses(**read))


def check_teacher(teacher: Teacher) -> None:
    """Raise ValueError where weights and temperature cannot be, or change nothing."""
    losses = teacher.losses
    if not (0 <= teacher.weight <= 1 and (teacher.weight or losses) and 0 < teacher.temperature < math.inf):
        raise ValueError("needs a weight above 0 and at most 1 (0 beside losses between layers), and a temperature above 0")
    if not teacher.weight and teacher.temperature != 1:
        raise ValueError(f"has a temperature {teacher.temperature:g}, which changes nothing at weight 0; leave it out")
    for name in ("hidden_cosine", "hidden_mse", "attention", "relations"):
        if not 0 <= (weight := getattr(losses, name)) < math.inf:
            raise ValueError(f"has {name} {weight:g}; the weight of a loss is a number from 0")
    if losses.relation_heads and not losses.relations:
        raise ValueError(f"has relation_heads {losses.relation_heads} without relations, whose heads they are")
    if losses.layers != "last" and not losses:
        raise ValueError(f"matches layers {losses.layers} by no loss; give hidden_cosine, hidden_mse, attention or relations")


_CELL = re.compile(r"cell (?P<name>[A-Za-z][A-Za-z0-9_-]*)(?P<rest>(?::.*)?)")

_BESIDE_CELL = {"start": ("keep", "grow"), "teacher": tuple(USUAL)}
"""The keys beside `cell` in a start and a teacher, in the order of their text."""


def cell_as_text(knob: str, value: object) -> object:
    """Return a start or teacher `{cell: NAME, …}` of a sweep file as text, such as `cell deep:last`.

    Other values stay. Raises ValueError for unknown keys or a malformed name.
    """
    if not isinstance(value, Mapping):
        return value
    beside = _BESIDE_CELL[knob]
    if unknown := [key for key in value if key not in ("cell", *beside)]:
        raise ValueError(f"has {shown(unknown[0])} beside cell; known: {', '.join(beside)}")
    given = {key: f"{'' if key == 'keep' else f'{key}='}{_as_text(value[key])}" for key in beside if key in value}
    if odd := [key for key, part in given.items() if not _may_follow(knob, part)]:
        known = [example.rpartition("=")[2].lstrip(":") for example in _EXAMPLES[knob] if _is_of(example, odd[0])]
        raise ValueError(f"has {odd[0]} {shown(value[odd[0]])} beside cell; give one such as {' or '.join(known)}")
    text = ":".join((f"cell {value.get('cell')}", *given.values()))
    if (named := cell_in(text)) is None:
        raise ValueError(f"has {shown(value.get('cell'))} for a cell; give one of the names under cells")
    try:
        _check_run(knob, f"{'0' * 16}{named[1]}")
    except ValueError as error:
        raise ValueError(f"has the {knob} {shown(value)}, which {error}") from None
    return text


def _check_run(knob: str, named: str) -> None:
    """Raise ValueError for what follows a run, whichever it is."""
    if knob == "start":
        parse_start(named)
    elif (teacher := parse_teacher(named)) is not None:
        check_teacher(teacher)


def _is_of(example: str, key: str) -> bool:
    return example.startswith(f":{key}=") if key != "keep" else "=" not in example


def _as_text(value: object) -> object:
    """Return a number, word, map or list of layers as text."""
    return ",".join(map(str, value)) if isinstance(value, list) else number_in(layers_as_text(value))


def cell_in(value: object) -> tuple[str, str] | None:
    """Return the cell's name and what follows it in a start or teacher by `cell_as_text`; None for other values."""
    match = _CELL.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else (match["name"], match["rest"])
