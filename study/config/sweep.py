"""A sweep file: one question, and the cells, the search or the goal that answers it.

study.planning.plan checks whether the parts of its runs fit together.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from study.base.errors import InputError, Problem, nearest
from study.base.schema import Count, Distinct, Index, Positive, Several, Strict, Text, set_path, whole
from study.config.goal_spec import SOLVED, DecisionGoal, OptimumGoal, RunPool, SpendLimit, SweepGoal
from study.config.knobs import (
    KNOBS,
    PARTS,
    TOKENIZER_KNOBS,
    TunedKnob,
    VariedKnob,
    batch_of,
    few_enough,
    problems_of_base,
    problems_of_presets,
    problems_of_values,
    shared_values,
    sizes_of_model,
    with_parts,
)
from study.config.named_runs import NO_RUN, cell_as_text, cell_in
from study.config.presets import PRESET, PresetName
from study.config.recipe import Budget
from study.config.resources import Resources
from study.config.run_config import DataConfig, Masking
from study.config.score_config import Downstream, Seeds
from study.config.search_spec import Search, Value
from study.config.shape_spec import LARGEST, MOST_COMBINATIONS, Depth, Ffn, Heads, Shapes, Width
from study.config.tuned_values import trial_seeds
from study.counting.architecture import SHAPE, SIZES
from study.counting.parameters import SizeCount

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""The pattern of a sweep's name: a folder, a W&B group and a title."""

NO_NAME = "cannot name a folder: letters, digits, '_', '.' and '-', at most 64"
"""What is said of a name without that pattern."""


class Budgets(Strict):
    """The budgets of a sweep, each a separate cell: lists of values in any unit of a run's budget."""

    tokens: Distinct[Annotated[Positive, Field(le=1e18)]] = ()
    steps: Distinct[Annotated[Index, Field(le=10**12)]] = ()
    flops: Distinct[Annotated[Positive, Field(le=1e30)]] = ()
    tokens_per_parameter: Distinct[Annotated[Positive, Field(le=1e6)]] = ()

    @model_validator(mode="after")
    def _at_least_one(self) -> Self:
        if not any(values for _, values in self):
            raise ValueError(f"needs at least one budget in {', '.join(type(self).model_fields)}")
        return self

    def each(self) -> Iterator[Budget]:
        """Yield each budget."""
        for unit, values in self:
            for value in values:
                yield Budget.parse({unit: value})

    @property
    def several(self) -> bool:
        """Whether there is more than one budget."""
        return sum(len(values) for _, values in self) > 1

    @property
    def trains_nothing(self) -> bool:
        """Whether a budget has no steps."""
        return 0 in self.steps


class TuneRange(Strict):
    """A knob tuned for each cell: `trials` values from low to high in equal ratios, and one more if the best is at an end.

    A cell tries up to three values at once. Of more, it tries three around the best of the nearest cheaper cell, or around the
    middle of the range, and descends until both sides are worse. Several knobs are tried in all combinations of these values,
    then next to the best of each, until no neighbour is untried.

    `at: smallest` tunes only the cheapest cell of each variant and budget. The others train with its best values, and the
    variant's most expensive cell also tries the values on both sides, to check that they transfer, as they should under
    `recipe.parametrization` completep and scaled_rates.
    """

    low: Positive
    high: Positive
    trials: Annotated[Count, Field(ge=2, le=1000)]
    at: Literal["every", "smallest"] = "every"

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self

    def values(self) -> list[float]:
        """Return the values to try, rounded to four digits, without duplicates."""
        return list(_in_equal_ratios(self.low, self.high, self.trials))

    def line(self) -> list[float]:
        """Return the values, with one more beyond each end."""
        ratio = (self.high / self.low) ** (1 / (self.trials - 1))
        return [_rounded(self.low / ratio), *self.values(), _rounded(self.high * ratio)]


@functools.cache
def _in_equal_ratios(low: float, high: float, count: int) -> tuple[float, ...]:
    """Return values in equal ratios."""
    return tuple(dict.fromkeys(_rounded(value) for value in np.geomspace(low, high, count)))


def _rounded(value: float) -> float:
    return whole(float(f"{value:.4g}"))


class NamedCell(Strict):
    """A cell beyond shapes and budgets, under a name: its sizes, where they differ from the shapes', and its budget.

    It has the same variants as the other cells, but starts fresh and has no teacher. If a start or a teacher names it, it is
    one run, with the sweep's first seed and, if the sweep tunes the rate, this `learning_rate`; if none does, it is a cell
    as others are.
    """

    depth: Depth | None = None
    width: Width | None = None
    heads: Heads | None = None
    ffn: Ffn | None = None
    tokens: Positive | None = None
    steps: Count | None = None
    flops: Positive | None = None
    tokens_per_parameter: Positive | None = None
    learning_rate: Positive | None = None

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if len(self._budget) != 1:
            raise ValueError(f"needs exactly one budget, of {', '.join(Budgets.model_fields)}")
        return self

    @property
    def _budget(self) -> dict[str, float]:
        return self.model_dump(include=set(Budgets.model_fields), exclude_none=True)

    @property
    def budget(self) -> Budget:
        """Its budget."""
        return Budget.parse(self._budget)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that it gives."""
        return self.model_dump(include=set(LARGEST), exclude_none=True)


Varied = Several[Value]
"""The values of a knob to compare, each a separate variant at every shape and budget."""


_ANY_SHAPE = {"list": [{"depth": 1, "width": 1}]}
"""A substitute for missing shapes, to find the other problems of a file."""

_NOTHING_TO_TUNE = "a budget of 0 steps trains nothing: give no other budget, one seed, and no tune or search"
_SEARCH_ALONE = "does not go with a search, whose space lists the knobs of one budget and one seed; leave it out"
_AUTO_BESIDE_OTHERS = "'auto' means bf16 or fp32, depending on the device; list those two to compare them"
DECIDING_SEEDS = 6
"""The most seeds of each variant of a decision, if a file does not say."""

MOST_RUNS = 100_000
"""The most runs of a sweep of cells, seeds counted: a file of more is a slip of its author, and would be planned for hours."""

MOST_OF_POOL = 2000
"""The most runs that a goal chooses from, seeds counted."""

_GOAL_ALONE = "does not go with a goal, which takes its runs from pool, and as many seeds as it needs; leave it out"
_OF_A_GOAL = "belongs to a goal, which is missing; leave it out"


class SweepBase(Strict):
    """The common part of all sweeps: question, data, shared values and compute.

    `preset` names the defaults of architecture and recipe, and `base` overrides them (study.config.presets). Under
    `base.architecture`, `model` names an encoder of the literature, such as albert-base or bert-base-uncased: it replaces the
    preset's architecture, and the other keys override it. Its vocabulary and positions are those of the text, and without
    `shapes` its sizes are the one shape. Each run's configuration holds every value, so its id does not depend on whether
    preset, model or file set it.
    """

    name: Text
    question: Text
    expect: Text | None = None
    data: DataConfig = DataConfig()
    masking: Masking = Masking()
    preset: PresetName = "bert"
    base: Annotated[dict[str, Any], AfterValidator(with_parts)] = Field(default_factory=dict)
    seeds: Seeds = 1
    first_seed: Annotated[Index, Field(le=2**31)] = 0
    tags: Distinct[Text] = ()
    downstream: Downstream | None = None
    resources: Resources = Resources()

    of_shapes: ClassVar[tuple[str, ...]] = ()
    """The sizes that shapes or a pool give each run."""

    @field_validator("name")
    @classmethod
    def _name_is_safe(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(f"{NO_NAME}; give another, as in name=mine; without one, the file's name is taken")
        return name

    @field_validator("*")
    @classmethod
    def _section_is_kept(cls, section: Any, info: ValidationInfo) -> Any:
        """Add each valid section to the context, in which `parse_sweep` checks them together."""
        if info.context is not None:
            info.context[info.field_name] = section
        return section

    @classmethod
    def known_keys(cls) -> dict[str, Any]:
        """Return the keys of every kind of sweep file."""
        return {name: field.annotation for kind in _KINDS.values() for name, field in kind.model_fields.items()}

    def shared_with(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that the preset and `base` give the runs of a variant."""
        return shared_values(knobs.get(PRESET, self.preset), self.base, self.of_shapes)

    @property
    def shared(self) -> dict[str, Any]:
        """The values that the preset of the file and `base` give all runs."""
        return self.shared_with({})

    @property
    def texts(self) -> list[DataConfig]:
        """The data of its runs, one for each tokeniser."""
        return [self.data]

    @property
    def compares_tokenizers(self) -> bool:
        """Whether its runs have different tokenisers and compare in bits per byte alone."""
        return any(knob in TOKENIZER_KNOBS for knob in self.varied)

    def data_with(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data of a variant, as plain values."""
        values = {"data": self.data.model_dump(exclude_none=True)}
        for knob in TOKENIZER_KNOBS:
            if knob in knobs:
                set_path(values, knob, knobs[knob])
        return values["data"]

    @property
    def varied(self) -> tuple[str, ...]:
        """The compared knobs."""
        return ()

    @property
    def tuned(self) -> tuple[str, ...]:
        """The knobs tuned for each cell."""
        return ()

    @property
    def searched(self) -> tuple[str, ...]:
        """The knobs of a search space."""
        return ()

    @property
    def distinguishing_knobs(self) -> tuple[str, ...]:
        """The varied, tuned or searched knobs, except shape and learning rate."""
        knobs = (*self.varied, *self.tuned, *self.searched)
        return tuple(knob for knob in knobs if knob not in ("recipe.learning_rate", *SHAPE))

    @property
    def choosing_seeds(self) -> tuple[int, ...]:
        """The seeds that try tuned values."""
        return ()

    @property
    def transfers(self) -> bool:
        """Whether only the smallest cells are tuned."""
        return False

    @property
    def iso_parameters(self) -> tuple[float, ...]:
        """The targets of parameters, by `size_count`, for shapes of equal size."""
        return ()

    @property
    def size_count(self) -> SizeCount:
        """The count of parameters by which shapes of one size are compared."""
        return "non_embedding"

    def place_of(self, knob: str) -> str | None:
        """Return the place in the file that lists a varied, tuned or searched knob."""
        sections = {"vary": self.varied, "tune": self.tuned, "search.space": self.searched}
        return next((f"{section}.{knob}" for section, knobs in sections.items() if knob in knobs), None)


def _in_words(count: int) -> str:
    return f"{count:,}" if count < 10**15 else f"over 10^{math.floor(math.log10(count))}"


class CellSweep(SweepBase):
    """A sweep of cells: every shape at every budget in every variant, with tuned knobs and repeated seeds.

    Budgets of more tokens than `one_seed_above` have the first seed alone.
    """

    shapes: Shapes
    budgets: Budgets
    one_seed_above: Annotated[Positive, Field(le=1e18)] | None = None
    cells: dict[str, NamedCell] = Field(default_factory=dict)
    tune: Annotated[dict[TunedKnob, TuneRange], BeforeValidator(few_enough)] = Field(default_factory=dict)
    vary: Annotated[dict[VariedKnob, Varied], BeforeValidator(few_enough)] = Field(default_factory=dict)

    of_shapes: ClassVar[tuple[str, ...]] = SIZES

    @field_validator("vary", mode="before")
    @classmethod
    def _cells_as_text(cls, vary: object) -> object:
        """Write `{cell: NAME}` among starts and teachers as text."""
        if not isinstance(vary, Mapping):
            return vary
        return {
            path: [cell_as_text(knob, value) for value in values] if isinstance(values, list) and knob in NO_RUN else values
            for path, values in vary.items()
            for knob in [str(path).removeprefix("recipe.")]
        }

    @field_validator("vary")
    @classmethod
    def _variants_are_not_endless(cls, vary: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        if (count := math.prod(len(values) for values in vary.values())) > MOST_COMBINATIONS:
            raise ValueError(f"makes {_in_words(count)} variants, more than {MOST_COMBINATIONS:,}")
        return vary

    @field_validator("tune")
    @classmethod
    def _tuned_values_are_sensible(cls, tune: dict[str, TuneRange]) -> dict[str, TuneRange]:
        if (count := math.prod(tuned.trials for tuned in tune.values())) > MOST_COMBINATIONS:
            raise ValueError(f"makes {_in_words(count)} combinations a cell, more than {MOST_COMBINATIONS:,}")
        if len({tuned.at for tuned in tune.values()}) > 1:
            raise ValueError("tunes some knobs at every cell and others at: smallest; give all of them the same")
        return tune

    @model_validator(mode="after")
    def _not_endless(self) -> Self:
        """Refuse what the lists make together, before any run of it is built."""
        factors = {
            "shapes": self.shapes.number,
            "variants": math.prod(len(values) for values in self.vary.values()),
            "budgets and named cells" if self.cells else "budgets": sum(len(values) for _, values in self.budgets)
            + len(self.cells),
            "tuned combinations": math.prod(tuned.trials for tuned in self.tune.values()),
            "seeds": len(self.trial_seeds),
        }
        repeats = math.prod([*factors.values()][:3]) * len(self.repeat_seeds)
        if (count := math.prod(factors.values()) + repeats) > MOST_RUNS:
            made = " x ".join(f"{number:,} {factor}" for factor, number in factors.items() if number > 1)
            remedy = "give fewer values of one of these, or ask in several sweeps"
            raise ValueError(f"makes {_in_words(count)} runs ({made}), more than {MOST_RUNS:,}; {remedy}")
        return self

    @model_validator(mode="after")
    def _named_cells_are_known(self) -> Self:
        for knob in NO_RUN:
            for name, _ in filter(None, map(cell_in, self.vary.get(f"recipe.{knob}", ()))):
                if name not in self.cells:
                    example = f"write cells: {{{name}: {{depth: 4, tokens: 1.0e6}}}}"
                    remedy = nearest(name, [*self.cells]) if self.cells else example
                    raise ValueError(f"{knob}s name the cell {name!r}, which is not under cells; {remedy}")
        return self

    @model_validator(mode="after")
    def _named_runs_are_not_tuned(self) -> Self:
        for name in self.parents if self.tune else ():
            if others := [knob for knob in self.tune if knob != "recipe.learning_rate"]:
                raise ValueError(f"tunes {others[0]}, which cells.{name}, one run that others need, cannot be given; vary it")
            if self.cells[name].learning_rate is None:
                raise ValueError(f"needs cells.{name}.learning_rate: others need that run, so that its rate is not tuned")
        for name, cell in self.cells.items() if "recipe.learning_rate" in self.tune else ():
            if cell.learning_rate is not None and name not in self.parents:
                raise ValueError(f"tunes the rate that cells.{name} has, too; leave it out there")
        return self

    @model_validator(mode="after")
    def _nothing_is_tuned_without_training(self) -> Self:
        if self.budgets.trains_nothing and (self.tune or self.seeds > 1 or self.budgets.several):
            raise ValueError(_NOTHING_TO_TUNE)
        return self

    @model_validator(mode="after")
    def _one_seed_has_a_use(self) -> Self:
        if self.one_seed_above is not None and self.seeds == 1:
            raise ValueError("has one_seed_above, but one seed everywhere; leave it out, or give more seeds")
        return self

    def at_budget(self, tokens: float) -> CellSweep:
        """Return the sweep of one seed for the cells of a budget above `one_seed_above`, else the same."""
        if self.one_seed_above is None or tokens <= self.one_seed_above:
            return self
        return self.model_copy(update={"seeds": 1})

    @property
    def varied(self) -> tuple[str, ...]:
        """The compared knobs."""
        return tuple(self.vary)

    @property
    def tuned(self) -> tuple[str, ...]:
        """The knobs tuned for each cell."""
        return tuple(self.tune)

    @property
    def transfers(self) -> bool:
        """Whether only the smallest cells are tuned."""
        return any(tuned.at == "smallest" for tuned in self.tune.values())

    @property
    def parents(self) -> tuple[str, ...]:
        """The names of the cells that starts and teachers name."""
        named = (cell_in(value) for knob in NO_RUN for value in self.vary.get(f"recipe.{knob}", ()))
        return tuple(dict.fromkeys(cell[0] for cell in named if cell is not None))

    @property
    def texts(self) -> list[DataConfig]:
        """The data of its runs, one for each tokeniser; raises InputError."""
        if not self.compares_tokenizers:
            return super().texts
        return [*dict.fromkeys(DataConfig.parse(self.data_with(variant), "data") for variant in self.variants)]

    @property
    def variants(self) -> list[dict[str, Any]]:
        """Every combination of the values of `vary`."""
        return [dict(zip(self.vary, values, strict=True)) for values in product(*self.vary.values())]

    @property
    def seed_values(self) -> tuple[int, ...]:
        """The seeds of each cell."""
        return tuple(range(self.first_seed, self.first_seed + self.seeds))

    @property
    def choosing_seeds(self) -> tuple[int, ...]:
        """The seeds that try tuned values."""
        return self.seed_values[: trial_seeds(self.seeds)] if self.tune else ()

    @property
    def trial_seeds(self) -> tuple[int, ...]:
        """The first seeds of a cell: the choosing seeds if knobs are tuned, else all."""
        return self.choosing_seeds or self.seed_values

    @property
    def repeat_seeds(self) -> tuple[int, ...]:
        """The other seeds, which repeat the best tuned values."""
        return self.seed_values[len(self.trial_seeds) :]

    @property
    def iso_parameters(self) -> tuple[float, ...]:
        """The targets of parameters, by `size_count`."""
        return self.shapes.iso_parameters or ()

    @property
    def size_count(self) -> SizeCount:
        """The count of parameters by which shapes of one size are compared."""
        return self.shapes.count


class SearchSweep(SweepBase):
    """A sweep that Optuna searches: one budget, one seed, and a space."""

    search: Search
    budgets: Budgets

    @model_validator(mode="after")
    def _one_budget_and_seed(self) -> Self:
        if self.seeds > 1 or self.budgets.several:
            raise ValueError("has a search, which takes one budget and one seed; give one of each")
        if self.budgets.trains_nothing:
            raise ValueError(_NOTHING_TO_TUNE)
        return self

    @property
    def searched(self) -> tuple[str, ...]:
        """The knobs of the search space."""
        return tuple(self.search.space)

    @property
    def budget(self) -> Budget:
        """The budget of every run."""
        (budget,) = self.budgets.each()
        return budget


class GoalSweep(SweepBase):
    """A sweep with a goal: runs are chosen from a pool, one batch after another, until the goal is met or the compute is spent.

    `seeds` is the most seeds of one shape and budget; without it one for a law, and DECIDING_SEEDS for a decision. `prior` is
    where the first runs are chosen from: the JSON of a fit of the law by study fit; without one, published exponents with wide
    priors.
    """

    goal: SweepGoal
    pool: RunPool = RunPool()
    spend: SpendLimit
    prior: Text | None = None

    of_shapes: ClassVar[tuple[str, ...]] = SIZES

    @model_validator(mode="before")
    @classmethod
    def _a_decision_has_seeds(cls, values: Any) -> Any:
        """Give a decision or an optimum its seeds if the file does not."""
        goal = values.get("goal") if isinstance(values, Mapping) else None
        decides = isinstance(goal, Mapping) and bool({"decide", "optimum"} & goal.keys())
        return {"seeds": DECIDING_SEEDS, **values} if decides else values

    @model_validator(mode="after")
    def _pool_serves_the_goal(self) -> Self:
        axes = {"depth": self.pool.depth, "width": self.pool.width, "tokens": self.pool.tokens}
        given = [name for name, ends in axes.items() if ends is not None]
        asked = [*axes]
        if isinstance(self.goal, DecisionGoal | OptimumGoal):
            asked = [self.goal.optimum] if isinstance(self.goal, OptimumGoal) else []
            if self.goal.at.tokens is None and self.pool.tokens is None:
                raise ValueError("needs goal.at.tokens, or pool.tokens to choose the budget from")
            if self.prior is not None:
                raise ValueError("decides without a law, and so without a prior; leave it out")
        if missing := [name for name in asked if name not in given]:
            raise ValueError(f"has no runs to choose from: the pool needs {', '.join(missing)}")
        if asked and len(asked) == 1 and len(self.candidates) < 2:
            raise ValueError(f"has one {asked[0]} in the pool; give a range of two or more")
        if (count := self._shapes_and_budgets * self.seeds) > MOST_OF_POOL:
            raise ValueError(
                f"has {count:,} runs to choose from, more than {MOST_OF_POOL:,}; give a smaller pool or fewer seeds"
            )
        return self

    @property
    def candidates(self) -> tuple[Any, ...]:
        """The variants that a decision or an optimum compares; none for a law."""
        match self.goal:
            case DecisionGoal(among=among):
                return among
            case OptimumGoal(optimum=size):
                return tuple(self.pool.depths() if size == "depth" else self.pool.widths())
        return ()

    @property
    def compared(self) -> str | None:
        """What a decision or an optimum compares; None for a law."""
        match self.goal:
            case DecisionGoal(decide=knob) | OptimumGoal(optimum=knob):
                return knob
        return None

    @property
    def varied(self) -> tuple[str, ...]:
        """The knob that a decision compares, unless it is a size of the shape."""
        return () if self.compared is None or self.compared in SOLVED else (self.compared,)

    def place_of(self, knob: str) -> str | None:
        """Return the place in the file that lists the values of the compared knob."""
        return "goal.among" if knob in self.varied else None

    @property
    def _shapes_and_budgets(self) -> int:
        return len(self.candidates) or len(self.pool.depths()) * len(self.pool.widths()) * len(self.pool.budgets())

    @property
    def seed_values(self) -> tuple[int, ...]:
        """The seeds that a shape and budget may have."""
        return tuple(range(self.first_seed, self.first_seed + self.seeds))


Sweep: TypeAlias = CellSweep | SearchSweep | GoalSweep
"""A sweep of any kind."""

_KINDS: Mapping[str, type[CellSweep] | type[SearchSweep] | type[GoalSweep]] = {
    "goal": GoalSweep,
    "search": SearchSweep,
    "shapes": CellSweep,
}
"""The kinds of sweep by the key that names each."""

_ELSEWHERE = {part: f"belongs under base; write base.{part}" for part in PARTS} | {
    "prune": "belongs under search: stopping slow runs would bias a comparison or a fit"
}
"""Messages for keys that stand above their place."""

_BESIDE = {GoalSweep: _GOAL_ALONE, SearchSweep: _SEARCH_ALONE, CellSweep: _OF_A_GOAL}


def sizes_of_text(data: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of an architecture that follow from plain data of a run: its vocabulary and positions."""
    return {"vocabulary": data["tokenizer"]["vocabulary"], "positions": data["sequence_length"]}


def parse_sweep(
    values: Mapping[str, Any],
    unknown: Literal["forbid", "ignore"] = "forbid",
    check: Callable[[Mapping[str, Any]], object] = lambda _: None,
) -> Sweep:
    """Return the sweep of the kind that the values name.

    Where `unknown` is "ignore", as for a sweep that another version launched, unknown keys are ignored, knobs and `base`
    unchecked. Raises InputError with every problem, each under its dotted path; with those that `check` raises of the valid
    sections where others are not, which no plan looks at then.
    """
    given = {key: value for key, value in values.items() if value is not None or key not in _KINDS}
    named = [key for key in _KINDS if key in given]
    kind = _KINDS[named[0] if named else "shapes"]
    problems = [Problem(key, message) for key, message in _ELSEWHERE.items() if key in given and unknown == "forbid"]
    aside = given.keys() & kind.known_keys().keys() - kind.model_fields.keys()
    if not named and (sizes := sizes_of_model(given.get("base"))):
        given["shapes"] = {"list": [sizes]}
    elif len(named) != 1:
        problems.append(Problem("", "needs exactly one of shapes, search and goal"))
        given.setdefault("shapes", _ANY_SHAPE)
    else:
        problems += [Problem(key, _BESIDE[kind]) for key, value in given.items() if key in aside and value]
    sections: dict[str, Any] | None = {} if unknown == "forbid" else None
    try:
        left = {key: value for key, value in given.items() if key not in aside | _ELSEWHERE.keys()}
        sweep = kind.parse(left, unknown=unknown, context=sections)
    except InputError as error:
        problems += [problem for problem in error.problems if problem not in problems]
    if sections is not None:
        problems += _problems_between(sections, kind, of_shapes=kind.of_shapes if named else ())
    if sections and problems:
        problems += _unmet_targets(**sections)
        problems += _problems_of_values(given, [problem.place for problem in problems])
        try:
            check(sections)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return sweep


def _problems_between(sections: Mapping[str, Any], kind: type[SweepBase], of_shapes: tuple[str, ...]) -> Iterator[Problem]:
    """Yield the problems between valid sections of a file."""
    vary, tune, search = (sections.get(section, {}) for section in ("vary", "tune", "search"))
    precision = "recipe.precision"
    searched = search.space[precision].values if search and precision in search.space else ()
    for section, values in (("vary", vary.get(precision, ())), ("search.space", searched)):
        if len(values) > 1 and "auto" in values:
            yield Problem(f"{section}.{precision}", _AUTO_BESIDE_OTHERS)
    kinds, data = "data.tokenizer.kind", sections.get("data")
    if "file" in vary.get(kinds, ()) or (kinds in vary and data is not None and data.tokenizer.kind == "file"):
        remedy = "write one sweep for each file"
        yield Problem(f"vary.{kinds}", f"compares tokenisers that are trained on the text, and 'file' is not; {remedy}")
    if (base := sections.get("base")) is None:
        return
    if kind is CellSweep and PRESET in vary:
        yield from problems_of_presets(vary[PRESET], sections.get(PRESET), base, [*tune, *vary])
    yield from problems_of_base(base, kind.known_keys(), of_shapes, sections.get(PRESET), vary)
    if kind is CellSweep and "recipe.batch_tokens" not in {*tune, *vary} and {"budgets", "preset"} <= sections.keys():
        batch = batch_of(sections["preset"], base)
        for tokens in sections["budgets"].tokens:
            if batch is not None and tokens < batch:
                yield Problem("budgets.tokens", f"{whole(tokens):,} tokens are less than one batch of {batch:,}")


def _problems_of_values(given: Mapping[str, Any], reported: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems of values, which a plan reports in a sweep without others, of knobs without a `reported` one."""
    searched = given.get("search")
    space = searched.get("space") if isinstance(searched, Mapping) else None
    for section, knobs in (("vary", given.get("vary")), ("tune", given.get("tune")), ("search.space", space)):
        for knob, values in knobs.items() if isinstance(knobs, Mapping) and section not in reported else ():
            if knob in KNOBS and not any(place.startswith(f"{section}.{knob}") for place in reported):
                yield from problems_of_values(section, knob, _single_values(values)[:MOST_COMBINATIONS])


def _single_values(values: object) -> list[object]:
    """Return the numbers and texts of a list, or of the choices or ends of a range."""
    if isinstance(values, Mapping):
        values = values.get("choices", [values.get(end) for end in ("low", "high")])
    return [value for value in values if isinstance(value, int | float | str)] if isinstance(values, list) else []


def _unmet_targets(
    *, shapes: Shapes | None = None, base: Mapping[str, Any] | None = None, data: DataConfig | None = None, **_: Any
) -> Sequence[Problem]:
    """Return the targets that no width meets, which a plan reports in a sweep without other problems.

    Targets of the total count need the vocabulary of valid data.
    """
    if shapes is None or (data is None and shapes.count == "total"):
        return []
    of_text = {} if data is None else sizes_of_text(data.model_dump())
    return shapes.sizes(of_text | (base or {}).get("architecture", {}))[1]
