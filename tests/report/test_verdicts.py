"""An answer opens with one sentence that answers the sweep's question, and the whole of it is short."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from study.config.recipe import TrainingMasking
from study.evidence.evidence import Evidence, gather
from study.plotting import parameters_loss_score
from study.report import verdicts
from study.report.answer import CONVENTIONS, Answer
from study.report.notebooks import scrolling_tables
from study.report.verdicts import asks_about, verdict_of
from study.store.sweep_folder import SweepFolder
from tests.synthetic import SWEEP, Law, add_run, depth_or_width, in_setting, run_config, sweep_folder
from tests.synthetic_scores import TASKS, add_scores

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"
ANSWERS = sorted(REFERENCE.glob("*/answer.md"))

BEFORE_THE_FIGURE = 120
IN_VIEW = 900


def in_view(text: str) -> str:
    """A page without what lies in folds."""
    return re.sub(r"<details.*?</details>", "", text, flags=re.DOTALL)


def evidence_of(folder: SweepFolder, include_unbracketed: bool = False) -> Evidence:
    folder.write_ledger()
    return gather(folder, include_unbracketed)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.parent.name)
def test_a_committed_answer_opens_with_its_verdict_and_is_short(answer: Path) -> None:
    text = in_view(answer.read_text())
    before, figure, _ = text.partition("![")
    assert figure, "a figure shows the verdict"
    assert len(before.split()) <= BEFORE_THE_FIGURE
    assert len(text.split()) <= IN_VIEW
    _, question, verdict, certainty, _ = before.split("\n\n")
    assert question.startswith("> **Question.** ")
    assert re.fullmatch(r"\*\*.+\.\*\*", verdict), "the first sentence answers"
    assert certainty.startswith("**How sure:** ")
    assert "95% interval" in verdict or "No verdict" in verdict or "no interval" in verdict
    assert text.count("**What would change this:** ") == 1
    assert " seeds each" not in answer.read_text(), "n and seeds are said once, not in each sentence"


def test_every_reference_has_an_answer() -> None:
    sweeps = {path.parent for path in REFERENCE.glob("*/sweep.yaml")}
    assert {path.parent for path in ANSWERS} == sweeps
    assert len(ANSWERS) >= 17


def test_pairs_that_no_page_shows_at_a_glance_are_shown_as_a_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for seed in (0, 1):
        for depth, width in ((1, 128), (4, 64)):
            add_run(folder, run_config(depth, width, seed=seed))
    evidence = evidence_of(folder, include_unbracketed=True)
    assert verdict_of(evidence).figures[0] == "paired_differences"
    monkeypatch.setattr(verdicts, "MOST_PAIRS", 0)
    assert verdict_of(evidence).figures[:2] == ("loss_by_depth", "paired_differences")


@pytest.mark.slow
def test_a_question_about_scores_is_answered_with_scores(tmp_path: Path) -> None:
    question = "Does a lower loss mean higher scores, and on which tasks?"
    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": question, "tune": {}, "downstream": ["sst2", "cola"]})
    for width in (32, 64, 96, 128, 160):
        for seed in (0, 1):
            add_run(folder, run_config(1, width, seed=seed))
    folder.write_ledger()
    add_scores(folder, {name: TASKS[name] for name in ("sst2", "cola")})
    answer = Answer(evidence_of(folder), ("loss_curves", "score_against_loss"))
    assert answer.headline.startswith("Scores ")
    assert "averaged over tasks, scores have a rank correlation of " in answer.headline
    assert "encoders, adjusted by Holm over 2 tasks" in answer.verdict.certainty
    data = parameters_loss_score.frame(answer.evidence)
    assert len(data) == 5, "one point an encoder, of the average over tasks"
    cells = {cell.name: cell for cell in answer.evidence.cells}
    assert data["loss_nats"].tolist() == [cells[name].loss_nats for name in data["cell"]]
    assert data["parameters"].tolist() == [cells[name].parameters for name in data["cell"]]
    left, middle, right = parameters_loss_score.draw(data).axes
    assert middle.xaxis_inverted(), "the loss falls to the right, so that better is up and right"
    assert left.get_xlabel() == right.get_xlabel() == "parameters"
    assert "](figures/score_against_loss.svg)" in answer.to_markdown().partition("What would change")[0]


@pytest.mark.parametrize(
    ("best_learning_rates", "headline"),
    [
        (
            {0.15: 3e-4, 0.3: 3e-3, 0.4: 3e-3},
            r"masking.rate=0.[34] scores highest, \S+ \(95% interval \S+ to \S+\), "
            r"significantly above masking.rate=0.15 \(\S+\), but not significantly above masking.rate=0.[34] \(\S+\)\.",
        ),
        (
            {0.3: 3e-3, 0.4: 3e-3},
            r"the highest score is \S+ \(95% interval \S+ to \S+\), masking.rate=0.[34], not significantly above any other; "
            r"the lowest is masking.rate=0.[34] \(\S+\)\.",
        ),
    ],
)
def test_a_question_about_the_scores_of_variants_is_answered_with_the_best(
    tmp_path: Path, best_learning_rates: dict[float, float], headline: str
) -> None:
    question = {"question": "Which masking rate teaches more for tasks?", "downstream": ["sst2", "cola"], "seeds": 2}
    vary = {"recipe.masking.rate": [*best_learning_rates]}
    folder = sweep_folder(tmp_path / "s", SWEEP | question | {"tune": {}, "vary": vary})
    for rate, best in best_learning_rates.items():
        for seed in (0, 1):
            add_run(folder, in_setting(run_config(1, 64, seed=seed), masking=TrainingMasking(rate=rate)), Law(best_rate=best))
    folder.write_ledger()
    add_scores(folder, {name: TASKS[name] for name in ("sst2", "cola")})
    answer = Answer(evidence_of(folder, include_unbracketed=True), ("score_against_loss", "score_against_flops"))
    assert re.fullmatch(rf"Averaged over 2 tasks \(0 chance, 1 perfect\), {headline}", answer.headline), answer.headline
    assert "](figures/score_against_flops.svg)" in answer.to_markdown().partition("What would change")[0]


def test_a_question_about_tokens_is_answered_with_tokens(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "s", budgets=(1e6, 4e6), shapes=((1, 64), (1, 128)))
    file = folder.sweep_file
    file.write_text(file.read_text().replace(SWEEP["question"], "How does the loss fall with the tokens?"))
    sentence = verdict_of(evidence_of(folder)).sentence
    assert sentence.startswith("From 1M tokens to 4M tokens the loss falls significantly in 2 of 2 encoders, by ")
    assert " in the median, L1-H" in sentence


def test_single_seeds_lower_the_loss_but_test_nothing(tmp_path: Path) -> None:
    question = "How does the loss fall with the tokens?"
    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": question, "tune": {}, "seeds": 1})
    for width in (64, 128):
        for tokens in (1e6, 4e6):
            add_run(folder, run_config(1, width, tokens=tokens))
    folder.write_ledger()
    sentence = verdict_of(evidence_of(folder)).sentence
    assert sentence.startswith("From 1M tokens to 4M tokens the loss falls in 2 of 2 encoders, by ")
    assert " nats (no interval, as single seeds test nothing) in the median, L1-H" in sentence


def test_a_question_about_the_learning_rate_is_answered_with_how_far_it_moves(tmp_path: Path) -> None:
    question = "Does the best learning rate stay when the width grows?"
    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": question, "vary": {"recipe.schedule": ["linear", "wsd"]}})
    for position, width in enumerate((32, 64, 128)):
        for schedule, moves in (("linear", 1), ("wsd", 4)):
            law = Law(best_rate=1.6e-2 / moves**position, seed_deviation=0.0)
            for rate in 2.0 ** np.arange(-12.0, -3.0):
                add_run(folder, run_config(1, width, float(rate), schedule=schedule), law)
    evidence = evidence_of(folder)
    stays, moves_on = sorted(evidence.rate_transfers, key=lambda transfer: transfer.factor)
    assert stays.factor == pytest.approx(1, abs=0.1)
    assert moves_on.factor == pytest.approx(16, rel=0.1)
    sentence = verdict_of(evidence).sentence
    assert sentence.startswith("Over 3 shapes (L1-H32")
    assert re.search(r"by a factor of 1(\.\d)? under schedule=linear, from [\d.e-]+ to [\d.e-]+ \(no interval\)", sentence)
    assert re.search(r"and by a factor of 1[67] under schedule=wsd", sentence)


def test_each_knob_that_varies_has_a_clause_and_seeds_are_said_once(tmp_path: Path) -> None:
    vary = {"architecture.norm": ["post", "pre"], "architecture.tied_decoder": [True, False]}
    folder = sweep_folder(tmp_path / "s", SWEEP | {"question": "Which norm, and tied or not?", "tune": {}, "vary": vary})
    for norm in ("post", "pre"):
        for tied in (True, False):
            for seed in (0, 1, 2):
                add_run(folder, in_setting(run_config(1, 64, seed=seed), norm=norm, tied_decoder=tied))
    verdict = verdict_of(evidence_of(folder, include_unbracketed=True))
    assert verdict.sentence.count("norm=") >= 2
    assert verdict.sentence.count("tied_decoder=") >= 2
    assert verdict.sentence.count("95% interval") == 1
    assert verdict.certainty.endswith("Measured with 3 seeds a cell on 200 validation sequences.")


def test_another_equal_quantity_with_the_same_winner_is_left_to_the_findings() -> None:
    verdict = verdict_of(gather(SweepFolder(REFERENCE / "gated_ffn")))
    assert verdict.sentence.count("t equal ") == 1
    assert "activation=gelu is 0.102 nats" in verdict.sentence


def test_a_verdict_on_shapes_names_a_pair_that_differs() -> None:
    """In the suite, one layer of width 128 is lowest of its size, and differs from neither of the others significantly."""
    said = verdict_of(gather(SweepFolder(REFERENCE / "suite"))).sentence
    assert "L4-H64-A2-F256 is 0.282 nats (95% interval 0.013 to 0.551) below L16-H32-A1-F128 on average" in said
    assert "not significant" not in said


def test_counts_stand_only_where_the_question_asks_about_parameters(tmp_path: Path) -> None:
    for question, asked in (
        ("At equal parameters, does depth or width lower the loss more?", False),
        ("At equal non-embedding parameters and depth, which width?", False),
        ("Which size costs the fewest parameters at equal loss?", True),
    ):
        folder = sweep_folder(tmp_path / f"words-{len(question)}", SWEEP | {"question": question})
        add_run(folder, run_config(1, 64))
        evidence = evidence_of(folder)
        assert asks_about(evidence, "parameter") == asked
        assert ("doubling depth +85.1M" in Answer(evidence, ()).to_markdown()) == asked


def test_the_conventions_explain_every_status_of_a_rate() -> None:
    text = " ".join(CONVENTIONS)
    assert all(f"{status}: " in text for status in ("Chosen rate", "Bracketed", "Transferred", "Vertex"))


def test_folds_open_in_the_dashboard_with_their_tables(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    add_run(folder, run_config(1, 64))
    text = Answer(evidence_of(folder), ()).to_markdown()
    shown = scrolling_tables(text).text
    assert shown.count("<details") == text.count("<details markdown") > 2
    assert "<summary>Cells</summary>" in shown
    assert "<table>" in shown
    assert "markdown=" not in shown
    assert "///" not in shown


def test_a_comparison_that_is_missing_is_the_answer(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    for width in (64, 128):
        add_run(folder, run_config(1, width))
    sentence = verdict_of(evidence_of(folder)).sentence
    assert sentence.startswith("No answer yet: no comparison at equal parameters: ")


def test_a_single_cell_is_told_with_the_noise_of_its_sequences(tmp_path: Path) -> None:
    sweep = {key: value for key, value in SWEEP.items() if key != "shapes"} | {"shapes": {"list": [{"depth": 1, "width": 64}]}}
    folder = sweep_folder(tmp_path / "s", sweep | {"question": "How low does it get?", "tune": {}})
    add_run(folder, run_config(1, 64))
    verdict = verdict_of(evidence_of(folder))
    assert re.match(
        r"The lowest loss is \d\.\d{3} nats \(95% interval .* over validation sequences\), by L1-H64", verdict.sentence
    )
    assert verdict.certainty == "Measured with 1 seed; nothing is compared with it."
