"""Scaling laws from the literature, by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from study.base.errors import InputError, nearest
from study.laws.data_constraint import DataConstrained, RepeatedTokens
from study.laws.formulas import FormulaLaw, is_formula, read_formula
from study.laws.law import Law, SumOfTerms, Term
from study.laws.score_laws import ScoreOfLoss, ScoreOfSizes
from study.laws.tables import RunTable

_LOSS = "Loss in nats (or any unit: its logarithm is fitted)"
_N = "N: parameters, all as Hoffmann et al. count or without embeddings as Kaplan et al. do, as in the caller's column"
_D = "D: training tokens, each pass over repeated text counted"
_F = "F: training FLOPs, in the convention of the caller's column"

_GEMSTONES = "Gemstones, McLeish et al. 2025, arXiv 2502.06857, as fitted by depth_width.py of mcleish7/gemstone-scaling-laws"

_E = Term("E")
_SIZE = Term("A", (("alpha", "parameters"),))
_DATA = Term("B", (("beta", "tokens"),))
_DATA_TIED = Term("B", (("alpha", "tokens"),))
_COMPUTE = Term("C", (("gamma", "flops"),))

_ALL = (
    SumOfTerms(
        "power",
        "A·N^−alpha",
        f"{_LOSS}. {_N}.",
        "Kaplan et al. 2020, arXiv 2001.08361, eq. 1.1: (N_c/N)^α_N, so A = N_c^α_N",
        "loss",
        (_SIZE,),
    ),
    SumOfTerms(
        "power-floor",
        "E + A·N^−alpha",
        f"{_LOSS}. {_N}.",
        "Henighan et al. 2020, arXiv 2010.14701, eq. 1.1",
        "loss",
        (_E, _SIZE),
    ),
    SumOfTerms("tokens", "B·D^−beta", f"{_LOSS}. {_D}.", "Kaplan et al. 2020, arXiv 2001.08361, eq. 1.2", "loss", (_DATA,)),
    SumOfTerms(
        "tokens-floor",
        "E + B·D^−beta",
        f"{_LOSS}. {_D}.",
        "Henighan et al. 2020, arXiv 2010.14701, eq. 1.1",
        "loss",
        (_E, _DATA),
    ),
    SumOfTerms(
        "flops",
        "C·F^−gamma",
        f"{_LOSS}. {_F}.",
        "Kaplan et al. 2020, arXiv 2001.08361, eq. 1.3, on compute-optimal runs",
        "loss",
        (_COMPUTE,),
    ),
    SumOfTerms(
        "flops-floor",
        "E + C·F^−gamma",
        f"{_LOSS}. {_F}.",
        "Henighan et al. 2020, arXiv 2010.14701, eq. 1.1; Pearce and Song 2024, arXiv 2406.12907, sec. 5",
        "loss",
        (_E, _COMPUTE),
    ),
    SumOfTerms(
        "chinchilla",
        "E + A·N^−alpha + B·D^−beta",
        f"{_LOSS}. {_N}. {_D}.",
        "Hoffmann et al. 2022, arXiv 2203.15556, sec. 3.3, eq. 2; estimated as Besiroglu et al. 2024, arXiv 2404.10102",
        "loss",
        (_E, _SIZE, _DATA),
    ),
    SumOfTerms(
        "chinchilla-tied",
        "E + A·N^−alpha + B·D^−alpha",
        f"{_LOSS}. {_N}. {_D}.",
        "Gadre et al. 2024, arXiv 2403.08540, eq. 4, with B = b·6^(−alpha/2); Muennighoff et al. 2023, arXiv 2305.16264",
        "loss",
        (_E, _SIZE, _DATA_TIED),
    ),
    SumOfTerms(
        "chinchilla-no-floor",
        "A·N^−alpha + B·D^−beta",
        f"{_LOSS}. {_N}. {_D}.",
        "Hoffmann et al. 2022, arXiv 2203.15556, eq. 2 with E = 0",
        "loss",
        (_SIZE, _DATA),
    ),
    SumOfTerms(
        "width-depth-tokens",
        "E + A·H^−alpha + B·L^−beta + C·D^−gamma",
        f"{_LOSS}. H: width. L: depth (layers). {_D}. Their Huber delta is 1e-4, on log loss, summed.",
        f"{_GEMSTONES}, its law of three terms (`--num_parameters 3`)",
        "loss",
        (_E, Term("A", (("alpha", "width"),)), Term("B", (("beta", "depth"),)), Term("C", (("gamma", "tokens"),))),
    ),
    SumOfTerms(
        "gemstones",
        "E + A·H^−alpha + B·L^−beta + C·N^−gamma + D·T^−zeta",
        f"{_LOSS}. H: width. L: depth (layers). N: parameters, with embeddings as theirs (without in their ablation). "
        "T: training tokens. Their Huber delta is 1e-4, on log loss, summed.",
        f"{_GEMSTONES}, its law of four terms (`--num_parameters 4`), which the paper prescribes shapes by",
        "loss",
        (
            _E,
            Term("A", (("alpha", "width"),)),
            Term("B", (("beta", "depth"),)),
            Term("C", (("gamma", "parameters"),)),
            Term("D", (("zeta", "tokens"),)),
        ),
    ),
    SumOfTerms(
        "shape",
        "E + A·L^−a_depth·H^−a_width·h^−a_heads·f^−a_ffn",
        f"{_LOSS}. L: depth (layers). H: width. h: heads. f: FFN inner size. At one budget; exponents may be negative.",
        "Ours, after the products of Tay et al. 2022, arXiv 2109.10686, and Alabdulmohsin et al. 2023, arXiv 2305.13035",
        "loss",
        (_E, Term("A", (("a_depth", "depth"), ("a_width", "width"), ("a_heads", "heads"), ("a_ffn", "ffn")))),
        signed=True,
    ),
    SumOfTerms(
        "error-of-loss",
        "ceiling − k·exp(−gamma·L)",
        "Error (one less accuracy), mean over tasks. L: loss in nats. The ceiling is the error of chance.",
        "Gadre et al. 2024, arXiv 2403.08540, eq. 5",
        "error",
        (Term("ceiling"), Term("k", (("gamma", "loss"),), sign=-1)),
        feature="itself",
    ),
)

_CURVES = (
    RepeatedTokens(
        "repeated-tokens",
        "E + A·N^−alpha + B·D′^−beta, D′ = U·(1 + R_D·(1 − exp(−(D/U − 1)/R_D)))",
        f"{_LOSS}. {_N}. {_D}. U: unique tokens, no more than D.",
        "Muennighoff et al. 2023, arXiv 2305.16264, sec. 3.1, its half on tokens, all parameters fitted together",
        "loss",
    ),
    DataConstrained(
        "data-constrained",
        "E + A·N′^−alpha + B·D′^−beta, D′ = U·(1 + R_D·(1 − exp(−(D/U − 1)/R_D))), "
        "N′ = U_N·(1 + R_N·(1 − exp(−(N/U_N − 1)/R_N))), alpha·A·U_N^−alpha = beta·B·U^−beta, U_N at most N",
        f"{_LOSS}. {_N}. {_D}. U: unique tokens, no more than D.",
        "Muennighoff et al. 2023, arXiv 2305.16264, sec. 3.1, and the formula in huggingface/datablations; theirs has "
        "alpha = beta and takes E, A, B and alpha from runs without repeats, here all parameters are fitted together",
        "loss",
    ),
    ScoreOfLoss(
        "score-of-loss",
        "chance + (ceiling − chance)/(1 + exp(k·(L − L0)))",
        "Score between 0 and 1, best fitted in the space linear. L: loss.",
        "Bhagia et al. 2024, arXiv 2412.04403, eq. 3 (step 2); with a law of the loss before it, two steps (study score-law)",
        "score",
    ),
    ScoreOfSizes(
        "score-of-sizes",
        "chance + (ceiling − chance)/(1 + exp(A·N^−alpha + B·D^−beta − M))",
        f"Score between 0 and 1, best fitted in the space linear. {_N}. {_D}. The k and E of two steps are part of A, B and M.",
        "Bhagia et al. 2024, arXiv 2412.04403, the single step that it compares with, and combined_fit in allenai/OLMo",
        "score",
    ),
)

_FORMULAS = (
    FormulaLaw(
        "kaplan",
        "(A·N^−(alpha_N/alpha_D) + B/D)^alpha_D",
        f"{_LOSS}. {_N}. {_D}. A is their N_c^(α_N/α_D), B their D_c.",
        "Kaplan et al. 2020, arXiv 2001.08361, eq. 1.5",
        "loss",
    ),
    FormulaLaw(
        "kaplan-width-depth",
        "(A · width^−(alpha_width/alpha_D) · depth^−(alpha_depth/alpha_D) + B/D)^alpha_D",
        f"{_LOSS}. {_D}. Width and depth (layers) in place of N.",
        "Ours, after Kaplan et al. 2020, arXiv 2001.08361, eq. 1.5, and the products of Tay et al. 2022, arXiv 2109.10686",
        "loss",
    ),
    FormulaLaw(
        "chinchilla-power",
        "E + (A·N^−alpha + B·D^−beta)^k",
        f"{_LOSS}. {_N}. {_D}.",
        "Busbridge et al. 2025, arXiv 2502.08606, its law of supervised training",
        "loss",
    ),
    FormulaLaw(
        "farseer",
        "exp(s·N^q + S) + exp(B·N^b + Q)·D^−exp(A·N^a + E)",
        f"{_LOSS}. {_N}. {_D}. Nine parameters, of which most tables determine fewer.",
        "Li et al. 2025, arXiv 2506.10972, eq. 1",
        "loss",
        (
            *(("s", (-5.0, 0.0)), ("q", (0.01, 0.5)), ("S", (-3.0, 5.0))),
            *(("B", (0.0, 20.0)), ("b", (-0.6, -0.01)), ("Q", (-10.0, 10.0))),
            *(("A", (-10.0, 0.0)), ("a", (0.001, 0.25)), ("E", (-5.0, 10.0))),
        ),
    ),
    FormulaLaw(
        "flops-shifted",
        "E + A·(F + B)^−gamma",
        f"{_LOSS}. {_F}. Of runs on the Pareto front of loss and FLOPs.",
        "Zhai et al. 2022, arXiv 2106.04560, sec. 3.2: B bends the front at small compute",
        "loss",
    ),
    FormulaLaw(
        "learning-rate-batch",
        "E + A·N^−alpha + B·D^−beta + K·(log(learning_rate) − l − n·log(N) − d·log(D))^2 + M·(log(batch) − m − b·log(D))^2",
        f"{_LOSS}. {_N}. {_D}. Batch in tokens. The best rate is exp(l)·N^n·D^d, the best batch exp(m)·D^b.",
        "The optima of Li et al. 2025, arXiv 2503.04715 (Step Law), with a parabola in each logarithm; the parabolas are ours",
        "loss",
        (("l", (-10.0, 10.0)), ("n", (-1.5, 0.5)), ("d", (-0.5, 1.0)), ("m", (-10.0, 15.0)), ("b", (0.0, 1.0))),
    ),
)

LAWS: dict[str, Law] = {law.name: law for law in (*_ALL, *_CURVES, *_FORMULAS)}
"""All laws by name."""


def find_law(name: str | None, place: str = "--law", table: RunTable | None = None, roles: Collection[str] = ()) -> Law:
    """Find a law by its case-insensitive name, or read it from its formula or the file of its formula.

    A name in a formula that is a column of the table is that column; `roles` have a column already. Raises InputError with the
    nearest name or all names, or for an unreadable formula.
    """
    if name is None:
        raise InputError.at(place, f"is missing; known: {', '.join(LAWS)}")
    if (law := LAWS.get(name.lower())) is not None:
        return law
    columns, known = ([], roles) if table is None else ([*map(str, table.frame.columns)], {*roles, *table.roles})
    if is_formula(name):
        return read_formula(name, place, columns, known)
    if Path(name).is_file():
        return read_formula(Path(name).read_text(encoding="utf-8"), name, columns, known)
    raise InputError.at(place, f"{name!r} is not a known law; {nearest(name.lower(), [*LAWS])}")


def laws_to_dict() -> list[dict[str, object]]:
    """All laws as plain values."""
    fields = ("name", "formula", "predicts", "variables", "parameters", "conventions", "source")
    return [{field: getattr(law, field) for field in fields} for law in LAWS.values()]


def law_paragraphs() -> Iterator[tuple[str, ...]]:
    """Every law's name and formula, its inputs and output, its conventions and its source."""
    for law in LAWS.values():
        yield (f"{law.name}: {law.formula}", f"{law.predicts} from {', '.join(law.variables)}", law.conventions, law.source)
