"""Runs of different settings have laws of their own, each fitted to its runs alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from study.base.text import file_name
from study.config.recipe import Budget
from study.config.run_config import RunConfig
from study.evidence import sweep_laws
from study.evidence.evidence import gather, save_fits
from study.evidence.ledgers import LEDGER_FLOPS, LEDGER_PARAMETERS, open_ledger, usable
from study.evidence.sweep_laws import SweepLaws, _candidates, fit_ledger
from study.laws.catalogue import LAWS
from study.laws.estimation import Settings
from study.laws.forecasting import Forecast
from study.laws.law_fits import LawFit, fit_every_count, fit_table
from study.laws.reading import TableQuery
from study.report import answer_tables as tables
from study.report.answer import report
from study.report.answer_tables import law_by_count
from study.report.figures import FIGURES
from study.report.findings import law_findings
from study.store.records import counts_of
from study.store.sweep_folder import SweepFolder
from tests.synthetic import SWEEP, Law, add_run, depth_or_width, in_setting, reshaped, run_config, sweep_folder

pytestmark = pytest.mark.usefixtures("few_resamples")


@dataclass(frozen=True)
class Chinchilla(Law):
    """2.5 + (N/N₀)^−alpha + (D/D₀)^−0.3 nats, beside the noise of seeds and sequences."""

    alpha: float = 0.3

    def loss(self, config: RunConfig) -> float:
        """The expected loss of a run in nats per masked token."""
        size = counts_of(config, 1)["parameters"]
        return float(2.5 + (size / 3e5) ** -self.alpha + (config.tokens / 1e6) ** -0.3)


@dataclass(frozen=True)
class Kaplan(Law):
    """Kaplan's law of two exponents, beside the noise of seeds and sequences."""

    def loss(self, config: RunConfig) -> float:
        """The expected loss of a run in nats per masked token."""
        columns = {"parameters": np.array([counts_of(config, 1)["parameters"]]), "tokens": np.array([config.tokens])}
        return float(LAWS["kaplan"].predict(KAPLANS, columns)[0])


KAPLANS = {"A": 3e9, "alpha_N": 0.16, "alpha_D": 0.15, "B": 9e9}
"""Constants with losses of 3.5 to 5 nats."""

EXPONENTS = {0.0: 0.3, 0.1: 0.6}
"""The exponent of the size under each dropout."""


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    """Runs of two dropouts with a law each, which nobody changes."""
    sweep = {"tune": {}, "shapes": {"grid": {"depth": [1], "width": [32]}}, "vary": {"recipe.dropout": [0, 0.1]}}
    folder = sweep_folder(tmp_path_factory.mktemp("made") / "s", SWEEP | sweep)
    for dropout, width, tokens, seed in product(EXPONENTS, (32, 64, 128, 256), (1e6, 2e6, 4e6, 8e6), (0, 1)):
        law = Chinchilla(alpha=EXPONENTS[dropout], seed_deviation=0.001)
        add_run(folder, in_setting(run_config(1, width, seed=seed, tokens=tokens), dropout=dropout), law)
    folder.write_ledger()
    return folder


@pytest.fixture
def of_two_dropouts(made_once: SweepFolder, tmp_path: Path) -> SweepFolder:
    """A copy of these runs for a test that writes beside them."""
    return SweepFolder(shutil.copytree(made_once.path, tmp_path / "s"))


BASE = (1, 64, 2, 256)
FREE = [BASE, (2, 64, 2, 256), (1, 128, 2, 256), (1, 64, 4, 256), (1, 64, 2, 512)]
"""Depth, width, heads and FFN, of which none follows from the others."""


@pytest.mark.parametrize(
    ("shapes", "budgets", "laws"),
    [
        ([BASE], (1e6,), []),
        ([BASE], (1e6, 2e6), ["tokens-floor"]),
        ([BASE, (1, 128, 2, 512)], (1e6,), ["power-floor"]),
        ([BASE, (1, 128, 2, 512)], (1e6, 2e6), ["chinchilla"]),
        ([BASE, (2, 64, 2, 256)], (1e6, 2e6), ["chinchilla"]),
        ([BASE, (2, 128, 2, 512)], (1e6, 2e6), ["chinchilla", "width-depth-tokens"]),
        (FREE, (1e6,), ["power-floor", "shape"]),
        (FREE[:-1], (1e6,), ["power-floor"]),
        ([(depth, 32 * depth, depth, 128 * depth) for depth in (1, 2, 3, 4, 6)], (1e6,), ["power-floor"]),
    ],
)
def test_the_laws_of_a_sweep_are_those_whose_variables_it_varies(
    tmp_path: Path, shapes: list[tuple[int, ...]], budgets: tuple[float, ...], laws: list[str]
) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for (depth, width, heads, ffn), tokens in product(shapes, budgets):
        add_run(folder, reshaped(run_config(depth, width, tokens=tokens), heads=heads, ffn=ffn))
    assert _candidates(usable(folder.ledger())) == laws


@pytest.mark.slow
def test_conditions_keep_the_runs_of_each_setting_that_has_a_law_of_its_own(made_once: SweepFolder, tmp_path: Path) -> None:
    folder = made_once
    assert gather(folder).conditions == ("recipe.dropout == 0.0", "recipe.dropout == 0.1")
    for condition in gather(folder).conditions:
        assert fit_ledger(open_ledger(folder.path), "chinchilla", "parameters", "train_flops", condition).fit.n == 32
    one = sweep_folder(tmp_path / "one")
    add_run(one, run_config(1, 64))
    one.write_ledger()
    assert gather(one).conditions == ()


@pytest.mark.slow
def test_a_law_is_fitted_in_every_count_of_what_it_reads(made_once: SweepFolder) -> None:
    table = open_ledger(made_once.path)
    fitted = fit_ledger(table, "chinchilla", "parameters_encoder", "train_flops_6n", "recipe.dropout == 0.0")
    assert fitted.fit.observations.roles["parameters"] == "parameters_encoder"
    fits = fit_every_count(fitted)
    assert list(fits) == list(LEDGER_PARAMETERS)
    assert fits["parameters_encoder"] is fitted
    for count, one in fits.items():
        assert isinstance(one, LawFit)
        again = fit_ledger(table, "chinchilla", count, "train_flops_6n", "recipe.dropout == 0.0")
        assert one.fit.estimates == again.fit.estimates
    of_flops = fit_ledger(table, "flops", "parameters", "train_flops", "recipe.dropout == 0.0")
    assert list(fit_every_count(of_flops)) == list(LEDGER_FLOPS)
    lines = law_by_count(fitted).splitlines()
    assert [line.split(" | ")[0].strip("| ").replace("\\", "") for line in lines[2:]] == list(LEDGER_PARAMETERS)
    assert f"{fitted.fit.estimates['alpha']:.3g} (" in lines[3]
    counted = fitted.with_and_without_embeddings["parameters_non_embedding"]
    assert isinstance(counted, LawFit)
    assert f"with parameters_non_embedding as N: {counted.exponents_in_words()}, " in fitted.to_text()


def test_a_law_of_neither_parameters_nor_flops_has_no_counts(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for tokens, seed in product((1e6, 2e6, 4e6, 8e6), (0, 1)):
        add_run(folder, run_config(1, 64, seed=seed, tokens=tokens))
    folder.write_ledger()
    fitted = fit_ledger(open_ledger(folder.path), "tokens", "parameters", "train_flops")
    assert fit_every_count(fitted) == {}
    assert law_by_count(fitted) == ""


def test_tokens_that_follow_from_the_shape_determine_no_law_of_tokens(tmp_path: Path) -> None:
    """By one budget of FLOPs deeper shapes of one size train on fewer tokens, since attention costs them more."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "budgets": {"flops": [1e12]}})
    for depth, width, seed in ((1, 130, 0), (2, 92, 0), (4, 64, 0), (8, 46, 0), (12, 38, 0), (16, 32, 0)):
        plain = run_config(depth, width, seed=seed)
        add_run(folder, plain.model_copy(update={"recipe": plain.recipe.model_copy(update={"budget": Budget(flops=1e12)})}))
    folder.write_ledger()
    assert folder.read_ledger()["tokens"].nunique() > 3
    laws = gather(folder).laws
    assert (laws.fits, laws.reasons) == (
        (),
        ("No law is fitted: the usable runs are of one size, and no shape has two budgets",),
    )


@pytest.mark.slow
def test_laws_come_in_the_order_of_the_settings_in_the_sweep_file(of_two_dropouts: SweepFolder) -> None:
    folder = of_two_dropouts
    turned = folder.sweep_file.read_text().replace("- 0\n", "- 0.2\n").replace("- 0.1\n", "- 0\n").replace("- 0.2\n", "- 0.1\n")
    folder.sweep_file.write_text(turned)
    assert "- 0.1\n  - 0\n" in turned
    names = [actual.name for actual in gather(folder, include_unbracketed=True).laws.fits]
    assert names == [f"chinchilla where recipe.dropout == {dropout}" for dropout in (0.1, 0.0)]


def test_why_no_law_is_fitted_is_reported_with_the_settings_of_which_it_is_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "vary": {"recipe.dropout": [0.1, 0]}})
    for dropout in (0.1, 0.0):
        add_run(folder, in_setting(run_config(1, 64), dropout=dropout))
    folder.write_ledger()
    where = "recipe.dropout == 0.1"

    def refused(source: TableQuery, _: object) -> SweepLaws:
        return SweepLaws((), ("too few", "too flat") if source.where == where else ("too few",))

    monkeypatch.setattr(sweep_laws, "_laws", refused)
    assert gather(folder).laws.reasons == ("too few", f"too flat (where {where})")


def test_each_setting_has_its_law(made_once: SweepFolder) -> None:
    folder = made_once
    laws = gather(folder, include_unbracketed=True).laws
    assert laws.reasons == ()
    names = [f"chinchilla where recipe.dropout == {dropout}" for dropout in EXPONENTS]
    assert [actual.name for actual in laws.fits] == names
    for actual, alpha in zip(laws.fits, EXPONENTS.values(), strict=True):
        assert actual.fit.n == 32
        assert actual.fit.estimates["alpha"] == pytest.approx(alpha, abs=0.1)
    alone = fit_table(TableQuery(open_ledger(folder.path), where="recipe.dropout == 0.1"), "chinchilla")
    assert laws.fits[1].fit.estimates == alone.fit.estimates


def test_where_a_sum_of_powers_omits_something_kaplans_law_is_fitted_and_stands_first_if_it_forecasts_better(
    tmp_path: Path,
) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}, "shapes": {"grid": {"depth": [1], "width": [32]}}})
    for width, tokens, seed in product((32, 64, 128, 256), (5e5, 1e6, 2e6, 4e6, 8e6), (0, 1)):
        add_run(folder, run_config(1, width, seed=seed, tokens=tokens), Kaplan(seed_deviation=0.001))
    folder.write_ledger()
    laws = gather(folder, include_unbracketed=True).laws
    assert [one.fit.law.name for one in laws.fits] == ["kaplan", "chinchilla"]
    kaplan, chinchilla = laws.fits
    assert laws.shown is kaplan
    assert not kaplan.omissions
    assert chinchilla.omissions
    for name in ("alpha_N", "alpha_D"):
        assert kaplan.fit.estimates[name] == pytest.approx(KAPLANS[name], rel=0.02)


@pytest.mark.slow
def test_the_answer_reports_the_law_of_each_setting_and_keeps_each_in_a_file(
    of_two_dropouts: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("study.report.answer.FIGURES", {"law_fit": FIGURES["law_fit"]})
    folder = of_two_dropouts
    mine = folder.fits / "chinchilla of my own.json"
    mine.parent.mkdir()
    mine.write_text("{}")
    answer = report(folder, include_unbracketed=True)
    lines = law_findings(answer.evidence)
    assert [line.split(",")[0] for line in lines[:2]] == [f"chinchilla where recipe.dropout == {each}" for each in EXPONENTS]
    files = {f"chinchilla-where-recipe.dropout={dropout}.json" for dropout in EXPONENTS}
    assert {file.name for file in folder.fits.glob("chinchilla*")} == {*files, mine.name}
    options = [json.loads((folder.fits / name).read_text())["options"]["where"] for name in sorted(files)]
    assert options == [f"recipe.dropout == {dropout}" for dropout in EXPONENTS]
    assert "| chinchilla where recipe.dropout == 0.1 |" in folder.answer_file.read_text()
    assert "law_fit" in answer.figures


@pytest.mark.slow
def test_it_is_said_how_many_cells_whose_rate_is_not_bracketed_a_law_is_fitted_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_laws, "DEFAULT_SETTINGS", Settings(bootstrap=20))
    shapes, budgets = ((1, 32), (1, 64), (1, 128)), (1e6, 2e6, 4e6)
    folder = depth_or_width(tmp_path / "s", seeds=1, shapes=shapes, budgets=budgets)
    before = folder.write_ledger()
    assert tables.laws(gather(folder)).startswith("| law |")
    add_run(folder, run_config(1, 256))
    assert len(folder.write_ledger()) == len(before) + 1
    assert tables.laws(gather(folder)).startswith(
        "Cells whose learning rate is not bracketed take part: 1 of 10 (see the table of cells).\n\n| law |"
    )


def test_a_condition_on_words_names_a_file() -> None:
    where = "recipe.start == 'a/0123:spread' and recipe.dropout == 0.1"
    assert file_name(f"chinchilla where {where}") == "chinchilla-where-recipe.start=a-0123-spread-and-recipe.dropout=0.1"


@pytest.mark.slow
def test_of_many_settings_the_answer_says_how_to_fit_one(of_two_dropouts: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = of_two_dropouts
    save_fits(gather(folder, include_unbracketed=True))
    monkeypatch.setattr(sweep_laws, "MOST_VARIANTS", 1)
    evidence = gather(folder, include_unbracketed=True)
    (reason,) = evidence.laws.reasons
    assert reason.startswith("No law is fitted: runs that differ in recipe.dropout have laws of their own")
    assert reason.endswith('fit some with study fit of this folder and --where "recipe.dropout == 0.0"'), "and no path of it"
    save_fits(evidence)
    assert not list(folder.fits.glob("chinchilla*")), "laws that are no more are taken away"


REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def test_a_law_on_a_bound_shows_its_exponents_by_both_counts() -> None:
    sweep = gather(SweepFolder(REFERENCE / "width_and_tokens"))
    assert {law.fit.status for law in sweep.laws.fits} == {"on_bound"}
    _, _, counted = tables.laws(sweep).partition("with embeddings in N and without; of a law on a bound, the exponents alone")
    with_them, without = counted.splitlines()[-2:]
    assert with_them.startswith("| parameters | on bound | – | – | – | 0.834 (")
    assert without.startswith("| parameters\\_non\\_embedding | on bound | – | – | – | 0.45 (")


def test_a_sum_of_powers_that_forecasts_better_than_kaplans_law_stands_first() -> None:
    fits = gather(SweepFolder(REFERENCE / "size_and_tokens")).laws.fits
    assert [one.fit.law.name for one in fits if "rotary" in one.name] == ["chinchilla", "kaplan"]


def test_in_the_suite_kaplans_laws_forecast_better_than_sums_and_laws_that_omit_something_recommend_no_size() -> None:
    suite = gather(SweepFolder(REFERENCE / "suite"))
    fits = {law.fit.law.name: law for law in suite.laws.fits}
    assert list(fits) == ["kaplan", "chinchilla", "kaplan-width-depth", "width-depth-tokens"]
    errors = {}
    for name, law in fits.items():
        assert isinstance(law.forecast, Forecast)
        errors[name] = np.abs(law.forecast.errors).mean()
    assert max(errors["kaplan"], errors["kaplan-width-depth"]) < 0.02
    assert min(errors["chinchilla"], errors["width-depth-tokens"]) > 0.03
    table = tables.best_splits(suite)
    assert table.count("): no recommendation.") == 3
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith(("| kaplan", "| chinchilla", "| width"))]
    assert [row[1] for row in rows] == [f"1e+{power}" for power in range(15, 21)] * 3
    assert rows[-1][2] == "830k", "times the largest run"
    assert tables.best_splits(gather(SweepFolder(REFERENCE / "depth_or_width"))) == ""
